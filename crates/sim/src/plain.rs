//! A plain gateway, to compare with: the rules that are written down first when nobody has been
//! burnt yet.
//!
//! First in, first out. A request's KV over time is reckoned with the promised time per token,
//! whatever the pool does. What an aborted request reserved comes back when its lease is over. A
//! reserved tenant below its floor is served anywhere; others go where the last report was lowest.
//! Every refusal names the same time to come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tollgate_policy::admission;
use tollgate_policy::gateway::{
    Config, Dispatch, Effect, Event, Gauges, PoolGauges, Quota, Record, Refusal, ReplicaGauges,
    Reserved, Stay,
};
use tollgate_policy::health::State;
use tollgate_policy::ids::{ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, Eviction, Failure, Fence, Outcome, Phase, Rejection};
use tollgate_policy::pace::Haste;
use tollgate_policy::quota::{Cost, Levels, Reservation};
use tollgate_policy::request::{Arrival, ClientEnding};
use tollgate_policy::route::Because;
use tollgate_policy::tenant::Class;
use tollgate_policy::units::{KvBlocks, KvByteMicros, Micros, Service, Time, Tokens};
use tollgate_policy::usage::{Counted, Usage, Weights};
use tollgate_policy::window::{Bounds, Capacity, Window};

use crate::control::Control;

/// What every refused client is told to wait: on average as long as Tollgate tells those whose
/// retries are too many.
const RETRY_AFTER: Micros = Micros::from_secs(45);

/// The pause before a replica that died is started again.
const RESTART: Micros = Micros::from_millis(500);

/// A gateway by plain rules.
#[derive(Debug)]
pub struct Plain {
    config: Config,
    /// By tenant.
    levels: Vec<Levels>,
    requests: BTreeMap<RequestId, Held>,
    queue: VecDeque<RequestId>,
    deadlines: BTreeSet<(Time, RequestId)>,
    fences: BTreeSet<(Time, RequestId)>,
    leases: BTreeSet<(Time, RequestId)>,
    /// What each lease holds.
    leased: BTreeMap<RequestId, (TenantId, Reservation)>,
    engines: Vec<Engine>,
    drain: Option<Time>,
    is_stopped: bool,
    is_drained: bool,
    effects: VecDeque<Effect>,
}

#[derive(Debug)]
struct Engine {
    is_up: bool,
    restart: Option<Time>,
    window: Window,
    reported: KvBlocks,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    arrival: Arrival,
    output_max: Tokens,
    kv: KvBlocks,
    reservation: Reservation,
    deadline: Time,
    running: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    replica: usize,
    dispatched: Time,
    fence: Time,
    first_token: Option<Time>,
    stopped: Option<Outcome>,
    engine: Option<(EngineEnding, Usage)>,
    client: Option<ClientEnding>,
}

impl Plain {
    /// A plain gateway with every replica still starting.
    pub fn new(config: Config) -> Self {
        let limits = (0..config.tenants.len()).map(|n| {
            let tenant = config.tenants.tenant(tenant_id(n));
            Levels::new(&tenant.limits, Time::START)
        });
        let engine = || Engine {
            is_up: false,
            restart: None,
            window: Window::new(Bounds::open()),
            reported: KvBlocks::ZERO,
        };
        Self {
            levels: limits.collect(),
            engines: config.replicas.iter().map(|_| engine()).collect(),
            requests: BTreeMap::new(),
            queue: VecDeque::new(),
            deadlines: BTreeSet::new(),
            fences: BTreeSet::new(),
            leases: BTreeSet::new(),
            leased: BTreeMap::new(),
            drain: None,
            is_stopped: false,
            is_drained: false,
            effects: VecDeque::new(),
            config,
        }
    }

