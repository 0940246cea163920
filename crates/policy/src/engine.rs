//! The scheduler of one engine: sequences, their KV blocks, and the next step.
//!
//! Events say what happened, [`Engine::plan`] says what to compute next, [`Engine::poll_effect`]
//! says what became of requests. It owns no queue beyond what was dispatched to it, knows no clock,
//! and never decides what a token says: whether a text ended is told to it, how long it may be it
//! counts itself.

mod config;
mod event;
mod sequence;
mod waiting;

use std::collections::{BTreeMap, VecDeque};

pub use self::config::{CacheConfig, Config, ConfigError, Reservation};
pub use self::event::{
    EngineEffect, EngineEvent, Gauges, Refused, Sampled, Start, Step, Totals, Work,
};
use self::sequence::Sequence;
use crate::batch::{self, Hold, Limits, Plan};
use crate::ids::{RequestId, SeqId, TenantId};
use crate::kv::{BlockPool, KvOp};
use crate::outcome::{EngineEnding, Failure, FinishReason};
use crate::pace::Inflow;
use crate::prefix::{Computed, PrefixCache, Space, Token};
use crate::units::{KvBlocks, Service, Tokens};
use crate::usage::Weights;

/// The scheduler of one engine.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    pool: BlockPool,
    cache: PrefixCache,
    /// Prefixes that any tenant may share, in whole blocks.
    published: Vec<Vec<Token>>,
    /// A stack. invariant: no id twice, none that a sequence has.
    seats: Vec<SeqId>,
    /// In the order in which they started. invariant: each has a sequence id.
    running: Vec<Sequence>,
    /// Preempted ones first, then those that gave up their place, in the order in which they did,
    /// then the others in order of arrival. invariant: none has blocks.
    waiting: VecDeque<Sequence>,
    /// What each tenant was served, by weight. invariant: only tenants with sequences here.
    served: BTreeMap<TenantId, Service>,
    /// Whether no sequence ended since nothing ran: then a batch may still be filled.
    filling: bool,
    /// The step under way, empty between steps.
    in_flight: Vec<Work>,
    /// What becomes of KV before the next step.
    ops: Vec<KvOp>,
    effects: VecDeque<EngineEffect>,
    totals: Totals,
    inflow: Inflow,
    /// How many of those that wait nothing kept but the pace, or a place that they gave up, in the
    /// last plan.
    delayed: usize,
}

impl Engine {
    /// An engine without requests.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for bounds with which none could run.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let owners = (config.seats()..config.sequence_ids()).rev();
        Ok(Self {
            config,
            pool: BlockPool::new(config.blocks),
            cache: PrefixCache::new(owners.map(SeqId::new), config.cache.tenant_blocks),
            published: Vec::new(),
            seats: (0..config.seats()).rev().map(SeqId::new).collect(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            served: BTreeMap::new(),
            filling: true,
            in_flight: Vec::new(),
            ops: Vec::new(),
            effects: VecDeque::new(),
            totals: Totals::default(),
            inflow: Inflow::default(),
            delayed: 0,
        })
    }

    /// Lets all tenants share the KV of this prefix, in whole blocks, once somebody computed it.
    pub fn publish(&mut self, mut prefix: Vec<Token>) {
        let whole = Tokens::of_len(&prefix).get() / KvBlocks::SLOTS.get();
        let slots = KvBlocks::new(whole).slots().get();
        prefix.truncate(usize::try_from(slots).unwrap_or(usize::MAX));
        if !prefix.is_empty() {
            self.published.push(prefix);
        }
    }

    /// Takes a fact.
    pub fn handle(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Start(start) => self.start(start),
            EngineEvent::Stepped { sampled } => self.stepped(&sampled),
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

    /// How many tokens of this prompt a request of this tenant would find computed. Changes
    /// nothing.
    pub fn matched(&self, tenant: TenantId, prompt: &[Token]) -> Tokens {
        self.cache.matched(tenant, prompt)
    }

    /// Prompt and output of a request so far; nothing for one that is unknown.
    pub fn tokens(&self, id: RequestId) -> &[Token] {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|sequence| sequence.id == id)
            .map_or(&[], |sequence| &sequence.tokens)
    }

