//! A gateway before several engines that fail it in every way that engines have, each played by a
//! test.
//!
//! What is looked at is what clients get, which engine was asked, and what the operator is shown.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[expect(dead_code, reason = "the tests of the shell use the rest")]
#[path = "../shell/support/mod.rs"]
mod support;

mod gateway;
mod unruly;

mod chaos;
mod failing;
mod live;
mod routing;