    fn arrive(&mut self, arrival: Arrival, now: Time) {
        if !self.engines.iter().any(|engine| engine.is_up) {
            return self.turn_away(arrival, Rejection::NoReplica, now);
        }
        let model = &self.config.models[0];
        let tenant = self.config.tenants.tenant(arrival.tenant);
        let (limits, class) = (tenant.limits.clone(), tenant.class);
        let n = index(arrival.tenant.get());
        let usual = self.levels[n].usual_output();
        let (context, asked) = (model.context, arrival.output_max);
        let grant = match admission::fit(arrival.prompt, asked, usual, context, &limits) {
            Ok(grant) => grant,
            Err(rejection) => return self.turn_away(arrival, rejection, now),
        };
        let output = grant.expected - arrival.prompt;
        let held = (arrival.prompt + output.half()).get();
        // The promise, not the measurement.
        let span = model.target.tpot.times(output.get());
        let cost = Cost {
            prompt: arrival.prompt,
            output,
            kv: KvByteMicros::of(model.kv_per_token.times(held), span),
        };
        let full = self.queue.len() >= model.queue_max;
        let deadline = now + model.max_wait.unwrap_or_else(|| class.max_wait());
        let reservation = match self.levels[n].reserve(&limits, cost, now) {
            Ok(reservation) if self.drain.is_none() && !full => reservation,
            Ok(reservation) => {
                self.levels[n].cancel(reservation);
                let why = match self.drain {
                    Some(_) => Rejection::Draining,
                    None => Rejection::QueueFull,
                };
                return self.turn_away(arrival, why, now);
            }
            Err(refused) => return self.turn_away(arrival, refused.rejection, now),
        };
        let held = Held {
            arrival,
            output_max: grant.output_max,
            kv: grant.expected.blocks(),
            reservation,
            deadline,
            running: None,
        };
        self.requests.insert(arrival.id, held);
        self.queue.push_back(arrival.id);
        self.deadlines.insert((deadline, arrival.id));
    }

    fn turn_away(&mut self, arrival: Arrival, rejection: Rejection, now: Time) {
        let outcome = Outcome::Rejected(rejection);
        self.refuse(arrival.id, outcome);
        self.effects.push_back(Effect::Record(Record {
            id: arrival.id,
            tenant: Some(arrival.tenant),
            key: arrival.key,
            model: Some(arrival.model),
            replica: None,
            outcome,
            usage: Usage::default(),
            counted: Counted::Exactly,
            kv: KvByteMicros::default(),
            received: arrival.received,
            dispatched: None,
            first_token: None,
            ended: now,
        }));
    }

    fn refuse(&mut self, id: RequestId, outcome: Outcome) {
        let retry_after = outcome.row().retry_after.then_some(RETRY_AFTER);
        self.effects.push_back(Effect::Refuse(Refusal {
            id,
            outcome,
            retry_after,
            quota: Quota::default(),
        }));
    }

    /// Sends on whoever is first, as long as there is room.
    fn fill(&mut self, now: Time) {
        while let Some(id) = self.queue.front().copied() {
            let Some(replica) = self.choose(id) else {
                return;
            };
            self.queue.pop_front();
            let Some(held) = self.requests.get_mut(&id) else {
                return;
            };
            let tenant = held.arrival.tenant;
            let fence = now + self.config.models[0].max_stream;
            held.running = Some(Running {
                replica,
                dispatched: now,
                fence,
                first_token: None,
                stopped: None,
                engine: None,
                client: None,
            });
            self.deadlines.remove(&(held.deadline, id));
            self.fences.insert((fence, id));
            let class = self.config.tenants.tenant(tenant).class;
            let prompt = held.arrival.prompt;
            self.engines[replica].window.hold(class, held.kv, prompt);
            self.effects.push_back(Effect::Dispatch(Dispatch {
                id,
                tenant,
                key: held.arrival.key,
                replica: ReplicaId::new(u32::try_from(replica).unwrap_or(u32::MAX)),
                because: Because::LeastLoad,
                haste: Haste::AtOnce,
                output_max: held.output_max,
                queued: now.since(held.arrival.received),
                fence,
                quota: Quota::default(),
            }));
        }
    }

