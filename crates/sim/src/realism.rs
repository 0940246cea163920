//! Whether a stream of requests looks like a recorded one: gaps, counts at several scales, lengths
//! and tenants, each against a bound.
//!
//! One distance is no gate: shuffled gaps have a perfect distribution of gaps and no bursts at all.
//! So counts at several scales decide too, and two controls, Poisson arrivals and shuffled gaps,
//! have to fail. The bounds lie above what the two halves of a trace differ by.

mod fitted;
mod portrait;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use tollgate_policy::units::{Micros, Time};

use crate::chance::{Purpose, stream, unit};
use crate::trace::{Trace, TraceError, TraceName};
use crate::workload::{Arrival, Workload, WorkloadError};

pub use self::fitted::{committed, poisson_of, stand_in};
pub use self::portrait::{Portrait, QUANTILES};

/// Traces that have a stand-in. Azure's code service has none: its batches are no process here.
pub const STAND_INS: [TraceName; 3] = [
    TraceName::AzureConversations,
    TraceName::MooncakeConversations,
    TraceName::Lmsys27,
];

/// How far a stream may be from a portrait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Largest distance between the distributions of gaps (Kolmogorov and Smirnov), at quantiles.
    pub gaps_ks: f64,
    /// Mean distance between the quantiles of the gaps (Wasserstein), over the mean gap.
    pub gaps_w1: f64,
    /// Divergence of the gaps over 20 bins that the portrait has equally often (Kullback and
    /// Leibler).
    pub gaps_kl: f64,
    /// Times by which the dispersion of counts may be larger or smaller, at 1, 10 and 60 s.
    pub dispersion: [f64; 3],
    /// Difference of the correlation of one 10 s count with the next.
    pub lag_one: f64,
    /// As `gaps_ks`, of the lengths of prompts and of outputs.
    pub lengths_ks: f64,
    /// Difference of the share of requests of the 1, 3 and 10 busiest tenants.
    pub tenants: f64,
}

impl Default for Bounds {
    /// Two halves of a trace differ by up to 0.053 in their gaps, 0.092 in their lengths, 1.2 times
    /// at 1 s, 1.5 at 10 s and 1.6 at 60 s.
    fn default() -> Self {
        Self {
            gaps_ks: 0.06,
            gaps_w1: 0.1,
            gaps_kl: 0.03,
            dispersion: [1.3, 1.6, 2.0],
            lag_one: 0.3,
            lengths_ks: 0.1,
            tenants: 0.05,
        }
    }
}

/// One number beside the one it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What was measured.
    pub what: String,
    /// In the stream.
    pub found: f64,
    /// In the portrait; 0 of a distance.
    pub wanted: f64,
    /// How far it may be: a distance, or a factor.
    pub bound: f64,
    /// Whether it is no further.
    pub holds: bool,
}

/// What a stream comes to against a portrait.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Every check that the portrait allows.
    pub checks: Vec<Check>,
}

impl Gate {
    /// Compares a stream of requests with a portrait.
    pub fn of(found: &Portrait, wanted: &Portrait, bounds: Bounds) -> Self {
        let mut checks = vec![
            distance(
                "gaps, KS",
                found.ks(wanted, |of| &of.gaps_s),
                bounds.gaps_ks,
            ),
            distance(
                "gaps, W1 over the mean",
                found.gaps_w1(wanted),
                bounds.gaps_w1,
            ),
            distance("gaps, KL", found.gaps_kl(wanted), bounds.gaps_kl),
        ];
        for (wanted, bound) in wanted.dispersion.iter().zip(bounds.dispersion) {
            let same = |level: &&(u64, f64)| level.0 == wanted.0;
            if let Some((scale_s, level)) = found
                .dispersion
                .iter()
                .find(same)
                .filter(|_| wanted.1 > 0.0)
            {
                checks.push(Check {
                    what: format!("dispersion of counts at {scale_s} s"),
                    found: *level,
                    wanted: wanted.1,
                    bound,
                    holds: *level > wanted.1 / bound && *level < wanted.1 * bound,
                });
            }
        }
        checks.push(Check {
            holds: (found.lag_one - wanted.lag_one).abs() <= bounds.lag_one,
            what: "correlation of 10 s counts".to_owned(),
            found: found.lag_one,
            wanted: wanted.lag_one,
            bound: bounds.lag_one,
        });
        let lengths = [
            ("prompts, KS", found.ks(wanted, |of| &of.prompt)),
            ("outputs, KS", found.ks(wanted, |of| &of.output)),
        ];
        checks.extend(lengths.map(|(what, found)| distance(what, found, bounds.lengths_ks)));
        if wanted.shares.len() > 1 {
            checks.extend([1, 3, 10].map(|count| {
                let (found, wanted) = (found.share_of(count), wanted.share_of(count));
                Check {
                    what: format!("share of the {count} busiest"),
                    holds: (found - wanted).abs() <= bounds.tenants,
                    found,
                    wanted,
                    bound: bounds.tenants,
                }
            }));
        }
        Self { checks }
    }

