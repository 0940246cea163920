//! The law of fair sharing, over adversarial arrivals, weights and lengths, on the gateway itself.
//!
//! While two tenants both have requests waiting, the service they are given, by weight, differs by
//! no more than a constant (Sheng et al., OSDI 2024, theorem 4.4; Shreedhar and Varghese, SIGCOMM
//! 1995, theorem 3). No tenant starves, and no room is left idle while a request waits that may use
//! it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::outcome::{EngineEnding, FinishReason};
use crate::request::{Arrival, ClientEnding};
use crate::tenant::{Allowed, Limits};
use crate::units::KvBlocks;
use crate::usage::Usage;
use crate::window::Capacity;

const SLOTS: u32 = 4;
const PROMPT_MAX: u64 = 60;
const OUTPUT_MAX: u64 = 40;
const QUANTUM: u64 = 64;

/// A request of one tenant: when it arrives, counted in steps, and how long it turns out to be.
#[derive(Clone, Copy, Debug)]
struct Plan {
    step: u16,
    tenant: usize,
    prompt: u64,
    output: u64,
    says: bool,
}

fn plans(tenants: usize) -> impl Strategy<Value = Vec<Plan>> {
    let plan = (
        0_u16..300,
        0..tenants,
        1..=PROMPT_MAX,
        1..=OUTPUT_MAX,
        any::<bool>(),
    );
    let plan = plan.prop_map(|(step, tenant, prompt, output, says)| Plan {
        step,
        tenant,
        prompt,
        output,
        says,
    });
    // A flood of one tenant at the start is what hurts most.
    let flood = (0..tenants, 20_usize..120, 1..=PROMPT_MAX, 1..=OUTPUT_MAX);
    (prop::collection::vec(plan, 20..200), flood).prop_map(|(mut plans, flood)| {
        let (tenant, count, prompt, output) = flood;
        let one = Plan {
            step: 0,
            tenant,
            prompt,
            output,
            says: false,
        };
        plans.extend(std::iter::repeat_n(one, count));
        plans.sort_by_key(|plan| plan.step);
        plans
    })
}

/// A world of one replica that serves every running request a token per step.
struct World {
    gateway: Gateway,
    now: Time,
    weights: Vec<u64>,
    lengths: BTreeMap<RequestId, Plan>,
    /// Running requests and the tokens each has been given.
    running: BTreeMap<RequestId, u64>,
    waiting: Vec<u32>,
    served: Vec<u64>,
    gaps: Gaps,
}

/// The widest gap in service between each pair of tenants while both wait.
#[derive(Default)]
struct Gaps {
    /// Least and most of the difference, scaled, while both have waited without a break.
    open: BTreeMap<(usize, usize), (i128, i128)>,
    widest: i128,
}

/// Service is compared in units of 1 / `SCALE`, so that weights up to 4 divide it.
const SCALE: i128 = 12;

impl World {
    fn new(policy: fair::Policy, weights: &[u32]) -> Self {
        let tenant = |(n, weight): (usize, &u32)| Tenant {
            name: format!("t{n}"),
            class: Class::Standard,
            weight: NonZeroU32::new(*weight).unwrap(),
            models: Allowed::All,
            limits: Limits::default(),
            by_model: Default::default(),
            floor: 0,
        };
        let tenants: Vec<_> = weights.iter().enumerate().map(tenant).collect();
        let template = tenants[0].clone();
        let model = Model {
            context: Tokens::new(PROMPT_MAX + OUTPUT_MAX),
            queue_max: 10_000,
            max_wait: Some(Micros::from_secs(1_000_000)),
            max_stream: Micros::from_secs(1_000_000),
            kv_per_token: KvBytes::new(1),
            target: Target::default(),
            routing: route::Policy::default(),
            loading: None,
            window: Bounds {
                prefill: crate::window::Knob::Fixed(Tokens::new(1_000_000)),
                ..Bounds::default()
            },
        };
        let mut gateway = Gateway::new(Config {
            tenants: TenantTable::new(tenants, template),
            models: vec![model],
            replicas: vec![ReplicaConfig {
                model: ModelId::new(0),
                only: None,
            }],
            fairness: policy,
            weights: Weights::default(),
            seed: 1,
        });
        let capacity = Capacity {
            sequences: SLOTS,
            kv: KvBlocks::new(100_000),
        };
        gateway.handle(
            Event::ReplicaUp {
                replica: ReplicaId::new(0),
                capacity,
            },
            Time::START,
        );
        let count = weights.len();
        Self {
            gateway,
            now: Time::START,
            weights: weights.iter().map(|weight| u64::from(*weight)).collect(),
            lengths: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: vec![0; count],
            served: vec![0; count],
            gaps: Gaps::default(),
        }
    }

