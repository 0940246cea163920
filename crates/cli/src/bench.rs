//! `tollgate bench`: what can be measured, and what is said of it.

mod ladder;
mod realism;

use std::process::ExitCode;

use clap::Subcommand;
use tollgate_bench::args::{LadderArgs, RealismArgs};

use crate::terminal;

/// Exit code of a run that is invalid or could not be had.
const INVALID: u8 = 2;

/// What there is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// Compare the engine's schedulers: rungs by loads by seeds, each cell from nothing.
    ///
    /// Prints the peak goodput of each rung; DIR/ladder.html has the rest. Exits 0 when every cell
    /// was run, 3 when the budget ended before (the same command goes on), and 2 when the ladder
    /// cannot be climbed.
    Ladder(LadderArgs),
    /// See whether the generated stand-ins look like the traces they stand for.
    ///
    /// Gaps, counts at 1, 10 and 60 s, lengths and tenants, each against a bound; Poisson arrivals
    /// and shuffled gaps are controls that have to fail. Exits 0 when all do as they should, 1 when
    /// not, and 2 when a trace cannot be read.
    Realism(RealismArgs),
}

pub(crate) fn bench(verb: &BenchVerb) -> ExitCode {
    let done = match verb {
        BenchVerb::Ladder(args) => ladder::climb(args, command()),
        BenchVerb::Realism(args) => realism::try_streams(args),
    };
    done.unwrap_or_else(|error| {
        terminal::complain(&format!("tollgate: {error:#}"));
        ExitCode::from(INVALID)
    })
}

/// The command line, for the record of a run.
fn command() -> String {
    let words: Vec<String> = std::env::args().collect();
    words.join(" ")
}
