//! What is kept of a stream of requests: quantiles, dispersions and shares, and no request.

use tollgate_policy::units::Time;

use crate::stats::Sorted;
use crate::workload::Arrival;

/// Quantiles that are kept of a distribution: at 0, 5, 10, … and 100 %.
pub const QUANTILES: usize = 21;

/// Scales at which requests are counted, in seconds.
const SCALES_S: [u64; 3] = [1, 10, 60];

/// A dispersion of fewer counts says little.
const COUNTS_MIN: usize = 30;

/// What a stream of requests is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Portrait {
    /// Requests per second.
    pub rate: f64,
    /// What its times are multiples of, in seconds; below that its counts mean nothing.
    pub tick_s: u64,
    /// Quantiles of the time from one request to the next, in seconds.
    pub gaps_s: [f64; QUANTILES],
    /// Scale in seconds, and the variance of the counts at it over their mean; 1 of Poisson
    /// arrivals. 0 where there are too few counts.
    pub dispersion: [(u64, f64); 3],
    /// Correlation of the count of 10 s with that of the next 10 s.
    pub lag_one: f64,
    /// Quantiles of the lengths of prompts, in tokens.
    pub prompt: [f64; QUANTILES],
    /// Quantiles of the lengths of outputs, in tokens.
    pub output: [f64; QUANTILES],
    /// Each tenant's share of the requests, the largest first.
    pub shares: Vec<f64>,
}

impl Portrait {
    /// The portrait of requests in the order of time, whose recorded times were multiples of
    /// `tick_s`.
    pub fn of(arrivals: &[Arrival], tick_s: u64) -> Self {
        let at: Vec<f64> = arrivals.iter().map(|one| secs(one.at)).collect();
        let first = at.first().copied().unwrap_or(0.0);
        let span = at.last().copied().unwrap_or(0.0) - first;
        let gaps = at
            .windows(2)
            .filter_map(|pair| Some(pair.last()? - pair.first()?));
        let tens = counts(&at, 10);
        Self {
            rate: if span > 0.0 {
                at.len() as f64 / span
            } else {
                0.0
            },
            tick_s,
            gaps_s: quantiles(gaps),
            dispersion: SCALES_S
                .map(|scale| (scale, dispersion(&counts(&at, scale), scale, tick_s))),
            lag_one: lag_one(&tens),
            prompt: quantiles(arrivals.iter().map(|one| one.prompt.get() as f64)),
            output: quantiles(arrivals.iter().map(|one| one.output.get() as f64)),
            shares: shares(arrivals),
        }
    }

    /// The share of requests of the `count` busiest tenants.
    pub fn share_of(&self, count: usize) -> f64 {
        self.shares
            .iter()
            .take(count)
            .fold(0.0, |all: f64, share| all + share)
    }

    /// The largest distance between two distributions, at the inner quantiles of the other.
    pub(super) fn ks(&self, other: &Self, of: impl Fn(&Self) -> &[f64; QUANTILES]) -> f64 {
        let inner = of(other).iter().enumerate().skip(1).take(QUANTILES - 2);
        let distances =
            inner.map(|(_, edge)| (below(of(self), *edge) - below(of(other), *edge)).abs());
        distances.fold(0.0, f64::max)
    }

    /// The mean distance between inner quantiles, over the other's mean gap.
    pub(super) fn gaps_w1(&self, other: &Self) -> f64 {
        let pairs = self.gaps_s.iter().zip(&other.gaps_s);
        let inner = pairs
            .skip(1)
            .take(QUANTILES - 2)
            .map(|(one, other)| (one - other).abs());
        let sum = inner.fold(0.0, |all: f64, more| all + more);
        sum / (QUANTILES - 2) as f64 * other.rate
    }

    /// The divergence of the gaps from the other's, over its 20 equal bins.
    pub(super) fn gaps_kl(&self, other: &Self) -> f64 {
        let inner = other.gaps_s.iter().skip(1).take(QUANTILES - 2);
        let mut edges: Vec<f64> = inner.map(|edge| below(&self.gaps_s, *edge)).collect();
        edges.push(1.0);
        let share = 1.0 / edges.len() as f64;
        let mut last = 0.0;
        let terms = edges.into_iter().map(|edge| {
            // As if half of one in a thousand fell into each bin: an empty one is no infinity.
            let found = (edge - std::mem::replace(&mut last, edge)).max(0.0) + 0.000_5;
            share * (share / (found / 1.01)).ln()
        });
        terms.fold(0.0, |all: f64, more| all + more)
    }
}

fn secs(at: Time) -> f64 {
    at.as_micros() as f64 / 1e6
}

fn quantiles(sample: impl Iterator<Item = f64>) -> [f64; QUANTILES] {
    let sorted = Sorted::new(sample);
    std::array::from_fn(|index| {
        let p = index as f64 / (QUANTILES - 1) as f64;
        sorted.quantile(p).unwrap_or(0.0)
    })
}

/// The share of a distribution that is not above `edge`, straight between its quantiles.
fn below(quantiles: &[f64; QUANTILES], edge: f64) -> f64 {
    let steps = (QUANTILES - 1) as f64;
    // Of equal quantiles the last one counts: all of them are not above it.
    let Some(index) = quantiles.iter().rposition(|quantile| *quantile <= edge) else {
        return 0.0;
    };
    let next = quantiles.get(index + 1).copied();
    let from = quantiles.get(index).copied().unwrap_or(edge);
    let part = next.map_or(0.0, |next| (edge - from) / (next - from));
    (index as f64 + part) / steps
}

/// Requests in each whole span of `scale_s` seconds.
fn counts(at: &[f64], scale_s: u64) -> Vec<f64> {
    let scale = scale_s as f64;
    let first = at.first().copied().unwrap_or(0.0);
    let span = at.last().copied().unwrap_or(0.0) - first;
    let mut counts = vec![0.0; (span / scale) as usize];
    for at in at {
        if let Some(count) = counts.get_mut(((at - first) / scale) as usize) {
            *count += 1.0;
        }
    }
    counts
}

fn dispersion(counts: &[f64], scale_s: u64, tick_s: u64) -> f64 {
    if counts.len() < COUNTS_MIN || scale_s < tick_s {
        return 0.0;
    }
    let (mean, variance) = moments(counts);
    variance / mean
}

fn lag_one(counts: &[f64]) -> f64 {
    let (mean, variance) = moments(counts);
    let pairs = counts
        .windows(2)
        .filter_map(|pair| Some((pair.first()? - mean) * (pair.last()? - mean)));
    let sum = pairs.fold(0.0, |all: f64, more| all + more);
    let whole = variance * (counts.len().max(2) - 1) as f64;
    if whole > 0.0 { sum / whole } else { 0.0 }
}

fn moments(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len().max(2) as f64;
    let mean = numbers.iter().fold(0.0, |all: f64, more| all + more) / n;
    let squares = numbers.iter().map(|number| (number - mean).powi(2));
    (
        mean,
        squares.fold(0.0, |all: f64, more| all + more) / (n - 1.0),
    )
}

fn shares(arrivals: &[Arrival]) -> Vec<f64> {
    let tenants = arrivals.iter().map(|one| one.tenant + 1).max().unwrap_or(0);
    let mut counts = vec![0_u32; tenants];
    for arrival in arrivals {
        if let Some(count) = counts.get_mut(arrival.tenant) {
            *count += 1;
        }
    }
    let all = arrivals.len().max(1) as f64;
    let mut shares: Vec<f64> = counts
        .into_iter()
        .map(|count| f64::from(count) / all)
        .collect();
    shares.sort_by(|one, other| other.total_cmp(one));
    shares
}
