//! A gateway before an engine in another process, which a test plays byte by byte.
//!
//! Each file is about one promise. What the engine sends, and when, is written out in the test;
//! what the client and the ledger get is what is looked at.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[expect(dead_code, reason = "the tests of the shell use the rest")]
#[path = "../shell/support/mod.rs"]
mod support;

mod engine;

mod bodies;
mod cancelling;
mod editing;
mod endings;
mod framing;
mod headers;
mod leaving;
mod multiplexed;
mod pooling;
mod probing;
mod reaching;
mod repeating;
mod timeouts;
mod tokenizers;
mod usage;
mod windows;
