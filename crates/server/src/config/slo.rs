//! The `slo` key of a model and the `admission` section: what answers are promised to be like, by
//! class, and what is kept of how that fared.

use tollgate_policy::pace::Target;
use tollgate_policy::slo::{Alpha, Calibration, Learner, Mode, Slo, Terms};
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Micros;

use super::decode::{Cursor, Fields};

/// What is kept of how requests were judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Bytes of the decision trace, 1 MiB to 64 GiB; `None` keeps none.
    pub trace: Option<u64>,
    /// Whether what was learned is written down and taken on again.
    pub state: bool,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            trace: Some(64 << 20),
            state: true,
        }
    }
}

impl AdmissionConfig {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let default = Self::default();
        let on_off = [("on", true), ("off", false)];
        section.mapping(|fields| {
            let trace = fields.optional("trace", |value| value.choice(&on_off));
            let most = fields.optional("trace_max", |value| value.size(1 << 20..=64 << 30));
            let state = fields.optional("state", |value| value.choice(&on_off));
            Self {
                trace: trace.unwrap_or(true).then_some(most.unwrap_or(64 << 20)),
                state: state.unwrap_or(default.state),
            }
        })
    }
}

/// What a class says where it says anything: the terms of all, changed.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    ttft: Option<Micros>,
    tpot: Option<Micros>,
    e2e: Option<Micros>,
    alpha: Option<Alpha>,
    /// `Some(None)` promises the class nothing.
    mode: Option<Option<Mode>>,
}

/// Reads `slo`, wherever it is not left out.
pub(super) fn target(fields: &mut Fields<'_, '_>) -> Target {
    let read = fields.optional("slo", |value| value.mapping(read));
    read.unwrap_or_default()
}

fn read(fields: &mut Fields<'_, '_>) -> Target {
    let all = changes(fields);
    let ways = [
        ("rolling", Calibration::Rolling),
        ("split", Calibration::Split),
        ("none", Calibration::None),
    ];
    let calibration = fields.optional("calibration", |value| value.choice(&ways));
    let learners = [Learner::Learned, Learner::Structural].map(|one| (one.label(), one));
    let learner = fields.optional("model", |value| value.choice(&learners));
    let refits = Micros::from_secs(1)..=Micros::from_secs(86_400);
    let refit = fields.optional("refit", |value| value.duration(refits));
    let terms = Terms {
        calibration: calibration.unwrap_or_default(),
        ..Terms::NONE
    };
    let terms = all.on(Some(terms));
    let classes = fields.optional("classes", |value| {
        value.list(|item| item.mapping(of_class).flatten())
    });
    let slo = Class::ALL.into_iter().fold(Slo::default(), |slo, class| {
        let own = classes.iter().flatten().filter(|(of, _)| *of == class);
        let terms = own.fold(terms, |terms, (_, changes)| changes.on(terms));
        terms.map_or(slo, |terms| slo.with(class, terms))
    });
    let slo = slo.by(learner.unwrap_or_default());
    let default = Target::default();
    Target {
        tpot: all.tpot.unwrap_or(default.tpot),
        slo: refit.map_or(slo, |refit| slo.refitted_every(refit)),
    }
}

fn of_class(fields: &mut Fields<'_, '_>) -> Option<(Class, Changes)> {
    let classes = Class::ALL.map(|class| (class.label(), class));
    let which = "say which class: reserved, standard or best_effort";
    let class = fields.required("class", which, |value| value.choice(&classes));
    let changes = changes(fields);
    class.map(|class| (class, changes))
}

fn changes(fields: &mut Fields<'_, '_>) -> Changes {
    let span = |secs| Micros::from_millis(1)..=Micros::from_secs(secs);
    let modes = [
        ("goodput", Some(Mode::Goodput)),
        ("guarantee", Some(Mode::Guarantee)),
        ("off", None),
    ];
    let alpha = fields.optional("alpha", |value| value.thousandths(1..=500));
    Changes {
        ttft: fields.optional("ttft", |value| value.duration(span(600))),
        tpot: fields.optional("tpot", |value| value.duration(span(10))),
        e2e: fields.optional("e2e", |value| value.duration(span(86_400))),
        alpha: alpha.and_then(|alpha| Alpha::of_thousand(u16::try_from(alpha).ok()?)),
        mode: fields.optional("mode", |value| value.choice(&modes)),
    }
}

impl Changes {
    fn on(self, terms: Option<Terms>) -> Option<Terms> {
        let terms = terms.unwrap_or(Terms::NONE);
        let mode = match self.mode {
            Some(None) => return None,
            Some(Some(mode)) => mode,
            None => terms.mode,
        };
        Some(Terms {
            ttft: self.ttft.or(terms.ttft),
            tpot: self.tpot.or(terms.tpot),
            e2e: self.e2e.or(terms.e2e),
            alpha: self.alpha.unwrap_or(terms.alpha),
            mode,
            ..terms
        })
    }
}
