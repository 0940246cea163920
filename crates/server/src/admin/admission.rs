//! How promises stand: what is promised, how many bounds were kept, who was refused and why.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tollgate_policy::slo::admission::{ClassView, Unattainable};
use tollgate_policy::slo::sight::{Coverage, Kept, Sight};
use tollgate_policy::slo::{Because, Metric, View};
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Micros;

use super::page;
use crate::app::App;

/// Tenants that are shown of each number, those that fared worst first.
const TENANTS_MAX: usize = 20;

#[derive(Serialize)]
struct Page<'a> {
    models: Vec<Model<'a>>,
    trace_lines_lost: u64,
}

#[derive(Serialize)]
struct Model<'a> {
    model: &'a str,
    /// What an operator should know, in words.
    says: Vec<String>,
    classes: Vec<ClassPage>,
    bounds: Vec<Bounds>,
    admitted: Vec<Count>,
    refused: Vec<Count>,
    dropped: Vec<Count>,
    explored: u64,
    explored_in_time: u64,
    /// Refused requests that would have been in time, as far as those tell that were explored.
    regret: Option<u64>,
    costs: Costs,
    trees: Fit,
}

/// What estimates are put right by.
#[derive(Serialize)]
struct Fit {
    /// Trees that were fitted last; none where the plan alone is as good.
    trees: u64,
    /// Answers that they were fitted to.
    fitted_to: Option<u64>,
    /// What their bounds cost over what those of the plan alone cost, by pinball loss.
    loss: Option<f64>,
    /// Answers that the next fit has.
    answers: u64,
}

#[derive(Serialize)]
struct ClassPage {
    class: &'static str,
    mode: &'static str,
    calibration: &'static str,
    alpha: f64,
    ttft_ms: Option<u64>,
    tpot_ms: Option<u64>,
    e2e_ms: Option<u64>,
    pressure: f64,
    pressed: bool,
    /// By length of prompt: up to 512, up to 2048, longer.
    factors: Vec<Factor>,
}

#[derive(Serialize)]
struct Factor {
    times: f64,
    footing: &'static str,
}

#[derive(Serialize)]
struct Bounds {
    of: &'static str,
    due: u64,
    kept: Option<f64>,
    last_minute: Option<f64>,
    worst_minute: Option<f64>,
    longest_run_of_misses: u64,
    /// Bound over outcome, of half of the last ones at most.
    width: Option<f64>,
    classes: Vec<Share>,
    tenants: Vec<Share>,
}

#[derive(Serialize)]
struct Share {
    name: String,
    due: u64,
    kept: f64,
}

#[derive(Serialize)]
struct Count {
    reason: &'static str,
    requests: u64,
}

/// In microseconds; `null` before it has been measured.
#[derive(Serialize)]
struct Costs {
    between_dispatches_us: Option<u64>,
    prefill_us: Option<u64>,
    prefill_per_1000_tokens_us: Option<u64>,
    token_us: Option<u64>,
    token_per_1000_sequences_us: Option<u64>,
}

pub(super) async fn admission(State(app): State<Arc<App>>) -> Response {
    let views = app.desk.promises();
    let names = app.desk.tenant_names();
    let models = app.models.iter().zip(&views);
    let models = models.filter_map(|(served, view)| {
        let view = view.as_ref()?;
        Some(model(&served.name, view, &names))
    });
    page(&Page {
        models: models.collect(),
        trace_lines_lost: app.desk.books().promises().lost(),
    })
}

fn model<'a>(name: &'a str, view: &View, names: &[String]) -> Model<'a> {
    let sight = &view.sight;
    let metric = |metric: Metric| bounds(metric, sight, names);
    let by_metric = |counts: &[u64; 3]| {
        let each = Metric::ALL.into_iter().zip(counts);
        let each = each.map(|(metric, requests)| Count {
            reason: metric.label(),
            requests: *requests,
        });
        each.collect::<Vec<_>>()
    };
    let admitted = Because::ALL.into_iter().zip(sight.admitted);
    let admitted = admitted.map(|(because, requests)| Count {
        reason: because.label(),
        requests,
    });
    Model {
        model: name,
        says: view
            .classes
            .iter()
            .flat_map(|class| says(class, view))
            .collect(),
        classes: view.classes.iter().map(class).collect(),
        bounds: Metric::ALL.into_iter().map(metric).collect(),
        admitted: admitted.collect(),
        refused: by_metric(&sight.refused),
        dropped: by_metric(&sight.dropped),
        explored: sight.explored.due,
        explored_in_time: sight.explored.kept,
        regret: sight.regret(),
        costs: costs(view),
        trees: Fit {
            trees: view.model.trees,
            fitted_to: view.model.last.map(|fit| fit.lessons),
            loss: view.model.last.map(|fit| thousandths(fit.loss)),
            answers: view.model.lessons,
        },
    }
}

