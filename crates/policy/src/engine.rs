//! The scheduler of one engine: sequences, their KV blocks, and the next step.
//!
//! Events say what happened, [`Engine::plan`] says what to compute next, [`Engine::poll_effect`]
//! says what became of requests. It owns no queue beyond what was dispatched to it, knows no token
//! ids and no clock, and never decides what a token says: whether a text ended is told to it, how
//! long it may be it counts itself.

use std::collections::VecDeque;

use crate::batch::{self, Limits, Order, View};
use crate::ids::{RequestId, SeqId, TenantId};
use crate::kv::{BlockPool, BlockTable};
use crate::outcome::{EngineEnding, Failure, FinishReason};
use crate::units::{KvBlocks, Tokens};
use crate::usage::Usage;

/// What bounds one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sequences that may have KV at once.
    pub sequences: u32,
    /// Blocks in the pool.
    pub blocks: u32,
    /// Tokens that one step may compute.
    pub step_tokens: Tokens,
    /// Who gets a step's tokens first.
    pub order: Order,
    /// Tokens that one request may use, prompt and output together; never more than the pool holds.
    pub context: Tokens,
    /// Requests that may wait for a sequence id or for blocks.
    pub waiting_max: usize,
}

impl Config {
    /// Tokens that one request may use: its context, or all of the pool where that is smaller.
    pub fn request_tokens(&self) -> Tokens {
        self.context
            .min(KvBlocks::new(u64::from(self.blocks)).slots())
    }
}

/// A bound with which no engine could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No sequence could ever run.
    #[error("sequences is 0; use 1 or more")]
    NoSequences,
    /// A step could not give each sequence its next token.
    #[error("step_tokens is {step_tokens}; use at least the {sequences} of sequences")]
    StepTooSmall {
        /// What it is.
        step_tokens: Tokens,
        /// What it must reach.
        sequences: u32,
    },
    /// No request could have a prompt and an answer.
    #[error("a request may use {0} tokens; use a context and a pool of 2 or more")]
    NoContext(Tokens),
    /// No request could start, as each waits first.
    #[error("waiting_max is 0; use 1 or more")]
    NoWaiting,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A request was dispatched to this engine.
    Start {
        /// Which one; never used before.
        id: RequestId,
        /// Whose.
        tenant: TenantId,
        /// Its prompt.
        prompt: Tokens,
        /// The most it may generate.
        max_output: Tokens,
    },
    /// The step planned last was computed. Sequences that failed in it were told before, by
    /// `Failed`.
    Stepped {
        /// Requests whose text ended with the token sampled in this step, in any order.
        ended: Vec<RequestId>,
    },
    /// A request is no longer wanted; unknown ones are ignored, since an end may cross a cancel.
    Cancel {
        /// Which one.
        id: RequestId,
    },
    /// One request can't go on; unknown ones are ignored.
    Failed {
        /// Which one.
        id: RequestId,
    },
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEffect {
    /// It ended, and its blocks and its sequence id are free.
    Ended {
        /// Which one.
        id: RequestId,
        /// Whose.
        tenant: TenantId,
        /// How.
        ending: EngineEnding,
        /// What it used.
        usage: Usage,
    },
    /// It was never started.
    Refused {
        /// Which one.
        id: RequestId,
        /// Why.
        because: Refused,
    },
}

/// Why a request was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to compute.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("the most output is 0 tokens; ask for at least one")]
    NoOutput,
    /// It would never fit.
    #[error("{asked} tokens asked for, {limit} fit; shorten the prompt")]
    ContextExceeded {
        /// Its prompt and one token of output.
        asked: Tokens,
        /// What one request may use.
        limit: Tokens,
    },
    /// As many requests wait as may.
    #[error("{0} requests wait already; dispatch fewer at once")]
    Full(usize),
}

/// Tokens that one sequence computes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whose tokens.
    pub id: RequestId,
    /// The sequence that holds their KV.
    pub seq: SeqId,
    /// The position of the first one; all before it are computed.
    pub start: Tokens,
    /// How many, at least one.
    pub count: Tokens,
    /// Whether the last one is the last known, so that the next token is sampled after it.
    pub samples: bool,
    /// How many of them are prompt tokens computed for the first time, not again after a
    /// preemption.
    pub fresh: Tokens,
}

/// One step of the backend. To be carried out in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Sequences that are over: their KV and everything else about them goes.
    pub over: Vec<SeqId>,
    /// Sequences that were preempted: their KV goes, what sampling remembers stays.
    pub preempted: Vec<SeqId>,
    /// What to compute; no sequence twice.
    pub work: Vec<Work>,
}

/// The levels of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests that have KV or are about to.
    pub running: usize,
    /// Requests that wait for a sequence id or blocks, preempted ones included.
    pub waiting: usize,
    /// Sequence ids held.
    pub sequences: usize,
    /// Blocks held.
    pub blocks_held: KvBlocks,
    /// Blocks there are.
    pub blocks_total: KvBlocks,
}

