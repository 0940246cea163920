//! What happens to a request that was let in: dispatch, service, the two endings, and the bounds on
//! its time.

use std::collections::{BTreeMap, BTreeSet};

use super::end::Ended;
use super::event::{Dispatch, Effect, Report, Served};
use super::{Drain, Gateway, Passed, Pool, Replica, Stay, Waits};
use crate::failover::Tries;
use crate::fair::{Holding, Pick, Policy, Verdict, Waiting};
use crate::health::{Company, Sign};
use crate::ids::{ModelId, ReplicaId, RequestId, TenantId, position};
use crate::outcome::{EngineEnding, Eviction, Failure, Fence, Outcome, Phase};
use crate::pace::Haste;
use crate::rate::Load;
use crate::request::{ClientEnding, Running, Stage};
use crate::route::{self, Affinity, Candidate, Choice, Seek, Sight};
use crate::tenant::Class;
use crate::units::{KvBlocks, Micros, Time, Tokens};
use crate::usage::{Counted, Usage, Weights};
use crate::window::{Ask, Blocked, Bounds, Guest, Newcomer, Pace};

/// Where a request stands among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nobody is before it that only lacks a right to what is kept.
    First,
    /// It would pass such a one.
    Passing,
}

/// Replicas that are all looked at; among more, two good ones are found without.
const FEW: usize = 32;

/// Replicas that are drawn among many.
const DRAWS: u64 = 8;

impl Gateway {
    /// Dispatches as long as the request that is next fits a replica: no room is left idle while it
    /// could be used.
    pub(super) fn fill(&mut self, model: ModelId, now: Time) {
        if matches!(self.drain, Drain::Stopped | Drain::Done) {
            return;
        }
        loop {
            self.count_touched();
            let Some((pick, candidates)) = self.next_dispatch(model) else {
                return;
            };
            if self.drop_if_late(&pick.next, &candidates, now) {
                continue;
            }
            let Some(choice) = self.choose(model, &pick.next, &candidates) else {
                return;
            };
            let pool = self.pool(model);
            pool.note_passed(&pick);
            pool.queue.start(pick.next.id);
            self.dispatch(pick.next, choice, now);
        }
    }

    /// The request that is next, and the replicas that have room for it, if any request can go.
    fn next_dispatch(&self, model: ModelId) -> Option<(Pick, Vec<Candidate>)> {
        let pool = &self.pools[position(model.get())];
        if pool.queue.is_empty() {
            return None;
        }
        let open = pool.standing.each_ref().map(|one| !one.open.is_empty());
        let mut candidates = Vec::new();
        let mut turn = Turn::First;
        let pick = pool.queue.pick(open, pool.patient(), |waiting, holding| {
            match self.room(pool, waiting, (holding, turn)) {
                Ok(with_room) => {
                    candidates = with_room;
                    Verdict::Go
                }
                Err(Blocked::Headroom | Blocked::Guests) => {
                    turn = Turn::Passing;
                    Verdict::OverShare
                }
                Err(Blocked::Kv) if self.is_large(pool.id, waiting.kv) => Verdict::Large,
                Err(Blocked::Prefill | Blocked::Kv | Blocked::Sequences) => Verdict::Wait,
            }
        })?;
        Some((pick, candidates))
    }

    /// The one of `candidates` that is best for a request.
    fn choose(
        &mut self,
        model: ModelId,
        waiting: &Waiting,
        candidates: &[Candidate],
    ) -> Option<Choice> {
        let none = Affinity::default();
        let affinity = self.affinities.get(&waiting.id).unwrap_or(&none);
        let seek = Seek {
            tenant: waiting.tenant,
            prompt: waiting.prompt,
            affinity,
        };
        let pool = &mut self.pools[position(model.get())];
        let up: Vec<_> = match pool.router.sight(affinity) {
            Sight::Some => Vec::new(),
            Sight::All => {
                let standing = &pool.standing[waiting.class.place()];
                standing.up.iter().copied().collect()
            }
        };
        let router = &mut pool.router;
        let choice = router.choose(seek, candidates, &up)?;
        let chosen = &self.replicas[position(choice.replica.get())];
        router.sent(choice, affinity, chosen.window.capacity().kv.slots());
        Some(choice)
    }

