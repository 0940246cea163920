//! The bounds of one engine.

use crate::batch::{Order, Scheduler};
use crate::units::{KvBlocks, Tokens};

/// What bounds one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sequences that may run at once.
    pub sequences: u32,
    /// Sequences that may wait with what was sampled of them, since they gave their place to a
    /// tenant that was served less.
    pub guests: u32,
    /// Blocks in the pool.
    pub blocks: u32,
    /// Tokens that one step may compute.
    pub step_tokens: Tokens,
    /// Tokens that one sequence may compute in a step.
    pub chunk: Tokens,
    /// Whether the prompts of tenants that have their share already are computed no faster than
    /// prompts come, rather than each in one piece.
    pub paced: bool,
    /// Who gets a step's tokens first.
    pub order: Order,
    /// When waiting sequences start.
    pub scheduler: Scheduler,
    /// How much room a sequence is given.
    pub reservation: Reservation,
    /// Tokens that one request may use, prompt and output together; never more than the pool holds.
    pub context: Tokens,
    /// Requests that may wait for a sequence id or for blocks.
    pub waiting_max: usize,
    /// What is kept of prompts that were computed.
    pub cache: CacheConfig,
}

/// How much room a sequence is given when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    /// What its known tokens take, and more as they come.
    #[default]
    Paged,
    /// All that it may ever take: the baseline, without preemption and with much room unused.
    Contiguous,
}

/// The bounds of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Prefixes kept, each under a sequence id beside those of the sequences that run. None turns
    /// the cache off.
    pub prefixes: u32,
    /// Blocks that one tenant may have in it.
    pub tenant_blocks: KvBlocks,
}

impl CacheConfig {
    /// No cache.
    pub const OFF: Self = Self {
        prefixes: 0,
        tenant_blocks: KvBlocks::ZERO,
    };
}

impl Config {
    /// Tokens that one request may use: its context, or all of the pool where that is smaller.
    pub fn request_tokens(&self) -> Tokens {
        self.context
            .min(KvBlocks::new(u64::from(self.blocks)).slots())
    }

    /// Guests for an engine that runs so many sequences: those of some tenants that come at once,
    /// and one that is over soon; few enough that ids and rows of results for them cost next to
    /// nothing. A single sequence is everybody's share, so nobody has more to give of.
    pub const fn guests_of(sequences: u32) -> u32 {
        match sequences {
            0 | 1 => 0,
            more => more.div_ceil(4).saturating_add(1),
        }
    }

    /// Sequence ids of requests: of those that run, and of those that gave up their place.
    pub fn seats(&self) -> u32 {
        self.sequences.saturating_add(self.guests)
    }

    /// Sequence ids that a backend must have: those of requests and those that keep prefixes.
    pub fn sequence_ids(&self) -> u32 {
        self.seats().saturating_add(self.cache.prefixes)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.sequences == 0 {
            return Err(ConfigError::NoSequences);
        }
        if self.step_tokens < Tokens::new(u64::from(self.sequences)) {
            return Err(ConfigError::StepTooSmall {
                step_tokens: self.step_tokens,
                sequences: self.sequences,
            });
        }
        if self.chunk == Tokens::ZERO {
            return Err(ConfigError::NoChunk);
        }
        if self.request_tokens() < Tokens::new(2) {
            return Err(ConfigError::NoContext(self.request_tokens()));
        }
        if self.waiting_max == 0 {
            return Err(ConfigError::NoWaiting);
        }
        Ok(())
    }
}

/// A bound with which no engine could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No sequence could ever run.
    #[error("sequences is 0; use 1 or more")]
    NoSequences,
    /// A step could not give each sequence its next token.
    #[error("step_tokens is {step_tokens}; use at least the {sequences} of sequences")]
    StepTooSmall {
        /// What it is.
        step_tokens: Tokens,
        /// What it must reach.
        sequences: u32,
    },
    /// No sequence could compute anything.
    #[error("chunk is 0 tokens; use 1 or more")]
    NoChunk,
    /// No request could have a prompt and an answer.
    #[error("a request may use {0} tokens; use a context and a pool of 2 or more")]
    NoContext(Tokens),
    /// No request could start, as each waits first.
    #[error("waiting_max is 0; use 1 or more")]
    NoWaiting,
}
