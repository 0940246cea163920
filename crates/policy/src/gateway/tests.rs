//! The gateway under a driver of our own: one event at a time, every effect looked at.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::outcome::{
    EngineEnding, Eviction, Failure, Fence, FinishReason, Outcome, Phase, Rejection,
};
use crate::request::{Arrival, ClientEnding};
use crate::tenant::{Allowed, Class, Limits, RequestRate};
use crate::usage::Usage;

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
        let tenant = |name: &str, limits| Tenant {
            name: name.to_owned(),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits,
        };
        let model = Model {
            context: Tokens::new(512),
            queue_max: 4,
            max_wait: None,
            max_stream: Micros::from_secs(600),
        };
        let config = Config {
            tenants: TenantTable::new(
                vec![tenant("a", limits), tenant("b", Limits::default())],
                tenant("", Limits::default()),
            ),
            models: vec![model],
            replicas: vec![MODEL],
            fairness: fair::Policy::Fifo,
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
            model: MODEL,
            prompt: Tokens::new(100),
            output_max: Some(Tokens::new(50)),
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
        | Effect::Record(_)
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
            | Effect::Record(_)
            | Effect::Drained => None,
        })
        .collect();
    assert_eq!(refusals.len(), 1, "{effects:?}");
    refusals[0]
}

