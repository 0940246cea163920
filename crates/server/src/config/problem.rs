//! What is wrong with a configuration, and where.
//!
//! Reading goes on after a mistake, so problems are collected rather than returned. A problem never
//! holds the text of a key or the value of an environment variable.

use std::cell::RefCell;
#[cfg(test)]
use std::collections::BTreeSet;
use std::fmt;

/// One mistake in a configuration.
///
/// It displays as `12:7: tenants[1].limits.rpm is 0; use 1..=1000000`, for the name of the file to
/// go before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The key at fault, as `tenants[1].limits.rpm`; empty when it is the file as a whole.
    pub path: String,
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what to write instead; it reads on from the path.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{} ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A place in the file, both numbers from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The line.
    pub(super) line: usize,
    /// The column, in characters.
    pub(super) column: usize,
}

impl Mark {
    /// The first character of the file.
    pub(super) const START: Self = Self { line: 1, column: 1 };

    /// The problem `message` of the key `path` at this place.
    pub(super) fn problem(self, path: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            path: path.into(),
            line: self.line,
            column: self.column,
            message: message.into(),
        }
    }
}

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: RefCell<Vec<Problem>>,
    /// Every key the decoder knows, by its path: what the reference is compared with.
    #[cfg(test)]
    pub(super) known: RefCell<BTreeSet<String>>,
}

impl Problems {
    /// Adds one.
    pub(super) fn add(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    /// All of them in the order of the file.
    pub(super) fn into_sorted(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort_by(|a, b| (a.line, a.column, &a.path).cmp(&(b.line, b.column, &b.path)));
        found
    }
}

/// Text of the file as a message may show it: on one line and not long.
pub(super) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 48;
    let escaped: String = text
        .chars()
        .take(CHARS_MAX)
        .flat_map(char::escape_debug)
        .collect();
    match text.chars().nth(CHARS_MAX) {
        Some(_) => format!("`{escaped}…`"),
        None if text.is_empty() => "empty".to_owned(),
        None if plain(text) => escaped,
        None => format!("`{escaped}`"),
    }
}

/// Whether text needs no quotes to stand out in a sentence.
fn plain(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || "._:/-+$%{}".contains(c))
}
