//! The one clock of a load run: monotonic time since its start, wall time only for its record.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_policy::units::Time;

/// Time since the start of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clocks"
    )]
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// A clock that started `ago`: what a run sees whose client was held up from the start.
    #[cfg(test)]
    pub(crate) fn started(ago: Duration) -> Self {
        let now = Self::start();
        Self {
            start: now.start.checked_sub(ago).unwrap_or(now.start),
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

    /// How long it is until `at`; nothing if that has passed.
    pub(crate) fn until(&self, at: Time) -> Duration {
        Duration::from_micros(at.since(self.now()).get())
    }
}

/// Seconds since the Unix epoch, for the record of a run.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clocks"
)]
pub(crate) fn unix_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
