//! What a body asks of an engine: how many tokens of what, and in which form.
//!
//! A byte is a token, and a chat is the text of its messages with their roles, as the fake engine
//! counts. It reads what it needs and lets everything else pass.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;

use super::Shared;

/// Bytes in a block of KV.
const BLOCK: usize = 16;

/// Which of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) streams: bool,
    pub(super) include_usage: bool,
    /// Tokens of the prompt; at least 1.
    pub(super) prompt: u64,
    /// Tokens of the output; at least 1.
    pub(super) output: u64,
    /// A name for each leading full block of the prompt.
    pub(super) names: Arc<[u64]>,
}

/// Why a body asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) param: Option<&'static str>,
    pub(super) code: Option<&'static str>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    prompt: Option<Texts<'a>>,
    max_completion_tokens: Option<u64>,
    max_tokens: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(borrow)]
    cache_salt: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<Texts<'a>>,
}

/// A text, or an array of parts with texts; what has no text counts as none.
#[derive(Deserialize)]
#[serde(untagged)]
enum Texts<'a> {
    One(#[serde(borrow)] Cow<'a, str>),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Token(u64),
    Other { text: Option<String> },
}

impl Texts<'_> {
    fn add_to(&self, prompt: &mut Vec<u8>) {
        match self {
            Self::One(text) => prompt.extend_from_slice(text.as_bytes()),
            Self::Parts(parts) => {
                for part in parts {
                    match part {
                        Part::Text(text) | Part::Other { text: Some(text) } => {
                            prompt.extend_from_slice(text.as_bytes());
                        }
                        Part::Token(token) => {
                            prompt.push(u8::try_from(token % 251).unwrap_or_default());
                        }
                        Part::Other { text: None } => {}
                    }
                }
            }
        }
    }
}

impl Ask {
    /// Reads a body.
    pub(super) fn read(kind: Kind, body: &[u8], shared: &Shared) -> Result<Self, Wrong> {
        let body: Body<'_> = serde_json::from_slice(body).map_err(|error| Wrong {
            status: 400,
            message: format!("the body is no such request: {error}"),
            param: None,
            code: None,
        })?;
        if !shared
            .settings
            .models
            .iter()
            .any(|name| *name == body.model)
        {
            return Err(Wrong {
                status: 404,
                message: format!("The model `{}` does not exist.", body.model),
                param: Some("model"),
                code: Some("model_not_found"),
            });
        }
        let prompt = body.rendered(kind)?;
        let tokens = u64::try_from(prompt.len()).unwrap_or(u64::MAX).max(1);
        let asked = match kind {
            Kind::Chat => body.max_completion_tokens.or(body.max_tokens),
            Kind::Text => body.max_tokens,
        };
        let room = shared.context().saturating_sub(tokens);
        let default = shared.settings.output_default.min(room.max(1));
        let output = asked.unwrap_or(default);
        if output == 0 || tokens.saturating_add(output) > shared.context() {
            return Err(Wrong {
                status: 400,
                message: format!(
                    "This model's maximum context length is {} tokens. However, you requested \
                     {output} output tokens and your prompt contains {tokens} tokens.",
                    shared.context()
                ),
                param: None,
                code: Some("context_length_exceeded"),
            });
        }
        let salt = body.cache_salt.as_deref().unwrap_or_default();
        let options = body.stream_options.as_ref();
        Ok(Self {
            kind,
            streams: body.stream == Some(true),
            include_usage: options.is_some_and(|options| options.include_usage == Some(true)),
            prompt: tokens,
            output,
            names: names(salt, &prompt),
            model: body.model.into_owned(),
        })
    }
}

impl Body<'_> {
    /// The prompt as the engine sees it.
    fn rendered(&self, kind: Kind) -> Result<Vec<u8>, Wrong> {
        let missing = |param| Wrong {
            status: 400,
            message: format!("`{param}` is missing"),
            param: Some(param),
            code: None,
        };
        let mut prompt = Vec::new();
        match kind {
            Kind::Chat => {
                let messages = self.messages.as_ref().ok_or_else(|| missing("messages"))?;
                for message in messages {
                    prompt.extend_from_slice(message.role.as_bytes());
                    prompt.extend_from_slice(b": ");
                    if let Some(content) = &message.content {
                        content.add_to(&mut prompt);
                    }
                    prompt.push(b'\n');
                }
                prompt.extend_from_slice(b"assistant: ");
            }
            Kind::Text => {
                let texts = self.prompt.as_ref().ok_or_else(|| missing("prompt"))?;
                texts.add_to(&mut prompt);
            }
        }
        Ok(prompt)
    }
}

/// A name for each full block, which stands for all that comes before it too. Another salt, other
/// names.
fn names(salt: &str, prompt: &[u8]) -> Arc<[u64]> {
    let mut state = fnv(0xcbf2_9ce4_8422_2325, salt.as_bytes());
    let blocks = prompt.chunks_exact(BLOCK).map(|block| {
        state = fnv(state, block);
        state
    });
    blocks.collect()
}

/// FNV-1a, 64 bits (Fowler, Noll and Vo): equal texts are all that is looked for here, and nobody
/// who sends them gains from a collision.
fn fnv(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
