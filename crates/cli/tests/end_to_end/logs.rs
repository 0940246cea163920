//! What logs say, what they never say, and that nobody waits for them.

use std::io::Read as _;

use serde_json::Value;

use crate::client::Exchange;
use crate::deadline::eventually;
use crate::process::{Ended, OPEN, Running, Server, serve};

/// What must be in no output, whoever sent it and wherever.
const SECRETS: [&str; 8] = [
    "zebra-prompt",
    "zebra-system",
    "zebra-stop",
    "zebra-good-key",
    "zebra-bad-key",
    "zebra-header",
    "zebra-query",
    "zebra-broken",
];

const KEYED: &str = "\
listen: 127.0.0.1:0
models: [{ name: m, engine: fake }]
tenants: [{ name: a, keys: [{ env: A_KEY }] }]
";

const BODY: &str = r#"{"model":"m","stream":true,"max_tokens":5,"stop":["zebra-stop"],"messages":[{"role":"system","content":"zebra-system"},{"role":"user","content":"zebra-prompt"}]}"#;

/// Sends each secret in each place where clients put them, and checks the answers for them too.
fn tell_secrets(server: &Server) {
    let good = ("authorization", "Bearer zebra-good-key");
    let header = ("x-custom", "zebra-header");
    let chat = "/v1/chat/completions?api_key=zebra-query";
    let broken = r#"{"model":"m","messages":[{"role":"user","content":"zebra-broken}"#;
    let wrong_type = r#"{"model":"m","messages":"zebra-prompt"}"#;
    let sent = [
        (200, chat, vec![good, header], BODY),
        (200, chat, vec![("x-api-key", "zebra-good-key")], BODY),
        (
            401,
            chat,
            vec![("authorization", "Bearer zebra-bad-key")],
            BODY,
        ),
        (
            401,
            chat,
            vec![("authorization", "Basic zebra-bad-key")],
            BODY,
        ),
        (401, chat, vec![("api-key", "zebra-bad-key")], BODY),
        (401, chat, vec![("x-tenant-id", "zebra-header")], BODY),
        (400, chat, vec![good], broken),
        (400, chat, vec![good], wrong_type),
        (404, "/v1/nothing?key=zebra-query", vec![good], BODY),
    ];
    for (status, path, headers, body) in sent {
        let answer = Exchange::send(&server.address, "POST", path, &headers, body).finish();
        assert_eq!(answer.status, status, "{path} {headers:?} {}", answer.body);
        let key = answer.body.contains("-key") || answer.head.contains("zebra");
        assert!(!key, "{}\n{}", answer.head, answer.body);
    }
}

fn logged(level: Option<&str>) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path(), KEYED);
    command.env("A_KEY", "zebra-good-key");
    if let Some(level) = level {
        command.env("TOLLGATE_LOG", level);
    }
    let server = Server::start(command);
    tell_secrets(&server);
    server.running.signal("TERM");
    let ended = server.running.ended(crate::deadline::PATIENCE);
    assert_eq!(ended.code, Some(0));
    let book = crate::ledger::shown(folder.path());
    for secret in SECRETS {
        assert!(!ended.stdout.contains(secret), "{secret}: {}", ended.stdout);
        assert!(!ended.stderr.contains(secret), "{secret}: {}", ended.stderr);
        assert!(!book.contains(secret), "{secret}: {book}");
    }
    let headers = ended.stderr.to_ascii_lowercase();
    assert!(!headers.contains("authorization") && !headers.contains("bearer"));
    ended
}

/// Log lines, each of which must be one JSON object.
fn lines(stderr: &str) -> Vec<Value> {
    let lines = stderr.lines().map(|line| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        assert!(value["timestamp"].is_string() && value["level"].is_string());
        value
    });
    lines.collect()
}

#[test]
fn every_request_is_one_line_of_json_without_prompts_and_keys() {
    let lines = lines(&logged(None).stderr);
    let ends = lines.iter().filter(|l| l["target"] == "tollgate::request");
    let mut reasons: Vec<_> = ends.map(|line| line["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 9);
    reasons.dedup();
    assert_eq!(reasons, ["completed", "bad_key", "bad_request", "no_route"]);
}

#[test]
fn the_most_talkative_log_has_no_prompts_and_keys_either() {
    let quiet = lines(&logged(None).stderr).len();
    let loud = lines(&logged(Some("trace")).stderr).len();
    assert!(loud >= quiet, "{loud} lines, {quiet} without the wish");
}

#[test]
fn the_log_can_be_turned_down() {
    assert_eq!(logged(Some("off")).stderr, "");
}

#[test]
fn a_wish_that_can_not_be_followed_is_told_and_logs_go_on() {
    let lines = lines(&logged(Some("tollgate=loud")).stderr);
    let first = lines[0]["message"].as_str().unwrap();
    assert!(first.contains("TOLLGATE_LOG"), "{first}");
    assert!(lines.iter().any(|l| l["target"] == "tollgate::request"));
}

#[test]
fn nobody_waits_for_a_log_that_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = serve(folder.path(), OPEN).spawn().unwrap();
    let unread = child.stderr.take();
    let server = Server::attach(Running::of(child));
    // More lines than a pipe holds, so that whoever writes to it waits.
    for _ in 0..500 {
        assert_eq!(server.get("/v1/nothing").status, 404);
    }
    assert!(server.stream(5).finish().is_done());
    server.running.signal("TERM");
    assert_eq!(
        server.running.ended(crate::deadline::PATIENCE).code,
        Some(0)
    );
    let mut kept = String::new();
    unread.unwrap().read_to_string(&mut kept).unwrap();
    assert!(
        kept.len() >= 60 * 1024,
        "the pipe was not full: {}",
        kept.len()
    );
}

#[test]
fn a_log_whose_reader_has_gone_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = serve(folder.path(), OPEN).spawn().unwrap();
    drop(child.stderr.take());
    let server = Server::attach(Running::of(child));
    for _ in 0..20 {
        assert_eq!(server.get("/v1/nothing").status, 404);
    }
    assert!(server.stream(5).finish().is_done());
    let in_flight = || {
        let metrics = server.get("/metrics").body;
        metrics
            .contains("tollgate_in_flight_requests 0\n")
            .then_some(())
    };
    eventually("all are at their end", in_flight);
    server.running.signal("TERM");
    assert_eq!(
        server.running.ended(crate::deadline::PATIENCE).code,
        Some(0)
    );
}
