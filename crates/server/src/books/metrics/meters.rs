//! Where ends of requests are counted: the series of each model, class and tenant, found once.
//!
//! To find a series by its labels costs several times what counting does, and each request moves
//! some ten of them. So they are kept by numbers here. Which labels there are, the families know.

use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tollgate_policy::gateway::Record;
use tollgate_policy::ids::{ModelId, TenantId};
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::Micros;

use super::{
    Ending, NONE, Promise, Seconds, TENANT_LABELS_MAX, TenantLabel, TokenKind, secs, tenant_label,
};
use crate::desk::quick::QuickMap;

/// What every request moves when it ends.
#[derive(Debug)]
pub(super) struct Meters {
    pub(super) requests: Family<Ending, Counter>,
    pub(super) tokens: Family<TokenKind, Counter>,
    pub(super) ttft: Seconds<Promise>,
    pub(super) tpot: Seconds<Promise>,
    pub(super) e2e: Seconds<Promise>,
    pub(super) queue: Seconds<Promise>,
    pub(super) tenant_ttft: Seconds<TenantLabel>,
    ends: Found<(Option<ModelId>, &'static str, &'static str), Counter>,
    latencies: Found<(Option<ModelId>, &'static str), Arc<Latencies>>,
    tenants: Found<(Option<ModelId>, TenantId), Arc<Used>>,
}

/// Series that were found, by what they are of.
pub(super) type Found<K, V> = RwLock<QuickMap<K, V>>;

/// How long the requests of one model and class took.
#[derive(Debug)]
struct Latencies {
    ttft: Histogram,
    tpot: Histogram,
    e2e: Histogram,
    queue: Histogram,
}

/// What one tenant had of one model.
#[derive(Debug)]
struct Used {
    /// The tenant's name as it was; another may have its number by now.
    name: String,
    prompt: Counter,
    cached: Counter,
    output: Counter,
    ttft: Histogram,
}

impl Meters {
    pub(super) fn new(seconds: fn() -> Histogram) -> Self {
        Self {
            requests: Family::default(),
            tokens: Family::default(),
            ttft: Family::new_with_constructor(seconds),
            tpot: Family::new_with_constructor(seconds),
            e2e: Family::new_with_constructor(seconds),
            queue: Family::new_with_constructor(seconds),
            tenant_ttft: Family::new_with_constructor(seconds),
            ends: RwLock::default(),
            latencies: RwLock::default(),
            tenants: RwLock::default(),
        }
    }

    /// Counts how a request ended.
    pub(super) fn close(
        &self,
        record: &Record,
        tenant: Option<(TenantId, &Tenant)>,
        model: Option<&str>,
    ) {
        let model = model.unwrap_or(NONE);
        let class = tenant.map_or(NONE, |(_, tenant)| tenant.class.label());
        let reason = record.outcome.row().reason;
        let counter = find(
            &self.ends,
            (record.model, class, reason),
            |_| true,
            || {
                let model = model.to_owned();
                self.requests.get_or_create_owned(&Ending {
                    model,
                    class,
                    reason,
                })
            },
        );
        counter.inc();
        if record.dispatched.is_none() {
            return;
        }
        self.observe(record, (model, class));
        if let Some((id, tenant)) = tenant {
            self.charge(record, model, (id, tenant));
        }
    }

    fn observe(&self, record: &Record, (model, class): (&str, &'static str)) {
        let latencies = find(
            &self.latencies,
            (record.model, class),
            |_| true,
            || {
                let promise = Promise {
                    model: model.to_owned(),
                    class,
                };
                Arc::new(Latencies {
                    ttft: self.ttft.get_or_create_owned(&promise),
                    tpot: self.tpot.get_or_create_owned(&promise),
                    e2e: self.e2e.get_or_create_owned(&promise),
                    queue: self.queue.get_or_create_owned(&promise),
                })
            },
        );
        observe(&latencies.queue, Some(record.queued()));
        observe(&latencies.ttft, record.ttft());
        observe(&latencies.tpot, record.tpot());
        observe(&latencies.e2e, Some(record.total()));
    }

    fn charge(&self, record: &Record, model: &str, (id, tenant): (TenantId, &Tenant)) {
        // All without a label of their own have one in common.
        let number = TenantId::new(id.get().min(TENANT_LABELS_MAX));
        let label = |name: &str| tenant_label(id, name);
        let is_same =
            |used: &Arc<Used>| number.get() == TENANT_LABELS_MAX || used.name == tenant.name;
        let used = find(&self.tenants, (record.model, number), is_same, || {
            let kind = |kind| {
                self.tokens.get_or_create_owned(&TokenKind {
                    model: model.to_owned(),
                    tenant: label(&tenant.name),
                    kind,
                })
            };
            let of = TenantLabel {
                tenant: label(&tenant.name),
            };
            Arc::new(Used {
                name: tenant.name.clone(),
                prompt: kind("prompt"),
                cached: kind("cached"),
                output: kind("output"),
                ttft: self.tenant_ttft.get_or_create_owned(&of),
            })
        });
        observe(&used.ttft, record.ttft());
        used.prompt.inc_by(record.usage.prompt.get());
        used.cached.inc_by(record.usage.cached.get());
        used.output.inc_by(record.usage.output.get());
    }
}

fn observe(histogram: &Histogram, span: Option<Micros>) {
    if let Some(span) = span {
        histogram.observe(secs(span));
    }
}

/// What was found before, if it is good still, or is found now.
pub(super) fn find<K: Hash + Eq, V: Clone>(
    found: &Found<K, V>,
    key: K,
    is_good: impl FnOnce(&V) -> bool,
    look: impl FnOnce() -> V,
) -> V {
    let known = found.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(value) = known.get(&key)
        && is_good(value)
    {
        return value.clone();
    }
    drop(known);
    let value = look();
    let mut known = found.write().unwrap_or_else(PoisonError::into_inner);
    known.insert(key, value.clone());
    value
}
