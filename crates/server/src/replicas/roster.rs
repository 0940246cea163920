//! The replicas in other processes: made from the configuration, added and let go of while the
//! server runs.
//!
//! Which of them gets work, and when one that is to go has nothing left, the policy says.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tollgate_policy::gateway::{self, Event};
use tollgate_policy::ids::{ModelId, ReplicaId};
use tollgate_policy::units::Tokens;

use crate::config::{Address, CommandConfig, HealthConfig, ModelConfig, PORT, ReplicaConfig};
use crate::desk::{Desk, ReplicaTask};
use crate::replicas::process::Recipe;
use crate::spawn::UntilStop;
use crate::upstream::life::{Care, Hosting};
use crate::upstream::pool::{Aside, Pool};
use crate::upstream::{RemoteModel, Upstream, io, probe};

/// Replicas of all models at once, those that were added while the server runs included.
pub(crate) const REPLICAS_MAX: usize = 4_096;

/// All of them.
#[derive(Debug)]
pub(crate) struct Roster {
    desk: Weak<Desk>,
    tasks: UntilStop,
    /// By [`ModelId`]; nothing for a model of this process.
    models: Vec<Option<Member>>,
    maker: Maker,
    /// What the configuration last said of each model's replicas.
    configured: Mutex<Vec<Vec<ReplicaConfig>>>,
}

/// One model and what all its replicas have in common.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) model: Arc<RemoteModel>,
    pub(crate) limits: probe::Limits,
    pub(crate) health: HealthConfig,
}

/// Why there is no such replica to add.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdded {
    /// The model is made in this process.
    #[error("the engines of this model run in this process; add to `replicas` and restart")]
    Here,
    /// There are too many.
    #[error("there are {REPLICAS_MAX} replicas already; remove one first")]
    TooMany,
    /// There is one at this address.
    #[error("replica {0} of this model has this address already")]
    Twice(u32),
    /// There is no port to be had for it.
    #[error("no free port: {0}")]
    Port(std::io::Error),
}

impl Member {
    /// The model of a configuration, with its replicas, of which the first has the id `first`.
    ///
    /// # Errors
    /// There is no port for an engine that is to be started.
    pub(crate) fn new(
        config: &ModelConfig,
        model: RemoteModel,
        maker: &Maker,
        first: u32,
    ) -> std::io::Result<Self> {
        for (replica, id) in config.replicas.iter().zip(first..) {
            let made = maker.make(ReplicaId::new(id), &model, replica)?;
            made.into_iter().for_each(|upstream| model.admit(upstream));
        }
        Ok(Self {
            model: Arc::new(model),
            limits: probe::Limits {
                sequences: config.max_sequences,
                kv: config.kv_tokens.map(Tokens::blocks),
            },
            health: config.health,
        })
    }
}

/// Makes replicas: where their logs go, and which devices are loading.
#[derive(Debug)]
pub(crate) struct Maker {
    folder: PathBuf,
    devices: Mutex<BTreeMap<u32, Arc<Semaphore>>>,
}

impl Maker {
    /// One that keeps logs in a folder of `data_dir`.
    pub(crate) fn new(data_dir: &std::path::Path) -> Self {
        Self {
            folder: data_dir.join("engines"),
            devices: Mutex::default(),
        }
    }

    /// One replica, as it is configured.
    ///
    /// # Errors
    /// There is no port for an engine that is to be started.
    pub(crate) fn make(
        &self,
        id: ReplicaId,
        model: &RemoteModel,
        config: &ReplicaConfig,
    ) -> Result<Option<Arc<Upstream>>, std::io::Error> {
        let (address, hosting) = match (&config.url, &config.command) {
            (Some(url), _) => (Some(url.clone()), None),
            (None, Some(command)) => {
                let port = free_port()?;
                let hosting = self.hosting((id, port), model, command);
                let address = Address::parse(&format!("http://127.0.0.1:{port}"));
                (address, Some(hosting))
            }
            (None, None) => (None, None),
        };
        let Some(address) = address else {
            return Ok(None);
        };
        let config = &model.config;
        let tls = address
            .is_tls()
            .then(|| io::trust(config.ca.as_deref(), config.speaks));
        let pool = Pool::new(address, (config.connect, config.speaks), tls.transpose()?);
        Ok(Some({
            Arc::new(Upstream {
                id,
                pool,
                aside: Aside::default(),
                start: Notify::new(),
                stop: Notify::new(),
                gone: CancellationToken::new(),
                hosting,
            })
        }))
    }

    fn hosting(
        &self,
        (id, port): (ReplicaId, u16),
        model: &RemoteModel,
        command: &CommandConfig,
    ) -> Hosting {
        let fill = |word: &String| word.replace(PORT, &port.to_string());
        let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name: String = model.name.chars().map(legal).collect();
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let device = devices.entry(command.device);
        Hosting {
            recipe: Recipe {
                command: command.words.iter().map(fill).collect(),
                log: self.folder.join(format!("{name}-{id}.log")),
            },
            command: command.clone(),
            device: Arc::clone(device.or_insert_with(|| Arc::new(Semaphore::new(1)))),
            start_timeout: Duration::from_micros(command.start_timeout.get()),
        }
    }
}