    fn handle(&mut self, event: Event) {
        self.gateway.handle(event, self.now);
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Dispatch(dispatch) => {
                    let plan = self.lengths[&dispatch.id];
                    self.waiting[plan.tenant] -= 1;
                    self.running.insert(dispatch.id, 0);
                }
                Effect::Mark(_) | Effect::Record(_) | Effect::Weighed(_) | Effect::Fit(_) => {}
                Effect::Refuse(_)
                | Effect::Cancel { .. }
                | Effect::Start { .. }
                | Effect::Failed { .. }
                | Effect::Withdraw { .. }
                | Effect::Stop { .. }
                | Effect::Retired { .. }
                | Effect::Drained => panic!("not in this world: {effect:?}"),
            }
        }
    }

    fn arrive(&mut self, id: u64, plan: Plan) {
        let id = RequestId::new(id);
        self.lengths.insert(id, plan);
        self.waiting[plan.tenant] += 1;
        self.handle(Event::Arrived(Arrival {
            id,
            tenant: TenantId::new(u32::try_from(plan.tenant).unwrap()),
            key: None,
            model: ModelId::new(0),
            prompt: Tokens::new(plan.prompt),
            output_max: plan.says.then(|| Tokens::new(plan.output)),
            retry: false,
            slo: slo::Asked::default(),
            received: self.now,
        }));
    }

    /// One step: everybody who runs is given a token, and who has all of them ends.
    fn step(&mut self) {
        self.now = self.now + Micros::from_millis(20);
        let ids: Vec<_> = self.running.keys().copied().collect();
        let served = ids.iter().map(|id| self.serve(*id)).collect();
        self.observe();
        let report = Report::default();
        self.handle(Event::Stepped {
            replica: ReplicaId::new(0),
            served,
            report,
        });
        for id in ids {
            let plan = self.lengths[&id];
            if self.running[&id] < plan.output {
                continue;
            }
            self.running.remove(&id);
            let usage = Usage {
                prompt: Tokens::new(plan.prompt),
                cached: Tokens::ZERO,
                output: Tokens::new(plan.output),
            };
            let ending = EngineEnding::Finished(FinishReason::Stop);
            self.handle(Event::EngineEnded { id, ending, usage });
            self.handle(Event::ClientEnded {
                id,
                ending: ClientEnding::Delivered,
            });
        }
        self.observe();
        self.no_room_is_idle_that_somebody_may_use();
    }

    /// A sequence is kept only while there is somebody that it is kept for.
    fn no_room_is_idle_that_somebody_may_use(&self) {
        let waiting: u32 = self.waiting.iter().sum();
        let running = u32::try_from(self.running.len()).unwrap();
        let kept = self.gateway.replicas[0].window.headroom();
        assert!(
            waiting == 0 || running + kept >= SLOTS,
            "{waiting} wait while {running} run"
        );
        if running == SLOTS {
            return;
        }
        let queue = &self.gateway.pools[0].queue;
        for tenant in (0..).take(self.weights.len()).map(TenantId::new) {
            assert!(
                !queue.waits(tenant) || queue.has_modest_beside(tenant),
                "{running} run while one waits, and room is kept for nobody"
            );
        }
    }

    fn serve(&mut self, id: RequestId) -> Served {
        let plan = self.lengths[&id];
        let given = self.running.get_mut(&id).unwrap();
        let prompt = if *given == 0 { plan.prompt } else { 0 };
        *given += 1;
        self.served[plan.tenant] += prompt + 2;
        Served {
            id,
            prompt: Tokens::new(prompt),
            output: Tokens::new(1),
        }
    }

    /// Looks at every pair of tenants that both wait.
    fn observe(&mut self) {
        let attained = |n: usize| SCALE * i128::from(self.served[n]) / i128::from(self.weights[n]);
        for f in 0..self.weights.len() {
            for g in f + 1..self.weights.len() {
                if self.waiting[f] == 0 || self.waiting[g] == 0 {
                    self.gaps.open.remove(&(f, g));
                    continue;
                }
                let gap = attained(f) - attained(g);
                let (least, most) = self.gaps.open.entry((f, g)).or_insert((gap, gap));
                (*least, *most) = ((*least).min(gap), (*most).max(gap));
                self.gaps.widest = self.gaps.widest.max(*most - *least);
            }
        }
    }
}

/// Plays `plans` to the end, and returns the widest gap, in service units.
fn widest_gap(policy: fair::Policy, weights: &[u32], plans: &[Plan]) -> i128 {
    let mut world = World::new(policy, weights);
    let mut coming = plans.iter().zip(0..).peekable();
    for step in 0..300_u16 {
        while let Some((plan, id)) = coming.next_if(|(plan, _)| plan.step <= step) {
            world.arrive(id, *plan);
        }
        world.step();
    }
    let total: u64 = plans.iter().map(|plan| plan.output).sum();
    for _ in 0..total {
        if world.running.is_empty() {
            break;
        }
        world.step();
    }
    assert_eq!(world.waiting.iter().sum::<u32>(), 0, "somebody starved");
    world.gaps.widest / SCALE
}

