//! The binary from outside: real processes, real sockets, real signals.
//!
//! Nothing here knows more of Tollgate than a person at a terminal and a client on the wire do. The
//! engine makes its text up, except where a test is about model files.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![expect(
    clippy::print_stdout,
    reason = "a test says what it measured, and what it could not try"
)]

mod client;
/// Where the cluster finds the time.
mod clock {
    pub(crate) use tollgate_server::unix_micros;
}
mod deadline;
mod process;

mod admission;
mod banner;
mod bench;
mod check;
mod doctor;
mod help;
mod hosting;
mod killed;
mod ledger;
mod lifetime;
mod logs;
mod memory;
mod mistakes;
mod refused;
mod report;
mod sim;
mod starting;
