//! What commands say, on stdout and stderr.
//!
//! The macros of the standard library panic where nobody reads, as behind a `head` that has seen
//! enough; these go on, so that the exit code stays the one that was meant.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

/// Writes an answer and a line end to stdout.
pub(crate) fn answer(text: &str) {
    // Err: nobody reads it.
    let _ = writeln!(io::stdout(), "{text}");
}

/// Writes a complaint and a line end to stderr.
pub(crate) fn complain(text: &str) {
    // One write, so that no other line comes between; Err: nobody reads it.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes what fills lines of its own to stdout.
pub(crate) fn print(text: &impl Display) {
    // Err: nobody reads it.
    let _ = write!(io::stdout(), "{text}");
}

/// A line on stderr that tells how far something is: one that changes in place on a terminal, and
/// now and then a new one elsewhere.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    shown: u64,
}

impl StatusLine {
    /// Where nothing can change in place, one in so many is shown.
    const ONE_IN: u64 = 10;

    /// Shows what holds now.
    pub(crate) fn show(&mut self, status: &impl Display) {
        self.shown += 1;
        if io::stderr().is_terminal() {
            // The rest of a longer line before it is cleared.
            let _ = io::stderr().write_all(format!("\r{status}\u{1b}[K").as_bytes());
        } else if self.shown % Self::ONE_IN == 1 {
            complain(&status.to_string());
        }
    }

    /// Ends the line, so that what comes next has its own.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.shown) > 0 && io::stderr().is_terminal() {
            let _ = io::stderr().write_all(b"\n");
        }
    }
}
