//! What goes in and out of the gateway's policy: facts, and orders.

use super::ReplicaConfig;
use super::progress::Progress;
use crate::bucket::Level;
use crate::budget::Tariff;
use crate::health::Sign;
use crate::ids::{KeyId, ModelId, ReplicaId, RequestId, TenantId};
use crate::outcome::{EngineEnding, Failure, Outcome};
use crate::pace::Haste;
use crate::quota::Past;
use crate::request::{Arrival, ClientEnding};
use crate::route::{Affinity, Because};
use crate::slo;
use crate::tenant::Tenant;
use crate::units::{KvBlocks, KvByteMicros, Micros, Time, Tokens};
use crate::usage::{Counted, Usage, Weights};
use crate::window::Capacity;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request that is all there: read, identified and counted.
    Arrived(Arrival),
    /// The same, where something is known of the place in which it is best served.
    Sought(Arrival, Affinity),
    /// A request that the edge could not make an [`Arrival`] of.
    Turned {
        /// Its name.
        id: RequestId,
        /// Who sent it, where that is known.
        tenant: Option<TenantId>,
        /// What became of it: what was wrong with it, or with us.
        outcome: Outcome,
        /// When the gateway received it.
        received: Time,
    },
    /// The first token of an answer was written to the client.
    FirstToken {
        /// Whose.
        id: RequestId,
    },
    /// A part of an answer is on its way to the client, though it may hold no token yet: from here
    /// on no other replica can make it.
    Begun {
        /// Whose.
        id: RequestId,
    },
    /// A replica has done a step.
    Stepped {
        /// Which replica.
        replica: ReplicaId,
        /// For whom.
        served: Vec<Served>,
        /// What the replica says of itself after it.
        report: Report,
    },
    /// A replica in another process went on with an answer.
    Streamed(Served),
    /// What a replica in another process says of itself, when it was asked.
    Reported {
        /// Which replica.
        replica: ReplicaId,
        /// What it says.
        report: Report,
    },
    /// The usage of a request is reckoned, not counted: its engine tells none.
    Reckoned {
        /// Which request.
        id: RequestId,
    },
    /// The engine is done with a request that it was given.
    EngineEnded {
        /// Which request.
        id: RequestId,
        /// How it ended there.
        ending: EngineEnding,
        /// What was made, also where it was in vain.
        usage: Usage,
    },
    /// The client, or the connection to it, is done with a request.
    ClientEnded {
        /// Which request.
        id: RequestId,
        /// How it ended there.
        ending: ClientEnding,
    },
    /// A replica takes work.
    ReplicaUp {
        /// Which.
        replica: ReplicaId,
        /// What it can hold.
        capacity: Capacity,
    },
    /// A replica takes no work any more; what it had has been reported as ended.
    ReplicaDown {
        /// Which.
        replica: ReplicaId,
    },
    /// Something tells of a replica's health, apart from how its requests end.
    Noticed {
        /// Which.
        replica: ReplicaId,
        /// What.
        sign: Sign,
    },
    /// A replica says that it has no room, and when to come back, if it says so.
    ReplicaFull {
        /// Which.
        replica: ReplicaId,
        /// How long it is to be left alone.
        wait: Option<Micros>,
    },
    /// There is one more replica, which is not up yet. Its id is the first that is free: of one
    /// that was retired, or one more than there were.
    ReplicaAdded {
        /// Its id.
        replica: ReplicaId,
        /// What it is.
        config: ReplicaConfig,
    },
    /// A replica has been stopped, as it was ordered.
    ReplicaStopped {
        /// Which.
        replica: ReplicaId,
    },
    /// A replica is to take no more work, and to be retired once it has nothing left.
    ReplicaLeaving {
        /// Which.
        replica: ReplicaId,
    },
    /// The configuration has changed: who may call, and what they may have.
    Reconfigured(Box<Tenancy>),
    /// What was learned of a model's latency before this gateway began, or apart from it.
    Recalled {
        /// Of which model.
        model: ModelId,
        /// What.
        learned: Learned,
    },
    /// Prices or budgets have changed, or the ledger knows more of what was spent.
    Priced(Box<Tariff>),
    /// What a tenant took of its rates before this gateway began: said before its first request.
    Remembered {
        /// Who.
        tenant: TenantId,
        /// Of which model; `None` for all together.
        model: Option<ModelId>,
        /// What.
        past: Past,
    },
    /// Whether what is served can be written down from now on.
    Books(Books),
    /// The gateway is to go away.
    Drain {
        /// How long what runs may take to finish.
        bound: Micros,
    },
    /// The time that `next_wake` named has come.
    Wake,
}

/// Whether what is served can be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Books {
    /// It can.
    Open,
    /// It can't, so no new work is taken: what nobody writes down, nobody is charged.
    Closed,
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests that it was given and that wait inside it.
    pub waiting: u32,
    /// KV blocks it holds.
    pub kv: KvBlocks,
}

/// Who may call, and what they may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// Those that are named.
    pub tenants: Vec<Tenant>,
    /// What one gets that a trusted header names.
    pub template: Tenant,
    /// What a token counts.
    pub weights: Weights,
}