    /// The next step, or `None` when there is nothing to do before the next event.
    ///
    /// # Panics
    ///
    /// When the step before was not answered with [`EngineEvent::Stepped`]: a bug in the driver.
    pub fn plan(&mut self) -> Option<Step> {
        assert!(self.in_flight.is_empty(), "one step at a time");
        self.filling |= self.running.is_empty();
        let others = self.has_several_tenants();
        let view = |one| self.view(one, others);
        let running: Vec<_> = self.running.iter().map(view).collect();
        let waiting = self.candidates(others);
        let limits = Limits {
            tokens: self.config.step_tokens,
            chunk: self.config.chunk,
            pace: self.config.paced.then(|| self.inflow.pace()),
            blocks: self.pool.free() + self.pool.idle(),
            seats: self.seats.len(),
            places: self.places(),
            order: self.config.order,
            scheduler: self.config.scheduler,
            joinable: self.filling,
        };
        let plan = batch::plan(&running, &waiting, limits);
        // Who gives up its place in this step waits for one after it.
        self.delayed = plan.delayed + usize::from(plan.host.is_some());
        for (candidate, sequence) in waiting.iter().zip(&mut self.waiting) {
            sequence.held += u32::from(candidate.hold == Hold::Running);
            sequence.gave = sequence.gave.map(|plans| plans.saturating_add(1));
        }
        let work = self.carry_out(&plan);
        self.in_flight.clone_from(&work);
        let step = Step {
            ops: std::mem::take(&mut self.ops),
            work,
        };
        let idle = step.work.is_empty() && step.ops.is_empty();
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
            delayed: self.delayed.min(self.waiting.len()),
            sequences: self.running.len() + seated,
            blocks_held: self.pool.held(),
            blocks_idle: self.pool.idle(),
            blocks_total: self.pool.total(),
            prefixes: self.cache.prefixes(),
            totals: self.totals,
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
        let tables = all().map(|sequence| &sequence.table);
        self.pool.invariants(tables, self.cache.cached());
        let prefixes = usize::try_from(self.config.cache.prefixes).unwrap_or(usize::MAX);
        self.cache.invariants(prefixes);
        let mut seats: Vec<_> = self.seats.clone();
        seats.extend(all().filter_map(|sequence| sequence.seat));
        seats.sort_unstable();
        assert!(
            seats
                .iter()
                .copied()
                .eq((0..self.config.seats()).map(SeqId::new))
        );
        assert!(self.running.len() <= usize::try_from(self.config.sequences).unwrap_or(0));
        assert!(self.running.iter().all(|sequence| sequence.seat.is_some()));
        assert!(self.running.iter().all(|sequence| sequence.gave.is_none()));
        assert!(
            self.waiting
                .iter()
                .all(|sequence| sequence.table.is_empty())
        );
        assert!(self.served.len() <= self.running.len() + self.waiting.len());
        for sequence in all() {
            assert!(sequence.computed < sequence.known());
            assert!(sequence.computed <= sequence.reached);
            assert!(sequence.computed <= sequence.table.len().slots());
            assert!(sequence.output() < sequence.max_output);
            assert!(sequence.known() < self.config.request_tokens());
            assert!(sequence.cached < sequence.prompt);
            assert!(sequence.preemptions <= sequence::PREEMPTIONS_MAX);
            assert!(sequence.passed <= batch::PASSES_MAX);
            assert!(self.served.contains_key(&sequence.tenant));
        }
    }

    fn start(&mut self, start: Start) {
        if let Err(because) = self.admissible(&start) {
            let id = start.id;
            self.effects
                .push_back(EngineEffect::Refused { id, because });
            return;
        }
        let served = self.served.entry(start.tenant).or_default();
        *served = start.served.max(*served);
        self.waiting.push_back(Sequence::new(start));
    }

    fn admissible(&self, start: &Start) -> Result<(), Refused> {
        let asked = Tokens::of_len(&start.prompt) + Tokens::new(1);
        let limit = self.config.request_tokens();
        if start.prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if start.max_output == Tokens::ZERO {
            return Err(Refused::NoOutput);
        }
        if asked > limit {
            return Err(Refused::ContextExceeded { asked, limit });
        }
        // Preempted sequences wait too, but they were let in before; and so were those that came
        // with another.
        let newcomers = self
            .waiting
            .iter()
            .filter(|sequence| sequence.seat.is_none() && sequence.elder.is_none())
            .count();
        if newcomers >= self.config.waiting_max && start.elder.is_none() {
            return Err(Refused::Full(self.config.waiting_max));
        }
        Ok(())
    }

