//! Every decision Tollgate makes, and no I/O: no clock, no rng made inside, no async, no threads.
//!
//! Time is an argument, chance is a seeded stream that the driver hands in, facts come in as events
//! and orders go out as effects. The server, the simulator and the tests drive this same code; what
//! the simulator cannot reach is in the wrong crate.

#![deny(clippy::as_conversions, clippy::float_arithmetic)]

pub mod admission;
pub mod batch;
pub mod bucket;
pub mod budget;
pub mod contract;
pub mod density;
pub mod engine;
pub mod failover;
pub mod fair;
pub mod gateway;
pub mod health;
pub mod ids;
pub mod kv;
pub mod outcome;
pub mod pace;
pub mod prefix;
pub mod price;
pub mod quota;
pub mod rate;
pub mod request;
pub mod retry;
pub mod route;
pub mod shelf;
pub mod slo;
pub mod tenant;
pub mod units;
pub mod usage;
pub mod window;
