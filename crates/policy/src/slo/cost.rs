//! What a pool costs, measured from what passes by: how long a prompt takes to its first token, a
//! token to the next, and one dispatch to the next while somebody waits.
//!
//! All of them forget. What they say is the state of the pool, and nothing of any one request.

use super::facts::{Aged, Line, PoolFacts};
use crate::units::{Micros, Time};

/// The measured costs of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    pub(super) prefill: Fit,
    pub(super) decode: Fit,
    pub(super) gap: Gap,
}

impl Costs {
    /// A first token came, after so long, when so many prompt tokens had to be computed.
    pub fn prefilled(&mut self, computed: u64, span: Micros, now: Time) {
        self.prefill.record(computed, span, now);
    }

    /// An answer ended, with this mean time between its tokens, beside so many on its replica.
    pub fn decoded(&mut self, sequences: u64, tpot: Micros, now: Time) {
        self.decode.record(sequences, tpot, now);
    }

    /// A request was dispatched that was received at `received`.
    pub fn dispatched(&mut self, received: Time, now: Time) {
        self.gap.dispatched(received, now);
    }

    /// Writes what was measured into the facts of a pool.
    pub fn tell(&self, facts: &mut PoolFacts, now: Time) {
        facts.gap = self.gap.mean(now);
        facts.recent_gap = self.gap.recent(now);
        facts.idle = self.gap.last.map_or(Micros::ZERO, |last| now.since(last));
        facts.prefill = self.prefill.line(now);
        facts.decode = self.decode.line(now);
    }
}

/// A line through what was measured, by least squares over about the last `Fit::MEMORY` of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Sums over what was measured, each times [`Fit::SCALE`] and fading.
    pub(super) n: u128,
    pub(super) x: u128,
    pub(super) y: u128,
    pub(super) xx: u128,
    pub(super) xy: u128,
    pub(super) at: Option<Time>,
}

impl Fit {
    /// Measurements that it reaches back, as an average that forgets.
    const MEMORY: u128 = 128;

    /// What makes fading sums of small numbers exact enough.
    const SCALE: u128 = 1 << 16;

    /// Measurements below which there is no line.
    const MIN: u128 = 4;

    /// The largest units and span that count, so that no sum overflows.
    const MOST: u64 = 1 << 32;

    fn record(&mut self, x: u64, y: Micros, now: Time) {
        let (x, y) = (x.min(Self::MOST), y.get().min(Self::MOST));
        let (x, y) = (u128::from(x), u128::from(y));
        let fade = |sum: &mut u128, one: u128| {
            *sum = *sum - *sum / Self::MEMORY + one * Self::SCALE;
        };
        fade(&mut self.n, 1);
        fade(&mut self.x, x);
        fade(&mut self.y, y);
        fade(&mut self.xx, x * x);
        fade(&mut self.xy, x * y);
        self.at = Some(now);
    }

    /// The line; `None` before there is enough.
    ///
    /// It never falls, and never begins below zero: a pool whose long prompts came in quiet times
    /// would otherwise be told to be faster the more it has to do. Where all that was measured lies
    /// at one place, half of it is taken to be by itself and half by the unit.
    pub(super) fn line(&self, now: Time) -> Option<Line> {
        if self.n < Self::MIN * Self::SCALE - Self::SCALE / 2 {
            return None;
        }
        let steepest = (self.y * 1_000).checked_div(self.x).unwrap_or(0);
        // The sums are bounded such that no product here overflows: 2^24 · 2^88 and 2^56 · 2^56.
        let spread = (self.n * self.xx).saturating_sub(self.x * self.x);
        let rise = (self.n * self.xy).saturating_sub(self.x * self.y);
        let is_spread = spread >= (self.x * self.x) / 64 && spread > 0;
        let slope = if is_spread {
            let slope = match rise.checked_mul(1_000) {
                Some(rise) => rise / spread,
                None => rise / (spread / 1_000).max(1),
            };
            slope.min(steepest)
        } else {
            steepest / 2
        };
        let base = (self.y.saturating_sub(slope * self.x / 1_000)) / self.n.max(1);
        Some(Line {
            base: micros(base),
            per_thousand: micros(slope),
            age: self.at.map_or(Micros::ZERO, |at| now.since(at)),
        })
    }
}

