//! The world around the policy, made of numbers: who asks when and for how much, and how to score
//! it.
//!
//! Nothing here reads a clock or talks to a network, and the same seed gives the same bytes: the
//! load generator and the simulator send the same workloads.

mod arrivals;
mod chance;
pub mod chaos;
pub mod client;
pub mod control;
pub mod emulated;
pub mod fairness;
pub mod fault;
pub mod fits;
pub mod known;
mod lengths;
pub mod machine;
pub mod overload;
pub mod plain;
pub mod promised;
pub mod realism;
pub mod report;
pub mod routing;
pub mod rungs;
pub mod scenario;
pub mod setup;
pub mod stats;
pub mod tally;
pub mod trace;
pub mod trial;
pub mod workload;
pub mod world;
pub mod yaml;

pub use arrivals::{Arrivals, ArrivalsError};
pub use lengths::{Lengths, LengthsError};
