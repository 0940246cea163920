//! A server from its configuration to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tollgate_engine::fake::Faults;
use tollgate_engine::llama::LoadError;
use tollgate_policy::gateway::{self, Event};
use tollgate_policy::ids::{ModelId, ReplicaId};
use tollgate_policy::tenant::TenantTable;
use tollgate_policy::units::Micros;
use tollgate_policy::usage::Weights;

use crate::app::{App, Bounds, ServedModel};
use crate::books::Books;
use crate::clock::Clock;
use crate::config::{Config, ModelConfig};
use crate::desk::Desk;
use crate::identity::Identity;
use crate::ledger::{Ledger, LedgerError};
use crate::listen::{Closing, Door, accept};
use crate::metrics::Metrics;
use crate::replicas::{self, Blueprint};
use crate::routes::router;
use crate::spawn::Tasks;

/// How long after the drain's bound a client may take to accept the last of what it is told.
const GOODBYE: Duration = Duration::from_millis(500);

/// How long connections may take to close once nothing is in flight any more.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// A server that is running.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    facts: Vec<ModelFacts>,
    desk: Arc<Desk>,
    tasks: Tasks,
    drain: Micros,
    closing: watch::Sender<Closing>,
    stop: watch::Sender<bool>,
    replicas: usize,
}

/// What a person wants to know of a model that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its configured name.
    pub name: String,
    /// What the model calls itself.
    pub description: String,
    /// Prompt and output tokens that one request may use together.
    pub context: u64,
    /// Tokens that fit its KV pool.
    pub kv_tokens: u64,
    /// Bytes of its KV pool.
    pub kv_bytes: u64,
    /// Requests that may run at once.
    pub sequences: u32,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A model can't be loaded.
    #[error("model {model}: {source}")]
    Model {
        /// Its configured name.
        model: String,
        /// What is wrong.
        source: LoadError,
    },
    /// There is nowhere to write the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {source}; is another server there? use --listen")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

