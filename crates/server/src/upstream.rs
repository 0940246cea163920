//! Engines in other processes: how they are reached, asked, and listened to.
//!
//! `pool.rs` keeps connections, `http1.rs` and `http2.rs` speak on them, `ask.rs` is what goes out,
//! `exchange.rs` asks once and looks at the first of what comes back, `relay.rs` answers a client
//! with it, and `stream.rs` is the body that passes on the rest. `probe.rs` asks an engine how it
//! is, `prompt.rs` reckons what it has not counted yet, with `tokenizer.rs` where the model's own
//! file is there. `engines/` has what engines differ in. None of them decides which replica gets
//! what, or when: that is the policy's.

pub(crate) mod ask;
pub(crate) mod engines;
pub(crate) mod exchange;
pub(crate) mod headers;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod io;
pub(crate) mod life;
pub(crate) mod model;
pub(crate) mod pool;
pub(crate) mod probe;
pub(crate) mod prompt;
pub(crate) mod relay;
pub(crate) mod stream;
pub mod tokenizer;

pub(crate) use self::model::{Names, RemoteModel, Upstream};
