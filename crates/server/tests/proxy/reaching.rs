//! An engine is reached by whatever way its address names.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::engine::whole;
use crate::support::chat::say;
use crate::support::rig::Rig;
use crate::support::wait::secs;

/// Answers each request on a connection in the same way, until it ends.
async fn serve(mut io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    let mut unread = Vec::new();
    while io.read_buf(&mut unread).await.is_ok_and(|count| count > 0) {
        // Requests here are small, and come in one piece.
        let answer = if unread.starts_with(b"GET ") {
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()
        } else {
            whole("hi", 1, 1)
        };
        unread.clear();
        if io.write_all(answer.as_bytes()).await.is_err() || io.flush().await.is_err() {
            return;
        }
    }
}

fn yaml(url: &str, ca: Option<&Path>) -> String {
    let ca = ca.map_or(String::new(), |path| {
        format!(", ca: \"{}\"", path.display())
    });
    format!(
        "identity: {{ anonymous: allow }}\nmodels:\n  - name: m\n    engine: openai\n    replicas: \
         [{{ url: \"{url}\" }}]\n    upstream: {{ model: qwen{ca} }}\n"
    )
}

#[tokio::test]
async fn an_engine_may_listen_on_a_socket_of_this_computer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            connections.spawn(serve(socket));
        }
    });
    let rig = Rig::start(&yaml(&format!("unix:{}", path.display()), None)).await;
    for _ in 0..3 {
        assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    }
}

#[tokio::test]
async fn an_engine_behind_tls_is_believed_only_with_a_certificate_that_is_trusted() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                if let Ok(stream) = acceptor.accept(socket).await {
                    serve(stream).await;
                }
            });
        }
    });
    let url = format!("https://localhost:{port}/v1");
    let rig = Rig::start(&yaml(&url, Some(&ca))).await;
    for _ in 0..3 {
        assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    }
    let folder = tempfile::tempdir().unwrap();
    let stranger = format!(
        "listen: 127.0.0.1:0\ndata_dir: {}\n{}",
        folder.path().display(),
        yaml(&url, None)
    );
    let config = tollgate_server::config::parse(&stranger, &|_| None).unwrap();
    let server = tollgate_server::Server::start(config).await.unwrap();
    let ready = tokio::time::timeout(secs(1), server.ready()).await;
    assert!(ready.is_err(), "whoever is not trusted is not there");
    let answer = say(json!({})).send(server.address()).await;
    assert_eq!(answer.status(), 503, "{}", answer.text());
}