impl Server {
    /// Starts a server: loads its models, listens, and has its replicas started.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with_faults(config, Faults::default()).await
    }

    /// The same, with faults planted in every fake engine: for tests of what a failing engine does
    /// to clients.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_with_faults(config: Config, faults: Faults) -> Result<Self, StartError> {
        let blueprints = load(config.models.list(), &faults)?;
        let address = config.listen;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| StartError::Listen { address, source })?;
        let ledger = Ledger::open(&config.data_dir)?;
        let clock = Clock::start();
        let names = config
            .models
            .list()
            .iter()
            .map(|model| model.name.clone())
            .collect();
        let books = Books::new(Metrics::new(), ledger, names, &clock);
        let (desk, starts) = Desk::new(policy_config(&config, &blueprints, &clock), clock, books);
        let facts = facts(config.models.list(), &blueprints);
        let app = Arc::new(app(&config, &blueprints, Arc::clone(&desk)));
        let server = Self {
            address: listener.local_addr().unwrap_or(address),
            facts,
            tasks: Tasks::default(),
            drain: config.server.drain,
            closing: watch::Sender::new(Closing::No),
            stop: watch::Sender::new(false),
            replicas: blueprints.len(),
            desk,
        };
        let supervisor =
            replicas::supervise(Arc::new(blueprints), Arc::downgrade(&server.desk), starts);
        server.run("replicas", supervisor);
        for id in (0..server.replicas).filter_map(|n| u32::try_from(n).ok()) {
            server.desk.start_replica(ReplicaId::new(id));
        }
        let timer = Arc::clone(&server.desk);
        server.run("timer", async move { timer.keep_time().await });
        let door = Door {
            router: router(Arc::clone(&app)),
            app,
            tasks: server.tasks.clone(),
            closing: server.closing.subscribe(),
            places: Arc::new(Semaphore::new(config.server.max_connections)),
        };
        server.run("accept", accept(listener, door));
        Ok(server)
    }

    /// Where it listens: the real port, where port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it serves.
    pub fn models(&self) -> &[ModelFacts] {
        &self.facts
    }

    /// Resolves once every model has a replica that takes work.
    pub async fn ready(&self) {
        self.desk.ready().await;
    }

    /// Ends the server: takes no new work, lets what runs finish within the configured bound, stops
    /// the rest, closes connections, stops the engines, and writes the last line of the ledger.
    pub async fn drain(self) {
        tracing::info!(bound_s = self.drain.secs_up(), "draining");
        self.desk.submit(Event::Drain { bound: self.drain });
        let bound = Duration::from_micros(self.drain.get()) + GOODBYE;
        if tokio::time::timeout(bound, self.desk.drained())
            .await
            .is_err()
        {
            tracing::warn!("some clients did not take the end of their answers; they are cut off");
            self.closing.send_replace(Closing::Now);
            self.desk.drained().await;
        }
        self.close_connections().await;
        let (desk, count) = (Arc::clone(&self.desk), self.replicas);
        let stop = move || {
            replicas::stop_all(&desk, count);
            desk.books().ledger().close();
        };
        if tokio::task::spawn_blocking(stop).await.is_err() {
            tracing::error!("stopping the engines panicked");
        }
        tracing::info!("drained");
    }

    /// Lets connections end by themselves, for a while.
    async fn close_connections(&self) {
        if *self.closing.borrow() == Closing::No {
            self.closing.send_replace(Closing::WhenIdle);
        }
        self.stop.send_replace(true);
        if tokio::time::timeout(CLOSING_TIME, self.tasks.ended())
            .await
            .is_err()
        {
            tracing::warn!("some connections did not close in time; they are cut off");
            self.closing.send_replace(Closing::Now);
            self.tasks.ended().await;
        }
    }

    /// Runs a task that ends with the server.
    fn run(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        self.tasks.spawn_named(name, async move {
            tokio::select! {
                () = task => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
    }
}

fn load(models: &[ModelConfig], faults: &Faults) -> Result<Vec<Blueprint>, StartError> {
    let load = |config: &ModelConfig| {
        Blueprint::load(config, faults).map_err(|source| StartError::Model {
            model: config.name.clone(),
            source,
        })
    };
    models.iter().map(load).collect()
}

/// One replica for each model: both have the same numbers.
fn policy_config(config: &Config, blueprints: &[Blueprint], clock: &Clock) -> gateway::Config {
    let models = config.models.list().iter().zip(blueprints);
    let tenants = &config.tenants;
    gateway::Config {
        tenants: TenantTable::new(tenants.list.clone(), tenants.template.clone()),
        replicas: (0..).map(ModelId::new).take(blueprints.len()).collect(),
        models: models
            .map(|(model, blueprint)| gateway::Model {
                context: blueprint.context(),
                queue_max: model.queue.max_requests,
                max_wait: model.queue.max_wait,
                max_stream: model.max_stream,
            })
            .collect(),
        fairness: config.fairness.policy,
        weights: Weights {
            input: u64::from(config.fairness.input_weight),
            output: u64::from(config.fairness.output_weight),
        },
        seed: clock.unix_secs(),
    }
}

fn app(config: &Config, blueprints: &[Blueprint], desk: Arc<Desk>) -> App {
    let mut models = Vec::new();
    let mut by_name = std::collections::HashMap::new();
    for ((model, blueprint), id) in config.models.list().iter().zip(blueprints).zip(0..) {
        let id = ModelId::new(id);
        for name in std::iter::once(&model.name).chain(&model.aliases) {
            by_name.insert(name.clone(), id);
        }
        models.push(ServedModel {
            id,
            name: model.name.clone(),
            aliases: model.aliases.clone(),
            model: blueprint.model(),
            context: blueprint.context(),
            keepalive: model.keepalive,
        });
    }
    App {
        desk,
        identity: Identity::new(config.identity.clone(), config.tenants.keys.clone()),
        models,
        by_name,
        bounds: Bounds {
            body_max: config.server.max_body,
            body_time: Duration::from_micros(config.server.read_timeout.get()),
        },
        metrics_readers: config.metrics,
    }
}

fn facts(models: &[ModelConfig], blueprints: &[Blueprint]) -> Vec<ModelFacts> {
    let fact = |(config, blueprint): (&ModelConfig, &Blueprint)| {
        let (tokens, bytes) = blueprint.pool();
        ModelFacts {
            name: config.name.clone(),
            description: blueprint.model().name().to_owned(),
            context: blueprint.context().get(),
            kv_tokens: tokens.get(),
            kv_bytes: bytes.get(),
            sequences: config.max_sequences,
        }
    };
    models.iter().zip(blueprints).map(fact).collect()
}
