//! How promises fared in a run: what came in time, and how many bounds were kept.
//!
//! Everything is counted over requests that were sent in a span of time, from what clients saw. A
//! request that was dropped from the queue for being late counts as a bound that was missed.

use std::collections::BTreeMap;

use tollgate_policy::outcome::{Eviction, Outcome};
use tollgate_policy::slo::{Metric, Row};
use tollgate_policy::units::{Micros, Time};

use crate::stats::Sorted;
use crate::tally::{Fate, Scored, Tally};

/// A number that tells how promises fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promised {
    /// Of a hundred requests, how many were answered as answers must be.
    InTime,
    /// Of a hundred that were served, how many were late.
    Late,
    /// Of a hundred bounds on the first token, how many were kept.
    Coverage,
    /// The same in the worst minute that had twenty or more.
    WorstMinute,
    /// Bound over what came, of half of them at most.
    Width,
    /// Bounds that were missed one after the other.
    Run,
    /// What the tenant that fared worst got of what it was entitled to.
    Fairest,
}

impl Promised {
    /// What it is, in words.
    pub const fn label(self) -> &'static str {
        match self {
            Self::InTime => "in time of all that came, %",
            Self::Late => "late of those served, %",
            Self::Coverage => "bounds kept, %",
            Self::WorstMinute => "bounds kept in the worst minute, %",
            Self::Width => "bound over outcome, median",
            Self::Run => "most bounds missed on end",
            Self::Fairest => "least goodput share over entitled share",
        }
    }

    /// The number, of requests that were sent in `from..until`.
    pub fn of(self, tally: &Tally, from: Time, until: Time) -> Option<f64> {
        let scores = Scores::of(tally, from, until);
        let kept = Kept::of(tally, from, until);
        match self {
            Self::InTime => scores.percent(scores.in_time, scores.came),
            Self::Late => scores.percent(scores.late, scores.in_time + scores.late),
            Self::Coverage => kept.percent(),
            Self::WorstMinute => kept.worst_window(),
            Self::Width => kept.widths.quantile(0.5),
            Self::Run => Some(kept.run as f64),
            Self::Fairest => scores.fairest(),
        }
    }
}

/// What became of the requests of a span of time.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// All of them, but for those whose client left.
    pub came: u64,
    /// Answered as answers must be.
    pub in_time: u64,
    /// Served and late.
    pub late: u64,
    /// Refused at the door.
    pub refused: u64,
    /// Dropped from the queue.
    pub dropped: u64,
    /// In time, by tenant.
    tenants: BTreeMap<usize, (u64, u64)>,
}

impl Scores {
    /// Of the requests that were sent in `from..until`.
    pub fn of(tally: &Tally, from: Time, until: Time) -> Self {
        let mut scores = Self::default();
        let within = |one: &&Scored| one.sent >= from && one.sent < until;
        for one in tally.scored.iter().filter(within) {
            if one.fate == Fate::Left {
                continue;
            }
            scores.came += 1;
            let own = scores.tenants.entry(one.tenant).or_default();
            own.0 += 1;
            match one.fate {
                Fate::InTime => {
                    own.1 += 1;
                    scores.in_time += 1;
                }
                Fate::Late => scores.late += 1,
                Fate::Refused => scores.refused += 1,
                Fate::Dropped => scores.dropped += 1,
                Fate::Left => {}
            }
        }
        scores
    }

    fn percent(&self, part: u64, of: u64) -> Option<f64> {
        (of > 0).then(|| 100.0 * part as f64 / of as f64)
    }

    /// The least of what tenants got in time over what they were entitled to: an equal part, or
    /// all that they sent where that is less.
    fn fairest(&self) -> Option<f64> {
        let equal = self.in_time as f64 / self.tenants.len().max(1) as f64;
        let each = self.tenants.values();
        let got = each.map(|(came, in_time)| *in_time as f64 / equal.min(*came as f64).max(1.0));
        got.reduce(f64::min)
    }
}

/// Bounds on the first token that were kept, in the order in which they were promised.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Bounds that came due.
    pub due: u64,
    /// Those of them that were kept.
    pub kept: u64,
    /// Missed on end, at the most.
    pub run: u64,
    /// Bound over what came.
    pub widths: Sorted,
    /// Mean pinball loss, in milliseconds.
    pub pinball_ms: f64,
    /// That of a bound for all of a minute, made in hindsight of what came in it.
    pub hindsight_ms: f64,
    /// By minute of the promise.
    minutes: BTreeMap<u64, (u64, u64)>,
    /// By tenant.
    tenants: BTreeMap<u32, (u64, u64)>,
}

