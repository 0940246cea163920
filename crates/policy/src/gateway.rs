//! The gateway's decisions, composed: facts come in by `handle`, orders go out by `poll_effect`.
//!
//! A driver calls [`Gateway::handle`] with each fact and the time, then carries out every effect in
//! order until [`Gateway::poll_effect`] is empty, and hands in [`Event::Wake`] at
//! [`Gateway::next_wake`] if nothing comes sooner. It never asks what to do, and is never asked
//! what happened.
//!
//! Each request ends in `end` of `gateway/end.rs`, whatever became of it: that is the one door.

mod arrive;
mod end;
mod event;
mod fleet;
#[cfg(test)]
mod law;
mod progress;
mod promise;
mod run;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use self::end::{Ended, Stranger};
pub use self::event::{
    Books, Dispatch, Effect, Event, Fit, Learned, Quota, Record, Refusal, Report, Served, Tenancy,
    Weighed,
};
use self::progress::Tracks;
pub use self::progress::{MARK_EVERY, Progress};
use self::standing::{Count, Standing};
use crate::budget::{Payer, Purses};
use crate::contract::Contract;
use crate::failover::Budget;
use crate::fair::{self, FairQueue};
use crate::health::{Health, State as HealthState};
use crate::ids::{ModelId, ReplicaId, RequestId, TenantId, position};
use crate::pace::{Steps, Target, Tpot};
use crate::rate::BusyRate;
use crate::request::Request;
use crate::retry::RetryBudget;
use crate::route::{self, Affinity, Router};
use crate::shelf::{self, Loading};
use crate::slo;
use crate::tenant::{Class, Tenant, TenantTable};
use crate::units::{KvByteMicros, KvBytes, Micros, NanoUsd, Service, Time, Tokens};
use crate::usage::Weights;
use crate::window::{Blocked, Bounds, Window};

/// What the gateway is made from: one immutable snapshot.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who may call.
    pub tenants: TenantTable,
    /// What they may call for; the n-th is [`ModelId`] n.
    pub models: Vec<Model>,
    /// The replicas; the n-th is [`ReplicaId`] n.
    pub replicas: Vec<ReplicaConfig>,
    /// By which rule the next request is chosen.
    pub fairness: fair::Policy,
    /// What a token of service counts.
    pub weights: Weights,
    /// Where the jitter of `Retry-After` comes from.
    pub seed: u64,
}

/// One replica, and for whom it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Its pool.
    pub model: ModelId,
    /// The one class it takes, where it does not take all.
    pub only: Option<Class>,
}

/// One model, and the bounds of its queue and its streams.
#[derive(Clone, Debug)]
pub struct Model {
    /// Prompt and output tokens that one request may use together.
    pub context: Tokens,
    /// Most requests that wait for it.
    pub queue_max: usize,
    /// How long a request waits; by class where it says nothing.
    pub max_wait: Option<Micros>,
    /// How long a request runs, from dispatch to its last byte.
    pub max_stream: Micros,
    /// KV memory of one token.
    pub kv_per_token: KvBytes,
    /// What its answers are promised to be like.
    pub target: Target,
    /// What its replicas may hold.
    pub window: Bounds,
    /// By which rule a replica is chosen.
    pub routing: route::Policy,
    /// What it takes to load it, where it is loaded only when it is asked for.
    pub loading: Option<Loading>,
}

/// The state behind every decision.
#[derive(Debug)]
pub struct Gateway {
    tenants: TenantTable,
    /// By `TenantId`; shorter than the table while later tenants have not called.
    contracts: Vec<Contract>,
    pools: Vec<Pool>,
    /// By `ModelId`: those that are loaded when they are asked for.
    shelf: Vec<Option<shelf::Item>>,
    replicas: Vec<Replica>,
    /// When time alone changes something about a replica. invariant: what the `count` of each says.
    alarms: BTreeSet<(Time, ReplicaId)>,
    /// Replicas that a fact has touched, which may not be as they are counted.
    touched: Vec<ReplicaId>,
    weights: Weights,
    /// invariant: each is in its pool's queue (queued) or its replica's window (running), and
    /// counted by its tenant.
    requests: BTreeMap<RequestId, Request>,
    /// When running requests are stopped. invariant: one entry for each that is running and not
    /// stopped.
    fences: BTreeSet<(Time, RequestId)>,
    /// Where those in `requests` are best served, where they say anything of it.
    affinities: BTreeMap<RequestId, Affinity>,
    retries: RetryBudget,
    purses: Purses,
    drain: Drain,
    books: Books,
    tracks: Tracks,
    jitter: Pcg64,
    effects: VecDeque<Effect>,
}

