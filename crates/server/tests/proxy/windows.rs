//! Requests wait here and not in the engine, by what the engine says of itself.

use serde_json::json;

use crate::engine::{Engine, rig, whole};
use crate::support::chat::say;
use crate::support::http::Connection;
use crate::support::wait::secs;

/// What vLLM says when so many wait and so many run.
fn busy(waiting: u32, running: u32) -> String {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\"}} {waiting}.0\n\
         vllm:num_requests_running{{engine=\"0\"}} {running}.0\n"
    )
}

#[tokio::test]
async fn an_engine_with_a_queue_is_given_less_and_the_rest_waits_here() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |_, mut wire| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.unwrap();
            wire.send(whole("hi", 1, 1)).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine
        .rig("upstream: { model: qwen }\nmax_sequences: 8")
        .await;
    let mut clients = Vec::new();
    for n in 1..=8 {
        let mut client = Connection::open(rig.address()).await;
        client.send(&say(json!({})).bytes()).await;
        clients.push(client);
        engine.until_seen(n).await;
    }
    engine.says_of_itself(&busy(5, 3));
    rig.until(secs(60), "the window is three", |scrape| {
        scrape.sum("tollgate_window_sequences_limit", &[]) == 3.0
    })
    .await;
    engine.says_of_itself(&busy(0, 8));
    rig.until(secs(60), "the window has grown again", |scrape| {
        scrape.sum("tollgate_window_sequences_limit", &[]) == 8.0
    })
    .await;
    go.send(true).unwrap();
    for client in &mut clients {
        assert_eq!(client.answer().await.status(), 200);
    }
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn what_an_engine_can_hold_is_what_it_says() {
    let engine = Engine::saying(whole("hi", 1, 1)).await;
    engine.says_of_itself(
        "vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0\n",
    );
    let rig = engine.rig("").await;
    rig.until(secs(60), "its KV is known", |scrape| {
        scrape.sum("tollgate_window_kv_blocks_limit", &[]) == 1000.0
    })
    .await;
}

#[tokio::test]
async fn requests_spread_over_the_replicas_of_a_model() {
    let script = |_, mut wire: crate::engine::Wire| async move {
        wire.send(whole("hi", 1, 1)).await;
        Some(wire)
    };
    let (one, other) = (Engine::start(script).await, Engine::start(script).await);
    let rig = rig(&[one.address, other.address], "openai", "").await;
    let address = rig.address();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        tasks.spawn(async move { say(json!({})).send(address).await });
    }
    while let Some(answer) = tasks.join_next().await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!(one.seen().len() + other.seen().len(), 100);
    rig.until_idle(secs(60)).await;
}