/// U of the theorems: the longest prompt, or all the tokens that the running batch can hold as
/// output.
fn bound_unit() -> i128 {
    i128::from(PROMPT_MAX.max(2 * u64::from(SLOTS) * (PROMPT_MAX + OUTPUT_MAX)))
}

/// The same with the output alone, which is what `vtc` keeps to here: prompts are paid when they
/// are dispatched, so no estimate can be wrong.
fn tight_unit() -> i128 {
    i128::from(PROMPT_MAX.max(2 * u64::from(SLOTS) * OUTPUT_MAX))
}

proptest! {
    #[test]
    fn service_of_two_that_wait_never_differs_by_more_than_twice_the_batch(
        (weights, plans) in (2_usize..5).prop_flat_map(|n| {
            (prop::collection::vec(1_u32..=4, n), plans(n))
        }),
    ) {
        let gap = widest_gap(fair::Policy::Vtc, &weights, &plans);
        prop_assert!(gap <= 2 * tight_unit(), "vtc: {gap} > 2 x {}", tight_unit());
    }

    #[test]
    fn rounds_add_no_more_than_twice_the_quantum(
        (weights, plans) in (2_usize..5).prop_flat_map(|n| {
            (prop::collection::vec(1_u32..=4, n), plans(n))
        }),
    ) {
        let quantum = Service::new(QUANTUM);
        let gap = widest_gap(fair::Policy::Drr { quantum }, &weights, &plans);
        let bound = 2 * (bound_unit() + i128::from(QUANTUM));
        prop_assert!(gap <= bound, "drr: {gap} > {bound}");
    }
}

/// A hundred and twenty long requests of one tenant before the first of another.
fn flood() -> Vec<Plan> {
    let one = |tenant, step| Plan {
        step,
        tenant,
        prompt: 50,
        output: 40,
        says: false,
    };
    let flood = std::iter::repeat_n(one(0, 0), 120);
    let quiet = (0..40).map(|n| one(1, n));
    let mut plans: Vec<_> = flood.chain(quiet).collect();
    plans.sort_by_key(|plan| plan.step);
    plans
}

#[test]
fn first_in_first_out_breaks_the_law_so_the_law_can_be_broken() {
    let gap = widest_gap(fair::Policy::Fifo, &[1, 1], &flood());
    assert!(gap > 2 * bound_unit(), "{gap}");
}

#[test]
fn twice_the_weight_is_twice_the_service() {
    let one = |tenant| Plan {
        step: 0,
        tenant,
        prompt: 20,
        output: 20,
        says: false,
    };
    let plans: Vec<_> = (0..400).map(|n| one(n % 2)).collect();
    let mut world = World::new(fair::Policy::Vtc, &[3, 1]);
    for (plan, id) in plans.iter().zip(0..) {
        world.arrive(id, *plan);
    }
    for _ in 0..800 {
        world.step();
    }
    assert!(
        world.waiting.iter().all(|waiting| *waiting > 0),
        "both wait throughout"
    );
    let (three, one) = (world.served[0], world.served[1]);
    assert!(
        three * 100 > one * 280 && three * 100 < one * 320,
        "{three} to {one}"
    );
}

#[test]
fn a_tenant_back_from_idleness_catches_up_on_nothing() {
    let one = |step, tenant| Plan {
        step,
        tenant,
        prompt: 20,
        output: 20,
        says: false,
    };
    let mut plans = vec![one(0, 1)];
    plans.extend((0..200).map(|_| one(0, 0)));
    plans.extend((0..200).map(|_| one(200, 1)));
    let mut world = World::new(fair::Policy::Vtc, &[1, 1]);
    let mut coming = plans.iter().zip(0..).peekable();
    let mut at_return = None;
    for step in 0..400_u16 {
        while let Some((plan, id)) = coming.next_if(|(plan, _)| plan.step <= step) {
            world.arrive(id, *plan);
        }
        if step == 200 {
            at_return = Some((world.served[0], world.served[1]));
        }
        world.step();
    }
    let (busy, back) = at_return.unwrap();
    let (busy, back) = (world.served[0] - busy, world.served[1] - back);
    assert!(
        back < busy + 2 * 320,
        "the one that was idle got {back}, the other {busy}"
    );
    assert!(
        busy < back + 2 * 320,
        "the one that was idle got {back}, the other {busy}"
    );
}
