//! What is written down when a request ends: ledger, metrics and log, all from the same record.

use tollgate_policy::gateway::Record;
use tollgate_policy::ids::{ModelId, RequestId, TenantId};
use tollgate_policy::outcome::{LedgerEffect, Level, Outcome};
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::Micros;

use crate::clock::Clock;
use crate::ledger::{Entry, Ledger};
use crate::metrics::Metrics;
use crate::roster::KeyNames;

/// The three of them.
#[derive(Debug)]
pub(crate) struct Books {
    metrics: Metrics,
    ledger: Ledger,
    /// By [`ModelId`].
    model_names: Vec<String>,
    /// Tells the requests of this process from those of the one before.
    boot: u32,
    keys: KeyNames,
}

impl Books {
    pub(crate) fn new(
        metrics: Metrics,
        ledger: Ledger,
        model_names: Vec<String>,
        clock: &Clock,
    ) -> Self {
        // Seconds since the epoch, so that names sort by process as well as within one.
        let boot = u32::try_from(clock.unix_secs()).unwrap_or(u32::MAX);
        Self {
            metrics,
            ledger,
            model_names,
            boot,
            keys: KeyNames::default(),
        }
    }

    /// The keys that have names.
    pub(crate) fn keys(&self) -> &KeyNames {
        &self.keys
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The name of a request in headers, ledger and log.
    pub(crate) fn request_name(&self, id: RequestId) -> String {
        format!("req-{:08x}-{:x}", self.boot, id.get())
    }

    pub(crate) fn model_name(&self, id: ModelId) -> &str {
        let slot = usize::try_from(id.get()).unwrap_or(usize::MAX);
        self.model_names.get(slot).map_or("unknown", String::as_str)
    }

    /// Writes down how a request ended.
    pub(crate) fn close(
        &self,
        record: &Record,
        tenant: Option<(TenantId, &Tenant)>,
        clock: &Clock,
    ) {
        let model = record.model.map(|id| self.model_name(id));
        self.metrics.close(record, tenant, model);
        if let (LedgerEffect::Charge, Some((_, tenant))) = (record.outcome.row().ledger, tenant) {
            self.ledger.write(self.entry(record, tenant, clock));
        }
        self.log(record, tenant.map(|(_, tenant)| tenant), model);
    }

    fn entry(&self, record: &Record, tenant: &Tenant, clock: &Clock) -> Entry {
        let micros = |span: Micros| span.get();
        Entry {
            request: self.request_name(record.id),
            tenant: tenant.name.clone(),
            model: record.model.map(|id| self.model_name(id).to_owned()),
            replica: record.replica.map(|id| id.get()),
            outcome: record.outcome.row().reason,
            finish_reason: match record.outcome {
                Outcome::Completed(finish) => Some(finish.label()),
                Outcome::ClientGone(_)
                | Outcome::Rejected(_)
                | Outcome::Evicted(_)
                | Outcome::ReplicaFailed(_)
                | Outcome::Fenced(_)
                | Outcome::Repeated
                | Outcome::Bug => None,
            },
            prompt_tokens: record.usage.prompt.get(),
            cached_tokens: record.usage.cached.get(),
            output_tokens: record.usage.output.get(),
            received_unix_us: clock.unix_micros(record.received),
            queue_us: micros(record.queued()),
            ttft_us: record.ttft().map(micros),
            total_us: micros(record.total()),
        }
    }

    fn log(&self, record: &Record, tenant: Option<&Tenant>, model: Option<&str>) {
        let row = record.outcome.row();
        // One shape for every end, so that a log can be searched; prompts and keys are never in it.
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "tollgate::request",
                    $level,
                    request = self.request_name(record.id),
                    tenant = tenant.map(|tenant| tenant.name.as_str()),
                    model,
                    reason = row.reason,
                    status = row.status,
                    prompt_tokens = record.usage.prompt.get(),
                    output_tokens = record.usage.output.get(),
                    queue_us = record.queued().get(),
                    ttft_us = record.ttft().map(Micros::get),
                    total_us = record.total().get(),
                    "request ended"
                )
            };
        }
        match row.level {
            Level::Info => line!(tracing::Level::INFO),
            Level::Warn => line!(tracing::Level::WARN),
            Level::Error => line!(tracing::Level::ERROR),
        }
    }
}
