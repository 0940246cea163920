//! Prints how admission fares under overload and shifts: `cargo run --release -p tollgate-sim
//! --example overload [-- TRACE_DIR [SEED]]`; with `seeds` in place of a seed, how its bounds fare
//! for three of them. results/promises.md holds what it prints.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::PathBuf;

use tollgate_sim::overload::{seeds, study};
use tollgate_sim::trace::{Trace, TraceName};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map(PathBuf::from);
    let seed = args.next();
    let trace = match &dir {
        Some(dir) => Some(Trace::open(TraceName::AzureConversations, dir)?),
        None => None,
    };
    let text = match seed.as_deref() {
        Some("seeds") => seeds(trace.as_ref())?,
        Some(seed) => study(trace.as_ref(), seed.parse()?)?,
        None => study(trace.as_ref(), 1)?,
    };
    print!("{text}");
    Ok(())
}
