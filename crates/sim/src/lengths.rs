//! How long prompts and outputs are.

use rand_distr::{Distribution as _, LogNormal};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tollgate_policy::units::Tokens;

use crate::chance::unit;

/// A distribution of lengths, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Lengths {
    /// Always the same.
    Constant(u64),
    /// Each length from `min` to `max`, both included, equally often.
    Uniform {
        /// The shortest, in tokens; at least 1.
        min: u64,
        /// The longest, in tokens; at least `min`.
        max: u64,
    },
    /// Its logarithm is normal. What falls outside `min..=max` is moved to the nearer end.
    Lognormal {
        /// Half of the lengths are shorter, in tokens.
        median: f64,
        /// Standard deviation of the natural logarithm; 0..=5.
        sigma: f64,
        /// The shortest, in tokens; at least 1.
        min: u64,
        /// The longest, in tokens; at least `min`.
        max: u64,
    },
    /// Quantiles at 0, 5, 10, … and 100 %, in tokens; even between each two. What a recorded
    /// distribution is told by where no formula fits it.
    Quantiles([u64; 21]),
}

/// Why lengths cannot be drawn.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LengthsError {
    /// A bound is out of order or out of range.
    #[error(
        "lengths from {min} to {max} tokens; use 1 <= min <= max <= {}",
        Lengths::LONGEST
    )]
    Bounds {
        /// The shortest length asked for, in tokens.
        min: u64,
        /// The longest length asked for, in tokens.
        max: u64,
    },
    /// A lognormal that is none.
    #[error("median {median} and sigma {sigma}; use a median of 1 or more and a sigma of 0 to 5")]
    Shape {
        /// The median asked for, in tokens.
        median: f64,
        /// The spread asked for.
        sigma: f64,
    },
}

impl Lengths {
    /// The longest length that can be asked for, in tokens: above any context in use.
    pub const LONGEST: u64 = 10_000_000;

    /// Checks that lengths can be drawn.
    ///
    /// # Errors
    /// Bounds out of order or out of range, or a shape that is no distribution.
    pub fn check(&self) -> Result<(), LengthsError> {
        let (min, max) = match *self {
            Self::Constant(length) => (length, length),
            Self::Uniform { min, max } => (min, max),
            Self::Quantiles([min, .., max]) if self.is_ordered() => (min, max),
            // Out of order, and said so by bounds that are.
            Self::Quantiles([min, .., max]) => (max.max(min) + 1, min.min(max)),
            Self::Lognormal {
                median,
                sigma,
                min,
                max,
            } => {
                let holds = median.is_finite() && median >= 1.0 && (0.0..=5.0).contains(&sigma);
                if !holds {
                    return Err(LengthsError::Shape { median, sigma });
                }
                (min, max)
            }
        };
        if min == 0 || min > max || max > Self::LONGEST {
            return Err(LengthsError::Bounds { min, max });
        }
        Ok(())
    }

    /// The longest that is ever drawn.
    pub const fn longest(&self) -> u64 {
        match *self {
            Self::Constant(length) => length,
            Self::Uniform { max, .. }
            | Self::Lognormal { max, .. }
            | Self::Quantiles([.., max]) => max,
        }
    }

    fn is_ordered(&self) -> bool {
        match self {
            Self::Quantiles(quantiles) => quantiles.is_sorted(),
            Self::Constant(_) | Self::Uniform { .. } | Self::Lognormal { .. } => true,
        }
    }

