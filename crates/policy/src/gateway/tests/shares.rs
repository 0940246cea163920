//! Quotas and shares: what a tenant is held to, and what it is kept.

use super::*;
use crate::pace::Haste;
use crate::units::KvByteMicros;
use crate::window::{Bounds, Window};

#[test]
fn tokens_are_settled_to_what_was_used_however_it_ended() {
    let limits = Limits {
        tokens: rate(10_000, 10_000),
        ..Limits::default()
    };
    let mut rig = Rig::new(2, limits);
    let left = |rig: &mut Rig| {
        rig.gateway
            .quota(TenantId::new(0), None, rig.now)
            .tokens
            .unwrap()
            .remaining
    };
    rig.arrive(1);
    assert_eq!(
        left(&mut rig),
        10_000 - 150,
        "prompt and max_tokens are reserved"
    );
    rig.engine_ends(1, EngineEnding::Finished(FinishReason::Stop), 8);
    rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(left(&mut rig), 10_000 - 108, "and settled to what was used");
    rig.arrive(2);
    rig.client_ends(2, ClientEnding::Gone);
    rig.engine_ends(2, EngineEnding::Cancelled, 3);
    assert_eq!(
        left(&mut rig),
        10_000 - 108 - 103,
        "also where the client has gone"
    );
    rig.arrive(3);
    rig.arrive(4);
    rig.arrive(5);
    rig.client_ends(5, ClientEnding::Gone);
    rig.completes(3);
    rig.completes(4);
    assert_eq!(
        left(&mut rig),
        10_000 - 211 - 300,
        "who leaves the queue has used nothing"
    );
}

#[test]
fn a_models_own_limit_refuses_as_the_tenants_would_and_its_headers_say_what_is_left_of_it() {
    let own = Limits {
        tokens: rate(60, 200),
        max_output: Some(Tokens::new(40)),
        ..Limits::default()
    };
    let all = Limits {
        tokens: rate(10_000, 10_000),
        ..Limits::default()
    };
    let mut rig = Rig::new(9, all);
    let mut tenancy = Tenancy {
        tenants: vec![rig.gateway.tenant(TenantId::new(0)).clone()],
        template: rig.gateway.tenant(TenantId::new(1)).clone(),
        weights: Weights::default(),
    };
    tenancy.tenants[0].by_model.insert(MODEL, own);
    rig.handle(Event::Reconfigured(Box::new(tenancy)));
    let effects = rig.arrive(1);
    let dispatch = effects.iter().find_map(|effect| {
        if let Effect::Dispatch(dispatch) = effect {
            Some(*dispatch)
        } else {
            None
        }
    });
    let dispatch = dispatch.unwrap();
    assert_eq!(dispatch.output_max, Tokens::new(40));
    assert_eq!(dispatch.quota.tokens.unwrap().remaining, 200 - 140);
    let refusal = refusal(&rig.arrive(2));
    assert_eq!(refusal.outcome, Outcome::Rejected(Rejection::TokenRate));
    assert!(refusal.retry_after.is_some());
    rig.completes(1);
    let left = |model, rig: &mut Rig| {
        let quota = rig.gateway.quota(TenantId::new(0), model, rig.now);
        quota.tokens.unwrap().remaining
    };
    assert_eq!(left(None, &mut rig), 10_000 - 150, "as it was used");
    assert_eq!(left(Some(MODEL), &mut rig), 50);
}

#[test]
fn a_cached_prompt_token_counts_against_a_rate_as_much_as_is_configured() {
    for (cached_percent, counted) in [(0, 1_100), (25, 3_100), (100, 9_100)] {
        let limits = Limits {
            tokens: rate(1, 100_000),
            ..Limits::default()
        };
        let mut rig = Rig::new(2, limits);
        let tenancy = Tenancy {
            tenants: vec![rig.gateway.tenant(TenantId::new(0)).clone()],
            template: rig.gateway.tenant(TenantId::new(1)).clone(),
            weights: Weights {
                cached_percent,
                ..Weights::default()
            },
        };
        rig.handle(Event::Reconfigured(Box::new(tenancy)));
        rig.arrive(1);
        rig.handle(Event::EngineEnded {
            id: RequestId::new(1),
            ending: EngineEnding::Finished(FinishReason::Stop),
            usage: Usage {
                prompt: Tokens::new(9_000),
                cached: Tokens::new(8_000),
                output: Tokens::new(100),
            },
        });
        let effects = rig.client_ends(1, ClientEnding::Delivered);
        let recorded = records(&effects).next().unwrap().usage;
        assert_eq!(recorded.cached, Tokens::new(8_000), "apart in the record");
        let level = rig.gateway.quota(TenantId::new(0), None, rig.now).tokens;
        assert_eq!(level.unwrap().remaining, 100_000 - counted);
    }
}

