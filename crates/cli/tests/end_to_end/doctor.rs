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
        "prompts are reckoned by their length",
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
fn it_says_what_prompts_are_counted_by() {
    let folder = tempfile::tempdir().unwrap();
    let words = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
    std::fs::write(folder.path().join("words.json"), words).unwrap();
    let config = "listen: 127.0.0.1:0\ndata_dir: data\nidentity: { anonymous: allow }\nmodels:\n  \
                  - { name: a, engine: openai, tokenizer: words.json, replicas: [{ url: \
                  \"http://127.0.0.1:1\" }] }\n";
    std::fs::write(folder.path().join("looked.yaml"), config).unwrap();
    let ended = run(tollgate(
        folder.path(),
        &["doctor", "--config", "looked.yaml"],
    ));
    let said = ended.stdout;
    assert!(
        said.contains("prompts are counted by words.json, of 2 tokens"),
        "{said}"
    );
}

#[test]
fn a_file_with_mistakes_is_not_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.yaml"), "models: 7\n").unwrap();
    let ended = run(tollgate(folder.path(), &["doctor", "--config", "bad.yaml"]));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}
