//! The sections about the process: `listen`, `data_dir`, `server` and `metrics`.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use tollgate_policy::units::Micros;

use super::decode::{Cursor, Fields};

/// Where Tollgate listens unless told otherwise: nobody but this computer reaches it.
pub(super) const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Where Tollgate keeps its files unless told otherwise.
pub(super) const DATA_DIR: &str = "./tollgate-data";

/// Bounds of the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The longest request body, in bytes, 1 KiB to 1 GiB.
    pub max_body: usize,
    /// Bytes of large bodies that are held at once, `max_body` to 1,024 GiB; `None` is
    /// [`ServerConfig::BODIES`], or one body where that is more.
    pub max_bodies: Option<usize>,
    /// Connections open at once, 1 to 1,000,000.
    pub max_connections: usize,
    /// How long running streams may go on after a request to stop, 1 s to 1 h.
    pub drain: Micros,
    /// How long a request may take to arrive, 1 s to 10 min.
    pub read_timeout: Micros,
    /// Threads that carry requests, 1 to 1024; `None` is one for each core.
    pub threads: Option<NonZeroUsize>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_body: 32 << 20,
            max_bodies: None,
            max_connections: 4096,
            drain: Micros::from_secs(60),
            read_timeout: Micros::from_secs(30),
            threads: None,
        }
    }
}

impl ServerConfig {
    /// Bytes of large bodies that are held at once where nobody says another number.
    pub const BODIES: usize = 256 << 20;

    /// Bytes of large bodies that are held at once: one at least.
    pub fn body_room(&self) -> usize {
        self.max_bodies.unwrap_or(Self::BODIES).max(self.max_body)
    }

    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        section.mapping(Self::read_fields)
    }

    fn read_fields(fields: &mut Fields<'_, '_>) -> Self {
        let default = Self::default();
        let seconds = |low, high| Micros::from_secs(low)..=Micros::from_secs(high);
        let read = Self {
            max_body: fields
                .optional("max_body", |value| value.size(1 << 10..=1 << 30))
                .and_then(|bytes| usize::try_from(bytes).ok())
                .unwrap_or(default.max_body),
            max_bodies: fields
                .optional("max_bodies", |value| value.size(1 << 20..=1024 << 30))
                .and_then(|bytes| usize::try_from(bytes).ok()),
            max_connections: fields
                .optional("max_connections", |value| value.integer(1..=1_000_000))
                .unwrap_or(default.max_connections),
            drain: fields
                .optional("drain", |value| value.duration(seconds(1, 3600)))
                .unwrap_or(default.drain),
            read_timeout: fields
                .optional("read_timeout", |value| value.duration(seconds(1, 600)))
                .unwrap_or(default.read_timeout),
            threads: fields
                .optional("threads", |value| value.integer(1..=1024_usize))
                .and_then(NonZeroUsize::new),
        };
        if let Some(all) = read.max_bodies.filter(|all| *all < read.max_body) {
            let one = read.max_body;
            let message = format!("is {all} bytes, less than the {one} that one may have");
            fields.report("max_bodies", message);
        }
        read
    }
}

/// Which peers may read the metrics, which name tenants and models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricsReaders {
    /// This computer only.
    #[default]
    Loopback,
    /// Everyone who can connect.
    Any,
}

impl MetricsReaders {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let choices = [("loopback", Self::Loopback), ("any", Self::Any)];
        section.mapping(|fields| {
            fields
                .optional("expose", |value| value.choice(&choices))
                .unwrap_or_default()
        })
    }
}

/// Reads the address to listen on.
pub(super) fn listen(value: &Cursor<'_>) -> Option<SocketAddr> {
    const WANT: &str = "an address and a port, like 127.0.0.1:8080 or [::1]:8080";
    match value.text(WANT)?.parse() {
        Ok(address) => Some(address),
        Err(_) => value.refuse(WANT),
    }
}

/// Reads a path of the file system; whether there is something at it is not asked.
pub(super) fn path(value: &Cursor<'_>) -> Option<PathBuf> {
    match value.text("a path")? {
        "" => value.refuse("a path"),
        text if text.contains('\0') => value.refuse("a path without zero bytes"),
        text => Some(PathBuf::from(text)),
    }
}