    /// One length.
    pub(crate) fn draw(&self, rng: &mut Pcg64) -> Tokens {
        Tokens::new(match *self {
            Self::Constant(length) => length,
            Self::Uniform { min, max } => {
                let width = (max - min + 1) as f64;
                min + ((unit(rng) * width) as u64).min(max - min)
            }
            Self::Quantiles(quantiles) => {
                let place = unit(rng) * (quantiles.len() - 1) as f64;
                let (index, part) = (place as usize, place.fract());
                let at = |index: usize| quantiles.get(index).copied().unwrap_or(1) as f64;
                (at(index) + part * (at(index + 1) - at(index))).round() as u64
            }
            Self::Lognormal {
                median,
                sigma,
                min,
                max,
            } => {
                // `check` leaves no parameters that this refuses.
                let drawn = LogNormal::new(median.ln(), sigma)
                    .map_or(median, |lengths| lengths.sample(rng));
                (drawn.round() as u64).clamp(min, max)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::{Purpose, stream};

    fn drawn(lengths: Lengths, count: usize) -> Vec<u64> {
        let mut rng = stream(7, Purpose::Prompt, "a");
        let draw = |_| lengths.draw(&mut rng).get();
        (0..count).map(draw).collect()
    }

    #[test]
    fn a_uniform_length_reaches_both_ends_and_no_further() {
        let lengths = drawn(Lengths::Uniform { min: 3, max: 6 }, 10_000);
        for length in 3..=6 {
            let count = lengths.iter().filter(|drawn| **drawn == length).count();
            // Five standard deviations of a count of 2,500.
            assert!(count.abs_diff(2_500) < 220, "{length}: {count}");
        }
        assert!(lengths.iter().all(|length| (3..=6).contains(length)));
    }

    #[test]
    fn a_lognormal_has_its_median_and_its_spread() {
        let wide = Lengths::Lognormal {
            median: 300.0,
            sigma: 0.8,
            min: 1,
            max: 1_000_000,
        };
        let mut lengths = drawn(wide, 20_001);
        lengths.sort_unstable();
        assert!(lengths[10_000].abs_diff(300) < 10, "{}", lengths[10_000]);
        // One standard deviation above the median of the logarithm: 300 e^0.8 = 668.
        assert!(lengths[16_827].abs_diff(668) < 30, "{}", lengths[16_827]);
    }

    #[test]
    fn a_lognormal_is_clamped_on_both_sides() {
        let narrow = Lengths::Lognormal {
            median: 300.0,
            sigma: 2.0,
            min: 100,
            max: 500,
        };
        let lengths = drawn(narrow, 2_000);
        assert_eq!(lengths.iter().min(), Some(&100));
        assert_eq!(lengths.iter().max(), Some(&500));
    }

    #[test]
    fn quantiles_come_as_often_as_they_say() {
        let steps: [u64; 21] = std::array::from_fn(|index| 10 + 10 * index as u64);
        let lengths = drawn(Lengths::Quantiles(steps), 20_000);
        for (index, step) in steps.iter().enumerate() {
            let below = lengths.iter().filter(|length| *length < step).count();
            // Five standard deviations of a count of 10,000, and half a token of rounding.
            assert!(below.abs_diff(index * 1_000) < 450, "{step}: {below}");
        }
        let mut turned = steps;
        turned.reverse();
        assert!(Lengths::Quantiles(turned).check().is_err());
        assert!(Lengths::Quantiles(steps).check().is_ok());
    }

    #[test]
    fn lengths_that_cannot_be_drawn_are_refused_with_their_values() {
        assert!(Lengths::Constant(128).check().is_ok());
        assert!(Lengths::Constant(0).check().is_err());
        assert!(Lengths::Constant(Lengths::LONGEST + 1).check().is_err());
        let refused = Lengths::Uniform { min: 5, max: 4 }.check().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "lengths from 5 to 4 tokens; use 1 <= min <= max <= 10000000"
        );
        for (median, sigma) in [
            (f64::NAN, 1.0),
            (0.5, 1.0),
            (10.0, -1.0),
            (10.0, f64::INFINITY),
        ] {
            let shape = Lengths::Lognormal {
                median,
                sigma,
                min: 1,
                max: 9,
            };
            assert!(matches!(shape.check(), Err(LengthsError::Shape { .. })));
        }
    }
}
