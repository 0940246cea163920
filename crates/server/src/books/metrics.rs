//! Counters and histograms of what happened, and gauges of what is, for a scraper.
//!
//! Labels come from closed sets: models from the configuration, reasons from the table of outcomes,
//! tenants up to [`TENANT_LABELS_MAX`] and then `other`. So the number of series is bounded,
//! whoever calls.

mod fleet;
mod ledger;
mod meters;
mod promises;
mod shares;
mod windows;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tollgate_policy::gateway::Record;
use tollgate_policy::ids::{ModelId, TenantId};
use tollgate_policy::slo::Row;
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::Micros;

pub(crate) use self::fleet::EngineSays;
use self::fleet::FleetMetrics;
use self::ledger::LedgerMetrics;
use self::meters::Meters;
use self::promises::PromiseMetrics;
use self::shares::ShareMetrics;
use self::windows::WindowMetrics;
use crate::desk::Desk;

/// Tenants with a label of their own: those of the configuration first, in its order.
const TENANT_LABELS_MAX: u32 = 100;

/// Label of every tenant past the bound.
const OTHER: &str = "other";

/// Label of a request whose tenant or model is not known.
const NONE: &str = "none";

/// Seconds: from 1 ms to about 2 minutes, each bound twice the one before it.
const SECONDS: [f64; 18] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 16.0,
    32.0, 64.0, 128.0,
];

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    meters: Meters,
    itl: Seconds<Promise>,
    /// The same, by number: each stream needs one.
    gaps: meters::Found<(ModelId, &'static str), Histogram>,
    fleet: FleetMetrics,
    service: Family<TenantLabel, Gauge>,
    ledger: LedgerMetrics,
    connections: Gauge,
    in_flight: Gauge,
    pools: PoolMetrics,
    replicas: ReplicaMetrics,
    windows: WindowMetrics,
    shares: ShareMetrics,
    promises: PromiseMetrics,
    reloads: Family<Reload, Counter>,
}

/// Gauges by model.
#[derive(Debug, Default)]
struct PoolMetrics {
    queued: Family<ModelLabel, Gauge>,
    queued_tokens: Family<ModelLabel, Gauge>,
    running: Family<ModelLabel, Gauge>,
}

