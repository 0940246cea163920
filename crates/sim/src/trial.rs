//! One scenario, one seed, each gateway that is to be tried in it; or many seeds.
//!
//! The verb of the command line and the example are both nothing but this: what is read from files
//! and where lines go is their business.

use std::fmt::Write as _;

use tollgate_policy::gateway::Gateway;

use crate::plain::Plain;
use crate::report;
use crate::scenario::{Contender, Replay, Scenario};
use crate::setup::Setup;
use crate::workload::WorkloadError;
use crate::world::{self, Log, Run};

/// What came of one gateway in one world.
#[derive(Debug)]
pub struct Trial {
    /// The gateway.
    pub contender: Contender,
    /// The world.
    pub setup: Setup,
    /// What came of it.
    pub run: Run,
}

/// What came of a scenario.
#[derive(Debug)]
pub struct Trials {
    /// Of this seed.
    pub seed: u64,
    /// By contender; the first is the one that must pass.
    pub trials: Vec<Trial>,
}

/// Whether the first contender kept every law and every bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// It did.
    Yes,
    /// It did not.
    No,
}

/// Runs a scenario with one seed, and writes the events of its first contender to `log`.
///
/// # Errors
/// A workload that cannot be drawn.
pub fn one(
    scenario: &Scenario,
    seed: u64,
    replay: Option<Replay<'_>>,
    mut log: Option<&mut dyn FnMut(&str)>,
) -> Result<Trials, WorkloadError> {
    let mut trials = Vec::new();
    for contender in &scenario.contenders {
        let setup = scenario.setup(seed, *contender, replay)?;
        let written = log.take().map(Log::new);
        let run = match contender {
            Contender::Tollgate
            | Contender::Fifo
            | Contender::NoControl
            | Contender::Ttl
            | Contender::Cap
            | Contender::Point
            | Contender::Structural
            | Contender::SplitAlike
            | Contender::Split => world::run(&setup, Gateway::new(setup.config()), written),
            Contender::Plain => world::run(&setup, Plain::new(setup.config()), written),
        };
        trials.push(Trial {
            contender: *contender,
            setup,
            run,
        });
    }
    Ok(Trials { seed, trials })
}

impl Trials {
    /// Whether the first contender kept every law and every bound.
    pub fn passes(&self, scenario: &Scenario) -> Passes {
        let Some(first) = self.trials.first() else {
            return Passes::No;
        };
        let until = first.setup.workload.until();
        let names = first.setup.names();
        let bounds = scenario.measures.iter();
        let mut kept = bounds.map(|measure| measure.judge(&first.run, &names, until).holds);
        match first.run.violations.is_empty() && kept.all(|holds| holds) {
            true => Passes::Yes,
            false => Passes::No,
        }
    }
}

/// Runs a scenario with each of `seeds`, and hands every seed that fails to `failed`, with the
/// command that plays it again. Returns how many did.
///
/// # Errors
/// A workload that cannot be drawn.
pub fn many(
    scenario: &Scenario,
    seeds: impl Iterator<Item = u64>,
    replay: Option<Replay<'_>>,
    (command, failed): (&str, &mut dyn FnMut(&str)),
) -> Result<Count, WorkloadError> {
    let mut count = Count::default();
    for seed in seeds {
        let trials = one(scenario, seed, replay, None)?;
        count.seeds += 1;
        count.facts += trials.trials.iter().map(|one| one.run.facts).sum::<u64>();
        if trials.passes(scenario) == Passes::No {
            count.failed += 1;
            let mut text = report::failures(scenario, &trials);
            // Writing to a string does not fail.
            let _ = writeln!(text, "  play it again: {command} --seed {seed}");
            failed(&text);
        }
    }
    Ok(count)
}

/// How many seeds there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All of them.
    pub seeds: u64,
    /// Those that failed.
    pub failed: u64,
    /// Facts handed to gateways.
    pub facts: u64,
}

#[cfg(test)]
mod tests;
