//! Promises alone: what is scored, against what, and what is not.

use super::super::facts::PoolFacts;
use super::super::terms::{Alpha, Learner};
use super::*;
use crate::outcome::{FinishReason, Phase};

fn at(millis: u64) -> Time {
    Time::START + Micros::from_millis(millis)
}

/// Goodput of a first token within two seconds, which nine of ten must keep.
fn admission() -> Admission {
    Admission::new(Slo::of(Terms {
        ttft: Some(Micros::from_secs(2)),
        alpha: Alpha::TENTH,
        ..Terms::NONE
    }))
}

/// A request that goes at once where `waiting` is zero.
fn door(id: u64, waiting: u64, now: Time) -> Door {
    Door {
        id: RequestId::new(id),
        tenant: TenantId::new(0),
        weight: 1,
        below_share: false,
        asked: Asked::default(),
        received: now,
        facts: Facts {
            class: Class::Standard,
            prompt: Tokens::new(1_000),
            cached: Tokens::ZERO,
            output_max: Tokens::new(100),
            output_median: Tokens::ZERO,
            output_most: Tokens::ZERO,
            waited: Micros::ZERO,
            ahead: waiting,
            work_ahead: Tokens::new(1_100 * waiting),
            at_once: waiting == 0,
            pool: PoolFacts {
                running: 4,
                slots: 4,
                replicas: 1,
                waiting,
                kv_free: 50,
                ..PoolFacts::default()
            },
        },
    }
}

/// Lets one in that goes at once and whose first token takes so long; when it came.
fn one(admission: &mut Admission, id: u64, takes: u64, now: Time) -> Time {
    let judged = admission.judge(door(id, 0, now), now);
    let id = RequestId::new(id);
    admission.let_in(id, judged);
    admission.sent(id, Tokens::new(1_000), 4, now);
    let first = now + Micros::from_millis(takes);
    admission.first_token(id, first);
    first
}

fn seen(outcome: Outcome, ttft: Option<Micros>) -> Seen {
    Seen {
        outcome,
        ttft,
        tpot: Some(Micros::from_millis(20)),
        e2e: Some(Micros::from_secs(3)),
        output: Tokens::new(50),
    }
}

fn completed() -> Outcome {
    Outcome::Completed(FinishReason::Stop)
}

#[test]
fn a_miss_is_one_of_the_bound_that_was_promised_and_not_of_todays() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..100 {
        now = one(&mut all, id, 100, now);
    }
    let promised = all.judge(door(1_000, 0, now), now);
    all.let_in(RequestId::new(1_000), promised);
    all.sent(RequestId::new(1_000), Tokens::new(1_000), 4, now);
    let bound = promised.bounds[0].unwrap().promised;
    assert!(bound < Micros::from_millis(150), "{bound:?}");
    let due = all.sight().coverage_of(Metric::Ttft).all;
    // Meanwhile everything becomes ten times as slow, and the bounds of today with it.
    let mut later = now;
    for id in 2_000..2_100 {
        later = one(&mut all, id, 1_000, later);
    }
    let missed = all.sight().coverage_of(Metric::Ttft).all;
    all.first_token(RequestId::new(1_000), now + Micros::from_millis(500));
    let after = all.sight().coverage_of(Metric::Ttft).all;
    assert_eq!(due.due + 100, missed.due);
    assert_eq!(
        (after.due, after.kept),
        (missed.due + 1, missed.kept),
        "a miss of its own bound"
    );
}

#[test]
fn a_client_that_leaves_before_its_first_token_is_no_observation() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..20 {
        now = one(&mut all, id, 100, now);
    }
    let state = all.state();
    let judged = all.judge(door(100, 3, now), now);
    all.let_in(RequestId::new(100), judged);
    let gone = Outcome::ClientGone(Phase::Queued);
    let row = all
        .ended(RequestId::new(100), seen(gone, None), now)
        .unwrap();
    assert_eq!((row.seen.tpot, row.seen.e2e), (None, None));
    let after = all.state();
    assert_eq!((after.door, after.stage), (state.door, state.stage));
    assert_eq!(after.outputs, state.outputs);
    assert!(all.due.is_empty() && all.judged.keys().all(|id| id.get() < 20));
}

