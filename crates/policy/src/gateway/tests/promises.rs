//! SLO admission through the gateway: who is refused and dropped, with which reason, and what that
//! leaves behind.

use super::*;
use crate::route::{Affinity, Block};
use crate::slo::{Alpha, Mode, Slo, Terms, Verdict};

const SECOND: Micros = Micros::from_secs(1);

/// One replica with one slot, and this promise of a first token.
fn promising(ttft: Micros, mode: Mode) -> Rig {
    with_terms(Terms {
        ttft: Some(ttft),
        mode,
        ..Terms::NONE
    })
}

fn with_terms(terms: Terms) -> Rig {
    let mut rig = Rig::new(1, Limits::default());
    rig.gateway.pools[0].slo = promise::admission(&Slo::of(terms));
    rig
}

/// Serves a request that runs: a first token after a second, and its end with it.
fn serve(rig: &mut Rig, id: u64) -> Vec<Effect> {
    rig.now = rig.now + SECOND;
    let first = Event::FirstToken {
        id: RequestId::new(id),
    };
    let mut effects = rig.handle(first);
    effects.extend(rig.completes(id));
    effects
}

/// A gateway that has learned that a request takes a second.
fn learned(ttft: Micros, mode: Mode) -> Rig {
    let mut rig = promising(ttft, mode);
    for id in 1..=20 {
        rig.arrive(id);
        serve(&mut rig, id);
    }
    assert!(rig.is_empty());
    rig
}

fn weighed(effects: &[Effect]) -> Vec<slo::Row> {
    let rows = effects.iter().filter_map(|effect| match effect {
        Effect::Weighed(weighed) => Some(weighed.row),
        Effect::Dispatch(_)
        | Effect::Refuse(_)
        | Effect::Cancel { .. }
        | Effect::Start { .. }
        | Effect::Failed { .. }
        | Effect::Withdraw { .. }
        | Effect::Stop { .. }
        | Effect::Retired { .. }
        | Effect::Mark(_)
        | Effect::Record(_)
        | Effect::Fit(_)
        | Effect::Drained => None,
    });
    rows.collect()
}

/// Keeps asking, a tenth of a second apart, until somebody is refused for being late.
fn until_refused(rig: &mut Rig, from: u64) -> (u64, Vec<Effect>) {
    for id in from..from + 200 {
        rig.now = rig.now + Micros::from_millis(100);
        let effects = rig.arrive(id);
        if outcomes(&effects).contains(&(id, Outcome::Rejected(Rejection::Slo))) {
            return (id, effects);
        }
        // The queue has its own bound; what waits leaves again.
        if rig.gateway.gauges().pools[0].queued > 2 {
            rig.client_ends(id, ClientEnding::Gone);
        }
    }
    panic!("nobody was refused");
}

#[test]
fn what_would_be_late_at_others_cost_is_refused_for_its_own_reason_and_spends_nothing() {
    let mut rig = learned(Micros::from_millis(2_500), Mode::Goodput);
    let (id, effects) = until_refused(&mut rig, 100);
    let told = refusal(&effects);
    assert_eq!(told.outcome, Outcome::Rejected(Rejection::Slo));
    let row = told.outcome.row();
    assert_eq!(
        (row.status, row.reason, row.retry_after),
        (503, "slo", true)
    );
    assert!(told.retry_after > Some(Micros::ZERO));
    let rows = weighed(&effects);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].id, RequestId::new(id));
    assert!(matches!(rows[0].judged.verdict, Verdict::Refuse(_)));
    let in_flight = rig.gateway.gauges().in_flight;
    assert_eq!(
        usize::try_from(rig.gateway.reserved().requests),
        Ok(in_flight),
        "what was refused holds nothing"
    );
}

#[test]
fn two_that_are_refused_at_once_are_told_different_times_to_come_back() {
    let mut rig = learned(Micros::from_millis(2_500), Mode::Goodput);
    let (id, effects) = until_refused(&mut rig, 100);
    let times: Vec<_> = (1..=8)
        .map(|n| rig.arrive(id + n))
        .chain([effects])
        .filter(|effects| {
            records(effects)
                .next()
                .is_some_and(|one| one.dispatched.is_none())
        })
        .map(|effects| refusal(&effects).retry_after)
        .collect();
    assert!(times.len() > 2);
    let mut apart = times.clone();
    apart.sort();
    apart.dedup();
    assert_eq!(apart.len(), times.len(), "{times:?}");
}

#[test]
fn nobody_is_refused_while_there_is_room_and_nothing_waits() {
    let mut rig = learned(Micros::from_millis(1), Mode::Goodput);
    for id in 100..200 {
        let effects = rig.arrive(id);
        assert_eq!(dispatched(&effects), [id], "however late it will be");
        serve(&mut rig, id);
    }
}

#[test]
fn a_guarantee_refuses_what_does_not_fit_and_lets_one_in_now_and_then_to_learn() {
    let mut rig = learned(Micros::from_millis(1), Mode::Guarantee);
    let mut let_in = 0;
    for id in 100..300 {
        rig.now = rig.now + SECOND;
        let effects = rig.arrive(id);
        if dispatched(&effects) == [id] {
            let_in += 1;
            serve(&mut rig, id);
        }
    }
    assert!((3..=10).contains(&let_in), "{let_in} of 200 were let in");
}

