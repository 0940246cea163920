//! What goes in and out of an engine's scheduler: facts, steps, and what became of requests.

use crate::ids::{RequestId, SeqId, TenantId};
use crate::kv::KvOp;
use crate::outcome::EngineEnding;
use crate::pace::Haste;
use crate::prefix::Token;
use crate::units::{KvBlocks, Service, Tokens};
use crate::usage::Usage;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A request was dispatched to this engine.
    Start(Start),
    /// The step planned last was computed. Sequences that failed in it were told before, by
    /// `Failed`.
    Stepped {
        /// The token that each sequence sampled which was to, in any order.
        sampled: Vec<Sampled>,
    },
    /// A request is no longer wanted; unknown ones are ignored, since an end may cross a cancel.
    Cancel {
        /// Which one.
        id: RequestId,
    },
    /// One request can't go on; unknown ones are ignored.
    Failed {
        /// Which one.
        id: RequestId,
    },
}

/// A request for an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which one; never used before.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Its prompt.
    pub prompt: Vec<Token>,
    /// The most it may generate.
    pub max_output: Tokens,
    /// A request with the same prompt that came just before, whose KV it may take over.
    pub elder: Option<RequestId>,
    /// What its tenant was served so far, by weight.
    pub served: Service,
    /// How soon its prompt may be computed.
    pub haste: Haste,
}

/// A token that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// For which request.
    pub id: RequestId,
    /// Which token.
    pub token: Token,
    /// Whether the text is over with it.
    pub ends: bool,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEffect {
    /// It ended, and its blocks and its sequence id are free.
    Ended {
        /// Which one.
        id: RequestId,
        /// Whose.
        tenant: TenantId,
        /// How.
        ending: EngineEnding,
        /// What it used.
        usage: Usage,
    },
    /// It was never started.
    Refused {
        /// Which one.
        id: RequestId,
        /// Why.
        because: Refused,
    },
}

/// Why a request was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to compute.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("the most output is 0 tokens; ask for at least one")]
    NoOutput,
    /// It would never fit.
    #[error("{asked} tokens asked for, {limit} fit; shorten the prompt")]
    ContextExceeded {
        /// Its prompt and one token of output.
        asked: Tokens,
        /// What one request may use.
        limit: Tokens,
    },
    /// As many requests wait as may.
    #[error("{0} requests wait already; dispatch fewer at once")]
    Full(usize),
}

/// Tokens that one sequence computes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whose tokens.
    pub id: RequestId,
    /// The sequence that holds their KV.
    pub seq: SeqId,
    /// The position of the first one; all before it are computed.
    pub start: Tokens,
    /// How many, at least one.
    pub count: Tokens,
    /// Whether the last one is the last known, so that the next token is sampled after it.
    pub samples: bool,
    /// How many of them are prompt tokens computed for the first time, not again after a
    /// preemption.
    pub fresh: Tokens,
    /// How many prompt tokens were reused for it just now, for the first time.
    pub reused: Tokens,
}

/// One step of the backend. To be carried out in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What becomes of KV, in order.
    pub ops: Vec<KvOp>,
    /// What to compute; no sequence twice.
    pub work: Vec<Work>,
}

/// The levels of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests that have KV or are about to.
    pub running: usize,
    /// Requests that wait for a sequence id or blocks, preempted ones included.
    pub waiting: usize,
    /// Those of them that nothing keeps but the pace at which prompts are computed, or a place that
    /// they gave up.
    pub delayed: usize,
    /// Sequence ids held.
    pub sequences: usize,
    /// Blocks that requests hold, each counted once.
    pub blocks_held: KvBlocks,
    /// Blocks that the prefix cache alone holds: there for whoever needs them.
    pub blocks_idle: KvBlocks,
    /// Blocks there are.
    pub blocks_total: KvBlocks,
    /// Prefixes in the cache that none continues.
    pub prefixes: usize,
    /// What was counted since the start.
    pub totals: Totals,
}

/// What an engine counts as long as it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens of requests that started: computed or reused, each once.
    pub prompt: Tokens,
    /// Those of them that were reused. Divided by `prompt`, the token hit rate.
    pub reused: Tokens,
    /// Preemptions, for want of blocks or of places.
    pub preemptions: u64,
    /// Those of them that gave a place to a sequence of a tenant that was served less.
    pub places_given: u64,
}
