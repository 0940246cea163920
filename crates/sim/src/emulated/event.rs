//! What happens to an emulated engine, what it has to tell, and what it counts.

use std::sync::Arc;

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{KvBlocks, Tokens};

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request has come.
    Arrived(Request),
    /// Its client has gone. Nothing happens if it has ended, or never was.
    Cancelled(RequestId),
    /// From the next step on, steps cost so much of what the configuration says: 300 is an engine
    /// that has become three times as slow.
    CostChanged {
        /// Per cent; 0 counts as 1.
        percent: u64,
    },
    /// The time of [`next_wake`](super::Emulated::next_wake) has come.
    Wake,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique among those that wait or run.
    pub id: RequestId,
    /// Length of its prompt; at least 1.
    pub prompt: Tokens,
    /// Length of its output, which it always reaches; at least 1.
    pub output: Tokens,
    /// A name for each leading full block of its prompt that others may have too, from the first
    /// on: equal names mean equal tokens up to the end of that block. May be shorter than the
    /// prompt, and empty.
    pub prefix: Arc<[u64]>,
}

/// Something to tell. All of a step's come at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has a slot from now on; so many tokens of its prompt were in the prefix cache. Comes
    /// again after each [`Effect::Preempted`].
    Started {
        /// The request.
        id: RequestId,
        /// Tokens found.
        cached: Tokens,
    },
    /// A step has ended.
    Stepped {
        /// What each sequence in it got.
        served: Vec<Served>,
    },
    /// It lost its slot and its KV, and waits at the front of the queue. What it has said stays
    /// said.
    Preempted {
        /// The request.
        id: RequestId,
    },
    /// It has had all its output.
    Ended {
        /// The request.
        id: RequestId,
        /// What it used.
        used: Used,
    },
    /// It is gone because its client is.
    Cancelled {
        /// The request.
        id: RequestId,
        /// What it used.
        used: Used,
    },
    /// It was not let in.
    Refused {
        /// The request.
        id: RequestId,
        /// Why.
        why: Refused,
    },
}

/// What one sequence got in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The request.
    pub id: RequestId,
    /// Prompt tokens computed for the first time.
    pub prompt: Tokens,
    /// Output tokens: none or one.
    pub output: Tokens,
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Prompt tokens computed or found; what was computed again is not in it.
    pub prompt: Tokens,
    /// Those of them that were found when it first had a slot.
    pub cached: Tokens,
    /// Output tokens.
    pub output: Tokens,
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Prompt and output exceed the context.
    TooLong,
    /// No prompt, or no output.
    Empty,
    /// As many wait as may.
    QueueFull,
}

/// What an engine tells of its present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Sequences with a slot.
    pub running: usize,
    /// Requests without one.
    pub waiting: usize,
    /// Blocks that sequences hold. What the prefix cache alone holds is free.
    pub kv_used: KvBlocks,
    /// Blocks there are.
    pub kv_total: KvBlocks,
}

/// What an engine has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps.
    pub steps: u64,
    /// Requests that had all their output.
    pub finished: u64,
    /// Requests that were not let in.
    pub refused: u64,
    /// Requests whose client left.
    pub cancelled: u64,
    /// Times that a sequence lost its slot.
    pub preempted: u64,
    /// Prompt tokens computed for the first time.
    pub prompt: Tokens,
    /// Output tokens.
    pub output: Tokens,
    /// Tokens computed once more after a preemption.
    pub recomputed: Tokens,
    /// Tokens looked up in the prefix cache.
    pub prefix_queried: Tokens,
    /// Those of them that were found.
    pub prefix_hit: Tokens,
}
