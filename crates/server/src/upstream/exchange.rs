//! Asks a replica once, and looks at the first of what comes back: nothing is told to the client
//! before it is known what the answer is.
//!
//! A connection that was used before and breaks before the first byte of an answer is taken for one
//! that the engine had closed: the same request goes out on a new one, once. After a byte has come,
//! never.

use std::io;
use std::time::Duration;

use axum::http::{StatusCode, header};
use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tollgate_policy::outcome::Failure;
use tollgate_policy::units::Micros;
use tollgate_wire::{EngineError, Fault, Tap, Whole};

use super::ask::{Ask, Part};
use super::http1::{BodyReader, Fields, HEAD_MAX, Head, Malformed, Next};
use super::model::Upstream;
use super::pool::{Age, Connection};
use crate::clock::Clock;
use crate::door::patience::Patience;

/// Bytes of an answer in one piece, which is held until it is known to be whole.
const WHOLE_MAX: usize = 64 << 20;

/// Bytes of an error that are read.
const ERROR_MAX: usize = 1 << 20;

/// Room that is made at once for an answer in one piece that says how long it is.
const ROOM_MAX: usize = 256 * 1024;

/// Room for one read from a connection.
pub(crate) const READ_SIZE: usize = 16 * 1024;

/// What comes back.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A stream, the first event of which is a good one.
    Stream(Box<Streaming>),
    /// An answer in one piece.
    Whole {
        fields: Fields,
        body: Bytes,
        said: Whole,
    },
    /// The engine does not take the request, which its caller can mend.
    Refused {
        status: StatusCode,
        fields: Fields,
        /// As it came.
        body: Bytes,
        said: EngineError,
    },
    /// It failed.
    Failed(Failed),
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    /// When the engine says to come back.
    pub(crate) retry_after: Option<Micros>,
    /// What happened, for the log.
    pub(crate) why: String,
}

/// A stream that has begun.
#[derive(Debug)]
pub(crate) struct Streaming {
    pub(crate) fields: Fields,
    pub(crate) connection: Connection,
    pub(crate) reader: BodyReader,
    pub(crate) keeps: bool,
    pub(crate) tap: Tap,
    /// What has gone through the tap and is to be sent.
    pub(crate) out: Vec<u8>,
}

impl Failed {
    pub(crate) fn new(failure: Failure, why: impl Into<String>) -> Self {
        Self {
            failure,
            retry_after: None,
            why: why.into(),
        }
    }
}

impl From<Malformed> for Failed {
    fn from(error: Malformed) -> Self {
        Self::new(Failure::BadAnswer, error.to_string())
    }
}

/// Asks, and waits for as much of the answer as says what it is.
///
/// # Cancel safety
/// Dropped, it closes its connection, and the engine learns that nobody listens.
pub(crate) async fn ask(
    upstream: &Upstream,
    mut ask: Ask,
    patience: &Patience,
    clock: &Clock,
) -> Reply {
    let Some(tap) = ask.tap.take() else {
        // The head of an answer in one piece comes when all of it has been made.
        return try_ask(upstream, &ask, None, clock)
            .await
            .unwrap_or_else(Reply::Failed);
    };
    let asking = try_ask(upstream, &ask, Some(tap), clock);
    match patience.wait(ask.first_byte, asking).await {
        Some(reply) => reply.unwrap_or_else(Reply::Failed),
        None => {
            let why = "no event of a stream came in time";
            Reply::Failed(Failed::new(Failure::Silent, why))
        }
    }
}

async fn try_ask(
    upstream: &Upstream,
    ask: &Ask,
    tap: Option<Tap>,
    clock: &Clock,
) -> Result<Reply, Failed> {
    let (connection, head) = open(upstream, ask, clock).await?;
    match (tap, head.status.as_u16()) {
        (Some(tap), 200) if is_event_stream(&head.fields) => {
            first_event(connection, head, tap).await
        }
        (tap, 200..=299) => match (whole(upstream, connection, head, clock).await?, tap) {
            (Reply::Whole { .. }, Some(_)) => {
                let why = "it answered in one piece what was asked for as a stream";
                Err(Failed::new(Failure::BadAnswer, why))
            }
            (reply, _) => Ok(reply),
        },
        (_, status) => error(upstream, connection, head, (status, clock)).await,
    }
}

