//! Replicas that fail, fill up, come back, join and leave, and what becomes of their requests.

use super::*;
use crate::health::{Health, Sign, State};
use crate::route::Affinity;
use crate::window::Moved;

const FULL: Capacity = Capacity {
    sequences: 4,
    kv: KvBlocks::new(1_000),
};

/// A pool of so many replicas that are all up.
fn pool(replicas: u32) -> Rig {
    let count = usize::try_from(replicas).unwrap();
    let mut rig = Rig::of_replicas(fair::Policy::Vtc, Limits::default(), count);
    for n in 0..replicas {
        rig.up(n);
    }
    rig
}

impl Rig {
    fn up(&mut self, n: u32) -> Vec<Effect> {
        let replica = ReplicaId::new(n);
        self.handle(Event::ReplicaUp {
            replica,
            capacity: FULL,
        })
    }

    fn fails(&mut self, id: u64, failure: Failure) -> Vec<Effect> {
        self.engine_ends(id, EngineEnding::Failed(failure), 0)
    }

    fn noticed(&mut self, n: u32, sign: Sign) -> Vec<Effect> {
        let replica = ReplicaId::new(n);
        self.handle(Event::Noticed { replica, sign })
    }

    fn full(&mut self, id: u64, n: u32, wait: Micros) -> Vec<Effect> {
        let replica = ReplicaId::new(n);
        let wait = Some(wait);
        assert_eq!(self.handle(Event::ReplicaFull { replica, wait }), []);
        self.fails(id, Failure::Busy)
    }

    fn states(&self) -> Vec<State> {
        let gauges = self.gateway.gauges();
        gauges.replicas.iter().map(|one| one.health).collect()
    }

    fn is_up(&self, n: u32) -> bool {
        self.states()[usize::try_from(n).unwrap()] == State::Healthy
    }

    fn held(&self) -> Vec<u32> {
        let gauges = self.gateway.gauges();
        gauges
            .replicas
            .iter()
            .map(|one| one.window.sequences())
            .collect()
    }

    /// Serves a request a first token.
    fn first_token(&mut self, id: u64, replica: u32) -> Vec<Effect> {
        let served = Served {
            id: RequestId::new(id),
            prompt: Tokens::new(100),
            output: Tokens::new(1),
        };
        let mut effects = self.handle(Event::Stepped {
            replica: ReplicaId::new(replica),
            served: vec![served],
            report: Report::default(),
        });
        effects.extend(self.handle(Event::FirstToken {
            id: RequestId::new(id),
        }));
        effects
    }
}

/// Where each request was sent.
fn sent(effects: &[Effect]) -> Vec<(u64, u32)> {
    let mut sent = Vec::new();
    for effect in effects {
        if let Effect::Dispatch(one) = effect {
            sent.push((one.id.get(), one.replica.get()));
        }
    }
    sent
}

fn failed(effects: &[Effect]) -> Vec<(u64, Failure)> {
    let mut failed = Vec::new();
    for effect in effects {
        if let Effect::Failed { id, failure, .. } = effect {
            failed.push((id.get(), *failure));
        }
    }
    failed
}

fn withdrawn(effects: &[Effect]) -> Vec<u64> {
    let mut withdrawn = Vec::new();
    for effect in effects {
        if let Effect::Withdraw { id, .. } = effect {
            withdrawn.push(id.get());
        }
    }
    withdrawn
}

#[test]
fn the_one_of_many_replicas_that_has_room_is_found() {
    let mut rig = pool(100);
    let mut given = vec![0; 100];
    let mut seventh = 0;
    for id in 1..=400 {
        let (_, replica) = sent(&rig.arrive_as(id, 0))[0];
        given[usize::try_from(replica).unwrap()] += 1;
        seventh = if id == 7 { replica } else { seventh };
    }
    assert_eq!(given, vec![4; 100], "each has as many as it can hold");
    assert_eq!(sent(&rig.arrive_as(401, 0)), []);
    let mut effects = rig.engine_ends(7, EngineEnding::Cancelled, 1);
    effects.extend(rig.client_ends(7, ClientEnding::Gone));
    assert_eq!(sent(&effects), [(401, seventh)]);
}

