//! What a model promises a class, and what a request may ask beyond it.

use super::calibrate::Calibration;
use super::facts::Metric;
use crate::tenant::Class;
use crate::units::Micros;

/// How many of a thousand answers may be later than promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
// invariant: 1..=500
pub struct Alpha(u16);

impl Alpha {
    /// One in ten.
    pub const TENTH: Self = Self(100);

    /// So many of a thousand, 1 to 500.
    pub const fn of_thousand(count: u16) -> Option<Self> {
        if count >= 1 && count <= 500 {
            Some(Self(count))
        } else {
            None
        }
    }

    /// How many may be late of those that are let in for goodput, before any are dropped: half as
    /// many again, up to half of all. With more nothing more is served, and more is dropped.
    pub(super) const fn for_goodput(self) -> Self {
        match Self::of_thousand(self.0 + self.0 / 2) {
            Some(more) => more,
            None => Self(500),
        }
    }

    /// How many of a thousand.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What follows from a bound that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A request is refused where admitting it would cost others theirs: never while there is room
    /// and nothing waits.
    #[default]
    Goodput,
    /// A request is refused.
    Guarantee,
}

impl Mode {
    /// The mode as configuration and reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Guarantee => "guarantee",
        }
    }
}

/// What is promised to the requests of one class of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Received to first token; `None` promises nothing.
    pub ttft: Option<Micros>,
    /// Mean time between tokens, likewise.
    pub tpot: Option<Micros>,
    /// Received to last byte, likewise.
    pub e2e: Option<Micros>,
    /// How many may be later than their bound.
    pub alpha: Alpha,
    /// What follows from a bound that does not fit.
    pub mode: Mode,
    /// How a bound is made of an estimate.
    pub calibration: Calibration,
}

impl Terms {
    /// A promise of nothing yet.
    pub const NONE: Self = Self {
        ttft: None,
        tpot: None,
        e2e: None,
        alpha: Alpha::TENTH,
        mode: Mode::Goodput,
        calibration: Calibration::Rolling,
    };

    /// What is promised of one number.
    pub const fn of(&self, metric: Metric) -> Option<Micros> {
        match metric {
            Metric::Ttft => self.ttft,
            Metric::Tpot => self.tpot,
            Metric::E2e => self.e2e,
        }
    }

    /// The terms of a request that asks for tighter ones. What is looser than the class has is not
    /// heard: a class is what its tenant pays for.
    ///
    /// Of an answer that comes whole nothing is seen before its end, so only all of it can be late.
    pub fn tightened(self, asked: Asked) -> Self {
        let tighter = |own: Option<Micros>, asked: Option<Micros>| match (own, asked) {
            (Some(own), Some(asked)) => Some(own.min(asked)),
            (own, asked) => own.or(asked),
        };
        let streamed = |limit: Option<Micros>| limit.filter(|_| !asked.whole);
        Self {
            ttft: streamed(tighter(self.ttft, asked.ttft)),
            tpot: streamed(tighter(self.tpot, asked.tpot)),
            e2e: tighter(self.e2e, asked.e2e),
            ..self
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.ttft.is_none() && self.tpot.is_none() && self.e2e.is_none()
    }
}

/// What a request asks for itself, tighter than its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Received to first token.
    pub ttft: Option<Micros>,
    /// Mean time between tokens.
    pub tpot: Option<Micros>,
    /// Received to last byte.
    pub e2e: Option<Micros>,
    /// Whether its answer comes whole, and is not streamed.
    pub whole: bool,
}

/// What estimates are put right by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learner {
    /// By trees that are fitted to what came, once there is enough of it.
    #[default]
    Learned,
    /// By nothing: they are the plan rolled forward.
    Structural,
}

impl Learner {
    /// The choice as configuration and reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Structural => "structural",
        }
    }
}

/// What a model promises, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// By [`Class::ALL`]; `None` is a class that is promised nothing, and refused nothing.
    classes: [Option<Terms>; 3],
    learner: Learner,
    /// From one fit to the next; `None` is [`Slo::REFIT`].
    refit: Option<Micros>,
}

impl Slo {
    /// From one fit to the next at the least, where nothing else is said.
    pub const REFIT: Micros = Micros::from_secs(20);

    /// The same for every class.
    pub fn of(terms: Terms) -> Self {
        Class::ALL
            .into_iter()
            .fold(Self::default(), |slo, class| slo.with(class, terms))
    }

    /// The same with other terms for one class; terms that promise nothing are none.
    pub fn with(mut self, class: Class, terms: Terms) -> Self {
        self.classes[class.place()] = Some(terms).filter(|terms| !terms.is_empty());
        self
    }

    /// The same with estimates put right by this.
    pub const fn by(mut self, learner: Learner) -> Self {
        self.learner = learner;
        self
    }

    /// The same with so long from one fit to the next at the least.
    pub fn refitted_every(mut self, refit: Micros) -> Self {
        self.refit = Some(refit).filter(|refit| *refit != Self::REFIT);
        self
    }

    /// From one fit to the next at the least.
    pub(super) fn refit(&self) -> Micros {
        self.refit.unwrap_or(Self::REFIT)
    }

    /// What estimates are put right by.
    pub const fn learner(&self) -> Learner {
        self.learner
    }

    /// How many of a thousand may be missed by whom trees are fitted for: the first class whose
    /// bounds follow what comes. `None` where nothing is fitted.
    pub(super) fn fitted_for(&self) -> Option<Alpha> {
        let rolls = |terms: &&Terms| terms.calibration == Calibration::Rolling;
        let first = self.classes.iter().flatten().find(rolls)?;
        (self.learner == Learner::Learned).then_some(first.alpha)
    }

    /// What a class is promised.
    pub const fn terms(&self, class: Class) -> Option<Terms> {
        self.classes[class.place()]
    }

    /// Whether nobody is promised anything.
    pub const fn is_off(&self) -> bool {
        let [one, two, three] = &self.classes;
        one.is_none() && two.is_none() && three.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_ask_for_less_time_and_not_for_more() {
        let terms = Terms {
            ttft: Some(Micros::from_secs(2)),
            ..Terms::NONE
        };
        let asked = Asked {
            ttft: Some(Micros::from_secs(1)),
            tpot: Some(Micros::from_millis(50)),
            ..Asked::default()
        };
        let tight = terms.tightened(asked);
        assert_eq!(tight.ttft, asked.ttft);
        assert_eq!(tight.tpot, asked.tpot);
        let loose = Asked {
            ttft: Some(Micros::from_secs(9)),
            ..Asked::default()
        };
        assert_eq!(terms.tightened(loose), terms);
        let whole = Asked {
            whole: true,
            e2e: Some(Micros::from_secs(9)),
            ..asked
        };
        let whole = terms.tightened(whole);
        assert_eq!((whole.ttft, whole.tpot), (None, None));
        assert_eq!(whole.e2e, Some(Micros::from_secs(9)));
    }

    #[test]
    fn terms_that_promise_nothing_are_none() {
        assert!(Slo::of(Terms::NONE).is_off());
        assert_eq!(Alpha::of_thousand(0), None);
        assert_eq!(Alpha::of_thousand(501), None);
    }
}