/// The scheduler of one engine.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    pool: BlockPool,
    /// A stack. invariant: no id twice, none that a sequence has.
    seats: Vec<SeqId>,
    /// In order of arrival. invariant: each has a sequence id.
    running: Vec<Sequence>,
    /// In order of arrival. invariant: none has blocks; all arrived after those that run.
    waiting: VecDeque<Sequence>,
    /// The step under way, empty between steps.
    in_flight: Vec<Work>,
    /// Sequence ids given back since the last step.
    over: Vec<SeqId>,
    effects: VecDeque<EngineEffect>,
}

#[derive(Debug)]
struct Sequence {
    id: RequestId,
    tenant: TenantId,
    prompt: Tokens,
    /// invariant: less than `max_output`.
    output: Tokens,
    max_output: Tokens,
    /// invariant: less than `known()`.
    computed: Tokens,
    /// The most that was ever computed. invariant: at least `computed`.
    reached: Tokens,
    /// Kept through a preemption: what sampling remembers is filed under it.
    seat: Option<SeqId>,
    table: BlockTable,
}

impl Sequence {
    fn known(&self) -> Tokens {
        self.prompt + self.output
    }

    fn view(&self) -> View {
        View {
            known: self.known(),
            computed: self.computed,
            held: self.table.len(),
            seated: self.seat.is_some(),
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt.min(self.reached),
            cached: Tokens::ZERO,
            output: self.output,
        }
    }

    /// The next `count` tokens of this sequence.
    fn work(&self, seq: SeqId, count: Tokens) -> Work {
        let end = self.computed + count;
        Work {
            id: self.id,
            seq,
            start: self.computed,
            count,
            samples: end == self.known(),
            fresh: self.prompt.min(end) - self.prompt.min(self.reached),
        }
    }
}