/// From one dispatch to the next, while somebody waits: what a place in the line costs, whatever it
/// is that is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Over some tens of them.
    long: Mean,
    /// Over a few.
    short: Mean,
    last: Option<Time>,
    at: Option<Time>,
}

impl Gap {
    /// Dispatches that the mean reaches back.
    const MEMORY: u64 = 48;

    /// Those of the recent one.
    const RECENT: u64 = 8;

    /// A longer one is somebody's standstill, and no pace.
    const MOST: Micros = Micros::from_secs(600);

    fn dispatched(&mut self, received: Time, now: Time) {
        // One that was there at the last dispatch has waited all the while since.
        if let Some(last) = self.last.filter(|last| received <= *last) {
            let span = now.since(last).min(Self::MOST);
            self.long.record(span, Self::MEMORY);
            self.short.record(span, Self::RECENT);
            self.at = Some(now);
        }
        self.last = Some(now);
    }

    fn mean(&self, now: Time) -> Option<Aged> {
        self.aged(self.long, now)
    }

    fn recent(&self, now: Time) -> Option<Aged> {
        self.aged(self.short, now)
    }

    fn aged(&self, mean: Mean, now: Time) -> Option<Aged> {
        Some(Aged {
            value: mean.value()?,
            age: self.at.map_or(Micros::ZERO, |at| now.since(at)),
        })
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mean {
    /// Sums over what was measured, each times [`Mean::SCALE`] and fading.
    n: u64,
    span: u64,
}

impl Mean {
    const SCALE: u64 = 1 << 8;

    /// Measurements below which there is none.
    const MIN: u64 = 4;

    fn record(&mut self, span: Micros, memory: u64) {
        self.n = self.n - self.n / memory + Self::SCALE;
        self.span = self.span - self.span / memory + span.get() * Self::SCALE;
    }

    fn value(self) -> Option<Micros> {
        let enough = self.n >= Self::MIN * Self::SCALE - Self::SCALE / 2;
        enough.then(|| Micros::new(self.span / self.n.max(1)))
    }
}

fn micros(value: u128) -> Micros {
    Micros::new(u64::try_from(value).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    #[test]
    fn a_line_is_found_and_a_pool_that_slows_down_is_soon_known_to_be_slow() {
        let mut fit = Fit::default();
        for n in 0..500_u64 {
            let x = 100 + (n * 37) % 2_000;
            fit.record(x, Micros::new(5_000 + 80 * x), at(n));
        }
        let line = fit.line(at(500)).unwrap();
        assert!((4_800..5_200).contains(&line.base.get()), "{line:?}");
        assert!(
            (79_500..80_500).contains(&line.per_thousand.get()),
            "{line:?}"
        );
        for n in 0..500_u64 {
            let x = 100 + (n * 37) % 2_000;
            fit.record(x, Micros::new(10_000 + 160 * x), at(500 + n));
        }
        let line = fit.line(at(1_000)).unwrap();
        let slow = line.at(1_000).get();
        assert!((160_000..175_000).contains(&slow), "{line:?}");
    }

    #[test]
    fn measurements_at_one_place_are_half_by_themselves() {
        let mut fit = Fit::default();
        assert_eq!(fit.line(at(0)), None);
        for n in 0..10 {
            fit.record(1_000, Micros::new(10_000), at(n));
        }
        let line = fit.line(at(20)).unwrap();
        assert!(line.at(1_000).get().abs_diff(10_000) < 20, "{line:?}");
        assert!(line.at(2_000).get().abs_diff(15_000) < 20, "{line:?}");
        assert_eq!(line.age, Micros::from_millis(11));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let mut fit = Fit::default();
        for n in 0..2_000 {
            fit.record(u64::MAX >> (n % 40), Micros::new(u64::MAX), at(n));
        }
        assert!(fit.line(at(2_000)).is_some());
    }

    #[test]
    fn a_gap_counts_only_while_somebody_waits() {
        let mut gap = Gap::default();
        for n in 1..=20 {
            gap.dispatched(at(100 * n - 5), at(100 * n));
        }
        assert_eq!(
            gap.mean(at(2_000)),
            None,
            "each came after the last had gone"
        );
        for n in 21..=200 {
            gap.dispatched(at(100 * n - 500), at(100 * n));
        }
        let mean = gap.mean(at(20_000)).unwrap().value;
        assert!(mean.get().abs_diff(100_000) < 1_000, "{mean:?}");
    }
}
