//! Scores: quantiles of what was recorded, shares between tenants, and what a sample may claim.
//!
//! Every sample is kept and sorted; nothing here is sketched, binned or smoothed.

use tollgate_policy::units::{Micros, Time};

/// A sample in order, NaN left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// Puts the sample in order.
    pub fn new(sample: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = sample
            .into_iter()
            .filter(|number| !number.is_nan())
            .collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    /// The smallest recorded number that at least a share `p` of the sample does not exceed
    /// (nearest rank); `None` of nothing. `p` is taken into `0..=1`.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        let rank = (p.clamp(0.0, 1.0) * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied()
    }

    /// The arithmetic mean; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// The largest number; `None` of nothing.
    pub fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers, smallest first.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }
}

/// The numbers that fell into one span of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// When it begins.
    pub start: Time,
    /// What was recorded in it.
    pub sample: Sorted,
}

/// Cuts `recorded` into windows of `width` from `start` on, the empty ones between kept.
///
/// What was recorded before `start` is left out, and a `width` of zero gives no windows.
pub fn by_window(
    recorded: impl IntoIterator<Item = (Time, f64)>,
    start: Time,
    width: Micros,
) -> Vec<Window> {
    /// A day in seconds: more windows than anyone reads.
    const WINDOWS_MAX: usize = 86_400;
    let mut cut: Vec<Vec<f64>> = Vec::new();
    for (at, number) in recorded {
        let index = at.since(start).get().checked_div(width.get());
        let index = index.and_then(|index| usize::try_from(index).ok());
        let Some(index) = index.filter(|index| at >= start && *index < WINDOWS_MAX) else {
            continue;
        };
        if cut.len() <= index {
            cut.resize_with(index + 1, Vec::new);
        }
        cut[index].push(number);
    }
    let starts = (0_u64..).map(|index| start + Micros::new(index.saturating_mul(width.get())));
    let windows = starts.zip(cut);
    windows
        .map(|(start, sample)| Window {
            start,
            sample: Sorted::new(sample),
        })
        .collect()
}

/// Jain's index of fairness: 1 when all shares are equal, 1/n when one has everything.
///
/// `None` of no shares, of shares that sum to nothing, and of a negative one. (Jain, Chiu and Hawe,
/// DEC-TR-301, 1984.)
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let holds = sum > 0.0 && sum.is_finite() && shares.iter().all(|share| *share >= 0.0);
    holds.then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Whether `n` requests with `misses` beyond a limit show, with `confidence`, that at least a share
/// `p` of all requests is within it (MLPerf Inference rules, early stopping).
pub fn supports(p: f64, confidence: f64, misses: u64, n: u64) -> bool {
    let in_range = |share: f64| share > 0.0 && share < 1.0;
    misses < n
        && in_range(p)
        && in_range(confidence)
        && binomial_cdf(misses, n, 1.0 - p) <= 1.0 - confidence
}

