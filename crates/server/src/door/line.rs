//! The connection to a client, as far as the request on it is concerned.
//!
//! Two things only the socket knows: whether a write was accepted, which is when a first token
//! counts as written, and whether writes are stuck, which a body never learns, since nobody asks it
//! for more. So the first token is stamped here and a stream's bound on time is enforced here.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::time::Sleep;
use tollgate_policy::gateway::Event;
use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{Micros, Time};

use crate::clock::Clock;
use crate::desk::Desk;
use crate::desk::inflight::InFlight;
use crate::door::linger::Linger;
use crate::door::malformed::in_words;
use crate::door::patience::Patience;

/// How long after its bound a stream may take to say goodbye before its connection is cut.
const GOODBYE: Micros = Micros::from_millis(300);

/// How long a client may accept no byte at all of what is being written to it.
const STALL_MAX: Micros = Micros::from_secs(60);

/// What a request tells the connection it is answered on. HTTP/1.1 answers one at a time, so one
/// set is enough.
#[derive(Debug)]
pub(crate) struct Line {
    /// Microseconds on the server's clock after which a stuck write is cut; `NEVER` while nothing
    /// streams.
    fence: AtomicU64,
    /// The request whose first token is in the next write; `NOBODY` when none is.
    first_token: AtomicU64,
    /// Where to tell at once what is written to nobody in particular: there is no socket to wait
    /// for.
    detached: Option<Weak<Desk>>,
    /// The request whose last byte is in the next flush. Dropped with the connection, its client
    /// has gone before it had all of its answer.
    parting: Mutex<Option<InFlight>>,
    /// Whether somebody answers what came last: what is written otherwise, nobody here wrote.
    answering: AtomicBool,
    /// Whether the client may still be sending what it was refused for.
    lingers: AtomicBool,
    patience: Patience,
}

/// Bytes of further requests that are read while one is answered.
const AHEAD_MAX: usize = 16 * 1024;

const NEVER: u64 = u64::MAX;
const NOBODY: u64 = u64::MAX;

impl Line {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::told(None))
    }

    /// The line of an answer that is written down instead of being sent.
    pub(crate) fn detached(desk: &Arc<Desk>) -> Arc<Self> {
        Arc::new(Self::told(Some(Arc::downgrade(desk))))
    }

    fn told(detached: Option<Weak<Desk>>) -> Self {
        Self {
            fence: AtomicU64::new(NEVER),
            first_token: AtomicU64::new(NOBODY),
            detached,
            parting: Mutex::new(None),
            answering: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            patience: Patience::default(),
        }
    }

    /// The bounds on the time of what happens on it.
    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// A request has come, and whoever takes it answers it.
    pub(crate) fn answering(&self) {
        self.answering.store(true, Ordering::Relaxed);
    }

    /// The request is refused while its client may still be sending it: when the connection ends,
    /// that is read and thrown away.
    pub(crate) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// The answer must be over at `at`.
    pub(crate) fn fence(&self, at: Time) {
        self.fence
            .store((at + GOODBYE).as_micros(), Ordering::Relaxed);
    }

    /// The bytes handed over so far are all of the answer to this request.
    pub(crate) fn all_handed_over(&self, flight: InFlight) {
        if self.detached.is_some() {
            flight.delivered(None);
            return;
        }
        *self.parting.lock().unwrap_or_else(PoisonError::into_inner) = Some(flight);
    }

    /// All bytes handed over so far have been accepted by the system.
    fn flushed(&self) {
        let parting = self
            .parting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(flight) = parting {
            self.fence.store(NEVER, Ordering::Relaxed);
            flight.delivered(self.take_first_token());
        }
    }

    /// Whether what is handed over now is the end of an answer.
    fn is_parting(&self) -> bool {
        let parting = self.parting.lock().unwrap_or_else(PoisonError::into_inner);
        parting.is_some()
    }

    /// The bytes handed over next hold the first token of `id`.
    pub(crate) fn first_token(&self, id: RequestId) {
        if let Some(desk) = &self.detached {
            if let Some(desk) = desk.upgrade() {
                desk.submit(Event::FirstToken { id });
            }
            return;
        }
        self.first_token.store(id.get(), Ordering::Relaxed);
    }

    /// The request whose first token has been handed over and not yet been accepted.
    fn take_first_token(&self) -> Option<RequestId> {
        if self.first_token.load(Ordering::Relaxed) == NOBODY {
            return None;
        }
        Some(RequestId::new(
            self.first_token.swap(NOBODY, Ordering::Relaxed),
        ))
    }
}

