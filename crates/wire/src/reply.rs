//! Answers of the two completion endpoints, in OpenAI's shape.
//!
//! [`Answer`] writes a whole body, [`ChunkWriter`] the events of a stream; both append to the
//! caller's buffer and keep nothing of what they wrote. What a
//! request may ask for, and when to send what, is not decided here.

mod chunks;
mod logprobs;
#[cfg(test)]
mod tests;

use crate::json_text::push_json;
use crate::tools::ToolCall;

pub use chunks::{CallOpening, ChunkWriter, Piece, StreamUsage};
pub use logprobs::{Likely, Logprob};

/// What every body and every chunk of one answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp<'a> {
    /// Identifier of the answer: `chatcmpl-…` for chats, `cmpl-…` for texts.
    pub id: &'a str,
    /// When the answer was begun, in seconds since the Unix epoch.
    pub created: u64,
    /// The model name to show: the name by which the caller asked.
    pub model: &'a str,
    /// What the answer depends on besides the request; left out of the reply when `None`.
    pub system_fingerprint: Option<&'a str>,
}

impl Stamp<'_> {
    /// Appends the opening brace and the members that all replies begin with.
    fn open(&self, object: &'static str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_json(out, self.id);
        out.extend_from_slice(b",\"object\":");
        push_json(out, object);
        out.extend_from_slice(b",\"created\":");
        push_json(out, &self.created);
        out.extend_from_slice(b",\"model\":");
        push_json(out, self.model);
        if let Some(fingerprint) = self.system_fingerprint {
            out.extend_from_slice(b",\"system_fingerprint\":");
            push_json(out, fingerprint);
        }
    }
}

/// Why an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string matched.
    Stop,
    /// The output limit or the context was reached.
    Length,
    /// The model called a tool and waits for what comes of it.
    ToolCalls,
}

impl FinishReason {
    /// As OpenAI spells it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// Token counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, the cached ones included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Those of the prompt tokens whose computation was reused; at most `prompt_tokens`.
    pub cached_tokens: u64,
}

impl Usage {
    /// Appends the JSON object.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"prompt_tokens\":");
        push_json(out, &self.prompt_tokens);
        out.extend_from_slice(b",\"completion_tokens\":");
        push_json(out, &self.completion_tokens);
        out.extend_from_slice(b",\"total_tokens\":");
        push_json(
            out,
            &self.prompt_tokens.saturating_add(self.completion_tokens),
        );
        out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
        push_json(out, &self.cached_tokens);
        out.extend_from_slice(b"}}");
    }
}

/// A whole answer, for a reply that is not streamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer<'a> {
    /// Its choices, by their index.
    pub choices: &'a [Choice],
    /// What it took.
    pub usage: Usage,
}

/// One of the texts of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// All of it, but for the calls in it.
    pub text: String,
    /// The calls in it, in order.
    pub calls: Vec<ToolCall>,
    /// Why it is over.
    pub finish: FinishReason,
    /// How likely its tokens were, where that was asked for.
    pub logprobs: Option<Vec<Logprob>>,
}

impl Answer<'_> {
    /// Appends the body of `POST /v1/chat/completions`.
    pub fn write_chat(&self, stamp: &Stamp<'_>, out: &mut Vec<u8>) {
        stamp.open("chat.completion", out);
        self.write_choices(out, |choice, out| {
            out.extend_from_slice(b"\"message\":{\"role\":\"assistant\",\"content\":");
            if choice.text.is_empty() && !choice.calls.is_empty() {
                out.extend_from_slice(b"null");
            } else {
                push_json(out, &choice.text);
            }
            out.extend_from_slice(b",\"refusal\":null");
            write_calls(&choice.calls, out);
            out.extend_from_slice(b"},\"logprobs\":");
            match &choice.logprobs {
                Some(logprobs) => logprobs::write_chat(logprobs, out),
                None => out.extend_from_slice(b"null"),
            }
        });
    }

    /// Appends the body of `POST /v1/completions`.
    pub fn write_text(&self, stamp: &Stamp<'_>, out: &mut Vec<u8>) {
        stamp.open("text_completion", out);
        self.write_choices(out, |choice, out| {
            out.extend_from_slice(b"\"text\":");
            push_json(out, &choice.text);
            out.extend_from_slice(b",\"logprobs\":");
            match &choice.logprobs {
                Some(logprobs) => logprobs::write_text(logprobs, 0, out),
                None => out.extend_from_slice(b"null"),
            }
        });
    }

    /// Appends the choices and the end of the body; `body` writes what differs.
    fn write_choices(&self, out: &mut Vec<u8>, body: impl Fn(&Choice, &mut Vec<u8>)) {
        out.extend_from_slice(b",\"choices\":[");
        for (index, choice) in self.choices.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"index\":");
            push_json(out, &index);
            out.push(b',');
            body(choice, out);
            out.extend_from_slice(b",\"finish_reason\":");
            push_json(out, choice.finish.label());
            out.push(b'}');
        }
        out.extend_from_slice(b"],\"usage\":");
        self.usage.write(out);
        out.push(b'}');
    }
}

/// Appends the calls of a message; nothing where there are none.
fn write_calls(calls: &[ToolCall], out: &mut Vec<u8>) {
    for (index, call) in calls.iter().enumerate() {
        let before: &[u8] = if index == 0 {
            b",\"tool_calls\":[{\"id\":"
        } else {
            b",{\"id\":"
        };
        out.extend_from_slice(before);
        push_json(out, &call.id);
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        push_json(out, &call.name);
        out.extend_from_slice(b",\"arguments\":");
        push_json(out, &call.arguments);
        out.extend_from_slice(b"}}");
    }
    if !calls.is_empty() {
        out.push(b']');
    }
}
