//! One engine step: which sequences compute how many tokens, as a pure function of counts.
//!
//! There is no prefill phase and no decode phase (the idea is vLLM's): a sequence has known tokens
//! and computed tokens, and a step lets some catch up, under three limits: free KV blocks, free
//! sequence ids and a token budget. No token ids here, no clock, and no state: what the plan means
//! is carried out by [`crate::engine`].

use crate::units::{KvBlocks, Service, Tokens};

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

/// When waiting sequences start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// One sequence at a time, in order of arrival: the baseline of baselines.
    Fifo,
    /// As many as fit, once all of the batch before are over.
    Static,
    /// As soon as there is room.
    #[default]
    Continuous,
}

/// What the planner knows of a sequence that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Prompt and output so far.
    pub known: Tokens,
    /// Those of them whose KV is there. invariant: less than `known`.
    pub computed: Tokens,
    /// Blocks it holds. invariant: they have room for `computed`.
    pub held: KvBlocks,
    /// Those of them that come free when it is preempted: no other sequence holds them.
    pub sole: KvBlocks,
    /// All the tokens that it may come to, where room for them is set aside: then it is never
    /// preempted, and never needs to.
    pub reserved: Option<Tokens>,
    /// What its tenant was served, by weight: who had most gives first.
    pub served: Service,
    /// How many sequences of its tenant run, itself among them.
    pub running: usize,
    /// Whether its prompt is computed at a [`Limits::pace`] where there is one.
    pub paced: bool,
    /// Whether it may give its place to a sequence of another tenant.
    pub gives: bool,
}

impl View {
    fn missing(&self) -> Tokens {
        self.known - self.computed
    }

    fn decodes(&self) -> bool {
        self.missing() == Tokens::new(1)
    }

    /// Whether it may compute no more than is left of the pace: a decode always goes on.
    fn is_paced(&self) -> bool {
        self.paced && !self.decodes()
    }

    /// Blocks that it will need beyond the `held` ones, as far as anyone knows.
    fn owed(&self, held: KvBlocks) -> KvBlocks {
        self.reserved.unwrap_or(self.known).blocks() - held
    }
}

/// What the planner knows of a sequence that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Prompt and output so far.
    pub known: Tokens,
    /// Those of them whose KV is there to be shared.
    pub matched: Tokens,
    /// Whole blocks of that KV.
    pub held: KvBlocks,
    /// Those of them that count as free so far.
    pub idle: KvBlocks,
    /// As in [`View`].
    pub reserved: Option<Tokens>,
    /// Whether it ran before: it has its sequence id still, and nobody passes it.
    pub seated: bool,
    /// Steps since it gave its place to another, where that is why it waits.
    pub gave: Option<u32>,
    /// Sequences that started before it though they came after it.
    pub passed: u32,
    /// Whether somebody else is computing what it could share.
    pub hold: Hold,
    /// As in [`View`].
    pub paced: bool,
    /// Whether it is expected to be over soon, so that any tenant that was served more gives it a
    /// place.
    pub brief: bool,
    /// As in [`View`].
    pub served: Service,
    /// How many sequences of its tenant run.
    pub running: usize,
}

impl Candidate {
    /// What it would compute to go on.
    fn missing(&self) -> Tokens {
        self.known - self.matched
    }

    /// Free blocks that it takes, now or later, as far as anyone knows.
    fn takes(&self) -> KvBlocks {
        self.reserved.unwrap_or(self.known).blocks() - self.held + self.idle
    }

    /// Whether this one, which gave up its place, lets newcomers have a place that comes free: for
    /// as long as it would keep that itself.
    fn lets_by(&self) -> bool {
        let steps = self.gave.map(u64::from);
        steps.is_some_and(|steps| steps < stay(self.missing()).get())
    }

    /// Whether it leaves the last free place to newcomers that may come: where one comes soon, what
    /// it would compute again is for nothing.
    fn rests(&self) -> bool {
        let steps = self.gave.map(u64::from);
        steps.is_some_and(|steps| steps < part(self.missing()).get().min(REST_MAX))
    }

    /// Whether this newcomer is given a place before `gave`, which gave one up: if it would have to
    /// give it to this one at once otherwise.
    fn goes_before(&self, gave: &Self) -> bool {
        let with_gave = gave.running.saturating_add(1);
        !self.seated && self.served < gave.served && with_gave >= self.asks_of_host()
    }

