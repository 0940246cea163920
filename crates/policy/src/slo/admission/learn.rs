//! The model of what plans miss: what it is taught, when it is fitted anew, and how it takes the
//! place of the last one.
//!
//! To fit takes too long to be done between two requests, so it is ordered and done elsewhere. With
//! the trees come scores by them: bounds go on as sharp and as sure as the new trees are.

use super::super::calibrate::{Calibration, Score};
use super::super::facts::{Estimate, Facts};
use super::super::fit::{Fitted, Task};
use super::super::lessons::Lesson;
use super::super::terms::Terms;
use super::super::trees::features;
use super::{Admission, FitView, Judged};
use crate::units::{Micros, Time};

impl Admission {
    /// A plan put right by what came of others.
    pub(super) fn put_right(
        &self,
        facts: &Facts,
        plan: Estimate,
        terms: Option<&Terms>,
    ) -> Estimate {
        let follows = terms.is_some_and(|terms| terms.calibration == Calibration::Rolling);
        // Where it goes at once little is left to chance, and that is scored by what is expected of
        // the replica.
        if facts.at_once || !follows {
            return plan;
        }
        self.model.apply(facts, plan)
    }

    /// A request that waited has shown what comes of such.
    pub(super) fn learn(&mut self, judged: &Judged, came: Micros) {
        if self.slo.fitted_for().is_none() {
            return;
        }
        if let Some(plan) = judged.plan {
            self.lessons.push(Lesson {
                features: features(&judged.facts, &plan),
                planned: plan.first,
                came,
                group: judged.group,
            });
        }
    }

    /// What is to be fitted now, if anything.
    pub fn task(&mut self, now: Time) -> Option<Task> {
        let alpha = self.slo.fitted_for()?;
        let (chunks, seen) = self.lessons.take_due(self.slo.refit(), now)?;
        Some(Task {
            seen,
            ..Task::new(alpha, chunks)
        })
    }

    /// A fit is done: its trees take the place of the last ones, and its scores that of theirs.
    pub fn fitted(&mut self, fitted: Fitted) {
        self.lessons.answered();
        self.fit = Some(FitView {
            lessons: fitted.lessons,
            loss: fitted.loss,
        });
        self.model = fitted.trees;
        self.door[0].take_on(fitted.scores);
        // What came while the trees were fitted.
        for lesson in self.lessons.since(fitted.seen) {
            let expected = self.model.put_right(&lesson.features, lesson.planned);
            self.door[0].scored(lesson.group, Score::of(lesson.came, expected));
        }
    }
}
