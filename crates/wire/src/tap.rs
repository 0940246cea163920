//! Reads along with a streamed answer of an engine, and passes its bytes on unchanged.
//!
//! Events go on one by one as soon as each is whole; what an event says is noted in [`Facts`].
//! Three kinds never go on: errors, which whoever writes to the client puts into its own words; the
//! terminator, which is to be written only after a whole answer; and what nobody asked for, a usage
//! chunk or an event without contents. It has no clock, and holds one open event at most.

mod chunk;
#[cfg(test)]
mod tests;

use memchr::memchr2;

use self::chunk::Shape;
pub(crate) use self::chunk::{Said, error_body, read_chunk};
use crate::reply::{StreamUsage, Usage};

/// What a stream has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Events with a chunk of an answer in them.
    pub chunks: u64,
    /// Chunks that brought text, counted for each choice.
    pub deltas: u64,
    /// Bytes of that text.
    pub text_bytes: u64,
    /// Choices that have been given a reason for their end.
    pub finished: u32,
    /// The last of those reasons.
    pub finish: Option<Finish>,
    /// What the engine says was used: of several, the most of each.
    pub usage: Option<Usage>,
    /// The terminator has come.
    pub done: bool,
    /// The engine broke off, or something that is no chunk came. Nothing after it counts.
    pub fault: Option<Fault>,
}

/// Why an engine ended a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// `stop`
    Stop,
    /// `length`
    Length,
    /// `tool_calls`, or `function_call`
    ToolCalls,
    /// Anything else.
    Other,
}

/// What went wrong in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The engine says so.
    Error(EngineError),
    /// An event is not a JSON object.
    NoChunk,
    /// An event is larger than it may be.
    TooLarge,
}

/// An error as an engine tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineError {
    /// Its HTTP status, where it names one.
    pub status: Option<u16>,
    /// What it says, up to [`EngineError::MESSAGE_MAX`] bytes.
    pub message: String,
    /// Its `type`, where that is a text.
    pub kind: Option<String>,
    /// Its `param`, likewise.
    pub param: Option<String>,
    /// Its `code`, likewise.
    pub code: Option<String>,
    /// Whether it was told in OpenAI's shape, so that clients can read it as it is.
    pub shape: ErrorShape,
}

/// Whether OpenAI's clients can read an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorShape {
    /// An object under `error` with a message, and a code that is a text or null.
    OpenAi,
    /// Anything else.
    #[default]
    Other,
}

impl EngineError {
    /// Bytes of a message that are kept.
    pub const MESSAGE_MAX: usize = 1024;
}

/// The reader of one stream.
#[derive(Clone, Debug)]
pub struct Tap {
    usage: StreamUsage,
    limit: usize,
    /// What has come of the event that is open.
    held: Vec<u8>,
    /// Whether nothing has come of the line that is open.
    line: Line,
    seam: Seam,
    /// How the last token's event looked around its text.
    shape: Option<Shape>,
    /// The members that a usage chunk needs to look like the others, as JSON.
    stamp: Vec<u8>,
    /// The terminator as it came.
    terminator: Vec<u8>,
    /// The text so far, where it is kept, and how many bytes of it.
    kept: Option<(String, usize)>,
    facts: Facts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Blank,
    Begun,
}

/// What the next byte may belong to, because of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seam {
    /// To nothing but its line.
    None,
    /// To the end of a line inside an event: a CRLF whose CR has come.
    InEvent,
    /// To the end of an event that went on.
    AfterForwarded,
    /// To the end of an event that did not.
    AfterDropped,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Forward,
    Drop,
    /// It is a usage chunk in a shape that strict clients refuse.
    Mend,
}

impl Tap {
    /// Bytes that one event may have: well above the largest tool call seen in one event (3 MiB).
    pub const DEFAULT_LIMIT: usize = 8 * 1024 * 1024;

    /// Bytes of a stream's own members that are kept for a usage chunk.
    const STAMP_MAX: usize = 1024;

    /// A tap that holds at most `limit` bytes of one event. `usage` says whether the client asked
    /// for a chunk with it.
    pub fn new(usage: StreamUsage, limit: usize) -> Self {
        Self {
            usage,
            limit,
            held: Vec::new(),
            line: Line::Blank,
            seam: Seam::None,
            shape: None,
            stamp: Vec::new(),
            terminator: Vec::new(),
            kept: None,
            facts: Facts::default(),
        }
    }

