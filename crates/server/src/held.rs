//! Bodies that hold what their request holds until their last byte is out, or they are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::inflight::InFlight;
use crate::line::Line;

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
        HeldBody { body, held: self }
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
    body: Body,
    held: Held,
}

impl HeldBody {
    pub(crate) fn new(bytes: Vec<u8>, held: Held) -> Self {
        held.around(Body::from(bytes))
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if self.body.is_end_stream() {
            self.held.all_out();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
