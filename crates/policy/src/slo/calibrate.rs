//! From an estimate to a bound that holds as often as was promised: conformal prediction with
//! feedback that comes late.
//!
//! A score is what came over what was estimated. The bound is the estimate times the k-th smallest
//! of the last scores, `k = ceil((n + 1)(1 - alpha))`, so it holds whatever the estimate is worth;
//! a bad one costs width. Queues are not exchangeable, so the level follows what was missed
//! (adaptive conformal inference: Gibbs and Candès, NeurIPS 2021). A miss is scored against the
//! bound that was promised with the request, never against today's.

use std::collections::VecDeque;

use super::terms::Alpha;
use crate::tenant::Class;
use crate::units::{Micros, Tokens};

/// How a bound is made of an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calibration {
    /// By the last scores, at a level that follows what was missed.
    #[default]
    Rolling,
    /// By the first scores there were, for good: split conformal, as it is mostly done.
    Split,
    /// Not at all: the estimate is the bound.
    None,
}

impl Calibration {
    /// The rule as configuration and reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rolling => "rolling",
            Self::Split => "split",
            Self::None => "none",
        }
    }
}

/// What came over what was estimated, times [`Score::ONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(u32);

impl Score {
    /// As estimated.
    pub const ONE: Self = Self(1 << 10);

    /// The largest that counts: a thousand times as long as estimated.
    pub const MOST: Self = Self(1 << 20);

    /// A score from its number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// What `came` is over what was `estimated`, rounded up.
    pub fn of(came: Micros, estimated: Micros) -> Self {
        let came = u128::from(came.get()) << 10;
        let over = came.div_ceil(u128::from(estimated.get().max(1)));
        let most = Self::MOST.0;
        Self(u32::try_from(over).unwrap_or(most).clamp(1, most))
    }

    /// A span so many times as long, rounded up.
    pub fn times(self, span: Micros) -> Micros {
        let long = (u128::from(span.get()) * u128::from(self.0)).div_ceil(1 << 10);
        Micros::new(u64::try_from(long).unwrap_or(u64::MAX))
    }
}

/// Which requests are calibrated together: those of one class, about one length, and with about as
/// many before them. The wait of many is a sum of many, and so more certain than the wait of few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(usize);

impl Group {
    /// How many there are.
    pub const COUNT: usize = 3 * Self::LENGTHS.len() * Self::AHEAD.len();

    /// Prompts up to so long are one length each, and all longer ones the last.
    const LENGTHS: [Tokens; 3] = [Tokens::new(512), Tokens::new(2_048), Tokens::new(u64::MAX)];

    /// Requests before it, likewise.
    const AHEAD: [u64; 3] = [2, 7, u64::MAX];

    /// The group of a request of this class with so many tokens to compute and so many before it.
    pub fn of(class: Class, prompt: Tokens, ahead: u64) -> Self {
        let length = Self::LENGTHS.partition_point(|most| *most < prompt);
        let length = length.min(Self::LENGTHS.len() - 1);
        let behind = Self::AHEAD.partition_point(|most| *most < ahead);
        let behind = behind.min(Self::AHEAD.len() - 1);
        Self((class.place() * Self::LENGTHS.len() + length) * Self::AHEAD.len() + behind)
    }

    /// The group of the same request once nobody is before it.
    pub fn sent(self) -> Self {
        Self(self.0 - self.0 % Self::AHEAD.len())
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its number, below [`Group::COUNT`].
    pub const fn number(self) -> usize {
        self.0
    }
}

/// What a bound rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footing {
    /// Scores of requests like it.
    Group,
    /// Scores of all requests: there are few like it.
    Pool,
    /// The largest score, widened: there are too few for the level that was promised.
    Few,
    /// A guess: there are none to speak of.
    Guess,
}

impl Footing {
    /// The footing as reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Pool => "pool",
            Self::Few => "few",
            Self::Guess => "guess",
        }
    }
}

