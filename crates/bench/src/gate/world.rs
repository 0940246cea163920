//! The gate's run: arrivals, the policy, and one emulated engine, on one virtual clock.

use std::num::NonZeroU32;

use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{
    Config, Effect, Event, Gateway, Model, ReplicaConfig, Report, Served,
};
use tollgate_policy::ids::{ModelId, ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Target;
use tollgate_policy::request::{self, ClientEnding};
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant, TenantTable};
use tollgate_policy::units::{KvBytes, Micros, Time, Tokens};
use tollgate_policy::usage::{Usage, Weights};
use tollgate_policy::window::{Bounds, Capacity};
use tollgate_sim::emulated::{self, Emulated};
use tollgate_sim::workload::{Arrival, Workload};

use super::{Decisions, VERSION};
use crate::flood::Scenario;

const MODEL: ModelId = ModelId::new(0);
const REPLICA: ReplicaId = ReplicaId::new(0);

/// Requests come for so long.
const LOAD: Micros = Micros::from_secs(20);

/// One that floods, five quiet ones.
const TENANTS: usize = 6;

const SEED: u64 = 1;

/// Virtual time after which the run is given up: one with a single slot needs half an hour.
const PATIENCE: Time = Time::from_micros(4 * 3_600_000_000);

/// Longer than any run: nobody gives up.
const FOREVER: Micros = Micros::from_secs(10_000_000);

/// What is known of a request while it is under way, and after.
#[derive(Clone, Copy, Debug)]
struct Known {
    arrival: Arrival,
    first: Option<Time>,
    done: bool,
}

#[derive(Debug)]
pub(super) struct World {
    slots: u32,
    names: Vec<String>,
    requests: Vec<Known>,
    come: usize,
    gateway: Gateway,
    engine: Emulated,
    now: Time,
    dispatched: Vec<u64>,
    refused: u64,
    output: u64,
}

impl World {
    pub(super) fn new(slots: NonZeroU32) -> Result<Self, String> {
        let loads = Scenario::Flood.loads(TENANTS);
        let names: Vec<String> = loads.iter().map(|load| load.name.clone()).collect();
        let workload = Workload::drawn(loads, Time::START + LOAD, SEED);
        let workload = workload.map_err(|error| error.to_string())?;
        let config = emulated::Config {
            slots,
            ..emulated::Config::default()
        };
        let engine = Emulated::new(config).map_err(|error| error.to_string())?;
        let known = |arrival| Known {
            arrival,
            first: None,
            done: false,
        };
        let mut world = Self {
            slots: slots.get(),
            gateway: gateway(&names, &config),
            names,
            requests: workload.arrivals().map(known).collect(),
            come: 0,
            now: Time::START,
            dispatched: Vec::new(),
            refused: 0,
            output: 0,
            engine,
        };
        let capacity = Capacity {
            sequences: slots.get(),
            kv: world.engine.gauges().kv_total,
        };
        world.tell(Event::ReplicaUp {
            replica: REPLICA,
            capacity,
        });
        Ok(world)
    }

    pub(super) fn run(mut self) -> Result<Decisions, String> {
        while let Some(next) = self.next() {
            if next > PATIENCE {
                return Err(format!(
                    "not over after {} s of virtual time",
                    PATIENCE.as_micros() / 1_000_000
                ));
            }
            self.now = next;
            if self.engine.next_wake().is_some_and(|at| at <= self.now) {
                self.ask(emulated::Event::Wake);
            } else if self.gateway.next_wake().is_some_and(|at| at <= self.now) {
                self.tell(Event::Wake);
            } else {
                self.arrive();
            }
            if self.come == self.requests.len() && self.requests.iter().all(|one| one.done) {
                return Ok(self.decisions());
            }
        }
        Err("nothing more happens, and not all requests have ended".to_owned())
    }

    fn next(&self) -> Option<Time> {
        let arrival = self.requests.get(self.come).map(|one| one.arrival.at);
        let times = [arrival, self.engine.next_wake(), self.gateway.next_wake()];
        times.into_iter().flatten().min()
    }

    fn arrive(&mut self) {
        let Some(Known { arrival, .. }) = self.requests.get(self.come).copied() else {
            return;
        };
        let id = RequestId::new(self.come as u64);
        self.come += 1;
        self.tell(Event::Arrived(request::Arrival {
            id,
            tenant: TenantId::new(u32::try_from(arrival.tenant).unwrap_or(u32::MAX)),
            key: None,
            model: MODEL,
            prompt: arrival.prompt,
            output_max: Some(arrival.output),
            retry: false,
            slo: tollgate_policy::slo::Asked::default(),
            received: self.now,
        }));
    }

