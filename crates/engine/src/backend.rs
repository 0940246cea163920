//! What computes: advances many sequences by one step. It decides nothing, and keeps no queue.
//!
//! A backend lives on the engine's thread and may borrow from what opened it, so it needs to be
//! neither `Send` nor `'static`: [`Open`] builds it on that thread's stack and lends it out.

use tollgate_policy::ids::{RequestId, SeqId};
use tollgate_policy::kv::KvOp;
use tollgate_policy::units::Tokens;

use crate::job::{Sampling, Token};

/// Builds a backend where it will run.
pub trait Open: Send {
    /// Builds the backend and lends it to `run`, once; returns when `run` does.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when it can't be built; `run` was not called then.
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError>;
}

/// Why a backend could not be built.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A number does not fit what the backend can count.
    #[error("{what} is {value}, more than this engine can do; lower it")]
    TooLarge {
        /// The name of the number.
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// llama.cpp gave no context for the model: most likely there is too little memory for its KV.
    #[error("no llama.cpp context of {tokens} tokens: {why}; lower the pool's size")]
    Context {
        /// The size asked for.
        tokens: u32,
        /// What llama.cpp said.
        why: String,
    },
}

/// A sequence that begins.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Whose it is.
    pub id: RequestId,
    /// Which of the request's choices.
    pub choice: u32,
    /// How its tokens are chosen.
    pub sampling: Sampling,
    /// The seed of its choices.
    pub seed: u64,
    /// Whether the end of a turn is never chosen.
    pub ignore_eos: bool,
}

/// Tokens that one sequence computes in a step.
#[derive(Clone, Copy, Debug)]
pub struct StepWork<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// The position of the first token; all before it are computed.
    pub start: Tokens,
    /// The tokens, at least one.
    pub tokens: &'a [Token],
    /// Whether the next token is sampled after the last of them.
    pub samples: bool,
}

/// What a step gave one sequence: a token where one was sampled, or the vector of its text.
pub type Sampled = Result<Option<Drawn>, SequenceError>;

/// What came of the last token that is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Drawn {
    /// The next token.
    Token {
        /// Which one.
        token: Token,
        /// How likely it was, where the sequence is to tell.
        likely: Option<Likelihood>,
    },
    /// The vector of the whole text, of length 1. No token comes after it.
    Vector(Vec<f32>),
}

/// How likely a token was among all, by natural logarithms.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// The one that was drawn.
    pub chosen: f32,
    /// As many as were asked for, the likeliest first.
    pub top: Vec<(Token, f32)>,
}

/// One sequence can't go on; the others can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sequence {seq} failed: {why}")]
pub struct SequenceError {
    /// Which one.
    pub seq: SeqId,
    /// What the backend said.
    pub why: String,
}

/// The backend can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend failed: {why}")]
pub struct FatalError {
    /// What the backend said.
    pub why: String,
}

/// Advances many sequences by one step.
pub trait Backend {
    /// Sampling begins for a sequence; `seq` is not in use. What it computed may be there already,
    /// copied from another.
    ///
    /// # Errors
    ///
    /// [`SequenceError`] when it can't; the sequence is ended all the same.
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError>;

    /// Does with KV as told. A sequence trimmed to nothing keeps what its sampling remembers: it
    /// will compute everything again. An end of an unknown one is ignored.
    fn apply(&mut self, op: KvOp);

    /// Computes `work`, where no sequence is twice, and pushes one result for each, in its order.
    /// `results` is empty.
    ///
    /// # Errors
    ///
    /// [`FatalError`] when no sequence can go on; `results` mean nothing then.
    fn step(&mut self, work: &[StepWork<'_>], results: &mut Vec<Sampled>)
    -> Result<(), FatalError>;

    /// Appends the bytes that a token stands for, which may be part of a character; none for a
    /// control token.
    fn bytes(&self, token: Token, out: &mut Vec<u8>);

    /// Whether the token ends the model's turn.
    fn is_end(&self, token: Token) -> bool;
}