#[test]
fn a_request_is_not_taken_back_from_the_replica_that_let_go_of_it() {
    let mut rig = pool(2);
    let first = sent(&rig.arrive_as(1, 0));
    let effects = rig.fails(1, Failure::Unreachable);
    assert_eq!(withdrawn(&effects), []);
    let other = 1 - first[0].1;
    assert_eq!(sent(&effects), [(1, other)]);
}

#[test]
fn a_request_that_broke_before_its_first_token_goes_to_another_replica() {
    let mut rig = pool(2);
    let [(1, first)] = sent(&rig.arrive(1))[..] else {
        panic!("not sent")
    };
    let effects = rig.fails(1, Failure::BrokeOff);
    assert_eq!(sent(&effects), [(1, 1 - first)]);
    assert_eq!((outcomes(&effects), failed(&effects)), (vec![], vec![]));
    let effects = rig.completes(1);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::Completed(FinishReason::Stop))]
    );
    assert_eq!(
        records(&effects).next().unwrap().replica,
        Some(ReplicaId::new(1 - first))
    );
    assert!(rig.is_empty());
}

#[test]
fn after_the_first_token_a_failure_is_told_and_not_tried_again() {
    let mut rig = pool(2);
    let [(1, first)] = sent(&rig.arrive(1))[..] else {
        panic!("not sent")
    };
    rig.first_token(1, first);
    let effects = rig.engine_ends(1, EngineEnding::Failed(Failure::BrokeOff), 3);
    assert_eq!(
        (sent(&effects), failed(&effects)),
        (vec![], vec![(1, Failure::BrokeOff)])
    );
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::ReplicaFailed(Failure::BrokeOff))]
    );
    assert!(rig.is_empty());
}

#[test]
fn an_answer_that_has_begun_without_a_token_is_not_made_by_another() {
    let mut rig = pool(2);
    rig.arrive(1);
    let id = RequestId::new(1);
    assert_eq!(rig.handle(Event::Begun { id }), []);
    assert_eq!(
        failed(&rig.fails(1, Failure::BrokeOff)),
        [(1, Failure::BrokeOff)]
    );
}

#[test]
fn a_request_is_tried_on_three_replicas_and_on_none_twice() {
    let mut rig = pool(5);
    let mut tried = sent(&rig.arrive(1));
    for _ in 0..2 {
        tried.extend(sent(&rig.fails(1, Failure::Silent)));
    }
    let replicas: BTreeSet<_> = tried.iter().map(|(_, replica)| replica).collect();
    assert_eq!((tried.len(), replicas.len()), (3, 3), "{tried:?}");
    let effects = rig.fails(1, Failure::Silent);
    assert_eq!(
        (sent(&effects), failed(&effects)),
        (vec![], vec![(1, Failure::Silent)])
    );
    rig.client_ends(1, ClientEnding::Delivered);
    assert!(rig.is_empty());
}

#[test]
fn with_no_other_replica_a_failure_is_told_at_once() {
    let mut rig = pool(1);
    rig.arrive(1);
    let effects = rig.fails(1, Failure::BrokeOff);
    assert_eq!(
        (sent(&effects), failed(&effects)),
        (vec![], vec![(1, Failure::BrokeOff)])
    );
}

#[test]
fn a_client_that_has_left_is_not_tried_again() {
    let mut rig = pool(2);
    rig.arrive(1);
    rig.client_ends(1, ClientEnding::Gone);
    let effects = rig.fails(1, Failure::BrokeOff);
    assert_eq!(sent(&effects), []);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::ClientGone(Phase::BeforeFirstToken))]
    );
    assert!(rig.is_empty());
}

