//! The gateway goes while answers of engines elsewhere are under way.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tollgate_server::Server;

use crate::engine::{DONE, END, Engine, FIN, STREAM, chunk, delta, whole};
use crate::support::chat::{say, stream};
use crate::support::http::Connection;
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs, soon};

/// An engine that takes its time over so many tokens.
async fn talking(tokens: usize) -> Engine {
    Engine::start(move |_, mut wire| async move {
        wire.send(STREAM).await;
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..tokens {
            tick.tick().await;
            wire.send(chunk(delta("x"))).await;
            if !wire.is_open().await {
                return None;
            }
        }
        wire.send_chunks(&[FIN, DONE]).await;
        wire.send(END).await;
        Some(wire)
    })
    .await
}

#[tokio::test]
async fn a_stream_that_ends_within_the_drain_is_whole() {
    let engine = talking(30).await;
    let rig = engine.rig("").await;
    let mut running = Stream::begin(rig.address(), &stream(json!({}))).await;
    running.read_texts(5).await;
    let (server, remains) = rig.into_parts();
    let mut draining = JoinSet::new();
    draining.spawn(Server::drain(server));
    let told = running.rest().await;
    told.assert_complete();
    assert_eq!(told.text.len(), 25);
    soon("draining", draining.join_all()).await;
    let rows = remains.ledger();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["outcome"], "completed");
}

#[tokio::test]
async fn a_stream_that_does_not_is_ended_with_an_error_and_charged_what_it_had() {
    let engine = talking(100_000).await;
    let yaml = crate::engine::config(&[engine.address], "vllm", "upstream: { model: qwen }");
    let rig = crate::support::rig::Rig::start(&format!("server: {{ drain: 1s }}\n{yaml}")).await;
    let mut running = Stream::begin(rig.address(), &stream(json!({}))).await;
    let before = running.read_texts(5).await.text.len();
    let (server, remains) = rig.into_parts();
    let mut draining = JoinSet::new();
    draining.spawn(Server::drain(server));
    let told = running.rest().await;
    told.assert_failed("drain_fence");
    soon("draining", draining.join_all()).await;
    let rows = remains.ledger();
    assert_eq!(
        (rows.len(), &rows[0]["outcome"]),
        (1, &json!("drain_fence"))
    );
    let charged = rows[0]["output_tokens"].as_u64().unwrap();
    let got = u64::try_from(before + told.text.len()).unwrap();
    assert!(charged >= got, "{charged} charged, {got} got");
}

#[tokio::test]
async fn a_client_that_keeps_its_connection_moves_to_another_gateway_without_an_error() {
    let engine = Engine::start(|seen, mut wire| async move {
        if seen.json()["stream"] == true {
            wire.send(STREAM).await;
            wire.send(chunk(delta("x"))).await;
            wire.closed().await;
            return None;
        }
        wire.send(whole("hi", 1, 1)).await;
        Some(wire)
    })
    .await;
    let (going, staying) = (engine.rig("").await, engine.rig("").await);
    let other = staying.address();
    let mut kept = Connection::open(going.address()).await;
    assert_eq!(kept.ask(&say(json!({}))).await.status(), 200);
    // As long as it runs, the gateway that goes is there.
    let mut running = Stream::begin(going.address(), &stream(json!({}))).await;
    running.read_texts(1).await;
    let (server, _remains) = going.into_parts();
    let mut draining = JoinSet::new();
    draining.spawn(Server::drain(server));
    eventually(secs(60), "it is told to go elsewhere", async || {
        let answer = kept.ask(&say(json!({}))).await;
        let told = answer.head.header("connection") == Some("close");
        // Before the drain it is served; from then on it is told, and is served elsewhere.
        assert!(told || answer.status() == 200, "{answer:?}");
        told
    })
    .await;
    assert!(kept.is_ended().await, "only after it was told");
    let mut moved = Connection::open(other).await;
    for _ in 0..5 {
        assert_eq!(moved.ask(&say(json!({}))).await.status(), 200);
    }
    drop(running);
    soon("draining", draining.join_all()).await;
}
