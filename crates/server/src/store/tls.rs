//! TLS to a PostgreSQL: always with the server's name checked, or not at all.
//!
//! libpq knows modes that encrypt without knowing to whom. Here a URL that asks for TLS gets the
//! strictest of them, and one that does not gets none.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use tokio_rustls::rustls::pki_types::ServerName;

/// What is asked for by whoever asks for TLS; all of them mean the last.
const MODES: [&str; 3] = ["verify-ca", "verify-full", "require"];

/// A URL that the client library understands, and what was in it that it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    /// Without `sslmode` and `sslrootcert`.
    pub(crate) url: String,
    /// Whether it asks for TLS.
    pub(crate) encryption: Encryption,
}

/// Whether a connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    No,
    /// It is, to a server whose certificate the system trusts, or one in this file.
    Yes(Option<PathBuf>),
}

impl ServerAddress {
    /// Takes apart a URL, or libpq's words.
    ///
    /// # Errors
    /// A mode that there is not.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut mode = None;
        let mut root = None;
        let mut note = |name: &str, value: &str| match name {
            "sslmode" => {
                mode = Some(value.to_owned());
                true
            }
            "sslrootcert" => {
                root = Some(PathBuf::from(value.replace("%2F", "/").replace("%2f", "/")));
                true
            }
            _ => false,
        };
        let mut taken = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            note(name.trim(), value.trim().trim_matches('\''))
        };
        let url = if text.contains("://") {
            let (before, after) = text.split_once('?').unwrap_or((text, ""));
            let kept: Vec<_> = after.split('&').filter(|pair| !taken(pair)).collect();
            match kept.join("&") {
                none if none.is_empty() => before.to_owned(),
                some => format!("{before}?{some}"),
            }
        } else {
            let kept = text.split(' ').filter(|pair| !taken(pair));
            kept.collect::<Vec<_>>().join(" ")
        };
        let encryption = match mode.as_deref() {
            Some(mode) if MODES.contains(&mode) => Encryption::Yes(root),
            None | Some("disable" | "prefer" | "allow") => Encryption::No,
            Some(mode) => {
                return Err(format!("sslmode is {mode}; use disable or verify-full"));
            }
        };
        Ok(Self { url, encryption })
    }
}

/// Makes connections that are encrypted.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(connector: TlsConnector) -> Self {
        Self(connector)
    }
}

/// The connection to one server.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// An encrypted connection.
pub(super) struct Encrypted<S>(Box<client::TlsStream<S>>);

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Handshake> {
        let name = ServerName::try_from(domain.to_owned()).map_err(io::Error::other)?;
        Ok(Handshake {
            connector: self.0.clone(),
            name,
        })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, stream).await?;
            Ok(Encrypted(Box::new(stream)))
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate's name has been checked, which is what it would prove.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_encryption_is_taken_out_of_a_url_or_words() {
        let read = |text| {
            let read = ServerAddress::read(text).unwrap();
            (read.url, read.encryption)
        };
        let file = || Encryption::Yes(Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(
            read("postgres://u:p@h/d?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&a=b"),
            ("postgres://u:p@h/d?a=b".to_owned(), file())
        );
        assert_eq!(
            read("host=h sslmode=require sslrootcert=/etc/ca.pem user=u"),
            ("host=h user=u".to_owned(), file())
        );
        for plain in ["postgres://h/d", "host=h dbname=d"] {
            assert_eq!(read(plain), (plain.to_owned(), Encryption::No));
        }
        assert_eq!(read("postgres://h/d?sslmode=disable").0, "postgres://h/d");
        let wrong = ServerAddress::read("postgres://h/d?sslmode=verify").unwrap_err();
        assert!(wrong.contains("use disable or verify-full"), "{wrong}");
    }
}
