//! How the service of each model was shared in the last window between scrapes.
//!
//! Attained service only ever grows; what it grew by since a scrape some time ago is what each
//! tenant had in between.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate_policy::gateway::Attained;
use tollgate_policy::ids::TenantId;
use tollgate_policy::units::{Micros, Time};

use super::{ModelLabel, ratio, tenant_label};
use crate::desk::Desk;

/// The shortest window: over less, a long answer alone looks unfair.
const WINDOW_MIN: Micros = Micros::from_secs(10);

/// The gauges, and where the window began.
#[derive(Debug, Default)]
pub(super) struct ShareMetrics {
    share: Family<ShareLabel, Gauge<f64, AtomicU64>>,
    jain: Family<ModelLabel, Gauge<f64, AtomicU64>>,
    began: Mutex<Began>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ShareLabel {
    model: String,
    tenant: String,
}

/// What had been attained when the window began.
#[derive(Debug, Default)]
struct Began {
    at: Time,
    /// By model, then tenant.
    attained: Vec<Vec<Attained>>,
}

/// What an active tenant had in a window.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    tenant: TenantId,
    service: u64,
    /// Service by weight.
    normal: f64,
}

impl ShareMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "tenant_share_ratio",
            "Part of a model's service that a tenant had between scrapes at least 10 s apart",
            self.share.clone(),
        );
        registry.register(
            "service_jain_index",
            "1 where all tenants that were active in that time had the same service by weight",
            self.jain.clone(),
        );
    }

    /// Ends the window, where it was long enough.
    pub(super) fn take(&self, desk: &Desk) {
        let now = desk.clock().now();
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(began.at) < WINDOW_MIN {
            return;
        }
        let (tenants, attained) = desk.service();
        self.share.clear();
        self.jain.clear();
        let before = began.attained.iter().map(Vec::as_slice);
        let before = before.chain(std::iter::repeat(&[][..]));
        for ((after, before), id) in attained.iter().zip(before).zip(0..) {
            let model = desk
                .books()
                .model_name(tollgate_policy::ids::ModelId::new(id));
            self.set(model, &parts(before, after), &tenants);
        }
        *began = Began { at: now, attained };
    }

    fn set(&self, model: &str, parts: &[Part], tenants: &[String]) {
        let all = parts.iter().map(|part| part.service).sum();
        let mut sums = BTreeMap::new();
        for part in parts {
            let slot = usize::try_from(part.tenant.get()).unwrap_or(usize::MAX);
            let name = tenants.get(slot).map_or("", String::as_str);
            *sums.entry(tenant_label(part.tenant, name)).or_insert(0) += part.service;
        }
        for (tenant, service) in sums {
            let model = model.to_owned();
            let label = ShareLabel { model, tenant };
            self.share.get_or_create(&label).set(ratio(service, all));
        }
        if let Some(index) = jain(parts) {
            let model = model.to_owned();
            self.jain.get_or_create(&ModelLabel { model }).set(index);
        }
    }
}

/// What each tenant had that was served between two moments, or waited at either.
fn parts(before: &[Attained], after: &[Attained]) -> Vec<Part> {
    let before = before.iter().map(Some).chain(std::iter::repeat(None));
    let part = |((now, before), id): ((&Attained, Option<&Attained>), u32)| {
        let had = before.map_or(0, |before| before.service.get());
        let service = now.service.get().saturating_sub(had);
        let waited = now.waits || before.is_some_and(|before| before.waits);
        (service > 0 || waited).then(|| Part {
            tenant: TenantId::new(id),
            service,
            normal: ratio(service, u64::from(now.weight.get())),
        })
    };
    after.iter().zip(before).zip(0..).filter_map(part).collect()
}

/// The fairness index of Jain, Chiu and Hawe (1984): 1 where all are equal, 1/n where one of n has
/// all.
fn jain(parts: &[Part]) -> Option<f64> {
    let sum: f64 = parts.iter().map(|part| part.normal).sum();
    let squares: f64 = parts.iter().map(|part| part.normal * part.normal).sum();
    let count = parts.iter().map(|_| 1.0).sum::<f64>();
    (squares > 0.0).then(|| sum * sum / (count * squares))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tollgate_policy::units::Service;

    use super::*;

    fn attained(service: u64, weight: u32, waits: bool) -> Attained {
        Attained {
            service: Service::new(service),
            weight: NonZeroU32::new(weight).unwrap(),
            waits,
        }
    }

    fn index(before: &[Attained], after: &[Attained]) -> Option<f64> {
        jain(&parts(before, after))
    }

    #[test]
    fn tenants_past_the_bound_of_labels_share_one() {
        let metrics = ShareMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let after: Vec<_> = (0..103).map(|_| attained(10, 1, false)).collect();
        let names: Vec<_> = (0..103).map(|n| format!("t{n}")).collect();
        metrics.set("m", &parts(&[], &after), &names);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        let share = |tenant: &str| {
            let name = format!("tenant_share_ratio{{model=\"m\",tenant=\"{tenant}\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&name))?;
            line.parse::<f64>().ok()
        };
        assert_eq!(share("t7"), Some(10.0 / 1030.0));
        assert_eq!(share("other"), Some(30.0 / 1030.0));
        assert_eq!(share("t102"), None);
        assert!(
            page.contains("service_jain_index{model=\"m\"} 1.0"),
            "{page}"
        );
    }

    #[test]
    fn equal_service_by_weight_is_an_index_of_one() {
        let after = [attained(300, 3, false), attained(100, 1, false)];
        assert_eq!(index(&[], &after), Some(1.0));
    }

    #[test]
    fn a_tenant_that_waits_and_gets_nothing_counts() {
        let before = [attained(50, 1, false), attained(10, 1, false)];
        let after = [attained(150, 1, false), attained(10, 1, true)];
        assert_eq!(index(&before, &after), Some(0.5));
        let before = [attained(50, 1, false), attained(10, 1, true)];
        let after = [attained(150, 1, false), attained(10, 1, false)];
        assert_eq!(index(&before, &after), Some(0.5), "it gave up in between");
    }

    #[test]
    fn who_is_idle_and_who_was_served_before_do_not_count() {
        let before = [attained(1_000, 1, false), attained(0, 1, false)];
        let after = [attained(1_000, 1, false), attained(70, 1, false)];
        assert_eq!(index(&before, &after), Some(1.0));
        assert_eq!(parts(&before, &after).len(), 1);
        assert_eq!(index(&after, &after), None, "nobody was served");
    }

    #[test]
    fn a_tenant_that_is_new_since_has_had_all_of_it_since() {
        let before = [attained(100, 1, false)];
        let after = [attained(160, 1, false), attained(30, 1, false)];
        let services: Vec<_> = parts(&before, &after)
            .iter()
            .map(|part| part.service)
            .collect();
        assert_eq!(services, [60, 30]);
    }
}
