//! What the engine is given and what it gives back, request by request.
//!
//! Plain data and two callbacks. Nothing here decides anything.

use tollgate_policy::engine::Gauges;
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Haste;
pub use tollgate_policy::prefix::Token;
use tollgate_policy::units::{Service, Tokens};
use tollgate_policy::usage::Usage;

/// One request for the engine.
pub struct Job {
    /// Which request; never used before.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// What its tenant was served so far, by weight: who had most gives way first.
    pub served: Service,
    /// How soon its prompt may be computed.
    pub haste: Haste,
    /// What to continue: at least one prompt, each of at least one token.
    pub prompts: Vec<Vec<Token>>,
    /// How many answers to make of each prompt; at least one. The n-th answer to the m-th prompt is
    /// choice m * `choices` + n, all counted from zero.
    pub choices: u32,
    /// The most tokens to generate for each choice; at least one.
    pub max_output: Tokens,
    /// How to choose each next token.
    pub sampling: Sampling,
    /// When a text ends, besides at the model's own end of a turn.
    pub stop: Stop,
    /// Control tokens that are shown in the text, and as what: markers that mean something to
    /// whoever reads it.
    pub spelled: Vec<(Token, String)>,
    /// Whether each text begins with its prompt.
    pub echo: bool,
    /// Where the text goes.
    pub output: Box<dyn Output>,
}

/// When a text ends, besides at its most tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Strings at which it ends; they are not part of it. Empty ones never match.
    pub strings: Vec<String>,
    /// Tokens with which it ends; they are not part of it.
    pub tokens: Vec<Token>,
    /// Whether the model's own end of a turn is never chosen. A grammar that ends needs it all the
    /// same.
    pub ignore_eos: bool,
}

impl std::fmt::Debug for Job {
    /// Without the prompt: it is the caller's, and goes into no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id)
            .field("tenant", &self.tenant)
            .field(
                "prompt_tokens",
                &self.prompts.iter().map(Vec::len).sum::<usize>(),
            )
            .field("choices", &self.choices)
            .field("max_output", &self.max_output)
            .finish_non_exhaustive()
    }
}

/// How each next token is chosen. The default is OpenAI's: temperature 1 and nothing cut off.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token always; larger is more random.
    pub temperature: f32,
    /// Keeps the likeliest tokens whose shares sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Keeps tokens about as surprising as is usual, up to this share; 1 keeps all (Meister et al.,
    /// "Locally Typical Sampling", 2022).
    pub typical_p: f32,
    /// Lowers tokens by this for each time they were generated; 0 is off.
    pub frequency_penalty: f32,
    /// Lowers tokens by this if they were generated at all; 0 is off.
    pub presence_penalty: f32,
    /// Divides the logit of tokens that were generated; 1 is off.
    pub repetition_penalty: f32,
    /// The same seed and prompt give the same text; `None` takes one from the engine's seed and the
    /// request.
    pub seed: Option<u64>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// What the text must be, as llama.cpp writes grammars; its rule `root`.
    pub grammar: Option<String>,
    /// Tell how likely each token was, and this many of the likeliest in its place.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            typical_p: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            logit_bias: Vec::new(),
            grammar: None,
            logprobs: None,
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

    /// Whether temperature alone decides.
    pub(crate) fn is_plain(&self) -> bool {
        let alone = Self {
            temperature: self.temperature,
            seed: self.seed,
            logprobs: self.logprobs,
            ..Self::default()
        };
        self.temperature > 0.0 && *self == alone
    }

    /// Whether the likeliest token of the plain logits is always the one.
    #[expect(clippy::float_cmp, reason = "the very values that mean off")]
    pub(crate) fn is_plainly_greedy(&self) -> bool {
        self.temperature <= 0.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0
            && self.repetition_penalty == 1.0
            && self.logit_bias.is_empty()
            && self.grammar.is_none()
    }
}

/// Where the text of one request goes. Called on the engine's thread: it must not block.
pub trait Output: Send {
    /// More text; never empty.
    fn delta(&mut self, delta: Delta);

    /// The vector of a prompt, where the model makes vectors; before its choice is finished.
    fn vector(&mut self, choice: u32, vector: Vec<f32>);

    /// One choice is over, and gets no more text.
    fn finished(&mut self, choice: u32, reason: FinishReason);

    /// The end, once and last. Every choice finished, or some other thing came between.
    fn end(&mut self, ending: EngineEnding, usage: Usage);
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// Of which choice.
    pub choice: u32,
    /// Whole characters. Never part of a stop string.
    pub text: String,
    /// Tokens generated since the delta before, those among them whose text was held back. What
    /// never came out as text (the end of a turn, what a stop string cut off) is in the usage
    /// alone.
    pub tokens: u32,
    /// How likely those tokens were, where the job asked.
    pub logprobs: Vec<Logprob>,
}

/// How likely a token was before any sampling, with temperature 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The one that was chosen.
    pub chosen: Likely,
    /// The likeliest ones in its place, the likeliest first.
    pub top: Vec<Likely>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// The bytes that it stands for.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability.
    pub logprob: f32,
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
