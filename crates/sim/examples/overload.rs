//! Prints how admission fares under overload and shifts: `cargo run --release -p tollgate-sim
//! --example overload [-- TRACE_DIR [SEED]] > results/promises.md`.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::PathBuf;

use tollgate_sim::overload::study;
use tollgate_sim::trace::{Trace, TraceName};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map(PathBuf::from);
    let seed = args.next().map_or(Ok(1), |seed| seed.parse())?;
    let trace = match &dir {
        Some(dir) => Some(Trace::open(TraceName::AzureConversations, dir)?),
        None => None,
    };
    print!("{}", study(trace.as_ref(), seed)?);
    Ok(())
}
