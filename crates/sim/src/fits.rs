//! How well models of what plans miss do, walking forward: each is fitted to the lessons before a
//! moment, and bounds those that come after it.
//!
//! No clock is read here: how long a fit takes is for a benchmark.

mod foresight;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use tollgate_policy::gateway::{Effect, Gateway};
use tollgate_policy::slo::Alpha;
use tollgate_policy::slo::fit::Task;
use tollgate_policy::slo::lessons::Lesson;
use tollgate_policy::slo::trees::FEATURES;

pub use self::foresight::foresight;
use crate::control::{Ear, Overheard};
use crate::overload::{Bench, StudyError};
use crate::promised::pinball;
use crate::scenario::Contender;
use crate::stats::Sorted;
use crate::trace::Trace;
use crate::world;

/// Lessons that a fit has at most, and that are bounded by it before the next.
const WINDOW: usize = 4_096;
const STRIDE: usize = 256;

/// Lessons before which nothing is scored.
const WARMUP: usize = 1_024;

/// Hears what trees are to be fitted to.
struct Pupil(Rc<RefCell<Vec<Lesson>>>);

impl Ear for Pupil {
    fn effect(&mut self, effect: &Effect) {
        let Effect::Fit(fit) = effect else { return };
        let mut lessons = self.0.borrow_mut();
        // All of the first, and of later ones what is new.
        let known = match lessons.is_empty() {
            true => 0,
            false => fit.task.lessons().count().saturating_sub(STRIDE),
        };
        lessons.extend(fit.task.lessons().skip(known));
    }
}

/// What a gateway learns under half as much again as its engine can do.
///
/// # Errors
/// As a study has them.
pub fn lessons(trace: Option<&Trace>, seed: u64) -> Result<Vec<Lesson>, StudyError> {
    let bench = Bench::new(trace, seed)?;
    let (setup, _) = bench.setup(1.5, Contender::Tollgate, |_| {})?;
    let lessons = Rc::new(RefCell::new(Vec::new()));
    let control = Overheard {
        gateway: Gateway::new(setup.config()),
        ear: Pupil(Rc::clone(&lessons)),
    };
    world::run(&setup, control, None);
    Ok(lessons.take())
}

/// Lessons as lines: their features, what was planned, and what came, in microseconds.
pub fn csv(lessons: &[Lesson]) -> String {
    let mut text = format!("{},planned_us,came_us\n", FEATURES.join(","));
    for lesson in lessons {
        for feature in lesson.features {
            // Writing to a string does not fail, here and below.
            let _ = write!(text, "{feature},");
        }
        let _ = writeln!(text, "{},{}", lesson.planned.get(), lesson.came.get());
    }
    text
}

/// A table of how trees do, beside the plan alone.
pub fn walk_forward(lessons: &[Lesson]) -> String {
    let mut text =
        "| bound | kept % | pinball ms | bound/outcome |\n|---|---|---|---|\n".to_owned();
    let (plan, trees) = walked(lessons);
    for (name, score) in [("plan, one factor", plan), ("trees", trees)] {
        let (kept, loss) = (score.percent(), score.mean_ms());
        let width = score.width();
        let _ = writeln!(text, "| {name} | {kept:.1} | {loss:.1} | {width:.3} |");
    }
    text
}

/// How bounds by one factor and by trees do, each of lessons that came later.
fn walked(lessons: &[Lesson]) -> (Score, Score) {
    let (mut plan, mut trees) = (Score::default(), Score::default());
    for from in (WARMUP..lessons.len()).step_by(STRIDE) {
        let known = &lessons[from.saturating_sub(WINDOW)..from];
        let task = Task::new(Alpha::TENTH, vec![Arc::from(known)]);
        let fitted = task.fit();
        let factor = task.plain_factor();
        for lesson in lessons[from..].iter().take(STRIDE) {
            plan.add(factor.times(lesson.planned).get() as f64, lesson);
            let bound = match fitted.trees.is_empty() {
                true => factor.times(lesson.planned),
                false => fitted.trees.put_right(&lesson.features, lesson.planned),
            };
            trees.add(bound.get() as f64, lesson);
        }
    }
    (plan, trees)
}

/// How bounds fare.
#[derive(Debug, Default)]
struct Score {
    n: f64,
    kept: f64,
    loss: f64,
    widths: Vec<f64>,
}

impl Score {
    fn add(&mut self, bound: f64, lesson: &Lesson) {
        let came = lesson.came.get() as f64;
        self.n += 1.0;
        self.kept += f64::from(u8::from(came <= bound));
        self.loss += pinball(bound, came, 0.1);
        self.widths.push(bound / came.max(1.0));
    }

    /// Kept, of a hundred.
    fn percent(&self) -> f64 {
        100.0 * self.kept / self.n.max(1.0)
    }

    /// Mean pinball loss, in milliseconds.
    fn mean_ms(&self) -> f64 {
        self.loss / self.n.max(1.0) / 1_000.0
    }

    /// Bound over what came, in the middle.
    fn width(&self) -> f64 {
        Sorted::new(self.widths.iter().copied())
            .quantile(0.5)
            .unwrap_or(0.0)
    }
}
