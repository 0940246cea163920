//! Promises that hold whatever the estimate is worth, and soon after everything has changed.

use std::collections::VecDeque;

use tollgate_policy::gateway::{Effect, Event, Learned};
use tollgate_policy::slo::fit::Task;
use tollgate_policy::slo::trees::{Node, Trees};
use tollgate_policy::slo::{Learner, Slo, Terms};

use super::*;
use crate::control::{Ear, Overheard};

fn bench() -> Bench<'static> {
    Bench {
        scenario: Scenario::parse(SCENARIO).unwrap(),
        replay: Replay {
            name: TraceName::AzureConversations,
            trace: None,
        },
        native: NATIVE,
        faster: 1,
        capacity: 6.3,
        seed: 3,
    }
}

/// A model that takes a prompt for four times as long as it is, and the next longer one for a
/// quarter.
fn useless() -> Trees {
    let mut nodes = Vec::new();
    for band in 0..80_u16 {
        let at = 2 * band;
        nodes.push(Node::Split {
            feature: 1,
            most: 60 * u64::from(band),
            left: at + 1,
            right: at + 2,
        });
        nodes.push(Node::Leaf(if band % 2 == 0 { 2_000 } else { -2_000 }));
    }
    nodes.push(Node::Leaf(0));
    Trees::new(vec![nodes]).unwrap()
}

fn setup_at(load: f64) -> (Setup, Time) {
    let bench = bench();
    let speed = load * bench.capacity / NATIVE.rate;
    let span = Micros::from_secs(900);
    let scenario = bench.scenario.at_speed(speed, span);
    let setup = scenario.setup(bench.seed, Contender::Tollgate, Some(bench.replay));
    (setup.unwrap(), Time::START + span)
}

/// Hands over a useless model in place of each that was fitted.
#[derive(Default)]
struct Misleader(VecDeque<Task>);

impl Ear for Misleader {
    fn event(&mut self, event: Event, _now: Time) -> Event {
        let Event::Recalled {
            model,
            learned: Learned::Fitted(_),
        } = event
        else {
            return event;
        };
        let task = self.0.pop_front().unwrap();
        let learned = Learned::Fitted(Box::new(task.given(useless())));
        Event::Recalled { model, learned }
    }

    fn effect(&mut self, effect: &Effect) {
        if let Effect::Fit(fit) = effect {
            self.0.push_back(fit.task.clone());
        }
    }
}

/// So long a promise that nobody is refused: of those that a wrong estimate lets in alone, all are
/// wrong alike.
fn patient(load: f64, learner: Learner) -> (Setup, Time) {
    let (mut setup, until) = setup_at(load);
    let terms = Terms {
        ttft: Some(Micros::from_secs(600)),
        ..Terms::NONE
    };
    setup.model.target.slo = Slo::of(terms).by(learner);
    (setup, until)
}

#[test]
fn with_a_useless_model_the_coverage_holds_and_only_the_width_suffers() {
    let (setup, until) = patient(0.95, Learner::Learned);
    let fair = world::run(&setup, Gateway::new(setup.config()), None);
    let misled = Overheard {
        gateway: Gateway::new(setup.config()),
        ear: Misleader::default(),
    };
    let misled = world::run(&setup, misled, None);
    let [fair, misled] = [fair, misled].map(|run| Kept::of(&run.tally, WARMUP, until));
    let kept = misled.percent().unwrap();
    assert!(
        (88.0..=92.5).contains(&kept),
        "{kept}% of {} bounds",
        misled.due
    );
    let (wide, narrow) = (misled.pinball_ms, fair.pinball_ms);
    assert!(wide > 1.2 * narrow, "{wide} ms and {narrow} ms");
}

#[test]
fn trees_that_are_fitted_as_it_goes_make_sharper_bounds_and_keep_as_many() {
    let of = |learner| {
        let (setup, until) = patient(0.95, learner);
        let run = world::run(&setup, Gateway::new(setup.config()), None);
        assert_eq!(run.violations.len(), 0, "{:?}", run.violations.first());
        Kept::of(&run.tally, WARMUP, until)
    };
    let (trees, plan) = (of(Learner::Learned), of(Learner::Structural));
    let kept = trees.percent().unwrap();
    assert!((88.5..=92.0).contains(&kept), "{kept}%");
    let (sharp, blunt) = (trees.pinball_ms, plan.pinball_ms);
    assert!(sharp < blunt, "{sharp} ms and {blunt} ms");
}