/// Sends a request, and reads the head of what comes back.
async fn open(upstream: &Upstream, ask: &Ask, clock: &Clock) -> Result<(Connection, Head), Failed> {
    let used = upstream.pool.take(clock.now());
    open_on(used, upstream, ask).await
}

/// The same, on a connection that was used before, if there is one, and else on a new one.
async fn open_on(
    used: Option<Connection>,
    upstream: &Upstream,
    ask: &Ask,
) -> Result<(Connection, Head), Failed> {
    if let Some(shared) = upstream.pool.shared() {
        return shared.ask(&upstream.pool, ask).await;
    }
    if let Some(mut used) = used {
        match talk(&mut used, ask).await {
            Ok(head) => return Ok((used, head)),
            Err(Broken::Answer(failed)) => return Err(failed),
            Err(Broken::Connection(_)) => {}
        }
    }
    let connected = upstream.pool.connect().await;
    let mut connection = connected.map_err(|error| {
        let why = format!("no connection to {}: {error}", upstream.pool.address());
        Failed::new(Failure::Unreachable, why)
    })?;
    match talk(&mut connection, ask).await {
        Ok(head) => Ok((connection, head)),
        Err(Broken::Answer(failed)) => Err(failed),
        Err(Broken::Connection(error)) => {
            let why = format!("it closed the connection without an answer: {error}");
            Err(Failed::new(Failure::BrokeOff, why))
        }
    }
}

/// How a try on one connection ended without a head.
enum Broken {
    /// Before any byte of an answer.
    Connection(io::Error),
    /// After one.
    Answer(Failed),
}

async fn talk(connection: &mut Connection, ask: &Ask) -> Result<Head, Broken> {
    let sent = send(connection, ask).await;
    if let (Err(error), Age::Used) = (&sent, connection.age) {
        return Err(Broken::Connection(error.kind().into()));
    }
    // An engine that refuses a body before it has read it may have said so before it closed.
    loop {
        match Head::take(&mut connection.buffer) {
            Ok(Some(head)) => return Ok(head),
            Ok(None) => {}
            Err(error) => return Err(Broken::Answer(error.into())),
        }
        connection.buffer.reserve(READ_SIZE);
        match connection.io.read_buf(&mut connection.buffer).await {
            Ok(1..) => {}
            Ok(0) if connection.buffer.is_empty() => {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(Broken::Connection(sent.err().unwrap_or(error)));
            }
            Ok(0) => return Err(Broken::Answer(broke_off("in its head"))),
            Err(error) if connection.buffer.is_empty() => return Err(Broken::Connection(error)),
            Err(_) => return Err(Broken::Answer(broke_off("in its head"))),
        }
    }
}

async fn send(connection: &mut Connection, ask: &Ask) -> io::Result<()> {
    let io = &mut connection.io;
    io.write_all(&ask.message).await?;
    for part in &ask.rest {
        io.write_all(part).await?;
    }
    io.flush().await
}

fn broke_off(place: &str) -> Failed {
    Failed::new(Failure::BrokeOff, format!("it broke off {place}"))
}

fn is_event_stream(fields: &Fields) -> bool {
    media_type(fields).is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"))
}

fn media_type(fields: &Fields) -> Option<&str> {
    let value = fields.kind.as_ref()?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

/// Nothing was said of codings that we take, so none is taken.
fn check_coding(head: &Head) -> Result<(), Failed> {
    match head.fields.others.get(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding) if coding.as_bytes().eq_ignore_ascii_case(b"identity") => Ok(()),
        Some(_) => {
            let why = "it encoded an answer that was to be plain";
            Err(Failed::new(Failure::BadAnswer, why))
        }
    }
}