/// The smallest sample with `misses` misses that supports a claim for a share `p`; see
/// [`supports`].
///
/// `None` where `p` or `confidence` is not strictly between 0 and 1, or more than a billion
/// requests would be needed.
pub fn queries_needed(p: f64, confidence: f64, misses: u64) -> Option<u64> {
    const MOST: u64 = 1_000_000_000;
    let mut enough = misses.saturating_add(1);
    while !supports(p, confidence, misses, enough) {
        enough = enough.saturating_mul(2);
        if enough > MOST {
            return None;
        }
    }
    let mut too_few = misses;
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if supports(p, confidence, misses, middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    Some(enough)
}

/// The chance of at most `k` hits in `n` trials of chance `p`, summed in logarithms: the first term
/// alone would vanish for a large `n`.
fn binomial_cdf(k: u64, n: u64, p: f64) -> f64 {
    let mut log_term = n as f64 * (-p).ln_1p();
    let mut sum = log_term.exp();
    for hits in 1..=k.min(n) {
        let (more, left) = (hits as f64, (n - hits + 1) as f64);
        log_term += (left / more).ln() + p.ln() - (-p).ln_1p();
        sum += log_term.exp();
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_numbers_that_were_recorded() {
        let sample = Sorted::new((1..=100).rev().map(f64::from));
        for (p, expected) in [
            (0.0, 1.0),
            (0.005, 1.0),
            (0.5, 50.0),
            (0.99, 99.0),
            (1.0, 100.0),
        ] {
            assert_eq!(sample.quantile(p), Some(expected), "{p}");
        }
        assert_eq!(sample.mean(), Some(50.5));
        assert_eq!(sample.max(), Some(100.0));
        assert_eq!(Sorted::new([f64::NAN]).quantile(0.5), None);
    }

    #[test]
    fn the_99th_percentile_of_few_is_the_largest() {
        assert_eq!(Sorted::new([3.0, 1.0, 2.0]).quantile(0.99), Some(3.0));
    }

    #[test]
    fn windows_keep_their_place_also_when_nothing_fell_into_one() {
        let at = |secs| Time::START + Micros::from_secs(secs);
        let recorded = [(at(4), 9.0), (at(5), 1.0), (at(14), 2.0), (at(25), 3.0)];
        let windows = by_window(recorded, at(5), Micros::from_secs(10));
        let shown: Vec<(Time, &[f64])> = windows
            .iter()
            .map(|window| (window.start, window.sample.as_slice()))
            .collect();
        assert_eq!(
            shown,
            [
                (at(5), &[1.0, 2.0][..]),
                (at(15), &[][..]),
                (at(25), &[3.0][..])
            ]
        );
        assert!(by_window(recorded, at(5), Micros::ZERO).is_empty());
    }

    #[test]
    fn equal_shares_are_fair_and_one_that_has_all_is_not() {
        assert_eq!(jain(&[2.0, 2.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), Some(0.25));
        for nonsense in [&[][..], &[0.0, 0.0], &[1.0, -0.5]] {
            assert_eq!(jain(nonsense), None);
        }
    }

    #[test]
    fn the_sample_sizes_of_early_stopping_are_those_of_mlperf() {
        let table = [
            (0.90, [44, 64, 127, 197]),
            (0.95, [90, 130, 259, 398]),
            (0.99, [459, 662, 1_307, 2_010]),
        ];
        for (p, sizes) in table {
            for (misses, needed) in [0, 1, 5, 10].into_iter().zip(sizes) {
                assert_eq!(
                    queries_needed(p, 0.99, misses),
                    Some(needed),
                    "{p}, {misses}"
                );
                assert!(supports(p, 0.99, misses, needed));
                assert!(!supports(p, 0.99, misses, needed - 1));
            }
        }
        assert_eq!(queries_needed(1.0, 0.99, 0), None);
        assert_eq!(queries_needed(f64::NAN, 0.99, 0), None);
    }

    proptest! {
        #[test]
        fn a_quantile_leaves_no_more_above_it_than_it_may(
            sample in prop::collection::vec(-1e6..1e6, 1..200), p in 0.0..=1.0,
        ) {
            let count = sample.len() as f64;
            let sorted = Sorted::new(sample);
            let quantile = sorted.quantile(p).unwrap();
            let not_above = sorted.as_slice().iter().filter(|number| **number <= quantile).count();
            prop_assert!(not_above as f64 >= p * count);
            let below = sorted.as_slice().iter().filter(|number| **number < quantile).count();
            prop_assert!(below == 0 || (below as f64) < p * count);
        }

        #[test]
        fn jain_does_not_depend_on_the_unit(
            shares in prop::collection::vec(0.001..1e3, 1..20), unit in 0.001..1e3,
        ) {
            let scaled: Vec<f64> = shares.iter().map(|share| share * unit).collect();
            let (plain, scaled) = (jain(&shares).unwrap(), jain(&scaled).unwrap());
            prop_assert!((plain - scaled).abs() < 1e-9);
            let least = 1.0 / shares.len() as f64;
            prop_assert!(plain <= 1.0 + 1e-9 && plain >= least - 1e-9);
        }
    }
}