#[test]
fn that_a_first_token_is_overdue_is_known_before_it_comes_and_counted_once() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..80 {
        now = one(&mut all, id, 100, now);
    }
    let judged = all.judge(door(100, 3, now), now);
    all.let_in(RequestId::new(100), judged);
    let promised = judged.bounds[0].unwrap().promised;
    let level = |all: &Admission| all.door[0].groups[judged.group.number()].level;
    assert_eq!(level(&all), None);
    all.notice_overdue(now + promised);
    assert_eq!(level(&all), None, "in time to the microsecond");
    let late = now + promised + Micros::new(1);
    all.notice_overdue(late);
    let moved = level(&all);
    assert!(moved.is_some());
    all.sent(RequestId::new(100), Tokens::new(1_000), 4, late);
    all.first_token(RequestId::new(100), late + Micros::from_secs(1));
    assert_eq!(level(&all), moved);
}

#[test]
fn misses_of_those_that_wait_widen_the_bounds_of_all_that_come_before_any_is_answered() {
    let (mut all, now) = that_waited(300);
    let bound = |all: &mut Admission, id, ahead, now| {
        let judged = all.judge(door(id, ahead, now), now);
        (judged, judged.bounds[0].unwrap().promised)
    };
    let (_, before) = bound(&mut all, 9_000, 2, now);
    let mut last = Micros::ZERO;
    for id in 5_000..5_010 {
        let (judged, promised) = bound(&mut all, id, 9, now);
        all.let_in(RequestId::new(id), judged);
        last = last.max(promised);
    }
    let later = now + last + Micros::new(1);
    all.notice_overdue(later);
    let (_, after) = bound(&mut all, 9_001, 2, later);
    assert!(
        after.get() * 100 > before.get() * 110,
        "{after:?} after ten that wait have missed theirs, {before:?} before"
    );
}

#[test]
fn what_is_dropped_is_scored_as_what_it_would_have_come_to() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..80 {
        now = one(&mut all, id, 100, now);
    }
    let judged = all.judge(door(100, 3, now), now);
    all.let_in(RequestId::new(100), judged);
    let before = all.sight().coverage_of(Metric::Ttft).all;
    let later = now + Micros::from_secs(10);
    all.dropped(RequestId::new(100), Metric::Ttft, Tokens::new(1_000), later);
    let after = all.sight().coverage_of(Metric::Ttft).all;
    assert_eq!((after.due, after.kept), (before.due + 1, before.kept));
    assert_eq!(all.sight().dropped, [1, 0, 0]);
}

#[test]
fn the_unattainable_is_said_in_numbers() {
    let mut all = Admission::new(Slo::of(Terms {
        ttft: Some(Micros::from_millis(10)),
        alpha: Alpha::of_thousand(1).unwrap(),
        ..Terms::NONE
    }));
    let mut now = at(0);
    for id in 0..100 {
        now = one(&mut all, id, 100, now);
        let came = Some(Micros::from_millis(100));
        all.ended(RequestId::new(id), seen(completed(), came), now);
    }
    let view = all.view(PoolFacts::default(), now);
    let standard = &view.classes[1];
    let [
        Unattainable::TooSure { rows, needed },
        Unattainable::TooShort { limit, bound, .. },
    ] = standard.unattainable[..]
    else {
        panic!("{:?}", standard.unattainable);
    };
    assert_eq!(
        (rows, needed),
        (96, 999),
        "the first four had nothing to be scored by"
    );
    assert_eq!(limit, Micros::from_millis(10));
    assert!(bound > Micros::from_millis(90));
}

#[test]
fn tenants_with_short_answers_and_with_long_ones_are_told_apart() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..200 {
        let tenant = TenantId::new(u32::try_from(id % 2).unwrap());
        let judged = all.judge(
            Door {
                tenant,
                ..door(id, 0, now)
            },
            now,
        );
        all.let_in(RequestId::new(id), judged);
        all.sent(RequestId::new(id), Tokens::new(1_000), 4, now);
        now = now + Micros::from_millis(100);
        all.first_token(RequestId::new(id), now);
        let output = if id % 2 == 0 { 10 } else { 90 };
        let seen = Seen {
            output: Tokens::new(output),
            ..seen(completed(), Some(Micros::from_millis(100)))
        };
        all.ended(RequestId::new(id), seen, now);
    }
    let most = |tenant, all: &mut Admission| {
        let tenant = TenantId::new(tenant);
        all.judge(
            Door {
                tenant,
                ..door(9_999, 0, now)
            },
            now,
        )
        .facts
        .output_most
    };
    assert_eq!(most(0, &mut all), Tokens::new(10));
    assert_eq!(most(1, &mut all), Tokens::new(90));
}

