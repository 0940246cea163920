//! Fair share as clients and operators see it: a whole server in this process, real sockets, the
//! fake engine.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

mod headers;
mod promises;
mod queue;
mod reload;
mod replicas;
mod retries;
