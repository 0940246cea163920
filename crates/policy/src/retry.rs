//! How much of the load may be retries: a storm of them is refused before it is served twice.

use crate::units::{Micros, Time};

/// Admitted requests of about the last minute, and those of them that were retries.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    spans: [Span; Self::SPANS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// Which span of time this is, counted from the start.
    number: u64,
    admitted: u64,
    retries: u64,
}

impl RetryBudget {
    /// Per cent of a minute's admitted requests that may be retries.
    const PERCENT: u64 = 20;

    /// Retries a minute that are always let in: among few requests, one retry is a large part and
    /// no storm.
    const ALWAYS: u64 = 10;

    /// What a refused retry is told to wait; jitter makes it up to twice as long.
    pub const WAIT: Micros = Micros::from_secs(30);

    const SPANS: usize = 6;

    const SPAN: Micros = Micros::from_secs(10);

    /// Whether one more retry is within the budget.
    pub fn allows(&self, now: Time) -> bool {
        let oldest = number(now).saturating_sub(Self::SPANS.try_into().unwrap_or(u64::MAX) - 1);
        let recent = self.spans.iter().filter(|span| span.number >= oldest);
        let (admitted, retries) = recent.fold((0, 0), |(admitted, retries), span| {
            (admitted + span.admitted, retries + span.retries)
        });
        retries < Self::ALWAYS || (retries + 1) * 100 <= (admitted + 1) * Self::PERCENT
    }

    /// A request was admitted.
    pub fn admitted(&mut self, is_retry: bool, now: Time) {
        let number = number(now);
        let place = usize::try_from(number).unwrap_or(0) % Self::SPANS;
        let span = &mut self.spans[place];
        if span.number != number {
            *span = Span {
                number,
                ..Span::default()
            };
        }
        span.admitted += 1;
        span.retries += u64::from(is_retry);
    }
}

fn number(now: Time) -> u64 {
    now.as_micros() / RetryBudget::SPAN.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn retries_past_a_fifth_of_a_minutes_requests_are_refused() {
        let mut budget = RetryBudget::default();
        for n in 0..100 {
            budget.admitted(false, secs(n / 2));
        }
        let let_in = (0..100).filter(|_| {
            let allowed = budget.allows(secs(50));
            if allowed {
                budget.admitted(true, secs(50));
            }
            allowed
        });
        assert_eq!(let_in.count(), 25, "25 of 125 are a fifth");
    }

    #[test]
    fn a_few_retries_are_no_storm() {
        let mut budget = RetryBudget::default();
        for _ in 0..10 {
            assert!(budget.allows(secs(0)));
            budget.admitted(true, secs(0));
        }
        assert!(!budget.allows(secs(0)));
    }

    #[test]
    fn what_is_over_a_minute_old_is_forgotten() {
        let mut budget = RetryBudget::default();
        for _ in 0..10 {
            budget.admitted(true, secs(0));
        }
        assert!(!budget.allows(secs(59)));
        assert!(budget.allows(secs(60)));
    }
}
