//! Fits alone: what they find, what they leave alone, and that they come out the same.

use super::super::calibrate::Group;
use super::*;
use crate::tenant::Class;
use crate::units::Tokens;

/// Numbers that look like chance, and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Lessons whose plan misses by what `came` makes of a feature and of chance.
fn lessons(count: usize, came: impl Fn(u64, u64) -> u64) -> Vec<Lesson> {
    let mut chance = Chance(7);
    let one = |_| {
        let mut features: Features = std::array::from_fn(|_| chance.below(1_000));
        features[3] = 40;
        Lesson {
            came: Micros::new(came(features[5], chance.below(1_000))),
            features,
            planned: Micros::new(100_000),
            group: Group::of(Class::Standard, Tokens::new(1), 0),
        }
    };
    (0..count).map(one).collect()
}

fn task(lessons: Vec<Lesson>) -> Task {
    Task::new(Alpha::TENTH, vec![lessons.into()])
}

/// Up to a quarter of the time more where the feature is low, and up to five times as long else.
fn uneven(feature: u64, chance: u64) -> u64 {
    let most = if feature < 500 { 250 } else { 4_000 };
    100_000 + 100 * chance * most / 1_000
}

#[test]
fn what_a_feature_tells_of_the_last_tenth_is_found() {
    let task = task(lessons(2_048, uneven));
    let fitted = task.fit();
    assert!(fitted.loss < 900, "{} of a thousand", fitted.loss);
    // The ninth decile of either half: 1.225 and 4.6 times the plan.
    for (low, wanted) in [(true, 122_500), (false, 460_000)] {
        let half = task.lessons().filter(|one| (one.features[5] < 500) == low);
        let bounds = half.map(|one| fitted.trees.put_right(&one.features, one.planned).get());
        let (sum, n) = bounds.fold((0, 0), |(sum, n), bound| (sum + bound, n + 1));
        let mean = sum / n;
        assert!(
            mean.abs_diff(wanted) < wanted / 10,
            "{mean} us, and {wanted} is the decile"
        );
    }
}

#[test]
fn what_is_chance_alone_is_not_learned_by_heart() {
    let fitted = task(lessons(2_048, |_, chance| 100_000 + 200 * chance)).fit();
    assert!(fitted.loss > LOSS_MOST, "{} of a thousand", fitted.loss);
    assert!(fitted.trees.is_empty());
}

#[test]
fn the_same_lessons_give_the_same_trees_and_they_can_be_evaluated() {
    let task = task(lessons(1_024, uneven));
    let fitted = task.fit();
    assert_eq!(fitted, task.fit());
    let again = Trees::new(fitted.trees.as_slice().to_vec()).unwrap();
    assert_eq!(again, fitted.trees);
    let lessons: Vec<Lesson> = task.lessons().copied().collect();
    let boosted = Boosted::of(&Table::of(&lessons), Alpha::TENTH, &|_| true);
    for (lesson, log) in lessons.iter().zip(boosted.logs) {
        assert_eq!(fitted.trees.log(&lesson.features), log);
    }
}

#[test]
fn scores_are_of_lessons_that_the_trees_have_not_seen() {
    let task = task(lessons(2_048, uneven));
    let fitted = task.fit();
    let seen = task.given(fitted.trees.clone());
    let of = |fitted: &Fitted| {
        let group = Group::of(Class::Standard, Tokens::new(1), 0);
        let factor = fitted
            .scores
            .factor(group, Alpha::TENTH, Calibration::Rolling);
        factor.0
    };
    assert!(
        of(&fitted) >= of(&seen),
        "what is known by heart looks better than it is: {:?} and {:?}",
        of(&fitted),
        of(&seen)
    );
}

#[test]
fn nothing_and_all_alike_can_be_fitted_to() {
    let none = task(Vec::new()).fit();
    assert!(none.trees.is_empty());
    let one = lessons(1, |_, _| 1)[0];
    let fitted = task(vec![one; 600]).fit();
    assert_eq!(fitted.lessons, 600);
}

#[test]
fn logarithms_are_right_to_two_thousandths() {
    for (value, wanted) in [
        (1, 0),
        (2, 1_000),
        (3, 1_585),
        (1 << 40, 40_000),
        (1_000_000, 19_931),
    ] {
        let log = log2(Micros::new(value));
        assert!((wanted - log).abs() <= 2, "{log} of {value}");
    }
    assert_eq!(log2(Micros::ZERO), 0);
    assert!(log2(Micros::new(u64::MAX)) >= 63_990);
}
