//! The body of a streamed answer: letters become events, and every way to end has one of its own.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use prometheus_client::metrics::histogram::Histogram;
use tollgate_engine::Delta;
use tollgate_policy::outcome::{EngineEnding, Outcome};
use tollgate_policy::units::{Micros, Time};
use tollgate_wire::{ChunkWriter, Piece, sse};

use crate::answer::calls::{Calls, Spoken, Written};
use crate::answer::held::Held;
use crate::answer::refuse;
use crate::answer::{called, finish_reason, wire_logprob, wire_usage};
use crate::clock::Clock;
use crate::desk::inflight::Letter;
use crate::door::line::Line;
use crate::door::patience::Patience;

/// What made the response begin.
#[derive(Debug)]
pub(crate) enum Opening {
    /// There is something to send.
    Letter(Letter),
    /// The client has waited for so long that it should see that somebody is there.
    Keepalive,
}

/// A streamed answer.
#[derive(Debug)]
pub(crate) struct StreamBody {
    held: Held,
    writer: ChunkWriter,
    opening: Option<Opening>,
    state: State,
    keepalive: Keepalive,
    gaps: Gaps,
    shown: Vec<Shown>,
    /// How calls of tools are found, where there may be any.
    calls: Option<Calls>,
}

/// What a stream shows of each of its choices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// Characters sent.
    characters: usize,
    /// Whether to tell how likely tokens were.
    pub(crate) logprobs: bool,
}

/// How far the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but comments has been sent.
    Begun,
    /// The first event has been sent.
    Open,
    /// `[DONE]` has been sent.
    Done,
    /// An error event has been handed over, and is to be flushed before the connection is closed.
    Failed,
    /// It has been flushed.
    Flushed,
}

/// When to show a client that somebody is there. Its timer is the connection's, which a token does
/// not set.
#[derive(Debug)]
pub(crate) struct Keepalive {
    clock: Clock,
    every: Micros,
    written: Time,
    patience: Patience,
}

/// The gaps between tokens.
#[derive(Debug)]
pub(crate) struct Gaps {
    itl: Histogram,
    last: Option<Time>,
}

/// The connection is closed without the terminator of a whole answer: the last event has said why.
#[derive(Debug, thiserror::Error)]
#[error("the answer ended with an error event")]
pub(crate) struct Unfinished;

impl StreamBody {
    pub(crate) fn new(
        held: Held,
        writer: ChunkWriter,
        opening: Opening,
        gaps: Gaps,
        keepalive: Keepalive,
    ) -> Self {
        Self {
            held,
            writer,
            opening: Some(opening),
            state: State::Begun,
            keepalive,
            gaps,
            shown: vec![Shown::default()],
            calls: None,
        }
    }

    /// With calls of tools in it.
    pub(crate) fn calling(self, calls: Option<Calls>) -> Self {
        Self { calls, ..self }
    }

    /// With so many choices, and what to show of each.
    pub(crate) fn showing(self, choices: usize, each: Shown) -> Self {
        Self {
            shown: vec![each; choices],
            ..self
        }
    }

