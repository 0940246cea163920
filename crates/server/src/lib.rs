//! The tokio shell: HTTP routes, streaming, engine supervision, ledger, metrics, configuration.
//!
//! It reads and writes, and asks the policy for every decision. Its public face is [`config`] and
//! [`Server`].

mod admin;
mod answer;
mod app;
mod body_room;
mod books;
pub mod budget;
mod calls;
mod clerk;
mod clock;
pub mod config;
mod counting;
mod desk;
pub mod doctor;
mod engines;
mod folding;
mod guarded;
mod held;
mod idempotent;
mod identity;
mod inflight;
pub mod journal;
pub mod keeper;
mod letters;
mod line;
mod linger;
mod listen;
mod malformed;
mod membership;
mod metrics;
mod opened;
mod past;
mod patience;
mod prepare;
pub mod process;
pub mod promises;
mod quick;
mod receive;
mod refuse;
mod reload;
mod repeats;
mod replicas;
mod roster;
mod routes;
mod salt;
mod server;
mod spawn;
pub mod store;
mod stream;
pub mod tokenizer;
mod upstream;
mod values;
mod writable;

pub use crate::clock::unix_micros;
pub use crate::folding::{FoldError, Folding, charges};
pub use crate::reload::{ConfigFile, Unreadable};
pub use crate::server::{ModelFacts, Server, StartError};
pub use tollgate_engine::{WidenError, widen};
