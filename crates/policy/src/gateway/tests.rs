//! The gateway under a driver of our own: one event at a time, every effect looked at.

use std::num::{NonZeroU32, NonZeroU64};

mod books;
mod fleet;
mod promises;
mod random;
mod shares;

use super::*;
use crate::bucket::Rate;
use crate::outcome::{
    EngineEnding, Eviction, Failure, Fence, FinishReason, Outcome, Phase, Rejection,
};
use crate::request::{Arrival, ClientEnding};
use crate::tenant::{Allowed, Class, Limits};
use crate::units::KvBlocks;
use crate::usage::Usage;
use crate::window::Capacity;

const MODEL: ModelId = ModelId::new(0);
const REPLICA: ReplicaId = ReplicaId::new(0);

/// A gateway, its time, and what it has ordered so far.
struct Rig {
    gateway: Gateway,
    now: Time,
}

impl Rig {
    /// One model with one replica that is up, and one tenant with these limits.
    fn new(sequences: u32, limits: Limits) -> Self {
        let mut rig = Self::starting(limits);
        let capacity = Capacity {
            sequences,
            kv: KvBlocks::new(1_000),
        };
        rig.handle(Event::ReplicaUp {
            replica: REPLICA,
            capacity,
        });
        rig
    }

    fn starting(limits: Limits) -> Self {
        Self::with(fair::Policy::Fifo, limits)
    }

    fn with(fairness: fair::Policy, limits: Limits) -> Self {
        Self::of_replicas(fairness, limits, 1)
    }

    fn of_replicas(fairness: fair::Policy, limits: Limits, replicas: usize) -> Self {
        let tenant = |name: &str, limits| Tenant {
            name: name.to_owned(),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits,
            by_model: Default::default(),
            floor: 0,
        };
        let model = Model {
            context: Tokens::new(512),
            queue_max: 4,
            max_wait: None,
            max_stream: Micros::from_secs(600),
            kv_per_token: KvBytes::new(1),
            target: Target::default(),
            window: Bounds::default(),
            routing: route::Policy::default(),
            loading: None,
        };
        let config = Config {
            tenants: TenantTable::new(
                vec![tenant("a", limits), tenant("b", Limits::default())],
                tenant("", Limits::default()),
            ),
            models: vec![model],
            replicas: vec![
                ReplicaConfig {
                    model: MODEL,
                    only: None,
                };
                replicas
            ],
            fairness,
            weights: Weights::default(),
            seed: 7,
        };
        Self {
            gateway: Gateway::new(config),
            now: Time::from_micros(1_000),
        }
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.gateway.handle(event, self.now);
        std::iter::from_fn(|| self.gateway.poll_effect()).collect()
    }

    fn arrive(&mut self, id: u64) -> Vec<Effect> {
        self.arrive_as(id, 0)
    }

    fn arrive_as(&mut self, id: u64, tenant: u32) -> Vec<Effect> {
        let arrival = Arrival {
            id: RequestId::new(id),
            tenant: TenantId::new(tenant),
            key: None,
            model: MODEL,
            prompt: Tokens::new(100),
            output_max: Some(Tokens::new(50)),
            retry: false,
            slo: slo::Asked::default(),
            received: self.now,
        };
        self.handle(Event::Arrived(arrival))
    }

    fn engine_ends(&mut self, id: u64, ending: EngineEnding, output: u64) -> Vec<Effect> {
        let usage = Usage {
            prompt: Tokens::new(100),
            cached: Tokens::ZERO,
            output: Tokens::new(output),
        };
        self.handle(Event::EngineEnded {
            id: RequestId::new(id),
            ending,
            usage,
        })
    }

    fn client_ends(&mut self, id: u64, ending: ClientEnding) -> Vec<Effect> {
        self.handle(Event::ClientEnded {
            id: RequestId::new(id),
            ending,
        })
    }

    fn completes(&mut self, id: u64) -> Vec<Effect> {
        let mut effects = self.engine_ends(id, EngineEnding::Finished(FinishReason::Stop), 50);
        effects.extend(self.client_ends(id, ClientEnding::Delivered));
        effects
    }

    fn wait(&mut self, span: Micros) -> Vec<Effect> {
        self.now = self.now + span;
        self.handle(Event::Wake)
    }

    fn is_empty(&self) -> bool {
        let gauges = self.gateway.gauges();
        let held = gauges
            .replicas
            .iter()
            .map(|r| u64::from(r.window.sequences()))
            .sum::<u64>()
            + gauges
                .replicas
                .iter()
                .map(|r| r.window.kv().get())
                .sum::<u64>();
        gauges.in_flight == 0 && held == 0 && gauges.pools.iter().all(|p| p.queued == 0)
    }
}

