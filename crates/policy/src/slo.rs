//! SLO admission: whether a request that asks to be let in will be answered in time, how sure that
//! is, and what follows from it.
//!
//! What is known of a request becomes [`Facts`]; a plan rolled forward with measured costs makes an
//! [`Estimate`] of them; trees fitted to what came put it right; a calibrator makes a bound of
//! that, which holds for as many requests as was promised; and the decision weighs the bound
//! against the terms. Everything is an integer, so
//! the same facts give the same bound on every machine.
//!
//! How much is offered is left out of all of it, on purpose. It predicts waits well and controls
//! them badly: to refuse does not lower it, so whoever refuses by it goes on refusing.

pub mod admission;
pub mod calibrate;
pub mod cost;
pub mod decide;
mod ends;
pub mod facts;
pub mod fit;
pub mod lengths;
pub mod lessons;
pub mod sight;
mod spell;
pub mod terms;
pub mod trees;

pub use self::admission::{Admission, Door, Judged, Row, Seen, State, View};
pub use self::calibrate::Calibration;
pub use self::decide::{Because, Verdict};
pub use self::facts::{Estimate, Facts, Metric, PoolFacts};
pub use self::terms::{Alpha, Asked, Learner, Mode, Slo, Terms};
