//! What is written down: what settles a tenant's rate is what its records say, however its requests
//! end; and without books no new work is taken.

use proptest::prelude::*;

use super::super::Books;
use super::*;
use crate::budget::{Allowance, Payer, Tariff};
use crate::price::Price;
use crate::units::NanoUsd;
use crate::usage::Weights;

#[derive(Clone, Debug)]
enum Move {
    Arrive(u64, u64),
    Stepped(u64),
    EngineEnds(u64, EngineEnding, Usage),
    ClientEnds(u64, ClientEnding),
    Wait(u64),
}

const REQUESTS: u64 = 30;

fn usage() -> impl Strategy<Value = Usage> {
    (1_u64..500, 0_u64..100, 0_u64..500).prop_map(|(prompt, cached, output)| Usage {
        prompt: Tokens::new(prompt),
        cached: Tokens::new(prompt * cached / 100),
        output: Tokens::new(output),
    })
}

fn moves() -> impl Strategy<Value = Move> {
    let endings = prop_oneof![
        Just(EngineEnding::Finished(FinishReason::Length)),
        Just(EngineEnding::Cancelled),
        Just(EngineEnding::Failed(Failure::Sequence)),
        Just(EngineEnding::Failed(Failure::Engine)),
    ];
    let clients = prop_oneof![
        Just(ClientEnding::Delivered),
        Just(ClientEnding::Gone),
        Just(ClientEnding::Panicked)
    ];
    let id = 1..=REQUESTS;
    prop_oneof![
        4 => (1_u64..400, 1_u64..300).prop_map(|(prompt, output)| Move::Arrive(prompt, output)),
        2 => id.clone().prop_map(Move::Stepped),
        4 => (id.clone(), endings, usage())
            .prop_map(|(id, ending, usage)| Move::EngineEnds(id, ending, usage)),
        4 => (id, clients).prop_map(|(id, ending)| Move::ClientEnds(id, ending)),
        1 => (0_u64..40).prop_map(Move::Wait),
    ]
}

fn play(rig: &mut Rig, moves: &[Move]) -> Vec<Effect> {
    let mut effects = Vec::new();
    let mut next = 0;
    for one in moves {
        let event = match one {
            Move::Arrive(prompt, output) => {
                next += 1;
                Event::Arrived(Arrival {
                    id: RequestId::new(next),
                    tenant: TenantId::new(0),
                    key: None,
                    model: MODEL,
                    prompt: Tokens::new(*prompt),
                    output_max: Some(Tokens::new(*output)),
                    retry: false,
                    slo: slo::Asked::default(),
                    received: rig.now,
                })
            }
            Move::Stepped(id) => Event::Stepped {
                replica: REPLICA,
                served: vec![Served {
                    id: RequestId::new(*id),
                    prompt: Tokens::new(3),
                    output: Tokens::new(1),
                }],
                report: Report::default(),
            },
            Move::EngineEnds(id, ending, usage) => Event::EngineEnded {
                id: RequestId::new(*id),
                ending: *ending,
                usage: *usage,
            },
            Move::ClientEnds(id, ending) => Event::ClientEnded {
                id: RequestId::new(*id),
                ending: *ending,
            },
            Move::Wait(secs) => {
                rig.now = rig.now + Micros::from_secs(*secs);
                Event::Wake
            }
        };
        effects.extend(rig.handle(event));
    }
    effects.extend(rig.handle(Event::Drain {
        bound: Micros::ZERO,
    }));
    for id in 1..=next {
        effects.extend(rig.engine_ends(id, EngineEnding::Cancelled, 7));
        effects.extend(rig.client_ends(id, ClientEnding::Gone));
    }
    effects
}

proptest! {
    /// One token a minute and a burst that nothing exhausts: what is missing at the end is what was
    /// settled, but for the refill, which is known.
    #[test]
    fn the_tokens_that_settle_a_rate_are_those_of_the_records(
        moves in prop::collection::vec(moves(), 1..150),
    ) {
        const BURST: u64 = 1 << 40;
        let limits = Limits { tokens: rate(1, BURST), ..Limits::default() };
        let mut rig = Rig::with(fair::Policy::Vtc, limits);
        let capacity = Capacity { sequences: 4, kv: KvBlocks::new(1_000) };
        rig.handle(Event::ReplicaUp { replica: REPLICA, capacity });
        let began = rig.now;
        let effects = play(&mut rig, &moves);
        let recorded: u64 = records(&effects)
            .map(|record| record.usage.rated(Weights::default()).get())
            .sum();
        let refilled = rig.now.since(began).get() / 60_000_000;
        let left = rig.gateway.quota(TenantId::new(0), None, rig.now).tokens.unwrap().remaining;
        let missing = BURST - left;
        prop_assert!(
            missing <= recorded && missing + refilled + 1 >= recorded,
            "{missing} tokens are missing and {recorded} were recorded"
        );
    }
}