fn dispatched(effects: &[Effect]) -> Vec<u64> {
    let ids = effects.iter().filter_map(|effect| match effect {
        Effect::Dispatch(dispatch) => Some(dispatch.id.get()),
        Effect::Refuse(_)
        | Effect::Cancel { .. }
        | Effect::Start { .. }
        | Effect::Failed { .. }
        | Effect::Withdraw { .. }
        | Effect::Stop { .. }
        | Effect::Retired { .. }
        | Effect::Mark(_)
        | Effect::Record(_)
        | Effect::Weighed(_)
        | Effect::Fit(_)
        | Effect::Drained => None,
    });
    ids.collect()
}

fn outcomes(effects: &[Effect]) -> Vec<(u64, Outcome)> {
    records(effects)
        .map(|record| (record.id.get(), record.outcome))
        .collect()
}

fn records(effects: &[Effect]) -> impl Iterator<Item = &Record> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Record(record) => Some(record),
        Effect::Dispatch(_)
        | Effect::Refuse(_)
        | Effect::Cancel { .. }
        | Effect::Start { .. }
        | Effect::Failed { .. }
        | Effect::Withdraw { .. }
        | Effect::Stop { .. }
        | Effect::Retired { .. }
        | Effect::Mark(_)
        | Effect::Weighed(_)
        | Effect::Fit(_)
        | Effect::Drained => None,
    })
}

fn refusal(effects: &[Effect]) -> Refusal {
    let refusals: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Refuse(refusal) => Some(*refusal),
            Effect::Dispatch(_)
            | Effect::Cancel { .. }
            | Effect::Start { .. }
            | Effect::Failed { .. }
            | Effect::Withdraw { .. }
            | Effect::Stop { .. }
            | Effect::Retired { .. }
            | Effect::Mark(_)
            | Effect::Record(_)
            | Effect::Weighed(_)
            | Effect::Fit(_)
            | Effect::Drained => None,
        })
        .collect();
    assert_eq!(refusals.len(), 1, "{effects:?}");
    refusals[0]
}

fn rate(per_minute: u64, burst: u64) -> Option<Rate> {
    let (per_minute, burst) = (NonZeroU64::new(per_minute)?, NonZeroU64::new(burst)?);
    Some(Rate { per_minute, burst })
}

fn limits(rpm: Option<(u64, u64)>, concurrency: Option<u32>) -> Limits {
    Limits {
        requests: rpm.and_then(|(per_minute, burst)| rate(per_minute, burst)),
        concurrency: concurrency.and_then(NonZeroU32::new),
        ..Limits::default()
    }
}

#[test]
fn a_request_is_dispatched_at_once_while_there_is_room() {
    let mut rig = Rig::new(2, Limits::default());
    assert_eq!(dispatched(&rig.arrive(1)), [1]);
    assert_eq!(dispatched(&rig.arrive(2)), [2]);
    assert_eq!(dispatched(&rig.arrive(3)), Vec::<u64>::new());
}

#[test]
fn the_next_in_line_goes_when_both_engine_and_client_are_done() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.arrive(2);
    rig.arrive(3);
    let ended = rig.engine_ends(1, EngineEnding::Finished(FinishReason::Length), 50);
    assert_eq!(ended, []);
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::Completed(FinishReason::Length))]
    );
    assert_eq!(dispatched(&effects), [2]);
    assert_eq!(dispatched(&rig.completes(2)), [3]);
    rig.completes(3);
    assert!(rig.is_empty());
}

#[test]
fn a_client_that_leaves_the_queue_is_never_dispatched() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.arrive(2);
    let effects = rig.client_ends(2, ClientEnding::Gone);
    assert_eq!(
        outcomes(&effects),
        [(2, Outcome::ClientGone(Phase::Queued))]
    );
    assert_eq!(dispatched(&rig.completes(1)), Vec::<u64>::new());
    assert!(rig.is_empty());
}

#[test]
fn a_client_that_leaves_mid_stream_is_charged_what_the_engine_made() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.handle(Event::FirstToken {
        id: RequestId::new(1),
    });
    let outcome = Outcome::ClientGone(Phase::MidStream);
    let effects = rig.client_ends(1, ClientEnding::Gone);
    assert_eq!(
        effects,
        [Effect::Cancel {
            id: RequestId::new(1),
            replica: REPLICA,
            outcome
        }]
    );
    assert!(
        !rig.is_empty(),
        "its slot is held until the engine has let go"
    );
    let effects = rig.engine_ends(1, EngineEnding::Cancelled, 17);
    let record = records(&effects).next().unwrap();
    assert_eq!(
        (record.outcome, record.usage.output),
        (outcome, Tokens::new(17))
    );
    assert!(rig.is_empty());
}

