//! Everything that can happen, in any order: each request ends once, and everything returns to
//! zero.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

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
    Stepped(usize, u64, u32, u64),
    Reconfigured(u64),
    EngineEnds(usize, EngineEnding),
    ClientEnds(usize, ClientEnding),
    Down,
    Up(u32),
    Wait(u64),
}

fn policies() -> impl Strategy<Value = fair::Policy> {
    let drr = fair::Policy::Drr {
        quantum: Service::new(256),
    };
    prop_oneof![Just(fair::Policy::Fifo), Just(drr), Just(fair::Policy::Vtc)]
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
        4 => (any::<usize>(), 0_u64..50, 0_u32..3, 0_u64..900)
            .prop_map(|(n, output, waiting, kv)| Move::Stepped(n, output, waiting, kv)),
        1 => (1_u64..100).prop_map(Move::Reconfigured),
        5 => (any::<usize>(), endings).prop_map(|(n, ending)| Move::EngineEnds(n, ending)),
        5 => (any::<usize>(), clients).prop_map(|(n, ending)| Move::ClientEnds(n, ending)),
        1 => Just(Move::Down),
        2 => (0_u32..5).prop_map(Move::Up),
        3 => (0_u64..20_000_000).prop_map(Move::Wait),
    ]
}

/// Plays `moves`, then lets everything end, and returns every effect in order.
fn play(policy: fair::Policy, moves: &[Move]) -> Vec<Effect> {
    let limits = Limits {
        tokens: rate(30_000, 3_000),
        ..limits(Some((120, 5)), Some(6))
    };
    let mut rig = Rig::with(policy, limits);
    let capacity = Capacity {
        sequences: 2,
        kv: KvBlocks::new(1_000),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    let mut effects = Vec::new();
    let mut next = 0;
    for one in moves {
        let event = event(&mut rig, one, &mut next);
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

/// The event that a move stands for; `next` counts the requests that have arrived.
fn event(rig: &mut Rig, one: &Move, next: &mut u64) -> Event {
    let so_far = *next;
    let id = |n: usize| RequestId::new(u64::try_from(n).unwrap_or(0) % (so_far + 1));
    match *one {
        Move::Arrive {
            tenant,
            prompt,
            output,
        } => {
            *next += 1;
            Event::Arrived(Arrival {
                id: RequestId::new(*next),
                tenant: TenantId::new(tenant),
                key: None,
                model: MODEL,
                prompt: Tokens::new(prompt),
                output_max: output.map(Tokens::new),
                retry: false,
                slo: slo::Asked::default(),
                received: rig.now,
            })
        }
        Move::FirstToken(n) => Event::FirstToken { id: id(n) },
        Move::Stepped(n, output, waiting, kv) => {
            let (prompt, output) = (Tokens::new(output * 2), Tokens::new(output));
            Event::Stepped {
                replica: REPLICA,
                served: vec![Served {
                    id: id(n),
                    prompt,
                    output,
                }],
                report: Report {
                    waiting,
                    kv: KvBlocks::new(kv),
                },
            }
        }
        Move::Reconfigured(rpm) => Event::Reconfigured(Box::new(other_limits(rig, rpm))),
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
    }
}

fn other_limits(rig: &Rig, rpm: u64) -> Tenancy {
    let first = rig.gateway.tenant(TenantId::new(0)).clone();
    Tenancy {
        tenants: vec![Tenant {
            limits: limits(Some((rpm, rpm)), None),
            by_model: rpm
                .is_multiple_of(2)
                .then(|| (MODEL, limits(Some((rpm, 3)), Some(2))))
                .into_iter()
                .collect(),
            ..first
        }],
        template: rig.gateway.tenant(TenantId::new(1)).clone(),
        weights: Weights::default(),
    }
}

proptest! {
    /// Whatever happens in whatever order: each request ends once, is dispatched or refused at most
    /// once, never both before its end was due, and nothing is held afterwards. (The gateway checks
    /// its invariants at each step.)
    #[test]
    fn each_request_ends_once_and_everything_returns_to_zero(
        policy in policies(),
        moves in prop::collection::vec(moves(), 1..300),
    ) {
        let effects = play(policy, &moves);
        let mut seen: BTreeMap<RequestId, Seen> = BTreeMap::new();
        for effect in &effects {
            match effect {
                Effect::Dispatch(dispatch) => seen.entry(dispatch.id).or_default().dispatched += 1,
                Effect::Refuse(refusal) => seen.entry(refusal.id).or_default().refused += 1,
                Effect::Record(record) => seen.entry(record.id).or_default().recorded += 1,
                Effect::Cancel { .. }
                | Effect::Start { .. }
                | Effect::Failed { .. }
                | Effect::Withdraw { .. }
                | Effect::Stop { .. }
                | Effect::Retired { .. }
                | Effect::Mark(_)
                | Effect::Weighed(_)
                | Effect::Fit(_)
                | Effect::Drained => {}
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
    fn the_same_facts_give_the_same_orders(
        policy in policies(),
        moves in prop::collection::vec(moves(), 1..100),
    ) {
        prop_assert_eq!(play(policy, &moves), play(policy, &moves));
    }
}

/// A hundred thousand requests with every kind of fault, drawn without a strategy: to shrink so
/// many would take hours.
#[test]
fn after_a_hundred_thousand_requests_with_faults_everything_is_zero() {
    let mut chance = Pcg64::seed_from_u64(11);
    let mut draw = |n: u64| chance.next_u64() % n;
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let capacity = Capacity {
        sequences: 8,
        kv: KvBlocks::new(200),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    let (mut alive, mut ended, mut ran) = (Vec::new(), 0_u64, 0);
    for id in 1..=100_000 {
        let mut effects = rig.arrive_as(id, u32::try_from(draw(2)).unwrap());
        alive.push(id);
        for _ in 0..3 {
            let any = alive[usize::try_from(draw(u64::try_from(alive.len()).unwrap())).unwrap()];
            effects.extend(fault(&mut rig, any, draw(100)));
        }
        ran += dispatched(&effects).len();
        for (over, _) in outcomes(&effects) {
            ended += 1;
            alive.retain(|id| *id != over);
        }
        if alive.is_empty() {
            alive.push(id);
        }
    }
    rig.handle(Event::Drain {
        bound: Micros::ZERO,
    });
    for id in alive {
        let mut effects = rig.engine_ends(id, EngineEnding::Cancelled, 0);
        effects.extend(rig.client_ends(id, ClientEnding::Gone));
        ended += u64::try_from(outcomes(&effects).len()).unwrap();
    }
    assert!(rig.is_empty());
    assert!(ran > 30_000, "only {ran} of them ever ran");
    assert!(ended >= 99_990, "{ended} ended before the drain did");
}

/// Something that happens to one request, or to all of them.
fn fault(rig: &mut Rig, id: u64, which: u64) -> Vec<Effect> {
    match which {
        0..30 => rig.engine_ends(id, EngineEnding::Finished(FinishReason::Stop), 9),
        30..60 => rig.client_ends(id, ClientEnding::Delivered),
        60..70 => rig.client_ends(id, ClientEnding::Gone),
        70..75 => rig.engine_ends(id, EngineEnding::Failed(Failure::Sequence), 1),
        75..80 => rig.client_ends(id, ClientEnding::Panicked),
        80..82 => rig.handle(Event::ReplicaDown { replica: REPLICA }),
        82..90 => {
            let capacity = Capacity {
                sequences: 8,
                kv: KvBlocks::new(200),
            };
            rig.handle(Event::ReplicaUp {
                replica: REPLICA,
                capacity,
            })
        }
        _ => rig.wait(Micros::from_millis(which * 20)),
    }
}
