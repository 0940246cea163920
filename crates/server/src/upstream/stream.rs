//! The body of a relayed stream: what the replica sends goes through the tap and on, and every way
//! to end has one of its own.
//!
//! It reads from the replica only when its client has taken what came before, so a slow client
//! slows its own engine's writing and fills no memory here. Dropped, it closes the replica's
//! connection: the engine stops.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;
use tollgate_policy::outcome::{EngineEnding, Failure, Outcome};
use tollgate_policy::units::{Micros, Time, Tokens};
use tollgate_policy::usage::{Counted, Usage};
use tollgate_wire::{Fault, sse};

use super::exchange::{READ_SIZE, Streaming};
use super::model::{RemoteModel, Upstream};
use super::prompt::Prompt;
use super::relay::{Opened, What, finish_reason, policy_usage};
use crate::answer::held::Held;
use crate::answer::refuse;
use crate::answer::stream::{Gaps, Keepalive, Unfinished};
use crate::answer::wire_usage;
use crate::clock::Clock;
use crate::desk::inflight::Letter;
use crate::door::line::Line;
use crate::journal::record::RequestName;

/// How often the policy is told how far an answer is.
const REPORT_EVERY: Micros = Micros::from_millis(100);

/// How long the end of a stream may take to follow its terminator, for its connection to be kept.
const END_TIME: Duration = Duration::from_millis(250);

/// What whoever reads a stream must know of its request.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) line: Arc<Line>,
    pub(crate) clock: Clock,
    pub(crate) model: Arc<RemoteModel>,
    pub(crate) size: Prompt,
    /// The prompt, as it was reckoned.
    pub(crate) prompt: Tokens,
    /// Answers that it asked for.
    pub(crate) answers: u32,
    pub(crate) gaps: Gaps,
    /// Its name, for the log.
    pub(crate) request: RequestName,
}

/// A relayed stream.
pub(crate) struct RelayBody {
    phase: Phase,
    watched: Watched,
    comments: Keepalive,
    held: Option<Held>,
}

enum Phase {
    /// Nothing but comments has been sent: it is not known yet what the answer is.
    Opening(Pin<Box<dyn Future<Output = Opened> + Send>>),
    Streaming(Box<Source>),
    /// The terminator has been handed over; the replica's end is still to come.
    Ending(Box<Source>, Pin<Box<Sleep>>),
    Done,
    /// An error event has been handed over, and is to be flushed before the connection is closed.
    Failed,
    /// It has been flushed.
    Flushed,
}

/// Where the stream comes from.
struct Source {
    streaming: Streaming,
    upstream: Arc<Upstream>,
    /// Rings when the replica has sent nothing for too long.
    idle: Keepalive,
    /// Deltas whose text has been sent on.
    deltas: u64,
    reported: Option<Time>,
}

/// What a look at the source came to.
enum Turn {
    /// There is something to send.
    Bytes,
    /// The answer is whole; whether the replica's body has ended too.
    Whole {
        ended: bool,
    },
    Failed(Failure, String),
}

impl RelayBody {
    /// For a client that has waited long enough to want a sign of life.
    pub(crate) fn waiting(
        opening: Pin<Box<dyn Future<Output = Opened> + Send>>,
        watched: Watched,
        comments: Keepalive,
    ) -> Self {
        Self {
            phase: Phase::Opening(opening),
            watched,
            comments,
            held: None,
        }
    }

