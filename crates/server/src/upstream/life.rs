//! The life of one replica in another process: tried when the policy wants it, started first where
//! the gateway starts it, probed while it works, and let go of.
//!
//! It reports; that a replica is used, or not any more, is the policy's to say.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tollgate_policy::gateway::Event;
use tollgate_policy::health::Sign;
use tollgate_policy::outcome::Failure;
use tollgate_policy::window::Capacity;

use super::exchange::Failed;
use super::model::{RemoteModel, Upstream};
use super::probe::{self, Limits};
use crate::config::{CommandConfig, HealthConfig};
use crate::desk::Desk;
use crate::replicas::process::{Process, Recipe};

/// How often an engine that is loading is asked whether it is up.
const LOOK: Duration = Duration::from_millis(250);

/// What is needed to look after one replica.
#[derive(Clone, Debug)]
pub(crate) struct Care {
    pub(crate) model: Arc<RemoteModel>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) limits: Limits,
    pub(crate) health: HealthConfig,
    pub(crate) desk: Weak<Desk>,
}

impl Care {
    /// Looks after the replica until it is let go of, or the desk is gone. Dropped, it takes an
    /// engine that it started with it.
    pub(crate) async fn look_after(self) {
        let mut process: Option<Process> = None;
        loop {
            let upstream = &self.upstream;
            tokio::select! {
                () = upstream.start.notified() => self.start(&mut process).await,
                () = upstream.stop.notified() => {
                    stop(&mut process).await;
                    let replica = upstream.id;
                    self.tell(Event::ReplicaStopped { replica });
                }
                why = ended(&mut process) => {
                    process = None;
                    self.down(&why).await;
                }
                () = upstream.gone.cancelled() => {
                    stop(&mut process).await;
                    return;
                }
            }
        }
    }

    /// Asks again and again whether the replica is well, and says what comes of it.
    pub(crate) async fn patrol(self) {
        let within = Duration::from_micros(self.health.timeout.get());
        let mut tick = tokio::time::interval(Duration::from_micros(self.health.interval.get()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.upstream.gone.cancelled() => return,
            }
            let sign = match probe::is_well(&self.model, &self.upstream, within).await {
                Ok(()) => Sign::ProbeAnswered,
                Err(Failed {
                    failure: Failure::Unreachable,
                    ..
                }) => Sign::Gone,
                Err(_) => Sign::ProbeFailed,
            };
            let replica = self.upstream.id;
            if !self.tell(Event::Noticed { replica, sign }) {
                return;
            }
        }
    }

    /// Sees whether the replica is there; where it is not and the gateway starts it, does so.
    async fn start(&self, process: &mut Option<Process>) {
        let probed = probe::probe(&self.model, &self.upstream).await;
        if let Ok(gauges) = probed {
            return self.up(probe::capacity(gauges, self.limits));
        }
        let loaded = match &self.upstream.hosting {
            None => probed.map(|gauges| probe::capacity(gauges, self.limits)),
            Some(_) => self.load(process).await,
        };
        match loaded {
            Ok(capacity) => self.up(capacity),
            Err(failed) => self.down(&failed.why).await,
        }
    }

    /// Starts the engine anew, and waits until it is up.
    async fn load(&self, process: &mut Option<Process>) -> Result<Capacity, Failed> {
        let failed = |why: String| Failed::new(Failure::Engine, why);
        let Some(hosting) = &self.upstream.hosting else {
            return Err(failed("it is not ours to start".to_owned()));
        };
        if let Some(old) = process.as_ref() {
            let (replica, last) = (self.upstream.id.get(), old.last_words());
            tracing::warn!(
                replica,
                last,
                "an engine does not answer, and is started anew"
            );
        }
        stop(process).await;
        let turn = Arc::clone(&hosting.device).acquire_owned().await;
        let _turn = turn.map_err(|_| failed("the gateway ends".to_owned()))?;
        let replica = self.upstream.id.get();
        let (model, log) = (self.model.name.as_str(), hosting.recipe.log.display());
        tracing::info!(replica, model, %log, "starting an engine");
        let started = Process::start(&hosting.recipe);
        let engine = process.insert(started.map_err(|error| {
            failed(format!(
                "{} can't be started: {error}",
                hosting.recipe.command[0]
            ))
        })?);
        let limit = tokio::time::sleep(hosting.start_timeout);
        tokio::pin!(limit);
        let mut tick = tokio::time::interval(LOOK);
        let why = loop {
            tokio::select! {
                why = engine.ended() => break why,
                () = &mut limit => break "it was not up in time (start_timeout)".to_owned(),
                () = self.upstream.gone.cancelled() => break "it is not wanted any more".to_owned(),
                _ = tick.tick() => {}
            }
            if let Ok(gauges) = probe::probe(&self.model, &self.upstream).await {
                return Ok(probe::capacity(gauges, self.limits));
            }
        };
        stop(process).await;
        Err(failed(why))
    }

    fn up(&self, capacity: Capacity) {
        let (replica, address) = (self.upstream.id, self.upstream.pool.address());
        let model = self.model.name.as_str();
        tracing::info!(replica = replica.get(), model, %address, "replica is up");
        self.tell(Event::ReplicaUp { replica, capacity });
    }

    async fn down(&self, why: &str) {
        let (replica, address) = (self.upstream.id, self.upstream.pool.address());
        let model = self.model.name.as_str();
        tracing::warn!(replica = replica.get(), model, %address, why, "replica is not there");
        // What was kept may lead to one that is gone.
        self.upstream.pool.clear();
        drop(self.upstream.aside.take());
        if let Some(shared) = self.upstream.pool.shared() {
            shared.clear().await;
        }
        self.tell(Event::ReplicaDown { replica });
    }

    /// Whether there was anyone to tell.
    fn tell(&self, event: Event) -> bool {
        let Some(desk) = self.desk.upgrade() else {
            return false;
        };
        desk.submit(event);
        true
    }
}

/// An engine that the gateway starts itself.
#[derive(Debug)]
pub(crate) struct Hosting {
    pub(crate) recipe: Recipe,
    /// As it is configured.
    pub(crate) command: CommandConfig,
    /// Held while it loads: its device loads one at a time.
    pub(crate) device: Arc<Semaphore>,
    pub(crate) start_timeout: Duration,
}

impl Hosting {
    /// Whether this is how it is configured.
    pub(crate) fn is_of(&self, command: &CommandConfig) -> bool {
        self.command == *command
    }
}

async fn ended(process: &mut Option<Process>) -> String {
    match process {
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

async fn stop(process: &mut Option<Process>) {
    if let Some(process) = process.take() {
        process.stop().await;
    }
}
