//! Large bodies share a bounded room: who finds none waits unread, and then is told; small ones
//! pass by.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::{Engine, config, whole};
use crate::support::chat::say;
use crate::support::http::Request;
use crate::support::rig::Rig;
use crate::support::wait::{eventually, secs};

/// Of a body that is large.
const LARGE: usize = 3 << 20;

fn large() -> Request {
    let text = "word ".repeat(LARGE / 5);
    say(json!({"messages": [{"role": "user", "content": text}]}))
}

/// An engine that answers a large request only when it is let, and a gateway before it with room
/// for two of those.
async fn narrow(read_timeout: &str) -> (Engine, Rig, Arc<Semaphore>) {
    let lets = Arc::new(Semaphore::new(0));
    let door = Arc::clone(&lets);
    let engine = Engine::start(move |seen, mut wire| {
        let door = Arc::clone(&door);
        async move {
            if seen.body.len() > LARGE / 2 {
                door.acquire().await.unwrap().forget();
            }
            wire.send(whole("hi", 1, 1)).await;
            Some(wire)
        }
    })
    .await;
    let bounds =
        format!("\nserver: {{ max_body: 4MiB, max_bodies: 7MiB, read_timeout: {read_timeout} }}\n");
    let rig = Rig::start(&(config(&[engine.address], "vllm", "") + &bounds)).await;
    (engine, rig, lets)
}

fn larges(engine: &Engine) -> usize {
    let seen = engine.seen();
    seen.iter()
        .filter(|seen| seen.body.len() > LARGE / 2)
        .count()
}

#[tokio::test]
async fn large_bodies_wait_for_room_and_small_ones_pass_them() {
    let (engine, rig, lets) = narrow("60s").await;
    let address = rig.address();
    let mut asking = JoinSet::new();
    for _ in 0..5 {
        asking.spawn(async move { large().send(address).await });
    }
    eventually(secs(60), "two are there", async || larges(&engine) == 2).await;
    for _ in 0..20 {
        assert_eq!(say(json!({})).send(address).await.status(), 200);
    }
    assert_eq!(larges(&engine), 2, "the others have no room");
    for come in 3..=5 {
        lets.add_permits(1);
        eventually(secs(60), "the next has room", async || {
            larges(&engine) == come
        })
        .await;
    }
    lets.add_permits(2);
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn a_large_body_that_finds_no_room_in_time_is_told_why_and_when_to_come_back() {
    let (engine, rig, lets) = narrow("1s").await;
    let address = rig.address();
    let mut asking = JoinSet::new();
    for _ in 0..2 {
        asking.spawn(async move { large().send(address).await });
    }
    eventually(secs(60), "two are there", async || larges(&engine) == 2).await;
    for request in [large(), large().chunked(64 << 10)] {
        let answer = request.send(address).await;
        assert_eq!((answer.status(), answer.reason()), (503, "body_room"));
        assert_eq!(answer.json()["error"]["code"], "body_room");
        assert!(answer.head.number("retry-after") >= 1);
    }
    lets.add_permits(3);
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(large().chunked(64 << 10).send(address).await.status(), 200);
    rig.until_idle(secs(60)).await;
    assert_eq!(larges(&engine), 3);
}

#[tokio::test]
async fn one_that_leaves_while_its_body_is_held_gives_its_room_back() {
    let (engine, rig, lets) = narrow("60s").await;
    let address = rig.address();
    let mut asking = JoinSet::new();
    for _ in 0..2 {
        asking.spawn(async move { large().send(address).await });
    }
    eventually(secs(60), "two are there", async || larges(&engine) == 2).await;
    asking.shutdown().await;
    lets.add_permits(3);
    assert_eq!(large().send(address).await.status(), 200);
    rig.until_idle(secs(60)).await;
}