    /// Tells the policy a fact, and does what it orders.
    fn tell(&mut self, event: Event) {
        self.gateway.handle(event, self.now);
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Dispatch(dispatch) => {
                    self.dispatched.push(dispatch.id.get());
                    if let Some(arrival) = self.known(dispatch.id).map(|one| one.arrival) {
                        self.ask(emulated::Event::Arrived(emulated::Request {
                            id: dispatch.id,
                            prompt: arrival.prompt,
                            output: arrival.output,
                            prefix: std::sync::Arc::default(),
                        }));
                    }
                }
                Effect::Refuse(refusal) => {
                    self.refused += 1;
                    if let Some(known) = self.known(refusal.id) {
                        known.done = true;
                    }
                }
                Effect::Cancel { id, .. } => self.ask(emulated::Event::Cancelled(id)),
                // One engine that does not fail: there is nowhere else to go, and nothing to tell.
                Effect::Failed { .. }
                | Effect::Withdraw { .. }
                | Effect::Start { .. }
                | Effect::Stop { .. }
                | Effect::Retired { .. }
                | Effect::Mark(_)
                | Effect::Record(_)
                | Effect::Weighed(_)
                | Effect::Fit(_)
                | Effect::Drained => {}
            }
        }
    }

    /// Gives the engine an order, and tells the policy what it says.
    fn ask(&mut self, event: emulated::Event) {
        self.engine.handle(event, self.now);
        while let Some(effect) = self.engine.poll_effect() {
            self.heard(effect);
        }
    }

    fn heard(&mut self, effect: emulated::Effect) {
        match effect {
            emulated::Effect::Stepped { served } => self.stepped(&served),
            emulated::Effect::Ended { id, used } => {
                if let Some(known) = self.known(id) {
                    known.done = true;
                }
                let ending = EngineEnding::Finished(FinishReason::Length);
                self.over(id, ending, used, ClientEnding::Delivered);
            }
            emulated::Effect::Cancelled { id, used } => {
                if let Some(known) = self.known(id) {
                    known.done = true;
                }
                self.refused += 1;
                self.over(id, EngineEnding::Cancelled, used, ClientEnding::Delivered);
            }
            // The policy knows the context and the slots, so the engine refuses nothing.
            emulated::Effect::Refused { .. }
            | emulated::Effect::Started { .. }
            | emulated::Effect::Preempted { .. } => {}
        }
    }

    fn stepped(&mut self, served: &[emulated::Served]) {
        let now = self.now;
        let mut first = Vec::new();
        for one in served.iter().filter(|one| one.output > Tokens::ZERO) {
            self.output += one.output.get();
            if let Some(known) = self.known(one.id)
                && known.first.is_none()
            {
                known.first = Some(now);
                first.push(one.id);
            }
        }
        let one = |one: &emulated::Served| Served {
            id: one.id,
            prompt: one.prompt,
            output: one.output,
        };
        let gauges = self.engine.gauges();
        self.tell(Event::Stepped {
            replica: REPLICA,
            served: served.iter().map(one).collect(),
            report: Report {
                waiting: u32::try_from(gauges.waiting).unwrap_or(u32::MAX),
                kv: gauges.kv_used,
            },
        });
        for id in first {
            self.tell(Event::FirstToken { id });
        }
    }

    fn over(
        &mut self,
        id: RequestId,
        ending: EngineEnding,
        used: emulated::Used,
        client: ClientEnding,
    ) {
        let usage = Usage {
            prompt: used.prompt,
            cached: used.cached,
            output: used.output,
        };
        self.tell(Event::EngineEnded { id, ending, usage });
        self.tell(Event::ClientEnded { id, ending: client });
    }

    fn known(&mut self, id: RequestId) -> Option<&mut Known> {
        let at = usize::try_from(id.get()).ok()?;
        self.requests.get_mut(at)
    }

    fn decisions(self) -> Decisions {
        let quiet = Scenario::Flood.quiet(TENANTS);
        let is_quiet = |one: &&Known| {
            let name = self.names.get(one.arrival.tenant);
            name.is_some_and(|name| quiet.contains(name))
        };
        let waits = |wanted: bool| {
            let ours = self.requests.iter().filter(|one| is_quiet(one) == wanted);
            let mut waits: Vec<u64> = ours
                .filter_map(|one| Some(one.first?.since(one.arrival.at).get()))
                .collect();
            waits.sort_unstable();
            waits
        };
        let (quiet_waits, other_waits) = (waits(true), waits(false));
        let millis = self.now.as_micros() / 1_000;
        Decisions {
            version: VERSION,
            load: load_name(&self.requests),
            slots: self.slots,
            requests: self.requests.len() as u64,
            completed: self.engine.counters().finished,
            refused: self.refused,
            preempted: self.engine.counters().preempted,
            quiet_ttft_p50_us: ranked(&quiet_waits, 50),
            quiet_ttft_p99_us: ranked(&quiet_waits, 99),
            others_ttft_p99_us: ranked(&other_waits, 99),
            tokens_per_s: self.output * 1_000 / millis.max(1),
            dispatched: self.dispatched,
        }
    }
}

/// The number that so many per cent of the sorted ones do not pass.
fn ranked(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// A number for all requests of the load, as text: one that JSON readers do not round.
fn load_name(requests: &[Known]) -> String {
    let fold = |state: u64, number: u64| {
        number.to_le_bytes().iter().fold(state, |state, byte| {
            (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let state = requests.iter().fold(0xcbf2_9ce4_8422_2325, |state, one| {
        let Arrival {
            at,
            tenant,
            prompt,
            output,
            prefix: _,
        } = one.arrival;
        let numbers = [at.as_micros(), tenant as u64, prompt.get(), output.get()];
        numbers.into_iter().fold(state, fold)
    });
    format!("{state:016x}")
}

fn gateway(names: &[String], config: &emulated::Config) -> Gateway {
    let tenant = |name: &str| Tenant {
        name: name.to_owned(),
        class: Class::Standard,
        weight: NonZeroU32::MIN,
        models: Allowed::All,
        limits: Limits::default(),
        by_model: Default::default(),
        floor: 0,
    };
    let tenants = names.iter().map(|name| tenant(name)).collect();
    Gateway::new(Config {
        tenants: TenantTable::new(tenants, tenant("others")),
        models: vec![Model {
            context: config.context,
            queue_max: 100_000,
            max_wait: Some(FOREVER),
            max_stream: FOREVER,
            kv_per_token: KvBytes::new(1),
            target: Target::default(),
            window: Bounds::default(),
            routing: tollgate_policy::route::Policy::default(),
            loading: None,
        }],
        replicas: vec![ReplicaConfig {
            model: MODEL,
            only: None,
        }],
        fairness: Policy::default(),
        weights: Weights::default(),
        seed: SEED,
    })
}
