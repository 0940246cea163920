//! What an engine's steps cost, fitted to what its clients see of them.
//!
//! A number of clients that each wait for their answer hold as many sequences at once; prompts and
//! answers of several lengths come and go beside one another. Every step that shows in when tokens
//! came is a measurement (`steps`), and what it took is fitted to what it computed (`fit`).
//! Clients wait for their answers here, since a number of sequences is to be held, not a load.

mod fit;
mod fitted;
mod notes;
mod steps;

use std::num::NonZeroUsize;

use tollgate_policy::units::{Micros, Time};
use tollgate_sim::workload::TenantLoad;
use tollgate_sim::{Arrivals, Lengths};

pub use self::fitted::{FitError, Fitted, FittedCost, Residual};
use self::notes::{Fates, never};
use self::steps::Seen;
use crate::run::{BenchError, run_keeping_rows, try_one};
use crate::spec::{Cycle, Demand, Endpoint, Identity, Reply, Source, Spec, Timing};
use crate::spec::{TenantSpec, Tokenizer};
use crate::stop::Stop;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom it asks.
    pub endpoint: Endpoint,
    /// For which model.
    pub model: String,
    /// How it is known there.
    pub identity: Identity,
    /// Which of the simulator's engines is to cost as much.
    pub simulated: Simulated,
    /// Sequences at once, a run each.
    pub sequences: Vec<u32>,
    /// Prompt lengths, each as often as any other.
    pub prompts: Vec<u64>,
    /// Output tokens of a request in the middle; they are from half to one and a half of it.
    pub output: u64,
    /// Time for each run.
    pub each: Micros,
    /// How a number of tokens becomes a text.
    pub tokenizer: Tokenizer,
    /// Decides the texts and lengths.
    pub seed: u64,
    /// The command line, for the record.
    pub command: String,
}

/// An engine of the simulator, by what its steps cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Simulated {
    /// A step by itself, each sequence in it, and prompt tokens.
    #[default]
    Emulated,
    /// Answers by how many there are and by the KV in use, and prompts by themselves.
    Embedded,
}

