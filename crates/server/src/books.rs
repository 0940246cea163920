//! What is written down of a request: in the journal as it goes and when it ends, and then, from
//! the same record, in metrics and log.

use std::borrow::Cow;

use tollgate_policy::gateway::{Dispatch, Progress, Record, Weighed};
use tollgate_policy::ids::{KeyId, ModelId, RequestId, TenantId};
use tollgate_policy::outcome::{LedgerEffect, Level, Outcome};
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::{KvByteMicros, Micros, Time};
use tollgate_policy::usage::{self, Usage};

use crate::clock::Clock;
use crate::journal::Journal;
use crate::journal::record::{self, Counted, Ended, Mark, RequestName, Started, UnixMicros, Used};
use crate::membership::KeyNames;
use crate::metrics::Metrics;
use crate::promises::{Line, Promises};

/// The three of them.
#[derive(Debug)]
pub(crate) struct Books {
    metrics: Metrics,
    journal: Journal,
    /// By [`ModelId`].
    model_names: Vec<String>,
    keys: KeyNames,
    promises: Promises,
}

impl Books {
    pub(crate) fn new(metrics: Metrics, journal: Journal, model_names: Vec<String>) -> Self {
        Self {
            metrics,
            journal,
            model_names,
            keys: KeyNames::default(),
            promises: Promises::new(),
        }
    }

    /// The keys that have names.
    pub(crate) fn keys(&self) -> &KeyNames {
        &self.keys
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What is kept of promises.
    pub(crate) fn promises(&self) -> &Promises {
        &self.promises
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The name of a request in headers, ledger and log.
    pub(crate) fn request_name(&self, id: RequestId) -> String {
        self.name(id).to_string()
    }

    /// The same, not yet written out.
    pub(crate) fn name(&self, id: RequestId) -> RequestName {
        RequestName {
            boot: self.journal.boot(),
            number: id.get(),
        }
    }

    fn key_name(&self, key: Option<KeyId>) -> Option<String> {
        key.and_then(|key| self.keys.name(key))
    }

    pub(crate) fn model_name(&self, id: ModelId) -> &str {
        let slot = usize::try_from(id.get()).unwrap_or(usize::MAX);
        self.model_names.get(slot).map_or("unknown", String::as_str)
    }

    /// The number of the model of this name.
    pub(crate) fn model_named(&self, name: &str) -> Option<ModelId> {
        let place = self.model_names.iter().position(|own| own == name)?;
        u32::try_from(place).ok().map(ModelId::new)
    }

    /// Writes down that a replica was given a request, which is for `model` and came at `received`.
    pub(crate) fn start(
        &self,
        dispatch: &Dispatch,
        (model, received): (ModelId, Time),
        tenant: &Tenant,
        clock: &Clock,
    ) {
        let unix = |at: Time| UnixMicros::new(clock.unix_micros(at));
        let of = (model, self.model_name(model));
        self.metrics.fleet().sent(of, dispatch.because.label());
        self.journal.append(record::Record::Started(Started {
            request: self.name(dispatch.id),
            tenant: tenant.name.clone(),
            key: self.key_name(dispatch.key),
            model: self.model_name(model).to_owned(),
            replica: dispatch.replica.get(),
            received: unix(received),
            dispatched: unix(received + dispatch.queued),
        }));
    }

    /// Writes down how far a request has come.
    pub(crate) fn mark(&self, progress: Progress, clock: &Clock) {
        self.journal.append(record::Record::Mark(Mark {
            request: self.name(progress.id),
            at: UnixMicros::new(clock.unix_micros(clock.now())),
            used: used(progress.usage, progress.kv),
        }));
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
            let ended = self.ended(record, tenant, clock);
            self.journal.append(record::Record::Ended(ended));
        }
        self.log(record, tenant.map(|(_, tenant)| tenant), model);
    }

    /// Writes down how a request was judged, and what came of it.
    pub(crate) fn weigh(&self, weighed: &Weighed, tenant: &Tenant, clock: &Clock) {
        let model = self.model_name(weighed.model);
        self.metrics.weighed(&weighed.row, model);
        self.promises.write(Line {
            received_unix_us: clock.unix_micros(weighed.row.judged.received),
            request: weighed.row.id.get(),
            model: model.to_owned(),
            tenant: tenant.name.clone(),
            row: weighed.row,
        });
    }

    fn ended(&self, record: &Record, tenant: &Tenant, clock: &Clock) -> Ended {
        Ended {
            request: self.name(record.id),
            tenant: tenant.name.clone(),
            key: self.key_name(record.key),
            model: record.model.map(|id| self.model_name(id).to_owned()),
            replica: record.replica.map(|id| id.get()),
            outcome: Cow::Borrowed(record.outcome.row().reason),
            finish_reason: match record.outcome {
                Outcome::Completed(finish) => Some(Cow::Borrowed(finish.label())),
                Outcome::ClientGone(_)
                | Outcome::Rejected(_)
                | Outcome::Evicted(_)
                | Outcome::ReplicaFailed(_)
                | Outcome::ReplicaRefused(_)
                | Outcome::Fenced(_)
                | Outcome::Repeated
                | Outcome::Bug => None,
            },
            used: used(record.usage, record.kv),
            counted: match record.counted {
                usage::Counted::Exactly => Counted::Engine,
                usage::Counted::Roughly => Counted::Estimated,
            },
            received: UnixMicros::new(clock.unix_micros(record.received)),
            queue: record.queued(),
            ttft: record.ttft(),
            total: record.total(),
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

fn used(usage: Usage, kv: KvByteMicros) -> Used {
    Used {
        prompt: usage.prompt,
        cached: usage.cached,
        output: usage.output,
        kv,
    }
}