/// Gauges by replica: its window as the policy fills it, and the engine as it is.
#[derive(Debug, Default)]
struct ReplicaMetrics {
    up: Family<ReplicaLabel, Gauge>,
    window_sequences: Family<ReplicaLabel, Gauge>,
    window_sequences_max: Family<ReplicaLabel, Gauge>,
    window_kv_blocks: Family<ReplicaLabel, Gauge>,
    window_kv_blocks_max: Family<ReplicaLabel, Gauge>,
    engine_sequence_ids: Family<ReplicaLabel, Gauge>,
    engine_cached_blocks: Family<ReplicaLabel, Gauge>,
    engine_prefixes: Family<ReplicaLabel, Gauge>,
    engine_prompt_tokens: Family<ReplicaLabel, Gauge>,
    engine_reused_tokens: Family<ReplicaLabel, Gauge>,
    engine_places_given: Family<ReplicaLabel, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reload {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ending {
    model: String,
    class: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenKind {
    model: String,
    tenant: String,
    kind: &'static str,
}

/// What was promised, and for what: the labels of every latency.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Promise {
    model: String,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReplicaLabel {
    model: String,
    replica: u32,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        let mut metrics = Self {
            registry: Registry::with_prefix("tollgate"),
            meters: Meters::new(seconds),
            itl: Family::new_with_constructor(seconds),
            gaps: meters::Found::default(),
            fleet: FleetMetrics::default(),
            service: Family::default(),
            ledger: LedgerMetrics::default(),
            connections: Gauge::default(),
            in_flight: Gauge::default(),
            pools: PoolMetrics::default(),
            replicas: ReplicaMetrics::default(),
            windows: WindowMetrics::default(),
            shares: ShareMetrics::default(),
            promises: PromiseMetrics::default(),
            reloads: Family::default(),
        };
        metrics.register_endings();
        metrics.register_gauges();
        metrics
    }

    /// Counts how a request ended.
    pub(crate) fn close(
        &self,
        record: &Record,
        tenant: Option<(TenantId, &Tenant)>,
        model: Option<&str>,
    ) {
        self.meters.close(record, tenant, model);
    }

    /// Where the gaps between the tokens of one request are counted.
    pub(crate) fn itl(&self, (id, model): (ModelId, &str), class: &'static str) -> Histogram {
        meters::find(
            &self.gaps,
            (id, class),
            |_| true,
            || {
                self.itl.get_or_create_owned(&Promise {
                    model: model.to_owned(),
                    class,
                })
            },
        )
    }

    /// Where requests are sent, and what engines in other processes say of themselves.
    pub(crate) fn fleet(&self) -> &FleetMetrics {
        &self.fleet
    }

    /// Counts a changed configuration: `applied`, or `refused`.
    pub(crate) fn reloaded(&self, result: &'static str) {
        self.reloads.get_or_create(&Reload { result }).inc();
    }

    /// Counts how a request was judged, and what came of it.
    pub(crate) fn weighed(&self, row: &Row, model: &str) {
        self.promises.weighed(row, model);
    }

    /// What is known of the ledger and the store.
    pub(crate) fn ledger(&self) -> &LedgerMetrics {
        &self.ledger
    }

    pub(crate) fn connections(&self) -> &Gauge {
        &self.connections
    }

    /// Everything as text in the OpenMetrics format, gauges taken now.
    pub(crate) fn render(&self, desk: &Desk) -> String {
        self.take_gauges(desk);
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // Writing to a string does not fail; a metric that can't be encoded would.
            let _ = writeln!(text, "# not encodable");
        }
        text
    }

    fn take_gauges(&self, desk: &Desk) {
        let (gauges, engines) = desk.gauges();
        let books = desk.books();
        self.shares.take(desk);
        self.in_flight.set(signed(gauges.in_flight));
        self.ledger.take(books.journal());
        for (pool, id) in gauges.pools.iter().zip(0..) {
            let model = books.model_name(ModelId::new(id)).to_owned();
            let label = ModelLabel { model };
            self.pools
                .queued
                .get_or_create(&label)
                .set(signed(pool.queued));
            self.pools
                .queued_tokens
                .get_or_create(&label)
                .set(signed(pool.queued_work.get()));
            self.pools
                .running
                .get_or_create(&label)
                .set(i64::from(pool.running));
        }
        for ((replica, engine), id) in gauges.replicas.iter().zip(&engines).zip(0..) {
            let model = books.model_name(replica.model).to_owned();
            let label = ReplicaLabel { model, replica: id };
            let set = |family: &Family<ReplicaLabel, Gauge>, value: i64| {
                family.get_or_create(&label).set(value);
            };
            let (ours, window) = (&self.replicas, replica.window);
            set(&ours.up, i64::from(replica.healthy));
            set(&ours.window_sequences, i64::from(window.sequences()));
            set(&ours.window_sequences_max, i64::from(window.limit()));
            set(&ours.window_kv_blocks, signed(window.kv().get()));
            set(
                &ours.window_kv_blocks_max,
                signed(window.capacity().kv.get()),
            );
            self.windows.take(&label, replica);
            // Of those in other processes, whoever asks them says it.
            let Some(engine) = engine else { continue };
            let engine = engine.held;
            let says = EngineSays {
                running: Some(signed(engine.running)),
                waiting: Some(signed(engine.waiting)),
                kv_blocks: Some(signed(engine.blocks_held.get())),
            };
            self.fleet.said(&label, says);
            set(&ours.engine_sequence_ids, signed(engine.sequences));
            set(&ours.engine_cached_blocks, signed(engine.blocks_idle.get()));
            set(&ours.engine_prefixes, signed(engine.prefixes));
            let totals = engine.totals;
            set(&ours.engine_prompt_tokens, signed(totals.prompt.get()));
            set(&ours.engine_reused_tokens, signed(totals.reused.get()));
            set(&ours.engine_places_given, signed(totals.places_given));
        }
        self.take_service(desk);
        self.take_promises(desk);
    }

    fn take_promises(&self, desk: &Desk) {
        let books = desk.books();
        self.promises.take_lost(books.promises().lost());
        for (view, id) in desk.promises().iter().zip(0..) {
            if let Some(view) = view {
                let model = books.model_name(ModelId::new(id));
                self.promises.take(view, model);
            }
        }
    }

    /// Tenants without a label of their own are summed up.
    fn take_service(&self, desk: &Desk) {
        let mut sums = BTreeMap::new();
        for ((name, service), id) in desk.attained().into_iter().zip(0..) {
            let tenant = tenant_label(TenantId::new(id), &name);
            *sums.entry(tenant).or_insert(0_u64) += service.get();
        }
        for (tenant, service) in sums.into_iter().filter(|(_, service)| *service > 0) {
            let label = TenantLabel { tenant };
            self.service.get_or_create(&label).set(signed(service));
        }
    }

    fn register_endings(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Requests that ended, by the reason of their outcome",
            self.meters.requests.clone(),
        );
        registry.register(
            "tokens",
            "Tokens used, by kind and tenant",
            self.meters.tokens.clone(),
        );
        let latencies = [
            (
                "time_to_first_token",
                "Received to first token written to the client",
                &self.meters.ttft,
            ),
            (
                "time_per_output_token",
                "Mean time between a request's tokens",
                &self.meters.tpot,
            ),
            (
                "inter_token_latency",
                "Each gap between two tokens",
                &self.itl,
            ),
            (
                "request_duration",
                "Received to last byte",
                &self.meters.e2e,
            ),
            ("queue_time", "Received to dispatched", &self.meters.queue),
        ];
        for (name, help, family) in latencies {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        }
        registry.register_with_unit(
            "tenant_time_to_first_token",
            "Received to first token written to the client, by tenant",
            Unit::Seconds,
            self.meters.tenant_ttft.clone(),
        );
        for result in ["applied", "refused"] {
            drop(self.reloads.get_or_create(&Reload { result }));
        }
        let reloads = "Changed configurations, by what became of them";
        registry.register("config_reloads", reloads, self.reloads.clone());
    }

