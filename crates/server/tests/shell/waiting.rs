//! Streams that are kept waiting: a sign of life, and then whatever becomes of them.

use serde_json::json;
use tollgate_engine::fake::Faults;

use crate::support::chat::{endless, stream};
use crate::support::http::Connection;
use crate::support::rig::Rig;
use crate::support::scrape::Scrape;
use crate::support::stream::Stream;
use crate::support::wait::secs;

/// One at a time; who waits is sent a comment ten times a second.
const NERVOUS: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    max_sequences: 1
    queue: { max_wait: 700ms }
    stream: { keepalive: 100ms }
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

#[tokio::test]
async fn a_stream_that_waits_in_the_queue_sees_comments_and_then_its_answer() {
    let rig = Rig::start(NERVOUS).await;
    let request = stream(json!({"ignore_eos": true, "max_tokens": 350}));
    let running = Stream::begin(rig.address(), &request).await;
    let short = stream(json!({"ignore_eos": true, "max_tokens": 5}));
    let waiting = Stream::begin(rig.address(), &short).await;
    let told = waiting.rest().await;
    told.assert_complete();
    assert!(told.comments >= 1);
    assert_eq!(told.chunks[0]["choices"][0]["delta"]["role"], "assistant");
    running.rest().await.assert_complete();
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_stream_that_waited_in_vain_ends_with_an_error_event() {
    let rig = Rig::start(NERVOUS).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let waiting = Stream::begin(rig.address(), &stream(json!({}))).await;
    let name = waiting.head.request_id().to_owned();
    let told = waiting.rest().await;
    told.assert_failed("queue_time");
    assert!(told.comments >= 3, "{} comments", told.comments);
    assert_eq!(
        told.chunks.len(),
        0,
        "no role for an answer that never began"
    );
    let row = rig.ledger_row(&name).await;
    assert_eq!(
        (&row["outcome"], &row["output_tokens"]),
        (&json!("queue_time"), &json!(0))
    );
    drop(running);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_stream_whose_engine_fails_before_its_first_token_ends_with_an_error_event() {
    let faults = Faults {
        fatal_step: Some(1),
        ..Faults::default()
    };
    let slow = NERVOUS.replace("step: 1ms", "step: 400ms");
    let rig = Rig::start_with(&slow, faults).await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("replica_failed");
    assert!(told.comments >= 1);
    rig.until_idle(secs(1)).await;
}

#[tokio::test]
async fn a_client_that_leaves_after_comments_leaves_the_queue() {
    let rig = Rig::start(NERVOUS).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Stream::begin(rig.address(), &stream(json!({}))).await;
    assert!(waiting.next().await.is_some());
    assert_eq!(rig.scrape().await.sum("tollgate_queue_requests", &[]), 1.0);
    drop(waiting);
    let is_gone = |now: &Scrape| now.ended("client_gone_queued") == 1.0;
    rig.until(secs(1), "it has left the queue", is_gone).await;
    drop(running);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_client_sees_comments_between_tokens_that_are_far_apart() {
    let slow = NERVOUS.replace("step: 1ms", "step: 250ms");
    let rig = Rig::start(&slow).await;
    let request = stream(json!({"ignore_eos": true, "max_tokens": 5, "seed": 2}));
    let told = Stream::begin(rig.address(), &request).await.rest().await;
    told.assert_complete();
    assert!(told.comments >= 4, "{} comments", told.comments);
}

#[tokio::test]
async fn connections_past_the_bound_wait_for_a_place() {
    let rig = Rig::start(&format!("server: {{ max_connections: 2 }}\n{NERVOUS}")).await;
    let health = crate::support::http::Request::get("/health");
    let mut first = Connection::open(rig.address()).await;
    let mut second = Connection::open(rig.address()).await;
    for connection in [&mut first, &mut second] {
        assert_eq!(connection.ask(&health).await.status(), 200);
    }
    let mut third = Connection::open(rig.address()).await;
    third.send(&health.bytes()).await;
    let answer = third.answer();
    let mut answer = std::pin::pin!(answer);
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), answer.as_mut()).await;
    assert!(early.is_err(), "it was let in past the bound");
    drop(first);
    assert_eq!(answer.await.status(), 200);
}

#[tokio::test]
async fn a_burst_of_connections_waits_for_places_and_none_is_dropped() {
    let rig = Rig::start(&format!("server: {{ max_connections: 2 }}\n{NERVOUS}")).await;
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let burst = allowed.trim().parse().unwrap_or(300).min(300);
    let address = rig.address();
    let mut opening: tokio::task::JoinSet<_> =
        (0..burst).map(|_| Connection::open(address)).collect();
    let all = async {
        let mut open = Vec::new();
        while let Some(opened) = opening.join_next().await {
            open.push(opened.unwrap());
        }
        open
    };
    // One that is dropped is tried again by its system, for as long as nobody is let in.
    let open = tokio::time::timeout(std::time::Duration::from_secs(30), all).await;
    drop(open.expect("some were dropped"));
    let health = crate::support::http::Request::get("/health");
    let mut late = Connection::open(address).await;
    assert_eq!(late.ask(&health).await.status(), 200);
}

#[tokio::test]
async fn connections_that_ask_for_nothing_give_their_places_back() {
    let config = format!("server: {{ max_connections: 50, read_timeout: 1s }}\n{NERVOUS}");
    let rig = Rig::start(&config).await;
    let health = crate::support::http::Request::get("/health");
    let mut idle = Vec::new();
    for n in 0..70 {
        let mut connection = Connection::open(rig.address()).await;
        match n % 3 {
            0 => {}
            1 => connection.send(b"GET /health HT").await,
            // It has had an answer, and wants no other.
            _ => connection.send(&health.bytes()).await,
        }
        idle.push(connection);
    }
    let mut late = Connection::open(rig.address()).await;
    assert_eq!(late.ask(&health).await.status(), 200);
}