/// A client's socket that keeps the promises of its [`Line`].
#[derive(Debug)]
pub(crate) struct FencedIo<T> {
    io: T,
    line: Arc<Line>,
    desk: Weak<Desk>,
    clock: Clock,
    /// Runs while a write is stuck.
    stuck: Option<Stuck>,
    /// What is left to be written in the place of a bare answer of the HTTP layer.
    instead: Vec<u8>,
    /// Whether the HTTP layer waits for what comes next.
    listens: bool,
    /// What has come while it does not.
    ahead: BytesMut,
    ending: Ending,
}

/// How far the end of a connection is.
#[derive(Debug)]
enum Ending {
    No,
    /// Our side is over.
    Lingering(Linger),
}

#[derive(Debug)]
struct Stuck {
    since: Time,
    until: Time,
    alarm: Pin<Box<Sleep>>,
}

impl<T> FencedIo<T> {
    pub(crate) fn new(io: T, line: Arc<Line>, desk: &Arc<Desk>) -> Self {
        Self {
            io,
            line,
            desk: Arc::downgrade(desk),
            clock: desk.clock(),
            stuck: None,
            instead: Vec::new(),
            listens: false,
            ahead: BytesMut::new(),
            ending: Ending::No,
        }
    }

    /// Looks at how a write of so many bytes went: stamps the first token, or watches a stuck one.
    fn wrote(
        &mut self,
        wrote: Poll<io::Result<usize>>,
        of: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(result) => {
                self.stuck = None;
                if let Ok(count) = result {
                    self.accepted(count < of);
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.poll_stuck(cx));
                let why = "the client accepted no more of its answer in time";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
        }
    }

    /// Bytes were accepted, or only some of them. Where they are all and the last of an answer, the
    /// flush that comes at once says both, which is one fact for the policy less.
    fn accepted(&self, in_part: bool) {
        if (in_part || !self.line.is_parting())
            && let Some(id) = self.line.take_first_token()
            && let Some(desk) = self.desk.upgrade()
        {
            desk.submit(Event::FirstToken { id });
        }
    }

    /// Ready when a write has been stuck for too long.
    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let fence = Time::from_micros(self.line.fence.load(Ordering::Relaxed));
        let clock = self.clock;
        let since = self
            .stuck
            .as_ref()
            .map_or_else(|| clock.now(), |stuck| stuck.since);
        let until = fence.min(since + STALL_MAX);
        let stuck = self.stuck.get_or_insert_with(|| {
            let alarm = Box::pin(tokio::time::sleep_until(clock.instant(until)));
            Stuck {
                since,
                until,
                alarm,
            }
        });
        if stuck.until != until {
            stuck.until = until;
            stuck.alarm.as_mut().reset(clock.instant(until));
        }
        stuck.alarm.as_mut().poll(cx)
    }
}

impl<T: Read + Unpin> Read for FencedIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            let count = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead.split_to(count));
            this.heard();
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match read {
            Poll::Ready(_) => this.heard(),
            Poll::Pending => this.listens = true,
        }
        read
    }
}

impl<T: Read + Unpin> FencedIo<T> {
    /// Something has come: whatever it is, nobody answers it yet.
    fn heard(&mut self) {
        self.listens = false;
        self.line.answering.store(false, Ordering::Relaxed);
    }

    /// Whether what the client sends is read by nobody, though its request is being answered.
    fn nobody_listens(&self) -> bool {
        let answering = self.line.answering.load(Ordering::Relaxed);
        !self.listens && answering && !self.line.lingers.load(Ordering::Relaxed)
    }

    /// Looks for the end of what the client sends while nobody else does: the HTTP layer stops
    /// reading once it has bytes of a further request, and would not see that nobody waits for the
    /// first.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut room = [0; 1024];
        while self.ahead.len() < AHEAD_MAX {
            let mut buffer = ReadBuf::new(&mut room);
            let read = Pin::new(&mut self.io).poll_read(cx, buffer.unfilled());
            if ready!(read).is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
        Poll::Pending
    }
}