    /// Whether a request needs more than a quarter of the largest replica's KV. Room for less comes
    /// soon of itself, and to let others pass meanwhile would set its tenant back: on the trace of
    /// 27 tenants it doubled the service gap.
    fn is_large(&self, model: ModelId, kv: KvBlocks) -> bool {
        let mine = self
            .replicas
            .iter()
            .filter(|replica| replica.model == model);
        let largest = mine.map(|replica| replica.window.capacity().kv).max();
        largest.is_some_and(|largest| kv > largest.percent(25))
    }

    /// The replicas that would take a request now, in the order of their ids; at least one.
    ///
    /// # Errors
    /// What stands in the way at the replica that is nearest to taking it.
    pub(super) fn room(
        &self,
        pool: &Pool,
        waiting: &Waiting,
        (holding, turn): (Holding, Turn),
    ) -> Result<Vec<Candidate>, Blocked> {
        let slots = pool.standing[waiting.class.place()].slots;
        let share = pool.queue.share(waiting.tenant, waiting.weight, slots);
        // What is kept is kept for tenants that come now and then. Those that contend for it with
        // long lines are served in order, or who has had more would get still more by it.
        let in_turn = turn == Turn::First || pool.queue.is_modest(waiting.tenant);
        let may_use_kept =
            (holding.running < share && in_turn) || !pool.queue.has_modest_beside(waiting.tenant);
        let beside_others = holding.running < share && share < slots;
        let ask = Ask {
            class: waiting.class,
            kv: waiting.kv,
            prompt: waiting.prompt,
            may_use_kept,
            beside_others,
            guest: match beside_others {
                true => self.guest(pool, waiting, slots),
                false => Guest::No,
            },
            floor: waiting.floor,
            tenant_kv: holding.kv,
        };
        let mut nearest = Blocked::Sequences;
        let has_room = |replica: &Replica| {
            let prefill = replica.steps.prefill_per_step();
            let room = replica.window.room_for(&ask, prefill);
            room.inspect_err(|why| nearest = nearest.min(*why)).is_ok()
        };
        let mut open = self.candidates(pool, waiting, has_room);
        if open.is_empty() {
            return Err(nearest);
        }
        // It is tried where it has not failed, if there is room; room is not left idle for it.
        if let Some(tries) = self.tries(waiting) {
            let is_fresh = |one: &Candidate| !tries.includes(one.replica);
            if open.iter().any(is_fresh) {
                open.retain(is_fresh);
            }
        }
        Ok(open)
    }

    /// What a request waits for, as it stands.
    pub(super) fn waits(&self, pool: &Pool, waiting: &Waiting) -> Waits {
        let holding = pool.queue.holding(waiting.tenant);
        match self.room(pool, waiting, (holding, Turn::First)) {
            _ if pool.standing[waiting.class.place()].up.is_empty() => Waits::Replica,
            Ok(_) => Waits::Turn,
            Err(blocked) => Waits::Room(blocked),
        }
    }

    /// What a request would be in a replica that runs all it can, where the pool has so many
    /// `slots`: as in [`crate::batch::plan`], a tenant that was served more gives it a place if it
    /// has two more, or one more where the place is back soon. All that run beyond the slots may be
    /// that tenant's, and have given up their places already.
    fn guest(&self, pool: &Pool, waiting: &Waiting, slots: u32) -> Guest {
        if pool.model.window.guests == 0 {
            return Guest::No;
        }
        let (served, own) = (
            self.attained_by_weight(waiting.tenant),
            pool.queue.holding(waiting.tenant).running,
        );
        let beyond = pool.running.saturating_sub(slots);
        let (guest, more) = match waiting.is_brief {
            true => (Guest::Brief, 1),
            false => (Guest::Staying, 2),
        };
        let gives = |(tenant, running): (TenantId, u32)| {
            let runs = running.saturating_sub(beyond);
            runs >= own.saturating_add(more) && self.attained_by_weight(tenant) > served
        };
        match pool.queue.holders().any(gives) {
            true => guest,
            false => Guest::No,
        }
    }

