//! A server from its configuration to its end.

pub(crate) mod opened;
pub(crate) mod plans;
pub(crate) mod reload;
pub(crate) mod salt;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore, watch};
use tollgate_engine::fake::Faults;
use tollgate_engine::llama::LoadError;
use tollgate_policy::gateway::Event;
use tollgate_policy::ids::{ModelId, ReplicaId};
use tollgate_policy::units::Micros;

use self::opened::{first_tariff, no_thread, open_journal, open_store};
use self::plans::{facts, load, policy_config, weights};
use self::reload::ConfigFile;
use crate::admin;
use crate::answer::idempotent::Answers;
use crate::app::{App, Bounds, Callers, EngineModel, Made, ServedModel};
use crate::books::Books;
use crate::books::metrics::Metrics;
use crate::books::writable;
use crate::clock::Clock;
use crate::config::{Config, EngineConfig, ModelConfig};
use crate::desk::past;
use crate::desk::{Desk, ReplicaTask};
use crate::door::body_room::BodyRoom;
use crate::door::listen::{Closing, Door, ForWhom, accept, bind};
use crate::door::routes::router;
use crate::journal::JournalError;
use crate::members::identity::{Identity, KeyRing, Keys};
use crate::members::membership::Membership;
use crate::prepare::repeats::Repeats;
use crate::prepare::{COUNTED_INLINE, PARSED_INLINE};
use crate::replicas::roster::{self, Maker, Roster};
use crate::replicas::{self, Fleet, Plan};
use crate::spawn::{Tasks, UntilStop};
use crate::store::clerk::{Clerk, SharedStore};
use crate::store::counting::Counting;
use crate::store::{Store, StoreError};

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
    /// Prompt and output tokens that one request may use together, where that is known.
    pub context: Option<u64>,
    /// Engines that serve it.
    pub replicas: usize,
    /// Tokens that fit the KV pool of each, for engines in this process.
    pub kv_tokens: Option<u64>,
    /// Bytes of the KV pool of each, likewise.
    pub kv_bytes: Option<u64>,
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
    /// A model has no engine that this program could build.
    #[error("model {model} has no engine; give it replicas")]
    Nothing {
        /// Its configured name.
        model: String,
    },
    /// An engine that is to be started has no port.
    #[error("model {model}: there is no free port for an engine: {source}")]
    Port {
        /// Its configured name.
        model: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// There is nobody to trust.
    #[error("model {model}: upstream.ca: {source}; name a PEM file with certificates")]
    Trust {
        /// Its configured name.
        model: String,
        /// What is wrong.
        source: std::io::Error,
    },
    /// What keeps tenants' prefixes apart can't be kept.
    #[error("can't keep the secret of cache salts in {path}: {source}; make data_dir writable")]
    Salt {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
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
    #[error(
        "can't listen on {address}: {source}; {} use --listen",
        taken_or_forbidden(source)
    )]
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

