//! What is known when a request asks to be let in, and the plan rolled forward from it.
//!
//! [`Facts`] is plain data without names or references, so nothing in it can come to know how the
//! request ended; and an estimate is made of the facts alone, so a written row of them can be
//! estimated again, elsewhere and later.

use super::terms::Terms;
use crate::tenant::Class;
use crate::units::{Micros, Tokens};

/// A number that is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Received to first token.
    Ttft,
    /// Mean time between tokens.
    Tpot,
    /// Received to last byte.
    E2e,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ttft, Self::Tpot, Self::E2e];

    /// The number as configuration, metrics and reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::E2e => "e2e",
        }
    }

    /// Where it stands in [`Metric::ALL`].
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Ttft => 0,
            Self::Tpot => 1,
            Self::E2e => 2,
        }
    }
}

/// A measured cost that grows with something: a time by itself, and more for each unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// By itself.
    pub base: Micros,
    /// For a thousand units.
    pub per_thousand: Micros,
    /// How old the newest measurement in it is.
    pub age: Micros,
}

impl Line {
    /// What so many units cost.
    pub fn at(&self, units: u64) -> Micros {
        let more = u128::from(self.per_thousand.get()) * u128::from(units) / 1_000;
        self.base + Micros::new(u64::try_from(more).unwrap_or(u64::MAX))
    }
}

/// A measured time, and how old it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// The time.
    pub value: Micros,
    /// How old the newest measurement in it is.
    pub age: Micros,
}

/// What is known of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFacts {
    /// Requests that run.
    pub running: u32,
    /// Requests that may run at once.
    pub slots: u32,
    /// Replicas that are up.
    pub replicas: u32,
    /// Requests that wait.
    pub waiting: u64,
    /// Per cent of the KV that is free.
    pub kv_free: u8,
    /// Prompt tokens in flight on the replica that it is likely to go to.
    pub prefill_ahead: Tokens,
    /// From one dispatch to the next, while somebody waits.
    pub gap: Option<Aged>,
    /// The same of the last few alone.
    pub recent_gap: Option<Aged>,
    /// Since the last dispatch.
    pub idle: Micros,
    /// How long those that run have run, in the mean.
    pub age: Micros,
    /// How many of them are likely to end within the time that the plan gives to the queue, in
    /// thousandths of a request.
    pub ending: u64,
    /// Dispatch to first token, by the prompt tokens that are computed until then.
    pub prefill: Option<Line>,
    /// The time between two tokens, by the sequences on the replica.
    pub decode: Option<Line>,
}

/// What is known of a request that asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its tenant's promise.
    pub class: Class,
    /// Its prompt.
    pub prompt: Tokens,
    /// Prompt tokens that a replica is likely to have in its cache: looked up, not touched.
    pub cached: Tokens,
    /// The most output it may have.
    pub output_max: Tokens,
    /// How long half of its tenant's answers are at most; the pool's where it has few.
    pub output_median: Tokens,
    /// How long all but the promised few of its tenant's answers are at most.
    pub output_most: Tokens,
    /// Time since it was received.
    pub waited: Micros,
    /// Requests that are served before it, in the fair order.
    pub ahead: u64,
    /// Their prompts and expected outputs.
    pub work_ahead: Tokens,
    /// Whether it goes to a replica at once.
    pub at_once: bool,
    /// Of its pool.
    pub pool: PoolFacts,
}

impl Facts {
    /// How long those ahead take to go one by one. Until it has been seen at which pace they do, it
    /// is taken to be that at which answers of the usual length end where all places are taken.
    pub(super) fn queue(&self) -> Option<Micros> {
        if self.at_once {
            return None;
        }
        let gap = match self.pool.gap {
            Some(gap) => gap.value,
            None => self.pace()?,
        };
        Some(gap.times(self.ahead.saturating_add(1)))
    }

    fn pace(&self) -> Option<Micros> {
        let prefill = self.pool.prefill?.at((self.prompt - self.cached).get());
        let each = prefill + self.tpot()?.times(self.output_median.get());
        let places = u64::from(self.pool.slots.max(1));
        Some(Micros::new(each.get() / places))
    }

    /// The time between two tokens in the batch that it will meet.
    pub(super) fn tpot(&self) -> Option<Micros> {
        self.pool.decode.map(|decode| decode.at(batch(self)))
    }
}

/// What is expected of a request, before any margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// What has passed already, and is certain.
    pub passed: Micros,
    /// From now to its first token.
    pub first: Micros,
    /// Mean time between its tokens.
    pub tpot: Option<Micros>,
    /// From now to its last token.
    pub last: Option<Micros>,
}