impl Kept {
    /// Of the requests that were received in `from..until`.
    pub fn of(tally: &Tally, from: Time, until: Time) -> Self {
        let within = |row: &&Row| row.judged.received >= from && row.judged.received < until;
        let mut rows: Vec<&Row> = tally.rows.iter().filter(within).collect();
        rows.sort_by_key(|row| (row.judged.received, row.id));
        let mut kept = Self::default();
        let (mut run, mut widths, mut loss) = (0, Vec::new(), 0.0);
        let mut minutes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for row in rows {
            let Some(bound) = row.judged.bounds[0] else {
                continue;
            };
            let dropped = row.seen.outcome == Outcome::Evicted(Eviction::Slo);
            let in_time = match row.seen.of(Metric::Ttft) {
                Some(came) => came <= bound.promised,
                None if dropped => false,
                None => continue,
            };
            run = if in_time { 0 } else { run + 1 };
            kept.run = kept.run.max(run);
            kept.count(row, in_time);
            if let Some(came) = row.seen.of(Metric::Ttft) {
                let (bound, came) = (bound.promised.get() as f64, came.get() as f64);
                widths.push(bound / came.max(1.0));
                let alpha = f64::from(row.judged.terms.map_or(100, |terms| terms.alpha.get()));
                loss += pinball(bound, came, alpha / 1_000.0);
                minutes.entry(minute(row)).or_default().push(came);
            }
        }
        kept.pinball_ms = loss / widths.len().max(1) as f64 / 1_000.0;
        kept.hindsight_ms = hindsight(minutes.into_values(), widths.len());
        kept.widths = Sorted::new(widths);
        kept
    }

    /// Kept, of a hundred.
    pub fn percent(&self) -> Option<f64> {
        (self.due > 0).then(|| 100.0 * self.kept as f64 / self.due as f64)
    }

    /// The worst minute with twenty bounds or more, of a hundred.
    pub fn worst_window(&self) -> Option<f64> {
        self.windows().as_slice().first().copied()
    }

    /// Minutes with twenty bounds or more, of a hundred each, the worst first.
    pub fn windows(&self) -> Sorted {
        let enough = self.minutes.values().filter(|(due, _)| *due >= 20);
        Sorted::new(enough.map(|(due, kept)| 100.0 * *kept as f64 / *due as f64))
    }

    /// The tenant with 300 bounds or more that fared worst, of a hundred.
    pub fn worst_tenant(&self) -> Option<f64> {
        let enough = self.tenants.values().filter(|(due, _)| *due >= 300);
        let each = enough.map(|(due, kept)| 100.0 * *kept as f64 / *due as f64);
        each.reduce(f64::min)
    }

    fn count(&mut self, row: &Row, in_time: bool) {
        let more = u64::from(in_time);
        let add = |counts: &mut (u64, u64)| {
            counts.0 += 1;
            counts.1 += more;
        };
        add(self.minutes.entry(minute(row)).or_default());
        add(self.tenants.entry(row.judged.tenant.get()).or_default());
        self.due += 1;
        self.kept += more;
    }
}

/// What a bound costs: what it is too short by counts more the fewer may be missed, what it is too
/// long by the less.
pub(crate) fn pinball(bound: f64, came: f64, alpha: f64) -> f64 {
    (1.0 - alpha) * (came - bound).max(0.0) + alpha * (bound - came).max(0.0)
}

fn minute(row: &Row) -> u64 {
    row.judged.received.as_micros() / Micros::from_secs(60).get()
}

/// The mean loss, in milliseconds, of the ninth decile of each minute as the bound of all in it.
fn hindsight(minutes: impl Iterator<Item = Vec<f64>>, all: usize) -> f64 {
    let of = |minute: Vec<f64>| {
        let sorted = Sorted::new(minute);
        let bound = sorted.quantile(0.9).unwrap_or(0.0);
        let each = sorted.as_slice().iter();
        each.map(|came| pinball(bound, *came, 0.1)).sum::<f64>()
    };
    minutes.map(of).sum::<f64>() / all.max(1) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_too_short_costs_nine_times_as_much_as_one_that_is_too_long() {
        assert!((pinball(100.0, 150.0, 0.1) - 45.0).abs() < 1e-9);
        assert!((pinball(150.0, 100.0, 0.1) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn the_tenant_that_fared_worst_is_measured_by_what_it_was_entitled_to() {
        let mut scores = Scores::default();
        scores.tenants.insert(0, (100, 60));
        scores.tenants.insert(1, (100, 40));
        scores.tenants.insert(2, (20, 20));
        scores.in_time = 120;
        let fairest = scores.fairest().unwrap();
        assert!(
            (fairest - 1.0).abs() < 1e-9,
            "40 of 40, and 20 of its own 20: {fairest}"
        );
        scores.tenants.insert(1, (100, 20));
        assert!((scores.fairest().unwrap() - 0.5).abs() < 1e-9);
    }
}
