//! The bytes of an answer: a stream of events, or one body.

use tollgate_wire::{
    Answer, Choice, ChunkWriter, ErrorBody, FinishReason, Piece, Stamp, StreamUsage, Usage, sse,
};

use super::ask::{Ask, Kind, Wrong};
use super::http::{LAST_CHUNK, write_chunk, write_stream_head, write_whole};

/// What answers are made of; a word is a token.
const WORDS: [&str; 8] = [
    "toll ", "gate ", "lane ", "queue ", "fair ", "share ", "next ", "turn ",
];

/// The events of one stream, as they become due.
#[derive(Debug)]
pub(super) struct StreamText {
    chunks: ChunkWriter,
    prompt: u64,
    cached: u64,
    written: u64,
    event: Vec<u8>,
}

impl StreamText {
    pub(super) fn new(ask: &Ask, number: u64, created: u64) -> Self {
        let usage = if ask.include_usage {
            StreamUsage::Final
        } else {
            StreamUsage::Omitted
        };
        let id = id(ask.kind, number);
        let stamp = stamp(&id, created, &ask.model);
        Self {
            chunks: match ask.kind {
                Kind::Chat => ChunkWriter::chat(&stamp, usage),
                Kind::Text => ChunkWriter::text(&stamp, usage),
            },
            prompt: ask.prompt,
            cached: 0,
            written: 0,
            event: Vec::new(),
        }
    }

    /// Appends the head, and the event that names the role.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        write_stream_head(200, out);
        self.chunks.opening(0, &mut self.event);
        self.flush(out);
    }

    /// Appends the event of one more token.
    pub(super) fn token(&mut self, out: &mut Vec<u8>) {
        let piece = Piece {
            choice: 0,
            text: word(self.written),
            offset: 0,
            logprobs: None,
        };
        self.chunks.content(piece, &mut self.event);
        self.written += 1;
        self.flush(out);
    }

    /// Says how much of the prompt was found.
    pub(super) fn found(&mut self, cached: u64) {
        self.cached = cached;
    }

    /// Appends the events after the last token, and the end of the body.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        self.chunks.finish(0, FinishReason::Length, &mut self.event);
        self.flush(out);
        let usage = Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.written,
            cached_tokens: self.cached,
        };
        self.chunks.usage(usage, &mut self.event);
        self.flush(out);
        sse::write_done(&mut self.event);
        self.flush(out);
        out.extend_from_slice(LAST_CHUNK);
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        if !self.event.is_empty() {
            write_chunk(&self.event, out);
            self.event.clear();
        }
    }
}

/// Appends a whole answer with so many tokens, `cached` of whose prompt were found.
pub(super) fn write_answer(ask: &Ask, number: u64, created: u64, cached: u64, out: &mut Vec<u8>) {
    let text: String = (0..ask.output).map(word).collect();
    let choice = Choice {
        calls: Vec::new(),
        text,
        finish: FinishReason::Length,
        logprobs: None,
    };
    let answer = Answer {
        choices: &[choice],
        usage: Usage {
            prompt_tokens: ask.prompt,
            completion_tokens: ask.output,
            cached_tokens: cached,
        },
    };
    let id = id(ask.kind, number);
    let stamp = stamp(&id, created, &ask.model);
    let mut body = Vec::new();
    match ask.kind {
        Kind::Chat => answer.write_chat(&stamp, &mut body),
        Kind::Text => answer.write_text(&stamp, &mut body),
    }
    write_whole(200, JSON, &body, out);
}

/// Appends an error in OpenAI's shape.
pub(super) fn write_error(wrong: &Wrong, out: &mut Vec<u8>) {
    let kind = match wrong.status {
        404 => "NotFoundError",
        400..=499 => "BadRequestError",
        _ => "InternalServerError",
    };
    let body = ErrorBody {
        message: &wrong.message,
        kind,
        param: wrong.param,
        code: wrong.code,
    };
    let mut text = Vec::new();
    body.write(&mut text);
    write_whole(wrong.status, JSON, &text, out);
}

/// The type of all bodies that are not streamed.
pub(super) const JSON: &str = "application/json";

fn word(number: u64) -> &'static str {
    let at = usize::try_from(number).unwrap_or_default() % WORDS.len();
    WORDS.get(at).copied().unwrap_or_default()
}

fn id(kind: Kind, number: u64) -> String {
    match kind {
        Kind::Chat => format!("chatcmpl-{number}"),
        Kind::Text => format!("cmpl-{number}"),
    }
}

const fn stamp<'a>(id: &'a str, created: u64, model: &'a str) -> Stamp<'a> {
    Stamp {
        id,
        created,
        model,
        system_fingerprint: None,
    }
}
