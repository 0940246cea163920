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
    assert!(typo.contains("unknown field `slot`"), "{typo}");
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
        ("engine: embedded, steps: {}", "0 points; use 1 to 64"),
    ] {
        let told = wrong(replica);
        assert!(told.starts_with("4:5: fleet[0]: "), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}