    /// Whether every check holds.
    pub fn passes(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let Check {
                what,
                found,
                wanted,
                bound,
                holds,
            } = check;
            let verdict = if *holds { "" } else { "  FAILS" };
            writeln!(
                f,
                "    {what:<30} {found:>8.3}  wanted {wanted:>8.3}  bound {bound:>5.2}{verdict}"
            )?;
        }
        Ok(())
    }
}

fn distance(what: &str, found: f64, bound: f64) -> Check {
    Check {
        what: what.to_owned(),
        found,
        wanted: 0.0,
        bound,
        holds: found <= bound,
    }
}

/// The same requests with their gaps in another order: the negative control that every gate on gaps
/// alone lets through.
pub fn shuffled(arrivals: &[Arrival], seed: u64) -> Vec<Arrival> {
    let mut last = Time::START;
    let gap = |arrival: &Arrival| arrival.at.since(std::mem::replace(&mut last, arrival.at));
    let mut gaps: Vec<Micros> = arrivals.iter().map(gap).collect();
    let mut rng = stream(seed, Purpose::Shuffle, "gaps");
    for index in (1..gaps.len()).rev() {
        let other = (unit(&mut rng) * (index + 1) as f64) as usize;
        gaps.swap(index, other.min(index));
    }
    let mut now = Time::START;
    let moved = arrivals.iter().zip(gaps).map(|(arrival, gap)| {
        now = now + gap;
        Arrival {
            at: now,
            ..*arrival
        }
    });
    moved.collect()
}

/// Why the gate has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum RealismError {
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A stream cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// One stream before the gate, and whether it should have passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// What it is.
    pub name: String,
    /// Whether it is a control, which has to fail.
    pub control: bool,
    /// What came of it.
    pub gate: Gate,
}

impl Tried {
    /// Whether it did as it should.
    pub fn as_it_should(&self) -> bool {
        self.gate.passes() != self.control
    }
}

/// The stand-in of a trace, and its two controls, against what is committed of the trace; with a
/// folder of traces, against the trace itself, and the trace against what is committed.
///
/// # Errors
/// A trace that is not there or cannot be read.
pub fn trial(name: TraceName, dir: Option<&Path>, seed: u64) -> Result<Vec<Tried>, RealismError> {
    let (Some(committed), Some(stand_in)) = (committed(name), stand_in(name, seed)) else {
        return Ok(Vec::new());
    };
    let stand_in: Vec<Arrival> = stand_in?.arrivals().collect();
    let poisson: Vec<Arrival> = poisson_of(&committed, seed)?.arrivals().collect();
    let mut tried = Vec::new();
    let wanted = match dir {
        None => committed,
        Some(dir) => {
            let (real, recorded) = recorded(name, dir, seed)?;
            tried.push(judged(
                "the trace, against what is committed of it",
                &recorded,
                &committed,
                Role::Stream,
            ));
            tried.push(judged(
                "the trace with shuffled gaps",
                &shuffled(&recorded, seed),
                &real,
                Role::Control,
            ));
            real
        }
    };
    tried.push(judged("the stand-in", &stand_in, &wanted, Role::Stream));
    tried.push(judged("Poisson arrivals", &poisson, &wanted, Role::Control));
    tried.push(judged(
        "the stand-in with shuffled gaps",
        &shuffled(&stand_in, seed),
        &wanted,
        Role::Control,
    ));
    Ok(tried)
}

/// What is to become of a stream at the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Stream,
    Control,
}

fn judged(name: &str, arrivals: &[Arrival], wanted: &Portrait, role: Role) -> Tried {
    Tried {
        name: name.to_owned(),
        control: role == Role::Control,
        gate: Gate::of(
            &Portrait::of(arrivals, wanted.tick_s),
            wanted,
            Bounds::default(),
        ),
    }
}

/// A trace at the speed it was recorded with.
fn recorded(
    name: TraceName,
    dir: &Path,
    seed: u64,
) -> Result<(Portrait, Vec<Arrival>), RealismError> {
    let trace = Trace::open(name, dir)?;
    let tick = trace.tick.unwrap_or(Micros::ZERO);
    let until = Time::START + trace.duration() + tick + Micros::new(1);
    let arrivals: Vec<Arrival> = Workload::replayed(&trace, 1.0, until, seed)?
        .arrivals()
        .collect();
    let portrait = Portrait::of(&arrivals, tick.secs_up());
    Ok((portrait, arrivals))
}