/// The scores of one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibrator {
    pub(super) pool: Scores,
    /// By [`Group::number`].
    pub(super) groups: [Scores; Group::COUNT],
    /// What split conformal goes by: the first scores there were.
    pub(super) first: Scores,
}

impl Default for Calibrator {
    fn default() -> Self {
        Self {
            pool: Scores::default(),
            groups: std::array::from_fn(|_| Scores::default()),
            first: Scores::default(),
        }
    }
}

impl Calibrator {
    /// Scores below which a group has nothing to say of its own.
    const GROUP_MIN: usize = 60;

    /// Scores below which there is only a guess.
    const POOL_MIN: usize = 8;

    /// Scores that split conformal goes by.
    const SPLIT: usize = 2_000;

    /// What an estimate is taken times while nothing is known of it.
    const GUESS: Score = Score(2 << 10);

    /// By what the estimates of a group are to be taken, and what that rests on.
    pub fn factor(&self, group: Group, alpha: Alpha, how: Calibration) -> (Score, Footing) {
        match how {
            Calibration::None => return (Score::ONE, Footing::Pool),
            Calibration::Split if self.first.len() >= Self::SPLIT => {
                return self.first.at(Level::of(alpha), Footing::Pool);
            }
            Calibration::Split | Calibration::Rolling => {}
        }
        let own = &self.groups[group.0];
        let attains = rank(own.len(), Level::of(alpha)).is_some();
        if own.len() >= Self::GROUP_MIN && attains {
            own.at(
                own.level.unwrap_or_else(|| Level::of(alpha)),
                Footing::Group,
            )
        } else if self.pool.len() >= Self::POOL_MIN {
            self.pool.at(Level::of(alpha), Footing::Pool)
        } else {
            (Self::GUESS, Footing::Guess)
        }
    }

    /// The same for a decision that promises nothing, at another share of misses: by what was
    /// scored, and not by what was missed of promises.
    pub(super) fn likely(&self, group: Group, alpha: Alpha) -> Score {
        let own = &self.groups[group.0];
        let scores = match own.len() >= Self::GROUP_MIN {
            true => own,
            false => &self.pool,
        };
        match scores.len() >= Self::POOL_MIN {
            true => scores.at(Level::of(alpha), Footing::Pool).0,
            false => Self::GUESS,
        }
    }

    /// A request of this group has come to this score.
    pub fn scored(&mut self, group: Group, score: Score) {
        self.pool.push(score);
        self.groups[group.0].push(score);
        if self.first.len() < Self::SPLIT {
            self.first.keep(score);
        }
    }

    /// A bound of this group was kept or missed, and the level follows.
    pub fn judged(&mut self, group: Group, alpha: Alpha, missed: bool) {
        self.groups[group.0].follow(alpha, missed);
    }

    /// Takes on scores by other estimates in place of its own. The levels that it has come to stay:
    /// they say how much is missed, whatever it is missed by.
    pub(super) fn take_on(&mut self, mut scores: Self) {
        for (own, new) in self.groups.iter().zip(&mut scores.groups) {
            new.level = own.level;
        }
        scores.first = std::mem::take(&mut self.first);
        *self = scores;
    }

    /// Scores that are remembered.
    pub fn rows(&self) -> usize {
        self.pool.len()
    }

    /// Whether the level of `alpha` can be had from what is remembered.
    pub fn attains(&self, alpha: Alpha) -> bool {
        rank(self.pool.len(), Level::of(alpha)).is_some()
    }
}

/// How many may be missed, of [`Level::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(pub(super) i32);

impl Level {
    const ALL: i32 = 1_000_000;

    /// The most that may be missed, whatever was.
    const MOST: i32 = Self::ALL / 2;

    /// The least: below nothing, so that a level that was driven there comes back in a while, and
    /// the largest score is widened until it does.
    const LEAST: i32 = -Self::ALL / 64;

