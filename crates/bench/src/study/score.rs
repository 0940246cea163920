//! What one run comes to, and what its seeds come to together.
//!
//! A good request counts when it completes, not when it was due: requests that end some day would
//! make the rate equal to the load. Attainment has all that were due below it.

use tollgate_policy::units::{Micros, Time};
use tollgate_sim::stats::{Sorted, by_window};

use super::{Run, State, Study, gap, same};
use crate::rows::{Ending, Row};
use crate::slo::Slo;
use crate::summary::{Measured, millis, tpot, ttft};

/// Windows of a timeline, at most.
const WINDOWS: u64 = 20;

/// The numbers of one run. Latencies are in milliseconds, of the requests due in its window.
#[derive(Clone, Debug)]
pub(crate) struct Score {
    pub(crate) due: u64,
    pub(crate) completed: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) unfinished: u64,
    /// Requests that completed inside the window within their SLO, per second.
    pub(crate) goodput_per_s: f64,
    /// Those due in the window that met their SLO, of all that were due in it.
    pub(crate) attainment: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) ttft: Sorted,
    pub(crate) tpot: Sorted,
    /// Every gap between two deltas.
    pub(crate) itl: Sorted,
    /// The longest gap of each request.
    pub(crate) longest_gap: Sorted,
    pub(crate) e2e: Sorted,
    pub(crate) tenants: Vec<TenantScore>,
    pub(crate) service: gap::Service,
}

/// What one tenant got.
#[derive(Clone, Debug)]
pub(crate) struct TenantScore {
    pub(crate) name: String,
    pub(crate) due: usize,
    pub(crate) ttft: Sorted,
    pub(crate) tokens_per_s: f64,
    /// Start of each window in seconds, and the median TTFT of the requests due in it.
    pub(crate) timeline: Vec<(f64, f64)>,
}

impl Score {
    /// The score of a run; `None` of one without numbers.
    pub(crate) fn of(run: &Run, slo: &Slo) -> Option<Self> {
        let measured = Measured {
            rows: &run.rows,
            timing: run.timing,
        };
        let due: Vec<&Row> = measured.due().collect();
        if run.state != State::Measured || due.is_empty() {
            return None;
        }
        let count =
            |label: &str| due.iter().filter(|row| row.ending.label() == label).count() as u64;
        let window = run.timing.measured().get().max(1) as f64 / 1e6;
        let (from, until) = window_of(run);
        let inside = |row: &&Row| from <= row.end && row.end < until && slo.met_by(row);
        let good = run.rows.iter().filter(inside).count();
        let met = due.iter().filter(|row| slo.met_by(row)).count();
        let completed = || due.iter().filter(|row| row.ending == Ending::Completed);
        let gaps = |row: &&Row| {
            row.gaps
                .iter()
                .map(|gap| gap.get() as f64 / 1e3)
                .collect::<Vec<_>>()
        };
        Some(Self {
            due: due.len() as u64,
            completed: count("completed"),
            refused: count("refused"),
            failed: count("failed"),
            unfinished: count("unfinished") + count("not_sent"),
            goodput_per_s: good as f64 / window,
            attainment: met as f64 / due.len() as f64,
            tokens_per_s: measured.tokens_per_s(|_| true),
            ttft: Sorted::new(due.iter().filter_map(|row| ttft(row))),
            tpot: Sorted::new(completed().filter_map(|row| tpot(row))),
            itl: Sorted::new(due.iter().flat_map(gaps)),
            longest_gap: Sorted::new(
                due.iter()
                    .filter_map(|row| Some(row.gaps.iter().max()?.get() as f64 / 1e3)),
            ),
            e2e: Sorted::new(completed().map(|row| millis(row.end, row.intended))),
            tenants: tenants(run, &measured, &due),
            service: gap::service(run),
        })
    }

    /// The largest 99th percentile of TTFT of any tenant.
    pub(crate) fn worst_tenant_ms(&self) -> Option<f64> {
        let each = self
            .tenants
            .iter()
            .filter_map(|tenant| tenant.ttft.quantile(0.99));
        each.max_by(f64::total_cmp)
    }
}

fn window_of(run: &Run) -> (Time, Time) {
    (
        Time::START + run.timing.warm_up,
        Time::START + run.timing.duration,
    )
}

fn tenants(run: &Run, measured: &Measured<'_>, due: &[&Row]) -> Vec<TenantScore> {
    let (from, _) = window_of(run);
    let width = Micros::new((run.timing.measured().get() / WINDOWS).max(1));
    let score = |(index, name): (usize, &String)| {
        let own = || due.iter().filter(move |row| row.tenant == index);
        let waits = own().filter_map(|row| Some((row.intended, ttft(row)?)));
        let windows = by_window(waits, from, width).into_iter();
        TenantScore {
            name: name.clone(),
            due: own().count(),
            ttft: Sorted::new(own().filter_map(|row| ttft(row))),
            tokens_per_s: measured.tokens_per_s(|row| row.tenant == index),
            timeline: windows
                .filter_map(|window| {
                    let start = window.start.as_micros() as f64 / 1e6;
                    Some((start, window.sample.quantile(0.5)?))
                })
                .collect(),
        }
    };
    run.tenants.iter().enumerate().map(score).collect()
}

/// The same number of each seed: the middle one, and the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Band {
    pub(crate) middle: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) seeds: usize,
}

impl Band {
    /// `None` of no seed that has the number.
    pub(crate) fn of(each: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = Sorted::new(each);
        Some(Self {
            middle: sorted.quantile(0.5)?,
            low: sorted.quantile(0.0)?,
            high: sorted.max()?,
            seeds: sorted.len(),
        })
    }
}

/// The best goodput of a series: that of the load at which its median over seeds is largest.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// What was tried.
    pub series: String,
    /// Requests offered per second at the peak.
    pub load_per_s: f64,
    /// Good requests per second: the median over seeds.
    pub goodput_per_s: f64,
    /// Of the worst seed.
    pub low: f64,
    /// Of the best seed.
    pub high: f64,
    /// Output tokens per second at the peak: the median over seeds.
    pub tokens_per_s: f64,
    /// Seeds at the peak.
    pub seeds: usize,
}

pub(super) fn peaks(study: &Study) -> Vec<Peak> {
    let groups = study.groups();
    let of_series = |name: &&str| {
        let own = groups.iter().filter(|group| group.series == *name);
        let scored = own.filter_map(|group| {
            let band = Band::of(group.scores.iter().map(|score| score.goodput_per_s))?;
            let tokens = Band::of(group.scores.iter().map(|score| score.tokens_per_s))?;
            Some(Peak {
                series: (*name).to_owned(),
                load_per_s: group.load_per_s,
                goodput_per_s: band.middle,
                low: band.low,
                high: band.high,
                tokens_per_s: tokens.middle,
                seeds: band.seeds,
            })
        });
        // Of equal peaks the one at the lower load.
        scored.reduce(|best, next| {
            let better = next.goodput_per_s > best.goodput_per_s
                && !same(next.goodput_per_s, best.goodput_per_s);
            if better { next } else { best }
        })
    };
    study.series().iter().filter_map(of_series).collect()
}
