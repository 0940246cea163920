//! How the promises fare: how many bounds were kept, now and at the worst, by class and by tenant;
//! how wide they are; who was refused and why, and what that cost as far as exploring tells.
//!
//! It counts what was promised against what came, and decides nothing.

use std::collections::{BTreeMap, VecDeque};

use super::calibrate::Score;
use super::decide::Because;
use super::facts::Metric;
use crate::ids::TenantId;
use crate::tenant::Class;
use crate::units::{Micros, Time, count};

/// Bounds that were kept, of those that came due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bounds that came due.
    pub due: u64,
    /// Those of them that were kept.
    pub kept: u64,
}

impl Kept {
    fn note(&mut self, missed: bool) {
        self.due += 1;
        self.kept += u64::from(!missed);
    }

    /// Kept of a thousand, where any came due.
    pub fn per_mille(self) -> Option<u64> {
        (self.kept * 1_000).checked_div(self.due)
    }
}

/// How one promise fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fared {
    /// Whose.
    pub tenant: TenantId,
    /// Of which class.
    pub class: Class,
    /// What was promised, in all.
    pub promised: Micros,
    /// What came; `None` where only the miss is certain.
    pub came: Option<Micros>,
    /// Whether it was missed.
    pub missed: bool,
    /// How many of a thousand may be.
    pub alpha: u16,
}

/// What is known of one number's promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// All of them.
    pub all: Kept,
    /// By [`Class::ALL`].
    pub classes: [Kept; 3],
    /// By tenant, of those that there is room for.
    pub tenants: BTreeMap<TenantId, Kept>,
    /// The span of [`Coverage::SPAN`] before the present one.
    pub last: Option<Kept>,
    /// The worst such span with as many as `Coverage::ENOUGH`, as kept of a thousand.
    pub worst: Option<u64>,
    /// Misses on end now, and at the most.
    pub run: (u64, u64),
    /// Pinball loss at the level of each, in microseconds, summed over those whose end was seen.
    pub pinball: u64,
    /// Those whose end was seen.
    pub seen: u64,
    current: (u64, Kept),
    /// Bound over outcome of the last ones.
    widths: VecDeque<Score>,
}

impl Coverage {
    /// What a window is.
    pub const SPAN: Micros = Micros::from_secs(60);

    /// Bounds below which a window says nothing.
    const ENOUGH: u64 = 20;

    /// Tenants that are counted apart.
    const TENANTS_MAX: usize = 1_024;

    /// Widths that a median is of.
    const WIDTHS: usize = 512;

    /// A bound was kept, or missed.
    pub fn note(&mut self, fared: Fared, now: Time) {
        let Fared { missed, .. } = fared;
        let span = now.as_micros() / Self::SPAN.get();
        if span != self.current.0 {
            self.turn(span);
        }
        self.current.1.note(missed);
        self.all.note(missed);
        self.classes[fared.class.place()].note(missed);
        if self.tenants.len() < Self::TENANTS_MAX || self.tenants.contains_key(&fared.tenant) {
            self.tenants.entry(fared.tenant).or_default().note(missed);
        }
        self.run.0 = if missed { self.run.0 + 1 } else { 0 };
        self.run.1 = self.run.1.max(self.run.0);
        if let Some(came) = fared.came {
            self.width(fared.promised, came, fared.alpha);
        }
    }

    /// The bound over what came, of half of the last ones.
    pub fn median_width(&self) -> Option<Score> {
        let mut sorted: Vec<_> = self.widths.iter().copied().collect();
        let middle = sorted.len() / 2;
        (!sorted.is_empty()).then(|| *sorted.select_nth_unstable(middle).1)
    }

    fn turn(&mut self, span: u64) {
        let (_, over) = std::mem::replace(&mut self.current, (span, Kept::default()));
        if over.due > 0 {
            self.last = Some(over);
        }
        if over.due >= Self::ENOUGH {
            let kept = over.per_mille();
            self.worst = [self.worst, kept].into_iter().flatten().min();
        }
    }