#[test]
fn when_every_replica_fails_every_request_the_tries_are_bounded() {
    let mut rig = pool(3);
    let (mut tries, requests) = (0, 4_000);
    for id in 1..=requests {
        let mut effects = rig.arrive(id);
        while let [(_, _)] = sent(&effects)[..] {
            tries += 1;
            effects = rig.fails(id, Failure::Silent);
        }
        rig.client_ends(id, ClientEnding::Delivered);
        for n in 0..3 {
            rig.up(n);
        }
    }
    assert!((requests..requests * 13 / 10).contains(&tries), "{tries}");
    assert!(rig.is_empty());
}

#[test]
fn a_replica_that_always_errs_is_ejected_after_a_few_and_tried_again_later() {
    let mut rig = pool(2);
    let (mut errors, mut id) = (0, 0);
    while rig.is_up(0) {
        id += 1;
        let at = sent(&rig.arrive(id))[0].1;
        if at == 0 {
            errors += 1;
            assert_eq!(sent(&rig.fails(id, Failure::Erred)), [(id, 1)]);
        }
        rig.completes(id);
    }
    assert_eq!(errors, Health::FAILED_MAX);
    for more in 1..=50 {
        assert_eq!(sent(&rig.arrive(id + more)), [(id + more, 1)]);
        rig.completes(id + more);
    }
    let effects = rig.wait(Health::BACKOFF_MIN);
    assert_eq!(effects, [Effect::Start { replica: REPLICA }]);
    rig.up(0);
    assert!(rig.is_up(0));
}

#[test]
fn one_callers_poison_does_not_take_all_replicas_away() {
    let mut rig = pool(3);
    for id in 1..=60 {
        let mut effects = rig.arrive(id);
        while !sent(&effects).is_empty() {
            effects = rig.fails(id, Failure::Erred);
        }
        rig.client_ends(id, ClientEnding::Delivered);
    }
    assert!((0..3).all(|n| rig.is_up(n)), "{:?}", rig.states());
}

#[test]
fn what_a_replica_had_not_answered_goes_elsewhere_when_it_is_ejected() {
    let mut rig = pool(2);
    let mut on_first = Vec::new();
    for id in 1..=6 {
        if let [(id, 0)] = sent(&rig.arrive(id))[..] {
            on_first.push(id);
        }
    }
    assert!(on_first.len() >= 2, "{on_first:?}");
    let streams = on_first.remove(0);
    rig.first_token(streams, 0);
    rig.noticed(0, Sign::ProbeFailed);
    rig.noticed(0, Sign::ProbeFailed);
    let effects = rig.noticed(0, Sign::ProbeFailed);
    assert_eq!(
        withdrawn(&effects),
        on_first,
        "the one that streams is left to it"
    );
    for id in &on_first {
        rig.engine_ends(*id, EngineEnding::Cancelled, 0);
    }
    assert_eq!(rig.held(), [1, 4]);
    for id in 1..=6 {
        rig.completes(id);
    }
    assert!(rig.is_empty());
}

#[test]
fn a_replica_that_answers_what_is_being_withdrawn_keeps_it() {
    let mut rig = pool(2);
    let at = sent(&rig.arrive(1))[0].1;
    assert_eq!(withdrawn(&rig.noticed(at, Sign::Gone)), [1]);
    rig.first_token(1, at);
    let effects = rig.completes(1);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::Completed(FinishReason::Stop))]
    );
    assert!(rig.is_empty());
}

#[test]
fn a_client_whose_request_nobody_takes_any_more_is_told() {
    let mut rig = pool(2);
    let at = sent(&rig.arrive(1))[0].1;
    assert_eq!(withdrawn(&rig.noticed(at, Sign::Gone)), [1]);
    rig.noticed(1 - at, Sign::Gone);
    let effects = rig.engine_ends(1, EngineEnding::Cancelled, 0);
    assert_eq!(failed(&effects), [(1, Failure::Unreachable)]);
    let effects = rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(
        outcomes(&effects),
        [(1, Outcome::ReplicaFailed(Failure::Unreachable))]
    );
    assert!(rig.is_empty());
}

