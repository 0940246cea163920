//! Tollgate's own gateway, driven on the virtual clock: the very code that the server runs.

use std::num::NonZeroU32;

use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{
    Config, Effect, Event, Gateway, Model, ReplicaConfig, Report, Served,
};
use tollgate_policy::ids::{ModelId, ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Target;
use tollgate_policy::request::{self, ClientEnding};
use tollgate_policy::route;
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant, TenantTable};
use tollgate_policy::units::{KvBlocks, KvBytes, Micros, Time, Tokens};
use tollgate_policy::usage::{Usage, Weights};
use tollgate_policy::window::{Bounds, Capacity};

use super::{OUTPUT_GUESS, Schedule};
use crate::workload::Arrival;

const MODEL: ModelId = ModelId::new(0);
const REPLICA: ReplicaId = ReplicaId::new(0);

/// Longer than any simulation: nobody gives up.
const FOREVER: Micros = Micros::from_secs(10_000_000);

pub(super) struct Ours {
    gateway: Gateway,
    now: Time,
    go: Vec<usize>,
}

impl Ours {
    pub(super) fn new(policy: Policy, tenants: usize, room: Tokens) -> Self {
        let tenant = |n: usize| Tenant {
            name: format!("t{n}"),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits: Limits::default(),
            by_model: Default::default(),
            floor: 0,
        };
        let model = Model {
            context: Tokens::new(1_000_000),
            queue_max: 10_000_000,
            max_wait: Some(FOREVER),
            max_stream: FOREVER,
            kv_per_token: KvBytes::new(1),
            target: Target::default(),
            // The same rule of what fits as for the plain ones; only who goes next is compared.
            window: Bounds::open(),
            routing: route::Policy::default(),
            loading: None,
        };
        let mut ours = Self {
            gateway: Gateway::new(Config {
                tenants: TenantTable::new((0..tenants).map(tenant).collect(), tenant(tenants)),
                models: vec![model],
                replicas: vec![ReplicaConfig {
                    model: MODEL,
                    only: None,
                }],
                fairness: policy,
                weights: Weights::default(),
                seed: 1,
            }),
            now: Time::START,
            go: Vec::new(),
        };
        let kv = KvBlocks::new(room.get() / KvBlocks::SLOTS.get());
        let capacity = Capacity {
            sequences: u32::MAX,
            kv,
        };
        ours.handle(Event::ReplicaUp {
            replica: REPLICA,
            capacity,
        });
        ours
    }

    fn handle(&mut self, event: Event) {
        self.gateway.handle(event, self.now);
        while let Some(effect) = self.gateway.poll_effect() {
            if let Effect::Dispatch(dispatch) = effect {
                self.go
                    .push(usize::try_from(dispatch.id.get()).unwrap_or(usize::MAX));
            }
        }
    }
}

impl Schedule for Ours {
    fn arrived(&mut self, id: usize, arrival: &Arrival, now: Time) {
        self.now = now;
        self.handle(Event::Arrived(request::Arrival {
            id: name(id),
            tenant: TenantId::new(u32::try_from(arrival.tenant).unwrap_or(u32::MAX)),
            key: None,
            model: MODEL,
            prompt: arrival.prompt,
            output_max: Some(OUTPUT_GUESS),
            retry: false,
            slo: tollgate_policy::slo::Asked::default(),
            received: now,
        }));
    }

    fn admit(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.go)
    }

    fn served(&mut self, served: &[(usize, Tokens, Tokens)], now: Time) {
        self.now = now;
        let one = |(id, prompt, output): &(usize, Tokens, Tokens)| Served {
            id: name(*id),
            prompt: *prompt,
            output: *output,
        };
        let served = served.iter().map(one).collect();
        self.handle(Event::Stepped {
            replica: REPLICA,
            served,
            report: Report::default(),
        });
    }

    fn ended(&mut self, id: usize, arrival: &Arrival, now: Time) {
        self.now = now;
        let usage = Usage {
            prompt: arrival.prompt,
            cached: Tokens::ZERO,
            output: arrival.output,
        };
        let ending = EngineEnding::Finished(FinishReason::Stop);
        self.handle(Event::EngineEnded {
            id: name(id),
            ending,
            usage,
        });
        self.handle(Event::ClientEnded {
            id: name(id),
            ending: ClientEnding::Delivered,
        });
    }
}

fn name(id: usize) -> RequestId {
    RequestId::new(u64::try_from(id).unwrap_or(u64::MAX))
}