/// One model's queue, and how fast its replicas work.
#[derive(Debug)]
struct Pool {
    id: ModelId,
    model: Model,
    queue: FairQueue,
    rate: BusyRate,
    tpot: Tpot,
    running: u32,
    /// Its replicas, by [`Class::ALL`].
    standing: [Standing; 3],
    router: Router,
    failovers: Budget,
    /// Who is let in by what it would come to, where anything is promised.
    slo: Option<Box<slo::Admission>>,
    /// Who was passed by last, for want of room.
    passed: Option<Passed>,
}

/// A request that others went before, since there was room for them and not for it.
#[derive(Clone, Copy, Debug)]
struct Passed {
    id: RequestId,
    /// What it is expected to cost.
    work: Tokens,
    /// What those before it were expected to.
    by: Tokens,
}

/// One engine, as the policy knows it.
#[derive(Debug)]
struct Replica {
    model: ModelId,
    only: Option<Class>,
    stay: Stay,
    health: Health,
    window: Window,
    steps: Steps,
    /// How it is counted in its pool's standing and among the alarms.
    count: Count,
}

/// Whether a replica is there to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It is.
    Serving,
    /// It finishes what it has.
    Leaving,
    /// It is no more; its id waits for another.
    Retired,
}

/// Whether the gateway is going away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    /// It is not.
    No,
    /// It takes no new work, and stops what still runs at `bound`.
    Until { bound: Time },
    /// It stopped what still ran, and waits for the ends to come in.
    Stopped,
    /// Nothing is left.
    Done,
}

impl Gateway {
    /// A gateway with every replica still starting.
    pub fn new(config: Config) -> Self {
        let (fairness, seed) = (config.fairness, config.seed);
        let replica = |of: &ReplicaConfig| {
            let model = &config.models[position(of.model.get())];
            Replica::starting(*of, bounds(fairness, model))
        };
        let replicas = config.replicas.iter().map(replica).collect();
        let on_shelf = |model: &Model| model.loading.map(shelf::Item::new);
        let shelf = config.models.iter().map(on_shelf).collect();
        let pool = |(id, model): (u32, Model)| Pool {
            id: ModelId::new(id),
            queue: FairQueue::new(fairness, model.queue_max),
            standing: std::array::from_fn(|_| Standing::default()),
            router: Router::new(model.routing, seed ^ u64::from(id)),
            failovers: Budget::default(),
            slo: promise::admission(&model.target.slo),
            model,
            rate: BusyRate::default(),
            tpot: Tpot::default(),
            running: 0,
            passed: None,
        };
        Self {
            tenants: config.tenants,
            contracts: Vec::new(),
            pools: (0..).zip(config.models).map(pool).collect(),
            shelf,
            replicas,
            alarms: BTreeSet::new(),
            touched: Vec::new(),
            weights: config.weights,
            requests: BTreeMap::new(),
            fences: BTreeSet::new(),
            affinities: BTreeMap::new(),
            retries: RetryBudget::default(),
            purses: Purses::default(),
            drain: Drain::No,
            books: Books::Open,
            tracks: Tracks::default(),
            jitter: Pcg64::seed_from_u64(seed),
            effects: VecDeque::new(),
        }
    }