    /// The same, which keeps the text that comes, as long as that is no more than `most` bytes.
    #[must_use]
    pub fn keeping(self, most: usize) -> Self {
        let kept = Some((String::new(), most));
        Self { kept, ..self }
    }

    /// The text so far, where all of it was kept.
    pub fn text(&self) -> Option<&str> {
        self.kept.as_ref().map(|(text, _)| text.as_str())
    }

    /// What the stream has said so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether nothing more of the stream matters.
    pub fn is_over(&self) -> bool {
        self.facts.done || self.facts.fault.is_some()
    }

    /// Reads the next piece, and appends to `out` what goes on to the client.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut rest = self.cross_seam(piece, out);
        while !self.is_over() {
            let Some(end) = self.event_end(rest) else {
                return self.hold(rest);
            };
            let (event, tail) = rest.split_at(end);
            rest = tail;
            if self.held.is_empty() {
                self.take(event, out);
            } else {
                let mut held = std::mem::take(&mut self.held);
                held.extend_from_slice(event);
                self.take(&held, out);
                held.clear();
                // A large event's memory is not kept for the small ones that follow it.
                if held.capacity() <= 64 * 1024 {
                    self.held = held;
                }
            }
        }
    }

    /// The stream is over. An event that is open is lost, but for a terminator, which some engines
    /// send without a line end.
    pub fn finish(&mut self) {
        let held = std::mem::take(&mut self.held);
        let open = held.trim_ascii();
        if !self.is_over() && (open == b"data: [DONE]" || open == b"data:[DONE]") {
            self.terminator = b"data: [DONE]\n\n".to_vec();
            self.facts.done = true;
        }
    }

    /// Appends the end of a whole answer: a chunk with `reckoned`, if the client asked for usage
    /// and the engine told none, and the terminator as it came, if it did.
    pub fn write_end(&self, reckoned: Usage, out: &mut Vec<u8>) {
        if self.usage == StreamUsage::Final && self.facts.usage.is_none() {
            self.write_usage(reckoned, out);
        }
        out.extend_from_slice(&self.terminator);
    }

    fn write_usage(&self, usage: Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: {");
        out.extend_from_slice(&self.stamp);
        out.extend_from_slice(b"\"choices\":[],\"usage\":");
        usage.write(out);
        out.extend_from_slice(b"}\n\n");
    }

    /// Takes the LF of a CRLF that the last piece began.
    fn cross_seam<'p>(&mut self, piece: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        let Some((first, tail)) = piece.split_first() else {
            return piece;
        };
        match std::mem::replace(&mut self.seam, Seam::None) {
            Seam::InEvent if *first == b'\n' => self.held.push(b'\n'),
            Seam::AfterForwarded if *first == b'\n' => out.push(b'\n'),
            Seam::AfterDropped if *first == b'\n' => {}
            Seam::None | Seam::InEvent | Seam::AfterForwarded | Seam::AfterDropped => return piece,
        }
        tail
    }

    /// Where the open event ends in `bytes`: behind the line end of a blank line.
    fn event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(step) = memchr2(b'\n', b'\r', &bytes[at..]) {
            let end = at + step;
            let blank = self.line == Line::Blank && step == 0;
            self.line = Line::Blank;
            at = match &bytes[end..] {
                [b'\r', b'\n', ..] => end + 2,
                [b'\r'] => {
                    self.seam = Seam::InEvent;
                    end + 1
                }
                _ => end + 1,
            };
            if blank {
                return Some(at);
            }
        }
        if at < bytes.len() {
            self.line = Line::Begun;
        }
        None
    }

    fn hold(&mut self, rest: &[u8]) {
        if self.held.len() + rest.len() > self.limit {
            self.fault(Fault::TooLarge);
        } else {
            self.held.extend_from_slice(rest);
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.held = Vec::new();
        self.facts.fault = Some(fault);
    }

    fn take(&mut self, event: &[u8], out: &mut Vec<u8>) {
        let verdict = if event.len() > self.limit {
            self.fault(Fault::TooLarge);
            Verdict::Drop
        } else {
            self.judge(event)
        };
        match verdict {
            Verdict::Forward => out.extend_from_slice(event),
            Verdict::Drop => {}
            Verdict::Mend => self.write_usage(self.facts.usage.unwrap_or_default(), out),
        }
        if self.seam == Seam::InEvent {
            self.seam = match verdict {
                Verdict::Forward => Seam::AfterForwarded,
                Verdict::Drop | Verdict::Mend => Seam::AfterDropped,
            };
        }
    }

    fn judge(&mut self, event: &[u8]) -> Verdict {
        if let Some(text) = self.shape.as_ref().and_then(|shape| shape.text_of(event)) {
            self.facts.chunks += 1;
            self.note_text(u64::from(text > 0), text);
            return Verdict::Forward;
        }
        let mut joined = Vec::new();
        let lines = Lines::of(event, &mut joined);
        let data = match lines {
            Lines::Comment => return Verdict::Forward,
            Lines::Data(data) if data.trim_ascii().is_empty() => return Verdict::Drop,
            Lines::Data(data) => data,
            Lines::Error(data) => {
                self.fault(Fault::Error(chunk::read_error(data)));
                return Verdict::Drop;
            }
        };
        if data.trim_ascii() == b"[DONE]" {
            self.terminator = event.to_vec();
            self.facts.done = true;
            return Verdict::Drop;
        }
        match read_chunk(data) {
            Some(Said::Chunk(chunk)) => self.note_chunk(&chunk, data, event),
            Some(Said::Error(error)) => {
                self.fault(Fault::Error(error));
                Verdict::Drop
            }
            None => {
                self.fault(Fault::NoChunk);
                Verdict::Drop
            }
        }
    }

    fn note_chunk(&mut self, chunk: &chunk::Chunk<'_>, data: &[u8], event: &[u8]) -> Verdict {
        if self.facts.chunks == 0 {
            self.stamp = chunk.stamp(Self::STAMP_MAX);
        }
        self.facts.chunks += 1;
        self.note_text(chunk.deltas, chunk.text_bytes);
        self.facts.finished = self.facts.finished.saturating_add(chunk.finished);
        self.facts.finish = chunk.finish.or(self.facts.finish);
        if let Some(usage) = chunk.usage {
            let known = self.facts.usage.unwrap_or_default();
            self.facts.usage = Some(usage.most(known));
        }
        if self.kept.is_some() {
            self.keep(chunk);
        } else {
            self.shape = chunk.shape(data, event).or_else(|| self.shape.take());
        }
        match (chunk.usage, chunk.choices, self.usage) {
            (Some(_), chunk::Choices::None, StreamUsage::Omitted) => Verdict::Drop,
            (Some(_), chunk::Choices::Absent, StreamUsage::Omitted) => Verdict::Drop,
            (Some(_), chunk::Choices::Absent, StreamUsage::Final) => Verdict::Mend,
            (None, _, _) | (Some(_), chunk::Choices::Some | chunk::Choices::None, _) => {
                Verdict::Forward
            }
        }
    }

    /// Adds a chunk's text to what is kept, or lets go of all where that becomes too much.
    fn keep(&mut self, chunk: &chunk::Chunk<'_>) {
        if let Some((text, most)) = &mut self.kept {
            chunk.each_text(&mut |piece| text.push_str(piece));
            if text.len() > *most {
                self.kept = None;
            }
        }
    }

    fn note_text(&mut self, deltas: u64, bytes: u64) {
        self.facts.deltas += deltas;
        self.facts.text_bytes += bytes;
    }
}

