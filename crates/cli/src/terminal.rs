//! What commands say, on stdout and stderr.
//!
//! The macros of the standard library panic where nobody reads, as behind a `head` that has seen
//! enough; these go on, so that the exit code stays the one that was meant.

use std::io::{self, Write as _};

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