#[test]
fn a_full_replica_is_left_alone_as_long_as_it_asks_and_is_not_unwell() {
    let mut rig = pool(2);
    let at = sent(&rig.arrive(1))[0].1;
    let wait = Micros::from_secs(2);
    let effects = rig.full(1, at, wait);
    assert_eq!(sent(&effects), [(1, 1 - at)]);
    for id in 2..=4 {
        assert_eq!(sent(&rig.arrive(id)), [(id, 1 - at)]);
    }
    assert_eq!(sent(&rig.arrive(5)), [], "it waits with us");
    assert!(rig.is_up(at));
    assert_eq!(rig.gateway.next_wake(), Some(rig.now + wait));
    assert_eq!(sent(&rig.wait(wait)), [(5, at)]);
}

#[test]
fn when_the_only_replica_is_full_the_client_is_told_and_others_wait_until_it_said() {
    let mut rig = pool(1);
    let wait = Micros::from_secs(1);
    rig.arrive(1);
    assert_eq!(failed(&rig.full(1, 0, wait)), [(1, Failure::Busy)]);
    rig.client_ends(1, ClientEnding::Delivered);
    assert_eq!(sent(&rig.arrive(2)), []);
    assert_eq!(sent(&rig.wait(wait)), [(2, 0)]);
    rig.completes(2);
    assert!(rig.is_empty());
}

#[test]
fn one_that_failed_goes_before_those_of_its_tenant_that_came_later() {
    let mut rig = pool(2);
    let mut at = 0;
    for id in 1..=8 {
        rig.now = rig.now + Micros::from_millis(1);
        let sent = sent(&rig.arrive(id));
        if id == 1 {
            at = sent[0].1;
        }
    }
    assert_eq!(sent(&rig.arrive(9)), []);
    let effects = rig.fails(1, Failure::Silent);
    assert_eq!(sent(&effects), [(1, at)], "there is room nowhere else");
}

#[test]
fn a_replica_that_returns_is_not_overrun() {
    let mut rig = pool(2);
    rig.noticed(0, Sign::Gone);
    for id in 1..=4 {
        rig.arrive(id);
    }
    for id in 5..=8 {
        assert_eq!(sent(&rig.arrive_as(id, u32::try_from(id).unwrap() % 2)), []);
    }
    rig.wait(Health::BACKOFF_MIN);
    let effects = rig.up(0);
    assert_eq!(sent(&effects).len(), 2, "of four that wait: {effects:?}");
    let window = rig.gateway.gauges().replicas[0].window;
    assert_eq!((window.limit(), window.moved()), (2, Moved::Returned));
    let effects = rig.completes(sent(&effects)[0].0);
    assert_eq!(sent(&effects).len(), 2, "one for the answer, and one more");
}

#[test]
fn a_replica_that_failed_often_and_answers_probes_is_tried_at_once_and_not_overrun() {
    let mut rig = pool(2);
    let replica = ReplicaId::new(0);
    rig.noticed(0, Sign::Gone);
    for _ in 0..8 {
        let effects = rig.wait(Health::BACKOFF_MAX);
        assert_eq!(effects, [Effect::Start { replica }]);
        rig.handle(Event::ReplicaDown { replica });
    }
    for _ in 0..Health::ANSWERED_MIN {
        assert_eq!(rig.noticed(0, Sign::ProbeAnswered), []);
    }
    assert_eq!(rig.gateway.next_wake(), Some(rig.now));
    assert_eq!(rig.handle(Event::Wake), [Effect::Start { replica }]);
    rig.up(0);
    let window = rig.gateway.gauges().replicas[0].window;
    assert_eq!((window.limit(), window.moved()), (2, Moved::Returned));
}

#[test]
fn a_replica_that_leaves_finishes_what_it_has_and_gets_nothing_more() {
    let mut rig = pool(2);
    let at = sent(&rig.arrive(1))[0].1;
    let replica = ReplicaId::new(at);
    assert_eq!(rig.handle(Event::ReplicaLeaving { replica }), []);
    for id in 2..=4 {
        assert_eq!(sent(&rig.arrive(id)), [(id, 1 - at)]);
    }
    let effects = rig.completes(1);
    assert!(
        effects.contains(&Effect::Retired { replica }),
        "{effects:?}"
    );
    assert_eq!(rig.handle(Event::ReplicaLeaving { replica }), []);
    assert_eq!(rig.wait(Micros::from_secs(60)), []);
}