#[test]
fn a_stream_is_fenced_at_its_bound_and_not_before() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    assert_eq!(
        rig.gateway.next_wake(),
        Some(rig.now + Micros::from_secs(600))
    );
    assert_eq!(rig.wait(Micros::from_secs(599)), []);
    let outcome = Outcome::Fenced(Fence::MaxStream);
    let effects = rig.wait(Micros::from_secs(1));
    assert_eq!(
        effects,
        [Effect::Cancel {
            id: RequestId::new(1),
            replica: REPLICA,
            outcome
        }]
    );
    assert_eq!(rig.wait(Micros::from_secs(1)), [], "one fence, one order");
    rig.engine_ends(1, EngineEnding::Cancelled, 3);
    assert_eq!(
        outcomes(&rig.client_ends(1, ClientEnding::Gone)),
        [(1, outcome)]
    );
}

#[test]
fn a_request_that_waited_its_time_is_evicted_and_its_quota_given_back() {
    let mut rig = Rig::new(1, limits(Some((60, 2)), None));
    rig.arrive(1);
    rig.arrive(2);
    let effects = rig.wait(Class::Standard.max_wait());
    let outcome = Outcome::Evicted(Eviction::QueueTime);
    assert_eq!(outcomes(&effects), [(2, outcome)]);
    let refusal = refusal(&effects);
    assert_eq!(refusal.outcome, outcome);
    assert!(refusal.retry_after.is_some());
    let level = refusal.quota.requests.unwrap();
    assert_eq!(
        level.remaining, 2,
        "30 s at one a second, and the burst is two"
    );
}

#[test]
fn a_refusal_by_the_machine_spends_nothing_of_the_contract() {
    let mut rig = Rig::new(1, limits(Some((60, 10)), None));
    for id in 1..=5 {
        rig.arrive(id);
    }
    let refusal = refusal(&rig.arrive(6));
    assert_eq!(refusal.outcome, Outcome::Rejected(Rejection::QueueFull));
    assert_eq!(refusal.quota.requests.unwrap().remaining, 5);
}

#[test]
fn exactly_the_burst_passes_a_request_limit() {
    let mut rig = Rig::new(100, limits(Some((60, 3)), None));
    let passed = (0..50)
        .filter(|id| !dispatched(&rig.arrive(*id)).is_empty())
        .count();
    assert_eq!(passed, 3);
    let refusal = refusal(&rig.arrive(99));
    assert_eq!(refusal.outcome, Outcome::Rejected(Rejection::RequestRate));
    assert!(refusal.retry_after.unwrap() >= Micros::from_secs(1));
    assert!(refusal.retry_after.unwrap() <= Micros::from_secs(2));
}

#[test]
fn concurrency_counts_what_waits_and_what_runs() {
    let mut rig = Rig::new(1, limits(None, Some(2)));
    rig.arrive(1);
    rig.arrive(2);
    let refused = refusal(&rig.arrive(3)).outcome;
    assert_eq!(refused, Outcome::Rejected(Rejection::Concurrency));
    rig.completes(1);
    assert_eq!(rig.arrive(4), [], "it waits, and is not refused");
}

#[test]
fn retries_of_six_thousand_clients_come_back_spread_evenly() {
    let mut rig = Rig::new(1, Limits::default());
    for id in 0..5 {
        rig.arrive(id);
    }
    let waits = (10..6_010).map(|id| refusal(&rig.arrive(id)).retry_after.unwrap().get());
    let (low, high) = (1_000_000, 2_000_000);
    let mut tenths = [0; 10];
    for wait in waits {
        assert!((low..=high).contains(&wait));
        tenths[usize::try_from((wait - low) * 10 / (high - low + 1)).unwrap()] += 1;
    }
    assert!(
        tenths.iter().all(|n| (480..=720).contains(n)),
        "within a fifth of 600: {tenths:?}"
    );
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_anything_is_reserved() {
    let mut rig = Rig::new(1, limits(Some((60, 2)), None));
    let arrival = Arrival {
        id: RequestId::new(1),
        tenant: TenantId::new(0),
        key: None,
        model: MODEL,
        prompt: Tokens::new(600),
        output_max: None,
        retry: false,
        slo: slo::Asked::default(),
        received: rig.now,
    };
    let refusal = refusal(&rig.handle(Event::Arrived(arrival)));
    let (asked, limit) = (Tokens::new(601), Tokens::new(512));
    let expected = Outcome::Rejected(Rejection::ContextExceeded { asked, limit });
    assert_eq!((refusal.outcome, refusal.retry_after), (expected, None));
    assert_eq!(refusal.quota.requests.unwrap().remaining, 2);
    assert!(rig.is_empty());
}

#[test]
fn draining_lets_what_runs_finish_and_then_says_so() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.arrive(2);
    assert_eq!(
        rig.handle(Event::Drain {
            bound: Micros::from_secs(60)
        }),
        []
    );
    assert!(!rig.gateway.is_ready());
    let refused = refusal(&rig.arrive(3));
    assert_eq!(refused.outcome, Outcome::Rejected(Rejection::Draining));
    assert!(refused.retry_after.is_some());
    assert_eq!(
        dispatched(&rig.completes(1)),
        [2],
        "what was let in is served"
    );
    assert_eq!(rig.completes(2).last(), Some(&Effect::Drained));
    assert_eq!(rig.wait(Micros::from_secs(60)), [], "it says so once");
}

