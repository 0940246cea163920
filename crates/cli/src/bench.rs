//! `tollgate bench`: loads, an engine to try them on, and what to compare their results with.
//!
//! It reads command lines, shows how far a run is, and prints what came of it. What is measured and
//! how is the load tools' own affair.

mod arms;
mod ladder;
mod realism;

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Subcommand;
use tollgate_bench::args::{
    CalibrateArgs, EngineArgs, FloodArgs, GateArgs, LadderArgs, RealismArgs, RunArgs,
};
use tollgate_bench::engine::EngineServer;
use tollgate_bench::gate::{Decisions, Verdict, decide};
use tollgate_bench::{Stop, calibrate::calibrate, flood};

use crate::output;
use crate::terminal::{self, StatusLine};

/// Exit code of a run that is invalid or could not be had.
const INVALID: u8 = 2;

/// Exit code of the gate where something got worse.
const WORSE: u8 = 1;

/// What there is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// Serve the OpenAI API without a model: an emulated engine.
    Engine(EngineArgs),
    /// Send an open-loop load to any OpenAI endpoint, and report what it got.
    ///
    /// Requests go out when they are due, whatever became of those before them; latencies count
    /// from then. How late they really left is measured, and a run that was too late is invalid.
    Run(RunArgs),
    /// Compare what a quiet tenant gets beside others, at endpoints side by side.
    Flood(FloodArgs),
    /// Compare what is decided about a fixed load with what was decided before.
    Gate(GateArgs),
    /// Fit the cost of an engine's steps to what a client sees of them.
    Calibrate(CalibrateArgs),
    /// Compare the engine's schedulers: rungs by loads by seeds, each cell from nothing.
    ///
    /// Prints the peak goodput of each rung; DIR/ladder.html has the rest. Exits 0 when every cell
    /// was run, 3 when it was stopped or the budget ended before (the same command goes on), and 2
    /// when the ladder cannot be climbed.
    Ladder(Box<LadderArgs>),
    /// See whether the generated stand-ins look like the traces they stand for.
    ///
    /// Gaps, counts at 1, 10 and 60 s, lengths and tenants, each against a bound; Poisson arrivals
    /// and shuffled gaps are controls that have to fail. Exits 0 when all do as they should, 1 when
    /// not, and 2 when a trace cannot be read.
    Realism(RealismArgs),
}

pub(crate) fn bench(verb: &BenchVerb) -> ExitCode {
    let done = match verb {
        BenchVerb::Engine(args) => serve_engine(args),
        BenchVerb::Run(args) => run_load(args),
        BenchVerb::Flood(args) => run_flood(args),
        BenchVerb::Gate(args) => run_gate(args),
        BenchVerb::Calibrate(args) => run_calibration(args),
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

fn serve_engine(args: &EngineArgs) -> anyhow::Result<ExitCode> {
    let settings = args.settings()?;
    let models = settings.models.join(", ");
    let stop = Stop::on_signal();
    let engine = EngineServer::start(settings)?;
    let kind = if args.instant { "instant" } else { "emulated" };
    let address = engine.address();
    terminal::answer(&format!(
        "An {kind} engine for {models} listens on http://{address}"
    ));
    stop.wait();
    let counts = engine.counts();
    terminal::answer(&format!(
        "{} requests, {} of whose clients left before the end",
        counts.requests, counts.gone
    ));
    Ok(ExitCode::SUCCESS)
}

fn run_load(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let spec = args.spec(command())?;
    output::can_write([args.load.json.as_ref()])?;
    let mut line = StatusLine::default();
    let report = tollgate_bench::run(&spec, &Stop::on_signal(), |progress| line.show(progress));
    line.end();
    let report = report?;
    terminal::print(&report);
    if let Some(path) = &args.load.json {
        write_json(path, &report.to_json())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn run_flood(args: &FloodArgs) -> anyhow::Result<ExitCode> {
    output::can_write([args.plot.as_ref(), args.load.json.as_ref()])?;
    // What is wrong with the arguments is told before anything is started for them.
    args.plan(&[], &command())?;
    let started = if args.url.is_empty() {
        Some(arms::Arms::start(&args.model)?)
    } else {
        None
    };
    let endpoints = started.as_ref().map_or(&[][..], arms::Arms::endpoints);
    let plan = args.plan(endpoints, &command())?;
    let mut line = StatusLine::default();
    let report = flood::run(&plan, &Stop::on_signal(), |arm, round, progress| {
        line.show(&format!("{arm}, round {round}, {progress}"));
    });
    line.end();
    let report = report?;
    terminal::print(&report);
    if let Some(path) = &args.plot {
        let svg = report.frontier("Tokens a second and the quiet tenant's wait");
        output::write(path, &svg.to_svg())?;
    }
    if let Some(path) = &args.load.json {
        write_json(path, &report.to_json())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn run_gate(args: &GateArgs) -> anyhow::Result<ExitCode> {
    let path = args.baseline.display();
    if args.update {
        output::can_write([Some(&args.baseline)])?;
    }
    let now = decide(args.slots).map_err(anyhow::Error::msg)?;
    if args.update {
        let text = serde_json::to_string(&now)? + "\n";
        output::write(&args.baseline, &text)?;
        let count = now.dispatched.len();
        terminal::answer(&format!("{path}: {count} decisions written"));
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&args.baseline).with_context(|| {
        format!("can't read {path}; name it with --baseline, or write it with --update")
    })?;
    // What a parser says of it would tell nobody anything.
    let baseline: Decisions = serde_json::from_str(&text).map_err(|_| {
        anyhow!("{path} is no baseline; name one with --baseline, or write it with --update")
    })?;
    let count = now.dispatched.len();
    match now.against(&baseline) {
        Verdict::Same => {
            terminal::answer(&format!("{count} decisions, all as before"));
            Ok(ExitCode::SUCCESS)
        }
        Verdict::Different { first } => {
            terminal::answer(&format!(
                "{count} decisions, which differ from number {first} on; nothing got worse"
            ));
            Ok(ExitCode::from(if args.exact { WORSE } else { 0 }))
        }
        Verdict::Worse(worse) => {
            for what in worse {
                terminal::complain(&format!("worse: {what}"));
            }
            Ok(ExitCode::from(WORSE))
        }
        Verdict::Invalid(why) => bail!("{why}"),
    }
}

fn run_calibration(args: &CalibrateArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan(command())?;
    let mut line = StatusLine::default();
    let fitted = calibrate(&plan, &Stop::on_signal(), |point| line.show(&point));
    line.end();
    let fitted = fitted?;
    // On stdout they are comments in a file, which nobody may look at.
    for note in &fitted.notes {
        terminal::complain(&format!("tollgate: {note}"));
    }
    terminal::print(&fitted);
    Ok(ExitCode::SUCCESS)
}

fn write_json(path: &Path, value: &impl Display) -> anyhow::Result<()> {
    output::write(path, &format!("{value:#}\n"))
}