#[test]
fn one_that_has_nothing_leaves_at_once_and_its_id_is_given_to_another() {
    let mut rig = pool(1);
    let effects = rig.handle(Event::ReplicaLeaving { replica: REPLICA });
    assert_eq!(effects, [Effect::Retired { replica: REPLICA }]);
    let rejected = Outcome::Rejected(Rejection::NoReplica);
    assert_eq!(outcomes(&rig.arrive(1)), [(1, rejected)]);
    let config = ReplicaConfig {
        model: MODEL,
        only: None,
    };
    for n in 0..2 {
        let replica = ReplicaId::new(n);
        let effects = rig.handle(Event::ReplicaAdded { replica, config });
        assert_eq!(effects, [Effect::Start { replica }]);
        rig.up(n);
    }
    assert_eq!(sent(&rig.arrive(2)).len(), 1);
}

#[test]
fn failures_and_departures_leak_no_place_in_any_window() {
    let mut rig = pool(2);
    let failures = [
        Failure::BrokeOff,
        Failure::Unreachable,
        Failure::Busy,
        Failure::Sequence,
    ];
    for id in 1..=400 {
        let sent = sent(&rig.arrive(id));
        let Some(&(_, at)) = sent.first() else {
            continue;
        };
        match id % 6 {
            0 => drop(rig.client_ends(id, ClientEnding::Gone)),
            1 => drop(rig.first_token(id, at)),
            _ => {}
        }
        let failure = failures[usize::try_from(id).unwrap() % 4];
        rig.fails(id, failure);
        rig.wait(Micros::from_millis(100));
        rig.up(0);
        rig.up(1);
    }
    for id in 1..=400 {
        rig.completes(id);
        rig.completes(id);
    }
    rig.wait(Micros::from_secs(60));
    assert!(rig.is_empty());
    for id in 401..=404 {
        rig.arrive(id);
    }
    assert_eq!(rig.held().iter().sum::<u32>(), 4);
    assert!(rig.held().iter().all(|held| *held >= 1), "{:?}", rig.held());
}

