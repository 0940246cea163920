//! Gauges of what each replica's window holds of what it may, and why it has its size.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tollgate_policy::gateway::ReplicaGauges;
use tollgate_policy::window::Moved;

use super::{ReplicaLabel, ratio, signed};

/// The gauges, by replica.
#[derive(Debug, Default)]
pub(super) struct WindowMetrics {
    moves: Family<MovedLabel, Gauge>,
    headroom: Family<ReplicaLabel, Gauge>,
    guests: Family<ReplicaLabel, Gauge>,
    prefill: Family<ReplicaLabel, Gauge>,
    prefill_max: Family<ReplicaLabel, Gauge>,
    occupancy: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MovedLabel {
    model: String,
    replica: u32,
    reason: &'static str,
}

impl WindowMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "window_moves",
            "1 for the reason why the window last changed its size",
            self.moves.clone(),
        );
        registry.register(
            "window_headroom_sequences",
            "Sequences kept for tenants below their share",
            self.headroom.clone(),
        );
        registry.register(
            "window_guests",
            "Requests sent since the start beyond what the replica can run, for places of others",
            self.guests.clone(),
        );
        registry.register(
            "window_prefill_tokens",
            "Prompt tokens in flight to their first token",
            self.prefill.clone(),
        );
        registry.register(
            "window_prefill_tokens_limit",
            "Prompt tokens that may be; absent while there is no bound",
            self.prefill_max.clone(),
        );
        registry.register(
            "replica_kv_occupancy_ratio",
            "KV held, by reservations or as the replica says, whichever is more",
            self.occupancy.clone(),
        );
    }

    pub(super) fn take(&self, label: &ReplicaLabel, replica: &ReplicaGauges) {
        let window = replica.window;
        for moved in [Moved::Came, Moved::Shrank, Moved::Grew] {
            let label = MovedLabel {
                model: label.model.clone(),
                replica: label.replica,
                reason: moved.label(),
            };
            let holds = i64::from(window.moved() == moved);
            self.moves.get_or_create(&label).set(holds);
        }
        let headroom = i64::from(window.headroom());
        self.headroom.get_or_create(label).set(headroom);
        let guests = signed(window.guests_taken());
        self.guests.get_or_create(label).set(guests);
        let prefill = signed(window.prefill().get());
        self.prefill.get_or_create(label).set(prefill);
        match window.prefill_max(replica.prefill_per_step) {
            Some(most) => {
                self.prefill_max
                    .get_or_create(label)
                    .set(signed(most.get()));
            }
            None => {
                self.prefill_max.remove(label);
            }
        }
        let held = ratio(window.occupancy().get(), window.capacity().kv.get());
        self.occupancy.get_or_create(label).set(held);
    }
}
