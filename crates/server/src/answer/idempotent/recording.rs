//! An answer while it is made and after: whoever asked for it reads it from here, from the start.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::watch;

use crate::store::{Digest, Replay};

/// What a response says before its body.
#[derive(Clone, Debug)]
struct Head {
    status: StatusCode,
    headers: HeaderMap,
    /// Bytes of the body, where that is known from the start.
    length: Option<u64>,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With its last byte.
    Whole,
    /// Before it.
    BrokenOff,
}

/// An answer, as far as it is made.
#[derive(Debug)]
pub(crate) struct Recording {
    head: watch::Sender<Option<Head>>,
    body: Mutex<Pieces>,
}

#[derive(Debug, Default)]
struct Pieces {
    pieces: Vec<Bytes>,
    bytes: usize,
    end: Option<End>,
    readers: Vec<Waker>,
}

impl Recording {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            head: watch::Sender::new(None),
            body: Mutex::default(),
        })
    }

    fn body(&self) -> MutexGuard<'_, Pieces> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a response in, piece by piece as it is made.
    pub(super) async fn record(&self, response: Response) {
        let (parts, mut body) = response.into_parts();
        self.head.send_replace(Some(Head {
            status: parts.status,
            headers: parts.headers,
            length: http_body::Body::size_hint(&body).exact(),
        }));
        loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.body().add(piece);
                    }
                }
                Some(Err(_)) => return self.body().finish(End::BrokenOff),
                None => {
                    // First: when the last reader has its last byte, the request has ended.
                    drop(body);
                    return self.body().finish(End::Whole);
                }
            }
        }
    }

    /// Whether it is a whole answer, and not an error.
    pub(super) fn is_good(&self) -> bool {
        let ok = self
            .head
            .borrow()
            .as_ref()
            .is_some_and(|head| head.status == StatusCode::OK);
        ok && self.body().end == Some(End::Whole)
    }

    pub(super) fn is_over(&self) -> bool {
        self.body().end.is_some()
    }

    pub(super) fn bytes(&self) -> usize {
        self.body().bytes
    }

    /// The response, once its head is known; its body follows while it is made.
    pub(super) async fn response(self: Arc<Self>) -> Response {
        let mut head = self.head.subscribe();
        let head = match head.wait_for(Option::is_some).await {
            Ok(head) => head.clone(),
            Err(_) => None,
        };
        let Some(head) = head else {
            return crate::answer::refuse::bug();
        };
        let body = Reader {
            recording: self,
            next: 0,
            left: head.length,
        };
        let mut response = Response::new(Body::new(body));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        response
    }

    /// The answer as the store keeps it; `None` where it is not a good one.
    pub(super) fn kept(&self, kept: Kept<'_>) -> Option<Replay> {
        if !self.is_good() {
            return None;
        }
        let head = self.head.borrow();
        let head = head.as_ref()?;
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        let headers: Vec<_> = head.headers.iter().filter_map(text).collect();
        let mut bytes = Vec::new();
        for piece in &self.body().pieces {
            bytes.extend_from_slice(&u32::try_from(piece.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(piece);
        }
        Some(Replay {
            tenant: kept.tenant.to_owned(),
            name: kept.name,
            body_hash: kept.body_hash,
            request: kept.request.to_owned(),
            status: head.status.as_u16(),
            headers: serde_json::to_string(&headers).ok()?,
            body: bytes,
            finished_us: kept.finished_us,
        })
    }

    /// Becomes the answer that the store kept; `false` where that makes no sense.
    pub(super) fn restore(&self, replay: &Replay) -> bool {
        let headers: Option<Vec<(String, String)>> = serde_json::from_str(&replay.headers).ok();
        let (Some(headers), Ok(status)) = (headers, StatusCode::from_u16(replay.status)) else {
            return false;
        };
        let header = |(name, value): (String, String)| {
            Some((
                HeaderName::try_from(name).ok()?,
                HeaderValue::try_from(value).ok()?,
            ))
        };
        let Some(pieces) = split(&replay.body) else {
            return false;
        };
        for piece in pieces {
            self.body().add(piece);
        }
        self.body().finish(End::Whole);
        let mut headers: HeaderMap = headers.into_iter().filter_map(header).collect();
        headers.insert(super::HOW, HeaderValue::from_static("replayed"));
        self.head.send_replace(Some(Head {
            status,
            headers,
            length: None,
        }));
        true
    }
}

/// What the store keeps beside the answer itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<'a> {
    pub(super) tenant: &'a str,
    pub(super) name: Digest,
    pub(super) body_hash: Digest,
    pub(super) request: &'a str,
    pub(super) finished_us: u64,
}

/// The pieces of a body that was kept.
fn split(mut bytes: &[u8]) -> Option<Vec<Bytes>> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (piece, rest) = rest.split_at_checked(length)?;
        pieces.push(Bytes::copy_from_slice(piece));
        bytes = rest;
    }
    Some(pieces)
}

impl Pieces {
    fn add(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push(piece);
        self.wake();
    }

    fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.wake();
    }

    fn wake(&mut self) {
        for reader in self.readers.drain(..) {
            reader.wake();
        }
    }
}

/// The body of one response that is read from a recording.
#[derive(Debug)]
struct Reader {
    recording: Arc<Recording>,
    next: usize,
    left: Option<u64>,
}

/// The answer that this one repeats broke off.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off where the one that it repeats did")]
struct BrokenOff;

impl http_body::Body for Reader {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let mut body = this.recording.body();
        if let Some(piece) = body.pieces.get(this.next).cloned() {
            this.next += 1;
            let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            this.left = this.left.map(|left| left.saturating_sub(length));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match body.end {
            Some(End::Whole) => Poll::Ready(None),
            Some(End::BrokenOff) => Poll::Ready(Some(Err(axum::Error::new(BrokenOff)))),
            None => {
                if !body.readers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    body.readers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
