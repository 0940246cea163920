//! A token bucket on the injected clock: it refills without pause and holds integers, so it cannot
//! drift.

use crate::tenant::RequestRate;
use crate::units::{Micros, Time};

/// Requests a tenant may still make, and when there will be more.
///
/// A request is a minute's worth of microseconds, 60,000,000 micro-requests; a rate of r requests a
/// minute then refills exactly r micro-requests each microsecond, and no refill is ever rounded.
/// Time that runs backwards refills nothing.
#[derive(Clone, Debug)]
pub struct RequestBucket {
    /// Micro-requests per microsecond, which is requests per minute.
    rate: u64,
    /// Most credit the bucket holds, in micro-requests.
    full: u64,
    /// Credit in micro-requests. invariant: credit <= full
    credit: u64,
    /// When `credit` was true.
    as_of: Time,
}

/// Micro-requests in one request.
const REQUEST: u64 = 60_000_000;

/// What a client is told of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Requests per minute that the tenant may make.
    pub limit: u64,
    /// Whole requests that would be let in now.
    pub remaining: u64,
    /// Time until the bucket is full again.
    pub reset: Micros,
}

impl RequestBucket {
    /// A full bucket.
    pub fn new(rate: RequestRate, now: Time) -> Self {
        let full = u64::from(rate.burst.get()) * REQUEST;
        Self {
            rate: u64::from(rate.per_minute.get()),
            full,
            credit: full,
            as_of: now,
        }
    }

    /// Takes one request's credit, or says how long until there is enough.
    ///
    /// # Errors
    /// The time to wait: a request that comes back after it, and before any other, is let in.
    pub fn take(&mut self, now: Time) -> Result<(), Micros> {
        self.refill(now);
        match self.credit.checked_sub(REQUEST) {
            Some(rest) => {
                self.credit = rest;
                Ok(())
            }
            None => Err(self.time_for(REQUEST - self.credit)),
        }
    }

    /// Puts back the credit of a request that was let in here and refused further on.
    pub fn give_back(&mut self) {
        self.credit = self.credit.saturating_add(REQUEST).min(self.full);
        self.invariants();
    }

    /// How full the bucket is.
    pub fn level(&mut self, now: Time) -> Level {
        self.refill(now);
        Level {
            limit: self.rate,
            remaining: self.credit / REQUEST,
            reset: self.time_for(self.full - self.credit),
        }
    }

    fn refill(&mut self, now: Time) {
        let grown = now.since(self.as_of).get().saturating_mul(self.rate);
        self.credit = self.credit.saturating_add(grown).min(self.full);
        self.as_of = self.as_of.max(now);
        self.invariants();
    }

    fn time_for(&self, credit: u64) -> Micros {
        Micros::new(credit.div_ceil(self.rate))
    }

    fn invariants(&self) {
        debug_assert!(self.credit <= self.full, "a bucket holds more than it can");
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn rate(per_minute: u32, burst: u32) -> RequestRate {
        let positive = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        RequestRate {
            per_minute: positive(per_minute),
            burst: positive(burst),
        }
    }

    #[test]
    fn a_burst_is_let_in_and_the_next_one_told_when_to_come_back() {
        let mut bucket = RequestBucket::new(rate(60, 3), Time::START);
        for _ in 0..3 {
            assert_eq!(bucket.take(Time::START), Ok(()));
        }
        assert_eq!(bucket.take(Time::START), Err(Micros::from_secs(1)));
        assert_eq!(bucket.take(Time::START + Micros::from_secs(1)), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_neither_refills_nor_locks_out() {
        let mut bucket = RequestBucket::new(rate(60, 3), Time::from_micros(20_000_000));
        for _ in 0..3 {
            assert_eq!(bucket.take(Time::from_micros(20_000_000)), Ok(()));
        }
        assert!(bucket.take(Time::from_micros(9_000_000)).is_err());
        assert_eq!(bucket.take(Time::from_micros(21_000_000)), Ok(()));
    }

    #[test]
    fn credit_given_back_never_exceeds_the_burst() {
        let mut bucket = RequestBucket::new(rate(60, 2), Time::START);
        bucket.give_back();
        assert_eq!(bucket.level(Time::START).remaining, 2);
    }

    proptest! {
        /// Grants over any span are at most rate x span + burst.
        #[test]
        fn grants_never_exceed_rate_and_burst(
            per_minute in 1_u32..100_000,
            burst in 1_u32..1_000,
            gaps in prop::collection::vec(0_u64..3_000_000, 1..400),
        ) {
            let mut bucket = RequestBucket::new(rate(per_minute, burst), Time::START);
            let mut now = Time::START;
            let mut granted = 0_u64;
            for gap in gaps {
                now = now + Micros::new(gap);
                granted += u64::from(bucket.take(now).is_ok());
            }
            let refilled = now.as_micros() * u64::from(per_minute) / REQUEST;
            prop_assert!(granted <= refilled + u64::from(burst));
        }

        /// A client that waits as long as it is told is let in.
        #[test]
        fn the_wait_that_is_told_suffices(
            per_minute in 1_u32..100_000,
            burst in 1_u32..50,
            start in 0_u64..u64::from(u32::MAX),
        ) {
            let start = Time::from_micros(start);
            let mut bucket = RequestBucket::new(rate(per_minute, burst), start);
            while bucket.take(start).is_ok() {}
            let wait = bucket.take(start).unwrap_err();
            prop_assert_eq!(bucket.take(start + wait), Ok(()));
        }
    }
}
