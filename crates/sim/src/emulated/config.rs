//! The numbers an emulated engine is made of.

use std::num::{NonZeroU32, NonZeroU64};

use serde::Serialize;
use tollgate_policy::units::{KvBlocks, Micros, Tokens};

/// What an engine can hold, and what its steps cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Sequences that run at once.
    pub slots: NonZeroU32,
    /// What a step costs.
    pub cost: Cost,
    /// Tokens of one step: one for each sequence that generates, the rest for prompts.
    pub chunk: Tokens,
    /// Tokens of KV, in whole blocks.
    pub kv: Tokens,
    /// The longest prompt and output together.
    pub context: Tokens,
    /// Requests that wait at most; one more is refused.
    pub waiting_max: usize,
    /// Whether what prompts begin with alike is computed once.
    pub prefix_cache: PrefixCache,
}

/// What a step costs in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// A step by itself, in microseconds.
    #[serde(serialize_with = "micros")]
    pub step: Micros,
    /// Each sequence in it, in microseconds.
    #[serde(serialize_with = "micros")]
    pub per_sequence: Micros,
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_second: NonZeroU64,
}

/// Whether what prompts begin with alike is computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCache {
    /// Every prompt is computed.
    Off,
    /// Blocks of prompts are kept until their room is needed, the longest unused first.
    On,
}

/// A number that no engine has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No step could compute anything.
    #[error("a step of {0} tokens; use 1 or more")]
    Chunk(Tokens),
    /// A sequence of the longest context would never fit.
    #[error("{kv} tokens of KV cannot hold one context of {context}; use more KV or a shorter one")]
    Kv {
        /// Tokens of KV.
        kv: Tokens,
        /// The longest context.
        context: Tokens,
    },
    /// More slots than a step could be planned for in time.
    #[error("{slots} slots; use 1 to {}", Config::SLOTS_MAX)]
    Slots {
        /// The slots asked for.
        slots: u32,
    },
}

impl Default for Config {
    /// A mid-sized accelerator: 64 sequences, a step of 10 ms and 0.15 ms for each, prefill at
    /// 12,000 tokens/s in chunks of 2,048, 262,144 tokens of KV.
    fn default() -> Self {
        Self {
            slots: NonZeroU32::MIN.saturating_add(63),
            cost: Cost::default(),
            chunk: Tokens::new(2_048),
            kv: Tokens::new(262_144),
            context: Tokens::new(8_192),
            waiting_max: 100_000,
            prefix_cache: PrefixCache::Off,
        }
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            step: Micros::from_millis(10),
            per_sequence: Micros::new(150),
            prefill_tokens_per_second: NonZeroU64::MIN.saturating_add(11_999),
        }
    }
}

impl Config {
    /// The most slots: a step looks at each of them.
    pub const SLOTS_MAX: u32 = 65_536;

    /// Checks that every request that is let in can end.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let slots = self.slots.get();
        if slots > Self::SLOTS_MAX {
            return Err(ConfigError::Slots { slots });
        }
        if self.chunk == Tokens::ZERO {
            return Err(ConfigError::Chunk(self.chunk));
        }
        let (kv, context) = (self.kv, self.context);
        if context == Tokens::ZERO || context.blocks() > self.kv_blocks() {
            return Err(ConfigError::Kv { kv, context });
        }
        Ok(())
    }

    pub(super) fn slots_len(&self) -> usize {
        usize::try_from(self.slots.get()).unwrap_or(usize::MAX)
    }

    /// Whole blocks of KV.
    pub(super) fn kv_blocks(&self) -> KvBlocks {
        KvBlocks::new(self.kv.get() / KvBlocks::SLOTS.get())
    }
}

impl Cost {
    /// The time of a step with so many sequences that computes so many prompt tokens.
    pub fn of(&self, sequences: usize, prefill: Tokens) -> Micros {
        let sequences = u64::try_from(sequences).unwrap_or(u64::MAX);
        let rate = self.prefill_tokens_per_second.get();
        let prefill = prefill.get().saturating_mul(1_000_000) / rate;
        self.step + self.per_sequence.times(sequences) + Micros::new(prefill)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the shape that serde calls"
)]
fn micros<S: serde::Serializer>(span: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(span.get())
}
