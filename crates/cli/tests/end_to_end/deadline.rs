//! How long a test waits for what must come, and the one way to wait for what nobody announces.

use std::time::{Duration, Instant};

/// Long enough for a busy machine, short enough that a test which hangs is told of.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two looks at something that nobody announces.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A moment by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn within(span: Duration) -> Self {
        Self(now() + span)
    }

    /// What is left; zero once it has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(now())
    }
}

/// The time of the world, by which the tests watch another process.
#[expect(
    clippy::disallowed_methods,
    reason = "the test watches another process, by the clock of the world"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs `work`, and says how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = now();
    let result = work();
    (result, now() - start)
}

/// Looks until there is something to see.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::within(PATIENCE);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(!deadline.left().is_zero(), "in vain: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}
