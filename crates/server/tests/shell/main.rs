//! The server as its clients see it: a whole one in this process, real sockets, the fake engine.
//!
//! Each file is about one promise. Time is the real one, so a test waits for what it expects to see
//! and never for a while; `support/wait.rs` is the only place that polls.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

mod answers;
mod bodies;
mod bursts;
mod choices;
mod disconnects;
mod drain;
mod faults;
mod fences;
mod framing;
mod idempotency;
mod identity;
mod keys;
mod ledger;
mod metrics;
mod models;
mod money;
mod operators;
mod refusals;
mod start;
mod stuck;
mod texts;
mod tools;
mod vectors;
mod waiting;