#[test]
fn two_hundred_at_once_pass_a_token_limit_by_no_more_than_the_last_ones_debt() {
    let limits = Limits {
        tokens: rate(1_000, 1_000),
        ..Limits::default()
    };
    let mut rig = Rig::new(300, limits);
    let passed = (0..200)
        .filter(|id| !dispatched(&rig.arrive(*id)).is_empty())
        .count();
    assert_eq!(passed, 6, "six of 150 fit a thousand");
    let refusal = refusal(&rig.arrive(999));
    assert_eq!(refusal.outcome, Outcome::Rejected(Rejection::TokenRate));
    assert_eq!(
        refusal.quota.tokens.unwrap().remaining,
        100,
        "a refused one spends nothing"
    );
}

#[test]
fn a_pool_that_slows_down_tightens_what_may_be_in_flight_and_is_forgotten_in_time() {
    // At the promised 100 ms a token one request holds (100 + 25) bytes for 5 s.
    let one = KvByteMicros::new(125 * 5_000_000);
    let limits = Limits {
        kv: Some(KvByteMicros::new(one.get() * 4)),
        ..Limits::default()
    };
    let fits = |rig: &mut Rig, from: u64| {
        let ids: Vec<_> = (from..from + 20).collect();
        let passed = ids
            .iter()
            .filter(|id| !dispatched(&rig.arrive(**id)).is_empty())
            .count();
        for id in ids {
            rig.engine_ends(id, EngineEnding::Cancelled, 0);
            rig.client_ends(id, ClientEnding::Gone);
        }
        passed
    };
    let mut rig = Rig::new(100, limits);
    assert_eq!(fits(&mut rig, 100), 4);
    rig.arrive(1);
    rig.handle(Event::FirstToken {
        id: RequestId::new(1),
    });
    rig.wait(Micros::from_millis(300 * 49));
    rig.completes(1);
    assert_eq!(fits(&mut rig, 200), 1, "three times as slow: a third");
    rig.wait(Micros::from_secs(61));
    assert_eq!(
        fits(&mut rig, 300),
        2,
        "too old to be believed: the safe side"
    );
    rig.arrive(2);
    rig.handle(Event::FirstToken {
        id: RequestId::new(2),
    });
    rig.wait(Micros::from_secs(500));
    rig.completes(2);
    assert_eq!(
        fits(&mut rig, 400),
        1,
        "one stuck answer is believed up to four times the promise"
    );
}

#[test]
fn retries_past_their_budget_are_refused_but_for_reserved_tenants() {
    let mut rig = Rig::new(1_000, Limits::default());
    let retry = |rig: &mut Rig, id| {
        let arrival = Arrival {
            id: RequestId::new(id),
            tenant: TenantId::new(0),
            key: None,
            model: MODEL,
            prompt: Tokens::new(1),
            output_max: Some(Tokens::new(1)),
            retry: true,
            slo: slo::Asked::default(),
            received: rig.now,
        };
        rig.handle(Event::Arrived(arrival))
    };
    let passed = (0..50)
        .filter(|id| !dispatched(&retry(&mut rig, *id)).is_empty())
        .count();
    assert_eq!(passed, 10);
    let refusal = refusal(&retry(&mut rig, 99));
    assert_eq!(refusal.outcome, Outcome::Rejected(Rejection::RetryBudget));
    let wait = refusal.retry_after.unwrap();
    assert!(
        (Micros::from_secs(30)..=Micros::from_secs(60)).contains(&wait),
        "{wait:?}"
    );
}

