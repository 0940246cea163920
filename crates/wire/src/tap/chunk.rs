//! What one chunk of an answer says, whatever its engine adds to it.
//!
//! Nothing that is not understood is a mistake here: a member of another type than expected counts
//! as absent, since the chunk goes on to the client as it is anyhow. Only what is not a JSON object
//! is no chunk.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EngineError, ErrorShape, Finish};
use crate::measure::{each_text, text_bytes};
use crate::reply::Usage;

/// What an event's data is.
pub(crate) enum Said<'a> {
    Chunk(Chunk<'a>),
    Error(EngineError),
}

/// Whether a chunk has choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choices {
    /// The member is missing.
    Absent,
    /// An empty list.
    None,
    Some,
}

/// One chunk, read.
pub(crate) struct Chunk<'a> {
    pub(super) choices: Choices,
    pub(super) deltas: u64,
    pub(crate) text_bytes: u64,
    pub(super) finished: u32,
    pub(crate) finish: Option<Finish>,
    pub(crate) usage: Option<Usage>,
    /// The text of its one choice, where it says nothing else: a JSON string.
    plain: Option<&'a str>,
    members: Members<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Members<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    created: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    param: Option<&'a RawValue>,
    #[serde(borrow)]
    timings: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
}

/// Reads an event's data; `None` where it is not a JSON object.
pub(crate) fn read_chunk(data: &[u8]) -> Option<Said<'_>> {
    let members = members_of(data)?;
    if let Some(error) = error_in(&members) {
        return Some(Said::Error(error));
    }
    let mut chunk = Chunk {
        choices: Choices::Absent,
        deltas: 0,
        text_bytes: 0,
        finished: 0,
        finish: None,
        usage: read_usage(members.usage, members.timings),
        plain: None,
        members,
    };
    chunk.read_choices();
    Some(Said::Chunk(chunk))
}

/// Reads an error in whatever shape; what is no JSON is its own message.
pub(super) fn read_error(data: &[u8]) -> EngineError {
    let text = String::from_utf8_lossy(data);
    let members: Result<Members<'_>, _> = serde_json::from_str(&text);
    match members {
        Ok(members) => error_in(&members).unwrap_or_else(|| error_of(&members)),
        Err(_) => EngineError {
            message: bounded(&text),
            ..EngineError::default()
        },
    }
}

/// What an engine's error body says, for one that is not in a stream.
pub(crate) fn error_body(body: &[u8]) -> Option<EngineError> {
    error_in(&members_of(body)?)
}

/// The members of an object; serde would take a list for one too.
fn members_of(data: &[u8]) -> Option<Members<'_>> {
    let text = std::str::from_utf8(data).ok()?;
    let object = text.trim_ascii_start().starts_with('{');
    serde_json::from_str(text).ok().filter(|_| object)
}

/// An error that is there: under `error`, or as vLLM once put it, as the object itself.
fn error_in(members: &Members<'_>) -> Option<EngineError> {
    match members.error.map(RawValue::get) {
        None | Some("null" | "false") => {
            let object: Option<Cow<'_, str>> = lenient(members.object);
            (object.as_deref() == Some("error")).then(|| error_of(members))
        }
        Some(error) => {
            let inner: Members<'_> = serde_json::from_str(error).unwrap_or_default();
            let mut read = error_of(&inner);
            let code_fits = inner.code.is_none_or(|code| code.get() == "null")
                || lenient_text(inner.code).is_some();
            if lenient_text(inner.message).is_some() && code_fits {
                read.shape = ErrorShape::OpenAi;
            } else if read.message.is_empty() {
                read.message = bounded(&lenient_text(members.error).unwrap_or_default());
            }
            Some(read)
        }
    }
}

fn error_of(members: &Members<'_>) -> EngineError {
    let status = members.code.and_then(|code| {
        let digits = code.get().trim_matches('"');
        digits.parse().ok().filter(|code| (400..600).contains(code))
    });
    let text = |value| lenient_text(value).map(|text| bounded(&text));
    EngineError {
        status,
        message: text(members.message).unwrap_or_default(),
        kind: text(members.kind),
        param: text(members.param),
        code: text(members.code),
        shape: ErrorShape::Other,
    }
}

