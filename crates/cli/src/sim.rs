//! `tollgate sim`: reads a scenario and whatever it needs from files, and prints what comes of it.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tollgate_bench::args::value;
use tollgate_sim::report::render;
use tollgate_sim::scenario::{Replay, Scenario};
use tollgate_sim::trace::{Trace, TraceError, TraceName};
use tollgate_sim::trial::{self, Passes};

use crate::check::{MISTAKES, unreadable};
use crate::terminal;

/// Where scenarios are to start from.
const EXAMPLE: &str = "the folder scenarios has some, and docs/simulator.md one";

/// Exit code where a law or a bound was broken.
const FAILED: u8 = 1;

/// Flags of `sim`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// The scenario, in YAML; the folder `scenarios` has some.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Seed of all that is drawn: the same seed, the same run, to the byte.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value::from_zero::<u64>)]
    seed: u64,
    /// Try each seed from A up to B, B not included, and report only those that fail.
    #[arg(long, value_name = "A..B", value_parser = seeds, conflicts_with_all = ["seed", "log"])]
    seeds: Option<Range<u64>>,
    /// Write every fact, order and fault to this file, a line each.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Replay this trace in place of what the scenario draws: azure-conversations, azure-code,
    /// mooncake-conversations or lmsys-27. Where its file is not at hand, a stand-in that was
    /// fitted to it is drawn.
    #[arg(long, value_name = "NAME")]
    trace: Option<TraceName>,
    /// Folder with the files of the traces.
    #[arg(
        long,
        value_name = "DIR",
        env = "TOLLGATE_TRACES",
        hide_env_values = true
    )]
    trace_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tollgate sim scenarios/herd.yaml                    one run, and how a plain gateway does in it
  tollgate sim scenarios/faults.yaml --seeds 0..1000  a thousand worlds in which all goes wrong
  tollgate sim scenarios/flood.yaml --log flood.log   every decision, a line each

Exits 0 where every law and bound was kept, 1 where one was not, 2 where the file is no scenario.";

/// Reads `A..B`.
fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text} is no range of seeds; use one like 0..1000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let from: u64 = from.parse().map_err(|_| wrong())?;
    let to: u64 = to.parse().map_err(|_| wrong())?;
    if from < to {
        Ok(from..to)
    } else {
        Err(wrong())
    }
}

pub(crate) fn sim(args: SimArgs) -> ExitCode {
    match run(args) {
        Ok(Passes::Yes) => ExitCode::SUCCESS,
        Ok(Passes::No) => ExitCode::from(FAILED),
        Err(complaint) => {
            terminal::complain(&complaint);
            ExitCode::from(MISTAKES)
        }
    }
}

fn run(args: SimArgs) -> Result<Passes, String> {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| format!("tollgate: {file}: {}", unreadable(&error, EXAMPLE)))?;
    let scenario = Scenario::parse(&text).map_err(|mistake| format!("{file}:{mistake}"))?;
    let name = args.trace.or_else(|| scenario.replays());
    let trace = match (name, &args.trace_dir) {
        (Some(name), Some(dir)) => open(name, dir)?,
        (Some(_) | None, _) => None,
    };
    if let (Some(name), None) = (name, &trace) {
        let name = name.label();
        terminal::complain(&format!(
            "tollgate: the trace {name} is not at hand; a stand-in fitted to it is drawn"
        ));
    }
    let replay = name.map(|name| Replay {
        name,
        trace: trace.as_ref(),
    });
    match args.seeds.clone() {
        Some(seeds) => many(&args, &scenario, seeds, replay),
        None => one(&args, &scenario, replay),
    }
}

/// A trace whose file is not there has a stand-in; one that is there and no good has none.
fn open(name: TraceName, dir: &Path) -> Result<Option<Trace>, String> {
    match Trace::open(name, dir) {
        Ok(trace) => Ok(Some(trace)),
        Err(TraceError::Missing { .. }) => Ok(None),
        Err(error @ (TraceError::Read { .. } | TraceError::Line { .. })) => {
            Err(format!("tollgate: {error}"))
        }
    }
}

fn many(
    args: &SimArgs,
    scenario: &Scenario,
    seeds: Range<u64>,
    replay: Option<Replay<'_>>,
) -> Result<Passes, String> {
    let command = command(args);
    let mut failed = |text: &str| terminal::answer(text.trim_end());
    let count = trial::many(scenario, seeds, replay, (&command, &mut failed))
        .map_err(|error| format!("tollgate: {error}"))?;
    terminal::answer(&format!(
        "{} seeds, {} failed; {} facts",
        count.seeds, count.failed, count.facts
    ));
    Ok(match count.failed {
        0 => Passes::Yes,
        _ => Passes::No,
    })
}

/// The command that plays a seed again, but for the seed.
fn command(args: &SimArgs) -> String {
    let mut command = format!("tollgate sim {}", args.file.display());
    if let Some(name) = args.trace {
        command += &format!(" --trace {}", name.label());
    }
    if let Some(dir) = &args.trace_dir {
        command += &format!(" --trace-dir {}", dir.display());
    }
    command
}

fn one(args: &SimArgs, scenario: &Scenario, replay: Option<Replay<'_>>) -> Result<Passes, String> {
    let unwritten = |path: &Path, error| {
        let path = path.display();
        format!("tollgate: can't write {path}: {error}; name a file in a folder that is there")
    };
    let mut log = match &args.log {
        Some(path) => {
            let file = File::create(path).map_err(|error| unwritten(path, error))?;
            Some((path, BufWriter::new(file)))
        }
        None => None,
    };
    let mut broken = None;
    let mut write = |line: &str| {
        if let (Some((_, file)), None) = (&mut log, &broken) {
            broken = file.write_all(line.as_bytes()).err();
        }
    };
    let logged: Option<&mut dyn FnMut(&str)> = match args.log {
        Some(_) => Some(&mut write),
        None => None,
    };
    let trials = trial::one(scenario, args.seed, replay, logged)
        .map_err(|error| format!("tollgate: {error}"))?;
    if let Some((path, mut file)) = log {
        let flushed = file.flush();
        if let Some(error) = broken.or_else(|| flushed.err()) {
            return Err(unwritten(path, error));
        }
    }
    let passes = trials.passes(scenario);
    terminal::answer(render(scenario, &trials).trim_end());
    if passes == Passes::No {
        let (command, seed) = (command(args), args.seed);
        terminal::answer(&format!("play it again: {command} --seed {seed}"));
    }
    Ok(passes)
}