    fn width(&mut self, promised: Micros, came: Micros, alpha: u16) {
        self.seen += 1;
        let (keep, alpha) = (1_000 - u64::from(alpha), u64::from(alpha));
        let (over, under) = ((came - promised).get(), (promised - came).get());
        let loss = over
            .saturating_mul(keep)
            .saturating_add(under.saturating_mul(alpha))
            / 1_000;
        self.pinball = self.pinball.saturating_add(loss);
        if self.widths.len() == Self::WIDTHS {
            self.widths.pop_front();
        }
        self.widths.push_back(Score::of(promised, came));
    }
}

/// What a pool's admission came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// By [`Metric::ALL`].
    pub coverage: [Coverage; 3],
    /// Requests let in, by [`Because::ALL`].
    pub admitted: [u64; Because::ALL.len()],
    /// Requests refused at the door, by [`Metric::ALL`].
    pub refused: [u64; 3],
    /// Requests dropped when they left the queue, likewise.
    pub dropped: [u64; 3],
    /// Requests that were let in to learn and whose end was seen, and those that kept every term.
    pub explored: Kept,
    /// Requests that completed, and those that kept every term.
    pub completed: Kept,
}

impl Sight {
    /// How the promises of one number fared.
    pub fn coverage_of(&self, metric: Metric) -> &Coverage {
        &self.coverage[metric.place()]
    }

    /// One request was let in.
    pub fn let_in(&mut self, because: Because) {
        self.admitted[because.place()] += 1;
    }

    /// One was refused, or dropped when it left the queue.
    pub fn turned_away(&mut self, metric: Metric, at_the_door: bool) {
        let counts = if at_the_door {
            &mut self.refused
        } else {
            &mut self.dropped
        };
        counts[metric.place()] += 1;
    }

    /// One that completed kept every term, or did not.
    pub fn ended(&mut self, because: Because, missed: bool) {
        self.completed.note(missed);
        if because == Because::Explored {
            self.explored.note(missed);
        }
    }

    /// Refused requests that would have been in time, as far as those tell that were let in to
    /// learn.
    pub fn regret(&self) -> Option<u64> {
        let refused: u64 = self.refused.iter().sum();
        (refused * self.explored.kept).checked_div(self.explored.due)
    }

    /// Requests that were judged.
    pub fn judged(&self) -> u64 {
        self.admitted.iter().sum::<u64>() + self.refused.iter().sum::<u64>()
    }

    /// Tenants that are counted apart.
    pub fn tenants(&self) -> u64 {
        count(self.coverage[Metric::Ttft.place()].tenants.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fared(promised: u64, came: u64) -> Fared {
        Fared {
            tenant: TenantId::new(3),
            class: Class::Standard,
            promised: Micros::new(promised),
            came: Some(Micros::new(came)),
            missed: came > promised,
            alpha: 100,
        }
    }

    #[test]
    fn the_worst_minute_and_the_longest_run_are_remembered() {
        let mut coverage = Coverage::default();
        let at = |secs| Time::START + Micros::from_secs(secs);
        for n in 0..60 {
            coverage.note(fared(100, if n % 2 == 0 { 50 } else { 150 }), at(n));
        }
        for n in 60..180 {
            coverage.note(fared(100, if n < 63 { 150 } else { 50 }), at(n));
        }
        assert_eq!(coverage.worst, Some(500));
        assert_eq!(coverage.last, Some(Kept { due: 60, kept: 57 }));
        assert_eq!(coverage.run, (0, 4));
        assert_eq!(
            coverage.all,
            Kept {
                due: 180,
                kept: 147
            }
        );
        assert_eq!(coverage.median_width(), Some(Score::new(2_048)));
        // A miss of 50 costs 45, a width of 50 costs 5.
        assert_eq!(coverage.pinball, 33 * 45 + 147 * 5);
    }

    #[test]
    fn regret_is_what_exploring_says_of_those_refused() {
        let mut sight = Sight::default();
        for n in 0..100 {
            sight.turned_away(Metric::Ttft, true);
            if n % 10 == 0 {
                sight.ended(Because::Explored, n % 20 == 0);
            }
        }
        assert_eq!(sight.regret(), Some(50));
    }
}
