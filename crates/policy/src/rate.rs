//! How fast a pool works while it works, so that a wait can be told in time and not in tokens.

use crate::units::{Micros, Time, Tokens};

/// Tokens served per busy time, over about the last ten seconds of it.
///
/// Only spans in which there was work count: an idle pool is not a slow one. Both sums are halved
/// when the span outgrows its memory, so old measurements fade without a ring of samples.
#[derive(Clone, Debug, Default)]
pub struct BusyRate {
    tokens: u64,
    span: Micros,
    /// The last report, where work has gone on since.
    last: Option<Time>,
}

impl BusyRate {
    /// Busy time that the measurement reaches back, at most.
    const MEMORY: Micros = Micros::from_secs(10);

    /// Busy time below which there is no measurement to speak of.
    const MIN: Micros = Micros::from_millis(500);

    /// Work begins, or goes on.
    pub fn busy(&mut self, now: Time) {
        self.last.get_or_insert(now);
    }

    /// Work has stopped; what follows until the next `busy` does not count.
    pub fn idle(&mut self) {
        self.last = None;
    }

    /// `tokens` were served since the last report.
    pub fn served(&mut self, tokens: Tokens, now: Time) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        self.tokens = self.tokens.saturating_add(tokens.get());
        self.span += now.since(last);
        if self.span > Self::MEMORY {
            self.tokens /= 2;
            self.span = Micros::new(self.span.get() / 2);
        }
    }

    /// How long `work` takes at this rate; `None` while there is no measurement.
    pub fn time_for(&self, work: Tokens) -> Option<Micros> {
        if self.span < Self::MIN || self.tokens == 0 {
            return None;
        }
        let micros = u128::from(work.get()) * u128::from(self.span.get()) / u128::from(self.tokens);
        Some(Micros::new(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    #[test]
    fn idle_time_does_not_slow_the_pool_down() {
        let mut rate = BusyRate::default();
        rate.busy(at(0));
        rate.served(Tokens::new(100), at(1_000));
        rate.idle();
        rate.busy(at(60_000));
        rate.served(Tokens::new(100), at(61_000));
        assert_eq!(rate.time_for(Tokens::new(100)), Some(Micros::from_secs(1)));
    }

    #[test]
    fn a_pool_that_slows_down_is_soon_known_to_be_slow() {
        let mut rate = BusyRate::default();
        rate.busy(at(0));
        for second in 1..=10 {
            rate.served(Tokens::new(300), at(second * 1_000));
        }
        for second in 11..=30 {
            rate.served(Tokens::new(100), at(second * 1_000));
        }
        let wait = rate.time_for(Tokens::new(1_000)).unwrap();
        assert!(wait > Micros::from_secs(8), "{wait:?} is not yet near 10 s");
    }

    #[test]
    fn nothing_is_said_before_there_is_a_measurement() {
        let mut rate = BusyRate::default();
        assert_eq!(rate.time_for(Tokens::new(1)), None);
        rate.busy(at(0));
        rate.served(Tokens::new(1), at(10));
        assert_eq!(rate.time_for(Tokens::new(1)), None);
    }
}
