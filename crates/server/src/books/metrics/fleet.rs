//! Where requests are sent and why there, and what engines say of themselves.

use std::sync::{PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate_policy::ids::{ModelId, ReplicaId};

use super::ReplicaLabel;
use crate::desk::quick::QuickMap;

/// Counters by model and reason, gauges by replica.
#[derive(Debug, Default)]
pub(crate) struct FleetMetrics {
    dispatches: Family<Sent, Counter>,
    /// The same, by number: each request moves one.
    found: RwLock<QuickMap<(ModelId, &'static str), Counter>>,
    running: Family<ReplicaLabel, Gauge>,
    waiting: Family<ReplicaLabel, Gauge>,
    kv_blocks: Family<ReplicaLabel, Gauge>,
}

/// What an engine says of itself; what it does not say is not shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineSays {
    /// Sequences with KV.
    pub(crate) running: Option<i64>,
    /// Sequences without.
    pub(crate) waiting: Option<i64>,
    /// KV blocks in use.
    pub(crate) kv_blocks: Option<i64>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Sent {
    model: String,
    reason: &'static str,
}

impl FleetMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "dispatches",
            "Requests given to a replica, by the reason for that one; each further try counts too",
            self.dispatches.clone(),
        );
        let gauges = [
            (
                "engine_running_sequences",
                "Sequences with KV",
                &self.running,
            ),
            (
                "engine_waiting_sequences",
                "Sequences without KV",
                &self.waiting,
            ),
            ("engine_kv_blocks", "KV blocks in use", &self.kv_blocks),
        ];
        for (name, help, family) in gauges {
            registry.register(name, help, family.clone());
        }
    }

    /// Counts a dispatch.
    pub(crate) fn sent(&self, (id, model): (ModelId, &str), reason: &'static str) {
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = found.get(&(id, reason)) {
            counter.inc();
            return;
        }
        drop(found);
        let model = model.to_owned();
        let counter = self.dispatches.get_or_create_owned(&Sent { model, reason });
        counter.inc();
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        found.insert((id, reason), counter);
    }

    /// Shows what an engine in another process says; nothing of one that says nothing.
    pub(crate) fn heard(&self, model: &str, replica: ReplicaId, says: EngineSays) {
        let label = ReplicaLabel {
            model: model.to_owned(),
            replica: replica.get(),
        };
        self.said(&label, says);
    }

    pub(super) fn said(&self, label: &ReplicaLabel, says: EngineSays) {
        for (family, value) in [
            (&self.running, says.running),
            (&self.waiting, says.waiting),
            (&self.kv_blocks, says.kv_blocks),
        ] {
            match value {
                Some(value) => {
                    family.get_or_create(label).set(value);
                }
                None => {
                    family.remove(label);
                }
            }
        }
    }
}