    /// Where a request has been tried in vain, if it has.
    fn tries(&self, waiting: &Waiting) -> Option<Tries> {
        let tries = self.requests.get(&waiting.id)?.tries;
        Some(tries).filter(|tries| !tries.is_first())
    }

    /// Replicas that have room for a request, in the order of their ids; none only where none has.
    /// Of many, some that are drawn by the request's number, where the rule of routing draws too.
    fn candidates(
        &self,
        pool: &Pool,
        waiting: &Waiting,
        mut has_room: impl FnMut(&Replica) -> bool,
    ) -> Vec<Candidate> {
        let open = &pool.standing[waiting.class.place()].open;
        let mut candidate = |id: ReplicaId| {
            let replica = &self.replicas[position(id.get())];
            has_room(replica).then(|| replica.candidate(id))
        };
        let none = Affinity::default();
        let affinity = self.affinities.get(&waiting.id).unwrap_or(&none);
        let few = open.len() <= FEW || self.tries(waiting).is_some();
        if !few && pool.router.sight(affinity) == Sight::Some {
            let mut drawn = BTreeMap::new();
            for n in 0..DRAWS {
                let id = drawn_from(open, waiting.id.get() ^ (n << 48));
                if let Some(one) = id.and_then(&mut candidate) {
                    drawn.insert(one.replica, one);
                }
            }
            if !drawn.is_empty() {
                return drawn.into_values().collect();
            }
        }
        open.iter().copied().filter_map(candidate).collect()
    }

    pub(super) fn first_token(&mut self, id: RequestId, now: Time) {
        if let Some(running) = self.running(id) {
            running.first_token.get_or_insert(now);
            running.moving = false;
            self.note_first_token(id, now);
        }
    }

    pub(super) fn begun(&mut self, id: RequestId, now: Time) {
        let Some(running) = self.running(id) else {
            return;
        };
        (running.begun, running.moving) = (true, false);
        let replica = running.replica;
        let health = &mut self.replica(replica).health;
        health.note(Sign::Answered, Company::Alone, now);
    }

    /// Charges service as it is given, and measures how fast it is given.
    pub(super) fn stepped(
        &mut self,
        replica: ReplicaId,
        served: &[Served],
        report: Report,
        now: Time,
    ) {
        let (model, weights) = (self.replica(replica).model, self.weights);
        let (mut all, mut prefilled) = (Tokens::ZERO, Tokens::ZERO);
        for one in served {
            if one.output > Tokens::ZERO {
                self.note_made(one.id, now);
            }
            self.note_served(one, weights, now);
            all += one.prompt + one.output;
            prefilled += one.prompt;
        }
        let replica = self.replica(replica);
        replica.window.report(report.waiting, report.kv);
        // A step that served nobody only put away what had ended; it says nothing of what steps
        // cost.
        if !served.is_empty() {
            replica.steps.record(prefilled, now);
        }
        let pool = self.pool(model);
        pool.note_rate(all, now);
        self.fill(model, now);
    }

    /// Charges what a replica in another process gave. Its steps are not seen, so nothing is
    /// learned of what one costs.
    pub(super) fn streamed(&mut self, served: Served, now: Time) {
        let Some(model) = self.requests.get(&served.id).map(|request| request.model) else {
            return;
        };
        self.note_served(&served, self.weights, now);
        let pool = self.pool(model);
        pool.note_rate(served.prompt + served.output, now);
        // A first token makes room for another prompt.
        if served.prompt > Tokens::ZERO {
            self.fill(model, now);
        }
    }

