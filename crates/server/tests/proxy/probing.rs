//! Probes keep a connection of their own, and what they tell is true.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::engine::{Engine, config, whole};
use crate::support::chat::say;
use crate::support::rig::Rig;
use crate::support::wait::{eventually, secs};

/// What came to an engine that looks at each connection by itself.
#[derive(Debug, Default)]
struct Seen {
    connections: AtomicUsize,
    probes: AtomicUsize,
}

/// An engine that answers everything, but on its first connection so many requests only; what comes
/// on that after them is taken and never answered, as by a machine that is there no more.
async fn forgetful(answers: usize) -> (SocketAddr, Arc<Seen>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, mut tasks) = (Arc::new(Seen::default()), JoinSet::new());
    let noted = Arc::clone(&seen);
    tasks.spawn(async move {
        let mut all = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let first = noted.connections.fetch_add(1, Ordering::Relaxed) == 0;
            let most = if first { answers } else { usize::MAX };
            all.spawn(serve(socket, most, Arc::clone(&noted)));
        }
    });
    (address, seen, tasks)
}

async fn serve(mut socket: TcpStream, most: usize, seen: Arc<Seen>) {
    let (mut unread, mut answered) = (Vec::new(), 0);
    while socket
        .read_buf(&mut unread)
        .await
        .is_ok_and(|read| read > 0)
    {
        let text = String::from_utf8_lossy(&unread).into_owned();
        let whole_request = text.contains("\r\n\r\n") && !text.ends_with("\r\n\r\n{");
        if !whole_request || answered >= most {
            continue;
        }
        unread.clear();
        answered += 1;
        let answer = if text.starts_with("GET ") {
            seen.probes.fetch_add(1, Ordering::Relaxed);
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned()
        } else {
            whole("hi", 1, 1)
        };
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn probes_go_over_one_connection() {
    let (address, seen, _engine) = forgetful(usize::MAX).await;
    let keys = "upstream: { model: qwen }\nhealth: { interval: 100ms, timeout: 10s }";
    let _rig = Rig::start(&config(&[address], "vllm", keys)).await;
    eventually(secs(60), "it is probed again and again", async || {
        seen.probes.load(Ordering::Relaxed) >= 30
    })
    .await;
    // Gauges and health may be asked for at the same time, and then one of two is kept.
    let connections = seen.connections.load(Ordering::Relaxed);
    assert!(connections < 15, "{connections} connections for 30 probes");
}

#[tokio::test]
async fn an_engine_that_was_replaced_behind_the_connection_of_its_probes_is_found_again() {
    let (address, seen, _engine) = forgetful(6).await;
    let keys = "upstream: { model: qwen }\nhealth: { interval: 100ms, timeout: 300ms }";
    let rig = Rig::start(&config(&[address], "openai", keys)).await;
    eventually(secs(60), "it is probed on another connection", async || {
        let probes = seen.probes.load(Ordering::Relaxed);
        probes >= 10 && seen.connections.load(Ordering::Relaxed) >= 2
    })
    .await;
    let up =
        |scrape: &crate::support::scrape::Scrape| scrape.sum("tollgate_replica_up", &[]) == 1.0;
    rig.until(secs(60), "it takes work", up).await;
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
}

#[tokio::test]
async fn what_an_engine_says_of_itself_is_shown_and_nothing_that_it_does_not_say() {
    let engine = Engine::saying(whole("hi", 1, 1)).await;
    engine.says_of_itself(
        "vllm:num_requests_waiting{engine=\"0\"} 2.0\n\
         vllm:num_requests_running{engine=\"0\"} 7.0\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n",
    );
    let rig = engine.rig("").await;
    let of = [("model", "m")];
    rig.until(secs(60), "all of it is shown", |scrape| {
        scrape.sum("tollgate_engine_running_sequences", &of) == 7.0
            && scrape.sum("tollgate_engine_waiting_sequences", &of) == 2.0
            && scrape.sum("tollgate_engine_kv_blocks", &of) == 50.0
    })
    .await;
    engine.says_of_itself("vllm:num_requests_waiting{engine=\"0\"} 1.0\n");
    rig.until(secs(60), "what it does not say is gone", |scrape| {
        scrape.sum("tollgate_engine_waiting_sequences", &of) == 1.0
            && scrape.sum("tollgate_engine_running_sequences", &of) == 0.0
    })
    .await;
    let page = rig.get("/metrics").await;
    assert!(!page.text().contains("tollgate_engine_kv_blocks{"));
    assert!(!page.text().contains("tollgate_engine_running_sequences{"));
}

#[tokio::test]
async fn why_requests_went_where_they_went_is_counted() {
    let one = Engine::saying(whole("hi", 1, 1)).await;
    let rig = one.rig("").await;
    for _ in 0..3 {
        assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    }
    let scrape = rig.scrape().await;
    let labels = [("model", "m"), ("reason", "only_one")];
    assert_eq!(scrape.sum("tollgate_dispatches_total", &labels), 3.0);
    assert_eq!(scrape.sum("tollgate_dispatches_total", &[]), 3.0);
}