    /// For a stream that has begun.
    pub(crate) fn begun(
        held: Held,
        (streaming, upstream): (Box<Streaming>, Arc<Upstream>),
        watched: Watched,
        comments: Keepalive,
    ) -> Self {
        let source = Source::new(*streaming, upstream, &watched);
        Self {
            phase: Phase::Streaming(Box::new(source)),
            watched,
            comments,
            held: Some(held),
        }
    }

    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        let Phase::Opening(opening) = &mut self.phase else {
            return Poll::Ready(Vec::new());
        };
        let Poll::Ready(opened) = opening.as_mut().poll(cx) else {
            ready!(self.comments.poll_due(cx));
            let mut out = Vec::new();
            sse::write_comment("waiting", &mut out);
            return Poll::Ready(out);
        };
        let outcome = opened.outcome();
        self.held = Some(Held::new(opened.flight, Arc::clone(&self.watched.line)));
        let mut out = Vec::new();
        self.phase = match (outcome, opened.what) {
            (None, What::Stream(streaming, upstream)) => {
                let source = Source::new(*streaming, upstream, &self.watched);
                Phase::Streaming(Box::new(source))
            }
            (outcome, _) => {
                refuse::event(outcome.unwrap_or(Outcome::Bug), &mut out);
                Phase::Failed
            }
        };
        Poll::Ready(out)
    }

    fn poll_streaming(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        while let Poll::Ready(letter) = self.poll_letter(cx) {
            // It crossed the beginning of the answer, which goes on.
            if matches!(letter, Some(Letter::Withdrawn)) {
                continue;
            }
            return Poll::Ready(self.stop(letter));
        }
        let Phase::Streaming(source) = &mut self.phase else {
            return Poll::Ready(Vec::new());
        };
        let Poll::Ready(turn) = source.poll_turn(cx, &self.watched) else {
            ready!(self.comments.poll_due(cx));
            let mut out = Vec::new();
            sse::write_comment("waiting", &mut out);
            return Poll::Ready(out);
        };
        self.note_tokens(matches!(turn, Turn::Bytes));
        match turn {
            Turn::Bytes => Poll::Ready(self.take_out()),
            Turn::Whole { ended } => Poll::Ready(self.end_whole(ended)),
            Turn::Failed(failure, why) => Poll::Ready(self.fail(failure, &why)),
        }
    }

    fn poll_letter(&mut self, cx: &mut Context<'_>) -> Poll<Option<Letter>> {
        match self.held.as_mut().and_then(Held::flight) {
            Some(flight) => flight.letters().poll_next(cx),
            None => Poll::Ready(None),
        }
    }

    /// Notes what has come: for whoever pays, for the clock of the first token, and now and then
    /// for the policy.
    fn note_tokens(&mut self, goes_on: bool) {
        let Phase::Streaming(source) = &mut self.phase else {
            return;
        };
        let facts = source.streaming.tap.facts();
        let new = facts.deltas - source.deltas;
        if new == 0 {
            return;
        }
        source.deltas = facts.deltas;
        let usage = Usage {
            prompt: self.watched.prompt,
            cached: Tokens::ZERO,
            output: Tokens::new(facts.deltas),
        };
        let Some(flight) = self.held.as_mut().and_then(Held::flight) else {
            return;
        };
        flight.note(usage);
        let now = self.watched.clock.now();
        let first = self
            .watched
            .gaps
            .tokens(now, u32::try_from(new).unwrap_or(u32::MAX));
        if first {
            self.watched.line.first_token(flight.id());
        }
        let due = source
            .reported
            .is_none_or(|at| now.since(at) >= REPORT_EVERY);
        if due && goes_on {
            source.reported = Some(now);
            flight.report();
        }
    }

    fn take_out(&mut self) -> Vec<u8> {
        match &mut self.phase {
            Phase::Streaming(source) => std::mem::take(&mut source.streaming.out),
            Phase::Opening(_)
            | Phase::Ending(..)
            | Phase::Done
            | Phase::Failed
            | Phase::Flushed => Vec::new(),
        }
    }

    /// What has been used so far, and who counted it.
    fn usage(&self, source: &Source) -> (Usage, Counted) {
        let facts = source.streaming.tap.facts();
        match facts.usage {
            Some(usage) if facts.done || facts.fault.is_none() => {
                (policy_usage(usage), Counted::Exactly)
            }
            _ => {
                let model = &self.watched.model;
                let usage = Usage {
                    prompt: self.watched.prompt,
                    cached: Tokens::ZERO,
                    output: model.reckon_output(
                        facts.text_bytes,
                        facts.deltas,
                        source.streaming.tap.text(),
                    ),
                };
                (usage, Counted::Roughly)
            }
        }
    }

    /// The answer is whole: settles it, and writes what comes last.
    fn end_whole(&mut self, ended: bool) -> Vec<u8> {
        let Phase::Streaming(source) = std::mem::replace(&mut self.phase, Phase::Done) else {
            return Vec::new();
        };
        let (usage, counted) = self.usage(&source);
        let facts = source.streaming.tap.facts();
        if counted == Counted::Exactly {
            let watched = &self.watched;
            watched.model.learn(watched.size, facts.text_bytes, usage);
        } else {
            self.watched.model.heard_no_usage();
        }
        let ending = EngineEnding::Finished(finish_reason(facts.finish));
        self.engine_ended(ending, usage, counted);
        let mut source = source;
        let mut out = std::mem::take(&mut source.streaming.out);
        source.streaming.tap.write_end(wire_usage(usage), &mut out);
        if ended {
            source.keep(&self.watched.clock);
        } else {
            self.phase = Phase::Ending(source, Box::pin(tokio::time::sleep(END_TIME)));
        }
        out
    }

    fn engine_ended(&mut self, ending: EngineEnding, usage: Usage, counted: Counted) {
        if let Some(flight) = self.held.as_mut().and_then(Held::flight) {
            flight.engine_ended(ending, usage, counted);
        }
    }

    /// The policy stops it.
    fn stop(&mut self, letter: Option<Letter>) -> Vec<u8> {
        let outcome = match letter {
            Some(Letter::Stopped(outcome)) => outcome,
            Some(
                Letter::Dispatched(_)
                | Letter::Refused(_)
                | Letter::Delta(_)
                | Letter::Vector(..)
                | Letter::Finished(..)
                | Letter::Withdrawn
                | Letter::Ended(..),
            )
            | None => Outcome::Bug,
        };
        self.break_off(EngineEnding::Cancelled, outcome)
    }

    fn fail(&mut self, failure: Failure, why: &str) -> Vec<u8> {
        let request = self.watched.request;
        tracing::warn!(%request, why, "a replica failed a request in its stream");
        self.break_off(
            EngineEnding::Failed(failure),
            Outcome::ReplicaFailed(failure),
        )
    }

    /// Ends it with an error event, behind what has come before.
    fn break_off(&mut self, ending: EngineEnding, outcome: Outcome) -> Vec<u8> {
        let Phase::Streaming(source) = std::mem::replace(&mut self.phase, Phase::Failed) else {
            return Vec::new();
        };
        let (usage, counted) = self.usage(&source);
        self.engine_ended(ending, usage, counted);
        let mut source = source;
        let mut out = std::mem::take(&mut source.streaming.out);
        refuse::event(outcome, &mut out);
        out
    }

    /// Waits for the end of the replica's body, for a while.
    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Phase::Ending(source, alarm) = &mut self.phase else {
            return Poll::Ready(());
        };
        let ended = source.poll_end(cx);
        if ended.is_pending() {
            ready!(alarm.as_mut().poll(cx));
        }
        if let (Poll::Ready(true), Phase::Ending(source, _)) =
            (ended, std::mem::replace(&mut self.phase, Phase::Done))
        {
            source.keep(&self.watched.clock);
        }
        self.phase = Phase::Done;
        Poll::Ready(())
    }
}

