//! A server from its configuration to its end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tollgate_engine::fake::Faults;
use tollgate_engine::llama::LoadError;
use tollgate_policy::gateway::{self, Event};
use tollgate_policy::ids::{ModelId, ReplicaId};
use tollgate_policy::tenant::TenantTable;
use tollgate_policy::units::Micros;
use tollgate_policy::usage::Weights;
use tollgate_policy::window;

use crate::admin;
use crate::app::{App, Bounds, Callers, ServedModel};
use crate::books::Books;
use crate::clerk::{self, Clerk, SharedStore};
use crate::clock::Clock;
use crate::config::{Config, Fairness, ModelConfig, ReplicaConfig};
use crate::desk::Desk;
use crate::folding::{FoldError, Folding};
use crate::idempotent::Answers;
use crate::identity::{Identity, KeyRing};
use crate::journal::{Journal, JournalError, Left};
use crate::writable;
use crate::listen::{Closing, Door, accept};
use crate::metrics::Metrics;
use crate::past;
use crate::reload::{self, ConfigFile};
use crate::repeats::Repeats;
use crate::replicas::{self, Blueprint, Fleet};
use crate::membership::{self, Membership};
use crate::routes::router;
use crate::spawn::Tasks;
use crate::store::{Directory, Store, StoreError};

/// How long after the drain's bound a client may take to accept the last of what it is told.
const GOODBYE: Duration = Duration::from_millis(500);

