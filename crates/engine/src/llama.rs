//! llama.cpp as a backend: batches built by hand, and one KV for all sequences or one for each.
//!
//! The weights are loaded once, into a [`LlamaModel`] that any thread may ask; an engine's context
//! borrows them and lives on the engine's own thread, so an engine that was restarted loads nothing
//! again.

mod batches;
mod lanes;
mod model;
mod parking;
mod plain;
mod pooler;
mod runner;
mod sampler;

#[cfg(test)]
pub(crate) use model::backend;
pub use model::{LlamaModel, LoadError, Pooling};
#[cfg(test)]
pub(crate) use runner::PUT_BACK;