    /// Where the last report was lowest; for a reserved tenant below its floor, where it holds
    /// least itself.
    fn choose(&self, id: RequestId) -> Option<usize> {
        let held = self.requests.get(&id)?;
        let tenant = self.config.tenants.tenant(held.arrival.tenant);
        let free = |n: &usize| {
            let engine = &self.engines[*n];
            engine.is_up && engine.window.sequences() < engine.window.limit()
        };
        let open = (0..self.engines.len()).filter(free);
        if tenant.class == Class::Reserved {
            let own = |n: usize| self.of_tenant(held.arrival.tenant, n);
            let floor = |n: usize| {
                let capacity = self.engines[n].window.capacity().kv;
                capacity.percent(u64::from(tenant.floor))
            };
            let below = open.clone().filter(|n| own(*n) + held.kv <= floor(*n));
            if let Some(n) = below.min_by_key(|n| own(*n)) {
                return Some(n);
            }
        }
        open.min_by_key(|n| self.engines[*n].reported)
    }

    /// What a tenant's requests are expected to hold of a replica.
    fn of_tenant(&self, tenant: TenantId, replica: usize) -> KvBlocks {
        let there = |held: &&Held| {
            let at = held.running.map(|running| running.replica);
            held.arrival.tenant == tenant && at == Some(replica)
        };
        let each = self.requests.values().filter(there).map(|held| held.kv);
        each.fold(KvBlocks::ZERO, |sum, kv| sum + kv)
    }

    /// A replica has failed a request: its client is told, and nobody else tries.
    fn failed(&mut self, id: RequestId, failure: Failure, usage: Usage) {
        let Some(running) = self.running(id) else {
            return;
        };
        let (replica, told) = (running.replica, running.stopped.is_some());
        match failure {
            Failure::Engine | Failure::Unreachable | Failure::BrokeOff => {
                self.engines[replica].is_up = false;
            }
            Failure::Sequence
            | Failure::Silent
            | Failure::Busy
            | Failure::Erred
            | Failure::BadAnswer => {}
        }
        if !told {
            self.effects
                .push_back(Effect::Failed { id, failure, usage });
        }
    }

    fn engine_ended(&mut self, id: RequestId, ending: EngineEnding, usage: Usage, now: Time) {
        if let Some(running) = self.running(id) {
            running.engine.get_or_insert((ending, usage));
            self.end_if_over(id, now);
        }
    }

    fn client_ended(&mut self, id: RequestId, ending: ClientEnding, now: Time) {
        let outcome = |first: Option<Time>| match (ending, first) {
            (ClientEnding::Panicked, _) => Outcome::Bug,
            (_, None) => Outcome::ClientGone(Phase::BeforeFirstToken),
            (_, Some(_)) => Outcome::ClientGone(Phase::MidStream),
        };
        match self.running(id) {
            Some(running) => {
                running.client.get_or_insert(ending);
                let leaves = ending != ClientEnding::Delivered && running.engine.is_none();
                let outcome = outcome(running.first_token);
                if leaves {
                    self.cancel(id, outcome);
                }
                self.end_if_over(id, now);
            }
            None => self.drop_queued(id, Outcome::ClientGone(Phase::Queued), now),
        }
    }

    fn drop_queued(&mut self, id: RequestId, outcome: Outcome, now: Time) {
        if self.requests.contains_key(&id) {
            self.queue.retain(|other| *other != id);
            self.end(id, outcome, Usage::default(), now);
        }
    }

    fn cancel(&mut self, id: RequestId, outcome: Outcome) {
        let Some(running) = self.running(id) else {
            return;
        };
        let (replica, fence) = (running.replica, running.fence);
        let first = running.stopped.replace(outcome).is_none();
        self.fences.remove(&(fence, id));
        if first {
            self.effects.push_back(Effect::Cancel {
                id,
                replica: ReplicaId::new(u32::try_from(replica).unwrap_or(u32::MAX)),
                outcome,
            });
        }
    }

    fn end_if_over(&mut self, id: RequestId, now: Time) {
        let Some(running) = self.running(id).copied() else {
            return;
        };
        let (Some((ending, usage)), Some(client)) = (running.engine, running.client) else {
            return;
        };
        let phase = match running.first_token {
            None => Phase::BeforeFirstToken,
            Some(_) => Phase::MidStream,
        };
        let outcome = match (running.stopped, ending, client) {
            (Some(outcome), _, _) => outcome,
            (None, EngineEnding::Finished(reason), ClientEnding::Delivered) => {
                Outcome::Completed(reason)
            }
            (None, EngineEnding::Failed(failure), _) => Outcome::ReplicaFailed(failure),
            (None, EngineEnding::Refused(status), _) => Outcome::ReplicaRefused(status),
            (None, EngineEnding::Finished(_) | EngineEnding::Cancelled, _) => {
                Outcome::ClientGone(phase)
            }
        };
        self.end(id, outcome, usage, now);
    }

