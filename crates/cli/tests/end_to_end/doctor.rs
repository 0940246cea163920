//! What `tollgate doctor` finds, and its exit code.

use crate::process::{OPEN, Server, run, serve, tollgate};

/// What it says of a gateway before an engine at `address` that is asked for `model`.
fn examined(folder: &std::path::Path, address: &str, model: &str) -> (Option<i32>, String) {
    let config = format!(
        "listen: 127.0.0.1:0\ndata_dir: data\nidentity: {{ anonymous: allow }}\nmodels:\n  - {{ \
         name: a, engine: openai, upstream: {{ model: {model} }}, replicas: [{{ url: \"http://{address}\" }}] \
         }}\n"
    );
    std::fs::write(folder.join("looked.yaml"), config).unwrap();
    let ended = run(tollgate(folder, &["doctor", "--config", "looked.yaml"]));
    (ended.code, ended.stdout)
}

#[test]
fn what_works_is_said_to_and_what_does_not_comes_with_its_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    let (code, said) = examined(folder.path(), &server.address, "m");
    assert_eq!(code, Some(0), "{said}");
    for good in [
        "is there and well",
        "has the model m",
        "streams, and tells the usage",
    ] {
        assert!(said.contains(good), "{said}");
    }
    let (code, said) = examined(folder.path(), &server.address, "other");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("has no model other; it has m"), "{said}");
    assert!(
        said.contains("-> name one of them in models[].upstream.model"),
        "{said}"
    );
    let address = server.address.clone();
    server.running.kill();
    let (code, said) = examined(folder.path(), &address, "m");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("-> start the engine there"), "{said}");
}

#[test]
fn a_file_with_mistakes_is_not_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.yaml"), "models: 7\n").unwrap();
    let ended = run(tollgate(folder.path(), &["doctor", "--config", "bad.yaml"]));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}
