//! Gateways that share a PostgreSQL, and one whose PostgreSQL is away.
//!
//! What one of them is told holds at the others too; what they serve counts once, wherever it was
//! served.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[expect(dead_code, reason = "the tests of the shell use the rest")]
#[path = "../shell/support/mod.rs"]
mod support;

#[expect(dead_code, reason = "the store's own tests use the rest")]
#[path = "../../src/store/tests/cluster.rs"]
mod cluster;

/// Where the cluster finds the time.
mod clock {
    pub(crate) use tollgate_server::unix_micros;
}

/// Does `work` where no runtime is: the client of PostgreSQL brings its own.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

mod absent;
mod together;
