//! A replica as the simulation sees it: requests go in, steps and endings come out, and time passes
//! only from one step's end to the next.
//!
//! It never decides who is served; whatever waits inside it waits by the engine's own rules. What
//! goes wrong with it (a crash, a slow spell, a cut line) is done to it from outside.

mod cost;
mod imitated;
mod planned;

use tollgate_policy::gateway::{Report, Served};
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::pace::Haste;
use tollgate_policy::units::{KvBlocks, Service, Time, Tokens};
use tollgate_policy::usage::Usage;
use tollgate_policy::window::Capacity;

use crate::workload::Prefix;

pub use self::cost::{ApartCost, Curve, CurveError, Shape, StepCost};
pub use self::imitated::{Imitated, ImitatedConfig};
pub use self::planned::{Planned, PlannedConfig};

/// What a prompt says, as far as it matters: how long it is, and which part others say too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// All of it, at least one token.
    pub tokens: Tokens,
    /// How it begins, where others begin alike.
    pub shared: Option<Prefix>,
}

/// A request as a replica gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// What it says.
    pub prompt: Prompt,
    /// How long its answer comes to be if nothing stops it; at least one token.
    pub output: Tokens,
    /// The most output it may have.
    pub output_max: Tokens,
    /// What its tenant was served so far, by weight.
    pub served: Service,
    /// How soon its prompt may be computed.
    pub haste: Haste,
}

/// What a replica says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A step is done.
    Stepped {
        /// For whom.
        served: Vec<Served>,
        /// What it says of itself after it.
        report: Report,
    },
    /// It is done with a request.
    Ended {
        /// Which.
        id: RequestId,
        /// How.
        ending: EngineEnding,
        /// What was made.
        usage: Usage,
    },
}

/// What a replica has made since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Prompt tokens computed, those computed again left out.
    pub prompt: Tokens,
    /// Prompt tokens reused.
    pub cached: Tokens,
    /// Output tokens.
    pub output: Tokens,
    /// Sequences that gave up their KV to others.
    pub preemptions: u64,
}

/// Who may find whose prefixes in an engine's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each tenant its own.
    #[default]
    Tenant,
    /// Everybody everybody's: how an engine behaves that is told of no tenants.
    All,
}

/// How a gateway hears of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It runs in the gateway's own process, which sees each of its steps.
    Here,
    /// It is another process: tokens are seen as they pass, and what it holds when it is asked.
    Elsewhere,
}

/// What a replica is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineConfig {
    /// A batching model server, by its costs.
    Emulated(ImitatedConfig),
    /// The embedded engine's own planner.
    Planned(PlannedConfig),
}

impl MachineConfig {
    /// A replica that has just been started, with nothing in it.
    pub fn start(&self) -> Machine {
        match self {
            Self::Planned(config) => Machine::Planned(Box::new(Planned::new(config.clone()))),
            Self::Emulated(config) => Machine::Emulated(Box::new(Imitated::new(*config))),
        }
    }

    /// How the gateway hears of it.
    pub const fn reach(&self) -> Reach {
        match self {
            Self::Planned(_) => Reach::Here,
            Self::Emulated(_) => Reach::Elsewhere,
        }
    }

    /// What it can hold, as it says when it comes up.
    pub fn capacity(&self) -> Capacity {
        match self {
            Self::Planned(config) => Capacity {
                sequences: config.engine.sequences,
                kv: KvBlocks::new(u64::from(config.engine.blocks)),
            },
            Self::Emulated(config) => Capacity {
                sequences: config.engine.slots.get(),
                kv: KvBlocks::new(config.engine.kv.get() / KvBlocks::SLOTS.get()),
            },
        }
    }
}

/// One engine.
#[derive(Debug)]
pub enum Machine {
    /// A batching model server.
    Emulated(Box<Imitated>),
    /// The embedded engine's own planner.
    Planned(Box<Planned>),
}

impl Machine {
    /// Gives it a request.
    pub fn submit(&mut self, job: Job, now: Time) {
        match self {
            Self::Planned(planned) => planned.submit(job, now),
            Self::Emulated(imitated) => imitated.submit(job, now),
        }
    }

    /// Makes it stop working on a request; one that it does not have is ignored.
    pub fn cancel(&mut self, id: RequestId, now: Time) {
        match self {
            Self::Planned(planned) => planned.cancel(id, now),
            Self::Emulated(imitated) => imitated.cancel(id, now),
        }
    }

    /// When the step under way ends; nothing while it is idle.
    pub fn next(&self) -> Option<Time> {
        match self {
            Self::Planned(planned) => planned.next(),
            Self::Emulated(imitated) => imitated.next(),
        }
    }

    /// Ends the step under way. To be called at [`Machine::next`] or later.
    pub fn advance(&mut self, now: Time) {
        match self {
            Self::Planned(planned) => planned.advance(now),
            Self::Emulated(imitated) => imitated.advance(now),
        }
    }

    /// What it has to say, in order.
    pub fn poll(&mut self) -> Option<Said> {
        match self {
            Self::Planned(planned) => planned.poll(),
            Self::Emulated(imitated) => imitated.poll(),
        }
    }

    /// What it says of itself when it is asked.
    pub fn report(&self) -> Report {
        match self {
            Self::Planned(planned) => planned.report(),
            Self::Emulated(imitated) => imitated.report(),
        }
    }

    /// KV blocks that requests hold now.
    pub fn kv(&self) -> KvBlocks {
        match self {
            Self::Planned(planned) => planned.kv(),
            Self::Emulated(imitated) => imitated.kv(),
        }
    }

    /// Whether it has no request.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Planned(planned) => planned.is_empty(),
            Self::Emulated(imitated) => imitated.is_empty(),
        }
    }

    /// What it has made.
    pub fn made(&self) -> Made {
        match self {
            Self::Planned(planned) => planned.made(),
            Self::Emulated(imitated) => imitated.made(),
        }
    }
}