impl Source {
    fn new(streaming: Streaming, upstream: Arc<Upstream>, watched: &Watched) -> Self {
        let idle = Keepalive::new(watched.clock, watched.model.config.idle, &watched.line);
        Self {
            streaming,
            upstream,
            idle,
            deltas: 0,
            reported: None,
        }
    }

    /// Reads until there is something to send, or to say.
    fn poll_turn(&mut self, cx: &mut Context<'_>, watched: &Watched) -> Poll<Turn> {
        let mut ended = false;
        loop {
            let streaming = &mut self.streaming;
            match streaming.read_buffered() {
                Ok(end) => ended |= end,
                Err(error) => {
                    return Poll::Ready(Turn::Failed(Failure::BadAnswer, error.to_string()));
                }
            }
            if ended {
                streaming.tap.finish();
            }
            let facts = streaming.tap.facts();
            if let Some(fault) = &facts.fault {
                return Poll::Ready(failed_by(fault));
            }
            if facts.done || (ended && facts.finished >= watched.answers) {
                return Poll::Ready(Turn::Whole { ended });
            }
            if ended {
                let why = "its stream ended without an end of the answer".to_owned();
                return Poll::Ready(Turn::Failed(Failure::BrokeOff, why));
            }
            if !streaming.out.is_empty() {
                return Poll::Ready(Turn::Bytes);
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) => ended = self.streaming.reader.ends_with_connection(),
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let why = "it sent nothing for longer than stream.idle".to_owned();
                    return Poll::Ready(Turn::Failed(Failure::Silent, why));
                }
                Err(_) => ended = false,
            }
            if !ended {
                let why = "its connection broke off".to_owned();
                return Poll::Ready(Turn::Failed(Failure::BrokeOff, why));
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let connection = &mut self.streaming.connection;
        connection.buffer.reserve(READ_SIZE);
        let read = poll_read_buf(Pin::new(&mut connection.io), cx, &mut connection.buffer);
        if read.is_pending() {
            ready!(self.idle.poll_due(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.idle.written();
        read
    }

    /// Whether the body has ended as it should.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            match self.streaming.read_buffered() {
                Ok(true) => return Poll::Ready(true),
                Ok(false) => {}
                Err(_) => return Poll::Ready(false),
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(false),
            }
        }
    }

