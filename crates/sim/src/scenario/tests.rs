//! Mistakes are told with their place; the scenarios of the project are good ones.

use super::*;

const SMALL: &str = "title: small
duration: 10s
fleet:
  - slots: 4
tenants:
  - name: a
    arrivals: { poisson: { rate: 2 } }
    prompt: { constant: 10 }
    output: { constant: 5 }
";

fn mistake(text: &str) -> String {
    Scenario::parse(text).unwrap_err().to_string()
}

#[test]
fn a_small_scenario_says_all_that_is_needed() {
    let scenario = Scenario::parse(SMALL).unwrap();
    let setup = scenario.setup(3, Contender::Tollgate, None).unwrap();
    assert_eq!(setup.names(), ["a"]);
    assert_eq!(setup.fleet.len(), 1);
    assert_eq!(setup.fleet[0].machine.capacity().sequences, 4);
}

#[test]
fn a_mistake_is_told_with_its_path_line_and_column() {
    let typo = mistake(&SMALL.replace("slots: 4", "slot: 4"));
    assert!(typo.starts_with("4:5: fleet[0]"), "{typo}");
    assert!(typo.contains("there is no key `slot` here"), "{typo}");
    let kind = mistake(&SMALL.replace("rate: 2", "rate: fast"));
    assert!(kind.starts_with("7:34: tenants[0].arrivals"), "{kind}");
    let time = mistake(&SMALL.replace("10s", "10 parsecs"));
    assert!(time.starts_with("2:11: duration: "), "{time}");
    assert!(time.ends_with("use one like 30s, 250ms or 10m"), "{time}");
    let rate = mistake(&SMALL.replace("rate: 2", "rate: -2"));
    assert!(rate.starts_with("6:5: tenants[0]: "), "{rate}");
    assert!(rate.contains("-2 requests per second"), "{rate}");
    let none = mistake("title: nothing\n");
    assert_eq!(none, "1:1: fleet: is missing; list the replicas");
    let broken = mistake("title: [\n");
    assert!(!broken.is_empty());
}

#[test]
fn what_is_named_must_be_there() {
    let fault = format!("{SMALL}faults:\n  - {{ at: 1s, kind: crash, replica: 7 }}\n");
    let fault = mistake(&fault);
    assert!(fault.starts_with("11:5: faults[0]: "), "{fault}");
    let measure = format!("{SMALL}measures:\n  - {{ what: ttft_p99_ms, tenant: b, at_most: 1 }}\n");
    let measure = mistake(&measure);
    assert!(measure.starts_with("11:5: measures[0]: "), "{measure}");
    let context = mistake(&SMALL.replace("slots: 4", "kv_tokens: 100"));
    assert!(context.starts_with("4:5: fleet[0]: "), "{context}");
}

#[test]
fn a_trace_that_is_not_at_hand_has_a_stand_in() {
    for name in TraceName::ALL {
        let text = format!(
            "{SMALL}replay: {{ trace: {}, speed: 3 }}\nmodel: {{ context: 200000 }}\n",
            name.label()
        );
        let text = text.replace("slots: 4", "kv_tokens: 300000");
        let scenario = Scenario::parse(&text).unwrap();
        assert_eq!(scenario.replays(), Some(name));
        let setup = scenario.setup(1, Contender::Tollgate, None).unwrap();
        assert_eq!(setup.callers.len(), setup.workload.tenants().len());
        assert!(setup.workload.arrivals().count() > 5);
    }
}

#[test]
fn an_embedded_engine_may_cost_what_was_fitted_to_it() {
    let fitted = "engine: embedded, slots: 4, steps: { 1: 7ms, 4: 20ms }, prompt_step: 2ms, \
                  prefill_per_second: 250, attention_per_second: 1000000";
    let text = SMALL.replace("- slots: 4", &format!("- {{ {fitted} }}"));
    let scenario = Scenario::parse(&text).unwrap();
    let setup = scenario.setup(1, Contender::Tollgate, None).unwrap();
    let MachineConfig::Planned(machine) = &setup.fleet[0].machine else {
        panic!("{setup:?}");
    };
    let StepCost::Apart(cost) = &machine.cost else {
        panic!("{machine:?}");
    };
    assert_eq!(cost.answers.at(4), Micros::from_millis(20));
    assert_eq!(cost.prompt_step, Micros::from_millis(2));
}

