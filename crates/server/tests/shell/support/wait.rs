//! Waiting, with an end: nothing in these tests hangs, and nothing waits longer than it must.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
const TICK: Duration = Duration::from_millis(3);

/// Waits until `holds`, and fails when that takes longer than `within`.
pub(crate) async fn eventually(within: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let polling = async {
        let mut tick = tokio::time::interval(TICK);
        while !holds().await {
            tick.tick().await;
        }
    };
    let in_time = timeout(within, polling).await;
    assert!(in_time.is_ok(), "not within {within:?}: {what}");
}

/// What `future` gives, which must not take forever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// The time now, to see how long the server takes.
#[expect(
    clippy::disallowed_methods,
    reason = "tests look at the server from outside"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds, as a span.
pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Seconds, as a span.
pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
