//! How fast a pool works while it works, so that a wait can be told in time and not in tokens.

use crate::units::{Micros, Time, Tokens};

/// Tokens served per busy time, over about the last ten seconds of it.
///
/// Only spans in which there was work count: an idle pool is not a slow one. Nor is one that had
/// little to do, so what it did while more waited is kept apart, and wins once there is enough of
/// it.
#[derive(Clone, Debug, Default)]
pub struct BusyRate {
    full: Served,
    light: Served,
    /// The last report, where work has gone on since.
    last: Option<Time>,
}

/// How much a pool had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Requests waited for it.
    Full,
    /// None did: it may have served no more because it was not asked for more.
    Light,
}

/// What was served, and in what time. Both sums are halved when the span outgrows its memory, so
/// old measurements fade without a ring of samples.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    tokens: u64,
    span: Micros,
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
    pub fn served(&mut self, tokens: Tokens, load: Load, now: Time) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let served = match load {
            Load::Full => &mut self.full,
            Load::Light => &mut self.light,
        };
        served.add(tokens, now.since(last));
    }

    /// How long `work` takes at this rate; `None` while there is no measurement.
    pub fn time_for(&self, work: Tokens) -> Option<Micros> {
        self.time_when_full(work)
            .or_else(|| self.light.time_for(work))
    }

    /// The same, and `None` also where the pool has only been seen with little to do: it may be
    /// many times faster than that.
    pub fn time_when_full(&self, work: Tokens) -> Option<Micros> {
        self.full.time_for(work)
    }
}

impl Served {
    fn add(&mut self, tokens: Tokens, span: Micros) {
        self.tokens = self.tokens.saturating_add(tokens.get());
        self.span += span;
        if self.span > BusyRate::MEMORY {
            self.tokens /= 2;
            self.span = Micros::new(self.span.get() / 2);
        }
    }

    fn time_for(self, work: Tokens) -> Option<Micros> {
        if self.span < BusyRate::MIN || self.tokens == 0 {
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
        rate.served(Tokens::new(100), Load::Light, at(1_000));
        rate.idle();
        rate.busy(at(60_000));
        rate.served(Tokens::new(100), Load::Light, at(61_000));
        assert_eq!(rate.time_for(Tokens::new(100)), Some(Micros::from_secs(1)));
    }

    #[test]
    fn a_pool_that_slows_down_is_soon_known_to_be_slow() {
        let mut rate = BusyRate::default();
        rate.busy(at(0));
        for second in 1..=10 {
            rate.served(Tokens::new(300), Load::Full, at(second * 1_000));
        }
        for second in 11..=30 {
            rate.served(Tokens::new(100), Load::Full, at(second * 1_000));
        }
        let wait = rate.time_for(Tokens::new(1_000)).unwrap();
        assert!(wait > Micros::from_secs(8), "{wait:?} is not yet near 10 s");
    }

    #[test]
    fn nothing_is_said_before_there_is_a_measurement() {
        let mut rate = BusyRate::default();
        assert_eq!(rate.time_for(Tokens::new(1)), None);
        rate.busy(at(0));
        rate.served(Tokens::new(1), Load::Full, at(10));
        assert_eq!(rate.time_for(Tokens::new(1)), None);
    }
    #[test]
    fn a_pool_that_had_little_to_do_is_not_taken_for_a_slow_one() {
        let mut rate = BusyRate::default();
        rate.busy(at(0));
        rate.served(Tokens::new(50), Load::Light, at(1_000));
        assert_eq!(rate.time_when_full(Tokens::new(100)), None);
        assert_eq!(rate.time_for(Tokens::new(100)), Some(Micros::from_secs(2)));
        rate.served(Tokens::new(10_000), Load::Full, at(2_000));
        let fast = Some(Micros::from_millis(10));
        assert_eq!(rate.time_when_full(Tokens::new(100)), fast);
        assert_eq!(rate.time_for(Tokens::new(100)), fast);
    }
}