    /// What a replica in another process says of itself.
    pub(super) fn reported(&mut self, replica: ReplicaId, report: Report, now: Time) {
        let model = self.replica(replica).model;
        let pool = self.pool(model);
        let target = pool.model.target;
        let pace = match pool.tpot.estimate(target, now) > target.tpot {
            true => Pace::Missed,
            false => Pace::Kept,
        };
        let window = &mut self.replica(replica).window;
        window.note_pace(pace);
        window.report(report.waiting, report.kv);
        self.fill(model, now);
    }

    /// Nobody counted what a request used.
    pub(super) fn reckoned(&mut self, id: RequestId) {
        if let Some(running) = self.running(id) {
            running.counted = Counted::Roughly;
        }
    }

    fn note_served(&mut self, served: &Served, weights: Weights, now: Time) {
        let Some(request) = self.requests.get_mut(&served.id) else {
            return;
        };
        let model = request.model;
        let first = match &mut request.stage {
            Stage::Running(running) if served.output > Tokens::ZERO => {
                (running.begun, running.moving) = (true, false);
                let prefill = std::mem::take(&mut running.prefill);
                Some((running.replica, prefill))
            }
            Stage::Running(_) | Stage::Queued => None,
        };
        self.pool(model)
            .queue
            .served(served.id, served.usage().service(weights));
        if let Some((replica, prefill)) = first {
            let replica = self.replica(replica);
            replica.window.prefilled(prefill);
            replica.health.note(Sign::Answered, Company::Alone, now);
        }
    }

    pub(super) fn engine_ended(
        &mut self,
        id: RequestId,
        ending: EngineEnding,
        usage: Usage,
        now: Time,
    ) {
        let Some(running) = self.running(id) else {
            return;
        };
        if running.engine.is_some() {
            return;
        }
        let (moving, blank) = (running.moving, usage.output == Tokens::ZERO);
        // Said first: what its replica has let go of is not taken back from it.
        running.engine = Some((ending, usage));
        self.note_ending(id, ending, now);
        if blank && self.goes_elsewhere(id, ending) {
            self.fail_over(id, ending, now);
            return;
        }
        // It was taken back for another replica, and there is none any more.
        let ending = match ending {
            EngineEnding::Cancelled if moving => EngineEnding::Failed(Failure::Unreachable),
            EngineEnding::Cancelled
            | EngineEnding::Finished(_)
            | EngineEnding::Refused(_)
            | EngineEnding::Failed(_) => ending,
        };
        if let Some(running) = self.running(id) {
            running.engine = Some((ending, usage));
            let untold = running.client.is_none() && running.stopped.is_none();
            if let (EngineEnding::Failed(failure), true) = (ending, untold) {
                self.effects
                    .push_back(Effect::Failed { id, failure, usage });
            }
        }
        self.end_if_over(id, now);
    }