#[test]
fn a_guarantee_of_99_in_100_does_not_refuse_everything_once_one_was_late() {
    let mut rig = with_terms(Terms {
        ttft: Some(SECOND.times(4)),
        alpha: Alpha::of_thousand(10).unwrap(),
        mode: Mode::Guarantee,
        ..Terms::NONE
    });
    let mut refused = Vec::new();
    for id in 1..=600 {
        let is_let_in = dispatched(&rig.arrive(id)) == [id];
        if id == 300 {
            // It takes three seconds, and half as much again is more than is promised.
            rig.now = rig.now + SECOND.times(2);
        }
        match is_let_in {
            true => drop(serve(&mut rig, id)),
            false => refused.push(id),
        }
        rig.now = rig.now + SECOND;
    }
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn what_was_let_in_and_would_be_late_by_now_is_dropped_for_those_behind_it() {
    let mut rig = learned(Micros::from_millis(2_500), Mode::Goodput);
    rig.arrive(100);
    rig.arrive(101);
    rig.arrive(102);
    // The one that runs takes five times as long as any before it.
    for _ in 0..50 {
        rig.now = rig.now + Micros::from_millis(100);
        let id = 500 + rig.now.as_micros();
        rig.arrive(id);
        rig.client_ends(id, ClientEnding::Gone);
    }
    let effects = serve(&mut rig, 100);
    let ended = outcomes(&effects);
    assert!(
        ended.contains(&(101, Outcome::Evicted(Eviction::Slo))),
        "{ended:?}"
    );
    assert_eq!(
        dispatched(&effects),
        [102],
        "nobody waits behind the last one"
    );
    let dropped = weighed(&effects)
        .into_iter()
        .find(|row| row.id == RequestId::new(101));
    assert_eq!(dropped.unwrap().seen.ttft, None);
    serve(&mut rig, 102);
    assert!(rig.is_empty());
    assert_eq!(rig.gateway.reserved(), Reserved::default());
}

#[test]
fn one_that_is_refused_leaves_what_replicas_are_remembered_to_hold_as_it_was() {
    let mut rig = learned(Micros::from_millis(1), Mode::Guarantee);
    rig.gateway.pools[0].router = Router::new(route::Policy::Prefix, 1);
    let block = |hash: u64| Block {
        hash,
        end: Tokens::new(10 * hash),
    };
    let affinity = |from: u64| Affinity {
        session: None,
        prefix: (from..from + 4).map(block).collect(),
    };
    let sought = |id: u64, rig: &Rig| Arrival {
        id: RequestId::new(id),
        tenant: TenantId::new(0),
        key: None,
        model: MODEL,
        prompt: Tokens::new(100),
        output_max: Some(Tokens::new(50)),
        retry: false,
        slo: slo::Asked::default(),
        received: rig.now,
    };
    let before = rig.gateway.pools[0].router.holders().blocks();
    for id in 100..120 {
        let arrival = sought(id, &rig);
        let effects = rig.handle(Event::Sought(arrival, affinity(id)));
        let refused = outcomes(&effects) == [(id, Outcome::Rejected(Rejection::Slo))];
        assert!(refused, "{effects:?}");
    }
    assert_eq!(rig.gateway.pools[0].router.holders().blocks(), before);
    assert!(rig.gateway.affinities.is_empty());
}

#[test]
fn a_request_may_ask_for_less_time_than_its_class_has() {
    let mut rig = learned(Micros::from_secs(60), Mode::Guarantee);
    let mut arrival = Arrival {
        id: RequestId::new(100),
        tenant: TenantId::new(0),
        key: None,
        model: MODEL,
        prompt: Tokens::new(100),
        output_max: Some(Tokens::new(50)),
        retry: false,
        slo: slo::Asked {
            ttft: Some(Micros::from_millis(10)),
            ..slo::Asked::default()
        },
        received: rig.now,
    };
    let effects = rig.handle(Event::Arrived(arrival));
    assert_eq!(
        outcomes(&effects),
        [(100, Outcome::Rejected(Rejection::Slo))]
    );
    (arrival.id, arrival.slo) = (RequestId::new(101), slo::Asked::default());
    assert_eq!(dispatched(&rig.handle(Event::Arrived(arrival))), [101]);
}

#[test]
fn a_pool_that_promises_nothing_judges_nobody() {
    let mut rig = Rig::new(1, Limits::default());
    let mut effects = rig.arrive(1);
    effects.extend(serve(&mut rig, 1));
    assert_eq!(weighed(&effects), []);
    assert!(rig.gateway.promises(MODEL, rig.now).is_none());
}

#[test]
fn what_was_learned_is_taken_on_by_another_gateway() {
    let first = learned(Micros::from_secs(2), Mode::Guarantee);
    let state = first.gateway.learned(MODEL).unwrap();
    let mut second = promising(Micros::from_secs(2), Mode::Guarantee);
    second.handle(Event::Recalled {
        model: MODEL,
        learned: Learned::State(Box::new(state.clone())),
    });
    assert_eq!(second.gateway.learned(MODEL).unwrap(), state);
    let view = |rig: &Rig| rig.gateway.promises(MODEL, rig.now).unwrap();
    let (one, other) = (view(&first), view(&second));
    assert_eq!(one.classes[1].factors, other.classes[1].factors);
    let cost = |view: &slo::View| {
        view.costs
            .prefill
            .map(|line| (line.base, line.per_thousand))
    };
    assert_eq!(cost(&one), cost(&other));
}