    /// Takes in a fact.
    pub fn handle(&mut self, event: Event, now: Time) {
        self.tracks.hear(&event, now);
        self.notice_overdue(now);
        match event {
            Event::Arrived(arrival) => self.arrive(arrival, Affinity::default(), now),
            Event::Sought(arrival, affinity) => self.arrive(arrival, affinity, now),
            Event::Turned {
                id,
                tenant,
                outcome,
                received,
            } => {
                let stranger = Stranger {
                    tenant,
                    model: None,
                    received,
                };
                self.end(Ended::at_the_door(id, stranger, outcome), now);
            }
            Event::FirstToken { id } => self.first_token(id, now),
            Event::Begun { id } => self.begun(id, now),
            Event::Stepped {
                replica,
                served,
                report,
            } => {
                self.stepped(replica, &served, report, now);
            }
            Event::Streamed(served) => self.streamed(served, now),
            Event::Reported { replica, report } => self.reported(replica, report, now),
            Event::Reckoned { id } => self.reckoned(id),
            Event::EngineEnded { id, ending, usage } => self.engine_ended(id, ending, usage, now),
            Event::ClientEnded { id, ending } => self.client_ended(id, ending, now),
            Event::ReplicaUp { replica, capacity } => self.replica_up(replica, capacity, now),
            Event::ReplicaDown { replica } => self.replica_down(replica, now),
            Event::Noticed { replica, sign } => self.noticed(replica, sign, now),
            Event::ReplicaFull { replica, wait } => self.replica_full(replica, wait, now),
            Event::ReplicaAdded { replica, config } => self.add_replica(replica, config),
            Event::ReplicaStopped { replica } => self.replica_stopped(replica),
            Event::ReplicaLeaving { replica } => self.leave(replica),
            Event::Reconfigured(tenancy) => self.reconfigure(*tenancy, now),
            Event::Recalled { model, learned } => self.recall(model, learned),
            Event::Priced(tariff) => self.purses.change(*tariff, now),
            Event::Drain { bound } => self.begin_drain(bound, now),
            Event::Remembered {
                tenant,
                model,
                past,
            } => {
                self.contract(tenant, now);
                let of = self.tenants.tenant(tenant);
                let contract = &mut self.contracts[position(tenant.get())];
                contract.remember(of, model, &past, now);
            }
            Event::Books(books) => self.books = books,
            Event::Wake => {}
        }
        let due = self.tracks.due(now).into_iter();
        self.effects.extend(due.map(Effect::Mark));
        self.expire(now);
        self.tend_shelf(now);
        self.count_touched();
        self.report_drained();
        self.invariants();
    }

    /// The next order to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to hand in [`Event::Wake`] if nothing else comes sooner.
    pub fn next_wake(&self) -> Option<Time> {
        let deadline = self
            .pools
            .iter()
            .filter_map(|pool| Some(pool.queue.first_deadline()?.0));
        let fence = self.fences.first().map(|(at, _)| *at);
        let retry = self.alarms.first().map(|(at, _)| *at);
        let drain = match self.drain {
            Drain::Until { bound } => Some(bound),
            Drain::No | Drain::Stopped | Drain::Done => None,
        };
        deadline.chain(fence).chain(retry).chain(drain).min()
    }

    /// The tenant that a trusted header names.
    pub fn tenant_named_by_header(&mut self, name: &str) -> TenantId {
        self.tenants.named_by_header(name)
    }

    /// What this tenant may have.
    pub fn tenant(&self, id: TenantId) -> &Tenant {
        self.tenants.tenant(id)
    }

    /// What this tenant has left, for the headers of any answer to it: in all, or of a model where
    /// that is less.
    pub fn quota(&mut self, id: TenantId, model: Option<ModelId>, now: Time) -> Quota {
        let contract = self.contract(id, now);
        Quota {
            requests: contract.requests(model, now),
            tokens: contract.tokens(model, now),
        }
    }

    /// What a payer has spent in the window of its budget, and what its requests in flight hold;
    /// `None` where it has no budget.
    pub fn spending(&self, payer: Payer) -> Option<(NanoUsd, NanoUsd)> {
        self.purses.standing(payer)
    }

    /// Whether traffic should be sent here: some model has a replica that takes work, what is
    /// served can be written down, and the gateway is staying.
    ///
    /// A gateway without any model is ready too: it has all it will ever have.
    pub fn is_ready(&self) -> bool {
        let up = |pool: &Pool| {
            // One that is loaded when it is asked for is as ready as it will be.
            pool.model.loading.is_some() || self.has_replica(pool.id, Health::is_healthy)
        };
        let staying = self.drain == Drain::No && self.books == Books::Open;
        staying && self.pools.iter().all(up)
    }

    /// Whether what is served can be written down.
    pub fn books(&self) -> Books {
        self.books
    }

    /// Which model a request that is in flight is for, and when it was received.
    pub fn received(&self, id: RequestId) -> Option<(ModelId, Time)> {
        let request = self.requests.get(&id)?;
        Some((request.model, request.received))
    }

    /// Whether the gateway is going away.
    pub fn is_draining(&self) -> bool {
        self.drain != Drain::No
    }

    /// Prompt and output tokens that one request for this model may use together.
    pub fn context(&self, model: ModelId) -> Tokens {
        self.pools[position(model.get())].model.context
    }

