//! Prints how fair each scheduler is, as CSV: `cargo run --release -p tollgate-sim --example
//! fairness [-- TRACE_DIR] > results/fairness.csv`.
//!
//! With the folder of the traces it runs the real trace of 27 tenants too, at six times its speed.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::PathBuf;

use tollgate_sim::fairness::{HEADER, compared};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{HEADER}");
    let dir = std::env::args().nth(1).map(PathBuf::from);
    for line in compared(dir.as_deref())? {
        println!("{line}");
    }
    Ok(())
}
