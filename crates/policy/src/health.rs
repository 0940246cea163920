//! Whether a replica takes work, and when one that failed is started again.

use crate::units::{Micros, Time};

/// A replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being started, and has not said that it is up.
    Starting,
    /// It takes work.
    Healthy,
    /// It failed; it is started again at `retry_at`.
    Ejected {
        /// When to start it.
        retry_at: Time,
    },
}

/// The health of one replica: failures in a row lengthen the pause before the next start.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    state: State,
    /// Failures since it last stayed up for [`Health::STEADY`].
    failures: u32,
    /// When it last came up.
    up_since: Time,
}

impl Health {
    /// The pause after the first failure.
    pub const BACKOFF_MIN: Micros = Micros::from_millis(500);

    /// The longest pause: a replica that is mended is back within it.
    pub const BACKOFF_MAX: Micros = Micros::from_secs(30);

    /// Time up after which earlier failures are forgotten.
    pub const STEADY: Micros = Micros::from_secs(60);

    /// A replica that is being started.
    pub const fn starting() -> Self {
        Self {
            state: State::Starting,
            failures: 0,
            up_since: Time::START,
        }
    }

    /// Its state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it takes work.
    pub const fn is_healthy(&self) -> bool {
        matches!(self.state, State::Healthy)
    }

    /// It came up.
    pub const fn up(&mut self, now: Time) {
        self.state = State::Healthy;
        self.up_since = now;
    }

    /// It failed, or failed to start. Said again of one that has been ejected, it is no news.
    pub fn down(&mut self, now: Time) {
        if self.retry_at().is_some() {
            return;
        }
        if self.is_healthy() && now.since(self.up_since) >= Self::STEADY {
            self.failures = 0;
        }
        let pause = Self::BACKOFF_MIN
            .doubled(self.failures)
            .min(Self::BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Ejected {
            retry_at: now + pause,
        };
    }

    /// When it is to be started again, if it is to be.
    pub const fn retry_at(&self) -> Option<Time> {
        match self.state {
            State::Ejected { retry_at } => Some(retry_at),
            State::Starting | State::Healthy => None,
        }
    }

    /// It is being started again.
    pub const fn retried(&mut self) {
        self.state = State::Starting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn failures_in_a_row_lengthen_the_pause_up_to_a_bound() {
        let mut health = Health::starting();
        let mut pauses = vec![];
        for _ in 0..9 {
            health.down(secs(0));
            pauses.push(health.retry_at().unwrap().since(secs(0)).get() / 1_000);
            health.retried();
        }
        assert_eq!(
            pauses,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000
            ]
        );
    }

    #[test]
    fn a_replica_that_stayed_up_is_forgiven() {
        let mut health = Health::starting();
        health.down(secs(0));
        health.down(secs(1));
        health.up(secs(2));
        health.down(secs(100));
        assert_eq!(health.retry_at(), Some(secs(100) + Health::BACKOFF_MIN));
    }

    #[test]
    fn a_replica_that_comes_up_only_to_fail_is_not_forgiven() {
        let mut health = Health::starting();
        health.down(secs(0));
        health.up(secs(1));
        health.down(secs(2));
        assert_eq!(
            health.retry_at(),
            Some(secs(2) + Health::BACKOFF_MIN.doubled(1))
        );
    }
}
