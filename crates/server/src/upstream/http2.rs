//! HTTP/2 as a client speaks it: one connection to a replica carries all requests at once.
//!
//! Those for which the replica has no place wait for one. A request that the replica says it has
//! not looked at, refused or left behind by a connection that ends, is asked again; any other is
//! not. A body is read like that of a connection of its own, and one that is let go of is reset, so
//! that the replica stops.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, Method, Request, Uri, header};
use bytes::{Buf as _, Bytes};
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Mutex;
use tollgate_policy::outcome::Failure;

use super::ask::Ask;
use super::exchange::Failed;
use super::http1::Head;
use super::io::Io;
use super::pool::{Age, Connection, Pool};
use crate::spawn::Tasks;

/// Bytes of a body that may be under way, as many as one read takes several times.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Bytes of all bodies together, so that clients that do not read hold up no others.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// How often a request is sent that was not looked at.
const TRIES: usize = 4;

/// The connection to one replica, once there is one.
#[derive(Default)]
pub(crate) struct Shared {
    sender: Mutex<Option<SendRequest<Bytes>>>,
    tasks: Tasks,
}

/// How a request was lost.
enum Lost {
    /// The replica has not looked at it.
    Unseen(String),
    /// It may have.
    Broken(String),
}

impl Shared {
    /// Sends a request, and reads the head of what comes back.
    ///
    /// # Cancel safety
    /// Dropped, it resets its stream.
    pub(crate) async fn ask(&self, pool: &Pool, ask: &Ask) -> Result<(Connection, Head), Failed> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let sender = self.sender(pool).await.map_err(|error| {
                let why = format!("no connection to {}: {error}", pool.address());
                Failed::new(Failure::Unreachable, why)
            })?;
            match send(sender, ask).await {
                Ok((head, body)) => return Ok((connection(body), head)),
                Err(Lost::Unseen(why)) => last = why,
                Err(Lost::Broken(why)) => return Err(Failed::new(Failure::BrokeOff, why)),
            }
        }
        let why = format!("it refused {TRIES} streams unseen: {last}");
        Err(Failed::new(Failure::Busy, why))
    }

    /// A place on the connection; a new one where there is none that can be used.
    async fn sender(&self, pool: &Pool) -> io::Result<SendRequest<Bytes>> {
        let mut kept = self.sender.lock().await;
        if let Some(sender) = kept.as_mut()
            && is_open(sender).await
        {
            return Ok(sender.clone());
        }
        let io = pool.connect().await?.io;
        let shaken = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(io)
            .await;
        let (sender, connection) = shaken.map_err(io::Error::other)?;
        self.tasks.spawn_named("http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a replica ended");
            }
        });
        *kept = Some(sender.clone());
        Ok(sender)
    }

    /// Asks on a new connection from now on.
    pub(crate) async fn clear(&self) {
        *self.sender.lock().await = None;
    }
}

/// Whether a connection takes requests, or will once there is a place.
async fn is_open(sender: &mut SendRequest<Bytes>) -> bool {
    let looked = std::future::poll_fn(|cx| match sender.poll_ready(cx) {
        Poll::Ready(Err(_)) => Poll::Ready(false),
        Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(true),
    });
    looked.await
}

async fn send(sender: SendRequest<Bytes>, ask: &Ask) -> Result<(Head, RecvStream), Lost> {
    let request = request(ask).ok_or_else(|| Lost::Broken("it can't be asked so".to_owned()))?;
    let unseen = |error: &h2::Error| Lost::Unseen(error.to_string());
    let mut sender = sender.ready().await.map_err(|error| unseen(&error))?;
    // In one piece: a body in many small frames is taken for an attack.
    let whole = ask.body();
    let sent = sender.send_request(request, whole.is_empty());
    let (answer, mut body) = sent.map_err(|error| unseen(&error))?;
    // It goes as the replica makes room.
    if !whole.is_empty() {
        body.send_data(whole, true).map_err(|error| lost(&error))?;
    }
    let answer = answer.await.map_err(|error| lost(&error))?;
    let (parts, body) = answer.into_parts();
    Ok((Head::of_stream(parts.status, parts.headers), body))
}

fn lost(error: &h2::Error) -> Lost {
    let left_behind = error.is_go_away() && error.is_remote();
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => Lost::Unseen(error.to_string()),
        Some(Reason::NO_ERROR) if left_behind => Lost::Unseen(error.to_string()),
        Some(_) | None => Lost::Broken(format!("its connection broke off: {error}")),
    }
}

/// A request as it goes over HTTP/1.1, in the form of HTTP/2.
fn request(ask: &Ask) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(ask.head()).ok()?.is_complete().then_some(())?;
    let mut fields = HeaderMap::with_capacity(parsed.headers.len());
    let mut host = None;
    for field in parsed.headers.iter() {
        let name = header::HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = header::HeaderValue::from_bytes(field.value).ok()?;
        if name == header::HOST {
            host = Some(value);
        } else {
            fields.append(name, value);
        }
    }
    let uri = Uri::builder()
        .scheme("http")
        .authority(host?.to_str().ok()?)
        .path_and_query(parsed.path?)
        .build();
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
    *request.uri_mut() = uri.ok()?;
    *request.headers_mut() = fields;
    Some(request)
}

/// A body, as if it came on a connection of its own.
fn connection(body: RecvStream) -> Connection {
    Connection {
        io: Io::Stream(Box::new(Body {
            stream: body,
            unread: Bytes::new(),
        })),
        buffer: bytes::BytesMut::new(),
        age: Age::New,
    }
}

/// A body that is read as bytes.
#[derive(Debug)]
pub(crate) struct Body {
    stream: RecvStream,
    unread: Bytes,
}

impl AsyncRead for Body {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.unread.is_empty() {
            match ready!(this.stream.poll_data(cx)) {
                Some(Ok(data)) => this.unread = data,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = this.unread.len().min(buf.remaining());
        buf.put_slice(&this.unread[..count]);
        this.unread.advance(count);
        // Only what the client has taken makes room for more.
        let made = this.stream.flow_control().release_capacity(count);
        Poll::Ready(made.map_err(io::Error::other))
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