    /// What is where, now.
    pub fn gauges(&self) -> Gauges {
        let pool = |pool: &Pool| PoolGauges {
            queued: pool.queue.len(),
            queued_work: pool.queue.work(),
            running: pool.running,
        };
        let replica = |replica: &Replica| ReplicaGauges {
            model: replica.model,
            stay: replica.stay,
            health: replica.health.state(),
            healthy: replica.health.is_healthy(),
            window: replica.window,
            prefill_per_step: replica.steps.prefill_per_step(),
        };
        Gauges {
            in_flight: self.requests.len(),
            pools: self.pools.iter().map(pool).collect(),
            replicas: self.replicas.iter().map(replica).collect(),
        }
    }

    /// The requests that wait for a model, in the order of their arrival: the first `max` of them.
    pub fn queue_view(&self, model: ModelId, max: usize) -> Vec<QueueEntry> {
        let pool = &self.pools[position(model.get())];
        let mut before: BTreeMap<TenantId, u32> = BTreeMap::new();
        let entries = pool.queue.iter().take(max).filter_map(|waiting| {
            let position = before.entry(waiting.tenant).or_default();
            *position += 1;
            let ahead = pool.queue.ahead_of_waiting(waiting, *position);
            Some(QueueEntry {
                id: waiting.id,
                tenant: waiting.tenant,
                class: waiting.class,
                arrived: self.requests.get(&waiting.id)?.received,
                position: *position,
                ahead,
                // Who is first waits for a place, and nobody knows how long.
                estimate: (ahead > Tokens::ZERO)
                    .then(|| pool.rate.time_for(ahead))
                    .flatten(),
                waits: self.waits(pool, waiting),
            })
        });
        entries.collect()
    }

    /// Service each tenant has had, over all models, before division by its weight.
    pub fn attained(&self, tenant: TenantId) -> Service {
        let each = self.pools.iter().map(|pool| pool.queue.attained(tenant));
        each.fold(Service::ZERO, |sum, one| sum + one)
    }

    /// The same by weight: what tenants are compared by, also in an engine.
    pub fn attained_by_weight(&self, tenant: TenantId) -> Service {
        let weight = u64::from(self.tenants.tenant(tenant).weight.get());
        Service::new(self.attained(tenant).get() / weight)
    }

    /// What all tenants' levels hold together for requests that have not ended; nothing once all
    /// have.
    pub fn reserved(&self) -> Reserved {
        let each = self.contracts.iter();
        each.fold(Reserved::default(), |sum, contract| Reserved {
            requests: sum.requests + contract.in_flight(),
            kv: sum.kv + contract.kv(),
        })
    }

    /// What each tenant has had of one model, by `TenantId`.
    pub fn attained_of(&self, model: ModelId) -> Vec<Attained> {
        let queue = &self.pools[position(model.get())].queue;
        let tenants = (0..self.tenants.len()).filter_map(|n| u32::try_from(n).ok());
        let each = tenants.map(TenantId::new).map(|id| Attained {
            service: queue.attained(id),
            weight: self.tenants.tenant(id).weight,
            waits: queue.waits(id),
        });
        each.collect()
    }