    pub(super) fn client_ended(&mut self, id: RequestId, ending: ClientEnding, now: Time) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match &mut request.stage {
            Stage::Queued => {
                let outcome = match ending {
                    ClientEnding::Panicked => Outcome::Bug,
                    ClientEnding::Delivered | ClientEnding::Gone => {
                        Outcome::ClientGone(Phase::Queued)
                    }
                };
                self.end(Ended::inside(id, outcome, Usage::default()), now);
            }
            Stage::Running(running) => {
                running.client.get_or_insert(ending);
                let outcome = match ending {
                    ClientEnding::Delivered => None,
                    ClientEnding::Gone => Some(Outcome::ClientGone(running.phase())),
                    ClientEnding::Panicked => Some(Outcome::Bug),
                };
                if let (Some(outcome), None) = (outcome, running.engine) {
                    self.cancel(id, outcome);
                }
                self.end_if_over(id, now);
            }
        }
    }

    pub(super) fn begin_drain(&mut self, bound: Micros, now: Time) {
        if self.drain == Drain::No {
            self.drain = Drain::Until { bound: now + bound };
        }
    }

    /// Carries out what time alone brings about.
    pub(super) fn expire(&mut self, now: Time) {
        self.evict_expired(now);
        for pool in &mut self.pools {
            pool.queue.expire(now);
        }
        while let Some(&(at, id)) = self.fences.first() {
            if at > now {
                break;
            }
            self.cancel(id, Outcome::Fenced(Fence::MaxStream));
        }
        self.wake_replicas(now);
        if matches!(self.drain, Drain::Until { bound } if bound <= now) {
            self.drain = Drain::Stopped;
            self.stop_everything(now);
        }
    }

    pub(super) fn report_drained(&mut self) {
        let leaving = matches!(self.drain, Drain::Until { .. } | Drain::Stopped);
        if leaving && self.requests.is_empty() {
            self.drain = Drain::Done;
            self.effects.push_back(Effect::Drained);
        }
    }

    fn dispatch(&mut self, waiting: Waiting, choice: Choice, now: Time) {
        let id = waiting.id;
        let Some(request) = self.requests.get(&id).copied() else {
            return;
        };
        let haste = self.haste(&request, &waiting);
        let newcomer = self.newcomer(&request, now);
        let pool = self.pool(request.model);
        let fence = now + pool.model.max_stream;
        pool.running += 1;
        pool.rate.busy(now);
        if request.tries.is_first() {
            pool.failovers.earn();
        }
        let window = &mut self.replica(choice.replica).window;
        let prefill = window.counted(request.prompt - choice.cached, haste);
        window.hold(request.class, request.kv, prefill);
        window.sent_to(newcomer, now);
        let held = (window.prefill(), window.sequences());
        self.note_sent(&request, (id, choice), held, now);
        self.fences.insert((fence, id));
        let stage = Stage::Running(Running {
            dispatched: now,
            prefill,
            ..Running::new(choice.replica, waiting, fence)
        });
        self.requests
            .insert(id, crate::request::Request { stage, ..request });
        let per_token = self.pool(request.model).model.kv_per_token;
        self.tracks.dispatched(id, per_token, now);
        let quota = self.quota(request.tenant, Some(request.model), now);
        self.effects.push_back(Effect::Dispatch(Dispatch {
            id,
            tenant: request.tenant,
            key: request.key,
            replica: choice.replica,
            because: choice.because,
            haste,
            output_max: request.output_max,
            queued: now.since(request.received),
            fence,
            quota,
        }));
    }

    /// How soon the engine may compute the prompt of a request that goes to it now: by whether its
    /// tenant has more than its share of the pool's sequences with it, and whether others are
    /// active. Under first in, first out nobody asks.
    fn haste(&self, request: &crate::request::Request, waiting: &Waiting) -> Haste {
        let pool = &self.pools[position(request.model.get())];
        let slots = pool.standing[request.class.place()].slots;
        let weight = self.tenants.tenant(request.tenant).weight;
        let share = pool.queue.share(request.tenant, weight, slots);
        if pool.queue.policy() == Policy::Fifo {
            Haste::AtOnce
        } else if pool.queue.holding(request.tenant).running > share {
            Haste::AsTheyCome
        } else if share >= slots {
            Haste::WhileAlone
        } else if waiting.is_brief {
            Haste::InPassing
        } else {
            Haste::AtOnce
        }
    }

    /// Whether a request that goes to a replica now is of a tenant that has no more than its share
    /// beside others, and whether it found no room for long. One whose tenant has something else
    /// waiting is none: that could have filled what was kept.
    fn newcomer(&self, request: &crate::request::Request, now: Time) -> Newcomer {
        let pool = &self.pools[position(request.model.get())];
        let slots = pool.standing[request.class.place()].slots;
        let weight = self.tenants.tenant(request.tenant).weight;
        let share = pool.queue.share(request.tenant, weight, slots);
        let waited = request.tries.is_first() && now.since(request.received) > Bounds::SHORT_WAIT;
        let has_more = pool.queue.holding(request.tenant).running > share;
        if share >= slots || has_more || pool.queue.waits(request.tenant) {
            Newcomer::No
        } else if waited {
            Newcomer::Late
        } else {
            Newcomer::InTime
        }
    }

    /// Makes the engine stop and the client learn why; the request ends when both have answered.
    fn cancel(&mut self, id: RequestId, outcome: Outcome) {
        let Some(running) = self.running(id) else {
            return;
        };
        let (replica, fence) = (running.replica, running.fence);
        let first = running.stopped.is_none();
        running.stop(outcome);
        self.fences.remove(&(fence, id));
        if !first {
            return;
        }
        self.effects.push_back(Effect::Cancel {
            id,
            replica,
            outcome,
        });
    }

    pub(super) fn end_if_over(&mut self, id: RequestId, now: Time) {
        let over = self.running(id).and_then(|running| running.over());
        if let Some((outcome, usage)) = over {
            self.end(Ended::inside(id, outcome, usage), now);
        }
    }

    fn evict_expired(&mut self, now: Time) {
        for n in 0..self.pools.len() {
            while let Some((at, id)) = self.pools[n].queue.first_deadline() {
                if at > now {
                    break;
                }
                self.end(Ended::evicted(id, Eviction::QueueTime), now);
            }
        }
    }

    fn stop_everything(&mut self, now: Time) {
        let ids: Vec<_> = self
            .requests
            .iter()
            .map(|(id, request)| (*id, request.stage))
            .collect();
        for (id, stage) in ids {
            match stage {
                Stage::Queued => self.end(Ended::evicted(id, Eviction::Draining), now),
                Stage::Running(_) => self.cancel(id, Outcome::Fenced(Fence::Drain)),
            }
        }
    }

    pub(super) fn running(&mut self, id: RequestId) -> Option<&mut Running> {
        match &mut self.requests.get_mut(&id)?.stage {
            Stage::Running(running) => Some(running),
            Stage::Queued => None,
        }
    }
}