/// A port that nobody listens on. It may be taken before the engine has it; then the engine ends,
/// and is started again.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Roster {
    /// The replicas of `models`, each by its [`ModelId`].
    pub(crate) fn new(
        desk: &Arc<Desk>,
        tasks: UntilStop,
        (models, maker): (Vec<Option<Member>>, Maker),
        configured: &[ModelConfig],
    ) -> Self {
        let configured = configured
            .iter()
            .map(|model| model.replicas.clone())
            .collect();
        Self {
            desk: Arc::downgrade(desk),
            tasks,
            models,
            maker,
            configured: Mutex::new(configured),
        }
    }

    /// Looks after every replica that there is.
    pub(crate) fn begin(&self) {
        for member in self.models.iter().flatten() {
            for upstream in member.model.replicas() {
                self.look_after(member, upstream);
            }
        }
    }

    fn look_after(&self, member: &Member, upstream: Arc<Upstream>) {
        let care = Care {
            model: Arc::clone(&member.model),
            upstream: Arc::clone(&upstream),
            limits: member.limits,
            health: member.health,
            desk: self.desk.clone(),
        };
        // Not one that is cut off when the server stops: it may have an engine to stop.
        let tasks = &self.tasks.tasks;
        tasks.spawn_named("replica", care.clone().look_after());
        self.tasks.run("patrol", care.clone().patrol());
        let report = probe::report(care.model, care.upstream, care.limits, care.desk);
        let gone = upstream.gone.clone();
        self.tasks.run("report", async move {
            tokio::select! {
                () = report => {}
                () = gone.cancelled() => {}
            }
        });
    }

    /// Lets go of all of them, and stops the engines that the gateway started.
    pub(crate) fn end(&self) {
        for member in self.models.iter().flatten() {
            for upstream in member.model.replicas() {
                upstream.gone.cancel();
            }
        }
    }

    /// Adds a replica, which is tried at once.
    ///
    /// # Errors
    /// [`NotAdded`].
    pub(crate) fn add(&self, id: ModelId, config: &ReplicaConfig) -> Result<ReplicaId, NotAdded> {
        let member = self.member(id).ok_or(NotAdded::Here)?;
        let desk = self.desk.upgrade().ok_or(NotAdded::Here)?;
        let all = self.models.iter().flatten();
        if all.map(|one| one.model.replicas().len()).sum::<usize>() >= REPLICAS_MAX {
            return Err(NotAdded::TooMany);
        }
        let same = |one: &Arc<Upstream>| Some(one.pool.address()) == config.url.as_ref();
        if let Some(twin) = member.model.replicas().iter().find(|one| same(one)) {
            return Err(NotAdded::Twice(twin.id.get()));
        }
        let mut made = Ok(None);
        let policy = gateway::ReplicaConfig {
            model: id,
            only: config.only,
        };
        let replica = desk.add_replica(policy, |replica| {
            made = self.maker.make(replica, &member.model, config);
            if let Ok(Some(upstream)) = &made {
                member.model.admit(Arc::clone(upstream));
            }
        });
        match made {
            Ok(Some(upstream)) => self.look_after(member, upstream),
            Ok(None) => desk.submit(Event::ReplicaLeaving { replica }),
            Err(error) => {
                desk.submit(Event::ReplicaLeaving { replica });
                return Err(NotAdded::Port(error));
            }
        }
        Ok(replica)
    }

    /// Has a replica finish what it has and go; whether there is one.
    pub(crate) fn remove(&self, replica: ReplicaId) -> bool {
        let known = self.find(replica).is_some();
        if let (true, Some(desk)) = (known, self.desk.upgrade()) {
            desk.submit(Event::ReplicaLeaving { replica });
        }
        known
    }

    /// Takes on what a changed configuration says of replicas: those that are new are added, and
    /// those that it names no more are let go of. What an operator has added stays.
    pub(crate) fn take_on(&self, models: &[ModelConfig]) {
        let mut configured = self
            .configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for ((old, new), id) in configured.iter_mut().zip(models).zip(0..) {
            if *old == new.replicas {
                continue;
            }
            let id = ModelId::new(id);
            let Some(member) = self.member(id) else {
                continue;
            };
            for lost in old.iter().filter(|one| !new.replicas.contains(one)) {
                let is_it = |one: &Arc<Upstream>| one.is(lost);
                if let Some(upstream) = member.model.replicas().into_iter().find(is_it) {
                    self.remove(upstream.id);
                }
            }
            for added in new.replicas.iter().filter(|one| !old.contains(one)) {
                if let Err(error) = self.add(id, added) {
                    tracing::error!(model = new.name, %error, "a replica can't be added");
                }
            }
            old.clone_from(&new.replicas);
        }
    }

    /// Carries out what the policy wants done with a replica in another process; whether it is one.
    fn carry_out(&self, task: ReplicaTask) -> bool {
        let (ReplicaTask::Start(id) | ReplicaTask::Stop(id) | ReplicaTask::Retire(id)) = task;
        let Some((member, upstream)) = self.find(id) else {
            return false;
        };
        match task {
            ReplicaTask::Start(_) => upstream.start.notify_one(),
            ReplicaTask::Stop(_) => upstream.stop.notify_one(),
            ReplicaTask::Retire(_) => {
                tracing::info!(replica = id.get(), "replica has gone");
                member.model.dismiss(id);
                upstream.gone.cancel();
            }
        }
        true
    }

    fn member(&self, id: ModelId) -> Option<&Member> {
        let place = usize::try_from(id.get()).unwrap_or(usize::MAX);
        self.models.get(place)?.as_ref()
    }

    /// The replica with this id, and its model.
    pub(crate) fn find(&self, id: ReplicaId) -> Option<(&Member, Arc<Upstream>)> {
        let each = self.models.iter().flatten();
        each.filter_map(|member| Some((member, member.model.replica(id)?)))
            .next()
    }
}

/// Carries out what the policy wants done with replicas; what is not another process's is `here`'s.
/// Runs until the desk is gone.
pub(crate) async fn supervise(
    roster: Arc<Roster>,
    mut tasks: UnboundedReceiver<ReplicaTask>,
    here: impl Fn(ReplicaTask),
) {
    while let Some(task) = tasks.recv().await {
        if !roster.carry_out(task) {
            here(task);
        }
    }
}
