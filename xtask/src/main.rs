//! The house tools: checks of the source that neither the compiler nor clippy makes.
//!
//! `cargo xtask tidy` reads every file of the checkout and reports each break of a house rule
//! with its place and what to write instead. Nothing here ships in the product, and nothing
//! here changes a file.

mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask VERB

Verbs:
  tidy    check the house rules: crate arrows, sizes, names, banned calls, licences
";

fn main() -> anyhow::Result<ExitCode> {
    let verb = std::env::args().nth(1);
    match verb.as_deref() {
        Some("tidy") => tidy::run(),
        Some("help" | "--help" | "-h") => {
            eprint!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        None | Some(_) => {
            eprint!("{HELP}");
            Ok(ExitCode::from(2))
        }
    }
}
