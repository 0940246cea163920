//! The tokio shell: HTTP routes, streaming, engine supervision, ledger, metrics, configuration.
//!
//! It reads and writes, and asks the policy for every decision. Its public face is [`config`] and
//! [`Server`].

mod admin;
mod answer;
mod app;
mod books;
mod clock;
pub mod config;
mod desk;
pub mod doctor;
mod door;
mod guarded;
pub mod journal;
mod members;
mod prepare;
mod replicas;
mod server;
mod spawn;
pub mod store;
mod upstream;

pub use crate::books::promises;
pub use crate::clock::unix_micros;
pub use crate::members::budget;
pub use crate::replicas::{keeper, process};
pub use crate::server::reload::{ConfigFile, Unreadable};
pub use crate::server::{ModelFacts, Server, StartError};
pub use crate::store::folding::{FoldError, Folding, charges};
pub use crate::upstream::tokenizer;
pub use tollgate_engine::{WidenError, widen};
