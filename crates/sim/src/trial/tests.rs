//! The scenarios of the project: in each the plain gateway fails a bound that Tollgate keeps.

use super::*;
use crate::report::render;

fn scenario(name: &str) -> Scenario {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let text = std::fs::read_to_string(format!("{folder}/{name}.yaml")).unwrap();
    Scenario::parse(&text).unwrap_or_else(|mistake| panic!("{name}.yaml:{mistake}"))
}

/// Runs a scenario, in which the first contender must keep every bound and each other break one.
fn told_apart(name: &str) {
    let scenario = scenario(name);
    let trials = one(&scenario, 1, None, None).unwrap();
    let report = render(&scenario, &trials);
    assert_eq!(trials.passes(&scenario), Passes::Yes, "{report}");
    assert!(trials.trials.len() > 1 && !scenario.measures.is_empty());
    for other in &trials.trials[1..] {
        let (names, until) = (other.setup.names(), other.setup.workload.until());
        let mut kept = scenario.measures.iter();
        let keeps = kept.all(|measure| measure.judge(&other.run, &names, until).holds);
        assert!(
            !keeps,
            "{} keeps every bound too\n{report}",
            other.contender.label()
        );
    }
}

#[test]
fn a_pool_that_slows_down_tightens_admission_where_pace_is_measured() {
    told_apart("slowing");
}

#[test]
fn a_floor_is_not_honoured_in_a_replica_that_others_have_filled() {
    told_apart("floor");
}

#[test]
fn the_clock_tells_nothing_of_another_tenants_prompts() {
    told_apart("probe");
}

#[test]
fn an_aborted_request_gives_its_budget_back_at_once() {
    told_apart("aborts");
}

#[test]
fn no_herd_follows_an_old_report() {
    told_apart("herd");
}

#[test]
fn clients_that_come_back_come_back_evenly() {
    told_apart("retries");
}

#[test]
fn a_quiet_tenant_is_quick_beside_a_flooder() {
    told_apart("flood");
}

#[test]
fn a_quiet_tenant_is_quick_beside_a_cold_flood_on_few_sequences() {
    told_apart("cold-flood");
}

#[test]
fn newcomers_do_not_wait_for_long_answers_on_few_sequences() {
    told_apart("guests");
}

#[test]
fn every_scenario_of_the_project_can_be_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        scenario(name.strip_suffix(".yaml").unwrap());
        read += 1;
    }
    assert!(read >= 8, "{read}");
}

#[test]
fn a_seed_that_fails_says_how_to_play_it_again() {
    let text = "title: in vain
duration: 2s
fleet: [{ slots: 1 }]
tenants:
  - name: a
    arrivals: { poisson: { rate: 9 } }
    prompt: { constant: 10 }
    output: { constant: 5 }
measures:
  - { what: ttft_p50_ms, tenant: a, at_most: 0.001 }
";
    let scenario = Scenario::parse(text).unwrap();
    let mut said = String::new();
    let mut failed = |text: &str| said.push_str(text);
    let command = "tollgate sim vain.yaml";
    let count = many(&scenario, 4..6, None, (command, &mut failed)).unwrap();
    assert_eq!((count.seeds, count.failed), (2, 2));
    assert!(
        said.contains("play it again: tollgate sim vain.yaml --seed 5\n"),
        "{said}"
    );
}

#[test]
fn the_report_of_a_seed_is_the_same_every_time() {
    let scenario = scenario("aborts");
    let report = || render(&scenario, &one(&scenario, 3, None, None).unwrap());
    assert_eq!(report(), report());
}

/// That everybody is served; what a fact costs, with few replicas and with many, is measured with
/// `scenarios/scale.yaml`.
#[test]
fn a_small_version_of_the_largest_scenario_serves_everybody() {
    let scenario = scenario("scale-small");
    let trials = one(&scenario, 1, None, None).unwrap();
    assert_eq!(
        trials.passes(&scenario),
        Passes::Yes,
        "{}",
        render(&scenario, &trials)
    );
    let tenants = &trials.trials[0].run.tally.tenants;
    let came: u64 = tenants.iter().map(|one| one.came).sum();
    assert!(came > 90_000, "{came}");
}

#[test]
fn what_is_let_in_is_in_time_and_nine_of_ten_bounds_hold() {
    told_apart("promises");
}

#[test]
fn whoever_asks_for_more_than_its_share_is_the_one_that_is_refused() {
    told_apart("promises-tenants");
}
