//! `tollgate check`, and the reading of a configuration file that `serve` shares with it.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use tollgate_server::config::{Config, parse};

use crate::terminal;

/// Exit code of a file with mistakes in it.
pub(crate) const MISTAKES: u8 = 2;

/// Problems shown at most; a file that is not meant as a configuration has one on every line.
const SHOWN_MAX: usize = 100;

pub(crate) fn check(path: &Path) -> ExitCode {
    match read(path) {
        Ok(config) => {
            let models = counted(config.models.list().len(), "model");
            let tenants = counted(config.tenants.list.len(), "tenant");
            terminal::answer(&format!(
                "{}: no mistakes; {models}, {tenants}",
                path.display()
            ));
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

/// Reads a configuration file, or says on stderr all that is wrong with it.
pub(crate) fn read(path: &Path) -> Result<Config, ExitCode> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let why = unreadable(&error, "docs/tollgate.example.yaml is one");
        terminal::complain(&format!("tollgate: {name}: {why}"));
        ExitCode::from(MISTAKES)
    })?;
    parse(&text, &|variable| std::env::var(variable).ok()).map_err(|problems| {
        for problem in problems.iter().take(SHOWN_MAX) {
            terminal::complain(&format!("{name}:{problem}"));
        }
        let more = problems.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            terminal::complain(&format!("{name}: and {more} more"));
        }
        let mistakes = counted(problems.len(), "mistake");
        terminal::complain(&format!(
            "{name}: {mistakes}; docs/config.md describes every key"
        ));
        ExitCode::from(MISTAKES)
    })
}

/// Why a file could not be read, and what to do; `example` says where one is to start from.
pub(crate) fn unreadable(error: &io::Error, example: &str) -> String {
    // The kinds of the standard library grow, and what is none of these speaks for itself.
    if error.kind() == io::ErrorKind::NotFound {
        format!("there is no such file; {example} to start from")
    } else if error.kind() == io::ErrorKind::IsADirectory {
        "it is a directory; name the file in it".to_owned()
    } else if error.kind() == io::ErrorKind::InvalidData {
        "it is not UTF-8 text; use a YAML file".to_owned()
    } else {
        format!("it can't be read: {error}; look at its permissions")
    }
}

/// How many, in words that fit one as well.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let said = [0, 1, 2].map(|count| counted(count, "model"));
        assert_eq!(said, ["0 models", "1 model", "2 models"]);
    }
}