#[test]
fn below_the_knee_it_costs_nothing() {
    for load in [0.3, 0.6] {
        let (setup, until) = setup_at(load);
        let ours = world::run(&setup, Gateway::new(setup.config()), None);
        let plain = uncontrolled(&setup);
        let [ours, plain] = [ours, plain].map(|run| Scores::of(&run.tally, WARMUP, until));
        let part = ours.in_time as f64 / plain.in_time as f64;
        assert!(part >= 0.98, "{part} of what no control gives, at {load}");
    }
}

fn uncontrolled(setup: &Setup) -> Run {
    let mut setup = setup.clone();
    setup.model.target.slo = Slo::default();
    world::run(&setup, Gateway::new(setup.config()), None)
}

#[test]
fn when_answers_double_or_the_engine_slows_down_what_is_let_in_is_in_time_a_minute_later() {
    let at = Time::START + Micros::from_secs(300);
    let (mut longer, until) = setup_at(1.5);
    longer.longer = Some(Longer { at, percent: 200 });
    let (mut slower, _) = setup_at(1.5);
    slower.faults.push(Fault {
        at,
        kind: FaultKind::Slow {
            replica: 0,
            per_mille: 1_428,
            lasting: Micros::from_secs(3_600),
        },
    });
    for setup in [longer, slower] {
        let run = world::run(&setup, Gateway::new(setup.config()), None);
        let scores = Scores::of(&run.tally, at + Micros::from_secs(60), until);
        let late = scores.late as f64 / (scores.late + scores.in_time) as f64;
        assert!(late <= 0.02, "{late} of what was served was late");
        assert!(scores.in_time > 1_000, "{} in time", scores.in_time);
        assert_eq!(run.violations.len(), 0, "{:?}", run.violations.first());
    }
}

#[test]
fn after_a_shift_bounds_cost_less_than_split_conformals_of_the_very_same_requests() {
    let (mut setup, until) = setup_at(1.5);
    slower(&mut setup);
    let run = world::run(&setup, Gateway::new(setup.config()), None);
    let beside = Beside::of(&run.tally, SHIFTED, until).unwrap();
    assert!(beside.due > 500, "{} bounds", beside.due);
    let (live, fixed) = (beside.factor_stays, beside.all_stays);
    let [live, fixed] = [live, fixed].map(|other| beside.ours.over(&other));
    assert!(live < 1.0 && fixed < 0.9, "{live} and {fixed} of theirs");
}

#[test]
fn from_cold_it_is_useful_within_three_minutes() {
    let (setup, until) = setup_at(1.0);
    let run = world::run(&setup, Gateway::new(setup.config()), None);
    let at = |secs| Time::START + Micros::from_secs(secs);
    let early = Scores::of(&run.tally, at(0), at(180));
    let later = Scores::of(&run.tally, at(180), until);
    let part = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let refused = |scores: &Scores| part(scores.refused, scores.came);
    assert!(part(early.late, early.came) <= 0.05, "{} late", early.late);
    assert!(
        refused(&early) <= 2.0 * refused(&later) + 0.02,
        "{} and {}",
        refused(&early),
        refused(&later)
    );
}

/// An engine of few places under half as much again as it can do, whose first waits are longer than
/// anybody could know.
const FEW: &str = "
title: few places
duration: 120s
drain: 60s
model: { context: 4096, max_wait: 2s, slo: { ttft: 2s, tpot: 100ms } }
fleet: [{ slots: 16, step: 30ms, per_sequence: 450us, prefill_per_second: 4000 }]
tenants:
  - name: a
    arrivals: { poisson: { rate: 6.75 } }
    prompt: { constant: 128 }
    output: { lognormal: { median: 64, sigma: 0.7, min: 4, max: 400 } }
    says: truth
";

#[test]
fn whoever_was_wrong_at_first_does_not_refuse_all_that_would_wait_from_then_on() {
    let scenario = Scenario::parse(FEW).unwrap();
    for seed in 1..=12 {
        let setup = scenario.setup(seed, Contender::Tollgate, None).unwrap();
        let run = world::run(&setup, Gateway::new(setup.config()), None);
        let late = |row: &&tollgate_policy::slo::Row| row.judged.received >= WARMUP;
        let let_in = run
            .tally
            .rows
            .iter()
            .filter(late)
            .filter(|row| row.seen.ttft.is_some());
        let (mut all, mut waited) = (0_u32, 0_u32);
        for row in let_in {
            all += 1;
            waited += u32::from(!row.judged.facts.at_once);
        }
        assert!(
            2 * waited > all,
            "{waited} of {all} waited, with seed {seed}"
        );
    }
}
