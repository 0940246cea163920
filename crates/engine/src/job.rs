//! What the engine is given and what it gives back, request by request.
//!
//! Plain data and two callbacks. Nothing here decides anything.

use tollgate_policy::engine::Gauges;
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

/// One token by its number in the model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(i32);

impl Token {
    /// The token with this number. One that the vocabulary does not have fails the request that
    /// holds it.
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> i32 {
        self.0
    }
}

/// One request for the engine.
pub struct Job {
    /// Which request; never used before.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// What to continue; at least one token.
    pub prompt: Vec<Token>,
    /// The most tokens to generate; at least one.
    pub max_output: Tokens,
    /// How to choose each next token.
    pub sampling: Sampling,
    /// Strings at which the text ends; they are not part of it. Empty ones never match.
    pub stop: Vec<String>,
    /// Whether the model's own end of a turn is never chosen.
    pub ignore_eos: bool,
    /// Where the text goes.
    pub output: Box<dyn Output>,
}

impl std::fmt::Debug for Job {
    /// Without the prompt: it is the caller's, and goes into no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("tenant", &self.tenant)
            .field("prompt_tokens", &self.prompt.len())
            .field("max_output", &self.max_output)
            .finish_non_exhaustive()
    }
}

/// How each next token is chosen. The default is OpenAI's: temperature 1 and nothing cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token always; larger is more random.
    pub temperature: f32,
    /// Keeps the likeliest tokens whose shares sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Lowers tokens by this for each time they were generated; 0 is off.
    pub frequency_penalty: f32,
    /// Lowers tokens by this if they were generated at all; 0 is off.
    pub presence_penalty: f32,
    /// Divides the logit of tokens that were generated; 1 is off.
    pub repetition_penalty: f32,
    /// The same seed and prompt give the same text; `None` takes one from the engine's seed and the
    /// request.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
        }
    }
}

impl Sampling {
    /// The likeliest token always.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Whether the likeliest token of the plain logits is always the one.
    #[expect(clippy::float_cmp, reason = "the very values that mean off")]
    pub(crate) fn is_plainly_greedy(&self) -> bool {
        self.temperature <= 0.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0
            && self.repetition_penalty == 1.0
    }
}

/// Where the text of one request goes. Called on the engine's thread: it must not block.
pub trait Output: Send {
    /// More text; never empty.
    fn delta(&mut self, delta: Delta);

    /// The end, once and last.
    fn end(&mut self, ending: EngineEnding, usage: Usage);
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Whole characters. Never part of a stop string.
    pub text: String,
    /// Tokens generated since the delta before, those among them whose text was held back. What
    /// never came out as text (the end of a turn, what a stop string cut off) is in the usage
    /// alone.
    pub tokens: u32,
}

/// Who watches the engine as a whole. Called on the engine's thread: it must not block.
pub trait Observer: Send {
    /// What one step served, before any of it is seen by a client.
    /// `held` is what the scheduler holds after it.
    fn stepped(&mut self, served: &[Served], held: Gauges);

    /// A request ended; its output learns it right after.
    fn ended(&mut self, id: RequestId, ending: EngineEnding, usage: Usage);

    /// The engine can't go on, and every request it had has ended. Not called when it was told to
    /// stop.
    fn died(&mut self, why: String);
}

/// What one step did for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Which one.
    pub id: RequestId,
    /// Prompt tokens computed, each counted once: what is computed again after a preemption is our
    /// cost.
    pub prompt: Tokens,
    /// Tokens generated.
    pub output: Tokens,
}