#[test]
fn the_same_session_is_sent_to_the_same_replica_until_that_one_fails() {
    let mut rig = pool(3);
    let send = |id: u64, rig: &mut Rig| {
        let arrival = Arrival {
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
        let affinity = Affinity::default().in_session(1, arrival.tenant, b"s1");
        let at = sent(&rig.handle(Event::Sought(arrival, affinity)))[0].1;
        rig.completes(id);
        at
    };
    let home = send(1, &mut rig);
    assert!((2..20).all(|id| send(id, &mut rig) == home));
    rig.noticed(home, Sign::Gone);
    let other = send(20, &mut rig);
    assert_ne!(other, home);
    assert!((21..40).all(|id| send(id, &mut rig) == other));
    rig.wait(Health::BACKOFF_MIN);
    rig.up(home);
    assert_eq!(send(40, &mut rig), home);
    assert!(rig.is_empty());
}

/// Two models on one device that has room for one of them.
fn shelf() -> Rig {
    let mut rig = Rig::of_replicas(fair::Policy::Vtc, Limits::default(), 0);
    let loading = Some(Loading {
        device: 0,
        memory: KvBytes::new(6),
        room: KvBytes::new(10),
    });
    let model = Model {
        loading,
        ..rig.gateway.pools[0].model.clone()
    };
    let tenant = rig.gateway.tenant(TenantId::new(0)).clone();
    rig.gateway = Gateway::new(Config {
        tenants: TenantTable::new(vec![tenant.clone()], tenant),
        models: vec![model.clone(), model],
        replicas: (0..2)
            .map(|n| ReplicaConfig {
                model: ModelId::new(n),
                only: None,
            })
            .collect(),
        fairness: fair::Policy::Vtc,
        weights: Weights::default(),
        seed: 7,
    });
    rig
}

impl Rig {
    fn ask(&mut self, id: u64, model: u32) -> Vec<Effect> {
        self.now = self.now + Micros::from_millis(1);
        let arrival = Arrival {
            id: RequestId::new(id),
            tenant: TenantId::new(0),
            key: None,
            model: ModelId::new(model),
            prompt: Tokens::new(100),
            output_max: Some(Tokens::new(50)),
            retry: false,
            slo: slo::Asked::default(),
            received: self.now,
        };
        self.handle(Event::Arrived(arrival))
    }
}

#[test]
fn a_model_is_loaded_when_it_is_first_asked_for_and_its_requests_wait() {
    let mut rig = shelf();
    let (first, second) = (ReplicaId::new(0), ReplicaId::new(1));
    assert!(rig.gateway.is_ready(), "as ready as it will be");
    assert_eq!(rig.ask(1, 0), [Effect::Start { replica: first }]);
    assert_eq!(rig.ask(2, 0), [], "one attempt, however many wait");
    assert_eq!(sent(&rig.up(0)), [(1, 0), (2, 0)]);
    assert_eq!(rig.ask(3, 1), [], "the other one works");
    rig.completes(1);
    assert_eq!(
        rig.completes(2).last(),
        Some(&Effect::Stop { replica: first })
    );
    let effects = rig.handle(Event::ReplicaStopped { replica: first });
    assert_eq!(effects, [Effect::Start { replica: second }]);
    assert_eq!(sent(&rig.up(1)), [(3, 1)]);
    rig.completes(3);
    assert!(rig.is_empty());
}

#[test]
fn a_request_that_comes_while_its_model_is_unloaded_has_it_loaded_again() {
    let mut rig = shelf();
    let (first, second) = (ReplicaId::new(0), ReplicaId::new(1));
    rig.ask(1, 0);
    rig.up(0);
    rig.completes(1);
    assert_eq!(rig.ask(2, 1), [Effect::Stop { replica: first }]);
    assert_eq!(rig.ask(3, 0), [], "it is on its way out");
    let effects = rig.handle(Event::ReplicaStopped { replica: first });
    assert_eq!(effects, [Effect::Start { replica: second }]);
    rig.up(1);
    assert_eq!(
        rig.completes(2).last(),
        Some(&Effect::Stop { replica: second })
    );
    let effects = rig.handle(Event::ReplicaStopped { replica: second });
    assert_eq!(effects, [Effect::Start { replica: first }]);
    assert_eq!(sent(&rig.up(0)), [(3, 0)]);
}

#[test]
fn when_loading_takes_longer_than_a_request_may_wait_it_is_told_so_at_once() {
    let mut rig = shelf();
    rig.ask(1, 0);
    rig.now = rig.now + Micros::from_secs(20);
    rig.up(0);
    rig.completes(1);
    rig.ask(2, 1);
    rig.handle(Event::ReplicaStopped {
        replica: ReplicaId::new(0),
    });
    rig.gateway.pools[0].model.max_wait = Some(Micros::from_secs(10));
    let effects = rig.ask(3, 0);
    assert_eq!(
        outcomes(&effects),
        [(3, Outcome::Rejected(Rejection::Capacity))]
    );
    let told = refusal(&effects).retry_after.unwrap();
    assert!(told >= Micros::from_secs(20), "{told:?}");
}

#[test]
fn a_load_that_fails_is_tried_again_after_a_pause_and_refused_meanwhile() {
    let mut rig = shelf();
    rig.ask(1, 0);
    rig.handle(Event::ReplicaDown { replica: REPLICA });
    let rejected = Outcome::Rejected(Rejection::NoReplica);
    assert_eq!(
        outcomes(&rig.ask(2, 0)),
        [(2, rejected)],
        "fast, with the pause to come"
    );
    assert_eq!(
        rig.wait(Health::BACKOFF_MIN),
        [Effect::Start { replica: REPLICA }]
    );
    assert_eq!(sent(&rig.up(0)), [(1, 0)]);
}
