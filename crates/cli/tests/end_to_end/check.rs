//! `tollgate check`: every mistake with its place, and an exit code for scripts.

use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;

use crate::process::{Ended, OPEN, run, serve, tollgate};

const TEN_MISTAKES: &str = "\
listen: localhost
server: { max_body: 32MB, drain: 60 }
modles: []
models:
  - name: small
    engine: magic
  - name: small
    engine: fake
    max_sequences: 0
tenants:
  - name: quiet
    keys: [{ env: NO_SUCH_KEY }]
    models: [large]
    limits: { rmp: 600 }
";

fn command(folder: &Path) -> Command {
    tollgate(folder, &["check", "--config", "tollgate.yaml"])
}

fn checked(bytes: &[u8]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), bytes).unwrap();
    run(command(folder.path()))
}

/// What is said of a file that is no good.
fn complaint(bytes: &[u8]) -> String {
    let ended = checked(bytes);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    ended.stderr
}

#[test]
fn a_good_file_has_no_mistakes() {
    let ended = checked(OPEN.as_bytes());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(ended.stdout, @"tollgate.yaml: no mistakes; 1 model, 1 tenant");
}

#[test]
fn the_example_that_the_documents_show_has_no_mistakes() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let mut command = tollgate(
        Path::new(docs),
        &["check", "--config", "tollgate.example.yaml"],
    );
    command.env("QUIET_KEY", "sk-quiet");
    let ended = run(command);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn ten_mistakes_are_told_at_once_each_with_its_line_and_column() {
    assert_snapshot!(complaint(TEN_MISTAKES.as_bytes()));
}

#[test]
fn a_tokenizer_that_can_not_be_used_is_a_mistake_of_its_line() {
    let config = |file: &str| {
        format!(
            "models:\n  - name: m\n    engine: vllm\n    tokenizer: {file}\n    replicas: \
             [{{ url: \"http://127.0.0.1:1\" }}]\n"
        )
    };
    let missing = complaint(config("none.json").as_bytes());
    assert!(
        missing.contains("tokenizer can't be used: none.json: No such file"),
        "{missing}"
    );
    assert!(missing.contains("4:16"), "{missing}");
    // The configuration is not one either.
    let wrong = complaint(config("tollgate.yaml").as_bytes());
    assert!(
        wrong.contains("tollgate.yaml is no tokenizer.json"),
        "{wrong}"
    );
    let fake = complaint(b"models:\n  - name: m\n    engine: fake\n    tokenizer: x.json\n");
    assert!(fake.contains("is for engines in other processes"), "{fake}");
}

#[test]
fn serve_tells_the_same_mistakes_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(serve(folder.path(), TEN_MISTAKES));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert_eq!(ended.stderr, complaint(TEN_MISTAKES.as_bytes()));
    assert!(!folder.path().join("tollgate-data").exists());
}

#[test]
fn a_file_with_hundreds_of_mistakes_fills_one_screen_not_ten() {
    let text: String = (0..150).map(|n| format!("key{n}: 1\n")).collect();
    let said = complaint(text.as_bytes());
    assert_eq!(said.lines().count(), 102);
    let last: Vec<_> = said.lines().rev().take(2).collect();
    assert_snapshot!(last.join("\n"));
}

#[test]
fn mistakes_that_nobody_reads_are_mistakes_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), TEN_MISTAKES).unwrap();
    let mut child = command(folder.path()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn a_file_that_is_not_there_is_said_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let ended = run(command(folder.path()));
    assert_eq!(ended.code, Some(2));
    assert_snapshot!(ended.stderr, @"tollgate: tollgate.yaml: there is no such file; docs/tollgate.example.yaml is one to start from");
}

#[test]
fn a_directory_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tollgate.yaml")).unwrap();
    let ended = run(command(folder.path()));
    assert_eq!(ended.code, Some(2));
    assert_snapshot!(ended.stderr, @"tollgate: tollgate.yaml: it is a directory; name the file in it");
}

#[test]
fn bytes_that_are_no_text_are_said_to_be_none() {
    let garbage: Vec<u8> = (0..=255).cycle().take(4096).collect();
    assert_snapshot!(complaint(&garbage), @"tollgate: tollgate.yaml: it is not UTF-8 text; use a YAML file");
}

#[test]
fn text_that_is_no_yaml_is_told_where_it_stops_being() {
    assert_snapshot!(complaint(b"\0\x01\x02GGUF\0\0\x03"));
}

#[test]
fn an_empty_file_is_told_what_it_lacks() {
    let ended = checked(b"");
    assert_snapshot!(format!(
        "{:?}\n{}{}",
        ended.code, ended.stdout, ended.stderr
    ));
}
