//! What steps of the embedded engine cost, by what they compute.
//!
//! Three numbers ([`Together`](StepCost::Together)) are enough for an engine that computes all of a
//! step at once. On a CPU the embedded one computes answers apart from prompts, two answers do not
//! cost twice what one does, and attention goes through all KV in use for each of them;
//! [`Apart`](StepCost::Apart) has a number for each of these, as `tollgate bench calibrate` fits
//! them.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tollgate_policy::engine::Work;
use tollgate_policy::units::{Micros, Tokens};

use crate::emulated::Cost;

/// What the steps of an engine cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepCost {
    /// All of a step at once.
    Together(Cost),
    /// Answers by themselves, and prompts by themselves.
    Apart(ApartCost),
}

/// What steps cost that are made of two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApartCost {
    /// The next tokens of so many answers.
    pub answers: Curve,
    /// KV tokens that attention goes through in a second: all in use, for each answer. Where it
    /// is not said, attention costs nothing.
    pub attention_per_second: Option<NonZeroU64>,
    /// Prompts by themselves, however many and however long.
    pub prompt_step: Micros,
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_second: NonZeroU64,
}

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Sequences that compute one token.
    pub answers: u64,
    /// Sequences that compute more.
    pub prompts: u64,
    /// The tokens of the latter.
    pub prompt_tokens: Tokens,
    /// Tokens of all of them, with those that they had before.
    pub kv: Tokens,
}

impl Shape {
    /// Of what an engine planned.
    pub fn of(work: &[Work]) -> Self {
        let mut shape = Self::default();
        for work in work {
            if work.count > Tokens::new(1) {
                shape.prompts += 1;
                shape.prompt_tokens += work.count;
            } else {
                shape.answers += 1;
            }
            shape.kv += work.start + work.count;
        }
        shape
    }
}

impl StepCost {
    /// The time of such a step.
    pub fn of(&self, shape: Shape) -> Micros {
        match self {
            Self::Together(cost) => {
                let sequences = usize::try_from(shape.answers + shape.prompts);
                cost.of(sequences.unwrap_or(usize::MAX), shape.prompt_tokens)
            }
            Self::Apart(cost) => cost.of_answers(shape) + cost.of_prompts(shape),
        }
    }
}

impl ApartCost {
    fn of_answers(&self, shape: Shape) -> Micros {
        if shape.answers == 0 {
            return Micros::ZERO;
        }
        let looked_at = shape.answers.saturating_mul(shape.kv.get());
        let attention = self.attention_per_second;
        let attention = attention.map_or(Micros::ZERO, |rate| time_for(looked_at, rate));
        self.answers.at(shape.answers) + attention
    }

    fn of_prompts(&self, shape: Shape) -> Micros {
        if shape.prompts == 0 {
            return Micros::ZERO;
        }
        let tokens = shape.prompt_tokens.get();
        self.prompt_step + time_for(tokens, self.prefill_tokens_per_second)
    }
}

fn time_for(count: u64, per_second: NonZeroU64) -> Micros {
    Micros::new(count.saturating_mul(1_000_000) / per_second.get())
}

/// A time that depends on a number of sequences: straight from each number it is known at to the
/// next, level before the first, and on as it last rose after the last, or level where it fell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// invariant: one at least, numbers of sequences rise, and no time is nothing or much below one
    /// of fewer.
    points: Arc<[(u32, Micros)]>,
}

/// Points that no curve goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CurveError {
    /// None, or more than there is room for.
    #[error(
        "{0} numbers of sequences; say what a step of 1 to {most} of them takes, as {{ 1: 7ms, \
         8: 35ms }}",
        most = Curve::POINTS_MAX
    )]
    Count(usize),
    /// A number of sequences that is not above the one before it.
    #[error("{0} sequences stand after as many or more; use rising numbers, from 1 on")]
    Order(u32),
    /// A step that takes no time.
    #[error("a step of {0} takes no time; use 1us or more")]
    Nothing(u32),
    /// Much less than a step of fewer.
    #[error(
        "a step of {sequences} takes {takes}us, and one of {fewer} takes {longer}us; a step of \
         more takes as long, up to a tenth less: were the two exchanged?"
    )]
    Falls {
        /// So many sequences.
        sequences: u32,
        /// Take so many microseconds.
        takes: u64,
        /// And so many, which are fewer.
        fewer: u32,
        /// Take these.
        longer: u64,
    },
}

impl Curve {
    /// Points at most: more than anybody measures, and few enough to go through at each step.
    pub const POINTS_MAX: usize = 64;

    /// The least that a step of more sequences takes of what one of fewer does. Some numbers suit a
    /// machine better than the one below them, by a few per cent where that was measured.
    pub fn least_after(longest: Micros) -> Micros {
        Micros::new(longest.get() / 10 * 9)
    }

    /// Through these points, by rising numbers of sequences.
    ///
    /// # Errors
    /// No points, too many, not in order, or none that an engine has.
    pub fn through(points: &[(NonZeroU32, Micros)]) -> Result<Self, CurveError> {
        if points.is_empty() || points.len() > Self::POINTS_MAX {
            return Err(CurveError::Count(points.len()));
        }
        for pair in points.windows(2) {
            if let [(before, _), (after, _)] = pair
                && before >= after
            {
                return Err(CurveError::Order(after.get()));
            }
        }
        Self::is_of_an_engine(points)?;
        let points = points.iter().map(|(number, span)| (number.get(), *span));
        Ok(Self {
            points: points.collect(),
        })
    }

