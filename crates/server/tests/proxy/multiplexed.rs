//! An engine that speaks HTTP/2: all requests share a connection, and none is lost for that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Request, Response};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::engine::{DONE, FIN, config, delta};
use crate::support::chat::{say, stream};
use crate::support::rig::Rig;
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs};

/// What an engine does with requests for an answer.
#[derive(Clone, Copy, Debug)]
enum Mood {
    /// It answers them, a while after they came.
    Well,
    /// It refuses the first so many without a look.
    Refuses(usize),
    /// It sends a token and resets the stream.
    BreaksOff,
    /// It sends a token and nothing more, until the stream is reset.
    Stalls,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    asked: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    reset: AtomicUsize,
    /// The test has seen what it waited for.
    go: Notify,
}

struct Engine {
    address: SocketAddr,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

impl Engine {
    /// One that serves at most so many requests of a connection at once.
    async fn start(mood: Mood, places: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (counts, mut tasks) = (Arc::new(Counts::default()), JoinSet::new());
        let seen = Arc::clone(&counts);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                seen.connections.fetch_add(1, Ordering::Relaxed);
                let seen = Arc::clone(&seen);
                connections.spawn(async move {
                    let mut builder = h2::server::Builder::new();
                    builder.max_concurrent_streams(places);
                    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else {
                        return;
                    };
                    let mut requests = JoinSet::new();
                    while let Some(Ok((request, answer))) = connection.accept().await {
                        requests.spawn(serve(request, answer, mood, Arc::clone(&seen)));
                    }
                });
            }
        });
        Self {
            address,
            counts,
            _tasks: tasks,
        }
    }

    async fn rig(&self) -> Rig {
        let keys = "upstream: { model: qwen, http2: on }\nmax_sequences: 1000";
        Rig::start(&config(&[self.address], "openai", keys)).await
    }

    fn count(&self, of: impl Fn(&Counts) -> &AtomicUsize) -> usize {
        of(&self.counts).load(Ordering::Relaxed)
    }
}

