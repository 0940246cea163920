//! How promises fare: decisions by reason, bounds kept and missed, how wide they are, and how near
//! each pool is to what it promises.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tollgate_policy::outcome::{Eviction, Outcome};
use tollgate_policy::slo::{Metric, Row, Verdict, View};

use super::{ModelLabel, Promise, signed};

/// Bound over outcome.
const WIDTHS: [f64; 11] = [0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0];

/// The metrics.
#[derive(Debug)]
pub(super) struct PromiseMetrics {
    decisions: Family<Decision, Counter>,
    bounds: Family<BoundLabel, Counter>,
    widths: Family<MetricLabel, Histogram, fn() -> Histogram>,
    coverage: Family<WindowLabel, Gauge<f64, AtomicU64>>,
    pressure: Family<Promise, Gauge<f64, AtomicU64>>,
    regret: Family<ModelLabel, Gauge>,
    lost: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Decision {
    model: String,
    class: &'static str,
    decision: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BoundLabel {
    model: String,
    class: &'static str,
    of: &'static str,
    kept: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MetricLabel {
    model: String,
    of: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WindowLabel {
    model: String,
    of: &'static str,
    window: &'static str,
}

impl Default for PromiseMetrics {
    fn default() -> Self {
        Self {
            decisions: Family::default(),
            bounds: Family::default(),
            widths: Family::new_with_constructor(|| Histogram::new(WIDTHS)),
            coverage: Family::default(),
            pressure: Family::default(),
            regret: Family::default(),
            lost: Gauge::default(),
        }
    }
}

impl PromiseMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "slo_decisions",
            "Requests of models with an slo that ended, by how they were judged",
            self.decisions.clone(),
        );
        registry.register(
            "slo_bounds",
            "Promised bounds that came due, kept or not",
            self.bounds.clone(),
        );
        registry.register(
            "slo_bound_over_outcome",
            "What was promised over what came",
            self.widths.clone(),
        );
        registry.register(
            "slo_coverage_ratio",
            "Bounds kept of those that came due: since the start, in the last minute, in the worst",
            self.coverage.clone(),
        );
        registry.register(
            "slo_pressure_ratio",
            "What a typical request would take over what is promised",
            self.pressure.clone(),
        );
        registry.register(
            "slo_regret_requests",
            "Refused requests that would have been in time, as far as exploring tells",
            self.regret.clone(),
        );
        registry.register(
            "slo_trace_lost_lines",
            "Lines of the decision trace for which there was no room",
            self.lost.clone(),
        );
    }

    /// Counts how a request was judged, and what came of it.
    pub(super) fn weighed(&self, row: &Row, model: &str) {
        let judged = &row.judged;
        let class = judged.facts.class.label();
        let (decision, reason) = match judged.verdict {
            Verdict::Refuse(metric) => ("refused", metric.label()),
            Verdict::Admit(because) if row.seen.outcome == Outcome::Evicted(Eviction::Slo) => {
                ("dropped", because.label())
            }
            Verdict::Admit(because) => ("admitted", because.label()),
        };
        let decided = Decision {
            model: model.to_owned(),
            class,
            decision,
            reason,
        };
        self.decisions.get_or_create(&decided).inc();
        for metric in Metric::ALL {
            let bound = judged.bounds.iter().zip(Metric::ALL);
            let bound = bound
                .filter(|(_, of)| *of == metric)
                .find_map(|(bound, _)| *bound);
            let (Some(bound), Some(came)) = (bound, row.seen.of(metric)) else {
                continue;
            };
            let of = metric.label();
            let kept = if came <= bound.promised { "yes" } else { "no" };
            let label = BoundLabel {
                model: model.to_owned(),
                class,
                of,
                kept,
            };
            self.bounds.get_or_create(&label).inc();
            let label = MetricLabel {
                model: model.to_owned(),
                of,
            };
            let width = bound.promised.get() as f64 / came.get().max(1) as f64;
            self.widths.get_or_create(&label).observe(width);
        }
    }

    /// Takes in how the promises of a model stand.
    pub(super) fn take(&self, view: &View, model: &str) {
        for metric in Metric::ALL {
            let coverage = view.sight.coverage_of(metric);
            let windows = [
                ("all", coverage.all.per_mille()),
                ("last", coverage.last.and_then(|kept| kept.per_mille())),
                ("worst", coverage.worst),
            ];
            for (window, kept) in windows {
                let label = WindowLabel {
                    model: model.to_owned(),
                    of: metric.label(),
                    window,
                };
                if let Some(kept) = kept {
                    let kept = kept as f64 / 1_000.0;
                    self.coverage.get_or_create(&label).set(kept);
                }
            }
        }
        for class in &view.classes {
            let label = Promise {
                model: model.to_owned(),
                class: class.class.label(),
            };
            let pressure = class.pressure.0 as f64 / 1_000.0;
            self.pressure.get_or_create(&label).set(pressure);
        }
        if let Some(regret) = view.sight.regret() {
            let label = ModelLabel {
                model: model.to_owned(),
            };
            self.regret.get_or_create(&label).set(signed(regret));
        }
    }

    pub(super) fn take_lost(&self, lost: u64) {
        self.lost.set(signed(lost));
    }
}
