//! The house tools: checks of the source that neither the compiler nor clippy makes.
//!
//! `cargo xtask tidy` reads every file of the checkout and reports each break of a house rule
//! with its place and what to write instead. `cargo xtask docs` writes the numbers of documents
//! from committed results. Nothing here ships in the product.

mod docs;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask VERB

Verbs:
  tidy           check the house rules: crate arrows, sizes, names, banned calls, licences
  docs           write the numbers of the documents from the tables under results/
  docs --check   say which documents do not have them
";

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy::run(),
        ["docs"] => docs::run(docs::Stale::Write),
        ["docs", "--check"] => docs::run(docs::Stale::Report),
        ["help" | "--help" | "-h"] => {
            eprint!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprint!("{HELP}");
            Ok(ExitCode::from(2))
        }
    }
}
