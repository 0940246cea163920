//! The end of a connection whose client is still sending what it was refused for.
//!
//! Closed with bytes unread, a connection is reset, and with it the answer that its client has not
//! read yet. So the answer ends first, whole and at once, and what still comes is read and thrown
//! away, within bounds on bytes and time. It answers nothing.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBuf};
use tokio::time::Sleep;

/// Bytes that are thrown away at most; a client that sends more is cut off.
const BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long they are thrown away at most.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Room for one read.
const READ_SIZE: usize = 16 * 1024;

/// What is thrown away so far.
#[derive(Debug)]
pub(crate) struct Linger {
    left: usize,
    until: Pin<Box<Sleep>>,
}

impl Linger {
    pub(crate) fn new() -> Self {
        Self {
            left: BYTES_MAX,
            until: Box::pin(tokio::time::sleep(TIME_MAX)),
        }
    }

    /// Ready when the client has ended its side, or has had all the patience there is.
    pub(crate) fn poll<T: Read + Unpin>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut room = [0; READ_SIZE];
        while self.left > 0 && self.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut *io).poll_read(cx, buffer.unfilled()))?;
            let read = buffer.filled().len();
            if read == 0 {
                break;
            }
            self.left = self.left.saturating_sub(read);
        }
        Poll::Ready(Ok(()))
    }
}