/// How long connections may take to close once nothing is in flight any more.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// A server that is running.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    facts: Vec<ModelFacts>,
    config: Arc<Config>,
    app: Arc<App>,
    desk: Arc<Desk>,
    tasks: Tasks,
    drain: Micros,
    closing: watch::Sender<Closing>,
    stop: watch::Sender<bool>,
    replicas: usize,
    /// The configuration is to be read again.
    reload: Arc<Notify>,
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
    /// Engines that serve it.
    pub replicas: usize,
    /// Tokens that fit the KV pool of each.
    pub kv_tokens: u64,
    /// Bytes of the KV pool of each.
    pub kv_bytes: u64,
    /// Requests that may run at once on each.
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
    /// The ledger can't be written, or not gone on with.
    #[error(transparent)]
    Ledger(#[from] JournalError),
    /// There is nowhere to keep what was served.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Tenants are in the configuration and in the store.
    #[error(
        "in the configuration and in the store: {}; rename them in one, or remove them with \
         `tollgate tenants remove`",
        .0.join(", ")
    )]
    Overlap(Vec<String>),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {source}; is another server there? use --listen")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The operator's address can't be listened on.
    #[error("can't listen on {address}: {source}; change admin.listen")]
    Admin {
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
        let admin = bind_admin(config.admin.as_ref().map(|admin| admin.listen)).await?;
        let clock = Clock::start();
        let (journal, left) = open_journal(&config, clock)?;
        let (folding, stores, directory) = open_store(&config).await?;
        let names = config
            .models
            .list()
            .iter()
            .map(|model| model.name.clone())
            .collect();
        let books = Books::new(Metrics::new(), journal, names);
        let policy = policy_config(&config, &blueprints, &clock);
        let models: Vec<_> = policy.replicas.iter().map(|one| one.model).collect();
        let (desk, starts) = Desk::new(policy, clock, books);
        let config = Arc::new(config);
        let (clerk, ear) = Clerk::new();
        let [own, shared] = stores;
        let app = app(&config, &blueprints, Arc::clone(&desk), (clerk, shared));
        let app = Arc::new(app);
        app.membership.enlist(&app, directory);
        past::remember(&desk, &left.recent, weights(&config.fairness));
        let own = first_tariff(own, &app).await?;
        app.clerk
            .begin(ear, own, folding, &app)
            .map_err(|source| no_thread(&source))?;
        let server = Self {
            address: listener.local_addr().unwrap_or(address),
            admin: admin.as_ref().and_then(|admin| admin.local_addr().ok()),
            facts: facts(config.models.list(), &blueprints),
            tasks: app.tasks.clone(),
            app,
            drain: config.server.drain,
            closing: watch::Sender::new(Closing::No),
            stop: watch::Sender::new(false),
            replicas: models.len(),
            reload: Arc::new(Notify::new()),
            config,
            desk,
        };
        let fleet = Arc::new(Fleet::new(blueprints, models));
        let supervisor = replicas::supervise(fleet, Arc::downgrade(&server.desk), starts);
        server.run("replicas", supervisor);
        for id in (0..server.replicas).filter_map(|n| u32::try_from(n).ok()) {
            server.desk.start_replica(ReplicaId::new(id));
        }
        let timer = Arc::clone(&server.desk);
        server.run("timer", async move { timer.keep_time().await });
        let keeper = writable::keep(Arc::clone(&server.desk), server.config.ledger.on_failure);
        server.run("ledger", keeper);
        let places = server.config.server.max_connections;
        let door = server.door(router(Arc::clone(&server.app)), places);
        server.run("accept", accept(listener, door));
        if let Some(listener) = admin {
            let router = admin::router(Arc::clone(&server.app));
            let door = server.door(router, admin::CONNECTIONS_MAX);
            server.run("accept-admin", accept(listener, door));
        }
        Ok(server)
    }

    /// Takes on each change of the file that this server's configuration came from, and what it
    /// says whenever [`Server::reload`] asks for that.
    pub fn follow(&self, file: ConfigFile) {
        let (config, app) = (Arc::clone(&self.config), Arc::clone(&self.app));
        let task = reload::follow(file, config, app, Arc::clone(&self.reload));
        self.run("config", task);
    }

    /// Has the file that is followed read again, changed or not; without one it does nothing.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Where an operator may look into the queue, if anywhere: the real port.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
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
            if tokio::time::timeout(CLOSING_TIME, self.desk.drained())
                .await
                .is_err()
            {
                tracing::error!("an engine does not stop; its requests end unrecorded");
            }
        }
        self.close_connections().await;
        let (desk, count) = (Arc::clone(&self.desk), self.replicas);
        let app = Arc::clone(&self.app);
        let stop = move || {
            // First: what has been recorded is on disk, also where an engine does not stop.
            desk.books().journal().close();
            app.clerk.stop();
            replicas::stop_all(&desk, count);
        };
        // An engine that is stuck inside a step hears nothing; the process ends over its head.
        match tokio::time::timeout(CLOSING_TIME, tokio::task::spawn_blocking(stop)).await {
            Ok(Ok(())) => tracing::info!("drained"),
            Ok(Err(_)) => tracing::error!("stopping the engines panicked"),
            Err(_) => tracing::error!("an engine did not stop in time"),
        }
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

    /// What every connection of one listener needs.
    fn door(&self, router: axum::Router, places: usize) -> Door {
        Door {
            router,
            app: Arc::clone(&self.app),
            tasks: self.tasks.clone(),
            closing: self.closing.subscribe(),
            places: Arc::new(Semaphore::new(places)),
        }
    }
}

/// Opens the ledger's journal, and says what a process before this one left in flight.
fn open_journal(config: &Config, clock: Clock) -> Result<(Journal, Left), JournalError> {
    let (journal, left) = Journal::open(&config.data_dir, config.ledger.settings(), clock)?;
    if left.interrupted > 0 {
        tracing::warn!(
            target: "tollgate::ledger",
            interrupted = left.interrupted,
            "the process before this one died; what it had in flight is charged what its last \
             marks prove"
        );
    }
    Ok((journal, left))
}

async fn bind_admin(address: Option<SocketAddr>) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let bound = TcpListener::bind(address).await;
    bound
        .map(Some)
        .map_err(|source| StartError::Admin { address, source })
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

fn policy_config(config: &Config, blueprints: &[Blueprint], clock: &Clock) -> gateway::Config {
    let models = config.models.list().iter().zip(blueprints);
    let replicas = (0..).zip(config.models.list()).flat_map(|(id, model)| {
        let replica = move |replica: &ReplicaConfig| gateway::ReplicaConfig {
            model: ModelId::new(id),
            only: replica.only,
        };
        model.replicas.iter().map(replica)
    });
    let tenants = &config.tenants;
    gateway::Config {
        tenants: TenantTable::new(tenants.list.clone(), tenants.template.clone()),
        replicas: replicas.collect(),
        models: models
            .map(|(model, blueprint)| gateway::Model {
                context: blueprint.context(),
                queue_max: model.queue.max_requests,
                max_wait: model.queue.max_wait,
                max_stream: model.max_stream,
                kv_per_token: blueprint.kv_per_token(),
                target: model.target,
                window: window::Bounds {
                    paced: model.schedule.paced,
                    ..model.window
                },
            })
            .collect(),
        fairness: config.fairness.policy,
        weights: weights(&config.fairness),
        seed: clock.unix_secs(),
    }
}