    fn is_of_an_engine(points: &[(NonZeroU32, Micros)]) -> Result<(), CurveError> {
        let mut longest: Option<(u32, Micros)> = None;
        for (sequences, takes) in points {
            let sequences = sequences.get();
            if *takes == Micros::ZERO {
                return Err(CurveError::Nothing(sequences));
            }
            if let Some((fewer, longer)) = longest
                && *takes < Self::least_after(longer)
            {
                return Err(CurveError::Falls {
                    sequences,
                    takes: takes.get(),
                    fewer,
                    longer: longer.get(),
                });
            }
            if longest.is_none_or(|(_, longer)| *takes > longer) {
                longest = Some((sequences, *takes));
            }
        }
        Ok(())
    }

    /// The time of so many sequences.
    pub fn at(&self, sequences: u64) -> Micros {
        let above = |(number, _): &(u32, Micros)| u64::from(*number) >= sequences;
        let last = self.points.len().saturating_sub(1);
        let high = self.points.iter().position(above).unwrap_or(last);
        let (Some((high, to)), low) = (self.points.get(high), high.checked_sub(1)) else {
            return Micros::ZERO;
        };
        let Some((low, from)) = low.and_then(|low| self.points.get(low)) else {
            return *to;
        };
        let (low, from, high, to) = (*low, *from, *high, *to);
        let part = |span: Micros| {
            let passed = span.get().saturating_mul(sequences - u64::from(low));
            Micros::new(passed / u64::from(high - low))
        };
        if to >= from {
            from + part(to - from)
        } else if sequences <= u64::from(high) {
            from - part(from - to)
        } else {
            to
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> Result<Curve, CurveError> {
        let points: Vec<_> = points
            .iter()
            .map(|(number, micros)| (NonZeroU32::new(*number).unwrap(), Micros::new(*micros)))
            .collect();
        Curve::through(&points)
    }

    fn rate(per_second: u64) -> NonZeroU64 {
        NonZeroU64::new(per_second).unwrap()
    }

    #[test]
    fn between_two_points_a_curve_is_straight_and_after_the_last_it_goes_on() {
        let rising = curve(&[(1, 7_000), (2, 14_000), (4, 21_000)]).unwrap();
        let at = [1, 2, 3, 4, 6].map(|sequences| rising.at(sequences).get());
        assert_eq!(at, [7_000, 14_000, 17_500, 21_000, 28_000]);
        let falling = curve(&[(4, 9_000), (8, 8_200)]).unwrap();
        let at = [1, 4, 6, 8, 99].map(|sequences| falling.at(sequences).get());
        assert_eq!(at, [9_000, 9_000, 8_600, 8_200, 8_200], "it goes on level");
        let level = curve(&[(2, 300)]).unwrap();
        assert_eq!([1, 50].map(|n| level.at(n).get()), [300, 300]);
    }

    #[test]
    fn points_out_of_order_make_no_curve() {
        assert_eq!(curve(&[]), Err(CurveError::Count(0)));
        assert_eq!(curve(&[(2, 1), (2, 1)]), Err(CurveError::Order(2)));
        let many: Vec<_> = (1..=65).map(|n| (n, 1)).collect();
        assert_eq!(curve(&many), Err(CurveError::Count(65)));
    }

    #[test]
    fn a_step_takes_time_and_no_less_than_one_of_fewer_but_for_a_tenth() {
        assert_eq!(curve(&[(1, 7), (2, 0)]), Err(CurveError::Nothing(2)));
        // As it was measured: eight take less than seven.
        assert!(curve(&[(1, 7_200), (7, 54_700), (8, 53_100)]).is_ok());
        let falls = CurveError::Falls {
            sequences: 4,
            takes: 3_000,
            fewer: 1,
            longer: 7_000,
        };
        assert_eq!(curve(&[(1, 7_000), (4, 3_000)]), Err(falls));
        assert!(
            curve(&[(1, 1_000), (2, 920), (3, 850)]).is_err(),
            "little by little"
        );
    }

    #[test]
    fn a_part_that_a_step_does_not_have_costs_nothing() {
        let cost = StepCost::Apart(ApartCost {
            answers: curve(&[(1, 7_000), (2, 10_000)]).unwrap(),
            attention_per_second: Some(rate(1_000_000)),
            prompt_step: Micros::new(2_000),
            prefill_tokens_per_second: rate(250),
        });
        let answers = Shape {
            answers: 2,
            kv: Tokens::new(500),
            ..Shape::default()
        };
        let prompt = Shape {
            prompts: 1,
            prompt_tokens: Tokens::new(100),
            kv: Tokens::new(100),
            ..Shape::default()
        };
        assert_eq!(cost.of(answers), Micros::new(11_000));
        assert_eq!(cost.of(prompt), Micros::new(402_000));
        let both = Shape {
            answers: 2,
            kv: Tokens::new(600),
            ..prompt
        };
        assert_eq!(cost.of(both), Micros::new(11_200 + 402_000));
        assert_eq!(cost.of(Shape::default()), Micros::ZERO);
    }
}
