//! What an operator is shown of a pool's admission, taken at one moment.

use super::super::calibrate::{Footing, Group, Score};
use super::super::facts::{Estimate, Facts, Metric, PoolFacts};
use super::super::sight::Sight;
use super::super::terms::Terms;
use super::{Admission, alone};
use crate::tenant::Class;
use crate::units::{Micros, Time, Tokens, count};

/// A pool's admission at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Counts since the start.
    pub sight: Sight,
    /// What the pool costs.
    pub costs: PoolFacts,
    /// By class, of those that are promised anything.
    pub classes: Vec<ClassView>,
    /// Scores that TTFT is calibrated by: of those that waited, and from the replica on.
    pub rows: (usize, usize),
    /// What estimates are put right by.
    pub model: ModelView,
}

/// What estimates are put right by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelView {
    /// Trees; none where the plan alone is as good, or nothing has been fitted.
    pub trees: u64,
    /// Lessons that the next fit has.
    pub lessons: u64,
    /// What the last fit came to; `None` before there was one.
    pub last: Option<FitView>,
}

/// What a fit came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitView {
    /// Lessons that it had.
    pub lessons: u64,
    /// Pinball loss of bounds by its trees, in thousandths of that of bounds by the plan alone,
    /// over lessons that they were not fitted to.
    pub loss: u64,
}

/// What one class is promised, and how that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassView {
    /// Which.
    pub class: Class,
    /// What it is promised.
    pub terms: Terms,
    /// By what estimates of the TTFT of one that waits are taken, and what that rests on, by length
    /// of prompt.
    pub factors: Vec<(Score, Footing)>,
    /// How near the pool is to what it promises, in thousandths, and whether it is pressed.
    pub pressure: (u64, bool),
    /// What cannot be kept.
    pub unattainable: Vec<Unattainable>,
}

/// A promise that cannot be kept, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unattainable {
    /// Even a typical request that is alone has a longer bound.
    TooShort {
        /// Which number.
        metric: Metric,
        /// What is promised.
        limit: Micros,
        /// The bound of one that is alone.
        bound: Micros,
    },
    /// So sure can nobody be after so few requests.
    TooSure {
        /// How many have been scored.
        rows: usize,
        /// How many it takes.
        needed: usize,
    },
}

impl Admission {
    /// How things stand.
    pub fn view(&self, mut costs: PoolFacts, now: Time) -> View {
        self.costs.tell(&mut costs, now);
        let class = |class: Class| {
            let terms = self.slo.terms(class)?;
            let pressure = &self.pressure[class.place()];
            let lengths = [Tokens::new(1), Tokens::new(1_024), Tokens::new(u64::MAX)];
            let factor = |prompt| {
                let group = Group::of(class, prompt, 5);
                self.door[0].factor(group, terms.alpha, terms.calibration)
            };
            Some(ClassView {
                class,
                terms,
                factors: lengths.map(factor).to_vec(),
                pressure: (pressure.level(), pressure.is_on()),
                unattainable: self.unattainable(class, &terms, costs),
            })
        };
        View {
            sight: self.sight.clone(),
            costs,
            classes: Class::ALL.into_iter().filter_map(class).collect(),
            rows: (self.door[0].rows(), self.stage.rows()),
            model: ModelView {
                trees: count(self.model.as_slice().len()),
                lessons: count(self.lessons.len()),
                last: self.fit,
            },
        }
    }

    fn unattainable(&self, class: Class, terms: &Terms, pool: PoolFacts) -> Vec<Unattainable> {
        let rows = self.door[0].rows().max(self.stage.rows());
        let needed = 1_000_usize.div_ceil(usize::from(terms.alpha.get())) - 1;
        let mut all = Vec::new();
        if rows < needed {
            all.push(Unattainable::TooSure { rows, needed });
        }
        let prompt = self.prompts.median();
        let output = self.lengths.pool.median();
        let plan = Estimate::of(&alone(&Facts {
            class,
            prompt,
            cached: Tokens::ZERO,
            output_max: output,
            output_median: output,
            output_most: output,
            waited: Micros::ZERO,
            ahead: 0,
            work_ahead: Tokens::ZERO,
            at_once: true,
            pool,
        }));
        for metric in Metric::ALL {
            let expected = plan.and_then(|plan| plan.to_come(metric));
            let (Some(limit), Some(expected)) = (terms.of(metric), expected) else {
                continue;
            };
            let calibrator = match metric {
                Metric::Ttft => &self.stage,
                Metric::Tpot | Metric::E2e => &self.door[metric.place()],
            };
            let group = Group::of(class, prompt, 0);
            let bound = calibrator
                .factor(group, terms.alpha, terms.calibration)
                .0
                .times(expected);
            if bound > limit {
                all.push(Unattainable::TooShort {
                    metric,
                    limit,
                    bound,
                });
            }
        }
        all
    }
}