/// What a token of service counts.
pub(crate) fn weights(fairness: &Fairness) -> Weights {
    Weights {
        input: u64::from(fairness.input_weight),
        output: u64::from(fairness.output_weight),
        cached_percent: u64::from(fairness.cached_weight),
    }
}

/// Opens the store, twice: for the clerk and for handlers; and counts what was served before.
async fn open_store(config: &Config) -> Result<(Folding, [Store; 2], Directory), StartError> {
    let location = config.store.location(&config.data_dir);
    let mut folding = Folding::of(&config.data_dir);
    let prices = config.prices.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut store = Store::open(location.clone())?;
        let directory = store.directory()?;
        store.set_prices(&prices)?;
        folding.catch_up(&mut store)?;
        Ok::<_, FoldError>((folding, [store, Store::at(location)], directory))
    });
    let opened = match opened.await {
        Ok(opened) => opened?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let overlap = membership::overlap(config, &opened.2);
    if !overlap.is_empty() {
        let names = overlap.into_iter().map(str::to_owned);
        return Err(StartError::Overlap(names.collect()));
    }
    Ok(opened)
}

impl From<FoldError> for StartError {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::Journal(error) => Self::Ledger(error),
            FoldError::Store(error) => Self::Store(error),
        }
    }
}

/// Has the policy know what was spent before the first request comes.
async fn first_tariff(mut store: Store, app: &Arc<App>) -> Result<Store, StartError> {
    let of = Arc::clone(app);
    let read = tokio::task::spawn_blocking(move || {
        let tariff = clerk::tariff(&mut store, &of)?;
        Ok::<_, StoreError>((store, tariff))
    });
    let (store, tariff) = match read.await {
        Ok(read) => read?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    app.desk.submit(Event::Priced(Box::new(tariff)));
    Ok(store)
}

fn no_thread(source: &std::io::Error) -> StartError {
    StartError::Store(StoreError::Down {
        at: "the store".to_owned(),
        why: format!("the system starts no thread: {source}"),
    })
}

fn app(
    config: &Arc<Config>,
    blueprints: &[Blueprint],
    desk: Arc<Desk>,
    (clerk, store): (Clerk, Store),
) -> App {
    let replays = SharedStore::new(Store::at(store.location().clone()));
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
            grammars: model.grammars,
        });
    }
    App {
        // Nobody, until the membership says who.
        callers: RwLock::new(Arc::new(Callers {
            identity: Identity::new(config.identity.clone(), KeyRing::default()),
            metrics_readers: config.metrics,
        })),
        membership: Membership::new(Arc::clone(config)),
        clerk,
        store: SharedStore::new(store),
        answers: Answers::default(),
        replays,
        tasks: Tasks::default(),
        admins: config
            .admin
            .as_ref()
            .map_or_else(BTreeMap::new, |admin| admin.keys.clone()),
        repeats: Repeats::default(),
        policy: config.fairness.policy.label(),
        desk,
        models,
        by_name,
        bounds: Bounds {
            body_max: config.server.max_body,
            body_time: Duration::from_micros(config.server.read_timeout.get()),
        },
    }
}

fn facts(models: &[ModelConfig], blueprints: &[Blueprint]) -> Vec<ModelFacts> {
    let fact = |(config, blueprint): (&ModelConfig, &Blueprint)| {
        let (tokens, bytes) = blueprint.pool();
        ModelFacts {
            name: config.name.clone(),
            description: blueprint.model().name().to_owned(),
            context: blueprint.context().get(),
            replicas: config.replicas.len(),
            kv_tokens: tokens.get(),
            kv_bytes: bytes.get(),
            sequences: config.max_sequences,
        }
    };
    models.iter().zip(blueprints).map(fact).collect()
}
