//! From the first request to the last: signals, drains, and what a power cut leaves behind.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::client::Exchange;
use crate::deadline::{PATIENCE, eventually};
use crate::ledger::rows as ledger;
use crate::process::{OPEN, Server, serve};

/// How soon a process that has nothing to finish ends.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Tokens of a stream that a test does not wait for: more than a minute of them.
const ENDLESS: u32 = 7000;

/// Waits until requests are turned away, and checks that they are told where to go.
fn wait_for_drain(server: &Server) {
    eventually("it is draining", || {
        (server.get("/ready").status == 503).then_some(())
    });
    let late = server.stream(5).finish();
    assert_eq!(late.status, 503, "{}", late.body);
    let wait: u32 = late.header("retry-after").unwrap().parse().unwrap();
    assert!(wait >= 1, "{}", late.head);
    assert_eq!(late.header("connection"), Some("close"));
    let error: Value = serde_json::from_str(&late.body).unwrap();
    assert!(error["error"]["message"].is_string(), "{error}");
    assert_eq!(server.get("/health").status, 200, "alive, while it drains");
}

/// Signals a server with eight streams, and sees all of them to their end.
fn drain_by(signal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    let mut streams: Vec<_> = (0..8).map(|_| server.stream(300)).collect();
    for stream in &mut streams {
        stream.read_until("\"content\":");
    }
    server.running.signal(signal);
    wait_for_drain(&server);
    for stream in streams {
        let answer = stream.finish();
        assert_eq!(answer.finish_reason().as_deref(), Some("length"));
        assert!(answer.is_done(), "{}", answer.body);
    }
    let ended = server.running.ended(Duration::from_secs(10));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let completed = ledger(folder.path());
    assert_eq!(completed.len(), 8);
    assert!(completed.iter().all(|line| line["output_tokens"] == 300));
}

#[test]
fn sigterm_lets_every_stream_finish_and_turns_newcomers_away() {
    drain_by("TERM");
}

#[test]
fn ctrl_c_does_what_sigterm_does() {
    drain_by("INT");
}

#[test]
fn an_idle_server_ends_at_once() {
    for signal in ["TERM", "INT"] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(serve(folder.path(), OPEN));
        server.running.signal(signal);
        assert_eq!(server.running.ended(AT_ONCE).code, Some(0));
    }
}

#[test]
fn connections_that_are_open_and_idle_hold_up_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    let idle: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    assert_eq!(server.get("/ready").status, 200);
    server.running.signal("TERM");
    assert_eq!(server.running.ended(AT_ONCE).code, Some(0));
    drop(idle);
}

#[test]
fn a_drain_that_takes_too_long_ends_its_streams_with_an_error_and_books_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{OPEN}server: {{ drain: 1s }}\n");
    let server = Server::start(serve(folder.path(), &config));
    let mut stream = server.stream(ENDLESS);
    stream.read_until("\"content\":");
    server.running.signal("TERM");
    let answer = stream.finish();
    assert!(!answer.body.contains("[DONE]"), "{}", answer.body);
    let last = answer.events().pop().unwrap();
    assert!(last["error"]["message"].is_string(), "{last}");
    assert_eq!(server.running.ended(AT_ONCE).code, Some(0));
    let lines = ledger(folder.path());
    assert_eq!(lines.len(), 1);
    assert!(lines[0]["output_tokens"].as_u64() > Some(0), "{}", lines[0]);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    let mut stream = server.stream(ENDLESS);
    stream.read_until("\"content\":");
    server.running.signal("TERM");
    wait_for_drain(&server);
    // One that comes within a moment of the first is the same wish.
    eventually("it has ended", || {
        server.running.signal("TERM");
        TcpStream::connect(&server.address).is_err().then_some(())
    });
    let ended = server.running.ended(AT_ONCE);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("second signal"), "{}", ended.stderr);
    assert!(!stream.finish().body.contains("[DONE]"));
}

#[test]
fn signals_that_come_at_once_are_one_and_cut_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    let mut stream = server.stream(150);
    stream.read_until("\"content\":");
    server.running.signals(&["TERM", "TERM", "INT"]);
    let answer = stream.finish();
    assert!(answer.is_done(), "{}", answer.body);
    let ended = server.running.ended(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_server_that_was_killed_is_gone_on_with_and_what_it_had_in_flight_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    for _ in 0..3 {
        assert!(server.stream(5).finish().is_done());
    }
    let mut cut: Vec<_> = (0..4).map(|_| server.stream(ENDLESS)).collect();
    for stream in &mut cut {
        stream.read_until("\"content\":");
    }
    eventually("three requests are in the ledger", || {
        (ledger(folder.path()).len() == 3).then_some(())
    });
    assert_eq!(server.running.kill().code, None);
    for answer in cut.into_iter().map(Exchange::finish) {
        assert!(!answer.whole && !answer.body.contains("[DONE]"));
    }
    let before = ledger(folder.path());
    assert!(before.iter().all(|line| line["outcome"] == "completed"));

    let server = Server::start(serve(folder.path(), OPEN));
    assert!(server.stream(5).finish().is_done());
    server.running.signal("TERM");
    assert_eq!(server.running.ended(PATIENCE).code, Some(0));
    let after = ledger(folder.path());
    assert_eq!((&after[..3], after.len()), (&before[..], 8));
    let outcomes = after.iter().map(|line| line["outcome"].as_str().unwrap());
    assert_eq!(outcomes.filter(|one| *one == "interrupted").count(), 4);
}
