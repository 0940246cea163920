//! An engine made of numbers: what a batching model server does with its requests, and when.
//!
//! First in, first out into a fixed number of slots. A step gives a token to each sequence whose
//! prompt is computed, and pieces of prompts to the others, within a budget of tokens. KV is held
//! in blocks; where they run out, the newest sequence gives its own up and is computed again.
//!
//! Drive it as the policy is driven: [`Emulated::handle`] with what happened, then
//! [`Emulated::poll_effect`] until there is none, and `handle(Event::Wake, at)` at each
//! [`Emulated::next_wake`]. It has no clock and no chance of its own: the same events at the same
//! times have the same effects. What the tokens say, and over which wire, is not decided here.

mod config;
mod event;
mod memory;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{KvBlocks, Micros, Time, Tokens};

use self::memory::Memory;
use self::sequence::Sequence;

pub use self::config::{Config, ConfigError, Cost, PrefixCache};
pub use self::event::{Counters, Effect, Event, Gauges, Refused, Request, Served, Used};

/// A driver that wakes the engine late loses no more than this: the next step counts from when the
/// last one was to end. One that was held up for longer goes on from where it is, or the engine
/// would do in no time what took nobody's time.
const CATCH_UP: Micros = Micros::from_millis(20);

/// The engine's state. See the module for how to drive it.
#[derive(Clone, Debug)]
pub struct Emulated {
    config: Config,
    /// First in, first out; those that gave their blocks up stand in front.
    waiting: VecDeque<Sequence>,
    /// In the order in which they were let in. invariant: at most `config.slots`
    running: Vec<Sequence>,
    /// When the step under way ends. invariant: `None` only while nothing runs or waits
    step_ends: Option<Time>,
    /// What a step costs, in per cent of what the configuration says.
    cost_percent: u64,
    memory: Memory,
    counters: Counters,
    effects: VecDeque<Effect>,
}

