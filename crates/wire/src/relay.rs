//! A request that is passed on to an engine in another process: read as far as a gateway must, and
//! edited where it must be.
//!
//! Unknown members pass; so does whatever the engine is to judge. What is read here is what limits,
//! queue and ledger need, and an edit is a [`Patch`] of the sender's own bytes: no byte outside it
//! changes, no number is rounded, no member moves.

use std::num::NonZeroU32;
use std::ops::Range;

use serde_json::value::RawValue;

use crate::bad_request::BadRequest;
use crate::fields::{Field, Fields, Kind};
use crate::json_text::push_json;
use crate::measure::{PromptSize, each_text, measure};
use crate::params::{Delivery, flag, model, positive};

/// Which kind of body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayKind {
    /// Of `/v1/chat/completions`.
    Chat,
    /// Of `/v1/completions`.
    Text,
    /// Of `/v1/embeddings`.
    Embeddings,
}

impl RelayKind {
    /// The member that holds the prompt.
    pub const fn prompt(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Text => "prompt",
            Self::Embeddings => "input",
        }
    }
}

/// A request, as far as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The model's name or alias as sent: not empty, of any length, not yet looked up.
    pub model: String,
    /// The most output tokens of each answer.
    pub max_output: Option<NonZeroU32>,
    /// How the answer is sent.
    pub delivery: Delivery,
    /// Answers, to all prompts together; 1 to 262,144.
    pub answers: u32,
    /// How much there is to read.
    pub size: PromptSize,
    /// Where in the body the prompt stands.
    pub prompt: Range<usize>,
    /// Where its tools do, if it has any.
    tools: Option<Range<usize>>,
    places: Places,
}

/// Where the members stand that may be edited: their values, as ranges of the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places {
    /// Behind the opening brace.
    inside: usize,
    model: Range<usize>,
    stream_options: Option<StreamOptions>,
    /// `max_completion_tokens` and `max_tokens`, where they are there.
    output: [Option<Range<usize>>; 2],
    cache_salt: Option<Range<usize>>,
    priority: Option<Range<usize>>,
}

/// How a request asks for usage in its stream, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StreamOptions {
    /// It does.
    Asks,
    /// The member is there, and is no object.
    Other(Range<usize>),
    /// An object without the member, and whether it is empty: where its inside begins.
    Silent { inside: usize, empty: bool },
    /// An object that says no: where.
    Refuses(Range<usize>),
}

/// What is to be different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edits<'e> {
    /// The name by which the engine knows the model.
    pub model: Option<&'e str>,
    /// A stream is to end with a chunk that tells the usage.
    pub include_usage: bool,
    /// The most output tokens that this caller may have.
    pub max_output: Option<NonZeroU32>,
    /// Whose prefixes it may share.
    pub cache_salt: Option<&'e str>,
    /// Its place in the engine's own order.
    pub priority: Option<i64>,
}

/// One change of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// What is replaced; empty where something is put in.
    pub at: Range<usize>,
    /// By what.
    pub with: Vec<u8>,
}

impl Relay {
    /// Prompts that one request may have.
    pub const MAX_PROMPTS: usize = 2048;

    /// Reads a body.
    ///
    /// # Errors
    /// The first mistake found, naming its parameter.
    pub fn read(kind: RelayKind, body: &[u8]) -> Result<Self, BadRequest> {
        let fields = Fields::of_body(body)?;
        let prompt = fields.require(kind.prompt(), "send a prompt for the model to read")?;
        if kind == RelayKind::Chat && prompt.kind() != Kind::Array {
            return Err(prompt.wrong_type("use an array of messages"));
        }
        let [preferred, other] = [
            positive(&fields, "max_completion_tokens")?,
            positive(&fields, "max_tokens")?,
        ];
        let choices = fields.get("n").map(|field| {
            let count = field.integer(1..=128, "use a whole number from 1 to 128")?;
            Ok(u32::try_from(count).unwrap_or(1))
        });
        let prompts = prompts(kind, &prompt)?;
        let mut size = measure(prompt.json());
        let tools = fields.get("tools").map(|tools| range(tools.json(), body));
        size.text_bytes += tools.as_ref().map_or(0, |tools| length(tools.len()));
        Ok(Self {
            model: model(&fields)?,
            max_output: preferred.or(other),
            delivery: delivery(kind, &fields)?,
            answers: prompts.saturating_mul(choices.transpose()?.unwrap_or(1)),
            size,
            prompt: range(prompt.json(), body),
            tools,
            places: Places::of(&fields, body)?,
        })
    }