    /// How many sequences a tenant must have running to give it a place.
    fn asks_of_host(&self) -> usize {
        self.running.saturating_add(if self.brief { 1 } else { 2 })
    }
}

/// Why a waiting sequence may not start now, whatever the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// It may.
    #[default]
    No,
    /// A running sequence computes a prefix that it could share.
    Running,
    /// So will the waiting one with this index, if it starts in this step.
    With(usize),
}

/// The limits of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that the step may compute.
    pub tokens: Tokens,
    /// Tokens that one sequence may compute in it.
    pub chunk: Tokens,
    /// Tokens of prompts that the step may compute for sequences that are paced, less what it
    /// computes of the prompts of others; `None` is any number. Never less than a block, so that
    /// they always go on.
    ///
    /// A newcomer's first token waits for the step that runs when it comes. Prompts that are
    /// computed as they come, a part in each step, make no step much longer than the others.
    pub pace: Option<Tokens>,
    /// Blocks that are free or come free by eviction.
    pub blocks: KvBlocks,
    /// Free sequence ids.
    pub seats: usize,
    /// Sequences that may run beside those that do.
    pub places: usize,
    /// Who goes first.
    pub order: Order,
    /// When waiting sequences start.
    pub scheduler: Scheduler,
    /// Whether more may join the batch that runs, where batches run one at a time.
    pub joinable: bool,
}

/// How many tokens one sequence computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its place among those that run, or among those that wait.
    pub index: usize,
    /// At least one token.
    pub count: Tokens,
}

/// What one step does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Running sequences that give up all their blocks.
    pub preempt: Vec<usize>,
    /// Which of them gives up its place with them, to one that starts.
    pub host: Option<usize>,
    /// Running sequences that compute something, in the order of the batch.
    pub shares: Vec<Share>,
    /// Waiting sequences that run from now on, and what they compute, in the order of the batch.
    pub admit: Vec<Share>,
    /// Waiting sequences, each once for every later one that starts before it.
    pub passed: Vec<usize>,
    /// How many waiting sequences nothing keeps but the pace, or a place that they gave up.
    pub delayed: usize,
}

/// How many later sequences may start before one that does not fit yet: enough that small ones go
/// on, and few enough that it is not starved by them.
pub const PASSES_MAX: u32 = 32;

/// Of what was computed again for a sequence when it was given a place back, one in so many must be
/// new before it gives that place up: what is lost by giving is no more than so many times what was
/// made.
const NEW_PART: u64 = 8;

/// Steps for which a sequence that gave up its place leaves one empty for newcomers at most: some
/// seconds on a slow computer.
const REST_MAX: u64 = 128;

fn part(again: Tokens) -> Tokens {
    Tokens::new(again.get() / NEW_PART)
}

/// New tokens for which a sequence keeps a place that it was given back, after `again` of its
/// tokens had to be computed again: at least a block, since caches keep whole blocks.
pub fn stay(again: Tokens) -> Tokens {
    part(again).max(KvBlocks::new(1).slots())
}

/// Plans one step. `running` and `waiting` are in order of arrival; those that ran before come
/// first among those that wait.
///
/// A running sequence without room takes the blocks of another: of the newest one of the tenant
/// that was served most. It never takes from one that is less served, or older and served alike, so
/// some sequence always goes on, and the engine as a whole never stands still; who finds nobody to
/// take from waits, holding what it has. A waiting sequence takes blocks from nobody: it starts
/// when its known tokens fit beside what the running ones are still owed.
///
/// Where as many run as may, a waiting sequence of a tenant that was served less takes the place of
/// the newest one of the tenant that was served most, if that tenant runs at least two more: the
/// places of two tenants come closer to each other by it and never change sides, so none is taken
/// back and forth. One that is over soon does so where that tenant runs one more: it is back soon.
/// One place changes hands in a step.
///
/// Who gave up its place goes on when one is free, in the order in which they gave. But for as long
/// as it would keep that place, newcomers that would take it at once are given it first; and while
/// what it would compute again is much beside the time that it has waited, it leaves the last place
/// empty for them.
pub fn plan(running: &[View], waiting: &[Candidate], limits: Limits) -> Plan {
    let mut planner = Planner {
        running,
        held: running.iter().map(|view| view.held).collect(),
        sole: running.iter().map(|view| view.sole).collect(),
        counts: vec![Tokens::ZERO; running.len()],
        budget: limits.tokens,
        chunk: limits.chunk,
        pace: limits.pace.map(|pace| pace_left(pace, running, waiting)),
        free: limits.blocks,
        plan: Plan::default(),
    };
    match limits.order {
        Order::DecodeFirst => {
            planner.catch_up(View::decodes);
            planner.catch_up(|view| !view.decodes());
            planner.admit(waiting, limits);
        }
        Order::PrefillFirst => {
            planner.catch_up(|view| !view.decodes());
            planner.admit(waiting, limits);
            planner.catch_up(View::decodes);
        }
    }
    planner.finish()
}