    /// How far one miss moves the level, in thousandths of the level that was promised; Gibbs and
    /// Candès' gamma. The rarer misses are to be, the less one of them says.
    const STEP: i64 = 80;

    /// Levels below so many thousandths are followed as if they were this: a step of theirs would
    /// be less than the smallest that there is.
    const STEP_FROM: u16 = 10;

    fn of(alpha: Alpha) -> Self {
        Self(Self::ALL / 1_000 * i32::from(alpha.get()))
    }

    /// The level of this number, or the nearest that may be.
    pub(super) fn bounded(number: i32) -> Self {
        Self(number.clamp(Self::LEAST, Self::MOST))
    }

    fn followed(self, alpha: Alpha, missed: bool) -> Self {
        let Self(nominal) = Self::of(alpha);
        let err = if missed { Self::ALL } else { 0 };
        let step = Self::STEP * i64::from(alpha.get().max(Self::STEP_FROM));
        let moved = i64::from(nominal - err) * step / i64::from(Self::ALL);
        Self::bounded(self.0.saturating_add(i32::try_from(moved).unwrap_or(0)))
    }
}

/// The place, from 1, of the score that is the bound at this level among `n`; `None` where there
/// are too few for it.
fn rank(n: usize, level: Level) -> Option<usize> {
    let keep = u64::try_from(Level::ALL - level.0.min(Level::ALL)).ok()?;
    let n = u64::try_from(n).ok()?;
    let all = u64::try_from(Level::ALL).ok()?;
    let k = ((n + 1) * keep).div_ceil(all).max(1);
    (k <= n).then(|| usize::try_from(k).ok())?
}

/// The last scores of some requests, and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scores {
    recent: VecDeque<Score>,
    /// invariant: those of `recent`, the smallest first.
    sorted: Vec<Score>,
    /// `None` is as promised.
    pub(super) level: Option<Level>,
}

impl Scores {
    /// Scores remembered.
    const WINDOW: usize = 500;

    pub(super) fn push(&mut self, score: Score) {
        if self.recent.len() >= Self::WINDOW
            && let Some(old) = self.recent.pop_front()
            && let Ok(at) = self.sorted.binary_search(&old)
        {
            self.sorted.remove(at);
        }
        self.keep(score);
    }

    /// Remembers one more, however many there are.
    fn keep(&mut self, score: Score) {
        self.recent.push_back(score);
        let at = self.sorted.partition_point(|other| *other < score);
        self.sorted.insert(at, score);
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The scores in the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = Score> + '_ {
        self.recent.iter().copied()
    }

    fn at(&self, level: Level, footing: Footing) -> (Score, Footing) {
        let found = rank(self.sorted.len(), level).and_then(|k| self.sorted.get(k - 1));
        match (found, self.sorted.last()) {
            (Some(score), _) => (*score, footing),
            // As far as is known nothing is longer; half as much again stands for what is not.
            (None, Some(largest)) => (Score(largest.0.saturating_mul(3) / 2), Footing::Few),
            (None, None) => (Calibrator::GUESS, Footing::Guess),
        }
    }