impl Pool {
    /// Who must not be passed by any more: as much work has gone before it as it is itself. Work
    /// and not a number of requests, since that is what its tenant falls behind by.
    pub(super) fn patient(&self) -> Option<RequestId> {
        self.passed
            .filter(|passed| passed.by >= passed.work)
            .map(|passed| passed.id)
    }

    fn note_passed(&mut self, pick: &Pick) {
        self.passed = pick.passed.map(|first| {
            let before = self.passed.filter(|passed| passed.id == first.id);
            let by = before.map_or(Tokens::ZERO, |passed| passed.by);
            Passed {
                id: first.id,
                work: first.work,
                by: by + pick.next.work,
            }
        });
    }

    /// So many tokens were served.
    fn note_rate(&mut self, tokens: Tokens, now: Time) {
        let load = match self.queue.is_empty() {
            true => Load::Light,
            false => Load::Full,
        };
        self.rate.served(tokens, load, now);
    }

    /// How long what waits takes.
    pub(super) fn time_for_queue(&self) -> Option<Micros> {
        self.rate.time_for(self.queue.work())
    }
}

impl Replica {
    /// Whether it is up, of this pool, and there for this class.
    pub(super) fn takes(&self, model: ModelId, class: Class) -> bool {
        let all = self.only.is_none_or(|only| only == class);
        self.model == model && self.stay == Stay::Serving && self.health.is_open() && all
    }

    pub(super) fn is_open_to(&self, class: Class) -> bool {
        self.window.is_open_to(class)
    }

    fn candidate(&self, replica: ReplicaId) -> Candidate {
        Candidate {
            replica,
            load: route::Load {
                kv: self.window.occupancy(),
                total: self.window.capacity().kv,
                sequences: self.window.sequences(),
                prefill: self.window.prefill(),
            },
        }
    }
}

impl Served {
    fn usage(self) -> Usage {
        Usage {
            prompt: self.prompt,
            cached: Tokens::ZERO,
            output: self.output,
        }
    }
}

/// One of them, by a number: the next at or after a place that the number hashes to.
fn drawn_from(open: &BTreeSet<ReplicaId>, number: u64) -> Option<ReplicaId> {
    let span = u64::from(open.last()?.get()) + 1;
    let place = u32::try_from(route::mixed(number) % span).unwrap_or(0);
    let mut from = open.range(ReplicaId::new(place)..);
    from.next().or_else(|| open.first()).copied()
}
