//! The half of a model that any thread may use: text to tokens, and messages to a prompt.
//!
//! The server asks it before a request is admitted, so whatever can fail for the caller's sake
//! fails there.

use tollgate_policy::units::{KvBytes, Tokens};

use crate::job::Token;

/// One message of a conversation, as a chat template reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, …
    pub role: String,
    /// What is said.
    pub content: String,
    /// Tools that an assistant called.
    pub calls: Vec<PastCall>,
    /// The call that a tool answers.
    pub answers: Option<String>,
    /// The tool that answers, where that is known.
    pub name: Option<String>,
}

impl ChatMessage {
    /// A message that is text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            ..Self::default()
        }
    }
}

/// A call in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastCall {
    /// Names the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOffer {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments: an object.
    pub parameters: Option<String>,
    /// All of it as JSON, in OpenAI's shape.
    pub json: String,
}

/// How a model writes the calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStyle {
    /// An object with a name and arguments between `<tool_call>` and `</tool_call>`. Models that
    /// know no tools are asked for this one.
    Tagged,
    /// A list of such objects after `[TOOL_CALLS]`.
    Listed,
    /// An object with a name and parameters, and nothing else.
    Bare,
}

/// Whether a generated text must be a call, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallCount {
    /// One.
    One,
    /// One, and maybe more.
    Some,
}

/// What is known of a model without running it. Cheap to ask, and safe from any thread.
pub trait Model: Send + Sync {
    /// The model's own name for itself.
    fn name(&self) -> &str;

    /// The longest context it was trained for.
    fn context(&self) -> Tokens;

    /// KV memory per token.
    fn kv_bytes_per_token(&self) -> KvBytes;

    /// Tokens in its vocabulary: their numbers are below it.
    fn vocabulary(&self) -> u32;

    /// The most bytes of text that one token stands for. A text of n bytes has at least n over this
    /// many tokens, which refuses the hopelessly long ones before they are tokenized.
    fn max_token_bytes(&self) -> u32;

    /// The tokens of a prompt, with the model's start token in front exactly once where it wants
    /// one.
    ///
    /// Control tokens spelled out in the text are read as such, as in llama.cpp's own server: chat
    /// prompts consist of them. A caller who writes one into a message can only rearrange a
    /// conversation that is all its own.
    ///
    /// # Errors
    ///
    /// [`TokenizeError`] when the text can't be tokenized.
    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError>;

    /// The prompt for an answer to `messages`, as text for [`Self::tokenize`]. A model whose
    /// template knows no tools is told of them in words.
    ///
    /// # Errors
    ///
    /// [`TemplateError`], which says whether the caller can mend it.
    fn render_chat(
        &self,
        messages: &[ChatMessage],
        tools: &[ToolOffer],
    ) -> Result<String, TemplateError>;

    /// How it writes calls.
    fn call_style(&self) -> CallStyle;

    /// The grammar of texts that are calls of these tools and nothing else. Of their schemas it
    /// keeps what can be followed in bounded time: types, properties and which are required, items,
    /// enumerations, and alternatives as long as they are few.
    ///
    /// # Errors
    ///
    /// [`GrammarError`]: always the caller's to mend.
    fn call_grammar(&self, tools: &[ToolOffer], count: CallCount) -> Result<String, GrammarError>;

    /// How many numbers its vectors have, if it makes vectors and not text.
    fn vector_length(&self) -> Option<u32>;

    /// Whether texts can be held to this grammar.
    ///
    /// # Errors
    ///
    /// [`GrammarError`]: always the caller's to mend.
    fn check_grammar(&self, grammar: &str) -> Result<(), GrammarError>;

    /// The grammar of JSON texts that a JSON schema describes; of all objects without one.
    ///
    /// # Errors
    ///
    /// [`GrammarError`]: always the caller's to mend.
    fn json_grammar(&self, schema: Option<&str>) -> Result<String, GrammarError>;
}

/// A grammar or a schema to which no text can be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The model can't be held to any.
    #[error("this model can't be held to a grammar; leave it out")]
    Unsupported,
    /// Larger than any that makes sense.
    #[error("it has {0} bytes; use at most 65536")]
    TooLong(usize),
    /// It contains itself, or is nested, beyond what can be followed.
    #[error("it is nested more deeply than 64 levels; make it flatter")]
    TooDeep,
    /// It is no grammar, or has no rule `root`, or one that begins with itself.
    #[error("it is not a grammar with a rule `root` that llama.cpp can follow; see its GBNF guide")]
    NotAGrammar,
    /// The schema is no JSON.
    #[error("it is not valid JSON: {0}")]
    NotJson(String),
    /// A pattern of the schema would not be followed.
    #[error("a pattern can't be followed; begin it with ^, end it with $, and use no (?…) in it")]
    Pattern,
    /// The schema asks for what can't be expressed.
    #[error("it is not a JSON schema that can be made a grammar; use simpler keywords")]
    NotASchema,
}

/// A text that can't be tokenized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// Longer than the tokenizer can count.
    #[error("the text has {0} bytes; shorten it to less than 2 GiB")]
    TooLong(usize),
}

/// Why messages did not become a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// There is nothing to answer.
    #[error("messages is empty; send at least one")]
    NoMessages,
    /// The model is not made for conversations.
    #[error("this model has no chat template; use /v1/completions")]
    NoTemplate,
    /// The model's template does not take these messages.
    #[error("the model's chat template refuses these messages: {reason}")]
    Refused {
        /// In the template's own words.
        reason: String,
    },
    /// Rendering took more than it may.
    #[error("the messages are too many for the model's chat template; send fewer")]
    TooMany,
    /// The template itself is wrong.
    #[error("the model's chat template failed: {why}")]
    Broken {
        /// What went wrong.
        why: String,
    },
}

impl TemplateError {
    /// Whether the caller can mend it: a 400 that names `messages`, not a failure of ours.
    pub const fn is_callers(&self) -> bool {
        match self {
            Self::NoMessages | Self::NoTemplate | Self::Refused { .. } | Self::TooMany => true,
            Self::Broken { .. } => false,
        }
    }
}
