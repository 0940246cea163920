//! The one clock of the server: monotonic for every decision, wall time only for what people read.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tollgate_policy::units::{Micros, Time};

/// Monotonic time since the server's start. Tokio's clock underneath, so that a test can pause it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    started_unix: Micros,
}

/// Microseconds from the Unix epoch to now: for commands, since a server has a clock of its own.
pub fn unix_micros() -> u64 {
    Clock::start().started_unix.get()
}

impl Clock {
    /// A clock that starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clocks"
    )]
    pub(crate) fn start() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self {
            start: Instant::now(),
            started_unix: Micros::new(micros),
        }
    }

    /// The time now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clocks"
    )]
    pub(crate) fn now(&self) -> Time {
        let micros = Instant::now().duration_since(self.start).as_micros();
        Time::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Where `at` stands on tokio's clock, to sleep until it.
    pub(crate) fn instant(&self, at: Time) -> Instant {
        self.start + std::time::Duration::from_micros(at.as_micros())
    }

    /// Microseconds from the Unix epoch to `at`: the wall clock as it was at the start, and what
    /// has passed since. It never steps, so that the times of one process stay in order.
    pub(crate) fn unix_micros(&self, at: Time) -> u64 {
        self.started_unix.get().saturating_add(at.as_micros())
    }

    /// When it is so many microseconds after the Unix epoch; the start, where that is before it.
    pub(crate) fn at_unix(&self, unix_us: u64) -> Time {
        Time::from_micros(unix_us.saturating_sub(self.started_unix.get()))
    }

    /// Seconds from the Unix epoch to now: what OpenAI calls `created`.
    pub(crate) fn unix_secs(&self) -> u64 {
        self.unix_micros(self.now()) / 1_000_000
    }
}