    /// The next bytes to send while the answer goes on.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        let mut out = Vec::new();
        match self.opening.take() {
            Some(Opening::Letter(letter)) => self.write(Some(letter), &mut out),
            Some(Opening::Keepalive) => sse::write_comment("waiting", &mut out),
            None => {}
        }
        while out.is_empty() {
            match self.poll_letter(cx) {
                Poll::Ready(letter) => self.write(letter, &mut out),
                Poll::Pending => {
                    ready!(self.keepalive.poll_due(cx));
                    sse::write_comment("waiting", &mut out);
                }
            }
        }
        self.write_what_waits(&mut out);
        self.keepalive.written = self.keepalive.clock.now();
        Poll::Ready(out)
    }

    fn poll_letter(&mut self, cx: &mut Context<'_>) -> Poll<Option<Letter>> {
        match self.held.flight() {
            Some(flight) => flight.letters().poll_next(cx),
            None => Poll::Ready(None),
        }
    }

    /// A client that reads more slowly than the engine writes gets several events in one write.
    fn write_what_waits(&mut self, out: &mut Vec<u8>) {
        while matches!(self.state, State::Begun | State::Open) {
            let Some(letter) = self
                .held
                .flight()
                .and_then(|flight| flight.letters().take())
            else {
                return;
            };
            self.write(Some(letter), out);
        }
    }

    fn write(&mut self, letter: Option<Letter>, out: &mut Vec<u8>) {
        match letter {
            Some(Letter::Dispatched(dispatch)) => self.held.line().fence(dispatch.fence),
            Some(Letter::Delta(delta)) => self.write_delta(delta, out),
            Some(Letter::Finished(choice, reason)) => {
                self.open(out);
                let calls = self.calls.as_mut();
                let has = calls.is_some_and(|calls| calls.finish(choice, &self.writer, out));
                self.writer
                    .finish(choice, called(finish_reason(reason), has), out);
            }
            Some(Letter::Ended(EngineEnding::Finished(_), usage)) => {
                self.writer.usage(wire_usage(usage), out);
                sse::write_done(out);
                self.state = State::Done;
            }
            Some(Letter::Ended(EngineEnding::Failed(failure), _)) => {
                self.fail(Outcome::ReplicaFailed(failure), out);
            }
            // Its engine is told itself.
            Some(Letter::Withdrawn) => {}
            Some(Letter::Stopped(outcome)) => self.fail(outcome, out),
            Some(Letter::Refused(refusal)) => self.fail(refusal.outcome, out),
            // Cancelled without a word of why, or letters that end without a last one: neither is
            // ordered anywhere.
            Some(
                Letter::Vector(..)
                | Letter::Ended(EngineEnding::Cancelled | EngineEnding::Refused(_), _),
            )
            | None => {
                self.fail(Outcome::Bug, out);
            }
        }
    }

    fn write_delta(&mut self, delta: Delta, out: &mut Vec<u8>) {
        self.open(out);
        let at = usize::try_from(delta.choice).unwrap_or(usize::MAX);
        let Some(shown) = self.shown.get_mut(at) else {
            return;
        };
        let logprobs: Vec<_> = delta.logprobs.into_iter().map(wire_logprob).collect();
        let tokens = match &mut self.calls {
            None => {
                let piece = Piece {
                    choice: delta.choice,
                    text: &delta.text,
                    offset: shown.characters,
                    logprobs: shown.logprobs.then_some(&logprobs),
                };
                self.writer.content(piece, out);
                if shown.logprobs {
                    shown.characters += delta.text.chars().count();
                }
                delta.tokens
            }
            Some(calls) => {
                let spoken = Spoken {
                    choice: delta.choice,
                    text: &delta.text,
                    tokens: delta.tokens,
                    offset: shown.characters,
                    logprobs: shown.logprobs.then_some(logprobs),
                };
                let Written { tokens, characters } = calls.write(spoken, &self.writer, out);
                shown.characters += characters;
                let Some(tokens) = tokens else { return };
                tokens
            }
        };
        self.count(tokens);
    }

    /// Notes that so many tokens went out together.
    fn count(&mut self, tokens: u32) {
        let Some(id) = self.held.flight().map(|flight| flight.id()) else {
            return;
        };
        if self.gaps.tokens(self.keepalive.clock.now(), tokens) {
            self.held.line().first_token(id);
        }
    }

    fn open(&mut self, out: &mut Vec<u8>) {
        if self.state == State::Begun {
            for choice in (0..).take(self.shown.len()) {
                self.writer.opening(choice, out);
            }
            self.state = State::Open;
        }
    }

    fn fail(&mut self, outcome: Outcome, out: &mut Vec<u8>) {
        refuse::event(outcome, out);
        self.state = State::Failed;
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        match this.state {
            State::Begun | State::Open => {
                let out = ready!(this.poll_events(cx));
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
            }
            State::Done => {
                this.held.all_out();
                Poll::Ready(None)
            }
            State::Failed => {
                // Pending once: the connection flushes what it has before it asks again.
                this.state = State::Flushed;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            State::Flushed => {
                Poll::Ready(Some(Err(axum::Error::new(io::Error::other(Unfinished)))))
            }
        }
    }
}

impl Keepalive {
    /// One that is waited for in the task of this connection.
    pub(crate) fn new(clock: Clock, every: Micros, line: &Line) -> Self {
        Self {
            clock,
            every,
            written: clock.now(),
            patience: line.patience().clone(),
        }
    }

    /// Something has been written just now.
    pub(crate) fn written(&mut self) {
        self.written = self.clock.now();
    }

    /// Ready once nothing has been written for as long as a client should wait.
    pub(crate) fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.written + self.every;
        self.patience.poll_until(self.clock.instant(due), cx)
    }
}

impl Gaps {
    pub(crate) fn new(itl: Histogram) -> Self {
        Self { itl, last: None }
    }

    /// `tokens` are being written; whether they are the first.
    pub(crate) fn tokens(&mut self, now: Time, tokens: u32) -> bool {
        let last = self.last.replace(now);
        if let Some(last) = last {
            self.observe(now.since(last).get(), tokens);
        }
        last.is_none()
    }

    /// `tokens` came together after `micros`: their gaps are counted as equal.
    #[expect(clippy::cast_precision_loss, reason = "a report, not a charge")]
    fn observe(&self, micros: u64, tokens: u32) {
        let tokens = tokens.max(1);
        let gap = micros as f64 / f64::from(tokens) / 1e6;
        for _ in 0..tokens {
            self.itl.observe(gap);
        }
    }
}
