//! A gateway with a flaw: the real policy, whose facts and orders are tampered with on their way.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{Effect, Event, Gateway, Gauges, Record, Reserved};
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::Outcome;
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant};
use tollgate_policy::units::{KvBlocks, KvBytes, Micros, Service, Time, Tokens};
use tollgate_policy::usage::Usage;
use tollgate_policy::window::{Bounds, Capacity};

use crate::arrivals::Arrivals;
use crate::client::Manners;
use crate::control::Control;
use crate::emulated::{self, Cost};
use crate::lengths::Lengths;
use crate::machine::{ImitatedConfig, MachineConfig, Sharing};
use crate::setup::{Caller, Checks, ReplicaSetup, Says, Setup};
use crate::workload::{TenantLoad, Workload};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    LosesAnEnd,
    EndsOneTwice,
    BillsATokenMore,
    MarksATokenMore,
    ThinksKvIsLarger,
    EndsOneBesideTheDoor,
    ForgetsDeadlines,
    ServesInOrderOfArrival,
    LetsArrivalsLie,
    AlwaysAwake,
}

/// The request that the flaw is about, where it is about one.
const VICTIM: RequestId = RequestId::new(20);

pub(super) struct Planted {
    inner: Gateway,
    flaw: Flaw,
    late: Option<Event>,
    effects: VecDeque<Effect>,
    /// The usage that the victim's engine told.
    made: Usage,
}

/// A flooder and two quiet tenants on one small replica that they overload together.
pub(super) fn setup(seed: u64) -> Setup {
    let caller = |name: &str| Caller {
        tenant: Tenant {
            name: name.to_owned(),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits: Limits::default(),
            by_model: Default::default(),
            floor: 0,
        },
        manners: Manners::default(),
        texts: None,
        says: Says::Truth,
    };
    let load = |name: &str, (rate, output)| {
        let prompt = Lengths::Uniform { min: 1, max: 100 };
        let arrivals = Arrivals::Poisson { rate };
        TenantLoad::new(name, arrivals, prompt, Lengths::Constant(output))
    };
    let names = ["flood", "calm", "still"];
    // Answers of the last one take longer than a second, so that they are marked on the way.
    let loads = names.into_iter().zip([(40.0, 40), (4.0, 40), (2.0, 120)]);
    let loads = loads.map(|(name, asks)| load(name, asks)).collect();
    let until = Time::START + Micros::from_secs(30);
    let engine = emulated::Config {
        slots: NonZeroU32::MIN.saturating_add(7),
        cost: Cost::default(),
        chunk: Tokens::new(256),
        kv: Tokens::new(1_024),
        context: Tokens::new(256),
        ..emulated::Config::default()
    };
    Setup {
        seed,
        workload: Workload::drawn(loads, until, seed).unwrap(),
        callers: names.map(caller).to_vec(),
        fleet: vec![ReplicaSetup {
            machine: MachineConfig::Emulated(ImitatedConfig {
                engine,
                sharing: Sharing::Tenant,
            }),
            only: None,
            report_every: Micros::ZERO,
            starts_in: Micros::from_secs(1),
            others: None,
        }],
        model: tollgate_policy::gateway::Model {
            context: Tokens::new(256),
            queue_max: 10_000,
            max_wait: Some(Micros::from_secs(20)),
            max_stream: Micros::from_secs(60),
            kv_per_token: KvBytes::new(1),
            target: tollgate_policy::pace::Target::default(),
            window: Bounds::default(),
            routing: tollgate_policy::route::Policy::default(),
            loading: None,
        },
        fairness: Policy::Vtc,
        faults: vec![],
        warmup: Time::START,
        drain: Micros::from_secs(30),
        checks: Checks::All,
        score: None,
        longer: None,
    }
}

impl Planted {
    pub(super) fn new(setup: &Setup, flaw: Flaw) -> Self {
        let mut config = setup.config();
        match flaw {
            Flaw::ForgetsDeadlines => {
                config.models[0].max_wait = Some(Micros::from_secs(3_600));
            }
            Flaw::ServesInOrderOfArrival => config.fairness = Policy::Fifo,
            Flaw::None
            | Flaw::LosesAnEnd
            | Flaw::EndsOneTwice
            | Flaw::BillsATokenMore
            | Flaw::MarksATokenMore
            | Flaw::ThinksKvIsLarger
            | Flaw::EndsOneBesideTheDoor
            | Flaw::LetsArrivalsLie
            | Flaw::AlwaysAwake => {}
        }
        Self {
            inner: Gateway::new(config),
            flaw,
            late: None,
            effects: VecDeque::new(),
            made: Usage::default(),
        }
    }