impl Emulated {
    /// An engine with nothing to do.
    ///
    /// # Errors
    /// A number in the configuration is out of range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            memory: Memory::new(config.kv_blocks()),
            config,
            waiting: VecDeque::new(),
            running: Vec::new(),
            step_ends: None,
            cost_percent: 100,
            counters: Counters::default(),
            effects: VecDeque::new(),
        })
    }

    /// Takes a fact. Times never go back.
    pub fn handle(&mut self, event: Event, now: Time) {
        match event {
            Event::Arrived(request) => self.arrive(request),
            Event::Cancelled(id) => self.cancel(id),
            Event::CostChanged { percent } => self.cost_percent = percent.max(1),
            Event::Wake => {
                if let Some(ends) = self.step_ends.filter(|ends| *ends <= now) {
                    self.finish_step();
                    self.begin_step(ends.max(earlier(now, CATCH_UP)));
                }
            }
        }
        if self.step_ends.is_none() {
            self.begin_step(now);
        }
    }

    /// The next thing that the driver is to tell somebody, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to wake it: the end of the step under way.
    pub fn next_wake(&self) -> Option<Time> {
        self.step_ends
    }

    /// What it would tell a scraper now.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_used: self.memory.used(),
            kv_total: self.memory.total(),
        }
    }

    /// What it has done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The numbers it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// It does not hold: a bug of this module.
    pub fn invariants(&self) {
        assert!(
            self.running.len() <= self.config.slots_len(),
            "too many run"
        );
        assert!(
            self.step_ends.is_some() || (self.running.is_empty() && self.waiting.is_empty()),
            "idle with work to do"
        );
        let held = self.running.iter().map(Sequence::blocks);
        let held = held.fold(KvBlocks::ZERO, |all, blocks| all + blocks);
        self.memory.invariants(held);
        let none = self
            .waiting
            .iter()
            .all(|one| one.blocks() == KvBlocks::ZERO);
        assert!(none, "a sequence that waits holds KV");
    }

    fn arrive(&mut self, request: Request) {
        let longest = request.prompt + request.output;
        let refused = if longest > self.config.context || longest.blocks() > self.memory.total() {
            Some(Refused::TooLong)
        } else if request.prompt == Tokens::ZERO || request.output == Tokens::ZERO {
            Some(Refused::Empty)
        } else if self.waiting.len() >= self.config.waiting_max {
            Some(Refused::QueueFull)
        } else {
            None
        };
        if let Some(why) = refused {
            self.counters.refused += 1;
            let id = request.id;
            self.effects.push_back(Effect::Refused { id, why });
            return;
        }
        let prefix = match self.config.prefix_cache {
            PrefixCache::Off => Arc::default(),
            PrefixCache::On => request.prefix,
        };
        self.waiting
            .push_back(Sequence::new(Request { prefix, ..request }));
    }

    /// Its blocks are free at once; the step under way takes as long as it was going to.
    fn cancel(&mut self, id: RequestId) {
        let found = self.running.iter().position(|one| one.id() == id);
        let gone = match found {
            Some(at) => Some(self.running.remove(at)),
            None => {
                let at = self.waiting.iter().position(|one| one.id() == id);
                at.and_then(|at| self.waiting.remove(at))
            }
        };
        let Some(mut gone) = gone else {
            return;
        };
        gone.release(&mut self.memory);
        self.counters.cancelled += 1;
        let used = gone.used();
        self.effects.push_back(Effect::Cancelled { id, used });
    }

    fn begin_step(&mut self, start: Time) {
        let mut budget = self.config.chunk;
        let mut prefill = Tokens::ZERO;
        let preempted = self.go_on(&mut budget, &mut prefill);
        if !preempted {
            self.let_in(&mut budget, &mut prefill);
        }
        let sequences = self.running.iter().filter(|one| one.is_planned()).count();
        let cost = self.config.cost.of(sequences, prefill);
        let cost = Micros::new(cost.get().saturating_mul(self.cost_percent) / 100);
        // At least a microsecond: a driver that is woken at the same time for ever is stuck.
        let cost = cost.max(Micros::new(1));
        self.step_ends = (sequences > 0).then(|| start + cost);
    }

    /// Plans for those that run, the oldest first; whether one had to give its blocks up.
    fn go_on(&mut self, budget: &mut Tokens, prefill: &mut Tokens) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && *budget > Tokens::ZERO {
            while at < self.running.len() && !self.grow(at) {
                self.preempt_newest();
                preempted = true;
            }
            if let Some(sequence) = self.running.get_mut(at) {
                sequence.plan(budget, prefill);
            }
            at += 1;
        }
        preempted
    }

    /// Takes the block that the next token of this sequence needs, if it needs one.
    fn grow(&mut self, at: usize) -> bool {
        let memory = &mut self.memory;
        self.running.get_mut(at).is_none_or(|one| one.grow(memory))
    }

    fn preempt_newest(&mut self) {
        if let Some(mut newest) = self.running.pop() {
            newest.release(&mut self.memory);
            newest.forget();
            self.counters.preempted += 1;
            self.effects
                .push_back(Effect::Preempted { id: newest.id() });
            self.waiting.push_front(newest);
        }
    }

    /// Lets in who waits, in order, until a slot, the budget or the KV is short.
    fn let_in(&mut self, budget: &mut Tokens, prefill: &mut Tokens) {
        while self.running.len() < self.config.slots_len() && *budget > Tokens::ZERO {
            let Some(next) = self.waiting.front_mut() else {
                return;
            };
            let Some(cached) = next.enter(&mut self.memory) else {
                return;
            };
            if self.config.prefix_cache == PrefixCache::On {
                self.counters.prefix_queried += next.known();
            }
            self.counters.prefix_hit += cached;
            next.plan(budget, prefill);
            let id = next.id();
            self.effects.push_back(Effect::Started { id, cached });
            self.running.extend(self.waiting.pop_front());
        }
    }

    fn finish_step(&mut self) {
        self.counters.steps += 1;
        let mut served = Vec::with_capacity(self.running.len());
        for sequence in &mut self.running {
            if !sequence.is_planned() {
                continue;
            }
            let done = sequence.advance(&mut self.memory);
            self.counters.prompt += done.prompt;
            self.counters.recomputed += done.again;
            self.counters.output += done.output;
            served.push(Served {
                id: sequence.id(),
                prompt: done.prompt,
                output: done.output,
            });
        }
        self.effects.push_back(Effect::Stepped { served });
        let (memory, counters) = (&mut self.memory, &mut self.counters);
        let effects = &mut self.effects;
        self.running.retain_mut(|sequence| {
            if sequence.is_over() {
                sequence.release(memory);
                counters.finished += 1;
                let (id, used) = (sequence.id(), sequence.used());
                effects.push_back(Effect::Ended { id, used });
            }
            !sequence.is_over()
        });
        self.step_ends = None;
    }
}

/// `span` before `at`, or the start.
fn earlier(at: Time, span: Micros) -> Time {
    Time::from_micros(at.as_micros().saturating_sub(span.get()))
}