fn bounded(text: &str) -> String {
    let mut end = text.len().min(EngineError::MESSAGE_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl<'a> Chunk<'a> {
    fn read_choices(&mut self) {
        let Some(choices) = self.members.choices else {
            return;
        };
        let choices: Vec<Choice<'a>> = serde_json::from_str(choices.get()).unwrap_or_default();
        self.choices = match choices.as_slice() {
            [] => Choices::None,
            _ => Choices::Some,
        };
        for choice in &choices {
            let texts = [choice.delta, choice.message, choice.text];
            let bytes = texts.into_iter().flatten().map(text_bytes).sum::<u64>();
            self.text_bytes += bytes;
            self.deltas += u64::from(bytes > 0);
            if let Some(finish) = finish_of(choice.finish_reason) {
                self.finish = Some(finish);
                self.finished = self.finished.saturating_add(1);
            }
        }
        if let [only] = choices.as_slice()
            && self.finished == 0
            && self.usage.is_none()
        {
            self.plain = plain_text(only, self.text_bytes);
        }
    }

    /// Hands on each text in its choices, in order.
    pub(crate) fn each_text(&self, on_text: &mut dyn FnMut(&str)) {
        let choices = self.members.choices.map_or("[]", RawValue::get);
        let choices: Vec<Choice<'a>> = serde_json::from_str(choices).unwrap_or_default();
        for choice in &choices {
            let texts = [choice.delta, choice.message, choice.text];
            for text in texts.into_iter().flatten() {
                each_text(text.get(), on_text);
            }
        }
    }

    /// The members that every chunk of the answer has, each with its comma.
    pub(super) fn stamp(&self, most: usize) -> Vec<u8> {
        let members = &self.members;
        let each = [
            ("id", members.id),
            ("object", members.object),
            ("created", members.created),
            ("model", members.model),
        ];
        let mut stamp = Vec::new();
        for (name, value) in each {
            if let Some(value) = value.map(RawValue::get)
                && stamp.len() + value.len() + 12 <= most
            {
                stamp.extend_from_slice(format!("\"{name}\":{value},").as_bytes());
            }
        }
        stamp
    }

    /// How an event looks around its text, where the text is all that is new in it.
    pub(super) fn shape(&self, data: &[u8], event: &[u8]) -> Option<Shape> {
        let text = self.plain?;
        // Of an event whose data is one line, and so lies in it as it is.
        let start = text.as_ptr().addr().checked_sub(event.as_ptr().addr())?;
        let end = start.checked_add(text.len())?;
        let within = data.as_ptr().addr() >= event.as_ptr().addr() && end <= event.len();
        (within && text.len() >= 2).then(|| Shape {
            before: event[..=start].to_vec(),
            after: event[end - 1..].to_vec(),
        })
    }
}

/// The text of a choice that has nothing else that counts.
fn plain_text<'a>(choice: &Choice<'a>, all: u64) -> Option<&'a str> {
    let text = match (choice.delta, choice.text) {
        (Some(delta), None) => {
            let delta: Delta<'a> = serde_json::from_str(delta.get()).ok()?;
            match (delta.content, delta.reasoning_content) {
                (Some(text), None) | (None, Some(text)) => text,
                (Some(content), Some(reasoning)) if reasoning.get() == "null" => content,
                (Some(content), Some(reasoning)) if content.get() == "null" => reasoning,
                (Some(_), Some(_)) | (None, None) => return None,
            }
        }
        (None, Some(text)) => text,
        (Some(_), Some(_)) | (None, None) => return None,
    };
    (text.get().starts_with('"') && text_bytes(text) == all).then(|| text.get())
}

/// An event like the last one but for its text.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Up to and with the quote before the text.
    before: Vec<u8>,
    /// From the quote after it.
    after: Vec<u8>,
}

impl Shape {
    /// The bytes of text in an event of this shape; `None` for all others, and for text with an
    /// escape in it.
    pub(super) fn text_of(&self, event: &[u8]) -> Option<u64> {
        let text = event.strip_prefix(self.before.as_slice())?;
        let text = text.strip_suffix(self.after.as_slice())?;
        let plain = |byte: &u8| *byte >= b' ' && *byte != b'"' && *byte != b'\\';
        if !text.iter().all(plain) {
            return None;
        }
        u64::try_from(text.len()).ok()
    }
}

/// The reason for a choice's end, if it has one.
fn finish_of(reason: Option<&RawValue>) -> Option<Finish> {
    match reason?.get() {
        "null" | "\"\"" => None,
        "\"stop\"" => Some(Finish::Stop),
        "\"length\"" => Some(Finish::Length),
        "\"tool_calls\"" | "\"function_call\"" => Some(Finish::ToolCalls),
        _ => Some(Finish::Other),
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct UsageMembers<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
}

/// What llama.cpp's server says beside usage, and where usage is missing instead of it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Timings<'a> {
    #[serde(borrow)]
    cache_n: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_n: Option<&'a RawValue>,
    #[serde(borrow)]
    predicted_n: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

/// The usage that is there, in any of its shapes.
fn read_usage(usage: Option<&RawValue>, timings: Option<&RawValue>) -> Option<Usage> {
    let number = |value: Option<&RawValue>| value.and_then(|value| value.get().parse().ok());
    let members: UsageMembers<'_> = lenient(usage).unwrap_or_default();
    let prompt = number(members.prompt_tokens).or_else(|| number(members.input_tokens));
    let output = number(members.completion_tokens).or_else(|| number(members.output_tokens));
    let details = members
        .prompt_tokens_details
        .or(members.input_tokens_details);
    let details: Details<'_> = lenient(details).unwrap_or_default();
    if prompt.is_some() || output.is_some() {
        let prompt = prompt.unwrap_or_default();
        let cached: u64 = number(details.cached_tokens).unwrap_or_default();
        return Some(Usage {
            prompt_tokens: prompt,
            completion_tokens: output.unwrap_or_default(),
            cached_tokens: cached.min(prompt),
        });
    }
    let timings: Timings<'_> = lenient(timings).unwrap_or_default();
    let output: u64 = number(timings.predicted_n)?;
    let cached: u64 = number(timings.cache_n).unwrap_or_default();
    let computed: u64 = number(timings.prompt_n).unwrap_or_default();
    Some(Usage {
        prompt_tokens: computed.saturating_add(cached),
        completion_tokens: output,
        cached_tokens: cached,
    })
}

/// A value, if it is there and of this type.
fn lenient<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(value?.get()).ok()
}

fn lenient_text<'a>(value: Option<&'a RawValue>) -> Option<Cow<'a, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    lenient(value).map(|Text(text)| text)
}
