//! Prints how well models of what plans miss do on what a simulated gateway in overload has
//! learned: `cargo run --release -p tollgate-sim --example fits -- TRACE_DIR [SEED [ROWS.csv]]`.
//! With a third argument the rows are written there, for other fitters to be compared; with
//! `foresight` in its place, it prints what bounds would be worth to those who know more.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::{Path, PathBuf};

use tollgate_sim::fits;
use tollgate_sim::trace::{Trace, TraceName};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map(PathBuf::from);
    let seed = args.next().map_or(Ok(1), |seed| seed.parse())?;
    let rows = args.next().map(PathBuf::from);
    let trace = match &dir {
        Some(dir) => Some(Trace::open(TraceName::AzureConversations, dir)?),
        None => None,
    };
    if rows.as_deref() == Some(Path::new("foresight")) {
        print!("{}", fits::foresight(trace.as_ref(), seed)?);
        return Ok(());
    }
    let lessons = fits::lessons(trace.as_ref(), seed)?;
    if let Some(path) = rows {
        std::fs::write(path, fits::csv(&lessons))?;
    }
    print!("{}", fits::walk_forward(&lessons));
    Ok(())
}