impl<T: Write + Unpin> FencedIo<T> {
    /// Writes an answer that the HTTP layer made up by itself, in words; ready with nothing where
    /// `answer` is none.
    fn poll_worded(
        &mut self,
        answer: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<usize>>> {
        if self.instead.is_empty() {
            if self.line.answering.load(Ordering::Relaxed) {
                return Poll::Ready(None);
            }
            let Some(worded) = in_words(answer) else {
                return Poll::Ready(None);
            };
            self.instead = worded;
            self.line.linger();
        }
        while !self.instead.is_empty() {
            let wrote = Pin::new(&mut self.io).poll_write(cx, &self.instead);
            let length = self.instead.len();
            match ready!(self.wrote(wrote, length, cx)) {
                Ok(count) => drop(self.instead.drain(..count)),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        Poll::Ready(Some(Ok(answer.len())))
    }
}

/// Not vectored: a head and a small body behind it cost less as a copy than as two parts.
impl<T: Read + Write + Unpin> Write for FencedIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(wrote) = ready!(this.poll_worded(buf, cx)) {
            return Poll::Ready(wrote);
        }
        let wrote = Pin::new(&mut this.io).poll_write(cx, buf);
        this.wrote(wrote, buf.len(), cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            this.line.flushed();
        }
        if this.nobody_listens() && this.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.ending, Ending::No) {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            if !this.line.lingers.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            this.ending = Ending::Lingering(Linger::new());
        }
        match &mut this.ending {
            Ending::Lingering(linger) => linger.poll(&mut this.io, cx),
            Ending::No => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::num::NonZeroU32;

    use hyper_util::rt::TokioIo;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tollgate_policy::fair::Policy;
    use tollgate_policy::gateway::Config;
    use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant, TenantTable};
    use tollgate_policy::usage::Weights;

    use super::*;
    use crate::books::Books;
    use crate::books::metrics::Metrics;
    use crate::journal::Journal;

    /// A desk without models, and the folder of its ledger.
    fn desk() -> (Arc<Desk>, TempDir) {
        let template = Tenant {
            name: String::new(),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits: Limits::default(),
            by_model: Default::default(),
            floor: 0,
        };
        let config = Config {
            tenants: TenantTable::new(vec![], template),
            models: vec![],
            replicas: vec![],
            fairness: Policy::Fifo,
            weights: Weights::default(),
            seed: 0,
        };
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::start();
        let journal = Journal::open(
            folder.path(),
            crate::config::LedgerConfig::default().settings(),
            clock,
        )
        .unwrap()
        .0;
        let books = Books::new(Metrics::new(), journal, vec![]);
        (Desk::new(config, clock, books).0, folder)
    }

    /// A socket with room for eight bytes that its client has not read.
    fn socket(
        line: &Arc<Line>,
        desk: &Arc<Desk>,
    ) -> (FencedIo<TokioIo<DuplexStream>>, DuplexStream) {
        let (client, server) = duplex(8);
        let io = FencedIo::new(TokioIo::new(server), Arc::clone(line), desk);
        (io, client)
    }

    async fn write(io: &mut FencedIo<TokioIo<DuplexStream>>, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = poll_fn(|cx| Pin::new(&mut *io).poll_write(cx, bytes)).await?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Seconds since the start, to a tenth.
    fn tenths(desk: &Desk) -> u64 {
        desk.clock().now().as_micros() / 100_000
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_nothing_is_cut_off_after_a_minute() {
        let (desk, _folder) = desk();
        let (mut io, _client) = socket(&Line::new(), &desk);
        let error = write(&mut io, &[b'x'; 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(tenths(&desk), 600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_nothing_is_cut_off_soon_after_its_bound() {
        let (desk, _folder) = desk();
        let line = Line::new();
        let (mut io, _client) = socket(&line, &desk);
        line.fence(Time::START + Micros::from_secs(7));
        assert!(write(&mut io, &[b'x'; 20]).await.is_err());
        assert_eq!(tenths(&desk), 73);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_a_little_now_and_then_is_never_cut_off() {
        let (desk, _folder) = desk();
        let (mut io, mut client) = socket(&Line::new(), &desk);
        let read = async {
            let mut tick = tokio::time::interval(std::time::Duration::from_secs(50));
            for _ in 0..10 {
                tick.tick().await;
                client.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(write(&mut io, &[b'x'; 80]), read);
        assert!(written.is_ok());
        assert!(tenths(&desk) >= 4_000);
    }
}