async fn serve(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    mood: Mood,
    counts: Arc<Counts>,
) {
    let head = |kind| Response::builder().header("content-type", kind).body(());
    if request.method() == "GET" {
        let page = head("application/json").unwrap();
        let mut body = answer.send_response(page, false).unwrap();
        body.send_data(Bytes::from_static(b"{}"), true).unwrap();
        return;
    }
    let asked = counts.asked.fetch_add(1, Ordering::Relaxed);
    if matches!(mood, Mood::Refuses(most) if asked < most) {
        answer.send_reset(Reason::REFUSED_STREAM);
        return;
    }
    let mut body = request.into_body();
    let mut text = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        text.extend_from_slice(&data);
    }
    let now = counts.now.fetch_add(1, Ordering::Relaxed) + 1;
    counts.most.fetch_max(now, Ordering::Relaxed);
    let asked: serde_json::Value = serde_json::from_slice(&text).unwrap();
    if asked["stream"] != true {
        let mut while_it_is_made = tokio::time::interval(std::time::Duration::from_millis(50));
        while_it_is_made.tick().await;
        while_it_is_made.tick().await;
        counts.now.fetch_sub(1, Ordering::Relaxed);
        let whole = crate::engine::whole("hi", 1, 1);
        let (_, text) = whole.split_once("\r\n\r\n").unwrap();
        let mut body = answer
            .send_response(head("application/json").unwrap(), false)
            .unwrap();
        body.send_data(Bytes::from(text.to_owned()), true).unwrap();
        return;
    }
    let mut body = answer
        .send_response(head("text/event-stream").unwrap(), false)
        .unwrap();
    body.send_data(Bytes::from(delta("a")), false).unwrap();
    match mood {
        Mood::Well | Mood::Refuses(_) => {
            let rest = [&delta("b"), FIN, DONE].concat();
            body.send_data(Bytes::from(rest), true).unwrap();
        }
        Mood::BreaksOff => {
            counts.go.notified().await;
            body.send_reset(Reason::INTERNAL_ERROR);
        }
        Mood::Stalls => {
            let reason = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
            assert_eq!(reason.unwrap(), Reason::CANCEL);
            counts.reset.fetch_add(1, Ordering::Relaxed);
        }
    }
    counts.now.fetch_sub(1, Ordering::Relaxed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_at_once_are_all_served_where_a_hundred_have_a_place() {
    let engine = Engine::start(Mood::Well, 100).await;
    let rig = engine.rig().await;
    let address = rig.address();
    let mut clients = JoinSet::new();
    for _ in 0..300 {
        clients.spawn(async move { say(json!({})).send(address).await.status() });
    }
    let statuses = clients.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert!(engine.count(|all| &all.most) <= 100);
    assert_eq!(engine.count(|all| &all.connections), 1);
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn what_was_refused_unseen_is_asked_again() {
    let engine = Engine::start(Mood::Refuses(2), 100).await;
    let rig = engine.rig().await;
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    assert_eq!(engine.count(|all| &all.asked), 3);
}

#[tokio::test]
async fn a_stream_comes_through_and_its_bytes_are_the_engines() {
    let engine = Engine::start(Mood::Well, 100).await;
    let rig = engine.rig().await;
    for _ in 0..5 {
        let told = Stream::begin(rig.address(), &stream(json!({}))).await;
        let told = told.rest().await;
        told.assert_complete();
        assert_eq!(told.text, "ab");
    }
    // A prompt that is larger than a stream's first window.
    let large = "x".repeat(1 << 20);
    let request = say(json!({"messages": [{"role": "user", "content": large}]}));
    assert_eq!(rig.send(&request).await.status(), 200);
}

#[tokio::test]
async fn a_stream_that_is_reset_behind_its_first_token_ends_with_an_error() {
    let engine = Engine::start(Mood::BreaksOff, 100).await;
    let rig = engine.rig().await;
    let mut begun = Stream::begin(rig.address(), &stream(json!({}))).await;
    begun.read_texts(1).await;
    engine.counts.go.notify_one();
    let told = begun.rest().await;
    assert!(
        told.error.is_some() && !told.done && !told.whole,
        "{told:?}"
    );
    rig.until_idle(secs(60)).await;
    assert_eq!(engine.count(|all| &all.asked), 1);
}

#[tokio::test]
async fn a_client_that_leaves_resets_its_stream_and_no_other() {
    let engine = Engine::start(Mood::Stalls, 100).await;
    let rig = engine.rig().await;
    let mut leaves = Stream::begin(rig.address(), &stream(json!({}))).await;
    let mut stays = Stream::begin(rig.address(), &stream(json!({}))).await;
    leaves.read_texts(1).await;
    stays.read_texts(1).await;
    drop(leaves);
    eventually(secs(60), "its stream is reset", async || {
        engine.count(|all| &all.reset) == 1
    })
    .await;
    assert_eq!(engine.count(|all| &all.now), 1);
    drop(stays);
    rig.until_idle(secs(60)).await;
    assert_eq!(engine.count(|all| &all.connections), 1);
}

#[tokio::test]
async fn an_engine_that_was_replaced_is_asked_on_a_new_connection() {
    let engine = Engine::start(Mood::Well, 100).await;
    let (counts, address) = (Arc::clone(&engine.counts), engine.address);
    let rig = engine.rig().await;
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
    drop(engine);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut tasks = JoinSet::new();
    let again = Arc::clone(&counts);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let again = Arc::clone(&again);
            connections.spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else {
                    return;
                };
                let mut requests = JoinSet::new();
                while let Some(Ok((request, answer))) = connection.accept().await {
                    requests.spawn(serve(request, answer, Mood::Well, Arc::clone(&again)));
                }
            });
        }
    });
    eventually(secs(60), "it is served again", async || {
        rig.send(&say(json!({}))).await.status() == 200
    })
    .await;
}