    /// The fact as the flawed gateway hears it.
    fn tampered(&mut self, event: Event, now: Time) -> Option<Event> {
        match (self.flaw, event) {
            (Flaw::ThinksKvIsLarger, Event::ReplicaUp { replica, capacity }) => {
                let kv = KvBlocks::new(capacity.kv.get() * 4);
                let capacity = Capacity { kv, ..capacity };
                Some(Event::ReplicaUp { replica, capacity })
            }
            (Flaw::LetsArrivalsLie, event @ Event::Arrived(_)) => self.late.replace(event),
            (Flaw::EndsOneBesideTheDoor, Event::ClientEnded { id: VICTIM, .. }) => {
                self.effects.push_back(Effect::Record(self.forged(now)));
                None
            }
            (_, event) => {
                if let Event::EngineEnded {
                    id: VICTIM, usage, ..
                } = event
                {
                    self.made = usage;
                }
                Some(event)
            }
        }
    }

    fn forged(&self, now: Time) -> Record {
        Record {
            id: VICTIM,
            tenant: None,
            key: None,
            model: None,
            replica: None,
            outcome: Outcome::Bug,
            kv: tollgate_policy::units::KvByteMicros::default(),
            usage: self.made,
            counted: tollgate_policy::usage::Counted::Exactly,
            received: now,
            dispatched: None,
            first_token: None,
            ended: now,
        }
    }
}

impl Control for Planted {
    fn handle(&mut self, event: Event, now: Time) {
        let closes = matches!(event, Event::Drain { .. });
        if closes && let Some(late) = self.late.take() {
            self.inner.handle(late, now);
        }
        if let Some(event) = self.tampered(event, now) {
            self.inner.handle(event, now);
        }
        // What it holds for the victim it holds for ever, and says that it is done all the same.
        let leaks = self.flaw == Flaw::EndsOneBesideTheDoor;
        if leaks && self.inner.is_draining() && self.inner.gauges().in_flight == 1 {
            self.effects.push_back(Effect::Drained);
        }
        while let Some(effect) = self.inner.poll_effect() {
            self.effects.push_back(effect);
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front()?;
        match (self.flaw, effect) {
            (Flaw::LosesAnEnd, Effect::Record(record)) if record.id == VICTIM => self.poll_effect(),
            (Flaw::EndsOneTwice, Effect::Record(record)) if record.id == VICTIM => {
                self.flaw = Flaw::None;
                self.effects.push_front(Effect::Record(record));
                Some(Effect::Record(record))
            }
            (Flaw::BillsATokenMore, Effect::Record(record)) if record.id == VICTIM => {
                let output = record.usage.output + Tokens::new(1);
                let usage = Usage {
                    output,
                    ..record.usage
                };
                Some(Effect::Record(Record { usage, ..record }))
            }
            (Flaw::MarksATokenMore, Effect::Mark(progress)) => {
                let mut more = progress;
                more.usage.output += Tokens::new(1);
                Some(Effect::Mark(more))
            }
            (_, effect) => Some(effect),
        }
    }

    fn next_wake(&self) -> Option<Time> {
        match self.flaw {
            Flaw::AlwaysAwake => Some(Time::START),
            Flaw::None
            | Flaw::LosesAnEnd
            | Flaw::EndsOneTwice
            | Flaw::BillsATokenMore
            | Flaw::MarksATokenMore
            | Flaw::ThinksKvIsLarger
            | Flaw::EndsOneBesideTheDoor
            | Flaw::ForgetsDeadlines
            | Flaw::ServesInOrderOfArrival
            | Flaw::LetsArrivalsLie => self.inner.next_wake(),
        }
    }

    fn gauges(&self) -> Gauges {
        self.inner.gauges()
    }

    fn reserved(&self) -> Reserved {
        self.inner.reserved()
    }

    fn attained(&self, tenant: TenantId) -> Service {
        self.inner.attained(tenant)
    }
}

/// The victim's client has to be one that takes its answer for the flaws to be about it.
#[test]
fn the_victim_is_served_where_nothing_is_wrong() {
    let setup = setup(0);
    let mut seen = false;
    let mut write = |line: &str| {
        seen |= line.contains("record request=20 outcome=completed");
    };
    let log = super::Log::new(&mut write);
    super::run(&setup, Planted::new(&setup, Flaw::None), Some(log));
    assert!(seen);
}
