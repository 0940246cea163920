//! One engine step: which sequences compute how many tokens, as a pure function of counts.
//!
//! There is no prefill phase and no decode phase (the idea is vLLM's): a sequence has known tokens
//! and computed tokens, and a step lets some catch up, under three limits: free KV blocks, free
//! sequence ids and a token budget. No token ids here, no clock, and no state: what the plan means
//! is carried out by [`crate::engine`].

use crate::units::{KvBlocks, Tokens};

/// Who gets the step's token budget first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Sequences that miss one token, then those that miss more: no answer stalls behind a long
    /// prompt.
    #[default]
    DecodeFirst,
    /// The other way round: first tokens sooner, at the price of gaps in the answers that run.
    PrefillFirst,
}

/// What the planner knows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Prompt and output so far.
    pub known: Tokens,
    /// Those of them whose KV is there. invariant: less than `known`.
    pub computed: Tokens,
    /// Blocks it holds. invariant: they have room for `computed`.
    pub held: KvBlocks,
    /// Whether it has a sequence id already.
    pub seated: bool,
}

impl View {
    fn missing(&self) -> Tokens {
        self.known - self.computed
    }
}

/// The limits of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that the step may compute.
    pub tokens: Tokens,
    /// Free blocks.
    pub blocks: KvBlocks,
    /// Free sequence ids.
    pub seats: usize,
    /// Who goes first.
    pub order: Order,
}

/// How many tokens one sequence computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its place among the running sequences.
    pub index: usize,
    /// At least one token.
    pub count: Tokens,
}

/// What one step does. To be carried out in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Running sequences that give back all their blocks, the newest first.
    pub preempt: Vec<usize>,
    /// Running sequences that compute something, in the order of the batch.
    pub shares: Vec<Share>,
    /// How many tokens each of the first waiting sequences computes; they run from now on.
    pub admit: Vec<Tokens>,
}

/// Plans one step. `running` and `waiting` are in order of arrival.
///
/// A running sequence without room takes the blocks of a newer one, so the oldest always goes on
/// and the engine as a whole never stands still; the newest waits instead, holding what it has. A
/// waiting sequence never takes blocks from anyone: it starts when its known tokens fit beside what
/// the running ones are still owed.
pub fn plan(running: &[View], waiting: &[View], limits: Limits) -> Plan {
    let mut planner = Planner {
        running,
        held: running.iter().map(|view| view.held).collect(),
        counts: vec![Tokens::ZERO; running.len()],
        budget: limits.tokens,
        free: limits.blocks,
        plan: Plan::default(),
    };
    let decodes = |view: &View| view.missing() == Tokens::new(1);
    match limits.order {
        Order::DecodeFirst => {
            planner.catch_up(decodes);
            planner.catch_up(|view| !decodes(view));
            planner.admit(waiting, limits.seats);
        }
        Order::PrefillFirst => {
            planner.catch_up(|view| !decodes(view));
            planner.admit(waiting, limits.seats);
            planner.catch_up(decodes);
        }
    }
    planner.finish()
}

struct Planner<'a> {
    running: &'a [View],
    /// Blocks each running sequence will hold, by index.
    held: Vec<KvBlocks>,
    /// Tokens each running sequence will compute, by index.
    counts: Vec<Tokens>,
    budget: Tokens,
    free: KvBlocks,
    plan: Plan,
}

