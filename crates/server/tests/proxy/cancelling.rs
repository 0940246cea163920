//! A client that leaves stops its engine, wherever its request is.

use serde_json::json;

use crate::engine::{DONE, Engine, FIN, STREAM, chunk, delta};
use crate::support::chat::{say, stream};
use crate::support::http::Connection;
use crate::support::rig::Rig;
use crate::support::stream::Stream;
use crate::support::wait::{millis, secs};

/// An engine that sends this, and then nothing until the gateway closes; each time it does counts.
async fn stalling(bytes: Vec<u8>) -> (Engine, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let (left, leaving) = tokio::sync::mpsc::unbounded_channel();
    let engine = Engine::start(move |_, mut wire| {
        let (bytes, left) = (bytes.clone(), left.clone());
        async move {
            wire.send(bytes).await;
            wire.closed().await;
            left.send(()).unwrap();
            None
        }
    })
    .await;
    (engine, leaving)
}

async fn row_after(rig: &Rig) -> serde_json::Value {
    rig.until_idle(secs(60)).await;
    rig.ledger_first().await
}

#[tokio::test]
async fn one_that_leaves_before_the_engine_has_answered_stops_it() {
    for request in [say(json!({})), stream(json!({}))] {
        let (engine, mut leaving) = stalling(Vec::new()).await;
        let rig = engine.rig("").await;
        let mut client = Connection::open(rig.address()).await;
        client.send(&request.bytes()).await;
        engine.until_seen(1).await;
        drop(client);
        leaving.recv().await.unwrap();
        let row = row_after(&rig).await;
        assert_eq!(row["outcome"], "client_gone_before_first_token");
        assert_eq!(row["counted"], "estimated");
        assert!(row["prompt_tokens"].as_u64().unwrap() >= 1);
    }
}

#[tokio::test]
async fn one_that_leaves_in_the_middle_is_charged_what_it_was_given() {
    let mut bytes = STREAM.as_bytes().to_vec();
    for _ in 0..20 {
        bytes.extend(chunk(delta("x")));
    }
    let (engine, mut leaving) = stalling(bytes).await;
    let rig = engine.rig("").await;
    let mut stream = Stream::begin(rig.address(), &stream(json!({}))).await;
    stream.read_texts(20).await;
    drop(stream);
    leaving.recv().await.unwrap();
    let row = row_after(&rig).await;
    assert_eq!(row["outcome"], "client_gone_mid_stream");
    assert_eq!(
        (&row["output_tokens"], &row["counted"]),
        (&20.into(), &"estimated".into())
    );
}

#[tokio::test]
async fn ones_that_leave_the_queue_never_reach_the_engine() {
    let (engine, mut leaving) = stalling(Vec::new()).await;
    let rig = engine
        .rig("upstream: { model: qwen }\nmax_sequences: 1")
        .await;
    let mut busy = Connection::open(rig.address()).await;
    busy.send(&stream(json!({})).bytes()).await;
    engine.until_seen(1).await;
    let mut waiting = Vec::new();
    for _ in 0..30 {
        let mut client = Connection::open(rig.address()).await;
        client.send(&stream(json!({})).bytes()).await;
        waiting.push(client);
    }
    rig.until(secs(60), "they wait", |scrape| {
        scrape.sum("tollgate_queue_requests", &[]) == 30.0
    })
    .await;
    drop(waiting);
    rig.until(secs(60), "the queue is empty", |scrape| {
        scrape.sum("tollgate_queue_requests", &[]) == 0.0
    })
    .await;
    drop(busy);
    leaving.recv().await.unwrap();
    rig.until_idle(secs(60)).await;
    assert_eq!(engine.seen().len(), 1);
}

#[tokio::test]
async fn a_stream_past_its_bound_is_stopped_with_an_error_at_both_ends() {
    let (left, mut leaving) = tokio::sync::mpsc::unbounded_channel();
    let engine = Engine::start(move |_, mut wire| {
        let left = left.clone();
        async move {
            wire.send(STREAM).await;
            let mut tick = tokio::time::interval(millis(20));
            while wire.is_open().await {
                tick.tick().await;
                wire.send(chunk(delta("x"))).await;
            }
            left.send(()).unwrap();
            None
        }
    })
    .await;
    let keys = "upstream: { model: qwen, first_byte: 500ms }\nmax_stream: 1s\nstream: { idle: \
                900ms, keepalive: 500ms }";
    let rig = engine.rig(keys).await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("max_stream");
    leaving.recv().await.unwrap();
    rig.until_idle(secs(60)).await;
    assert_eq!(rig.ledger_first().await["outcome"], "max_stream");
}

#[tokio::test]
async fn clients_that_come_and_go_at_random_leave_nothing_behind() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(STREAM).await;
        for _ in 0..50 {
            wire.send(chunk(delta("x"))).await;
            tokio::task::yield_now().await;
        }
        wire.send_chunks(&[FIN, DONE]).await;
        wire.send(crate::engine::END).await;
        Some(wire)
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen }\nmax_sequences: 4")
        .await;
    for n in 0..100_usize {
        let mut client = Connection::open(rig.address()).await;
        client.send(&stream(json!({})).bytes()).await;
        if n % 3 > 0 {
            let head = client.head().await;
            let mut framing = head.framing();
            for _ in 0..n % 7 {
                client.piece(&mut framing).await;
            }
        }
    }
    rig.until_idle(secs(60)).await;
    let answer = rig.send(&stream(json!({}))).await;
    assert_eq!(answer.status(), 200);
    let reasons = rig.scrape().await.reasons();
    let known = |reason: &String| {
        reason == "completed" || reason.starts_with("client_gone_") || reason == "bad_request"
    };
    assert!(reasons.keys().all(known), "{reasons:?}");
}