/// Reads a stream up to its first chunk, or to what shows that it is none.
async fn first_event(connection: Connection, head: Head, tap: Tap) -> Result<Reply, Failed> {
    check_coding(&head)?;
    let mut streaming = Streaming {
        reader: head.body()?,
        keeps: head.keeps,
        fields: head.fields,
        connection,
        tap,
        out: Vec::new(),
    };
    loop {
        let read = streaming.read_buffered();
        let facts = streaming.tap.facts();
        // Tokens that came together with a fault are the client's: it gets them, and then is told.
        if facts.deltas > 0 {
            return Ok(Reply::Stream(Box::new(streaming)));
        }
        if let Some(fault) = &facts.fault {
            return refusal(fault);
        }
        let ended = read?;
        if facts.chunks > 0 {
            return Ok(Reply::Stream(Box::new(streaming)));
        }
        if ended || streaming.tap.is_over() {
            return Err(broke_off("before its stream had anything in it"));
        }
        let connection = &mut streaming.connection;
        connection.buffer.reserve(READ_SIZE);
        match connection.io.read_buf(&mut connection.buffer).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(broke_off("before its stream had anything in it")),
        }
    }
}

impl Streaming {
    /// Puts what has been read through the tap; whether the body has ended.
    pub(crate) fn read_buffered(&mut self) -> Result<bool, Malformed> {
        let mut bytes = &self.connection.buffer[..];
        self.out.reserve(bytes.len());
        let ended = loop {
            match self.reader.next(&mut bytes) {
                Ok(Next::Data(data)) => self.tap.push(data, &mut self.out),
                Ok(Next::More) => break Ok(false),
                Ok(Next::End) => break Ok(true),
                Err(error) => break Err(error),
            }
        };
        // Also after an error: what has gone through the tap goes through once.
        let used = self.connection.buffer.len() - bytes.len();
        self.connection.buffer.advance(used);
        ended
    }
}

/// What an error in a stream means, while nothing of it has been sent on.
fn refusal(fault: &Fault) -> Result<Reply, Failed> {
    match fault {
        Fault::Error(error) => of_status(error.status, error.clone()),
        Fault::NoChunk => Err(Failed::new(
            Failure::BadAnswer,
            "an event of its stream is not JSON",
        )),
        Fault::TooLarge => Err(Failed::new(
            Failure::BadAnswer,
            "an event of its stream is larger than upstream.max_event",
        )),
    }
}

/// What an error means that came under a good status.
fn of_status(status: Option<u16>, said: EngineError) -> Result<Reply, Failed> {
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    match status {
        Some(status) if is_callers(status) => Ok(Reply::Refused {
            status,
            fields: Fields::default(),
            body: Bytes::new(),
            said,
        }),
        Some(status) => Err(Failed::new(
            failure_of(status),
            format!("it said {status}: {}", said.message),
        )),
        None => Err(Failed::new(
            Failure::Erred,
            format!("it said: {}", said.message),
        )),
    }
}

/// Whether an error is one that the caller can mend. That our own key is not taken is none.
fn is_callers(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status.as_u16(), 401 | 403 | 407)
}

/// What a bad status says of the engine.
pub(crate) fn failure_of(status: StatusCode) -> Failure {
    match status.as_u16() {
        429 | 503 | 529 => Failure::Busy,
        // Whether the request is to blame shows when another replica is asked.
        500..=599 => Failure::Erred,
        _ => Failure::BadAnswer,
    }
}

/// Reads an answer in one piece.
async fn whole(
    upstream: &Upstream,
    mut connection: Connection,
    head: Head,
    clock: &Clock,
) -> Result<Reply, Failed> {
    check_coding(&head)?;
    let mut reader = head.body()?;
    let body = read_all(&mut connection, &mut reader, WHOLE_MAX).await?;
    let said = match Whole::read(&body) {
        Some(Ok(said)) => said,
        Some(Err(error)) => return of_status(error.status, error),
        None => {
            let why = "its answer is not JSON";
            return Err(Failed::new(Failure::BadAnswer, why));
        }
    };
    if head.keeps && reader.is_done() {
        upstream.pool.give(connection, clock.now());
    }
    Ok(Reply::Whole {
        fields: head.fields,
        body,
        said,
    })
}

/// Reads an error.
async fn error(
    upstream: &Upstream,
    mut connection: Connection,
    head: Head,
    (status, clock): (u16, &Clock),
) -> Result<Reply, Failed> {
    let mut reader = head.body()?;
    let body = read_all(&mut connection, &mut reader, ERROR_MAX).await?;
    if head.keeps && reader.is_done() {
        upstream.pool.give(connection, clock.now());
    }
    let said = EngineError::of_body(&body);
    if is_callers(head.status) {
        let said = said.unwrap_or_else(|| EngineError {
            status: Some(status),
            message: plain(&body),
            ..EngineError::default()
        });
        return Ok(Reply::Refused {
            status: head.status,
            fields: head.fields,
            body,
            said,
        });
    }
    let message = said.map_or_else(|| plain(&body), |said| said.message);
    Err(Failed {
        failure: failure_of(head.status),
        retry_after: retry_after(&head.fields),
        why: format!("it answered {}: {message}", head.status),
    })
}

