//! The tokio shell: HTTP routes, streaming, engine supervision, ledger, metrics, configuration.
//!
//! It reads and writes, and asks the policy for every decision. Its public face is [`config`] and
//! [`Server`].

mod admin;
mod answer;
mod app;
mod books;
mod calls;
mod clock;
pub mod config;
mod desk;
mod engines;
mod guarded;
mod held;
mod identity;
mod inflight;
mod ledger;
mod line;
mod listen;
mod metrics;
mod prepare;
mod receive;
mod refuse;
mod reload;
mod repeats;
mod replicas;
mod routes;
mod salt;
mod server;
mod spawn;
mod stream;
mod upstream;

pub use crate::ledger::LedgerError;
pub use crate::reload::{ConfigFile, Unreadable};
pub use crate::server::{ModelFacts, Server, StartError};