/// What one request was served in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Which request.
    pub id: RequestId,
    /// Prompt tokens computed for the first time.
    pub prompt: Tokens,
    /// Tokens generated.
    pub output: Tokens,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give a request to a replica.
    Dispatch(Dispatch),
    /// Tell a client that it is not served. The request has ended.
    Refuse(Refusal),
    /// Make a replica stop working on a request, and tell its client why. The request ends when
    /// both have.
    Cancel {
        /// Which request.
        id: RequestId,
        /// Who has it.
        replica: ReplicaId,
        /// What the client is told.
        outcome: Outcome,
    },
    /// Tell a client that the replica failed its request, and that no other will try.
    Failed {
        /// Which request.
        id: RequestId,
        /// How it failed.
        failure: Failure,
        /// What was made, in vain.
        usage: Usage,
    },
    /// Make a replica stop working on a request that it has not answered yet; another will get it.
    /// Its client learns nothing. One that is being answered meanwhile goes on.
    Withdraw {
        /// Which request.
        id: RequestId,
        /// Who has it.
        replica: ReplicaId,
    },
    /// Start a replica that went down, or see whether it is back.
    Start {
        /// Which.
        replica: ReplicaId,
    },
    /// Stop a replica that is not needed now, to make room for another.
    Stop {
        /// Which.
        replica: ReplicaId,
    },
    /// A replica has nothing left and takes nothing more: it may be let go of, and its id given to
    /// another.
    Retired {
        /// Which.
        replica: ReplicaId,
    },
    /// Write down how far a running request has come.
    Mark(Progress),
    /// Write down that a request has ended.
    Record(Record),
    /// Write down how a request was judged, and what came of it.
    Weighed(Box<Weighed>),
    /// Fit a model of what plans miss, beside everything else, and hand in what comes of it as
    /// [`Learned::Fitted`].
    Fit(Box<Fit>),
    /// Nothing is in flight and nothing will be: the process may go.
    Drained,
}

/// Something that is known of a model's latency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Learned {
    /// All that another gateway had learned.
    State(Box<slo::State>),
    /// What was ordered by [`Effect::Fit`].
    Fitted(Box<slo::fit::Fitted>),
}

/// A model to be fitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Whose latency it is about.
    pub model: ModelId,
    /// What it is fitted to.
    pub task: slo::fit::Task,
}

/// How a request was judged, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// What it was for.
    pub model: ModelId,
    /// All of it.
    pub row: slo::Row,
}

/// A request's way to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// With which of the tenant's keys, where it has a name.
    pub key: Option<KeyId>,
    /// Where to.
    pub replica: ReplicaId,
    /// Why there.
    pub because: Because,
    /// How soon the engine may compute its prompt.
    pub haste: Haste,
    /// The most output it may have.
    pub output_max: Tokens,
    /// How long it waited.
    pub queued: Micros,
    /// When it is stopped at the latest.
    pub fence: Time,
    /// What its tenant has left.
    pub quota: Quota,
}

/// A request that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which request.
    pub id: RequestId,
    /// Why.
    pub outcome: Outcome,
    /// When to come back, jitter included, where coming back helps.
    pub retry_after: Option<Micros>,
    /// What its tenant has left.
    pub quota: Quota,
}

/// What a tenant has left of its limits; `None` where it has no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Of its requests per minute.
    pub requests: Option<Level>,
    /// Of its tokens per minute.
    pub tokens: Option<Level>,
}

/// How a request ended, for the ledger, the metrics and the log alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which request.
    pub id: RequestId,
    /// Who pays, where that was known.
    pub tenant: Option<TenantId>,
    /// With which of the tenant's keys, where it has a name.
    pub key: Option<KeyId>,
    /// What for, where that was known.
    pub model: Option<ModelId>,
    /// Who served it, if anyone did.
    pub replica: Option<ReplicaId>,
    /// How it ended.
    pub outcome: Outcome,
    /// What was used.
    pub usage: Usage,
    /// Who counted it.
    pub counted: Counted,
    /// KV memory over time, from its dispatch to the engine's last word on it.
    pub kv: KvByteMicros,
    /// When it was received.
    pub received: Time,
    /// When it was given to a replica.
    pub dispatched: Option<Time>,
    /// When its first token was written to the client.
    pub first_token: Option<Time>,
    /// When it ended.
    pub ended: Time,
}

impl Record {
    /// How long it waited, whether or not that led to anything.
    pub fn queued(&self) -> Micros {
        self.dispatched.unwrap_or(self.ended).since(self.received)
    }

    /// TTFT: received to first token written.
    pub fn ttft(&self) -> Option<Micros> {
        self.first_token.map(|first| first.since(self.received))
    }

    /// TPOT: the mean time between its tokens, where there were two at least.
    pub fn tpot(&self) -> Option<Micros> {
        let gaps = self
            .usage
            .output
            .get()
            .checked_sub(1)
            .filter(|gaps| *gaps > 0)?;
        let span = self.ended.since(self.first_token?);
        Some(Micros::new(span.get() / gaps))
    }

    /// E2E: received to ended.
    pub fn total(&self) -> Micros {
        self.ended.since(self.received)
    }
}
