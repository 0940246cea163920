//! One connection: requests in, answers out, and whether the client is still there.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Shared;
use super::answer::write_error;
use super::ask::Wrong;
use super::http::{
    HttpRequest, LAST_CHUNK, NoRequest, read_request, write_chunk, write_stream_head,
};
use super::routes;
use super::script::{Step, unhex};
use super::seen::End;

/// Bytes that a client may send ahead while it is answered.
const AHEAD_MAX: usize = 1 << 20;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    unread: BytesMut,
    /// Counted from 1.
    pub(super) number: u64,
}

/// What comes after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Request,
    Close,
}

/// Serves a connection to its end.
pub(super) async fn serve(stream: TcpStream, number: u64, shared: &Shared) {
    // Err: it is closed already, and the first read says so.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection {
        stream,
        unread: BytesMut::new(),
        number,
    };
    loop {
        let request = match read_request(&mut connection.stream, &mut connection.unread).await {
            Ok(request) => request,
            Err(NoRequest::Gone) => return,
            Err(NoRequest::Wrong(status, what)) => {
                let mut out = Vec::new();
                write_error(&wrong(status, what), &mut out);
                // Err: it has gone without waiting for what was wrong.
                let _ = connection.write(&out).await;
                return;
            }
        };
        let closes = request.closes();
        match routes::answer(&mut connection, shared, request).await {
            Next::Request if !closes => {}
            Next::Request | Next::Close => return,
        }
    }
}

fn wrong(status: u16, what: &str) -> Wrong {
    Wrong {
        status,
        message: what.to_owned(),
        param: None,
        code: None,
    }
}

impl Connection {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Ends when the client has gone. What it sends ahead is kept for the next request.
    ///
    /// # Cancel safety
    /// Nothing that was read is lost.
    pub(super) async fn left(&mut self) {
        loop {
            if self.unread.len() >= AHEAD_MAX {
                std::future::pending::<()>().await;
            }
            self.unread.reserve(4_096);
            match self.stream.read_buf(&mut self.unread).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Answers as a script says; how it ended, and what comes next.
    pub(super) async fn play(&mut self, steps: &[&Step]) -> (End, Next) {
        for step in steps {
            match self.do_step(step).await {
                Ok(None) => {}
                Ok(Some(end)) => return (end, Next::Close),
                Err(_) => return (End::ClientGone, Next::Close),
            }
        }
        (End::Sent, Next::Request)
    }

    /// Does one step; how the answer ended, if it did.
    async fn do_step(&mut self, step: &Step) -> io::Result<Option<End>> {
        let mut out = Vec::new();
        match step {
            Step::Send(text) => out.extend_from_slice(text.as_bytes()),
            Step::Hex(digits) => out.extend(unhex(digits).unwrap_or_default()),
            Step::Head(status) => write_stream_head(*status, &mut out),
            Step::Chunk(text) => write_chunk(text.as_bytes(), &mut out),
            Step::Event(data) => {
                let mut event = Vec::new();
                tollgate_wire::sse::write_data(data.as_bytes(), &mut event);
                write_chunk(&event, &mut out);
            }
            Step::Wait(wait) => {
                let span = Duration::from_micros(wait.span.get());
                return Ok(tokio::time::timeout(span, self.left())
                    .await
                    .is_ok()
                    .then_some(End::ClientGone));
            }
            Step::Silence => {
                self.left().await;
                return Ok(Some(End::ClientGone));
            }
            Step::End => out.extend_from_slice(LAST_CHUNK),
            Step::Close => return Ok(Some(End::Cut)),
            Step::Reset => {
                self.stream.set_zero_linger()?;
                return Ok(Some(End::Cut));
            }
            // Taken apart when the script was looked up.
            Step::Repeat { .. } => {}
        }
        self.write(&out).await?;
        Ok(None)
    }
}

/// Whether a request is asked for by who watches, and so is no part of what is seen.
pub(super) fn is_watching(request: &HttpRequest) -> bool {
    matches!(request.path.as_str(), "/seen" | "/metrics" | "/health")
}
