//! What the desk shows of the policy to those who only look: the operator's page and the metrics.
//!
//! Each view is taken under one lock, so that what it says fits together.

use tollgate_policy::gateway::{Attained, PoolGauges, QueueEntry, ReplicaGauges};
use tollgate_policy::ids::{ModelId, ReplicaId, TenantId};
use tollgate_policy::slo;
use tollgate_policy::units::Time;

use super::Desk;

/// One model's queue and the windows it waits for.
#[derive(Debug)]
pub(crate) struct QueueView {
    pub(crate) pool: PoolGauges,
    pub(crate) windows: Vec<(ReplicaId, ReplicaGauges)>,
    /// In the order of arrival, each with its tenant's name.
    pub(crate) waiting: Vec<(QueueEntry, String)>,
}

impl Desk {
    /// The queue of each model, by [`ModelId`]: the first `max` that wait; and when this was so.
    pub(crate) fn queues(&self, max: usize) -> (Time, Vec<QueueView>) {
        let state = self.lock();
        let now = self.clock.now();
        let gauges = state.gateway.gauges();
        let view = |(pool, n): (&PoolGauges, u32)| {
            let model = ModelId::new(n);
            let replicas = (0..).map(ReplicaId::new).zip(&gauges.replicas);
            let own = replicas.filter(|(_, replica)| replica.model == model);
            let named = |entry: QueueEntry| {
                let name = state.gateway.tenant(entry.tenant).name.clone();
                (entry, name)
            };
            let waiting = state.gateway.queue_view(model, max);
            QueueView {
                pool: *pool,
                windows: own.map(|(id, replica)| (id, *replica)).collect(),
                waiting: waiting.into_iter().map(named).collect(),
            }
        };
        (now, gauges.pools.iter().zip(0..).map(view).collect())
    }

    /// How the promises of each model stand, by [`ModelId`]; `None` of those that make none.
    pub(crate) fn promises(&self) -> Vec<Option<slo::View>> {
        let state = self.lock();
        let now = self.clock.now();
        let models = (0..).take(state.gateway.gauges().pools.len());
        let of = |id| state.gateway.promises(ModelId::new(id), now);
        models.map(of).collect()
    }

    /// What has been learned of a model's latency.
    pub(crate) fn learned(&self, model: ModelId) -> Option<slo::State> {
        self.lock().gateway.learned(model)
    }

    /// The names of the tenants, by their numbers.
    pub(crate) fn tenant_names(&self) -> Vec<String> {
        let state = self.lock();
        let tenants = (0..state.gateway.tenant_count()).filter_map(|n| u32::try_from(n).ok());
        let name = |id| state.gateway.tenant(TenantId::new(id)).name.clone();
        tenants.map(name).collect()
    }

    /// What each tenant has had of each model, and the names of the tenants, by their numbers.
    pub(crate) fn service(&self) -> (Vec<String>, Vec<Vec<Attained>>) {
        let state = self.lock();
        let tenants = (0..state.gateway.tenant_count()).filter_map(|n| u32::try_from(n).ok());
        let name = |id| state.gateway.tenant(TenantId::new(id)).name.clone();
        let models = (0..).take(state.gateway.gauges().pools.len());
        let of = |id| state.gateway.attained_of(ModelId::new(id));
        (tenants.map(name).collect(), models.map(of).collect())
    }
}
