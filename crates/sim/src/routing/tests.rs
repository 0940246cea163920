//! What routing must hold, on workloads drawn anew; and on the trace, where `TOLLGATE_TRACES` names
//! the folder it is in.

use std::path::PathBuf;

use tollgate_policy::route::Policy;
use tollgate_policy::units::Time;

use super::*;
use crate::workload::{TenantLoad, Workload};
use crate::{Arrivals, Lengths};

const OURS: Rule = Rule::Tollgate(Policy::Prefix);

fn reports(every_ms: u64, routers: usize) -> Reports {
    Reports {
        every: Micros::from_millis(every_ms),
        routers,
    }
}

/// 44 replicas at 333 requests per second.
fn in_flight(rule: Rule, routers: usize) -> DecodeScore {
    let lognormal = |median, max| Lengths::Lognormal {
        median,
        sigma: 0.8,
        min: 1,
        max,
    };
    let load = TenantLoad {
        session: None,
        shared: None,
        name: "all".to_owned(),
        arrivals: Arrivals::Poisson { rate: 333.0 },
        prompt: lognormal(800.0, 8_000),
        output: lognormal(200.0, 2_000),
    };
    let until = Time::START + Micros::from_secs(90);
    let workload = Workload::drawn(vec![load], until, 1).unwrap();
    let world = DecodeWorld {
        replicas: 44,
        ttft: Micros::from_millis(200),
        tpot: Micros::from_millis(50),
        total: Tokens::new(1_000_000),
        expected_output: Tokens::new(256),
        from: Time::START + Micros::from_secs(45),
        reports: reports(250, routers),
    };
    decode(rule, workload.arrivals(), world, 1)
}

#[test]
fn reports_of_a_quarter_second_keep_44_replicas_level() {
    for policy in [Policy::PowerOfTwo, Policy::Prefix, Policy::LeastLoad] {
        let score = in_flight(Rule::Tollgate(policy), 1);
        assert!(
            score.mean <= 1.3 && score.p99 <= 1.3,
            "{policy:?}: {score:?}"
        );
    }
    let herd = in_flight(Rule::LowestReport, 1);
    assert!(herd.mean > 1.35, "the bad end is not bad: {herd:?}");
}

#[test]
fn several_gateways_that_know_nothing_of_each_other_keep_them_level_too() {
    let score = in_flight(Rule::Tollgate(Policy::PowerOfTwo), 4);
    assert!(score.mean <= 1.3, "{score:?}");
}

fn hits(requests: &[Prefixed], cache: u64, every_ms: u64) -> PrefillScore {
    let reports = reports(every_ms, 1);
    let world = PrefillWorld::for_load(requests, 8, Tokens::new(cache), reports);
    prefill(OURS, requests, world, 1)
}

fn affinity_holds(requests: &[Prefixed], cache: u64, imbalance_max: f64) {
    let bound = infinite_cache(requests);
    let fresh = hits(requests, cache, 250);
    assert!(fresh.hits >= 0.8 * bound, "{fresh:?} of {bound}");
    assert!(fresh.imbalance <= imbalance_max, "{fresh:?}");
    let stale = hits(requests, cache, 10_000);
    assert!(stale.hits >= 0.8 * fresh.hits, "{stale:?} of {fresh:?}");
}

#[test]
fn conversations_find_most_of_what_one_cache_without_end_would_hold() {
    // A third of the trace's requests, so chance has more of a part in who gets how much.
    affinity_holds(&conversations(Micros::from_secs(1_200), 1), 1_000_000, 1.08);
}

#[test]
fn the_trace_of_conversations_finds_most_of_what_one_cache_without_end_would_hold() {
    let Some(dir) = std::env::var_os("TOLLGATE_TRACES") else {
        eprintln!("TOLLGATE_TRACES is not set: the trace is not run");
        return;
    };
    affinity_holds(&mooncake(&PathBuf::from(dir), 1).unwrap(), 3_000_000, 1.05);
}

#[test]
fn one_system_prompt_for_all_heats_no_replica() {
    // Every conversation begins with the same block; the rule that only looks at that sends all of
    // them to one place.
    let requests = conversations(Micros::from_secs(600), 2);
    let world = PrefillWorld::for_load(&requests, 8, Tokens::new(1_000_000), reports(250, 1));
    let bad = prefill(Rule::LongestPrefix, &requests, world, 1);
    assert!(bad.imbalance > 7.0, "{bad:?}");
    let ours = prefill(OURS, &requests, world, 1);
    assert!(
        ours.imbalance < 1.1 && ours.hits > bad.hits,
        "{ours:?} {bad:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_score() {
    let requests = conversations(Micros::from_secs(60), 3);
    assert_eq!(hits(&requests, 100_000, 250), hits(&requests, 100_000, 250));
}
