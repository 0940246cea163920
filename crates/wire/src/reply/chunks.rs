//! The events of a streamed answer.
//!
//! What stays the same from chunk to chunk is rendered once, when the stream begins; a token then
//! costs two copies and the escaping of its text. The writer keeps no state of the stream: the
//! caller sends the events in order, and ends with [`crate::sse::write_done`].

use super::logprobs::{self, Logprob};
use super::{FinishReason, Stamp, Usage};
use crate::json_text::push_json;

/// Whether a stream tells its token counts (`stream_options.include_usage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUsage {
    /// It does not, and no chunk has a `usage` member.
    Omitted,
    /// One more chunk at the end has them, and `usage` is null on all before it.
    Final,
}

/// A piece of one choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'a> {
    /// Which choice.
    pub choice: u32,
    /// Its next text.
    pub text: &'a str,
    /// Characters of that choice before it.
    pub offset: usize,
    /// How likely its tokens were, where that was asked for.
    pub logprobs: Option<&'a [Logprob]>,
}

/// The beginning of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOpening<'a> {
    /// Which call of its choice, from 0.
    pub index: usize,
    /// Names the call.
    pub id: &'a str,
    /// The tool.
    pub name: &'a str,
}

/// Writes the events of one streamed answer, each complete with its `data: ` and its blank line.
///
/// Order of calls: [`opening`](Self::opening) once for each choice, [`content`](Self::content) for
/// each piece of text, [`finish`](Self::finish) once for each choice, and
/// [`usage`](Self::usage) once if the stream was begun with [`StreamUsage::Final`].
/// `finish_reason` is null before `finish`.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    /// `data: ` and the JSON up to the elements of `choices`.
    head: Vec<u8>,
    shape: Shape,
    usage: StreamUsage,
}

/// Which endpoint the chunks are for.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Chat,
    Text,
}

impl ChunkWriter {
    /// For a stream of `POST /v1/chat/completions`.
    pub fn chat(stamp: &Stamp<'_>, usage: StreamUsage) -> Self {
        Self::new(stamp, Shape::Chat, usage)
    }

    /// For a stream of `POST /v1/completions`.
    pub fn text(stamp: &Stamp<'_>, usage: StreamUsage) -> Self {
        Self::new(stamp, Shape::Text, usage)
    }

    fn new(stamp: &Stamp<'_>, shape: Shape, usage: StreamUsage) -> Self {
        let object = match shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Text => "text_completion",
        };
        let mut head = b"data: ".to_vec();
        stamp.open(object, &mut head);
        head.extend_from_slice(b",\"choices\":[");
        Self { head, shape, usage }
    }

    /// Appends the event that names the role. Chats have it; for texts this appends nothing.
    pub fn opening(&self, choice: u32, out: &mut Vec<u8>) {
        match self.shape {
            Shape::Chat => {
                self.open(choice, out);
                out.extend_from_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
                self.close(None, out);
            }
            Shape::Text => {}
        }
    }

    /// Appends the event with the next piece of the answer.
    pub fn content(&self, piece: Piece<'_>, out: &mut Vec<u8>) {
        self.open(piece.choice, out);
        match self.shape {
            Shape::Chat => {
                out.extend_from_slice(b"\"delta\":{\"content\":");
                push_json(out, piece.text);
                out.push(b'}');
            }
            Shape::Text => {
                out.extend_from_slice(b"\"text\":");
                push_json(out, piece.text);
            }
        }
        let Some(logprobs) = piece.logprobs else {
            return self.close(None, out);
        };
        out.extend_from_slice(b",\"logprobs\":");
        match self.shape {
            Shape::Chat => logprobs::write_chat(logprobs, out),
            Shape::Text => logprobs::write_text(logprobs, piece.offset, out),
        }
        out.extend_from_slice(b",\"finish_reason\":null");
        self.end(out);
    }

    /// Appends the event with which a call begins: its id, its type and the name of its tool.
    pub fn call(&self, choice: u32, call: CallOpening<'_>, out: &mut Vec<u8>) {
        self.open(choice, out);
        out.extend_from_slice(b"\"delta\":{\"tool_calls\":[{\"index\":");
        push_json(out, &call.index);
        out.extend_from_slice(b",\"id\":");
        push_json(out, call.id);
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        push_json(out, call.name);
        out.extend_from_slice(b",\"arguments\":\"\"}}]}");
        self.close(None, out);
    }

    /// Appends the event with more of the arguments of the call at `index`.
    pub fn arguments(&self, choice: u32, index: usize, json: &str, out: &mut Vec<u8>) {
        self.open(choice, out);
        out.extend_from_slice(b"\"delta\":{\"tool_calls\":[{\"index\":");
        push_json(out, &index);
        out.extend_from_slice(b",\"function\":{\"arguments\":");
        push_json(out, json);
        out.extend_from_slice(b"}}]}");
        self.close(None, out);
    }

    /// Appends the event that says why a choice is over. It carries no text.
    pub fn finish(&self, choice: u32, reason: FinishReason, out: &mut Vec<u8>) {
        let empty: &[u8] = match self.shape {
            Shape::Chat => b"\"delta\":{}",
            Shape::Text => b"\"text\":\"\"",
        };
        self.open(choice, out);
        out.extend_from_slice(empty);
        self.close(Some(reason), out);
    }

    /// Appends the event with the token counts. Nothing if the stream was begun with
    /// [`StreamUsage::Omitted`]: a client that did not ask may not expect an empty `choices`.
    pub fn usage(&self, usage: Usage, out: &mut Vec<u8>) {
        match self.usage {
            StreamUsage::Omitted => {}
            StreamUsage::Final => {
                out.extend_from_slice(&self.head);
                out.extend_from_slice(b"],\"usage\":");
                usage.write(out);
                out.extend_from_slice(b"}\n\n");
            }
        }
    }

    /// Appends an event up to the own part of its one choice.
    fn open(&self, choice: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b"{\"index\":");
        push_json(out, &choice);
        out.push(b',');
    }

    /// Appends the rest of a choice without log probabilities.
    fn close(&self, finish: Option<FinishReason>, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
        match finish {
            Some(reason) => push_json(out, reason.label()),
            None => out.extend_from_slice(b"null"),
        }
        self.end(out);
    }

    fn end(&self, out: &mut Vec<u8>) {
        let end: &[u8] = match self.usage {
            StreamUsage::Omitted => b"}]}\n\n",
            StreamUsage::Final => b"}],\"usage\":null}\n\n",
        };
        out.extend_from_slice(end);
    }
}
