//! A cost that made steps is found again, and what makes no sense is refused.

use std::num::{NonZeroU32, NonZeroU64};

use tollgate_policy::units::{Micros, Time, Tokens};
use tollgate_sim::emulated::Cost;
use tollgate_sim::machine::{ApartCost, Curve, StepCost};
use tollgate_sim::scenario::Scenario;

use super::*;
use crate::spec::{Identity, Tokenizer};

fn plan(simulated: Simulated) -> Plan {
    Plan {
        endpoint: "http://127.0.0.1:1".parse().unwrap(),
        model: "m".to_owned(),
        identity: Identity::TenantHeader,
        simulated,
        sequences: vec![1, 2, 4, 8],
        prompts: vec![16, 64],
        output: 8,
        each: Micros::from_secs(1),
        tokenizer: Tokenizer::Bytes { template: 18 },
        seed: 1,
        command: "calibrate".to_owned(),
    }
}

/// Steps of every kind, with what a cost says they take.
fn made(cost: StepCost) -> Vec<Seen> {
    let mut steps = Vec::new();
    for n in 0..800_u64 {
        let (answers, prompts) = (n % 9, u64::from(n % 5 == 0 || n % 9 == 0));
        let prompt = prompts * (16 + n % 7 * 20);
        let shape = Shape {
            answers,
            prompts,
            prompt_tokens: Tokens::new(prompt),
            kv: Tokens::new(answers * (30 + n % 11 * 9) + prompt),
        };
        // Off by up to 2 per cent either way, and now and then far.
        let noise = 0.98 + (n * 37 % 41) as f64 / 1_000.0;
        let late = if n % 50 == 49 { 3.0 } else { 1.0 };
        steps.push(Seen {
            at: Time::START,
            took_ms: cost.of(shape).get() as f64 / 1e3 * noise * late,
            shape,
        });
    }
    steps
}

fn near(found: u64, expected: u64) {
    let off = found.abs_diff(expected) as f64 / expected as f64;
    assert!(off < 0.04, "{found}, where {expected} was to be found");
}

fn embedded() -> StepCost {
    let points = [(1, 7_000), (2, 14_000), (4, 21_000), (8, 35_000)];
    let points = points.map(|(n, us)| (NonZeroU32::new(n).unwrap(), Micros::new(us)));
    StepCost::Apart(ApartCost {
        answers: Curve::through(&points).unwrap(),
        attention_per_second: NonZeroU64::new(1_000_000),
        prompt_step: Micros::new(6_000),
        prefill_tokens_per_second: NonZeroU64::new(250).unwrap(),
    })
}

fn emulated() -> StepCost {
    StepCost::Together(Cost {
        step: Micros::new(10_000),
        per_sequence: Micros::new(1_500),
        prefill_tokens_per_second: NonZeroU64::new(4_000).unwrap(),
    })
}

#[test]
fn steps_give_back_the_embedded_engine_that_made_them() {
    let fitted = Fitted::to(&plan(Simulated::Embedded), &made(embedded()), &[1, 2, 4, 8]).unwrap();
    let FittedCost::Embedded {
        answers_us,
        attention_per_second,
        prompt_step_us,
        prefill_tokens_per_second,
    } = &fitted.cost
    else {
        panic!("{fitted:?}");
    };
    assert_eq!(answers_us.len(), 4);
    for ((_, found), expected) in answers_us.iter().zip([7_000, 14_000, 21_000, 35_000]) {
        near(*found, expected);
    }
    near(attention_per_second.unwrap() / 10, 100_000);
    near(*prompt_step_us, 6_000);
    near(*prefill_tokens_per_second, 250);
    assert!(fitted.all.off_median < 0.02, "{}", fitted.all);
}

#[test]
fn steps_give_back_the_emulated_engine_that_made_them() {
    let fitted = Fitted::to(&plan(Simulated::Emulated), &made(emulated()), &[1, 2, 4, 8]).unwrap();
    let FittedCost::Emulated {
        step_us,
        per_sequence_us,
        prefill_tokens_per_second,
    } = fitted.cost
    else {
        panic!("{fitted:?}");
    };
    near(step_us, 10_000);
    near(per_sequence_us, 1_500);
    near(prefill_tokens_per_second, 4_000);
}

#[test]
fn what_is_printed_is_the_fleet_of_a_scenario() {
    for (simulated, cost) in [
        (Simulated::Emulated, emulated()),
        (Simulated::Embedded, embedded()),
    ] {
        let fitted = Fitted::to(&plan(simulated), &made(cost), &[1, 2, 4, 8]).unwrap();
        let tenant = "{ name: a, arrivals: { poisson: { rate: 1 } }, prompt: { constant: 9 }, \
                      output: { constant: 9 } }";
        let text = format!("title: fitted\nduration: 9s\n{fitted}tenants: [{tenant}]\n");
        Scenario::parse(&text).unwrap_or_else(|mistake| panic!("{mistake}\n{text}"));
    }
}

#[test]
fn an_engine_that_is_none_of_these_is_refused() {
    let mut erratic = made(emulated());
    for (n, step) in erratic.iter_mut().enumerate() {
        step.took_ms *= [1.0, 4.0, 9.0][n % 3];
    }
    let error = Fitted::to(&plan(Simulated::Emulated), &erratic, &[1, 8]).unwrap_err();
    assert!(matches!(error, FitError::Off(_)), "{error}");
    assert!(
        error.to_string().contains("is the engine idle otherwise?"),
        "{error}"
    );
    let few = Fitted::to(&plan(Simulated::Emulated), &erratic[..2], &[1, 8]).unwrap_err();
    assert_eq!(few, FitError::Few(2));
}

#[test]
fn a_number_of_sequences_that_never_ran_has_no_point() {
    let mut steps = made(embedded());
    steps.retain(|step| step.shape.answers <= 4);
    let fitted = Fitted::to(&plan(Simulated::Embedded), &steps, &[1, 4, 16]).unwrap();
    let FittedCost::Embedded { answers_us, .. } = fitted.cost else {
        panic!("{fitted:?}");
    };
    assert_eq!(
        answers_us.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        [1, 4]
    );
    let none = Fitted::to(&plan(Simulated::Embedded), &steps, &[16, 32]).unwrap_err();
    assert_eq!(none, FitError::Never("16 or 32".to_owned()));
}
