//! What a sample lets one claim about a 99th percentile, by MLPerf's rule of early stopping.
//!
//! Of n requests, t may lie beyond a limit if a binomial of chance 1 % has at most t hits in n with
//! a chance of 1 % at most. The claim is then the largest number after the t largest; a sample
//! that is too small for t = 0 claims nothing.

use tollgate_sim::stats::{Sorted, queries_needed, supports};

use super::Group;
use super::score::Score;

const P: f64 = 0.99;
const CONFIDENCE: f64 = 0.99;

/// One line of the table of claims, over all seeds of a series at a load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) what: &'static str,
    /// Sample size, over all seeds.
    pub(crate) n: usize,
    /// The plain 99th percentile, in milliseconds.
    pub(crate) p99_ms: f64,
    pub(crate) verdict: Verdict,
}

/// What may be said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// With 99 % confidence, 99 % of all requests take no longer.
    Within {
        /// Milliseconds.
        limit_ms: f64,
        /// How many of the sample may take longer, and do not count against it.
        misses: u64,
    },
    /// Nothing: so many would be needed at least.
    TooFew(u64),
}

/// Picks a sample of a run.
type Pick = fn(&Score) -> &Sorted;

/// The claims of a group.
pub(super) fn of(group: &Group<'_>) -> Vec<Claim> {
    let kinds: [(&'static str, Pick); 3] = [
        ("TTFT", |score| &score.ttft),
        ("longest gap", |score| &score.longest_gap),
        ("E2E", |score| &score.e2e),
    ];
    let claim = |(what, sample): (&'static str, Pick)| {
        let all = group
            .scores
            .iter()
            .flat_map(|score| sample(score).as_slice().iter().copied());
        let sorted = Sorted::new(all);
        Some(Claim {
            what,
            n: sorted.len(),
            p99_ms: sorted.quantile(P)?,
            verdict: verdict(&sorted),
        })
    };
    kinds.into_iter().filter_map(claim).collect()
}

fn verdict(sorted: &Sorted) -> Verdict {
    let n = sorted.len() as u64;
    if !supports(P, CONFIDENCE, 0, n) {
        return Verdict::TooFew(queries_needed(P, CONFIDENCE, 0).unwrap_or(u64::MAX));
    }
    let (mut misses, mut too_many) = (0, n);
    while too_many - misses > 1 {
        let middle = misses + (too_many - misses) / 2;
        if supports(P, CONFIDENCE, middle, n) {
            misses = middle;
        } else {
            too_many = middle;
        }
    }
    let place = usize::try_from(n - 1 - misses).unwrap_or(usize::MAX);
    let limit_ms = sorted
        .as_slice()
        .get(place)
        .copied()
        .unwrap_or(f64::INFINITY);
    Verdict::Within { limit_ms, misses }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_size(n: u32) -> Verdict {
        verdict(&Sorted::new((1..=n).map(f64::from)))
    }

    #[test]
    fn a_claim_is_the_largest_number_after_as_many_as_may_miss() {
        assert_eq!(of_size(458), Verdict::TooFew(459));
        let within = |limit_ms, misses| Verdict::Within { limit_ms, misses };
        assert_eq!(of_size(459), within(459.0, 0));
        assert_eq!(of_size(661), within(661.0, 0));
        assert_eq!(of_size(662), within(661.0, 1));
        assert_eq!(of_size(2_010), within(2_000.0, 10));
    }
}