#[test]
fn a_quiet_tenant_finds_room_beside_one_that_floods() {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let capacity = Capacity {
        sequences: 64,
        kv: KvBlocks::new(10_000),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    rig.arrive_as(1_000, 1);
    rig.completes(1_000);
    let flood = (0..64)
        .filter(|id| !dispatched(&rig.arrive(*id)).is_empty())
        .count();
    assert_eq!(flood, 62, "the last two are kept");
    assert_eq!(dispatched(&rig.arrive_as(2_000, 1)), [2_000]);
    assert_eq!(dispatched(&rig.arrive_as(2_001, 1)), [2_001]);
}

#[test]
fn who_waits_can_be_looked_at_and_sees_its_own_line_only() {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let capacity = Capacity {
        sequences: 1,
        kv: KvBlocks::new(10_000),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    rig.arrive_as(1, 0);
    rig.arrive_as(2, 0);
    rig.arrive_as(3, 1);
    let view = rig.gateway.queue_view(MODEL, 100);
    let seen: Vec<_> = view
        .iter()
        .map(|one| (one.id.get(), one.position))
        .collect();
    assert_eq!(seen, [(2, 1), (3, 1)]);
    assert_eq!(view[0].ahead, Tokens::ZERO);
    assert_eq!(rig.gateway.queue_view(MODEL, 1).len(), 1);
}

#[test]
fn a_lone_tenant_has_all_of_it() {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let capacity = Capacity {
        sequences: 64,
        kv: KvBlocks::new(10_000),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    let passed = (0..64)
        .filter(|id| !dispatched(&rig.arrive(*id)).is_empty())
        .count();
    assert_eq!(passed, 64);
}

#[test]
fn a_change_of_limits_refills_nothing() {
    let mut rig = Rig::new(100, limits(Some((60, 10)), None));
    let same = |rig: &Rig| {
        Event::Reconfigured(Box::new(Tenancy {
            tenants: vec![rig.gateway.tenant(TenantId::new(0)).clone()],
            template: rig.gateway.tenant(TenantId::new(1)).clone(),
            weights: Weights::default(),
        }))
    };
    let mut passed = 0;
    for round in 0..20 {
        passed += (0..5)
            .filter(|n| !dispatched(&rig.arrive(round * 5 + n)).is_empty())
            .count();
        let event = same(&rig);
        rig.handle(event);
    }
    assert_eq!(passed, 10);
}

#[test]
fn small_requests_pass_a_large_one_but_not_for_ever() {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    // Room for 4,096 tokens; the threshold of the class leaves 3,481 of them.
    let capacity = Capacity {
        sequences: 64,
        kv: KvBlocks::new(256),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    let arrive = |rig: &mut Rig, id, tenant, prompt| {
        rig.handle(Event::Arrived(Arrival {
            id: RequestId::new(id),
            tenant: TenantId::new(tenant),
            key: None,
            model: MODEL,
            prompt: Tokens::new(prompt),
            output_max: Some(Tokens::new(1)),
            retry: false,
            slo: slo::Asked::default(),
            received: rig.now,
        }))
    };
    rig.gateway.pool(MODEL).model.context = Tokens::new(4_000);
    assert_eq!(dispatched(&arrive(&mut rig, 1, 0, 1_000)), [1]);
    assert_eq!(
        dispatched(&arrive(&mut rig, 2, 0, 3_000)),
        Vec::<u64>::new()
    );
    rig.gateway
        .pool(MODEL)
        .queue
        .served(RequestId::new(1), Service::new(1_000));
    let passed = (100..160).filter(|id| !dispatched(&arrive(&mut rig, *id, 1, 99)).is_empty());
    let passed = passed.count();
    assert!(
        (10..=31).contains(&passed),
        "{passed} small ones passed a request of 3,000 tokens"
    );
    for id in 100..160 {
        rig.completes(id);
    }
    assert_eq!(
        dispatched(&rig.completes(1)).first(),
        Some(&2),
        "it goes as soon as there is room"
    );
}

#[test]
fn prefill_in_flight_is_held_to_what_a_step_was_seen_to_bear() {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let capacity = Capacity {
        sequences: 15,
        kv: KvBlocks::new(10_000),
    };
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity,
    });
    let step = |rig: &mut Rig, id: u64, prompt: u64, millis: u64| {
        rig.now = rig.now + Micros::from_millis(millis);
        let served = vec![Served {
            id: RequestId::new(id),
            prompt: Tokens::new(prompt),
            output: Tokens::new(1),
        }];
        rig.handle(Event::Stepped {
            replica: REPLICA,
            served,
            report: Report::default(),
        })
    };
    assert_eq!(dispatched(&rig.arrive(1)), [1]);
    assert_eq!(dispatched(&rig.arrive(2)), [2], "nothing has been measured");
    step(&mut rig, 1, 100, 30);
    step(&mut rig, 1, 0, 20);
    step(&mut rig, 2, 100, 30);
    // A step without prefill takes 20 ms, and 100 tokens take 10: two hundred take as long again.
    assert_eq!(dispatched(&rig.arrive(3)), [3]);
    assert_eq!(dispatched(&rig.arrive(4)), [4]);
    assert_eq!(dispatched(&rig.arrive(5)), Vec::<u64>::new());
    assert_eq!(
        dispatched(&step(&mut rig, 3, 100, 30)),
        [5],
        "a first token makes room"
    );
}

/// Four places, of which tenant 0 has all and two requests more that wait, and room for two guests.
fn full_of_one_tenant() -> Rig {
    let mut rig = Rig::with(fair::Policy::Vtc, Limits::default());
    let bounds = Bounds {
        paced: true,
        guests: 2,
        ..Bounds::default()
    };
    rig.gateway.pools[0].model.window = bounds;
    rig.gateway.replicas[0].window = Window::new(bounds);
    rig.handle(Event::ReplicaUp {
        replica: REPLICA,
        capacity: Capacity {
            sequences: 4,
            kv: KvBlocks::new(1_000),
        },
    });
    (1..=6).for_each(|id| drop(rig.arrive_as(id, 0)));
    rig
}

fn haste_of(effects: &[Effect], wanted: u64) -> Option<Haste> {
    effects.iter().find_map(|effect| match effect {
        Effect::Dispatch(dispatch) if dispatch.id.get() == wanted => Some(dispatch.haste),
        Effect::Dispatch(_)
        | Effect::Refuse(_)
        | Effect::Cancel { .. }
        | Effect::Mark(_)
        | Effect::Record(_)
        | Effect::Weighed(_)
        | Effect::Fit(_)
        | Effect::Start { .. }
        | Effect::Failed { .. }
        | Effect::Withdraw { .. }
        | Effect::Stop { .. }
        | Effect::Retired { .. }
        | Effect::Drained => None,
    })
}

#[test]
fn a_guest_is_let_in_where_a_tenant_in_the_engine_was_served_more_and_not_before() {
    let mut rig = full_of_one_tenant();
    let waits = |rig: &Rig| -> Vec<_> {
        let view = rig.gateway.queue_view(MODEL, 10);
        view.iter()
            .map(|one| (one.id.get(), one.waits.label()))
            .collect()
    };
    assert_eq!(
        haste_of(&rig.arrive_as(10, 1), 10),
        None,
        "nobody was served yet"
    );
    assert_eq!(
        waits(&rig),
        [(5, "sequences"), (6, "sequences"), (10, "sequences")]
    );
    let served = Served {
        id: RequestId::new(1),
        prompt: Tokens::new(100),
        output: Tokens::new(1),
    };
    let effects = rig.handle(Event::Stepped {
        replica: REPLICA,
        served: vec![served],
        report: Report::default(),
    });
    assert_eq!(haste_of(&effects, 10), Some(Haste::InPassing));
    assert_eq!(haste_of(&rig.arrive_as(11, 1), 11), Some(Haste::InPassing));
    assert_eq!(
        haste_of(&rig.arrive_as(12, 1), 12),
        None,
        "as many guests are there as may be"
    );
    assert_eq!(rig.gateway.replicas[0].window.guests_taken(), 2);
    rig.gateway.invariants();
}

#[test]
fn the_last_guest_is_none_that_may_stay_for_long() {
    let mut rig = full_of_one_tenant();
    let served = Served {
        id: RequestId::new(1),
        prompt: Tokens::new(100),
        output: Tokens::new(1),
    };
    rig.handle(Event::Stepped {
        replica: REPLICA,
        served: vec![served],
        report: Report::default(),
    });
    let long = |rig: &Rig, id| Arrival {
        id: RequestId::new(id),
        tenant: TenantId::new(1),
        key: None,
        model: MODEL,
        prompt: Tokens::new(10),
        output_max: Some(Tokens::new(400)),
        retry: false,
        slo: slo::Asked::default(),
        received: rig.now,
    };
    let arrival = long(&rig, 10);
    let first = rig.handle(Event::Arrived(arrival));
    assert_eq!(haste_of(&first, 10), Some(Haste::AtOnce));
    let arrival = long(&rig, 11);
    assert_eq!(haste_of(&rig.handle(Event::Arrived(arrival)), 11), None);
    rig.client_ends(11, ClientEnding::Gone);
    assert_eq!(haste_of(&rig.arrive_as(12, 1), 12), Some(Haste::InPassing));
}