impl Engine {
    /// An engine without requests.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for bounds with which none could run.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        if config.sequences == 0 {
            return Err(ConfigError::NoSequences);
        }
        if config.step_tokens < Tokens::new(u64::from(config.sequences)) {
            let Config {
                step_tokens,
                sequences,
                ..
            } = config;
            return Err(ConfigError::StepTooSmall {
                step_tokens,
                sequences,
            });
        }
        if config.request_tokens() < Tokens::new(2) {
            return Err(ConfigError::NoContext(config.request_tokens()));
        }
        if config.waiting_max == 0 {
            return Err(ConfigError::NoWaiting);
        }
        Ok(Self {
            config,
            pool: BlockPool::new(config.blocks),
            seats: (0..config.sequences).rev().map(SeqId::new).collect(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            over: Vec::new(),
            effects: VecDeque::new(),
        })
    }

    /// Takes a fact.
    pub fn handle(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Start {
                id,
                tenant,
                prompt,
                max_output,
            } => match self.admissible(prompt, max_output) {
                Ok(()) => self.waiting.push_back(Sequence {
                    id,
                    tenant,
                    prompt,
                    output: Tokens::ZERO,
                    max_output,
                    computed: Tokens::ZERO,
                    reached: Tokens::ZERO,
                    seat: None,
                    table: BlockTable::default(),
                }),
                Err(because) => self
                    .effects
                    .push_back(EngineEffect::Refused { id, because }),
            },
            EngineEvent::Stepped { ended } => self.stepped(&ended),
            EngineEvent::Cancel { id } => self.end_one(id, EngineEnding::Cancelled),
            EngineEvent::Failed { id } => {
                self.end_one(id, EngineEnding::Failed(Failure::Sequence));
            }
        }
    }

    /// What became of requests, in order; `None` when all was told.
    pub fn poll_effect(&mut self) -> Option<EngineEffect> {
        self.effects.pop_front()
    }

    /// The next step, or `None` when there is nothing to do before the next event.
    ///
    /// # Panics
    ///
    /// When the step before was not answered with [`EngineEvent::Stepped`]: a bug in the driver.
    pub fn plan(&mut self) -> Option<Step> {
        assert!(self.in_flight.is_empty(), "one step at a time");
        let running: Vec<_> = self.running.iter().map(Sequence::view).collect();
        let waiting: Vec<_> = self.waiting.iter().map(Sequence::view).collect();
        let limits = Limits {
            tokens: self.config.step_tokens,
            blocks: self.pool.free(),
            seats: self.seats.len(),
            order: self.config.order,
        };
        let plan = batch::plan(&running, &waiting, limits);
        let mut step = Step {
            over: std::mem::take(&mut self.over),
            ..Step::default()
        };
        for index in &plan.preempt {
            step.preempted.extend(self.running[*index].seat);
            let sequence = &mut self.running[*index];
            sequence.table.release(&mut self.pool);
            sequence.computed = Tokens::ZERO;
        }
        for share in &plan.shares {
            step.work.extend(self.give(share.index, share.count));
        }
        self.withdraw(&plan.preempt);
        for count in plan.admit {
            step.work.extend(self.admit(count));
        }
        self.in_flight.clone_from(&step.work);
        let idle = step.work.is_empty() && step.over.is_empty() && step.preempted.is_empty();
        (!idle).then_some(step)
    }

    /// The levels now.
    pub fn gauges(&self) -> Gauges {
        let seated = self
            .waiting
            .iter()
            .filter(|sequence| sequence.seat.is_some())
            .count();
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            sequences: self.running.len() + seated,
            blocks_held: self.pool.held(),
            blocks_total: self.pool.total(),
        }
    }

    /// Panics unless blocks and sequence ids are conserved and every sequence is in a state it may
    /// be in.
    ///
    /// # Panics
    ///
    /// Only on a bug here.
    pub fn invariants(&self) {
        let all = || self.running.iter().chain(&self.waiting);
        self.pool.invariants(all().map(|sequence| &sequence.table));
        let mut seats: Vec<_> = self.seats.clone();
        seats.extend(all().filter_map(|sequence| sequence.seat));
        seats.sort_unstable();
        assert!(
            seats
                .iter()
                .copied()
                .eq((0..self.config.sequences).map(SeqId::new))
        );
        assert!(self.running.iter().all(|sequence| sequence.seat.is_some()));
        assert!(
            self.waiting
                .iter()
                .all(|sequence| sequence.table.is_empty())
        );
        for sequence in all() {
            assert!(sequence.computed < sequence.known());
            assert!(sequence.computed <= sequence.reached);
            assert!(sequence.computed <= sequence.table.len().slots());
            assert!(sequence.output < sequence.max_output);
            assert!(sequence.known() < self.config.request_tokens());
        }
    }

    fn admissible(&self, prompt: Tokens, max_output: Tokens) -> Result<(), Refused> {
        let asked = prompt + Tokens::new(1);
        let limit = self.config.request_tokens();
        if prompt == Tokens::ZERO {
            return Err(Refused::EmptyPrompt);
        }
        if max_output == Tokens::ZERO {
            return Err(Refused::NoOutput);
        }
        if asked > limit {
            return Err(Refused::ContextExceeded { asked, limit });
        }
        // Preempted sequences wait too, but they were let in before.
        let newcomers = self
            .waiting
            .iter()
            .filter(|sequence| sequence.seat.is_none())
            .count();
        if newcomers >= self.config.waiting_max {
            return Err(Refused::Full(self.config.waiting_max));
        }
        Ok(())
    }

    /// Blocks and work for `count` tokens of a running sequence; the plan made sure that the blocks
    /// are there.
    fn give(&mut self, index: usize, count: Tokens) -> Option<Work> {
        let sequence = &mut self.running[index];
        let grown = sequence
            .table
            .grow(&mut self.pool, sequence.computed + count);
        assert_eq!(grown, Ok(()), "no step is planned over its blocks");
        sequence.seat.map(|seq| sequence.work(seq, count))
    }

    /// Moves preempted sequences, given newest first, to the head of those that wait.
    fn withdraw(&mut self, preempted: &[usize]) {
        for index in preempted {
            let sequence = self.running.remove(*index);
            self.waiting.push_front(sequence);
        }
    }

    /// Starts the sequence that waits longest.
    fn admit(&mut self, count: Tokens) -> Option<Work> {
        let mut sequence = self.waiting.pop_front()?;
        sequence.seat = sequence.seat.or_else(|| self.seats.pop());
        self.running.push(sequence);
        self.give(self.running.len() - 1, count)
    }

    fn stepped(&mut self, ended: &[RequestId]) {
        let limit = self.config.request_tokens();
        for work in std::mem::take(&mut self.in_flight) {
            let mut running = self.running.iter_mut();
            // Gone when it was cancelled or failed since the plan.
            let Some(sequence) = running.find(|sequence| sequence.id == work.id) else {
                continue;
            };
            sequence.computed += work.count;
            sequence.reached = sequence.reached.max(sequence.computed);
            if !work.samples {
                continue;
            }
            sequence.output += Tokens::new(1);
            let full = sequence.output >= sequence.max_output || sequence.known() >= limit;
            if ended.contains(&work.id) {
                self.end_one(work.id, EngineEnding::Finished(FinishReason::Stop));
            } else if full {
                self.end_one(work.id, EngineEnding::Finished(FinishReason::Length));
            }
        }
    }

    fn end_one(&mut self, id: RequestId, ending: EngineEnding) {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let sequence = self.running.remove(index);
            self.end(sequence, ending);
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id)
            && let Some(sequence) = self.waiting.remove(index)
        {
            self.end(sequence, ending);
        }
    }

    /// The one way out.
    fn end(&mut self, mut sequence: Sequence, ending: EngineEnding) {
        sequence.table.release(&mut self.pool);
        self.seats.extend(sequence.seat);
        self.over.extend(sequence.seat);
        let usage = sequence.usage();
        let Sequence { id, tenant, .. } = sequence;
        self.effects.push_back(EngineEffect::Ended {
            id,
            tenant,
            ending,
            usage,
        });
    }
}

#[cfg(test)]
mod tests;