    /// Gives the connection back, where it can carry another answer.
    fn keep(self: Box<Self>, clock: &Clock) {
        let Self {
            streaming,
            upstream,
            ..
        } = *self;
        if streaming.keeps && streaming.reader.is_done() {
            upstream.pool.give(streaming.connection, clock.now());
        }
    }
}

/// What a fault in a stream means once some of it has been sent on.
fn failed_by(fault: &Fault) -> Turn {
    match fault {
        Fault::Error(error) => {
            let failure = match error.status {
                Some(429 | 503 | 529) => Failure::Busy,
                Some(_) | None => Failure::Sequence,
            };
            Turn::Failed(failure, format!("it said: {}", error.message))
        }
        Fault::NoChunk => {
            let why = "an event of its stream is not JSON".to_owned();
            Turn::Failed(Failure::BadAnswer, why)
        }
        Fault::TooLarge => {
            let why = "an event of its stream is larger than upstream.max_event".to_owned();
            Turn::Failed(Failure::BadAnswer, why)
        }
    }
}

impl http_body::Body for RelayBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        loop {
            let out = match this.phase {
                Phase::Opening(_) => ready!(this.poll_opening(cx)),
                Phase::Streaming(_) => ready!(this.poll_streaming(cx)),
                Phase::Ending(..) => {
                    ready!(this.poll_ending(cx));
                    continue;
                }
                Phase::Done => {
                    if let Some(held) = &mut this.held {
                        held.all_out();
                    }
                    return Poll::Ready(None);
                }
                Phase::Failed => {
                    // Pending once: the connection flushes what it has before it asks again.
                    this.phase = Phase::Flushed;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Phase::Flushed => {
                    let error = axum::Error::new(io::Error::other(Unfinished));
                    return Poll::Ready(Some(Err(error)));
                }
            };
            if !out.is_empty() {
                this.comments.written();
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
            }
        }
    }
}

impl std::fmt::Debug for RelayBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayBody")
            .field("request", &self.watched.request)
            .finish_non_exhaustive()
    }
}