/// What the lines of one event come to.
enum Lines<'e> {
    /// No data: comments, and fields that mean nothing here.
    Comment,
    /// Data, its lines joined.
    Data(&'e [u8]),
    /// An event that is named `error`, or a line of that name.
    Error(&'e [u8]),
}

impl<'e> Lines<'e> {
    fn of(event: &'e [u8], joined: &'e mut Vec<u8>) -> Self {
        let event = event.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(event);
        let (mut data, mut count, mut error) = (&[][..], 0, false);
        for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
            let colon = memchr::memchr(b':', line);
            let (name, value) = match colon {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (line, &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" | b"error" => {
                    error |= name == b"error";
                    if count == 1 {
                        joined.extend_from_slice(data);
                    }
                    if count > 0 {
                        joined.push(b'\n');
                        joined.extend_from_slice(value);
                    }
                    data = value;
                    count += 1;
                }
                b"event" => error |= value == b"error",
                _ => {}
            }
        }
        let data = if count > 1 { &joined[..] } else { data };
        match (count, error) {
            (0, _) => Self::Comment,
            (_, true) => Self::Error(data),
            (_, false) => Self::Data(data),
        }
    }
}

impl Usage {
    /// The larger of each: a running total grows, and what comes after it may say nothing.
    fn most(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.max(other.prompt_tokens),
            completion_tokens: self.completion_tokens.max(other.completion_tokens),
            cached_tokens: self.cached_tokens.max(other.cached_tokens),
        }
    }
}
