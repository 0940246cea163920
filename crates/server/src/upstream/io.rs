//! A connection to an engine, whatever it runs over.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::http2::Body;
use crate::config::{Address, Reach, Speaks};

/// What bytes to an engine go through.
#[derive(Debug)]
pub(crate) enum Io {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    /// A body among others of one connection, which can be read only.
    Stream(Box<Body>),
}

impl Io {
    /// A connection of its own to this address; `tls` says whom to trust, where it is by TLS.
    pub(crate) async fn connect(address: &Address, tls: Option<&TlsConnector>) -> io::Result<Self> {
        match &address.reach {
            Reach::Tcp { host, port } => tcp(host, *port).await.map(Self::Tcp),
            Reach::Tls { host, port } => {
                let tls = tls.ok_or(io::ErrorKind::Unsupported)?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = tls.connect(name, tcp(host, *port).await?).await?;
                let (_, session) = stream.get_ref();
                if tls.config().alpn_protocols.len() == 1 && session.alpn_protocol().is_none() {
                    return Err(io::Error::other("it does not speak HTTP/2"));
                }
                Ok(Self::Tls(Box::new(stream)))
            }
            Reach::Unix { path } => UnixStream::connect(path).await.map(Self::Unix),
        }
    }

    /// Whether an idle connection can still be used, as far as can be told without asking: nothing
    /// has come on it, and no end. What has come since the system was last asked is not seen.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            // What comes first may be about the session and nothing to worry about.
            Self::Tls(_) => return true,
            Self::Unix(stream) => stream.try_read(&mut byte),
            Self::Stream(_) => return false,
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Without it, the end of a body can wait 40 ms for its head to be acknowledged.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whom to trust over TLS: those whom this computer trusts, and those of a file beside.
///
/// # Errors
/// The file can't be read, or there is nobody in it.
pub(crate) fn trust(beside: Option<&Path>, speaks: Speaks) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    // Those that can't be read are not trusted; the others are.
    let system = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = beside {
        let mut found = 0;
        for one in CertificateDer::pem_file_iter(path).map_err(io::Error::other)? {
            let one = one.map_err(io::Error::other)?;
            roots.add(one).map_err(io::Error::other)?;
            found += 1;
        }
        if found == 0 {
            return Err(io::Error::other("there is no certificate in it"));
        }
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if speaks == Speaks::Http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Stream(body) => Pin::new(body.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Stream(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Stream(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Stream(_) => Poll::Ready(Ok(())),
        }
    }
}
