//! The world around the policy, made of numbers: who asks when and for how much, and how to score
//! it.
//!
//! Nothing here reads a clock or talks to a network, and the same seed gives the same bytes: the
//! load generator and the simulator send the same workloads.

mod arrivals;
mod chance;
pub mod emulated;
pub mod fairness;
pub mod known;
mod lengths;
pub mod realism;
pub mod routing;
pub mod rungs;
pub mod stats;
pub mod trace;
pub mod workload;

pub use arrivals::{Arrivals, ArrivalsError};
pub use lengths::{Lengths, LengthsError};
