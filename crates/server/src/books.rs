//! What is written down of a request: in the journal as it goes and when it ends, and then, from
//! the same record, in metrics and log.

pub(crate) mod metrics;
pub mod promises;
pub(crate) mod writable;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_policy::gateway::{Dispatch, Progress, Record, Weighed};
use tollgate_policy::ids::{KeyId, ModelId, RequestId, TenantId};
use tollgate_policy::outcome::{LedgerEffect, Level, Outcome};
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::{KvByteMicros, Micros, Time};
use tollgate_policy::usage::{self, Usage};

use self::metrics::Metrics;
use self::promises::{Line, Promises};
use crate::clock::Clock;
use crate::journal::Journal;
use crate::journal::record::{self, Counted, Ended, Mark, RequestName, Started, UnixMicros, Used};
use crate::members::membership::KeyNames;

/// The three of them.
#[derive(Debug)]
pub(crate) struct Books {
    metrics: Metrics,
    journal: Journal,
    /// By [`ModelId`].
    model_names: Vec<Arc<str>>,
    tenant_names: TenantNames,
    keys: KeyNames,
    promises: Promises,
}

impl Books {
    pub(crate) fn new(metrics: Metrics, journal: Journal, model_names: Vec<String>) -> Self {
        Self {
            metrics,
            journal,
            model_names: model_names.into_iter().map(Arc::from).collect(),
            tenant_names: TenantNames::default(),
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

    fn key_name(&self, key: Option<KeyId>) -> Option<Arc<str>> {
        key.and_then(|key| self.keys.name(key))
    }

    pub(crate) fn model_name(&self, id: ModelId) -> &str {
        self.shared_model_name(id).map_or("unknown", |name| name)
    }

    fn shared_model_name(&self, id: ModelId) -> Option<&Arc<str>> {
        self.model_names.get(usize::try_from(id.get()).ok()?)
    }

    /// The number of the model of this name.
    pub(crate) fn model_named(&self, name: &str) -> Option<ModelId> {
        let place = self.model_names.iter().position(|own| **own == *name)?;
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
            tenant: self.tenant_names.of(dispatch.tenant, &tenant.name),
            key: self.key_name(dispatch.key),
            model: self
                .shared_model_name(model)
                .map_or_else(|| Arc::from("unknown"), Arc::clone),
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
        if let (LedgerEffect::Charge, Some(tenant)) = (record.outcome.row().ledger, tenant) {
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

    fn ended(&self, record: &Record, (id, tenant): (TenantId, &Tenant), clock: &Clock) -> Ended {
        Ended {
            request: self.name(record.id),
            tenant: self.tenant_names.of(id, &tenant.name),
            key: self.key_name(record.key),
            model: record
                .model
                .and_then(|id| self.shared_model_name(id).cloned()),
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

/// Names of tenants as records share them.
#[derive(Debug, Default)]
struct TenantNames(Mutex<Vec<Option<Arc<str>>>>);

impl TenantNames {
    /// The name of the tenant with this number, which may have been another one's.
    fn of(&self, id: TenantId, name: &str) -> Arc<str> {
        let place = usize::try_from(id.get()).unwrap_or(usize::MAX);
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Tenants are numbered without a gap, so this grows by little.
        if place >= names.len() {
            names.resize(place + 1, None);
        }
        match &names[place] {
            Some(known) if **known == *name => Arc::clone(known),
            Some(_) | None => {
                let shared: Arc<str> = name.into();
                names[place] = Some(Arc::clone(&shared));
                shared
            }
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
