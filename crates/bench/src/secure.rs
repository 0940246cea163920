//! TLS to an endpoint: whom to trust, and by which name the endpoint must show itself.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How connections to one host are secured.
#[derive(Clone)]
pub(crate) struct Secure {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Secure {
    /// Trusts those whom this computer trusts; `SSL_CERT_FILE` names others.
    pub(crate) fn by_system(host: &str) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        // Those that can't be read are not trusted; the others are.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self::trusting(roots, host)
    }

    fn trusting(roots: RootCertStore, host: &str) -> io::Result<Self> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name: ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        })
    }

    /// Secures a connection.
    pub(crate) async fn over(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secure").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use hyper::Request;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;
    use crate::connections::Connections;
    use crate::rows::Failure;

    fn acceptor(own: &CertifiedKey<rcgen::KeyPair>) -> TlsAcceptor {
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        roots
    }

    /// Answers each connection that is secured in order, once.
    async fn answering(own: &CertifiedKey<rcgen::KeyPair>) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, acceptor) = (listener.local_addr().unwrap(), acceptor(own));
        Handle::current().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                assert!(stream.read(&mut [0; 1_024]).await.unwrap() > 0);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                stream.write_all(answer).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        address
    }

    fn request() -> Request<Full<bytes::Bytes>> {
        let request = Request::get("/").header("host", "engine.test");
        request.body(Full::default()).unwrap()
    }

    #[tokio::test]
    async fn an_endpoint_by_tls_is_asked_if_it_shows_the_name_that_was_asked_for() {
        let own = generate_simple_self_signed(vec!["engine.test".to_owned()]).unwrap();
        let address = answering(&own).await;
        let trusted = roots(&[own.cert.der().clone()]);
        let secure = Secure::trusting(trusted.clone(), "engine.test").unwrap();
        let connections = Connections::new(address, Some(secure), Handle::current());
        let (response, _) = connections.send(request()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "ok");
        for (roots, name) in [(trusted, "other.test"), (roots(&[]), "engine.test")] {
            let secure = Secure::trusting(roots, name).unwrap();
            let connections = Connections::new(address, Some(secure), Handle::current());
            let refused = connections.send(request()).await;
            assert!(matches!(refused, Err(Failure::Connect)), "{name}");
        }
    }

    #[test]
    fn an_address_is_a_name_too() {
        for host in ["127.0.0.1", "[::1]", "engine.test"] {
            Secure::trusting(roots(&[]), host).unwrap();
        }
        assert!(Secure::trusting(roots(&[]), "no name").is_err());
    }
}
