//! An engine of made-up text, by what it costs.

use tollgate_policy::units::{Micros, Tokens};

use super::decode::{Cursor, Fields};
use super::models::{CONTEXT_MAX, kv_tokens, span, tokens};

/// The cost model of a fake engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeConfig {
    /// What a step takes, up to 10 s.
    pub step: Micros,
    /// What each sequence adds to a step, up to 1 s.
    pub per_sequence: Micros,
    /// Prompt tokens a second, 1 to 1,000,000,000.
    pub prefill_tokens_per_second: u64,
    /// The context the model pretends to be made for, in tokens.
    pub context: Tokens,
    /// The KV pool where the model names none, in tokens and whole blocks.
    pub kv_tokens: Tokens,
    /// Decides the text, together with the prompt.
    pub seed: u64,
    /// Numbers of each vector, 1 to 65536, where it makes vectors in place of text.
    pub vector: Option<u32>,
}

impl Default for FakeConfig {
    fn default() -> Self {
        Self {
            step: Micros::from_millis(10),
            per_sequence: Micros::new(150),
            prefill_tokens_per_second: 12_000,
            context: Tokens::new(8192),
            kv_tokens: Tokens::new(65_536),
            seed: 1,
            vector: None,
        }
    }
}

impl FakeConfig {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        section.mapping(Self::read_fields)
    }

    fn read_fields(fields: &mut Fields<'_, '_>) -> Self {
        let default = Self::default();
        Self {
            step: fields
                .optional("step", |value| value.duration(span(0, 10_000)))
                .unwrap_or(default.step),
            per_sequence: fields
                .optional("per_sequence", |value| value.duration(span(0, 1_000)))
                .unwrap_or(default.per_sequence),
            prefill_tokens_per_second: fields
                .optional("prefill_tokens_per_second", |value| {
                    value.integer(1..=1_000_000_000)
                })
                .unwrap_or(default.prefill_tokens_per_second),
            context: fields
                .optional("context", |value| tokens(&value, 16, CONTEXT_MAX))
                .unwrap_or(default.context),
            kv_tokens: fields
                .optional("kv_tokens", kv_tokens)
                .unwrap_or(default.kv_tokens),
            seed: fields
                .optional("seed", |value| value.integer(0..=u64::MAX))
                .unwrap_or(default.seed),
            vector: fields.optional("vector", |value| value.integer(1..=65_536)),
        }
    }
}
