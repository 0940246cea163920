//! Prints how admission fares under overload and shifts: `cargo run --release -p tollgate-sim
//! --example overload [-- TRACE_DIR [SEED]]`. With `seeds` in place of a seed, how its bounds fare
//! for three of them; with `held-out`, how they do on data that no setting was chosen by.
//! results/promises.md holds what it prints.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::PathBuf;

use tollgate_sim::overload::{held_out, seeds, study};
use tollgate_sim::trace::{Trace, TraceName};

/// Traces that no setting was chosen by.
const OTHERS: [TraceName; 2] = [TraceName::AzureCode, TraceName::MooncakeConversations];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map(PathBuf::from);
    let what = args.next();
    if what.as_deref() == Some("held-out") {
        let open = |name: TraceName| Some((name, Trace::open(name, dir.as_deref()?)));
        let opened = OTHERS.into_iter().filter_map(open);
        let traces: Result<Vec<_>, _> = opened
            .map(|(name, trace)| trace.map(|trace| (name, trace)))
            .collect();
        print!("{}", held_out(&traces?)?);
        return Ok(());
    }
    let trace = match &dir {
        Some(dir) => Some(Trace::open(TraceName::AzureConversations, dir)?),
        None => None,
    };
    let text = match what.as_deref() {
        Some("seeds") => seeds(trace.as_ref())?,
        Some(seed) => study(trace.as_ref(), seed.parse()?)?,
        None => study(trace.as_ref(), 1)?,
    };
    print!("{text}");
    Ok(())
}