/// A nano-dollar for each computed prompt token, three for each generated one, seven for KV.
fn priced(limit: u64) -> Event {
    let nano = |count: u64| NanoUsd::new(count * 1_000_000);
    Event::Priced(Box::new(Tariff {
        prices: vec![Price {
            prompt: nano(1),
            output: nano(3),
            kv: nano(7),
            ..Price::FREE
        }],
        allowances: vec![Allowance {
            payer: Payer::Tenant(TenantId::new(0)),
            limit: NanoUsd::new(limit),
            window: 1,
            ends: Time::from_micros(u64::MAX),
            spent: NanoUsd::ZERO,
        }],
    }))
}

proptest! {
    /// What is spent of a budget is what the records cost, and nothing is held when all have ended,
    /// however they did.
    #[test]
    fn the_money_that_settles_a_budget_is_that_of_the_records(
        moves in prop::collection::vec(moves(), 1..150),
    ) {
        let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
        let capacity = Capacity { sequences: 4, kv: KvBlocks::new(1_000) };
        rig.handle(Event::ReplicaUp { replica: REPLICA, capacity });
        rig.handle(priced(1 << 60));
        let effects = play(&mut rig, &moves);
        let tariff = Price {
            prompt: NanoUsd::new(1_000_000),
            output: NanoUsd::new(3_000_000),
            kv: NanoUsd::new(7_000_000),
            ..Price::FREE
        };
        let cost = records(&effects)
            .filter(|record| record.tenant == Some(TenantId::new(0)))
            .map(|record| tariff.cost(record.usage, record.kv))
            .fold(NanoUsd::ZERO, |sum, cost| sum + cost);
        let standing = rig.gateway.spending(Payer::Tenant(TenantId::new(0)));
        prop_assert_eq!(standing, Some((cost, NanoUsd::ZERO)));
    }
}

#[test]
fn a_wait_in_the_queue_costs_nothing() {
    let mut rig = Rig::new(1, Limits::default());
    let run = |rig: &mut Rig, id: u64| {
        rig.handle(Event::Stepped {
            replica: REPLICA,
            served: vec![Served {
                id: RequestId::new(id),
                prompt: Tokens::new(100),
                output: Tokens::new(1),
            }],
            report: Report::default(),
        });
        rig.wait(Micros::from_millis(20));
        let mut effects = rig.engine_ends(id, EngineEnding::Finished(FinishReason::Stop), 1);
        effects.extend(rig.client_ends(id, ClientEnding::Delivered));
        *records(&effects).next().unwrap()
    };
    rig.arrive(1);
    let at_once = run(&mut rig, 1);
    rig.arrive(2);
    rig.arrive(3);
    rig.wait(Micros::from_secs(3));
    rig.completes(2);
    let waited = run(&mut rig, 3);
    assert_eq!(waited.queued(), Micros::from_secs(3));
    assert!(at_once.kv > KvByteMicros::ZERO);
    assert_eq!((waited.kv, waited.usage), (at_once.kv, at_once.usage));
}

#[test]
fn while_nothing_can_be_written_down_new_work_is_refused_and_what_runs_goes_on() {
    let mut rig = Rig::new(1, Limits::default());
    assert_eq!(dispatched(&rig.arrive(1)), [1]);
    assert_eq!(dispatched(&rig.arrive(2)), [0; 0]);
    rig.handle(Event::Books(Books::Closed));
    assert!(!rig.gateway.is_ready());
    let refused = refusal(&rig.arrive(3));
    assert_eq!(refused.outcome, Outcome::Rejected(Rejection::NoBooks));
    assert!(refused.retry_after.is_some());
    rig.engine_ends(1, EngineEnding::Finished(FinishReason::Stop), 9);
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(records(&effects).count(), 1);
    assert_eq!(dispatched(&effects), [2], "what was let in is served");
    rig.handle(Event::Books(Books::Open));
    assert!(rig.gateway.is_ready());
    assert!(outcomes(&rig.arrive(4)).is_empty());
}
