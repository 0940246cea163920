//! A server that can't start says why, and leaves nothing behind.

use tollgate_server::{Server, StartError, config};

use crate::support::rig::{FAST, Rig};

async fn why_not(yaml: &str) -> StartError {
    let config = config::parse(yaml, &|_| None).unwrap();
    Server::start(config).await.unwrap_err()
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let rig = Rig::start(FAST).await;
    let (taken, folder) = (rig.address(), tempfile::tempdir().unwrap());
    let place = folder.path().display();
    let error = why_not(&format!("listen: {taken}\ndata_dir: {place}\n{FAST}")).await;
    let StartError::Listen { address, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*address, taken);
    assert!(error.to_string().contains("--listen"), "{error}");
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_folder_that_can_not_be_written_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = file.path().join("inside");
    let error = why_not(&format!(
        "listen: 127.0.0.1:0\ndata_dir: {}\n{FAST}",
        place.display()
    ))
    .await;
    assert!(matches!(error, StartError::Ledger(_)), "{error}");
    assert!(
        error.to_string().contains(&place.display().to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn a_model_file_that_is_missing_is_named_with_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let yaml = format!(
        "
listen: 127.0.0.1:0
data_dir: {place}
identity: {{ anonymous: allow }}
models:
  - {{ name: absent, path: {place}/absent.gguf }}
"
    );
    let error = why_not(&yaml).await.to_string();
    assert!(
        error.contains("model absent") && error.contains("absent.gguf"),
        "{error}"
    );
}

#[tokio::test]
async fn what_it_serves_is_told_as_it_is() {
    let config = FAST.replace(
        "engine: fake",
        "engine: fake\n    context: 512\n    kv_tokens: 2048\n    max_sequences: 7",
    );
    let folder = tempfile::tempdir().unwrap();
    let yaml = format!(
        "listen: 127.0.0.1:0\ndata_dir: {}\n{config}",
        folder.path().display()
    );
    let server = Server::start(config::parse(&yaml, &|_| None).unwrap())
        .await
        .unwrap();
    let facts = &server.models()[0];
    assert_eq!(
        (facts.name.as_str(), facts.description.as_str()),
        ("m", "fake")
    );
    assert_eq!(
        (facts.context, facts.kv_tokens, facts.sequences),
        (Some(512), Some(2048), 7)
    );
    server.drain().await;
}