impl Planner<'_> {
    fn catch_up(&mut self, which: impl Fn(&View) -> bool) {
        let running = self.running;
        for (index, view) in running.iter().enumerate() {
            if which(view) && !self.plan.preempt.contains(&index) {
                self.share(index, view);
            }
        }
    }

    /// Gives the sequence at `index` what the budget and the free blocks allow; if that is nothing
    /// for want of blocks, takes them from newer sequences.
    fn share(&mut self, index: usize, view: &View) {
        if self.budget == Tokens::ZERO {
            return;
        }
        let mut count = self.room(index, view);
        while count == Tokens::ZERO {
            let Some(victim) = self.victim(index) else {
                return;
            };
            self.preempt(victim);
            count = self.room(index, view);
        }
        let grown = (view.computed + count).blocks() - self.held[index];
        self.free -= grown;
        self.held[index] += grown;
        self.counts[index] = count;
        self.budget = self.budget - count;
    }

    fn room(&self, index: usize, view: &View) -> Tokens {
        let slots = (self.held[index] + self.free).slots() - view.computed;
        view.missing().min(self.budget).min(slots)
    }

    /// The newest sequence that has blocks to give and is newer than the one at `index`.
    fn victim(&self, index: usize) -> Option<usize> {
        (index + 1..self.running.len())
            .rev()
            .find(|newer| self.held[*newer] > KvBlocks::ZERO)
    }

    fn preempt(&mut self, victim: usize) {
        self.free += self.held[victim];
        self.held[victim] = KvBlocks::ZERO;
        self.budget += self.counts[victim];
        self.counts[victim] = Tokens::ZERO;
        self.plan.preempt.push(victim);
    }

    /// Starts waiting sequences in order, up to the first that has to wait longer.
    fn admit(&mut self, waiting: &[View], mut seats: usize) {
        // What was just taken from one sequence is not for another that waits.
        if !self.plan.preempt.is_empty() {
            return;
        }
        let mut owed = KvBlocks::ZERO;
        for (view, held) in self.running.iter().zip(&self.held) {
            owed += view.known.blocks() - *held;
        }
        // One block for each sequence that runs, or the newcomer would be preempted by the next
        // token of another.
        let mut headroom = KvBlocks::new(u64::try_from(self.running.len()).unwrap_or(u64::MAX));
        for view in waiting {
            let needed = view.known.blocks();
            if self.budget == Tokens::ZERO || needed + owed + headroom > self.free {
                return;
            }
            if !view.seated {
                let Some(left) = seats.checked_sub(1) else {
                    return;
                };
                seats = left;
            }
            let count = view.missing().min(self.budget);
            let grown = (view.computed + count).blocks() - view.held;
            self.budget = self.budget - count;
            self.free -= grown;
            owed += needed - grown;
            headroom += KvBlocks::new(1);
            self.plan.admit.push(count);
        }
    }

    fn finish(mut self) -> Plan {
        let shares = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > Tokens::ZERO);
        self.plan.shares = shares
            .map(|(index, count)| Share {
                index,
                count: *count,
            })
            .collect();
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: Limits = Limits {
        tokens: Tokens::new(512),
        blocks: KvBlocks::new(1_000),
        seats: 8,
        order: Order::DecodeFirst,
    };

    fn running(known: u64, computed: u64) -> View {
        let (known, computed) = (Tokens::new(known), Tokens::new(computed));
        View {
            known,
            computed,
            held: computed.blocks(),
            seated: true,
        }
    }

    fn waiting(known: u64) -> View {
        View {
            seated: false,
            ..running(known, 0)
        }
    }

    fn share(index: usize, count: u64) -> Share {
        Share {
            index,
            count: Tokens::new(count),
        }
    }

    #[test]
    fn a_long_prompt_gets_what_the_decodes_leave() {
        let plan = plan(
            &[running(2_000, 0), running(31, 30), running(9, 8)],
            &[],
            ROOMY,
        );
        assert_eq!(plan.shares, [share(0, 510), share(1, 1), share(2, 1)]);
    }

    #[test]
    fn prefill_first_may_leave_the_decodes_nothing() {
        let limits = Limits {
            order: Order::PrefillFirst,
            ..ROOMY
        };
        let plan = plan(&[running(31, 30)], &[waiting(600)], limits);
        assert_eq!((plan.shares, plan.admit), (vec![], vec![Tokens::new(512)]));
    }

    #[test]
    fn prompts_are_admitted_in_order_until_the_budget_is_spent() {
        let plan = plan(&[], &[waiting(500), waiting(100), waiting(3)], ROOMY);
        assert_eq!(plan.admit, [Tokens::new(500), Tokens::new(12)]);
    }

    #[test]
    fn nobody_is_admitted_without_a_sequence_id() {
        let plan = plan(&[], &[waiting(5), waiting(5)], Limits { seats: 1, ..ROOMY });
        assert_eq!(plan.admit, [Tokens::new(5)]);
    }

    #[test]
    fn a_sequence_that_kept_its_id_needs_no_other() {
        let plan = plan(
            &[],
            &[running(5, 0), waiting(5)],
            Limits { seats: 0, ..ROOMY },
        );
        assert_eq!(plan.admit, [Tokens::new(5)]);
    }

    #[test]
    fn a_decode_without_a_block_takes_those_of_the_newest() {
        let limits = Limits {
            blocks: KvBlocks::ZERO,
            ..ROOMY
        };
        let plan = plan(
            &[running(17, 16), running(20, 19), running(33, 32)],
            &[],
            limits,
        );
        assert_eq!(plan.preempt, [2]);
        assert_eq!(plan.shares, [share(0, 1), share(1, 1)]);
    }

    #[test]
    fn the_newest_without_a_block_waits_and_keeps_what_it_has() {
        let limits = Limits {
            blocks: KvBlocks::ZERO,
            ..ROOMY
        };
        let plan = plan(&[running(20, 19), running(17, 16)], &[], limits);
        assert_eq!((plan.preempt, plan.shares), (vec![], vec![share(0, 1)]));
    }

    #[test]
    fn work_already_given_to_a_victim_is_taken_back() {
        let limits = Limits {
            tokens: Tokens::new(2),
            blocks: KvBlocks::ZERO,
            order: Order::DecodeFirst,
            seats: 0,
        };
        // The newer one decodes first; then the older one's prompt finds no block.
        let plan = plan(&[running(40, 16), running(20, 19)], &[], limits);
        assert_eq!(plan.preempt, [1]);
        assert_eq!(plan.shares, [share(0, 2)]);
    }

    #[test]
    fn a_chunk_shrinks_to_the_blocks_there_are_before_anyone_is_preempted() {
        let limits = Limits {
            blocks: KvBlocks::new(1),
            ..ROOMY
        };
        let plan = plan(&[running(100, 8), running(20, 19)], &[], limits);
        assert_eq!(plan.preempt, Vec::<usize>::new());
        assert_eq!(plan.shares, [share(0, 24), share(1, 1)]);
    }

    #[test]
    fn a_newcomer_waits_until_its_whole_prompt_fits_beside_what_others_are_owed() {
        // The runner is owed 3 blocks more and one to grow into; 5 are free, so one is left.
        let view = View {
            held: KvBlocks::new(1),
            ..running(64, 15)
        };
        let limits = Limits {
            tokens: Tokens::new(1),
            blocks: KvBlocks::new(5),
            ..ROOMY
        };
        let roomy = Limits {
            tokens: Tokens::new(20),
            ..limits
        };
        assert_eq!(plan(&[view], &[waiting(17)], limits).admit, []);
        assert_eq!(plan(&[view], &[waiting(17)], roomy).admit, []);
        let done = View {
            computed: Tokens::new(63),
            held: KvBlocks::new(4),
            ..view
        };
        assert_eq!(
            plan(&[done], &[waiting(17)], roomy).admit,
            [Tokens::new(17)]
        );
    }

    #[test]
    fn a_lone_sequence_may_use_the_whole_pool() {
        let limits = Limits {
            blocks: KvBlocks::new(4),
            ..ROOMY
        };
        assert_eq!(plan(&[], &[waiting(64)], limits).admit, [Tokens::new(64)]);
    }
}