    fn follow(&mut self, alpha: Alpha, missed: bool) {
        let level = self.level.unwrap_or_else(|| Level::of(alpha));
        self.level = Some(level.followed(alpha, missed));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TENTH: Level = Level(Level::ALL / 1_000 * 100);

    #[test]
    fn the_bound_is_the_kth_score_and_not_the_one_after_it() {
        // ceil(201 · 0.9) = 181 and ceil(1001 · 0.95) = 951; `n · 0.9` rounded up twice gives one
        // more.
        assert_eq!(rank(200, TENTH), Some(181));
        assert_eq!(rank(1_000, Level(Level::ALL / 1_000 * 50)), Some(951));
        assert_eq!(rank(9, TENTH), Some(9));
        assert_eq!(rank(8, TENTH), None, "nine tenths cannot be had from eight");
        let mut scores = Scores::default();
        for n in (1..=200).rev() {
            scores.push(Score(n));
        }
        assert_eq!(scores.at(TENTH, Footing::Pool), (Score(181), Footing::Pool));
    }

    #[test]
    fn too_few_scores_for_a_level_widen_the_bound_and_say_so() {
        let alpha = Alpha::of_thousand(10).unwrap();
        let mut all = Calibrator::default();
        let group = Group::of(Class::Standard, Tokens::new(1), 0);
        let (guess, footing) = all.factor(group, alpha, Calibration::Rolling);
        assert_eq!((guess, footing), (Calibrator::GUESS, Footing::Guess));
        for _ in 0..20 {
            all.scored(group, Score::ONE);
        }
        let (wide, footing) = all.factor(group, alpha, Calibration::Rolling);
        assert_eq!((wide.get(), footing), (1_536, Footing::Few));
        assert!(!all.attains(alpha));
        for _ in 0..80 {
            all.scored(group, Score::ONE);
        }
        assert!(all.attains(alpha));
        let (tight, footing) = all.factor(group, alpha, Calibration::Rolling);
        assert_eq!((tight, footing), (Score::ONE, Footing::Group));
    }

    #[test]
    fn groups_are_apart_and_few_of_one_are_judged_as_all() {
        let mut all = Calibrator::default();
        let short = Group::of(Class::Standard, Tokens::new(512), 0);
        let long = Group::of(Class::Standard, Tokens::new(513), 0);
        assert_ne!(short, long);
        for n in 0..200 {
            all.scored(short, Score(1_000 + n));
        }
        let of = |group| all.factor(group, Alpha::TENTH, Calibration::Rolling);
        assert_eq!(of(long).1, Footing::Pool);
        assert_eq!(of(long).0, of(short).0);
    }

    #[test]
    fn split_conformal_goes_by_the_first_scores_for_ever() {
        let mut all = Calibrator::default();
        let group = Group::of(Class::Standard, Tokens::new(1), 0);
        for n in 0..4_000 {
            all.scored(group, if n < 2_000 { Score::ONE } else { Score(4_096) });
        }
        let of = |how| all.factor(group, Alpha::TENTH, how).0;
        assert_eq!(of(Calibration::Split), Score::ONE);
        assert_eq!(of(Calibration::Rolling), Score(4_096));
        assert_eq!(of(Calibration::None), Score::ONE);
    }

    proptest! {
        /// Whatever comes, as many are missed as was promised, up to what the level can move.
        #[test]
        fn an_adversary_gets_no_more_misses_than_promised(
            came in proptest::collection::vec(1_u64..1_000_000, 2_000..2_500),
        ) {
            let mut all = Calibrator::default();
            let group = Group::of(Class::Standard, Tokens::new(1), 0);
            let estimate = Micros::new(1_000);
            let mut missed = 0_u64;
            // The estimate is useless, and the scores rise and fall by factors of thousands.
            for (came, n) in came.iter().zip(0_u64..) {
                let came = Micros::new(came >> (n / 400));
                let (factor, _) = all.factor(group, Alpha::TENTH, Calibration::Rolling);
                let late = came > factor.times(estimate);
                missed += u64::from(late);
                all.judged(group, Alpha::TENTH, late);
                all.scored(group, Score::of(came, estimate));
            }
            let share = missed * 1_000 / u64::try_from(came.len()).unwrap();
            prop_assert!((60..=140).contains(&share), "{share} of a thousand were missed");
        }

        #[test]
        fn a_bound_is_never_shorter_than_what_its_score_came_from(
            came in 1_u64..1 << 40, estimated in 1_u64..1 << 40,
        ) {
            let (came, estimated) = (Micros::new(came), Micros::new(estimated));
            let score = Score::of(came, estimated);
            prop_assert!(score == Score::MOST || score.times(estimated) >= came);
        }
    }
}
