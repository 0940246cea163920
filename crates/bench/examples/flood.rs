//! Sends a load from the command line: `flood …` for a scenario, `run …` for any other load.
//!
//! It prints the table, writes what was asked for, and exits 2 if the run is invalid.

#![expect(clippy::print_stdout, reason = "a command's answer goes to stdout")]

use std::process::ExitCode;

use clap::Parser;
use tollgate_bench::args::{ArgsError, FloodArgs, LoadArgs, RunArgs};
use tollgate_bench::{Progress, Spec, run};

#[derive(Debug, Parser)]
enum Verb {
    /// A scenario of tenants beside a quiet one.
    Flood(FloodArgs),
    /// Any load, drawn or replayed.
    Run(RunArgs),
}

fn main() -> ExitCode {
    let command: Vec<String> = std::env::args().collect();
    let verb = Verb::parse();
    let (spec, load) = match &verb {
        Verb::Flood(args) => (args.spec(command.join(" ")), &args.load),
        Verb::Run(args) => (args.spec(command.join(" ")), &args.load),
    };
    measure(spec, load).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn measure(
    spec: Result<Spec, ArgsError>,
    load: &LoadArgs,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let report = run(&spec?, |progress: &Progress| {
        let Progress {
            at,
            open,
            completed,
            refused,
            failed,
        } = progress;
        let secs = at.as_micros() / 1_000_000;
        eprint!(
            "\r{secs} s: {open} open, {completed} completed, {refused} refused, {failed} failed "
        );
    })?;
    eprintln!();
    print!("{report}");
    if let Some(path) = &load.json {
        report.write_json(path)?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
