//! The embedded engine: one thread that runs, step by step, what the policy plans, on a backend.
//!
//! What to compute next is decided in [`tollgate_policy::engine`]; a [`Backend`] computes it;
//! between the two stands this crate, which turns tokens into text and tells every request its end,
//! exactly once. There are two backends: [`llama`] and [`fake`]. No network, no async, and no
//! clock.

mod backend;
mod choice;
mod grammar;
mod handle;
mod job;
mod model;
mod seed;
mod template;
mod text;
mod tools;
mod widen;
mod worker;

#[cfg(test)]
mod conformance;

pub mod fake;
pub mod llama;

pub use backend::{
    Backend, Begin, Drawn, FatalError, Likelihood, Open, OpenError, Sampled, SequenceError,
    StepWork,
};
pub use handle::{Engine, Gauges, Progress, Spec, StartError};
pub use job::{Delta, Job, Likely, Logprob, Observer, Output, Sampling, Served, Stop, Token};
pub use model::{
    CallCount, CallStyle, ChatMessage, GrammarError, Model, PastCall, TemplateError, TokenizeError,
    ToolOffer,
};
pub use widen::{WidenError, widen};