fn class(view: &ClassView) -> ClassPage {
    let millis = |span: Option<Micros>| span.map(Micros::millis_up);
    let terms = &view.terms;
    let factor = |factor: &(tollgate_policy::slo::calibrate::Score, _)| factor.0.get();
    ClassPage {
        class: view.class.label(),
        mode: terms.mode.label(),
        calibration: terms.calibration.label(),
        alpha: f64::from(terms.alpha.get()) / 1_000.0,
        ttft_ms: millis(terms.ttft),
        tpot_ms: millis(terms.tpot),
        e2e_ms: millis(terms.e2e),
        pressure: thousandths(view.pressure.0),
        pressed: view.pressure.1,
        factors: view
            .factors
            .iter()
            .map(|one| Factor {
                times: f64::from(factor(one)) / 1_024.0,
                footing: one.1.label(),
            })
            .collect(),
    }
}

fn bounds(metric: Metric, sight: &Sight, names: &[String]) -> Bounds {
    let coverage: &Coverage = sight.coverage_of(metric);
    let share = |kept: &Kept| kept.per_mille().map(thousandths);
    let classes = Class::ALL.into_iter().zip(&coverage.classes);
    let classes = classes.filter_map(|(class, kept)| {
        Some(Share {
            name: class.label().to_owned(),
            due: kept.due,
            kept: share(kept)?,
        })
    });
    let mut tenants: Vec<_> = coverage
        .tenants
        .iter()
        .filter_map(|(id, kept)| {
            let place = usize::try_from(id.get()).ok()?;
            Some(Share {
                name: names.get(place)?.clone(),
                due: kept.due,
                kept: share(kept)?,
            })
        })
        .collect();
    tenants.sort_by(|one, other| one.kept.total_cmp(&other.kept));
    tenants.truncate(TENANTS_MAX);
    Bounds {
        of: metric.label(),
        due: coverage.all.due,
        kept: share(&coverage.all),
        last_minute: coverage.last.as_ref().and_then(share),
        worst_minute: coverage.worst.map(thousandths),
        longest_run_of_misses: coverage.run.1,
        width: coverage
            .median_width()
            .map(|width| f64::from(width.get()) / 1_024.0),
        classes: classes.collect(),
        tenants,
    }
}

fn costs(view: &View) -> Costs {
    let costs = &view.costs;
    Costs {
        between_dispatches_us: costs.gap.map(|gap| gap.value.get()),
        prefill_us: costs.prefill.map(|line| line.base.get()),
        prefill_per_1000_tokens_us: costs.prefill.map(|line| line.per_thousand.get()),
        token_us: costs.decode.map(|line| line.base.get()),
        token_per_1000_sequences_us: costs.decode.map(|line| line.per_thousand.get()),
    }
}

/// What an operator should know of one class, in words.
fn says(class: &ClassView, view: &View) -> Vec<String> {
    let name = class.class.label();
    let each = class.unattainable.iter().map(|what| match what {
        Unattainable::TooShort {
            metric,
            limit,
            bound,
        } => format!(
            "{name}: {} of {} ms can't be promised: that of a typical request that is alone is \
             bounded by {} ms, {} ms more",
            metric.label(),
            limit.millis_up(),
            bound.millis_up(),
            (*bound - *limit).millis_up()
        ),
        Unattainable::TooSure { rows, needed } => format!(
            "{name}: alpha {} takes {needed} answers to learn from, and there were {rows}; until \
             then bounds are half as wide again as the longest of them",
            f64::from(class.terms.alpha.get()) / 1_000.0
        ),
    });
    let mut all: Vec<_> = each.collect();
    if view.costs.prefill.is_none() {
        all.push(format!(
            "{name}: nothing has been measured yet, so everybody is let in"
        ));
    }
    all
}

fn thousandths(part: u64) -> f64 {
    // Parts of what is promised: far below what a float holds exactly.
    part as f64 / 1_000.0
}