/// What is left to say of an error that is no JSON.
fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(EngineError::MESSAGE_MAX)]);
    text.chars().filter(|c| !c.is_control()).collect()
}

/// When an engine says to come back, where it says so in seconds.
pub(crate) fn retry_after(fields: &Fields) -> Option<Micros> {
    let value = fields.others.get(header::RETRY_AFTER)?.to_str().ok()?;
    let secs: u64 = value.trim().parse().ok()?;
    Some(Micros::from_secs(secs.min(3_600)))
}

/// Reads a body to its end.
async fn read_all(
    connection: &mut Connection,
    reader: &mut BodyReader,
    most: usize,
) -> Result<Bytes, Failed> {
    let mut all = Vec::with_capacity(reader.length().map_or(0, |length| length.min(ROOM_MAX)));
    loop {
        let mut bytes = &connection.buffer[..];
        let ended = loop {
            match reader.next(&mut bytes)? {
                Next::Data(data) => all.extend_from_slice(data),
                Next::More => break false,
                Next::End => break true,
            }
        };
        let used = connection.buffer.len() - bytes.len();
        connection.buffer.advance(used);
        if all.len() > most {
            let why = format!("its answer is longer than {most} bytes");
            return Err(Failed::new(Failure::BadAnswer, why));
        }
        if ended {
            return Ok(Bytes::from(all));
        }
        connection.buffer.reserve(READ_SIZE);
        match connection.io.read_buf(&mut connection.buffer).await {
            Ok(1..) => {}
            Ok(0) if reader.ends_with_connection() => return Ok(Bytes::from(all)),
            Ok(0) | Err(_) => return Err(broke_off("in its answer")),
        }
    }
}

/// Gets a page from a replica. Probes keep a connection of their own: what they learn must not
/// depend on those that requests left behind, and one on which a page did not come is not kept.
///
/// # Errors
/// There is none, or not in time.
pub(crate) async fn get(
    upstream: &Upstream,
    head: Vec<u8>,
    within: Duration,
) -> Result<(StatusCode, Bytes), Failed> {
    let ask = Ask::new(head, None, within);
    let getting = async {
        let used = upstream.aside.take();
        let (mut connection, head) = open_on(used, upstream, &ask).await?;
        let mut reader = head.body()?;
        let body = read_all(&mut connection, &mut reader, WHOLE_MAX).await?;
        if head.keeps && reader.is_done() {
            upstream.aside.give(connection);
        }
        Ok((head.status, body))
    };
    match tokio::time::timeout(within, getting).await {
        Ok(got) => got,
        Err(_) => Err(Failed::new(Failure::Silent, "it did not answer in time")),
    }
}

/// All of an answer, as it came.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// Whether the connection could be used again.
    pub(crate) keeps: bool,
}

/// Sends a replica a body, and reads all that comes back, whatever it is.
///
/// # Errors
/// There is no answer, or not in time.
pub(crate) async fn post(
    upstream: &Upstream,
    head: Vec<u8>,
    body: String,
    within: Duration,
) -> Result<Plain, Failed> {
    let body = Part::New(body.into_bytes());
    let ask = Ask::new(head, None, within).with_body(0, std::iter::once(body));
    let posting = async {
        let (mut connection, head) = open_on(None, upstream, &ask).await?;
        let mut reader = head.body()?;
        let body = read_all(&mut connection, &mut reader, ERROR_MAX).await?;
        Ok(Plain {
            status: head.status,
            body,
            keeps: head.keeps && reader.is_done(),
        })
    };
    match tokio::time::timeout(within, posting).await {
        Ok(posted) => posted,
        Err(_) => Err(Failed::new(Failure::Silent, "it did not answer in time")),
    }
}

const _: () = assert!(HEAD_MAX < WHOLE_MAX);