    /// Whether more than one tenant has work here.
    fn has_several_tenants(&self) -> bool {
        let mut tenants = self
            .running
            .iter()
            .chain(&self.waiting)
            .map(|one| one.tenant);
        let first = tenants.next();
        tenants.any(|tenant| Some(tenant) != first)
    }

    /// Sequences that may run beside those that do.
    fn places(&self) -> usize {
        let most = usize::try_from(self.config.sequences).unwrap_or(usize::MAX);
        most.saturating_sub(self.running.len())
    }

    /// What a tenant was served, and how many of its sequences run.
    fn standing(&self, tenant: TenantId) -> (Service, usize) {
        let served = self.served.get(&tenant).copied();
        let own = self.running.iter().filter(|one| one.tenant == tenant);
        (served.unwrap_or_default(), own.count())
    }

    fn view(&self, sequence: &Sequence, others: bool) -> batch::View {
        let standing = self.standing(sequence.tenant);
        sequence.view(&self.config, &self.pool, (standing, others))
    }

    fn carry_out(&mut self, plan: &Plan) -> Vec<Work> {
        for index in &plan.passed {
            self.waiting[*index].passed += 1;
        }
        // What newcomers share is theirs before anything can be evicted for others.
        let mut newcomers = Vec::with_capacity(plan.admit.len());
        for share in plan.admit.iter().rev() {
            newcomers.extend(self.waiting.remove(share.index));
        }
        newcomers.reverse();
        for newcomer in &mut newcomers {
            self.adopt(newcomer);
        }
        for index in &plan.preempt {
            self.preempt(*index, plan.host == Some(*index));
        }
        let mut work = Vec::with_capacity(plan.shares.len() + plan.admit.len());
        for share in &plan.shares {
            work.extend(self.give(share.index, share.count));
        }
        self.withdraw(&plan.preempt);
        for (newcomer, share) in newcomers.into_iter().zip(&plan.admit) {
            self.running.push(newcomer);
            work.extend(self.give(self.running.len() - 1, share.count));
        }
        work
    }

    /// Gives a sequence that starts its id, and what there is of its KV.
    fn adopt(&mut self, sequence: &mut Sequence) {
        sequence.seat = sequence.seat.or_else(|| self.seats.pop());
        let Some(seat) = sequence.seat else { return };
        if sequence.reached == Tokens::ZERO {
            self.totals.prompt += sequence.prompt;
        }
        let before = sequence.cached;
        if let Some(elder) = self.prefilled_elder(sequence) {
            let elder = &self.running[elder];
            let count = elder.prompt - Tokens::new(1);
            sequence.table = elder.table.fork(&mut self.pool, count);
            self.copy(elder.seat, seat, count);
            sequence.reuse(count);
        } else if let Some(found) = self.cache.claim(sequence.tenant, &sequence.tokens) {
            sequence.table.share(&mut self.pool, &found.blocks);
            let count = sequence.table.len().slots();
            self.copy(Some(found.owner), seat, count);
            sequence.reuse(count);
        }
        sequence.take_place();
        self.totals.reused += sequence.cached - before;
    }

    fn copy(&mut self, from: Option<SeqId>, to: SeqId, end: Tokens) {
        let start = Tokens::ZERO;
        self.ops.extend(from.map(|from| KvOp::Copy {
            from,
            to,
            start,
            end,
        }));
    }

    /// Takes a running sequence's blocks. What the cache keeps of them, it may use again. A host
    /// gives up its place with them.
    fn preempt(&mut self, index: usize, is_host: bool) {
        self.remember(index);
        self.totals.preemptions += 1;
        let sequence = &mut self.running[index];
        sequence.table.release(&mut self.pool);
        sequence.computed = Tokens::ZERO;
        match is_host {
            true => sequence.give_place(),
            false => sequence.preemptions += 1,
        }
        self.totals.places_given += u64::from(is_host);
        let from = Tokens::ZERO;
        self.ops
            .extend(sequence.seat.map(|seq| KvOp::Trim { seq, from }));
    }

