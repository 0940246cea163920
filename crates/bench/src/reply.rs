//! Reads an answer: where its first token is, how many deltas it has, and whether it truly ended.
//!
//! It is given bytes and the time at which they came; it has no clock and no socket.

use serde::Deserialize;
use tollgate_policy::units::{Micros, Time};
use tollgate_wire::sse::{SseEnd, SseItem, SseReader};

use crate::rows::{Ending, Failure, Row};

/// What has been seen of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// When the first non-empty token came.
    pub(crate) first_token: Option<Time>,
    /// When the last non-empty token came.
    pub(crate) last_token: Option<Time>,
    /// Deltas with at least one character.
    pub(crate) deltas: u64,
    /// Those of them that came in the measured window.
    pub(crate) deltas_in_window: u64,
    /// Prompt and output tokens by the endpoint's own count.
    pub(crate) usage: Option<Usage>,
    /// The time between each two of the deltas, as far as they are kept.
    pub(crate) gaps: Vec<Micros>,
}

/// Token counts as the endpoint sent them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) prompt_tokens: u64,
    #[serde(default)]
    pub(crate) completion_tokens: u64,
}

/// The measured window: from the end of the warm-up to the end of sending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Window {
    pub(crate) fn holds(&self, at: Time) -> bool {
        self.from <= at && at < self.until
    }
}

impl Seen {
    fn token(&mut self, at: Time, window: Window) {
        self.first_token.get_or_insert(at);
        if let Some(last) = self.last_token.filter(|_| self.gaps.len() < Row::GAPS_MAX) {
            self.gaps.push(at.since(last));
        }
        self.last_token = Some(at);
        self.deltas += 1;
        self.deltas_in_window += u64::from(window.holds(at));
    }
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(crate) struct StreamReader {
    sse: SseReader,
    window: Window,
    progress: Progress,
}

/// How far a stream has come. What comes first decides: nothing after an error mends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    Finished,
    /// `[DONE]` came, after a finish reason or without one.
    Done(Finish),
    Failed(Wrong),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Told,
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    ErrorEvent,
    BadReply,
}

impl StreamReader {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            sse: SseReader::default(),
            window,
            progress: Progress::Open,
        }
    }

    /// Takes a piece of the body that came at `at`.
    pub(crate) fn push(&mut self, bytes: &[u8], at: Time, seen: &mut Seen) {
        let (progress, window) = (&mut self.progress, self.window);
        let pushed = self.sse.push(bytes, |item| match item {
            SseItem::Comment(_) => {}
            SseItem::Event(event) if event.data.is_empty() => {}
            SseItem::Event(event) => {
                let named_error = event.event.as_deref() == Some("error");
                let chunk = if named_error {
                    Chunk::Error
                } else {
                    Chunk::read(&event.data)
                };
                progress.advance(chunk, |usage, has_token| {
                    if has_token {
                        seen.token(at, window);
                    }
                    seen.usage = usage.or(seen.usage);
                });
            }
        });
        if pushed.is_err() {
            self.progress = Progress::Failed(Wrong::BadReply);
        }
    }

    /// How the stream ended, once its body did.
    pub(crate) fn finish(self) -> Ending {
        let cut = self.sse.finish() == SseEnd::CutOff;
        Ending::Failed(match self.progress {
            Progress::Failed(Wrong::ErrorEvent) => Failure::ErrorEvent,
            Progress::Failed(Wrong::BadReply) => Failure::BadReply,
            Progress::Open | Progress::Finished => Failure::CutOff,
            Progress::Done(Finish::Missing) => Failure::NoFinish,
            Progress::Done(Finish::Told) if cut => Failure::CutOff,
            Progress::Done(Finish::Told) => return Ending::Completed,
        })
    }
}

impl Progress {
    fn advance(&mut self, chunk: Chunk, mut on_delta: impl FnMut(Option<Usage>, bool)) {
        let next = match (*self, chunk) {
            (Self::Failed(wrong), _) => Self::Failed(wrong),
            (_, Chunk::Error) => Self::Failed(Wrong::ErrorEvent),
            (_, Chunk::Unreadable) | (Self::Done(_), Chunk::Delta { .. } | Chunk::Done) => {
                Self::Failed(Wrong::BadReply)
            }
            (Self::Open, Chunk::Done) => Self::Done(Finish::Missing),
            (Self::Finished, Chunk::Done) => Self::Done(Finish::Told),
            (
                before @ (Self::Open | Self::Finished),
                Chunk::Delta {
                    usage,
                    has_token,
                    finishes,
                },
            ) => {
                on_delta(usage, has_token);
                if finishes { Self::Finished } else { before }
            }
        };
        *self = next;
    }
}

/// The data of one event.
#[derive(Clone, Copy, Debug)]
enum Chunk {
    Delta {
        usage: Option<Usage>,
        has_token: bool,
        finishes: bool,
    },
    Done,
    Error,
    Unreadable,
}

impl Chunk {
    fn read(data: &[u8]) -> Self {
        if data.trim_ascii() == b"[DONE]" {
            return Self::Done;
        }
        match serde_json::from_slice::<Body>(data) {
            Ok(Body { error: Some(_), .. }) => Self::Error,
            Ok(body) => Self::Delta {
                has_token: body.choices.iter().any(Choice::has_token),
                finishes: body
                    .choices
                    .iter()
                    .any(|choice| choice.finish_reason.is_some()),
                usage: body.usage,
            },
            Err(_) => Self::Unreadable,
        }
    }
}