    fn register_gauges(&mut self) {
        let registry = &mut self.registry;
        self.fleet.register(registry);
        self.windows.register(registry);
        self.shares.register(registry);
        self.promises.register(registry);
        let service = "Weighted tokens served since the start, before division by weight";
        registry.register("tenant_attained_service", service, self.service.clone());
        self.ledger.register(registry);
        registry.register(
            "connections",
            "Client connections",
            self.connections.clone(),
        );
        let in_flight = "Requests queued or running";
        registry.register("in_flight_requests", in_flight, self.in_flight.clone());
        let pools = &self.pools;
        registry.register("queue_requests", "Requests that wait", pools.queued.clone());
        let queued = "Prompt and estimated output tokens that wait";
        registry.register("queue_tokens", queued, pools.queued_tokens.clone());
        registry.register(
            "running_requests",
            "Requests that run",
            pools.running.clone(),
        );
        self.register_replica_gauges();
        self.register_engine_gauges();
    }

    fn register_replica_gauges(&mut self) {
        let ours = &self.replicas;
        let by_replica = [
            ("replica_up", "Whether the replica takes work", &ours.up),
            (
                "window_sequences",
                "Sequences dispatched",
                &ours.window_sequences,
            ),
            (
                "window_sequences_limit",
                "Sequences it may hold",
                &ours.window_sequences_max,
            ),
            (
                "window_kv_blocks",
                "KV blocks reserved",
                &ours.window_kv_blocks,
            ),
            (
                "window_kv_blocks_limit",
                "KV blocks it may hold",
                &ours.window_kv_blocks_max,
            ),
        ];
        for (name, help, family) in by_replica {
            self.registry.register(name, help, family.clone());
        }
    }

    fn register_engine_gauges(&mut self) {
        let ours = &self.replicas;
        let by_replica = [
            (
                "engine_sequence_ids",
                "Sequence ids in use",
                &ours.engine_sequence_ids,
            ),
            (
                "engine_kv_blocks_cached",
                "KV blocks that hold prefixes nobody uses now",
                &ours.engine_cached_blocks,
            ),
            (
                "engine_cached_prefixes",
                "Prefixes whose KV is kept",
                &ours.engine_prefixes,
            ),
            (
                "engine_prompt_tokens",
                "Prompt tokens of requests started since the replica came up",
                &ours.engine_prompt_tokens,
            ),
            (
                "engine_reused_prompt_tokens",
                "Those of them whose KV was reused: divided by all, the hit rate",
                &ours.engine_reused_tokens,
            ),
            (
                "engine_places_given",
                "Places given to tenants that were served less since the replica came up",
                &ours.engine_places_given,
            ),
        ];
        for (name, help, family) in by_replica {
            self.registry.register(name, help, family.clone());
        }
    }
}

fn tenant_label(id: TenantId, name: &str) -> String {
    if id.get() < TENANT_LABELS_MAX {
        name.to_owned()
    } else {
        OTHER.to_owned()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a report, not a charge: 2^53 us are 285 years"
)]
fn secs(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a report, not a charge: wrong in the 16th digit at most"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

pub(crate) fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}