    fn end(&mut self, id: RequestId, outcome: Outcome, usage: Usage, now: Time) {
        let Some(held) = self.requests.remove(&id) else {
            return;
        };
        let n = index(held.arrival.tenant.get());
        let class = self.config.tenants.tenant(held.arrival.tenant).class;
        self.deadlines.remove(&(held.deadline, id));
        if let Some(running) = held.running {
            self.fences.remove(&(running.fence, id));
            let window = &mut self.engines[running.replica].window;
            window.prefilled(held.arrival.prompt);
            window.release(class, held.kv);
        }
        let rated = usage.rated(Weights::default());
        match (outcome, held.running) {
            (Outcome::Completed(_), _) => {
                self.levels[n].learn(usage.output);
                self.levels[n].settle(held.reservation, rated);
            }
            (_, None) => self.levels[n].cancel(held.reservation),
            // Nobody told the books that it was over; its lease will.
            (_, Some(running)) => {
                let at = running.dispatched + self.config.models[0].max_stream;
                self.leases.insert((at, id));
                let lease = (held.arrival.tenant, held.reservation);
                self.leased.insert(id, lease);
            }
        }
        self.effects.push_back(Effect::Record(Record {
            id,
            tenant: Some(held.arrival.tenant),
            key: held.arrival.key,
            model: Some(held.arrival.model),
            replica: held
                .running
                .map(|running| ReplicaId::new(u32::try_from(running.replica).unwrap_or(u32::MAX))),
            outcome,
            usage,
            counted: Counted::Exactly,
            kv: KvByteMicros::default(),
            received: held.arrival.received,
            dispatched: held.running.map(|running| running.dispatched),
            first_token: held.running.and_then(|running| running.first_token),
            ended: now,
        }));
    }

    /// Carries out what time alone brings about.
    fn expire(&mut self, now: Time) {
        while let Some((_, id)) = first_due(&self.deadlines, now) {
            self.refuse(id, Outcome::Evicted(Eviction::QueueTime));
            self.drop_queued(id, Outcome::Evicted(Eviction::QueueTime), now);
        }
        while let Some((_, id)) = first_due(&self.fences, now) {
            self.cancel(id, Outcome::Fenced(Fence::MaxStream));
        }
        while let Some((at, id)) = first_due(&self.leases, now) {
            self.leases.remove(&(at, id));
            if let Some((tenant, reservation)) = self.leased.remove(&id) {
                self.levels[index(tenant.get())].settle(reservation, Tokens::ZERO);
            }
        }
        for n in 0..self.engines.len() {
            if self.engines[n].restart.is_some_and(|at| at <= now) {
                self.engines[n].restart = None;
                let replica = ReplicaId::new(u32::try_from(n).unwrap_or(u32::MAX));
                self.effects.push_back(Effect::Start { replica });
            }
        }
        if !self.is_stopped && self.drain.is_some_and(|at| at <= now) {
            self.is_stopped = true;
            self.stop_everything(now);
        }
    }

    fn stop_everything(&mut self, now: Time) {
        let all: Vec<_> = self.requests.keys().copied().collect();
        for id in all {
            match self.running(id).map(|running| running.stopped) {
                None => {
                    self.refuse(id, Outcome::Evicted(Eviction::Draining));
                    self.drop_queued(id, Outcome::Evicted(Eviction::Draining), now);
                }
                Some(None) => self.cancel(id, Outcome::Fenced(Fence::Drain)),
                Some(Some(_)) => {}
            }
        }
    }

    fn running(&mut self, id: RequestId) -> Option<&mut Running> {
        self.requests.get_mut(&id)?.running.as_mut()
    }