/// Lets one in that waits behind others for so long.
fn waits(admission: &mut Admission, id: u64, ahead: u64, takes: u64, now: Time) -> Time {
    let judged = admission.judge(door(id, ahead, now), now);
    let id = RequestId::new(id);
    admission.let_in(id, judged);
    let first = now + Micros::from_millis(takes);
    admission.sent(id, Tokens::new(1_000), 4, first);
    admission.first_token(id, first);
    admission.ended(id, seen(completed(), Some(first.since(now))), first);
    first
}

/// Admission that has seen so many wait, each by what is ahead of it.
fn that_waited(count: u64) -> (Admission, Time) {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..20 {
        now = one(&mut all, id, 100, now);
    }
    for id in 0..count {
        let ahead = 1 + id % 9;
        now = waits(&mut all, 1_000 + id, ahead, 100 * ahead + id % 7, now);
    }
    (all, now)
}

#[test]
fn a_fit_is_ordered_once_enough_have_waited_and_while_none_is_awaited() {
    let (mut all, now) = that_waited(511);
    assert_eq!(all.task(now), None);
    let now = waits(&mut all, 9_000, 3, 300, now);
    let task = all.task(now).unwrap();
    assert_eq!(task.lessons().count(), 512);
    assert_eq!(all.task(now), None, "it is under way");
    let mut plain = Admission::new(all.slo().by(Learner::Structural));
    let mut now = at(0);
    for id in 0..20 {
        now = one(&mut plain, id, 100, now);
    }
    for id in 0..600 {
        now = waits(&mut plain, 1_000 + id, 2, 200, now);
    }
    assert_eq!(
        plain.task(now),
        None,
        "nothing is fitted where nobody wants it"
    );
    assert_eq!(plain.view(PoolFacts::default(), now).model.lessons, 0);
}

#[test]
fn bounds_stay_what_they_were_worth_when_a_model_takes_the_place_of_another() {
    let (mut all, now) = that_waited(512);
    let task = all.task(now).unwrap();
    let mut later = now;
    for id in 0..10 {
        later = waits(&mut all, 8_000 + id, 4, 400, later);
    }
    let levels = |all: &Admission| all.door[0].groups.each_ref().map(|one| one.level);
    let before = levels(&all);
    let judged = |all: &mut Admission| {
        let judged = all.judge(door(9_999, 4, later), later);
        judged.bounds[0].unwrap().promised.get()
    };
    let plain = judged(&mut all);
    // A model that takes every wait for four times as long as it is planned.
    let trees = Trees::new(vec![vec![super::super::trees::Node::Leaf(2_000)]]).unwrap();
    all.fitted(task.given(trees));
    assert_eq!(levels(&all), before, "what was missed was missed");
    assert_eq!(all.door[0].rows(), 500, "with those that came meanwhile");
    let misled = judged(&mut all);
    assert!(
        misled.abs_diff(plain) < plain / 50,
        "{misled} us by four times the plan, {plain} us by the plan"
    );
}

#[test]
fn a_bound_that_was_too_wide_at_first_does_not_keep_the_line_empty() {
    let (mut all, now) = that_waited(20);
    let group = all.judge(door(2_000, 1, now), now).group;
    // Those few waited ten times as long as was planned.
    for _ in 0..100 {
        all.door[0].scored(group, Score::new(10 << 10));
    }
    all.pressure[Class::Standard.place()].note(4_000, now);
    assert!(all.pressure[Class::Standard.place()].is_on());
    let next = Door {
        facts: Facts {
            at_once: false,
            ..door(3_000, 0, now).facts
        },
        ..door(3_000, 0, now)
    };
    let judged = all.judge(next, now);
    assert!(judged.bounds[0].unwrap().promised > Micros::from_secs(2));
    assert!(judged.estimate.unwrap().first < Micros::from_secs(2));
    assert_eq!(judged.verdict, Verdict::Admit(Because::Room));
    let behind = all.judge(door(3_001, 1, now), now);
    assert_eq!(behind.verdict, Verdict::Refuse(Metric::Ttft));
}

#[test]
fn what_a_request_waited_before_it_was_read_is_part_of_its_bound() {
    let mut all = admission();
    let mut now = at(0);
    for id in 0..40 {
        now = one(&mut all, id, 100, now);
    }
    let late = Door {
        received: now,
        facts: Facts {
            waited: Micros::from_secs(1),
            ..door(100, 0, now).facts
        },
        ..door(100, 0, now)
    };
    let now = now + Micros::from_secs(1);
    let bound = |door: Door, all: &mut Admission| all.judge(door, now).bounds[0].unwrap().promised;
    let (read_late, at_once) = (bound(late, &mut all), bound(door(101, 0, now), &mut all));
    assert_eq!(read_late, at_once + Micros::from_secs(1));
}