/// What may be the matter with an address.
fn taken_or_forbidden(error: &std::io::Error) -> &'static str {
    match error.kind() == std::io::ErrorKind::PermissionDenied {
        true => "ports below 1024 take a privilege;",
        false => "is another server there?",
    }
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
        let salt_key = salt::key(&config)?;
        let maker = Maker::new(&config.data_dir);
        let plans = load(config.models.list(), &faults, salt_key, &maker)?;
        let address = config.listen;
        let listener = bind(address).map_err(|source| StartError::Listen { address, source })?;
        let admin = bind_admin(config.admin.as_ref().map(|admin| admin.listen))?;
        let clock = Clock::start();
        let (journal, left) = open_journal(&config, clock)?;
        let opened = open_store(&config).await?;
        let names = config
            .models
            .list()
            .iter()
            .map(|model| model.name.clone())
            .collect();
        let books = Books::new(Metrics::new(), journal, names);
        let policy = policy_config(&config, &plans, &clock);
        let models: Vec<_> = policy.replicas.iter().map(|one| one.model).collect();
        let (desk, orders) = Desk::new(policy, clock, books);
        let (tasks, stop) = (Tasks::default(), watch::Sender::new(false));
        let until_stop = UntilStop {
            tasks: tasks.clone(),
            stop: stop.subscribe(),
        };
        let listed = config.models.list();
        let members = plans.iter().map(Plan::member).collect();
        let roster = Arc::new(Roster::new(&desk, until_stop, (members, maker), listed));
        let config = Arc::new(config);
        let (clerk, ear) = Clerk::new();
        let [own, count, store] = opened.stores;
        let parts = Parts {
            desk: Arc::clone(&desk),
            roster: Arc::clone(&roster),
            clerk,
            store,
            tasks: tasks.clone(),
        };
        let app = Arc::new(app(&config, &plans, parts));
        app.membership.enlist(&app, opened.directory);
        past::remember(&desk, &left.recent, weights(&config.fairness));
        let own = first_tariff(own, &app, &config.data_dir).await?;
        let begun = app.clerk.begin(ear, own, left.recent, &app);
        let begun = begun.and_then(|()| app.counting.begin(count, opened.folding, &app));
        let promises = desk.books().promises();
        let begun = begun.and_then(|()| promises.begin(&desk, &config));
        begun.map_err(|source| no_thread(&source))?;
        let server = Self {
            address: listener.local_addr().unwrap_or(address),
            admin: admin.as_ref().and_then(|admin| admin.local_addr().ok()),
            facts: facts(config.models.list(), &plans),
            app,
            tasks,
            drain: config.server.drain,
            closing: watch::Sender::new(Closing::No),
            stop,
            replicas: models.len(),
            reload: Arc::new(Notify::new()),
            config,
            desk,
        };
        server.begin(plans, models, roster, orders);
        server.open_doors(listener, admin);
        Ok(server)
    }

    /// Keeps time, and lets callers in.
    fn open_doors(&self, listener: TcpListener, admin: Option<TcpListener>) {
        let timer = Arc::clone(&self.desk);
        self.run("timer", async move { timer.keep_time().await });
        let keeper = writable::keep(Arc::clone(&self.desk), self.config.ledger.on_failure);
        self.run("ledger", keeper);
        let places = self.config.server.max_connections;
        let callers = router(Arc::clone(&self.app));
        let door = self.door(callers, ForWhom::Callers, places);
        self.run("accept", accept(listener, door));
        if let Some(listener) = admin {
            let router = admin::router(Arc::clone(&self.app));
            let door = self.door(router, ForWhom::Operators, admin::CONNECTIONS_MAX);
            self.run("accept-admin", accept(listener, door));
        }
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
            app.counting.stop();
            app.clerk.stop();
            desk.books().promises().stop();
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
        self.app.roster.end();
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

    /// Looks after the replicas, and has those started that are there from the start.
    fn begin(
        &self,
        plans: Vec<Plan>,
        models: Vec<ModelId>,
        roster: Arc<Roster>,
        orders: UnboundedReceiver<ReplicaTask>,
    ) {
        roster.begin();
        let when_asked = |model: ModelId| {
            let place = usize::try_from(model.get()).unwrap_or(usize::MAX);
            let config = self.config.models.list().get(place);
            config.is_some_and(|config| config.loading.is_some())
        };
        let at_once: Vec<_> = (0..)
            .zip(&models)
            .filter(|(_, model)| !when_asked(**model))
            .collect();
        for (id, _) in at_once {
            self.desk.start_replica(ReplicaId::new(id));
        }
        let fleet = Arc::new(Fleet::new(plans, models));
        let desk = Arc::downgrade(&self.desk);
        let watchdog = replicas::watch(Arc::clone(&fleet), desk.clone());
        self.run("watchdog", watchdog);
        let here = move |task| replicas::carry_out(&fleet, &desk, task);
        self.run("replicas", roster::supervise(roster, orders, here));
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
    fn door(&self, router: axum::Router, for_whom: ForWhom, places: usize) -> Door {
        Door {
            router,
            for_whom,
            app: Arc::clone(&self.app),
            tasks: self.tasks.clone(),
            closing: self.closing.subscribe(),
            places: Arc::new(Semaphore::new(places)),
        }
    }
}

fn bind_admin(address: Option<SocketAddr>) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else {
        return Ok(None);
    };
    bind(address)
        .map(Some)
        .map_err(|source| StartError::Admin { address, source })
}

/// What of an [`App`] is made before it.
struct Parts {
    desk: Arc<Desk>,
    roster: Arc<Roster>,
    clerk: Clerk,
    store: Store,
    tasks: Tasks,
}

fn app(config: &Arc<Config>, plans: &[Plan], parts: Parts) -> App {
    let Parts {
        desk,
        roster,
        clerk,
        store,
        tasks,
    } = parts;
    let replays = SharedStore::new(Store::at(store.location().clone()));
    let mut models = Vec::new();
    let mut by_name = std::collections::HashMap::new();
    for ((model, plan), id) in config.models.list().iter().zip(plans).zip(0..) {
        let id = ModelId::new(id);
        for name in std::iter::once(&model.name).chain(&model.aliases) {
            by_name.insert(name.clone(), id);
        }
        let (context, made) = match plan {
            Plan::Built(blueprint) => {
                let engine = EngineModel {
                    model: blueprint.model(),
                    context: blueprint.context(),
                    grammars: model.grammars,
                };
                (Some(engine.context), Made::Here(engine))
            }
            Plan::Remote(member) => {
                let model = &member.model;
                (model.context, Made::Elsewhere(Arc::clone(model)))
            }
        };
        models.push(ServedModel {
            id,
            name: model.name.clone(),
            aliases: model.aliases.clone(),
            context,
            keepalive: model.keepalive,
            made,
        });
    }
    App {
        // Nobody, until the membership says who.
        callers: RwLock::new(Arc::new(Callers {
            identity: Identity::new(config.identity.clone(), KeyRing::default(), Keys::All),
            metrics_readers: config.metrics,
        })),
        membership: Membership::new(Arc::clone(config)),
        clerk,
        counting: Counting::new(),
        store: SharedStore::new(store),
        answers: Answers::default(),
        replays,
        tasks,
        admins: config
            .admin
            .as_ref()
            .map_or_else(BTreeMap::new, |admin| admin.keys.clone()),
        repeats: Repeats::default(),
        policy: config.fairness.policy.label(),
        roster,
        desk,
        relays: plans.iter().any(|plan| matches!(plan, Plan::Remote(_))),
        models,
        by_name,
        bounds: Bounds {
            body_max: config.server.max_body,
            room: BodyRoom::new(config.server.body_room()),
            inline_max: inline_max(config),
            read_time: Duration::from_micros(config.server.read_timeout.get()),
        },
    }
}

/// Bytes of a body that is read into an order by the thread that received it.
fn inline_max(config: &Config) -> usize {
    let counts = |model: &ModelConfig| match &model.engine {
        EngineConfig::Remote(remote) => remote.tokenizer.is_some(),
        EngineConfig::Embedded { .. } | EngineConfig::Fake(_) => false,
    };
    match config.models.list().iter().any(counts) {
        true => COUNTED_INLINE,
        false => PARSED_INLINE,
    }
}