/// Why there is no cost.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A run could not be made.
    #[error(transparent)]
    Run(BenchError),
    /// A run says nothing.
    #[error("{what}: {why}")]
    Invalid {
        /// Which one.
        what: String,
        /// Why.
        why: String,
    },
    /// Somebody stopped it.
    #[error("stopped, so there is no cost; what was measured so far is too little for one")]
    Stopped,
    /// Too few to tell one cost from another.
    #[error("{0} different {1}; name 2 at least, or no cost of one more is seen")]
    Alike(usize, &'static str),
    /// What was measured fits no such engine.
    #[error(transparent)]
    Fit(#[from] FitError),
}

impl From<BenchError> for CalibrateError {
    fn from(error: BenchError) -> Self {
        match matches!(error, BenchError::Stopped { .. }) {
            true => Self::Stopped,
            false => Self::Run(error),
        }
    }
}

/// Measures and fits. `on_run` is called before each run, with what it is.
///
/// # Errors
/// A run cannot be made, or no such cost explains what was seen.
pub fn calibrate(
    plan: &Plan,
    stop: &Stop,
    mut on_run: impl FnMut(&str),
) -> Result<Fitted, CalibrateError> {
    let (mut sequences, mut prompts) = (plan.sequences.clone(), plan.prompts.clone());
    sequences.sort_unstable();
    sequences.dedup();
    prompts.sort_unstable();
    prompts.dedup();
    for (count, what) in [
        (sequences.len(), "numbers of sequences"),
        (prompts.len(), "prompt lengths"),
    ] {
        if count < 2 {
            return Err(CalibrateError::Alike(count, what));
        }
    }
    let longest = plan.longest(&prompts);
    on_run(&format!(
        "a prompt of {} tokens, to see whether it is served",
        longest.prompt
    ));
    try_one(&plan.spec(1, &prompts), longest, stop)?;
    let (mut seen, mut notes) = (Vec::new(), Vec::new());
    for clients in &sequences {
        let what = match clients {
            1 => "1 sequence by itself".to_owned(),
            more => format!("{more} sequences at once"),
        };
        on_run(&what);
        let run = plan.run(&what, *clients, &prompts, stop)?;
        seen.extend(run.seen);
        notes.extend(run.notes.iter().map(|note| format!("{what}: {note}")));
    }
    let fitted = Fitted::to(plan, &seen, &sequences)?;
    Ok(Fitted { notes, ..fitted })
}

/// What a run with one number of clients showed.
#[derive(Debug)]
struct Shown {
    seen: Vec<Seen>,
    /// What a person must know of it.
    notes: Vec<String>,
}

impl Plan {
    /// The longest request that there will be.
    fn longest(&self, prompts: &[u64]) -> Demand {
        Demand {
            prompt: prompts.last().copied().unwrap_or(1),
            output: self.outputs()[1],
        }
    }

    /// The shortest and the longest output.
    fn outputs(&self) -> [u64; 2] {
        [self.output / 2, self.output.saturating_mul(3) / 2].map(|tokens| tokens.max(2))
    }

    /// What shows of the engine's steps with so many clients.
    fn run(
        &self,
        what: &str,
        clients: u32,
        prompts: &[u64],
        stop: &Stop,
    ) -> Result<Shown, CalibrateError> {
        let spec = self.spec(clients, prompts);
        let (report, rows) = run_keeping_rows(&spec, stop, |_| {})?;
        let fates = Fates::of(&rows);
        let mut seen = steps::seen(&rows);
        let warm = Time::START + spec.timing.warm_up;
        seen.retain(|step| step.at >= warm);
        let notes: Vec<String> = fates
            .told()
            .into_iter()
            .chain(never(clients, &seen))
            .collect();
        let why = match report.reasons().into_iter().next() {
            None if fates.is_lost() => Some(notes.join("; ")),
            reason => reason,
        };
        match why {
            None => Ok(Shown { seen, notes }),
            Some(why) => {
                let what = what.to_owned();
                Err(CalibrateError::Invalid { what, why })
            }
        }
    }

    fn spec(&self, clients: u32, prompts: &[u64]) -> Spec {
        let rate = Arrivals::Poisson { rate: 1.0 };
        let [min, max] = self.outputs();
        let output = Lengths::Uniform { min, max };
        let load = TenantLoad::new("calibration", rate, alike_often(prompts), output);
        let clients = usize::try_from(clients).unwrap_or(usize::MAX);
        let clients = NonZeroUsize::new(clients).unwrap_or(NonZeroUsize::MIN);
        Spec {
            endpoint: self.endpoint.clone(),
            model: self.model.clone(),
            source: Source::Drawn(vec![TenantSpec {
                load,
                identity: self.identity.clone(),
            }]),
            cycle: Cycle::Closed(clients),
            reply: Reply::Streamed,
            tokenizer: self.tokenizer,
            timing: Timing {
                duration: self.each,
                // The first answers of a model are slow; a fifth is left out.
                warm_up: Micros::new(self.each.get() / 5),
                drain: Micros::from_secs(120),
                slip_p99_max: Micros::from_millis(20),
            },
            seed: self.seed.wrapping_add(clients.get() as u64),
            threads: 1,
            rows: None,
            command: self.command.clone(),
        }
    }
}

/// Each of these lengths, in order, as often as any other, but for a few in between.
fn alike_often(lengths: &[u64]) -> Lengths {
    let mut quantiles = [1; 21];
    let all = quantiles.len();
    for (place, quantile) in quantiles.iter_mut().enumerate() {
        *quantile = lengths
            .get(place * lengths.len() / all)
            .copied()
            .unwrap_or(1);
    }
    Lengths::Quantiles(quantiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            endpoint: "http://127.0.0.1:1".parse().unwrap(),
            model: "m".to_owned(),
            identity: Identity::TenantHeader,
            simulated: Simulated::Emulated,
            sequences: vec![1, 4, 16],
            prompts: vec![100, 1_000],
            output: 8,
            each: Micros::from_secs(1),
            tokenizer: Tokenizer::Bytes { template: 18 },
            seed: 1,
            command: "calibrate".to_owned(),
        }
    }

    #[test]
    fn what_does_not_differ_tells_no_cost() {
        let stop = Stop::default();
        let one = Plan {
            sequences: vec![4, 4],
            ..plan()
        };
        let error = calibrate(&one, &stop, |_| {}).unwrap_err().to_string();
        assert!(
            error.starts_with("1 different numbers of sequences"),
            "{error}"
        );
        let none = Plan {
            prompts: Vec::new(),
            ..plan()
        };
        let error = calibrate(&none, &stop, |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("0 different prompt lengths"), "{error}");
    }

    #[test]
    fn lengths_come_alike_often() {
        let Lengths::Quantiles(quantiles) = alike_often(&[16, 64, 256]) else {
            panic!("no quantiles");
        };
        let count = |length| quantiles.iter().filter(|one| **one == length).count();
        assert_eq!([16, 64, 256].map(count), [7, 7, 7]);
        assert!(quantiles.is_sorted());
    }
}
