//! Engines that fail: clients are told, nobody hangs, and the replica comes back.

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tollgate_engine::fake::Faults;
use tollgate_policy::ids::RequestId;

use crate::support::chat::{chat, endless, hi, say, short, stream, told, with};
use crate::support::http::Connection;
use crate::support::rig::{NARROW, OPEN, Rig};
use crate::support::scrape::Scrape;
use crate::support::stream::{Stream, Told};
use crate::support::wait::{eventually, millis, secs};

/// Engines whose step with this number panics, again after each start.
fn panic_at(step: u64) -> Faults {
    Faults {
        panic_step: Some(step),
        ..Faults::default()
    }
}

fn fatal_at(step: u64) -> Faults {
    Faults {
        fatal_step: Some(step),
        ..Faults::default()
    }
}

/// Waits until a gauge shows so many.
async fn until_held(rig: &Rig, gauge: &str, count: f64) {
    let is_held = |now: &Scrape| now.sum(gauge, &[]) == count;
    rig.until(millis(450), gauge, is_held).await;
}

async fn assert_comes_back(rig: &Rig) {
    let is_ready = async || rig.get("/ready").await.status() == 200;
    eventually(secs(5), "the replica is started again", is_ready).await;
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn an_engine_that_panics_ends_its_streams_with_an_error_and_is_started_again() {
    for faults in [panic_at(500), fatal_at(500)] {
        let rig = Rig::start_with(OPEN, faults).await;
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(Stream::begin(rig.address(), &endless()).await);
        }
        let mut whole = Connection::open(rig.address()).await;
        whole.send(&say(json!({"ignore_eos": true})).bytes()).await;
        until_held(&rig, "tollgate_running_requests", 5.0).await;
        let mut names = Vec::new();
        for stream in streams {
            names.push(stream.head.request_id().to_owned());
            let told = stream.rest().await;
            told.assert_failed("replica_failed");
        }
        let answer = whole.answer().await;
        assert_eq!((answer.status(), answer.reason()), (502, "replica_failed"));
        assert_eq!(answer.json()["error"]["type"], "server_error");
        names.push(answer.head.request_id().to_owned());
        let is_not_ready = async || rig.get("/ready").await.status() == 503;
        eventually(millis(400), "it says that it is not ready", is_not_ready).await;
        assert_eq!(rig.get("/health").await.status(), 200);
        assert_comes_back(&rig).await;
        let rows = rig.drain().await.ledger();
        for name in &names {
            let own: Vec<&Value> = rows
                .iter()
                .filter(|row| row["request"] == name.as_str())
                .collect();
            assert_eq!(own.len(), 1);
            assert_eq!(own[0]["outcome"], "replica_failed");
            assert_eq!(
                own[0]["prompt_tokens"], 20,
                "what was computed is written down"
            );
        }
    }
}

#[tokio::test]
async fn an_engine_that_fails_at_once_is_a_502_and_not_a_200() {
    for faults in [panic_at(1), fatal_at(1)] {
        for request in [stream(json!({})), say(json!({}))] {
            let rig = Rig::start_with(OPEN, faults.clone()).await;
            let answer = rig.send(&request).await;
            assert_eq!((answer.status(), answer.reason()), (502, "replica_failed"));
            assert_eq!(answer.head.header("content-type"), Some("application/json"));
            rig.until_idle(secs(1)).await;
        }
    }
}

#[tokio::test]
async fn a_request_in_the_queue_outlives_the_failure_of_the_engine() {
    let rig = Rig::start_with(NARROW, fatal_at(500)).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Connection::open(rig.address()).await;
    waiting.send(&short().bytes()).await;
    until_held(&rig, "tollgate_queue_requests", 1.0).await;
    running.rest().await.assert_failed("replica_failed");
    let answer = waiting.answer().await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(
        answer.head.number("x-tollgate-queue-ms") >= 400,
        "it waited for the new start"
    );
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_queue_of_clients_that_leave_while_no_engine_is_up_is_given_up() {
    let rig = Rig::start_with(NARROW, fatal_at(500)).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut connection = Connection::open(rig.address()).await;
        connection.send(&stream(json!({})).bytes()).await;
        waiting.push(connection);
    }
    until_held(&rig, "tollgate_queue_requests", 20.0).await;
    running.rest().await.assert_failed("replica_failed");
    drop(waiting);
    rig.until_idle(secs(2)).await;
    assert_comes_back(&rig).await;
}

#[tokio::test]
async fn one_sequence_that_fails_disturbs_none_of_the_others() {
    let ask = |n: u64| {
        let messages = json!([{"role": "user", "content": format!("number {n}")}]);
        let members =
            json!({"messages": messages, "seed": n, "ignore_eos": true, "max_tokens": 120});
        with(hi(), members)
    };
    let as_stream = |n: u64| chat(&with(ask(n), json!({"stream": true})));
    for step in [1, 10, 120] {
        // The first four requests of a server have the names 1 to 4.
        let faults = Faults {
            output: vec![(RequestId::new(3), step)],
            ..Faults::default()
        };
        let rig = Rig::start_with(OPEN, faults).await;
        let mut connections = Vec::new();
        for n in 1..=4 {
            let mut connection = Connection::open(rig.address()).await;
            connection.send(&as_stream(n).bytes()).await;
            connections.push(connection);
        }
        let mut told = Vec::new();
        for connection in connections {
            told.push(Stream::of(connection).await);
        }
        let mut failed = 0;
        for (n, stream) in (1..).zip(told) {
            if stream.head.status == 502 {
                assert_eq!(step, 1, "it had text by then");
                failed += 1;
                continue;
            }
            let told: Told = stream.rest().await;
            if told.error.is_some() {
                told.assert_failed("replica_failed_request");
                failed += 1;
                continue;
            }
            told.assert_complete();
            let alone = crate::support::chat::told(&rig.send(&chat(&ask(n))).await);
            assert_eq!(told.text, alone.0, "its text is the one it has alone");
        }
        assert_eq!(failed, 1);
        assert_eq!(
            rig.get("/ready").await.status(),
            200,
            "the replica is as good as before"
        );
        rig.assert_unharmed().await;
    }
}

#[tokio::test]
async fn a_sequence_that_can_not_begin_is_a_502_of_its_own() {
    let faults = Faults {
        begin: vec![RequestId::new(1), RequestId::new(2)],
        ..Faults::default()
    };
    let rig = Rig::start_with(OPEN, faults).await;
    for request in [stream(json!({})), say(json!({}))] {
        let answer = rig.send(&request).await;
        assert_eq!(
            (answer.status(), answer.reason()),
            (502, "replica_failed_request")
        );
    }
    told(&rig.send(&short()).await);
    assert_eq!(rig.get("/ready").await.status(), 200);
    rig.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_hangs_while_an_engine_fails_again_and_again() {
    let rig = Rig::start_with(OPEN, panic_at(40)).await;
    let mut tasks = JoinSet::new();
    for n in 0..60 {
        let address = rig.address();
        let members = json!({"ignore_eos": true, "max_tokens": 10 + n, "stream": n % 2 == 0});
        tasks.spawn(async move {
            let stream = Stream::open(address, &say(members)).await;
            assert!([200, 502, 503].contains(&stream.head.status));
            stream.until_over().await;
        });
    }
    tasks.join_all().await;
    rig.until_idle(secs(2)).await;
    let rows = rig.drain().await.ledger();
    let names: std::collections::BTreeSet<_> =
        rows.iter().map(|row| row["request"].to_string()).collect();
    assert_eq!(names.len(), rows.len(), "a request has two rows");
}
