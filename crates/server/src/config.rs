//! The configuration: YAML text in, one immutable [`Config`] or every mistake in it out.
//!
//! Parsing reads nothing but its arguments: no file, no environment of its own, no network.
//! `config/tree.rs` gives text places, `config/decode.rs` types; one file for each section gives
//! meaning; `config/reference.rs` describes every key for people. Keys of callers leave here as
//! hashes only.

mod admin;
mod decode;
mod expand;
mod fairness;
mod fake;
mod fleet;
mod identity;
mod key;
mod ledger;
mod models;
mod nearest;
mod network;
mod prefixes;
mod problem;
mod quantity;
pub mod reference;
mod remote;
mod replicas;
mod schedule;
mod server;
mod slo;
mod store;
mod stuck;
mod tenants;
mod tree;
mod window;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use self::admin::AdminConfig;
pub use self::fairness::Fairness;
pub use self::fake::FakeConfig;
pub(crate) use self::fleet::PORT;
pub use self::fleet::{CommandConfig, HealthConfig, RoutingConfig};
pub use self::identity::{Anonymous, Identity};
pub use self::key::KeyHash;
pub use self::ledger::{LedgerConfig, OnFailure};
pub use self::models::{EngineConfig, ModelConfig, Models, QueueConfig};
pub use self::network::Network;
pub use self::prefixes::{Published, PublishedForm, PublishedText};
pub use self::problem::Problem;
pub(crate) use self::quantity::thousandths;
pub(crate) use self::remote::Reach;
pub use self::remote::{Address, RemoteConfig, RemoteKind, Secret, Speaks};
pub use self::replicas::ReplicaConfig;
pub use self::schedule::ScheduleConfig;
pub use self::server::{MetricsReaders, ServerConfig};
pub use self::slo::AdmissionConfig;
pub use self::store::{ServerUrl, StoreConfig};
pub use self::stuck::{Stuck, WhenStuck};
pub use self::tenants::{ANONYMOUS, Tenants};

use self::decode::{Cursor, Fields};
use self::expand::Env;
use self::problem::Problems;
use crate::store::PriceRow;

/// Everything that is configured; it never changes, it is replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where files are kept, relative to the working directory.
    pub data_dir: PathBuf,
    /// Where an operator looks in; `None` is nowhere.
    pub admin: Option<AdminConfig>,
    /// Where usage is kept, and who may call beside the tenants here.
    pub store: StoreConfig,
    /// What usage costs.
    pub prices: Vec<PriceRow>,
    /// How what is served is written down.
    pub ledger: LedgerConfig,
    /// What is kept of how requests were judged.
    pub admission: AdmissionConfig,
    /// Bounds of the HTTP server.
    pub server: ServerConfig,
    /// Who may read the metrics.
    pub metrics: MetricsReaders,
    /// Who callers are taken to be.
    pub identity: Identity,
    /// What is served.
    pub models: Models,
    /// Who pays.
    pub tenants: Tenants,
    /// Who is next.
    pub fairness: Fairness,
}

impl Config {
    /// What holds without a configuration: one model, for every caller on this computer.
    ///
    /// Callers without a key are let in and a tenant header is believed, since on loopback both are
    /// the same person.
    pub fn for_laptop(model: ModelConfig) -> Self {
        Self {
            listen: server::LISTEN,
            data_dir: PathBuf::from(server::DATA_DIR),
            admin: None,
            store: StoreConfig::default(),
            prices: Vec::new(),
            ledger: LedgerConfig::default(),
            admission: AdmissionConfig::default(),
            server: ServerConfig::default(),
            metrics: MetricsReaders::default(),
            identity: Identity {
                anonymous: Anonymous::Allow,
                trust_tenant_header: true,
                ..Identity::default()
            },
            models: Models::one(model),
            tenants: Tenants::anonymous_only(),
            fairness: Fairness::default(),
        }
    }
}

/// Reads a configuration; `env` looks environment variables up.
///
/// # Errors
/// Every problem found, at least one, in the order of the file.
pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, Vec<Problem>> {
    let problems = Problems::default();
    let config = read(text, env, &problems);
    let found = problems.into_sorted();
    match config {
        Some(config) if found.is_empty() => Ok(config),
        Some(_) | None => Err(found),
    }
}

/// Reads a configuration; what it gives means nothing once there are problems, `None` comes only
/// with one.
fn read(text: &str, env: Env<'_>, problems: &Problems) -> Option<Config> {
    let mut root = match tree::load(text) {
        Ok(
            Some(tree::Node {
                value: tree::Value::Null,
                ..
            })
            | None,
        ) => tree::Node::empty(),
        Ok(Some(root)) => root,
        Err(problem) => {
            problems.add(problem);
            return None;
        }
    };
    expand::expand(&mut root, "", env, problems);
    Cursor::root(&root, problems).mapping(|fields| read_fields(fields, env))
}

fn read_fields(fields: &mut Fields<'_, '_>, env: Env<'_>) -> Config {
    let listen = fields.optional("listen", |value| server::listen(&value));
    let listen = listen.unwrap_or(server::LISTEN);
    let identity = fields.optional("identity", |value| Identity::read(&value, listen));
    let identity = identity.unwrap_or_default();
    let models = fields
        .optional("models", |value| Models::read(&value))
        .unwrap_or_default();
    let fairness = fields
        .optional("fairness", |value| Fairness::read(&value))
        .unwrap_or_default();
    let tenants = Tenants::read(fields, &models, &identity, env);
    tenants.check_floors(fields, &models, &fairness);
    Config {
        listen,
        data_dir: fields
            .optional("data_dir", |value| server::path(&value))
            .unwrap_or_else(|| PathBuf::from(server::DATA_DIR)),
        admin: fields.optional("admin", |value| admin::read(&value, listen, env)),
        store: fields
            .optional("store", |value| StoreConfig::read(&value))
            .unwrap_or_default(),
        ledger: fields
            .optional("ledger", |value| LedgerConfig::read(&value))
            .unwrap_or_default(),
        admission: fields
            .optional("admission", |value| AdmissionConfig::read(&value))
            .unwrap_or_default(),
        prices: fields
            .optional("prices", |value| store::prices(&value, &models))
            .unwrap_or_default(),
        server: fields
            .optional("server", |value| ServerConfig::read(&value))
            .unwrap_or_default(),
        metrics: fields
            .optional("metrics", |value| MetricsReaders::read(&value))
            .unwrap_or_default(),
        fairness,
        identity,
        models,
        tenants,
    }
}