    /// The id that the next replica to be added gets.
    pub fn free_replica_id(&self) -> ReplicaId {
        let retired = self
            .replicas
            .iter()
            .position(|one| one.stay == Stay::Retired);
        let place = retired.unwrap_or(self.replicas.len());
        ReplicaId::new(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// How many tenants there are; their ids count up from zero.
    pub fn tenant_count(&self) -> usize {
        self.tenants.len()
    }

    fn contract(&mut self, id: TenantId, now: Time) -> &mut Contract {
        for n in self.contracts.len()..=position(id.get()) {
            let tenant = self
                .tenants
                .tenant(TenantId::new(u32::try_from(n).unwrap_or(u32::MAX)));
            self.contracts.push(Contract::new(tenant, now));
        }
        &mut self.contracts[position(id.get())]
    }

    /// Takes on other tenants and limits. What was used stays used, and what is in flight goes on.
    fn reconfigure(&mut self, tenancy: Tenancy, now: Time) {
        self.tenants.replace(tenancy.tenants, tenancy.template);
        self.weights = tenancy.weights;
        for (contract, n) in self.contracts.iter_mut().zip(0..) {
            contract.change(self.tenants.tenant(TenantId::new(n)), now);
        }
    }

    fn pool(&mut self, id: ModelId) -> &mut Pool {
        &mut self.pools[position(id.get())]
    }

    fn replica(&mut self, id: ReplicaId) -> &mut Replica {
        self.touched.push(id);
        &mut self.replicas[position(id.get())]
    }

    fn has_replica(&self, model: ModelId, is: impl Fn(&Health) -> bool) -> bool {
        let serving = |replica: &&Replica| replica.model == model && replica.stay == Stay::Serving;
        let mut mine = self.replicas.iter().filter(serving);
        mine.any(|replica| is(&replica.health))
    }

    /// `base`, and up to as much again: told the same time, clients would all come back in the same
    /// instant.
    fn jittered(&mut self, base: Micros) -> Micros {
        let spread = u128::from(base.get()) + 1;
        let drawn = (u128::from(self.jitter.next_u64()) * spread) >> 64;
        base + Micros::new(u64::try_from(drawn).unwrap_or(u64::MAX))
    }

    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let queued: usize = self.pools.iter().map(|pool| pool.queue.len()).sum();
        let running: u32 = self.pools.iter().map(|pool| pool.running).sum();
        let held: u32 = self
            .replicas
            .iter()
            .map(|replica| replica.window.sequences())
            .sum();
        let counted: u32 = self.contracts.iter().map(Contract::in_flight).sum();
        let in_flight = self.requests.len();
        assert_eq!(running, held, "a running request is in exactly one window");
        assert_eq!(
            Ok(in_flight),
            usize::try_from(counted),
            "a tenant counts what it has in flight"
        );
        assert_eq!(usize::try_from(running).map(|n| n + queued), Ok(in_flight));
        self.standing_invariants();
        assert!(self.fences.len() <= in_flight);
        let known = |id| self.requests.contains_key(id);
        assert!(self.affinities.keys().all(known), "an affinity of nobody");
    }
}

/// What the replicas of a model may hold under this rule.
fn bounds(fairness: fair::Policy, model: &Model) -> Bounds {
    match fairness {
        // The baseline keeps nothing back, but for the size it was given.
        fair::Policy::Fifo => Bounds {
            concurrency: model.window.concurrency,
            reach: model.window.reach,
            ..Bounds::open()
        },
        fair::Policy::Drr { .. } | fair::Policy::Vtc => model.window,
    }
}

/// What levels hold for requests that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Requests, queued and running.
    pub requests: u32,
    /// KV over time.
    pub kv: KvByteMicros,
}

/// What one tenant has had of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attained {
    /// Service since the start, before division by its weight.
    pub service: Service,
    /// Its share.
    pub weight: NonZeroU32,
    /// Whether a request of its waits.
    pub waits: bool,
}

/// One request that waits, as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Its tenant's promise.
    pub class: Class,
    /// When it was received.
    pub arrived: Time,
    /// Its place among its tenant's own, from 1.
    pub position: u32,
    /// The work that is served before it.
    pub ahead: Tokens,
    /// How long that takes, where there is any and it has been measured.
    pub estimate: Option<Micros>,
    /// What it waits for.
    pub waits: Waits,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Its turn: there is room for it, and somebody is before it.
    Turn,
    /// A replica that takes requests of its class.
    Replica,
    /// Room.
    Room(Blocked),
}

impl Waits {
    /// The reason as operators read it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Replica => "replica",
            Self::Room(blocked) => blocked.label(),
        }
    }
}

/// What is where, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Requests queued or running.
    pub in_flight: usize,
    /// By model.
    pub pools: Vec<PoolGauges>,
    /// By replica.
    pub replicas: Vec<ReplicaGauges>,
}

/// What one model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolGauges {
    /// Requests that wait.
    pub queued: usize,
    /// Their prompts and estimated outputs.
    pub queued_work: Tokens,
    /// Requests that run.
    pub running: u32,
}

/// What one replica has.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaGauges {
    /// Its pool.
    pub model: ModelId,
    /// Whether it is there to stay.
    pub stay: Stay,
    /// Whether it works, and if not, when it is tried again.
    pub health: HealthState,
    /// Whether it takes work.
    pub healthy: bool,
    /// What it holds of what it may.
    pub window: Window,
    /// Prompt tokens that take it as long as a step without any, as measured.
    pub prefill_per_step: Option<Tokens>,
}

impl PartialEq for ReplicaGauges {
    fn eq(&self, other: &Self) -> bool {
        let held = |one: &Self| (one.window.sequences(), one.window.kv());
        self.model == other.model && self.healthy == other.healthy && held(self) == held(other)
    }
}

impl Eq for ReplicaGauges {}