fn limits(rpm: Option<(u32, u32)>, concurrency: Option<u32>) -> Limits {
    let positive = |n| NonZeroU32::new(n).unwrap();
    Limits {
        requests: rpm.map(|(per_minute, burst)| RequestRate {
            per_minute: positive(per_minute),
            burst: positive(burst),
        }),
        concurrency: concurrency.map(positive),
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
fn retry_times_are_spread_so_that_clients_do_not_return_together() {
    let mut rig = Rig::new(1, Limits::default());
    for id in 0..5 {
        rig.arrive(id);
    }
    let waits: Vec<_> = (10..1_010)
        .map(|id| refusal(&rig.arrive(id)).retry_after.unwrap().get())
        .collect();
    let (low, high) = (1_000_000, 2_000_000);
    assert!(waits.iter().all(|wait| (low..=high).contains(wait)));
    let mut tenths = [0; 10];
    for wait in &waits {
        tenths[usize::try_from((wait - low) * 10 / (high - low + 1)).unwrap()] += 1;
    }
    assert!(tenths.iter().all(|n| (60..=140).contains(n)), "{tenths:?}");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_anything_is_reserved() {
    let mut rig = Rig::new(1, limits(Some((60, 2)), None));
    let arrival = Arrival {
        id: RequestId::new(1),
        tenant: TenantId::new(0),
        model: MODEL,
        prompt: Tokens::new(600),
        output_max: None,
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
    });
    rig.handle(Event::Stepped {
        replica: REPLICA,
        served: vec![one(0, 1)],
    });
    assert_eq!(rig.gateway.attained(TenantId::new(0)), Service::new(104));
    assert_eq!(rig.gateway.attained(TenantId::new(1)), Service::ZERO);
}

/// What a driver may see of one request.
#[derive(Default)]
struct Seen {
    dispatched: u32,
    refused: u32,
    recorded: u32,
}

/// Everything that can happen to a request, at random.
#[derive(Clone, Debug)]
enum Move {
    Arrive {
        tenant: u32,
        prompt: u64,
        output: Option<u64>,
    },
    FirstToken(usize),
    EngineEnds(usize, EngineEnding),
    ClientEnds(usize, ClientEnding),
    Down,
    Up(u32),
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Move> {
    let endings = prop_oneof![
        Just(EngineEnding::Finished(FinishReason::Stop)),
        Just(EngineEnding::Cancelled),
        Just(EngineEnding::Failed(Failure::Sequence)),
    ];
    let clients = prop_oneof![
        Just(ClientEnding::Delivered),
        Just(ClientEnding::Gone),
        Just(ClientEnding::Panicked)
    ];
    prop_oneof![
        6 => (0_u32..2, 1_u64..700, prop::option::of(1_u64..900))
            .prop_map(|(tenant, prompt, output)| Move::Arrive { tenant, prompt, output }),
        2 => any::<usize>().prop_map(Move::FirstToken),
        5 => (any::<usize>(), endings).prop_map(|(n, ending)| Move::EngineEnds(n, ending)),
        5 => (any::<usize>(), clients).prop_map(|(n, ending)| Move::ClientEnds(n, ending)),
        1 => Just(Move::Down),
        2 => (0_u32..5).prop_map(Move::Up),
        3 => (0_u64..20_000_000).prop_map(Move::Wait),
    ]
}

/// Plays `moves`, then lets everything end, and returns every effect in order.
fn play(moves: &[Move]) -> Vec<Effect> {
    let mut rig = Rig::new(2, limits(Some((120, 5)), Some(6)));
    let mut effects = Vec::new();
    let mut next = 0;
    for one in moves {
        let id = |n: usize| RequestId::new(u64::try_from(n).unwrap_or(0) % (next + 1));
        let event = match *one {
            Move::Arrive {
                tenant,
                prompt,
                output,
            } => {
                next += 1;
                Event::Arrived(Arrival {
                    id: RequestId::new(next),
                    tenant: TenantId::new(tenant),
                    model: MODEL,
                    prompt: Tokens::new(prompt),
                    output_max: output.map(Tokens::new),
                    received: rig.now,
                })
            }
            Move::FirstToken(n) => Event::FirstToken { id: id(n) },
            Move::EngineEnds(n, ending) => Event::EngineEnded {
                id: id(n),
                ending,
                usage: Usage::default(),
            },
            Move::ClientEnds(n, ending) => Event::ClientEnded { id: id(n), ending },
            Move::Down => Event::ReplicaDown { replica: REPLICA },
            Move::Up(sequences) => Event::ReplicaUp {
                replica: REPLICA,
                capacity: Capacity {
                    sequences,
                    kv: KvBlocks::new(40),
                },
            },
            Move::Wait(micros) => {
                rig.now = rig.now + Micros::new(micros);
                Event::Wake
            }
        };
        effects.extend(rig.handle(event));
    }
    effects.extend(rig.handle(Event::Drain {
        bound: Micros::from_secs(1),
    }));
    effects.extend(rig.wait(Micros::from_secs(1)));
    for id in 0..=next {
        effects.extend(rig.engine_ends(id, EngineEnding::Cancelled, 0));
        effects.extend(rig.client_ends(id, ClientEnding::Gone));
    }
    assert!(
        rig.is_empty(),
        "something is held after everything has ended"
    );
    effects
}

proptest! {
    /// Whatever happens in whatever order: each request ends once, is dispatched or refused at most
    /// once, never both before its end was due, and nothing is held afterwards. (The gateway checks
    /// its invariants at each step.)
    #[test]
    fn each_request_ends_once_and_everything_returns_to_zero(
        moves in prop::collection::vec(moves(), 1..300),
    ) {
        let effects = play(&moves);
        let mut seen: BTreeMap<RequestId, Seen> = BTreeMap::new();
        for effect in &effects {
            match effect {
                Effect::Dispatch(dispatch) => seen.entry(dispatch.id).or_default().dispatched += 1,
                Effect::Refuse(refusal) => seen.entry(refusal.id).or_default().refused += 1,
                Effect::Record(record) => seen.entry(record.id).or_default().recorded += 1,
                Effect::Cancel { .. } | Effect::Start { .. } | Effect::Drained => {}
            }
        }
        let arrived = moves.iter().filter(|one| matches!(one, Move::Arrive { .. })).count();
        prop_assert_eq!(seen.len(), arrived);
        for (id, seen) in seen {
            prop_assert_eq!(seen.recorded, 1, "{:?} has that many ends", id);
            prop_assert!(seen.dispatched + seen.refused <= 1, "{:?} was told twice", id);
        }
        prop_assert_eq!(effects.iter().filter(|e| **e == Effect::Drained).count(), 1);
    }

    #[test]
    fn the_same_facts_give_the_same_orders(moves in prop::collection::vec(moves(), 1..100)) {
        prop_assert_eq!(play(&moves), play(&moves));
    }
}