impl Estimate {
    /// The plan rolled forward: those ahead go one by one, then its own prompt is computed behind
    /// what is in flight, then it decodes in the batch that it will meet. `None` while nothing has
    /// been measured.
    pub fn of(facts: &Facts) -> Option<Self> {
        let pool = &facts.pool;
        let prefill = pool.prefill?;
        let queue = match (facts.at_once, facts.queue()) {
            (true, _) => Micros::ZERO,
            (false, Some(queue)) => queue,
            // Nobody has been answered yet: what is ahead is computed first.
            (false, None) => {
                let replicas = u64::from(pool.replicas.max(1));
                Micros::new(prefill.at(facts.work_ahead.get()).get() / replicas)
            }
        };
        let computed = pool.prefill_ahead + (facts.prompt - facts.cached);
        let first = queue + prefill.at(computed.get());
        let tpot = facts.tpot();
        let gaps = facts.output_most.get().saturating_sub(1);
        let last = tpot.map(|tpot| first + tpot.times(gaps));
        Some(Self {
            passed: facts.waited,
            first,
            tpot,
            last,
        })
    }

    /// What is still to come of one number.
    pub fn to_come(&self, metric: Metric) -> Option<Micros> {
        match metric {
            Metric::Ttft => Some(self.first),
            Metric::Tpot => self.tpot,
            Metric::E2e => self.last,
        }
    }

    /// Whether all of it is expected to be in time.
    pub(super) fn fits(&self, terms: &Terms) -> bool {
        let late = |metric: &Metric| {
            let both = self.to_come(*metric).zip(terms.of(*metric));
            both.is_some_and(|(to_come, limit)| self.passed(*metric) + to_come > limit)
        };
        !Metric::ALL.iter().any(late)
    }

    /// What of one number has passed already.
    pub const fn passed(&self, metric: Metric) -> Micros {
        match metric {
            Metric::Ttft | Metric::E2e => self.passed,
            Metric::Tpot => Micros::ZERO,
        }
    }
}

/// Sequences beside which it decodes, itself included, on one of the pool's replicas: those that
/// run now and those that go before it, as far as there is room.
fn batch(facts: &Facts) -> u64 {
    let pool = &facts.pool;
    let replicas = u64::from(pool.replicas.max(1));
    let ahead = if facts.at_once { 0 } else { facts.ahead };
    let all = u64::from(pool.running).saturating_add(ahead) + 1;
    all.min(u64::from(pool.slots.max(1))).div_ceil(replicas)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::slo) fn facts() -> Facts {
        Facts {
            class: Class::Standard,
            prompt: Tokens::new(1_000),
            cached: Tokens::ZERO,
            output_max: Tokens::new(1_000),
            output_median: Tokens::new(50),
            output_most: Tokens::new(101),
            waited: Micros::ZERO,
            ahead: 0,
            work_ahead: Tokens::ZERO,
            at_once: true,
            pool: PoolFacts {
                running: 3,
                slots: 8,
                replicas: 1,
                prefill: Some(Line {
                    base: Micros::from_millis(10),
                    per_thousand: Micros::from_millis(100),
                    age: Micros::ZERO,
                }),
                decode: Some(Line {
                    base: Micros::from_millis(6),
                    per_thousand: Micros::from_millis(1_000),
                    age: Micros::ZERO,
                }),
                ..PoolFacts::default()
            },
        }
    }

    #[test]
    fn a_plan_is_queue_then_prefill_then_decode_in_the_batch_it_meets() {
        let at_once = Estimate::of(&facts()).unwrap();
        assert_eq!(at_once.first, Micros::from_millis(110));
        // Four sequences, itself included: 6 ms and 1 ms for each.
        assert_eq!(at_once.tpot, Some(Micros::from_millis(10)));
        assert_eq!(at_once.last, Some(Micros::from_millis(110 + 100 * 10)));
        let waits = Facts {
            at_once: false,
            ahead: 9,
            pool: PoolFacts {
                gap: Some(Aged {
                    value: Micros::from_millis(50),
                    age: Micros::ZERO,
                }),
                prefill_ahead: Tokens::new(500),
                ..facts().pool
            },
            ..facts()
        };
        let waits = Estimate::of(&waits).unwrap();
        assert_eq!(waits.first, Micros::from_millis(10 * 50 + 160));
        assert_eq!(
            waits.tpot,
            Some(Micros::from_millis(14)),
            "the batch is full"
        );
    }

    #[test]
    fn before_anybody_was_seen_to_leave_a_line_its_pace_is_that_of_usual_answers() {
        let waits = Facts {
            at_once: false,
            ahead: 3,
            pool: PoolFacts {
                running: 8,
                ..facts().pool
            },
            ..facts()
        };
        // 110 ms of prefill and 50 tokens of 14 ms each, in eight places; then its own.
        let each = (110 + 50 * 14) * 1_000 / 8;
        let expected = Micros::new(4 * each + 110_000);
        assert_eq!(Estimate::of(&waits).unwrap().first, expected);
    }

    #[test]
    fn what_is_cached_is_not_computed_and_nothing_is_said_before_anything_was_measured() {
        let cached = Facts {
            cached: Tokens::new(900),
            ..facts()
        };
        assert_eq!(
            Estimate::of(&cached).unwrap().first,
            Micros::from_millis(20)
        );
        let unknown = Facts {
            pool: PoolFacts::default(),
            ..facts()
        };
        assert_eq!(Estimate::of(&unknown), None);
    }
}
