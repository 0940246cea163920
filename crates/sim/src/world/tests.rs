//! Worlds at random keep every law, the same seed gives the same bytes, and each oracle trips where
//! its law is broken on purpose.

mod planted;

use tollgate_policy::gateway::Gateway;

use self::planted::{Flaw, Planted};
use super::*;
use crate::chaos::{Profile, world};

/// Runs one world, and panics with the command that plays it again if a law does not hold.
fn clean(profile: Profile, seed: u64) -> Run {
    let setup = world(profile, seed, 1.0).unwrap();
    let run = run(&setup, Gateway::new(setup.config()), None);
    assert!(
        run.violations.is_empty(),
        "tollgate sim --chaos {} --seed {seed}\n{:#?}",
        profile.label(),
        run.violations
    );
    run
}

fn log_of(setup: &Setup) -> String {
    let mut text = String::new();
    let mut write = |line: &str| text.push_str(line);
    run(
        setup,
        Gateway::new(setup.config()),
        Some(Log::new(&mut write)),
    );
    text
}

#[test]
fn worlds_at_random_keep_every_law() {
    let (mut came, mut facts) = (0, 0);
    for profile in Profile::ALL {
        for seed in 0..80 {
            let run = clean(profile, seed);
            came += run.tally.tenants.iter().map(|one| one.came).sum::<u64>();
            facts += run.facts;
        }
    }
    assert!(
        came > 150_000 && facts > 5 * came,
        "{came} requests, {facts} facts"
    );
}

#[test]
fn every_end_that_there_is_comes_up_in_them() {
    let mut reasons = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let run = clean(Profile::All, 1_000 + seed);
        reasons.extend(run.tally.outcomes.keys().copied());
    }
    for wanted in [
        "completed",
        "client_gone_queued",
        "client_gone_before_first_token",
        "client_gone_mid_stream",
        "replica_failed",
        "max_stream",
        "queue_time",
        "retry_budget",
        "bug",
    ] {
        assert!(reasons.contains(wanted), "no `{wanted}` in {reasons:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_gives_others() {
    for seed in 0..5 {
        let setup = |seed| world(Profile::All, seed, 0.5).unwrap();
        let log = log_of(&setup(seed));
        assert!(log.lines().count() > 500);
        assert_eq!(log, log_of(&setup(seed)), "seed {seed}");
        assert_ne!(log, log_of(&setup(seed + 100)));
    }
}

#[test]
fn after_a_hundred_thousand_requests_with_faults_everything_is_zero() {
    let (mut came, mut served) = (0, 0);
    for seed in 0..10 {
        let setup = world(Profile::All, seed, 34.0).unwrap();
        let run = run(&setup, Gateway::new(setup.config()), None);
        assert_eq!(run.violations, [], "seed {seed}");
        let tenants = &run.tally.tenants;
        came += tenants.iter().map(|one| one.came).sum::<u64>();
        served += tenants.iter().map(|one| one.completed).sum::<u64>();
    }
    assert!(came > 90_000 && served > 10_000, "{served} of {came}");
}

/// The oracles that trip when the gateway of this world has a flaw.
fn tripped(flaw: Flaw) -> Vec<Oracle> {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..4 {
        let setup = planted::setup(seed);
        let planted = Planted::new(&setup, flaw);
        let run = run(&setup, planted, None);
        seen.extend(run.violations.iter().map(|violation| violation.oracle));
    }
    seen.into_iter().collect()
}

#[test]
fn a_sound_gateway_trips_nothing() {
    assert_eq!(tripped(Flaw::None), []);
}

#[test]
fn a_request_that_never_ends_is_noticed() {
    assert!(tripped(Flaw::LosesAnEnd).contains(&Oracle::Progress));
}

#[test]
fn a_request_that_ends_twice_is_noticed() {
    assert!(tripped(Flaw::EndsOneTwice).contains(&Oracle::EndsOnce));
}

#[test]
fn a_token_too_many_on_the_bill_is_noticed() {
    assert_eq!(tripped(Flaw::BillsATokenMore), [Oracle::Ledger]);
}

#[test]
fn a_mark_of_more_than_was_served_is_noticed() {
    assert_eq!(tripped(Flaw::MarksATokenMore), [Oracle::Ledger]);
}

#[test]
fn a_replica_given_more_than_it_holds_is_noticed() {
    assert!(tripped(Flaw::ThinksKvIsLarger).contains(&Oracle::KvBudget));
}

#[test]
fn what_is_held_after_the_end_is_noticed() {
    assert!(tripped(Flaw::EndsOneBesideTheDoor).contains(&Oracle::Zero));
}

#[test]
fn a_wait_without_end_is_noticed() {
    assert!(tripped(Flaw::ForgetsDeadlines).contains(&Oracle::Starvation));
}

#[test]
fn a_flooder_served_first_is_noticed() {
    assert!(tripped(Flaw::ServesInOrderOfArrival).contains(&Oracle::ServiceGap));
}

#[test]
fn a_replica_left_idle_is_noticed() {
    assert!(tripped(Flaw::LetsArrivalsLie).contains(&Oracle::WorkConserving));
}

#[test]
fn a_gateway_that_never_sleeps_is_noticed() {
    assert!(tripped(Flaw::AlwaysAwake).contains(&Oracle::Progress));
}