/// Reads an answer that came as one body, all of it at `at`.
pub(crate) fn read_whole(body: &[u8], at: Time, window: Window, seen: &mut Seen) -> Ending {
    let Ok(body) = serde_json::from_slice::<Body>(body) else {
        return Ending::Failed(Failure::BadReply);
    };
    seen.usage = body.usage;
    if body.choices.iter().any(Choice::has_token) {
        seen.token(at, window);
    }
    let finished = body
        .choices
        .iter()
        .any(|choice| choice.finish_reason.is_some());
    match (body.error, finished) {
        (Some(_), _) => Ending::Failed(Failure::ErrorEvent),
        (None, false) => Ending::Failed(Failure::NoFinish),
        (None, true) => Ending::Completed,
    }
}

/// The members of a chunk or of a whole answer that a load client looks at.
#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(alias = "message")]
    delta: Option<Delta>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    // Engines differ in the name, and some send both.
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

impl Choice {
    fn has_token(&self) -> bool {
        let said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let delta = self.delta.as_ref();
        said(&self.text)
            || delta.is_some_and(|delta| {
                let called = delta
                    .tool_calls
                    .as_ref()
                    .is_some_and(|calls| !calls.is_empty());
                said(&delta.content)
                    || said(&delta.reasoning)
                    || said(&delta.reasoning_content)
                    || called
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
                        \"finish_reason\":null}]}\n\n";
    const TOKEN: &str =
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n";

    const WINDOW: Window = Window {
        from: Time::from_micros(2),
        until: Time::from_micros(4),
    };

    /// Each piece comes a microsecond after the one before it, the first at 1.
    fn read(pieces: &[&str]) -> (Seen, Ending) {
        let (mut reader, mut seen) = (StreamReader::new(WINDOW), Seen::default());
        for (at, piece) in (1..).zip(pieces) {
            reader.push(piece.as_bytes(), Time::from_micros(at), &mut seen);
        }
        (seen, reader.finish())
    }

    fn failed(pieces: &[&str]) -> Failure {
        match read(pieces).1 {
            Ending::Failed(failure) => failure,
            Ending::Completed | Ending::Refused(_) | Ending::Unfinished | Ending::NotSent => {
                panic!("did not fail: {pieces:?}")
            }
        }
    }

    #[test]
    fn the_first_token_is_the_first_text_and_not_the_first_event() {
        let comment = ": keep-alive\n\n";
        let (seen, ending) = read(&[ROLE, comment, TOKEN, TOKEN, FINISH, USAGE, DONE]);
        assert_eq!(ending, Ending::Completed);
        assert_eq!(seen.first_token, Some(Time::from_micros(3)));
        assert_eq!(seen.last_token, Some(Time::from_micros(4)));
        assert_eq!((seen.deltas, seen.deltas_in_window), (2, 1));
        assert_eq!(seen.gaps, [Micros::new(1)]);
        assert_eq!(
            seen.usage,
            Some(Usage {
                prompt_tokens: 7,
                completion_tokens: 2
            })
        );
    }

    #[test]
    fn reasoning_and_tool_calls_are_tokens_too() {
        for delta in [
            "{\"reasoning_content\":\"hm\"}",
            "{\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"}",
            "{\"content\":null,\"tool_calls\":[{\"index\":0}]}",
        ] {
            let event = format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
            assert_eq!(read(&[&event]).0.deltas, 1, "{delta}");
        }
        let text = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(read(&[text, DONE]).1, Ending::Completed);
    }

    #[test]
    fn a_stream_without_its_terminator_is_cut_off() {
        assert_eq!(failed(&[]), Failure::CutOff);
        assert_eq!(failed(&[TOKEN]), Failure::CutOff);
        assert_eq!(failed(&[TOKEN, FINISH, USAGE]), Failure::CutOff);
        assert_eq!(failed(&[TOKEN, FINISH, "data: [DO"]), Failure::CutOff);
    }

    #[test]
    fn an_error_event_fails_the_stream_whatever_comes_after_it() {
        assert_eq!(failed(&[ERROR, DONE]), Failure::ErrorEvent);
        assert_eq!(failed(&[TOKEN, ERROR, FINISH, DONE]), Failure::ErrorEvent);
        assert_eq!(
            failed(&[TOKEN, "event: error\ndata: {}\n\n", DONE]),
            Failure::ErrorEvent
        );
    }

    #[test]
    fn done_without_a_finish_reason_and_tokens_after_done_do_not_complete() {
        assert_eq!(failed(&[TOKEN, DONE]), Failure::NoFinish);
        assert_eq!(failed(&[TOKEN, FINISH, DONE, TOKEN]), Failure::BadReply);
        assert_eq!(failed(&["data: <html>\n\n"]), Failure::BadReply);
    }

    #[test]
    fn a_whole_body_completes_with_a_finish_reason_only() {
        let read = |body: &str| {
            let mut seen = Seen::default();
            let ending = read_whole(body.as_bytes(), Time::from_micros(3), WINDOW, &mut seen);
            (seen, ending)
        };
        let (seen, ending) = read(
            "{\"choices\":[{\"message\":{\"content\":\"ab\"},\"finish_reason\":\"stop\"}],\
             \"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}",
        );
        assert_eq!(ending, Ending::Completed);
        assert_eq!(
            (seen.first_token, seen.deltas_in_window),
            (Some(Time::from_micros(3)), 1)
        );
        let cut = read("{\"choices\":[{\"message\":{\"content\":\"ab\"}}]}").1;
        assert_eq!(cut, Ending::Failed(Failure::NoFinish));
        assert_eq!(read("{\"choices\":[").1, Ending::Failed(Failure::BadReply));
    }
}