    /// Blocks and work for `count` tokens of a running sequence; the plan made sure that the blocks
    /// are there, or can be evicted.
    fn give(&mut self, index: usize, count: Tokens) -> Option<Work> {
        let sequence = &mut self.running[index];
        let (from, to) = (sequence.computed, sequence.computed + count);
        let missing = sequence.table.missing(&self.pool, from, to);
        self.cache.evict(missing, &mut self.pool, &mut self.ops);
        let written = sequence.table.write(&mut self.pool, from, to);
        assert!(written.is_ok(), "no step is planned over its blocks");
        sequence.seat.map(|seq| sequence.work(seq, count))
    }

    /// Moves preempted sequences to the head of those that wait, and one that gave up its place
    /// behind those that did before it.
    fn withdraw(&mut self, preempted: &[usize]) {
        let mut preempted = preempted.to_vec();
        preempted.sort_unstable();
        for index in preempted.into_iter().rev() {
            let sequence = self.running.remove(index);
            let seated = |one: &Sequence| one.seat.is_some();
            let place = match sequence.gave {
                Some(_) => self.waiting.partition_point(seated),
                None => 0,
            };
            self.waiting.insert(place, sequence);
        }
    }

    fn stepped(&mut self, sampled: &[Sampled]) {
        let work = std::mem::take(&mut self.in_flight);
        let prefilled = work.iter().map(|work| work.fresh);
        self.inflow
            .record(prefilled.fold(Tokens::ZERO, |sum, one| sum + one));
        for work in work {
            let mut running = self.running.iter();
            // Gone when it was cancelled or failed since the plan.
            let Some(index) = running.position(|sequence| sequence.id == work.id) else {
                continue;
            };
            let sampled = sampled.iter().find(|one| one.id == work.id);
            self.advance(index, work, sampled.copied());
        }
    }

    fn advance(&mut self, index: usize, work: Work, sampled: Option<Sampled>) {
        assert_eq!(
            sampled.is_some(),
            work.samples,
            "a sequence samples when it is to"
        );
        let weights = Weights::default();
        let sequence = &mut self.running[index];
        let was_in_prefill = sequence.is_in_prefill();
        sequence.computed += work.count;
        sequence.reached = sequence.reached.max(sequence.computed);
        let (id, tenant) = (sequence.id, sequence.tenant);
        let made = sampled.map_or(0, |_| weights.output);
        let served = self.served.entry(tenant).or_default();
        *served += work.fresh.weighted(weights.input) + Service::new(made);
        if was_in_prefill {
            self.remember(index);
        }
        let Some(sampled) = sampled else { return };
        let sequence = &mut self.running[index];
        sequence.tokens.push(sampled.token);
        let limit = self.config.request_tokens();
        let full = sequence.output() >= sequence.max_output || sequence.known() >= limit;
        if sampled.ends {
            self.end_one(id, EngineEnding::Finished(FinishReason::Stop));
        } else if full {
            self.end_one(id, EngineEnding::Finished(FinishReason::Length));
        }
    }

    /// Enters what a running sequence computed into the cache.
    fn remember(&mut self, index: usize) {
        let sequence = &self.running[index];
        let Some(seq) = sequence.seat else { return };
        if self.config.cache.prefixes == 0 {
            return;
        }
        let tokens = sequence.first(sequence.computed);
        let blocks = sequence.table.blocks();
        let (pool, ops) = (&mut self.pool, &mut self.ops);
        for prefix in &self.published {
            if tokens.starts_with(prefix) {
                let computed = Computed {
                    tokens: prefix,
                    blocks,
                    seq,
                };
                self.cache.insert(Space::Published, computed, pool, ops);
            }
        }
        let computed = Computed {
            tokens,
            blocks,
            seq,
        };
        let space = Space::Tenant(sequence.tenant);
        self.cache.insert(space, computed, pool, ops);
    }

    fn end_one(&mut self, id: RequestId, ending: EngineEnding) {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            match ending {
                EngineEnding::Finished(_) | EngineEnding::Cancelled => self.remember(index),
                // What a sequence computed that failed is worth nothing to others.
                EngineEnding::Refused(_) | EngineEnding::Failed(_) => {}
            }
            let sequence = self.running.remove(index);
            self.filling = false;
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
        self.ops.extend(sequence.seat.map(|seq| KvOp::End { seq }));
        let usage = sequence.usage();
        let Sequence { id, tenant, .. } = sequence;
        let mut rest = self.running.iter().chain(&self.waiting);
        if !rest.any(|other| other.tenant == tenant) {
            self.served.remove(&tenant);
        }
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
