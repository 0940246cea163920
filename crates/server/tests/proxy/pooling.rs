//! Connections to an engine are used again, and that one has closed in the meantime is nobody's
//! trouble.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::engine::{DONE, Engine, FIN, delta, json, whole};
use crate::support::chat::{say, stream};
use crate::support::wait::secs;

#[tokio::test]
async fn a_connection_carries_one_answer_after_another() {
    let engine = Engine::start(|seen, mut wire| async move {
        if seen.json()["stream"] == true {
            wire.send_stream(&[&delta("a"), FIN, DONE]).await;
        } else {
            wire.send(whole("hi", 1, 1)).await;
        }
        Some(wire)
    })
    .await;
    let rig = engine.rig("").await;
    for n in 0..10 {
        let request = if n % 2 == 0 {
            say(json!({}))
        } else {
            stream(json!({}))
        };
        assert_eq!(rig.send(&request).await.status(), 200);
    }
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn a_stale_connection_costs_no_client_an_error() {
    // Each connection carries one answer, and is closed when the next request comes on it.
    let count = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(move |_, mut wire| {
        let count = Arc::clone(&count);
        async move {
            if count.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                return None;
            }
            wire.send(whole("hi", 1, 1)).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    for _ in 0..20 {
        assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    }
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn a_new_connection_that_breaks_is_not_tried_again() {
    let engine = Engine::start(|_, _| async { None }).await;
    let rig = engine.rig("").await;
    let answer = rig.send(&say(json!({}))).await;
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, "replica_broke_off")
    );
    assert_eq!(engine.seen().len(), 1);
}

#[tokio::test]
async fn nothing_is_asked_again_once_a_byte_has_come() {
    let count = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(move |_, mut wire| {
        let count = Arc::clone(&count);
        async move {
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                wire.send(whole("hi", 1, 1)).await;
                return Some(wire);
            }
            wire.send("HTTP/1.1 200").await;
            None
        }
    })
    .await;
    let rig = engine.rig("").await;
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    assert_eq!(rig.send(&say(json!({}))).await.status(), 502);
    assert_eq!(engine.seen().len(), 2);
}

#[tokio::test]
async fn a_connection_that_the_engine_is_about_to_close_is_not_kept() {
    let engine = Engine::start(|_, mut wire| async move {
        let body = "{\"choices\":[]}";
        let length = body.len();
        wire.send(format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
        wire.closed().await;
        None
    })
    .await;
    let rig = engine.rig("").await;
    for _ in 0..3 {
        assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    }
    assert_eq!(engine.connections(), 3);
}

#[tokio::test]
async fn bytes_after_an_answer_are_not_taken_for_the_next_one() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(format!(
            "{}{}",
            whole("hi", 1, 1),
            whole("not asked for", 9, 9)
        ))
        .await;
        Some(wire)
    })
    .await;
    let rig = engine.rig("").await;
    for _ in 0..5 {
        let answer = rig.send(&say(json!({}))).await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "hi");
    }
}

#[tokio::test]
async fn errors_and_cancels_leave_the_pool_as_it_was() {
    let engine = Engine::start(|seen, mut wire| async move {
        match seen.json()["seed"].as_u64().unwrap_or(9) {
            0 => wire.send(json("429 Slow", &"x".repeat(50_000))).await,
            1 => wire.send(json("500 Oops", &"x".repeat(50_000))).await,
            2 => wire.send_stream(&["data: {bad\n\n"]).await,
            _ => wire.send(whole("hi", 1, 1)).await,
        }
        Some(wire)
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen }\nmax_sequences: 20")
        .await;
    for n in 0..30_u64 {
        let status = rig.send(&stream(json!({"seed": n % 3}))).await.status();
        assert!(status >= 400);
    }
    let address = rig.address();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        tasks.spawn(async move { say(json!({})).send(address).await.status() });
    }
    while let Some(status) = tasks.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}