/// What a step may compute for the prompts of paced sequences, beside those of the others.
fn pace_left(pace: Tokens, running: &[View], waiting: &[Candidate]) -> Tokens {
    let prompts = running.iter().filter(|view| !view.paced && !view.decodes());
    let prompts = prompts.map(View::missing);
    let coming = waiting.iter().filter(|one| !one.paced);
    let coming = coming.map(|one| one.known - one.matched);
    let others = prompts
        .chain(coming)
        .fold(Tokens::ZERO, |sum, one| sum + one);
    (pace - others).max(KvBlocks::new(1).slots())
}

struct Planner<'a> {
    running: &'a [View],
    /// Blocks each running sequence will hold, by index.
    held: Vec<KvBlocks>,
    /// Those that no other holds, by index.
    sole: Vec<KvBlocks>,
    /// Tokens each running sequence will compute, by index.
    counts: Vec<Tokens>,
    budget: Tokens,
    chunk: Tokens,
    /// What is left of it.
    pace: Option<Tokens>,
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
    /// for want of blocks, takes them from others.
    fn share(&mut self, index: usize, view: &View) {
        if self.budget == Tokens::ZERO || self.allowance(view.is_paced()) == Tokens::ZERO {
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
        self.sole[index] += grown;
        self.counts[index] = count;
        self.spend(count, view.is_paced());
    }

    /// What one sequence may compute of this step, whatever its room.
    fn allowance(&self, paced: bool) -> Tokens {
        let most = self.budget.min(self.chunk);
        self.pace
            .filter(|_| paced)
            .map_or(most, |left| left.min(most))
    }

    fn spend(&mut self, count: Tokens, paced: bool) {
        self.budget = self.budget - count;
        if paced {
            self.pace = self.pace.map(|left| left - count);
        }
    }

    fn room(&self, index: usize, view: &View) -> Tokens {
        let free = self.free - self.set_aside(index);
        let slots = (self.held[index] + free).slots() - view.computed;
        let missing = view.missing();
        missing.min(self.allowance(view.is_paced())).min(slots)
    }

    /// Blocks that are free and yet not for the sequence at `index`: others have them reserved.
    fn set_aside(&self, index: usize) -> KvBlocks {
        let others = self.running.iter().enumerate();
        let others = others.filter(|(other, view)| *other != index && view.reserved.is_some());
        others.fold(KvBlocks::ZERO, |sum, (other, view)| {
            sum + view.owed(self.held[other])
        })
    }

    /// Whose blocks the sequence at `index` takes.
    fn victim(&self, index: usize) -> Option<usize> {
        let rank = |index: usize| (self.running[index].served, index);
        (0..self.running.len())
            .filter(|other| self.sole[*other] > KvBlocks::ZERO)
            .filter(|other| self.running[*other].reserved.is_none())
            .filter(|other| rank(*other) > rank(index))
            .max_by_key(|other| rank(*other))
    }

    fn preempt(&mut self, victim: usize) {
        self.free += self.sole[victim];
        self.held[victim] = KvBlocks::ZERO;
        self.sole[victim] = KvBlocks::ZERO;
        self.budget += self.counts[victim];
        self.counts[victim] = Tokens::ZERO;
        self.plan.preempt.push(victim);
    }

    /// Starts waiting sequences in order. One that does not fit is passed by others for a while.
    fn admit(&mut self, waiting: &[Candidate], limits: Limits) {
        // What was just taken from one sequence is not for another that waits.
        if !self.plan.preempt.is_empty() {
            return;
        }
        let (mut seats, mut places) = (limits.seats, limits.places);
        let mut room = self.room_beside();
        // Those that did not fit, and how often each was passed.
        let mut blocked: Vec<(usize, u32)> = Vec::new();
        // The first that leaves the last place to others.
        let mut behind = None;
        for (index, one) in waiting.iter().enumerate() {
            let starved = blocked.iter().any(|(_, passed)| *passed >= PASSES_MAX);
            if starved || self.budget == Tokens::ZERO || !self.may_start(one, limits) {
                return;
            }
            if self.is_held(one.hold) || (!one.seated && seats == 0) {
                continue;
            }
            if self.allowance(one.paced) == Tokens::ZERO {
                self.plan.delayed += 1;
                continue;
            }
            if places == 1 && behind.is_none() {
                let coming = waiting.iter().skip(index + 1);
                let coming = coming.filter(|_| seats > 0);
                behind = self.stands_back(one, coming, room).then_some(one);
            }
            let kept = places == 1
                && one.passed < PASSES_MAX
                && behind.is_some_and(|gave| !one.goes_before(gave));
            let host = (places == 0).then(|| self.host(one));
            if kept || host == Some(None) {
                self.plan.delayed += usize::from(one.seated);
                if kept && !one.seated {
                    blocked.push((index, one.passed));
                }
                continue;
            }
            if one.takes() > room {
                if one.seated && one.gave.is_none() {
                    return;
                }
                blocked.push((index, one.passed));
                continue;
            }
            match host.flatten() {
                Some(host) => {
                    self.plan.host = Some(host);
                    self.preempt(host);
                }
                None => places -= 1,
            }
            seats -= usize::from(!one.seated);
            room -= one.takes() + KvBlocks::new(1);
            self.start(index, one);
            for (index, passed) in &mut blocked {
                *passed += 1;
                self.plan.passed.push(*index);
            }
        }
    }

    /// Whether one that gave up its place leaves the last one that is free to others: to one of
    /// those that are `coming`, or to some that may come.
    fn stands_back<'c>(
        &self,
        one: &Candidate,
        mut coming: impl Iterator<Item = &'c Candidate>,
        room: KvBlocks,
    ) -> bool {
        let takes_it = |other: &Candidate| {
            other.goes_before(one) && !self.is_held(other.hold) && other.takes() <= room
        };
        one.rests() || (one.lets_by() && coming.any(takes_it))
    }

    /// Whose place a waiting sequence may take.
    fn host(&self, one: &Candidate) -> Option<usize> {
        let gives = |index: &usize| {
            let view = &self.running[*index];
            let may = view.gives && view.reserved.is_none();
            may && view.served > one.served && view.running >= one.asks_of_host()
        };
        let hosts = (0..self.running.len()).filter(gives);
        hosts
            .max_by_key(|index| (self.running[*index].served, *index))
            .filter(|_| self.plan.preempt.is_empty())
    }

    /// Blocks that newcomers may have: not those that running sequences are still owed, and not one
    /// for each of them, or a newcomer would be preempted by the next token of another.
    fn room_beside(&self) -> KvBlocks {
        let views = self.running.iter().zip(&self.held);
        let owed = views.map(|(view, held)| view.owed(*held) + KvBlocks::new(1));
        owed.fold(self.free, |room, owed| room - owed)
    }

    fn start(&mut self, index: usize, one: &Candidate) {
        let missing = one.known - one.matched;
        let count = missing.min(self.allowance(one.paced));
        self.spend(count, one.paced);
        self.free -= one.idle + ((one.matched + count).blocks() - one.held);
        self.plan.admit.push(Share { index, count });
    }

    /// Whether the scheduler lets this one start beside those that run.
    fn may_start(&self, one: &Candidate, limits: Limits) -> bool {
        match limits.scheduler {
            Scheduler::Fifo => self.running.is_empty() && self.plan.admit.is_empty(),
            Scheduler::Static => self.running.is_empty() || limits.joinable || one.seated,
            Scheduler::Continuous => true,
        }
    }

    fn is_held(&self, hold: Hold) -> bool {
        match hold {
            Hold::No => false,
            Hold::Running => true,
            Hold::With(index) => self.plan.admit.iter().any(|share| share.index == index),
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
mod tests;
