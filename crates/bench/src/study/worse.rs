//! What got worse from one series to the next, by a rule that is the same for every number.
//!
//! With two seeds or more on both sides: every seed of the one is worse than every seed of the
//! other, and the medians differ by 2 % or more. With fewer: they differ by 5 % or more. What is
//! no worse is not listed; what got better is for others to say.

use super::score::{Band, Score};
use super::{Group, Study, same};

/// A number that a run has, and which way is better.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) better: Better,
    pub(crate) of: fn(&Score) -> Option<f64>,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// Every number that is compared.
pub(crate) const METRICS: [Metric; 15] = [
    metric("goodput, req/s", Better::More, |score| {
        Some(score.goodput_per_s)
    }),
    metric("attainment", Better::More, |score| Some(score.attainment)),
    metric("tokens/s", Better::More, |score| Some(score.tokens_per_s)),
    metric("TTFT p50, ms", Better::Less, |score| {
        score.ttft.quantile(0.5)
    }),
    metric("TTFT p99, ms", Better::Less, |score| {
        score.ttft.quantile(0.99)
    }),
    metric("TPOT p50, ms", Better::Less, |score| {
        score.tpot.quantile(0.5)
    }),
    metric("TPOT p99, ms", Better::Less, |score| {
        score.tpot.quantile(0.99)
    }),
    metric("ITL p50, ms", Better::Less, |score| score.itl.quantile(0.5)),
    metric("ITL p99, ms", Better::Less, |score| {
        score.itl.quantile(0.99)
    }),
    metric("E2E p50, ms", Better::Less, |score| score.e2e.quantile(0.5)),
    metric("E2E p99, ms", Better::Less, |score| {
        score.e2e.quantile(0.99)
    }),
    metric(
        "worst tenant's TTFT p99, ms",
        Better::Less,
        Score::worst_tenant_ms,
    ),
    metric("service gap", Better::Less, |score| score.service.widest),
    metric("refused, share", Better::Less, |score| {
        share(score.refused, score.due)
    }),
    metric("failed or unfinished, share", Better::Less, |score| {
        share(score.failed + score.unfinished, score.due)
    }),
];

const fn metric(name: &'static str, better: Better, of: fn(&Score) -> Option<f64>) -> Metric {
    Metric { name, better, of }
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// One thing that got worse.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Worse {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) load_per_s: f64,
    pub(crate) metric: &'static str,
    pub(crate) before: Band,
    pub(crate) after: Band,
}

impl Worse {
    /// How many times worse it is; infinite of what there was nothing of.
    pub(crate) fn times(&self) -> f64 {
        let (was, is) = (self.before.middle.abs(), self.after.middle.abs());
        (is / was).max(was / is)
    }
}

/// All that got worse, in the order of the series, the loads and the metrics.
pub(super) fn found(study: &Study) -> Vec<Worse> {
    let groups = study.groups();
    let mut found = Vec::new();
    for (from, to) in study.pairs() {
        for after in groups.iter().filter(|group| group.series == to) {
            let before = groups
                .iter()
                .find(|group| group.series == from && same(group.load_per_s, after.load_per_s));
            if let Some(before) = before {
                found.extend(
                    METRICS
                        .iter()
                        .filter_map(|metric| compare(metric, before, after)),
                );
            }
        }
    }
    found
}

fn compare(metric: &Metric, before: &Group<'_>, after: &Group<'_>) -> Option<Worse> {
    let band =
        |group: &Group<'_>| Band::of(group.scores.iter().filter_map(|score| (metric.of)(score)));
    let (was, is) = (band(before)?, band(after)?);
    is_worse(metric.better, was, is).then(|| Worse {
        from: before.series.to_owned(),
        to: after.series.to_owned(),
        load_per_s: after.load_per_s,
        metric: metric.name,
        before: was,
        after: is,
    })
}

fn is_worse(better: Better, was: Band, is: Band) -> bool {
    let (loss, apart) = match better {
        Better::Less => (is.middle - was.middle, is.low > was.high),
        Better::More => (was.middle - is.middle, is.high < was.low),
    };
    // Where there was nothing, anything is more than some share of it.
    let of_before = |share: f64| loss > 0.0 && loss >= share * was.middle.abs();
    if was.seeds.min(is.seeds) >= 2 {
        apart && of_before(0.02)
    } else {
        of_before(0.05)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn band(each: &[f64]) -> Band {
        Band::of(each.iter().copied()).unwrap()
    }

    #[test]
    fn what_overlaps_between_seeds_did_not_get_worse() {
        let worse = |was: &[f64], is: &[f64]| is_worse(Better::Less, band(was), band(is));
        assert!(worse(&[10.0, 11.0, 12.0], &[13.0, 14.0, 15.0]));
        assert!(!worse(&[10.0, 11.0, 12.0], &[11.9, 14.0, 15.0]));
        assert!(!worse(&[100.0, 100.1], &[100.2, 101.0]), "below 2 %");
        assert!(!worse(&[13.0, 14.0], &[10.0, 11.0]), "better");
    }

    #[test]
    fn one_seed_has_to_differ_by_more() {
        let worse = |was: f64, is: f64| is_worse(Better::More, band(&[was]), band(&[is]));
        assert!(worse(100.0, 95.0) && !worse(100.0, 96.0) && !worse(100.0, 110.0));
        assert!(
            is_worse(Better::Less, band(&[0.0]), band(&[0.01])),
            "from nothing"
        );
        assert!(!is_worse(Better::Less, band(&[0.0]), band(&[0.0])));
    }
}
