//! Bodies that hold what their request holds until their last byte is out, or they are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use crate::desk::inflight::InFlight;
use crate::door::line::Line;

/// A request in flight whose answer is being sent. Dropped before [`Held::all_out`], its client has
/// gone.
#[derive(Debug)]
pub(crate) struct Held {
    flight: Option<InFlight>,
    line: Arc<Line>,
    all_out: bool,
}

impl Held {
    pub(crate) fn new(flight: InFlight, line: Arc<Line>) -> Self {
        Self {
            flight: Some(flight),
            line,
            all_out: false,
        }
    }

    pub(crate) fn flight(&mut self) -> Option<&mut InFlight> {
        self.flight.as_mut()
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// The connection has taken the last byte, and will flush it.
    pub(crate) fn all_out(&mut self) {
        self.all_out = true;
    }

    /// A body that holds this until it has been sent.
    pub(crate) fn around(self, body: Body) -> HeldBody {
        HeldBody {
            left: Left::Body(body),
            held: self,
        }
    }

    /// The same of an answer in one piece, which is its own first token.
    pub(crate) fn whole(self, bytes: Bytes) -> HeldBody {
        if let Some(flight) = &self.flight {
            self.line.first_token(flight.id());
        }
        HeldBody {
            left: Left::Bytes(bytes),
            held: self,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take()
            && self.all_out
        {
            self.line.all_handed_over(flight);
        }
    }
}

/// A finished body, and what it holds.
#[derive(Debug)]
pub(crate) struct HeldBody {
    left: Left,
    held: Held,
}

/// What is left of a body.
#[derive(Debug)]
enum Left {
    /// In one piece, and taken in one.
    Bytes(Bytes),
    Body(Body),
}

impl Left {
    fn is_over(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Body(body) => body.is_end_stream(),
        }
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = match &mut self.left {
            Left::Bytes(bytes) => {
                let all = Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty());
                Poll::Ready(all.map(|bytes| Ok(Frame::data(bytes))))
            }
            Left::Body(body) => Pin::new(body).poll_frame(cx),
        };
        if self.left.is_over() {
            self.held.all_out();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.left {
            Left::Bytes(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Left::Body(body) => body.size_hint(),
        }
    }
}
