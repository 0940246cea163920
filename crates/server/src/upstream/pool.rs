//! Connections to one replica: those that are idle, the one used last on top.
//!
//! An idle one is used again while it is fresh and quiet. That says little: the engine may be
//! closing it just now. So whoever takes one that was used before asks again on a new one when it
//! breaks before any byte of an answer.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio_rustls::TlsConnector;
use tollgate_policy::units::{Micros, Time};

use super::http2::Shared;
use super::io::Io;
use crate::config::{Address, Speaks};

/// Connections that are kept idle at most.
const IDLE_MAX: usize = 256;

/// How long one is kept: less than the 5 s after which uvicorn and llama.cpp's server close theirs.
const IDLE_TIME: Micros = Micros::from_millis(4_000);

/// A connection to a replica.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) io: Io,
    /// What has been read of it and not yet used.
    pub(crate) buffer: BytesMut,
    pub(crate) age: Age,
}

/// The connection of a replica's probes, while it is idle.
#[derive(Debug, Default)]
pub(crate) struct Aside(Mutex<Option<Connection>>);

impl Aside {
    /// It, if it looks usable.
    pub(crate) fn take(&self) -> Option<Connection> {
        let kept = self.lock().take();
        kept.filter(|connection| connection.io.is_quiet())
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(crate) fn give(&self, mut connection: Connection) {
        if connection.buffer.is_empty() {
            connection.age = Age::Used;
            *self.lock() = Some(connection);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a connection has carried an answer before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    New,
    Used,
}

/// The connections of one replica.
pub(crate) struct Pool {
    address: Address,
    /// What a request says that it is for.
    host: String,
    tls: Option<TlsConnector>,
    connect: Duration,
    /// Where one connection carries all requests.
    shared: Option<Shared>,
    idle: Mutex<Vec<(Time, Connection)>>,
}

impl Pool {
    pub(crate) fn new(
        address: Address,
        (connect, speaks): (Micros, Speaks),
        tls: Option<TlsConnector>,
    ) -> Self {
        Self {
            host: address.host_header(),
            address,
            tls,
            connect: Duration::from_micros(connect.get()),
            shared: (speaks == Speaks::Http2).then(Shared::default),
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// What a request says that it is for.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The connection that carries all requests, where they share one.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// A connection that was used before, if one is left that looks usable.
    pub(crate) fn take(&self, now: Time) -> Option<Connection> {
        loop {
            let (since, connection) = self.lock().pop()?;
            if now.since(since) < IDLE_TIME && connection.io.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    ///
    /// # Errors
    /// There is none to be had, or not in time.
    pub(crate) async fn connect(&self) -> io::Result<Connection> {
        let connecting = Io::connect(&self.address, self.tls.as_ref());
        let connecting = tokio::time::timeout(self.connect, connecting);
        match connecting.await {
            Ok(connected) => connected.map(|io| Connection {
                io,
                buffer: BytesMut::new(),
                age: Age::New,
            }),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(crate) fn give(&self, mut connection: Connection, now: Time) {
        if !connection.buffer.is_empty() {
            return; // What comes after an answer was not asked for.
        }
        connection.age = Age::Used;
        // A small one is used again; what a large answer took is not kept.
        if connection.buffer.capacity() > 64 * 1024 {
            connection.buffer = BytesMut::new();
        }
        let mut idle = self.lock();
        idle.push((now, connection));
        let stale = |(since, _): &(Time, Connection)| now.since(*since) >= IDLE_TIME;
        let old = idle.iter().take_while(|idle| stale(idle)).count();
        let many = idle.len().saturating_sub(IDLE_MAX);
        idle.drain(..old.max(many));
    }

    /// Closes all that are idle: the replica is not what it was.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Time, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
