//! A token bucket on the injected clock: it refills without pause, may go into debt, and holds
//! integers, so it cannot drift.

use std::num::NonZeroU64;

use crate::units::{Micros, Time};

/// What a rate of so many units a minute gives, and how many units may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units per minute: requests, or tokens. At most [`Rate::MAX`].
    pub per_minute: NonZeroU64,
    /// Units that may be taken at once after a quiet spell. At most [`Rate::MAX`].
    pub burst: NonZeroU64,
}

impl Rate {
    /// The largest rate and the largest burst: a thousand times what the largest fleets do, and no
    /// sum overflows.
    pub const MAX: u64 = 10_000_000_000;
}

/// Units a tenant may still take, and when there will be more.
///
/// A unit is a minute's worth of microseconds, 60,000,000 parts; a rate of r units a minute then
/// refills exactly r parts each microsecond, and no refill is ever rounded. Time that runs
/// backwards refills nothing. Credit may go below zero:
/// `settle` charges the true cost afterwards, and a tenant in debt waits until it is repaid.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    /// Credit in parts. invariant: credit <= burst
    credit: i128,
    /// When `credit` was true.
    as_of: Time,
}

/// Parts of one unit.
const UNIT: i128 = 60_000_000;

/// What a client is told of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Units per minute that the tenant may take.
    pub limit: u64,
    /// Whole units that would be let in now; none in debt.
    pub remaining: u64,
    /// Time until the bucket is full again.
    pub reset: Micros,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Time) -> Self {
        Self {
            rate,
            credit: parts(rate.burst.get()),
            as_of: now,
        }
    }

    /// A bucket that was full once, and from which these units were taken since, each so long ago,
    /// the longest first.
    pub fn after(rate: Rate, taken: &[(Micros, u64)], now: Time) -> Self {
        let oldest = taken.first().map_or(Micros::ZERO, |(ago, _)| *ago);
        let mut bucket = Self::new(rate, Time::START);
        for (ago, units) in taken {
            let at = Time::from_micros(oldest.get().saturating_sub(ago.get()));
            bucket.refill(at);
            bucket.settle(0, *units);
        }
        bucket.refill(Time::START + oldest);
        bucket.as_of = now;
        bucket
    }

    /// Changes the rate. What has been used stays used: a bucket that was empty is not filled by a
    /// new configuration.
    pub fn change(&mut self, rate: Rate, now: Time) {
        self.refill(now);
        let used = parts(self.rate.burst.get()) - self.credit;
        self.rate = rate;
        self.credit = parts(rate.burst.get()) - used;
        self.invariants();
    }

    /// The most that can be taken at once.
    pub const fn burst(&self) -> u64 {
        self.rate.burst.get()
    }

    /// Takes `units`, or says how long until there are enough.
    ///
    /// What is larger than the whole bucket waits until it is full, and then leaves a debt: it may
    /// wait, never forever.
    ///
    /// # Errors
    /// The time to wait: who comes back after it, and before any other, is let in.
    pub fn take(&mut self, units: u64, now: Time) -> Result<(), Micros> {
        self.refill(now);
        let needed = parts(units.min(self.burst()));
        if self.credit < needed {
            return Err(self.time_for(needed - self.credit));
        }
        self.credit -= parts(units);
        Ok(())
    }

    /// Replaces `reserved` by what it came to: gives back the difference, or charges it, into debt
    /// if need be.
    pub fn settle(&mut self, reserved: u64, actual: u64) {
        let credit = self.credit + parts(reserved) - parts(actual);
        self.credit = credit.min(parts(self.burst()));
        self.invariants();
    }

    /// How full the bucket is.
    pub fn level(&mut self, now: Time) -> Level {
        self.refill(now);
        let whole = self.credit.max(0) / UNIT;
        Level {
            limit: self.rate.per_minute.get(),
            remaining: u64::try_from(whole).unwrap_or(0),
            reset: self.time_for(parts(self.burst()) - self.credit),
        }
    }

    fn refill(&mut self, now: Time) {
        let span = i128::from(now.since(self.as_of).get());
        let grown = span * i128::from(self.rate.per_minute.get());
        self.credit = (self.credit + grown).min(parts(self.burst()));
        self.as_of = self.as_of.max(now);
        self.invariants();
    }

    fn time_for(&self, credit: i128) -> Micros {
        let rate = i128::from(self.rate.per_minute.get());
        let micros = (credit.max(0) + rate - 1) / rate;
        Micros::new(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    fn invariants(&self) {
        debug_assert!(
            self.credit <= parts(self.burst()),
            "a bucket holds more than it can"
        );
    }
}

fn parts(units: u64) -> i128 {
    i128::from(units) * UNIT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_taken_before_is_missing_but_for_what_came_back_since() {
        let secs = Micros::from_secs;
        let now = Time::from_micros(5);
        let mut debt = Bucket::after(rate(60, 100), &[(secs(30), 150)], now);
        assert_eq!(debt.level(now).remaining, 0);
        assert!(debt.take(1, now + secs(20)).is_err());
        assert!(debt.take(1, now + secs(21)).is_ok());
        let long_ago = [(secs(500), 150), (secs(10), 40)];
        let mut some = Bucket::after(rate(60, 100), &long_ago, now);
        assert_eq!(some.level(now).remaining, 70);
        assert_eq!(
            Bucket::after(rate(60, 100), &[], now).level(now).remaining,
            100
        );
    }

    fn rate(per_minute: u64, burst: u64) -> Rate {
        let positive = |n| NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN);
        Rate {
            per_minute: positive(per_minute),
            burst: positive(burst),
        }
    }

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn a_burst_is_let_in_and_the_next_one_told_when_to_come_back() {
        let mut bucket = Bucket::new(rate(60, 3), Time::START);
        for _ in 0..3 {
            assert_eq!(bucket.take(1, Time::START), Ok(()));
        }
        assert_eq!(bucket.take(1, Time::START), Err(Micros::from_secs(1)));
        assert_eq!(bucket.take(1, secs(1)), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_neither_refills_nor_locks_out() {
        let mut bucket = Bucket::new(rate(60, 3), secs(20));
        for _ in 0..3 {
            assert_eq!(bucket.take(1, secs(20)), Ok(()));
        }
        assert!(bucket.take(1, secs(9)).is_err());
        assert_eq!(bucket.take(1, secs(21)), Ok(()));
    }

    #[test]
    fn debt_is_repaid_before_the_next_take() {
        let mut bucket = Bucket::new(rate(60, 100), Time::START);
        bucket.take(50, Time::START).unwrap();
        bucket.settle(50, 130);
        assert_eq!(bucket.level(Time::START).remaining, 0);
        assert_eq!(bucket.take(1, Time::START), Err(Micros::from_secs(31)));
        assert_eq!(bucket.take(1, secs(31)), Ok(()));
    }

    #[test]
    fn what_was_reserved_and_not_used_comes_back() {
        let mut bucket = Bucket::new(rate(10_000, 10_000), Time::START);
        for _ in 0..20 {
            bucket.take(2_012, Time::START).unwrap();
            bucket.settle(2_012, 20);
        }
        assert_eq!(bucket.level(Time::START).remaining, 10_000 - 20 * 20);
    }

    #[test]
    fn what_is_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() {
        let mut bucket = Bucket::new(rate(60, 100), Time::START);
        bucket.take(1, Time::START).unwrap();
        assert_eq!(bucket.take(500, Time::START), Err(Micros::from_secs(1)));
        assert_eq!(bucket.take(500, secs(1)), Ok(()));
        assert_eq!(bucket.take(1, secs(1)), Err(Micros::from_secs(401)));
    }

    #[test]
    fn a_change_of_rate_does_not_refill() {
        let mut bucket = Bucket::new(rate(60, 10), Time::START);
        for _ in 0..10 {
            bucket.take(1, Time::START).unwrap();
        }
        for _ in 0..20 {
            bucket.change(rate(60, 10), Time::START);
        }
        assert!(bucket.take(1, Time::START).is_err());
        bucket.change(rate(60, 12), Time::START);
        assert_eq!(bucket.level(Time::START).remaining, 2);
    }

    proptest! {
        /// Grants over any span are at most rate x span + burst.
        #[test]
        fn grants_never_exceed_rate_and_burst(
            per_minute in 1_u64..100_000,
            burst in 1_u64..1_000,
            gaps in prop::collection::vec(0_u64..3_000_000, 1..400),
        ) {
            let mut bucket = Bucket::new(rate(per_minute, burst), Time::START);
            let mut now = Time::START;
            let mut granted = 0_u64;
            for gap in gaps {
                now = now + Micros::new(gap);
                granted += u64::from(bucket.take(1, now).is_ok());
            }
            let refilled = now.as_micros() * per_minute / 60_000_000;
            prop_assert!(granted <= refilled + burst);
        }

        /// A client that waits as long as it is told is let in.
        #[test]
        fn the_wait_that_is_told_suffices(
            per_minute in 1_u64..100_000,
            burst in 1_u64..50,
            cost in 1_u64..80,
            start in 0_u64..u64::from(u32::MAX),
        ) {
            let start = Time::from_micros(start);
            let mut bucket = Bucket::new(rate(per_minute, burst), start);
            while bucket.take(cost, start).is_ok() {}
            let wait = bucket.take(cost, start).unwrap_err();
            prop_assert_eq!(bucket.take(cost, start + wait), Ok(()));
        }
    }
}