    /// Hands on each text that the model is to read: those of the prompt one by one, then the tools
    /// as they stand. `body` is the one that this was read from.
    pub fn each_text(&self, body: &[u8], on_text: &mut dyn FnMut(&str)) {
        if let Some(prompt) = text(body, &self.prompt) {
            each_text(prompt, on_text);
        }
        if let Some(tools) = self.tools.as_ref().and_then(|tools| text(body, tools)) {
            on_text(tools);
        }
    }

    /// How many messages, or prompts in a list, there are.
    pub fn messages(&self, body: &[u8]) -> u64 {
        let list = text(body, &self.prompt).filter(|prompt| prompt.starts_with('['));
        let list: Option<Vec<&RawValue>> = list.and_then(|list| serde_json::from_str(list).ok());
        list.map_or(1, |list| length(list.len()))
    }

    /// The changes that `edits` need, in the order of the body.
    pub fn patches(&self, edits: &Edits<'_>) -> Vec<Patch> {
        let mut patches = Vec::new();
        let mut added = Vec::new();
        if let Some(model) = edits.model.filter(|model| *model != self.model) {
            patches.push(Patch {
                at: self.places.model.clone(),
                with: json(model),
            });
        }
        if edits.include_usage && self.delivery.stream {
            match self
                .places
                .stream_options
                .as_ref()
                .map(StreamOptions::mended)
            {
                Some(patch) => patches.extend(patch),
                None => added.extend_from_slice(b"\"stream_options\":{\"include_usage\":true},"),
            }
        }
        self.cap_output(edits.max_output, &mut patches, &mut added);
        let salt = edits.cache_salt.map(json);
        let priority = edits.priority.map(|priority| json(&priority));
        let members = [
            ("cache_salt", salt, &self.places.cache_salt),
            ("priority", priority, &self.places.priority),
        ];
        for (name, value, place) in members {
            match (value, place) {
                (Some(with), Some(at)) => patches.push(Patch {
                    at: at.clone(),
                    with,
                }),
                (Some(value), None) => {
                    added.extend_from_slice(format!("\"{name}\":").as_bytes());
                    added.extend_from_slice(&value);
                    added.push(b',');
                }
                (None, _) => {}
            }
        }
        if !added.is_empty() {
            let inside = self.places.inside;
            patches.push(Patch {
                at: inside..inside,
                with: added,
            });
        }
        patches.sort_by_key(|patch| patch.at.start);
        patches
    }

    /// An answer may be no longer than its caller's limit.
    fn cap_output(&self, most: Option<NonZeroU32>, patches: &mut Vec<Patch>, added: &mut Vec<u8>) {
        let Some(most) = most.filter(|most| self.max_output.is_none_or(|asked| asked > *most))
        else {
            return;
        };
        let places = self.places.output.iter().flatten();
        let before = patches.len();
        patches.extend(places.map(|at| Patch {
            at: at.clone(),
            with: json(&most.get()),
        }));
        if patches.len() == before {
            added.extend_from_slice(format!("\"max_tokens\":{most},").as_bytes());
        }
    }
}

/// A body with its patches applied.
pub fn patched(body: &[u8], patches: &[Patch]) -> Vec<u8> {
    let grown = patches.iter().map(|patch| patch.with.len()).sum::<usize>();
    let mut out = Vec::with_capacity(body.len() + grown);
    let mut at = 0;
    for patch in patches {
        out.extend_from_slice(&body[at..patch.at.start]);
        out.extend_from_slice(&patch.with);
        at = patch.at.end;
    }
    out.extend_from_slice(&body[at..]);
    out
}

