//! A gate on decisions: a fixed load through the policy and an emulated engine, against what was
//! decided before.
//!
//! Virtual time and integers only, so that every machine decides alike: what differs was changed.

mod world;

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// Raised whenever the load or the meaning of a number changes: older baselines then say nothing.
const VERSION: u32 = 1;

/// What was decided, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decisions {
    /// Of this form.
    pub version: u32,
    /// Stands for every request of the load.
    pub load: String,
    /// Slots of the engine.
    pub slots: u32,
    /// Requests of the load.
    pub requests: u64,
    /// Requests that had all their output.
    pub completed: u64,
    /// Requests that were refused or evicted.
    pub refused: u64,
    /// Times that the engine took a sequence's KV.
    pub preempted: u64,
    /// TTFT of the quiet tenants' requests, in microseconds: half of them had less.
    pub quiet_ttft_p50_us: u64,
    /// 99 % of them had less.
    pub quiet_ttft_p99_us: u64,
    /// Likewise of the others.
    pub others_ttft_p99_us: u64,
    /// Output tokens a second until the last was made.
    pub tokens_per_s: u64,
    /// The requests in the order in which they were dispatched.
    pub dispatched: Vec<u64>,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every decision is as it was.
    Same,
    /// Decisions differ from this one on, and nothing got worse.
    Different {
        /// Counted from 0.
        first: usize,
    },
    /// These got worse.
    Worse(Vec<String>),
    /// The two cannot be compared.
    Invalid(String),
}

/// Plays the load on an engine with so many slots.
///
/// # Errors
/// The run did not come to its end, which says something about the policy too.
pub fn decide(slots: NonZeroU32) -> Result<Decisions, String> {
    world::World::new(slots)?.run()
}

impl Decisions {
    /// This run against what was decided before.
    pub fn against(&self, baseline: &Self) -> Verdict {
        if baseline.version != self.version || baseline.load != self.load {
            return Verdict::Invalid(
                "the baseline is of another load or another version of the gate; look at what \
                 changed, then write it anew with --update"
                    .to_owned(),
            );
        }
        if self.completed == 0 {
            return Verdict::Invalid("no request completed".to_owned());
        }
        let worse = self.worse_than(baseline);
        if !worse.is_empty() {
            return Verdict::Worse(worse);
        }
        let pairs = self.dispatched.iter().zip(&baseline.dispatched);
        let alike = pairs.take_while(|(one, other)| one == other).count();
        if alike == self.dispatched.len() && alike == baseline.dispatched.len() {
            Verdict::Same
        } else {
            Verdict::Different { first: alike }
        }
    }

    fn worse_than(&self, baseline: &Self) -> Vec<String> {
        let mut worse = Vec::new();
        // A tenth more, and a step of the engine: less is chance in who meets which step.
        let most = |before: u64| before + before / 10 + 10_000;
        for (name, now, before) in [
            (
                "quiet TTFT p50",
                self.quiet_ttft_p50_us,
                baseline.quiet_ttft_p50_us,
            ),
            (
                "quiet TTFT p99",
                self.quiet_ttft_p99_us,
                baseline.quiet_ttft_p99_us,
            ),
            (
                "others' TTFT p99",
                self.others_ttft_p99_us,
                baseline.others_ttft_p99_us,
            ),
        ] {
            if now > most(before) {
                worse.push(format!(
                    "{name} is {now} us, was {before}; at most {} passes",
                    most(before)
                ));
            }
        }
        for (name, now, before) in [
            ("refused", self.refused, baseline.refused),
            ("preempted", self.preempted, baseline.preempted),
        ] {
            if now > before {
                worse.push(format!("{now} {name}, were {before}"));
            }
        }
        if self.completed < baseline.completed {
            worse.push(format!(
                "{} completed, were {}",
                self.completed, baseline.completed
            ));
        }
        let least = baseline.tokens_per_s * 98 / 100;
        if self.tokens_per_s < least {
            worse.push(format!(
                "{} tokens/s, were {}; at least {least} passes",
                self.tokens_per_s, baseline.tokens_per_s
            ));
        }
        worse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(slots: u32) -> Decisions {
        decide(NonZeroU32::new(slots).unwrap()).unwrap()
    }

    #[test]
    fn the_same_run_decides_the_same_and_one_with_one_slot_is_seen() {
        let full = decisions(64);
        assert_eq!(full, decisions(64));
        assert_eq!(full.completed, full.requests, "{full:?}");
        assert_eq!(full.dispatched.len() as u64, full.requests);
        assert_eq!(full.against(&full), Verdict::Same);
        let Verdict::Worse(worse) = decisions(1).against(&full) else {
            panic!("an engine with one slot passed");
        };
        assert!(
            worse.iter().any(|what| what.starts_with("quiet TTFT p99")),
            "{worse:?}"
        );
        assert!(
            worse.iter().any(|what| what.contains("tokens/s")),
            "{worse:?}"
        );
    }

    #[test]
    fn each_number_that_gets_worse_is_named_and_one_that_gets_better_is_none() {
        let before = decisions(64);
        let worse = |change: &dyn Fn(&mut Decisions)| {
            let mut now = before.clone();
            change(&mut now);
            now.against(&before)
        };
        let named = |verdict: Verdict, name: &str| match verdict {
            Verdict::Worse(worse) => assert!(worse[0].contains(name), "{worse:?}"),
            Verdict::Same | Verdict::Different { .. } | Verdict::Invalid(_) => panic!("{name}"),
        };
        named(worse(&|now| now.refused += 1), "refused");
        named(worse(&|now| now.preempted += 1), "preempted");
        named(worse(&|now| now.completed -= 1), "completed");
        named(
            worse(&|now| now.tokens_per_s -= now.tokens_per_s / 40),
            "tokens/s",
        );
        named(worse(&|now| now.others_ttft_p99_us *= 2), "others'");
        assert_eq!(worse(&|now| now.quiet_ttft_p99_us /= 2), Verdict::Same);
        let swapped = worse(&|now| now.dispatched.swap(7, 9));
        assert_eq!(swapped, Verdict::Different { first: 7 });
    }

    #[test]
    fn a_baseline_of_another_load_says_nothing() {
        let now = decisions(64);
        let other = Decisions {
            load: "other".to_owned(),
            ..now.clone()
        };
        assert!(matches!(now.against(&other), Verdict::Invalid(_)));
    }

    #[test]
    fn the_committed_decisions_are_those_that_are_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/gate.json");
        let text = std::fs::read_to_string(path).unwrap();
        let baseline: Decisions = serde_json::from_str(&text).unwrap();
        let verdict = decisions(baseline.slots).against(&baseline);
        assert!(
            matches!(verdict, Verdict::Same | Verdict::Different { .. }),
            "{verdict:?}; if that is meant, run `tollgate bench gate --update`"
        );
    }
}
