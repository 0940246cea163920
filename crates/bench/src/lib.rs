//! Honest load: requests are sent when they are due, whatever became of those before them.
//!
//! Latency counts from the intended send, so that a client that falls behind does not hide it. A
//! run whose own lateness is too large, or that meets a bound of its own, is invalid and says so.
//! What the numbers should be is not decided here.

pub mod args;
pub mod calibrate;
mod clock;
mod connections;
pub mod engine;
mod exchange;
pub mod flood;
pub mod gate;
pub mod ladder;
mod machine;
mod pace;
mod plot;
mod prompts;
mod remedy;
mod reply;
mod report;
mod rows;
mod run;
mod secure;
mod slo;
mod spec;
mod stop;
pub mod study;
mod summary;
mod table;
pub mod workload_file;
pub mod yaml;

pub use machine::Machine;
pub use plot::{Frontier, Point, Series};
pub use report::{Header, Report};
pub use rows::{Ending, Failure, Row};
pub use run::{BenchError, Progress, run};
pub use slo::Slo;
pub use spec::{
    Cycle, Endpoint, EndpointError, Identity, Key, Reply, Source, Spec, TenantSpec, Timing,
    Tokenizer,
};
pub use stop::Stop;
pub use summary::{Latencies, Slip, TenantSummary, Totals, Validity, WindowP99};
