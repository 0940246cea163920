//! `tollgate check`, and the reading of a configuration file that `serve` shares with it.

use std::path::Path;
use std::process::ExitCode;

use tollgate_server::config::{Config, parse};

/// Exit code of a file with mistakes in it.
pub(crate) const MISTAKES: u8 = 2;

/// Problems shown at most; a file that is not meant as a configuration has one on every line.
const SHOWN_MAX: usize = 100;

pub(crate) fn check(path: &Path) -> ExitCode {
    match read(path) {
        Ok(config) => {
            let (models, tenants) = (config.models.list().len(), config.tenants.list.len());
            println!(
                "{}: no mistakes; {models} models, {tenants} tenants",
                path.display()
            );
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

/// Reads a configuration file, or says on stderr all that is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Config, ExitCode> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        eprintln!("{name}: {error}");
        ExitCode::from(MISTAKES)
    })?;
    parse(&text, &|variable| std::env::var(variable).ok()).map_err(|problems| {
        for problem in problems.iter().take(SHOWN_MAX) {
            eprintln!("{name}:{problem}");
        }
        let more = problems.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            eprintln!("{name}: and {more} more");
        }
        let (count, s) = (problems.len(), if problems.len() == 1 { "" } else { "s" });
        eprintln!("{name}: {count} mistake{s}; docs/config.md describes every key");
        ExitCode::from(MISTAKES)
    })
}
