//! `tollgate bench`: what can be measured, and what is said of it.

use std::process::ExitCode;

use clap::Subcommand;
use tollgate_bench::args::{LadderArgs, RealismArgs};
use tollgate_bench::ladder::{Climbed, Step};

use crate::terminal;

/// Exit code of a measurement that says no.
const NO: u8 = 1;
/// Exit code where there is no measurement.
const NONE: u8 = 2;
/// Exit code of a ladder that is not climbed to its end.
const GOES_ON: u8 = 3;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
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

pub(crate) fn bench(what: &What) -> ExitCode {
    match what {
        What::Ladder(args) => ladder(args),
        What::Realism(args) => realism(args),
    }
}

fn ladder(args: &LadderArgs) -> ExitCode {
    let command: Vec<String> = std::env::args().collect();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return none(&format!("where is this program? {error}")),
    };
    let ladder = args.ladder(program, command.join(" "));
    let climbed = ladder.climb(|step| match step {
        Step::Begins(name, [done, of]) => terminal::complain(&format!("{done} of {of}: {name}")),
        Step::Failed(name, why) => terminal::complain(&format!("{name} failed: {why}")),
    });
    match climbed {
        Ok(climbed) => said(&climbed),
        Err(error) => none(&error.to_string()),
    }
}

fn said(climbed: &Climbed) -> ExitCode {
    let mut before: Option<f64> = None;
    for peak in &climbed.peaks {
        let times = before
            .filter(|before| *before > 0.0)
            .map(|before| peak.goodput_per_s / before);
        let times = times.map_or_else(String::new, |times| format!(", {times:.2}x the one before"));
        terminal::answer(&format!(
            "{}: {:.2} good requests/s ({:.2} to {:.2} over {} seeds) at {}/s{times}",
            peak.series, peak.goodput_per_s, peak.low, peak.high, peak.seeds, peak.load_per_s
        ));
        before = Some(peak.goodput_per_s);
    }
    let Climbed { done, of, page, .. } = climbed;
    terminal::answer(&format!("{done} of {of} cells; {}", page.display()));
    if done == of {
        ExitCode::SUCCESS
    } else {
        terminal::complain("the same command goes on with the rest");
        ExitCode::from(GOES_ON)
    }
}

fn realism(args: &RealismArgs) -> ExitCode {
    match args.run() {
        Ok(realism) => {
            terminal::answer(realism.text.trim_end());
            if realism.as_it_should {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(NO)
            }
        }
        Err(error) => none(&error.to_string()),
    }
}

fn none(why: &str) -> ExitCode {
    terminal::complain(&format!("tollgate: {why}"));
    ExitCode::from(NONE)
}