    fn replica_up(&mut self, replica: ReplicaId, capacity: Capacity) {
        let engine = &mut self.engines[index(replica.get())];
        engine.is_up = true;
        engine.reported = KvBlocks::ZERO;
        engine.window.resize(capacity);
    }

    fn replica_down(&mut self, replica: ReplicaId, now: Time) {
        let engine = &mut self.engines[index(replica.get())];
        engine.is_up = false;
        engine.restart = Some(now + RESTART);
    }
}

impl Control for Plain {
    fn handle(&mut self, event: Event, now: Time) {
        match event {
            Event::Arrived(arrival) | Event::Sought(arrival, _) => self.arrive(arrival, now),
            Event::FirstToken { id } => {
                if let Some(running) = self.running(id) {
                    running.first_token.get_or_insert(now);
                }
            }
            Event::Stepped {
                replica, report, ..
            }
            | Event::Reported { replica, report } => {
                self.engines[index(replica.get())].reported = report.kv
            }
            Event::EngineEnded { id, ending, usage } => {
                if let EngineEnding::Failed(failure) = ending {
                    self.failed(id, failure, usage);
                }
                self.engine_ended(id, ending, usage, now);
            }
            Event::ClientEnded { id, ending } => self.client_ended(id, ending, now),
            Event::ReplicaUp { replica, capacity } => self.replica_up(replica, capacity),
            Event::ReplicaDown { replica } => self.replica_down(replica, now),
            Event::Drain { bound } => self.drain = Some(now + bound),
            Event::Turned { .. }
            | Event::Begun { .. }
            | Event::Streamed(_)
            | Event::Reckoned { .. }
            | Event::Noticed { .. }
            | Event::ReplicaFull { .. }
            | Event::ReplicaAdded { .. }
            | Event::ReplicaStopped { .. }
            | Event::ReplicaLeaving { .. }
            | Event::Reconfigured(_)
            | Event::Priced(_)
            | Event::Recalled { .. }
            | Event::Remembered { .. }
            | Event::Books(_)
            | Event::Wake => {}
        }
        self.expire(now);
        self.fill(now);
        if self.drain.is_some() && self.requests.is_empty() && !self.is_drained {
            self.is_drained = true;
            self.effects.push_back(Effect::Drained);
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn next_wake(&self) -> Option<Time> {
        let first = |set: &BTreeSet<(Time, RequestId)>| set.first().map(|(at, _)| *at);
        let restarts = self.engines.iter().filter_map(|engine| engine.restart);
        let drain = self.drain.filter(|_| !self.is_stopped);
        let sets = [&self.deadlines, &self.fences, &self.leases];
        let times = sets.into_iter().filter_map(first);
        times.chain(restarts).chain(drain).min()
    }

    fn gauges(&self) -> Gauges {
        let replica = |engine: &Engine| ReplicaGauges {
            model: crate::setup::MODEL,
            stay: Stay::Serving,
            health: match (engine.is_up, engine.restart) {
                (true, _) => State::Healthy,
                (false, None) => State::Starting,
                (false, Some(retry_at)) => State::Ejected { retry_at },
            },
            healthy: engine.is_up,
            window: engine.window,
            prefill_per_step: None,
        };
        let running = self.requests.len() - self.queue.len();
        Gauges {
            in_flight: self.requests.len(),
            pools: vec![PoolGauges {
                queued: self.queue.len(),
                queued_work: Tokens::ZERO,
                running: u32::try_from(running).unwrap_or(u32::MAX),
            }],
            replicas: self.engines.iter().map(replica).collect(),
        }
    }

    fn reserved(&self) -> Reserved {
        let each = self.levels.iter();
        each.fold(Reserved::default(), |sum, levels| Reserved {
            requests: sum.requests + levels.in_flight(),
            kv: sum.kv + levels.kv(),
        })
    }

    fn attained(&self, _: TenantId) -> Service {
        Service::ZERO
    }
}

fn first_due(set: &BTreeSet<(Time, RequestId)>, now: Time) -> Option<(Time, RequestId)> {
    set.first().copied().filter(|(at, _)| *at <= now)
}

fn tenant_id(n: usize) -> TenantId {
    TenantId::new(u32::try_from(n).unwrap_or(u32::MAX))
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