#[test]
fn the_drains_bound_stops_what_runs_and_evicts_what_waits() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.arrive(2);
    rig.arrive(3);
    rig.handle(Event::Drain {
        bound: Micros::from_secs(5),
    });
    let effects = rig.wait(Micros::from_secs(5));
    let evicted = Outcome::Evicted(Eviction::Draining);
    assert_eq!(outcomes(&effects), [(2, evicted), (3, evicted)]);
    assert_eq!(dispatched(&effects), Vec::<u64>::new());
    let outcome = Outcome::Fenced(Fence::Drain);
    assert!(effects.contains(&Effect::Cancel {
        id: RequestId::new(1),
        replica: REPLICA,
        outcome
    }));
    rig.engine_ends(1, EngineEnding::Cancelled, 1);
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(outcomes(&effects), [(1, outcome)]);
    assert_eq!(effects.last(), Some(&Effect::Drained));
}

#[test]
fn a_replica_that_fails_is_started_again_and_nobody_is_sent_to_it_meanwhile() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.engine_ends(1, EngineEnding::Failed(Failure::Engine), 4);
    rig.handle(Event::ReplicaDown { replica: REPLICA });
    assert!(!rig.gateway.is_ready());
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::ReplicaFailed(Failure::Engine))]
    );
    let refused = refusal(&rig.arrive(2));
    assert_eq!(refused.outcome, Outcome::Rejected(Rejection::NoReplica));
    assert_eq!(
        rig.wait(Health::BACKOFF_MIN),
        [Effect::Start { replica: REPLICA }]
    );
    rig.arrive(3);
    let capacity = Capacity {
        sequences: 1,
        kv: KvBlocks::new(1_000),
    };
    let effects = rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    assert_eq!(
        dispatched(&effects),
        [3],
        "who came while it started was let wait"
    );
    assert!(rig.gateway.is_ready());
}

#[test]
fn who_waits_is_not_sent_to_a_replica_that_has_failed_and_not_yet_said_so() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.arrive(2);
    rig.engine_ends(1, EngineEnding::Failed(Failure::Engine), 4);
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(dispatched(&effects), []);
    rig.handle(Event::ReplicaDown { replica: REPLICA });
    let start = [Effect::Start { replica: REPLICA }];
    assert_eq!(rig.wait(Health::BACKOFF_MIN), start, "it failed once");
    let capacity = Capacity {
        sequences: 1,
        kv: KvBlocks::new(40),
    };
    let effects = rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    assert_eq!(dispatched(&effects), [2]);
}

#[test]
fn a_handler_that_panics_ends_its_request_as_a_bug() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    rig.client_ends(1, ClientEnding::Panicked);
    let effects = rig.engine_ends(1, EngineEnding::Cancelled, 0);
    assert_eq!(outcomes(&effects), [(1, Outcome::Bug)]);
}

#[test]
fn service_is_charged_as_it_is_given() {
    let mut rig = Rig::new(1, Limits::default());
    rig.arrive(1);
    let one = |prompt, output| Served {
        id: RequestId::new(1),
        prompt: Tokens::new(prompt),
        output: Tokens::new(output),
    };
    rig.handle(Event::Stepped {
        replica: REPLICA,
        served: vec![one(100, 1)],
        report: Report::default(),
    });
    rig.handle(Event::Stepped {
        replica: REPLICA,
        served: vec![one(0, 1)],
        report: Report::default(),
    });
    assert_eq!(rig.gateway.attained(TenantId::new(0)), Service::new(104));
    assert_eq!(rig.gateway.attained(TenantId::new(1)), Service::ZERO);
}