#[test]
fn a_cost_is_of_one_kind() {
    let wrong =
        |replica: &str| mistake(&SMALL.replace("- slots: 4", &format!("- {{ {replica} }}")));
    for (replica, expected) in [
        ("steps: { 1: 7ms }", "steps is of `engine: embedded` only"),
        (
            "engine: embedded, prompt_step: 1ms",
            "is of a cost with `steps`",
        ),
        (
            "engine: embedded, attention_per_second: 9",
            "is of a cost with `steps`",
        ),
        (
            "engine: embedded, step: 1ms, steps: { 1: 7ms }",
            "use one of both",
        ),
    ] {
        let told = wrong(replica);
        assert!(told.starts_with("4:5: fleet[0]: "), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}

/// With this replica in place of the ordinary one.
fn with_replica(replica: &str) -> Result<Scenario, Mistake> {
    Scenario::parse(&SMALL.replace("- slots: 4", &format!("- {{ {replica} }}")))
}

#[test]
fn what_steps_cost_must_be_what_an_engine_costs() {
    let embedded = |steps: &str| with_replica(&format!("engine: embedded, steps: {steps}"));
    // In any order, and eight for less than seven, as it was measured.
    for steps in [
        "{ 4: 7ms, 1: 3ms }",
        "{ 7: 54700us, 8: 53100us }",
        "{ 2: 5ms, 3: 5ms }",
    ] {
        assert!(embedded(steps).is_ok(), "{steps}");
    }
    for (steps, expected) in [
        (
            "{}",
            "0 numbers of sequences; say what a step of 1 to 64 of them takes",
        ),
        ("", "nothing stands where keys with values belong"),
        (
            "[]",
            "stands where keys with values belong; write them as { key: value }",
        ),
        ("[1ms, 2ms]", "stands where keys with values belong"),
        ("5ms", "`5ms` stands where keys with values belong"),
        (
            "{ 1: 7ms, 4: 3ms }",
            "a step of 4 takes 3000us, and one of 1 takes 7000us",
        ),
        ("{ 1: 7ms, 1: 8ms }", "`1` stands here twice; keep one"),
        (
            "{ 0: 7ms }",
            "`0` is no number of sequences; use 1, 2 or more",
        ),
        ("{ -1: 7ms }", "`-1` is no number of sequences"),
        ("{ 1.5: 7ms }", "`1.5` is no number of sequences"),
        ("{ a: 7ms }", "`a` is no number of sequences"),
        (
            "{ 1: -7ms }",
            "`-7ms` is no time; use one like 30s, 250ms or 10m",
        ),
        ("{ 1: 0ms }", "a step of 1 takes no time; use 1us or more"),
        ("{ 1: }", "nothing stands here; write a value"),
    ] {
        let told = embedded(steps).unwrap_err().to_string();
        assert!(told.contains("fleet[0].steps"), "{steps}: {told}");
        assert!(told.starts_with("4:"), "{steps}: {told}");
        assert!(told.contains(expected), "{steps}: {told}");
    }
}

#[test]
fn values_that_no_replica_has_are_refused_where_they_stand() {
    for (replica, expected) in [
        ("slots: 0", "fleet[0].slots: 0 is too small; use 1 or more"),
        (
            "slots: many",
            "4:14: fleet[0].slots: `many` is no such value; use a whole number",
        ),
        ("slots:", "fleet[0].slots: nothing stands here"),
        (
            "slots: 1, slots: 2",
            "4:17: fleet[0]: `slots` stands here twice",
        ),
        ("count: 0", "fleet[0].count: 0; use 1 to 10000"),
        (
            "count: 10000000",
            "fleet[0].count: 10000000; use 1 to 10000",
        ),
        ("chunk: 0", "fleet[0].chunk: 0; use 1 to"),
        (
            "cache: maybe",
            "`maybe` is no such value; use true or false",
        ),
        ("report_every: 0s", "fleet[0].report_every: 0 is no time"),
        ("step:", "fleet[0].step: nothing stands here"),
        ("step: 99999999999999h", "is more than a year; use less"),
        ("step: 0ms, per_sequence: 0ms", "one of them must take time"),
        (
            "only: nobody",
            "there is no `nobody` here; use one of reserved, standard or best_effort",
        ),
        ("others: {}", "fleet[0].others: `every` is missing; add it"),
    ] {
        let told = with_replica(replica).unwrap_err().to_string();
        assert!(told.contains(expected), "{replica}: {told}");
    }
}

#[test]
fn values_that_no_tenant_has_are_refused_where_they_stand() {
    for (key, expected) in [
        ("count: 0", "tenants[0].count: 0; use 1 to 100000"),
        (
            "count: 99999999",
            "tenants[0].count: 99999999; use 1 to 100000",
        ),
        (
            "floor_percent: 101",
            "tenants[0].floor_percent: 101; use 0 to 100",
        ),
        ("weight: 0", "tenants[0].weight: 0 is too small"),
        (
            "limits: { max_output: 0 }",
            "tenants[0].limits.max_output: 0; use 1 to",
        ),
        (
            "limits: { kv_gib_seconds: 0.5 }",
            "`0.5` is no such value; use a whole number",
        ),
        (
            "clients: { impatient: 2 }",
            "tenants[0].clients.impatient: 2; use 0 to 1",
        ),
        (
            "clients: { leaves_at_end: .nan }",
            "tenants[0].clients.leaves_at_end: NaN; use 0 to 1",
        ),
        (
            "clients: { retries: 4000 }",
            "tenants[0].clients.retries: 4000; use 0 to 100",
        ),
        (
            "says: { at_most: 0 }",
            "tenants[0].says.at_most: 0; use 1 to",
        ),
        (
            "texts: { family: '', tokens: 9 }",
            "tenants[0].texts.family: an empty name",
        ),
        ("session:", "tenants[0].session: nothing stands where"),
    ] {
        let told = mistake(&format!("{SMALL}    {key}\n"));
        assert!(told.contains(expected), "{key}: {told}");
    }
    let nameless = mistake(&SMALL.replace("name: a", "name: ''"));
    assert!(
        nameless.contains("tenants[0].name: an empty name"),
        "{nameless}"
    );
}

#[test]
fn what_can_never_be_is_refused_before_anything_runs() {
    for (line, expected) in [
        ("warmup: 10s", "10:9: warmup: is as long as the duration"),
        (
            "compare: [fifo, plain, fifo]",
            "compare: fifo stands here twice",
        ),
        (
            "model: { slo: {} }",
            "model: slo promises nothing; give it ttft, tpot or e2e",
        ),
        (
            "model: { slo: { ttft: 0s } }",
            "model.slo.ttft: 0 is no time",
        ),
        (
            "model: { slo: { ttft: 1s, per_mille: 900 } }",
            "model.slo.per_mille: 900; use 1 to 500",
        ),
        ("model: { context: 0 }", "model.context: 0; use 1 to"),
        (
            "model: { max_stream: 0s }",
            "model.max_stream: 0 is no time",
        ),
        (
            "faults: [ { at: 99s, kind: crash } ]",
            "faults[0]: comes when all is over",
        ),
        (
            "faults: [ { at: 1s, kind: slow, times: -1 } ]",
            "faults[0].times: -1; use 0.001 to 1000",
        ),
        (
            "faults: [ { at: 1s, kind: exodus, percent: 500 } ]",
            "faults[0].percent: 500; use 1 to 100",
        ),
        (
            "faults: [ { at: 1s, kind: stale, every: 0s } ]",
            "faults[0].every: 0 is no time",
        ),
        (
            "longer: { at: 20s, percent: 200 }",
            "longer: begins when all is over",
        ),
        (
            "replay: { trace: lmsys-27, speed: 0 }",
            "replay.speed: 0; use 0.001 to 1000",
        ),
        (
            "chaos: { profile: all, size: .nan }",
            "chaos.size: NaN; use more than 0",
        ),
        (
            "measures: [ { what: imbalance, at_most: .nan } ]",
            "measures[0].at_most: NaN bounds nothing",
        ),
        (
            "measures: [ { what: imbalance, at_most: 1, at_least: 5 } ]",
            "measures[0]: nothing is at least 5",
        ),
        ("tenants: []", "`tenants` stands here twice; keep one"),
    ] {
        let told = mistake(&format!("{SMALL}{line}\n"));
        assert!(told.contains(expected), "{line}: {told}");
    }
}