impl Places {
    fn of(fields: &Fields<'_, '_>, body: &[u8]) -> Result<Self, BadRequest> {
        let place = |name: &str| Some(range(fields.raw(name)?, body));
        let options = fields.raw("stream_options");
        Ok(Self {
            inside: body.iter().position(|byte| *byte == b'{').unwrap_or(0) + 1,
            model: place("model").unwrap_or_default(),
            stream_options: options
                .map(|_| StreamOptions::of(fields, body))
                .transpose()?,
            output: [place("max_completion_tokens"), place("max_tokens")],
            cache_salt: place("cache_salt"),
            priority: place("priority"),
        })
    }
}

impl StreamOptions {
    fn of(fields: &Fields<'_, '_>, body: &[u8]) -> Result<Self, BadRequest> {
        let raw = fields.raw("stream_options").unwrap_or_default();
        let whole = range(raw, body);
        let Some(options) = fields
            .get("stream_options")
            .filter(|options| options.kind() == Kind::Object)
        else {
            return Ok(Self::Other(whole));
        };
        let options = options.object("use an object like {\"include_usage\": true}")?;
        Ok(match options.raw("include_usage") {
            Some("true") => Self::Asks,
            Some(value) => Self::Refuses(range(value, body)),
            None => Self::Silent {
                inside: whole.start + 1,
                empty: raw[1..raw.len() - 1].trim_ascii().is_empty(),
            },
        })
    }

    fn mended(&self) -> Option<Patch> {
        let (at, with) = match self {
            Self::Asks => return None,
            Self::Other(at) => (at.clone(), &b"{\"include_usage\":true}"[..]),
            Self::Silent {
                inside,
                empty: true,
            } => (*inside..*inside, &b"\"include_usage\":true"[..]),
            Self::Silent {
                inside,
                empty: false,
            } => (*inside..*inside, &b"\"include_usage\":true,"[..]),
            Self::Refuses(at) => (at.clone(), &b"true"[..]),
        };
        Some(Patch {
            at,
            with: with.to_vec(),
        })
    }
}

/// Where `part`, which was cut out of `body`, stands in it.
fn range(part: &str, body: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr().saturating_sub(body.as_ptr().addr());
    start..start + part.len()
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    push_json(&mut out, value);
    out
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A part of a body that has been read as text.
fn text<'b>(body: &'b [u8], part: &Range<usize>) -> Option<&'b str> {
    std::str::from_utf8(body.get(part.clone())?).ok()
}

/// Reads less strictly than for an engine of ours: what makes no sense together is for the engine
/// to say.
fn delivery(kind: RelayKind, fields: &Fields<'_, '_>) -> Result<Delivery, BadRequest> {
    let stream = kind != RelayKind::Embeddings && flag(fields, "stream")?;
    let options = fields
        .get("stream_options")
        .filter(|options| stream && options.kind() == Kind::Object);
    let asked = options.is_some_and(|options| {
        let options = options.object("use an object");
        options.is_ok_and(|options| options.raw("include_usage") == Some("true"))
    });
    Ok(Delivery {
        stream,
        include_usage: asked,
    })
}

/// How many prompts there are: a list of texts or of lists is several, one of numbers is one.
fn prompts(kind: RelayKind, prompt: &Field<'_, '_>) -> Result<u32, BadRequest> {
    let rule = "use a text, or an array of 1 to 2048";
    let inner = prompt.json().strip_prefix('[').map(str::trim_ascii_start);
    let many = inner.is_some_and(|inner| inner.starts_with(['"', '[', '{']));
    if kind != RelayKind::Text || !many {
        return Ok(1);
    }
    let count = prompt.items(Relay::MAX_PROMPTS, rule)?.iter().count();
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
