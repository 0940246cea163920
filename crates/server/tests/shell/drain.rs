//! Going away: what runs is finished, what is new goes elsewhere, and the end has a bound.

use serde_json::json;
use tokio::task::JoinSet;
use tollgate_server::Server;

use crate::support::chat::{endless, short, stream};
use crate::support::http::{Connection, Request};
use crate::support::rig::{NARROW, OPEN, Remains, Rig};
use crate::support::stream::Stream;
use crate::support::wait::{eventually, millis, now, secs, soon};

/// A drain under way.
struct Draining {
    task: JoinSet<()>,
    remains: Remains,
}

impl Draining {
    fn begin(rig: Rig) -> Self {
        let (server, remains) = rig.into_parts();
        let mut task = JoinSet::new();
        task.spawn(Server::drain(server));
        Self { task, remains }
    }

    fn is_over(&mut self) -> bool {
        self.task.try_join_next().is_some()
    }

    async fn end(self) -> Remains {
        soon("draining", self.task.join_all()).await;
        self.remains
    }
}

#[tokio::test]
async fn running_streams_finish_while_new_requests_are_sent_away() {
    let rig = Rig::start(OPEN).await;
    let address = rig.address();
    let mut streams = Vec::new();
    for n in 0..8 {
        let request = stream(json!({"ignore_eos": true, "max_tokens": 700 + n}));
        streams.push(Stream::begin(address, &request).await);
    }
    let begun = now();
    let draining = Draining::begin(rig);
    let is_not_ready = async || Request::get("/ready").send(address).await.status() == 503;
    eventually(millis(200), "it is not ready at once", is_not_ready).await;
    assert_eq!(
        Request::get("/ready").send(address).await.text(),
        "draining\n"
    );
    let health = Request::get("/health").send(address).await;
    assert_eq!(
        (health.status(), health.head.header("connection")),
        (200, Some("close"))
    );
    let late = short().send(address).await;
    assert_eq!((late.status(), late.reason()), (503, "draining"));
    assert!(late.head.number("retry-after") >= 1);
    assert_eq!(late.head.header("connection"), Some("close"));
    assert!(
        begun.elapsed() < millis(600),
        "all this while the streams run"
    );
    for stream in streams {
        let told = stream.rest().await;
        told.assert_complete();
        assert_eq!(told.finish.as_deref(), Some("length"));
    }
    let rows = draining.end().await.ledger();
    let completed = rows.iter().filter(|row| row["outcome"] == "completed");
    assert_eq!((completed.count(), rows.len()), (8, 8));
}

#[tokio::test]
async fn what_does_not_finish_within_the_bound_is_stopped_and_told_so() {
    let rig = Rig::start(&format!("server: {{ drain: 1s }}\n{NARROW}")).await;
    let address = rig.address();
    let running = Stream::begin(address, &endless()).await;
    let name = running.head.request_id().to_owned();
    let mut waiting = Connection::open(address).await;
    waiting.send(&short().bytes()).await;
    rig.until(secs(2), "one waits", |now| {
        now.sum("tollgate_queue_requests", &[]) == 1.0
    })
    .await;
    let begun = now();
    let draining = Draining::begin(rig);
    running.rest().await.assert_failed("drain_fence");
    assert!(
        (millis(900)..secs(2)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    let evicted = waiting.answer().await;
    assert_eq!((evicted.status(), evicted.reason()), (503, "draining"));
    let rows = draining.end().await.ledger();
    assert!(begun.elapsed() < secs(3), "{:?}", begun.elapsed());
    assert_eq!(rows.len(), 2);
    let fenced = rows
        .iter()
        .find(|row| row["request"] == name.as_str())
        .unwrap();
    assert_eq!(fenced["outcome"], "drain_fence");
    assert!(fenced["output_tokens"].as_u64().unwrap() > 100);
    let evicted = rows
        .iter()
        .find(|row| row["request"] != name.as_str())
        .unwrap();
    assert_eq!(evicted["outcome"], "draining");
}

#[tokio::test]
async fn what_waited_when_the_drain_began_is_still_served_in_time() {
    let rig = Rig::start(NARROW).await;
    let running = Stream::begin(
        rig.address(),
        &stream(json!({"ignore_eos": true, "max_tokens": 300})),
    )
    .await;
    let mut waiting = Connection::open(rig.address()).await;
    waiting.send(&short().bytes()).await;
    rig.until(secs(2), "one waits", |now| {
        now.sum("tollgate_queue_requests", &[]) == 1.0
    })
    .await;
    let draining = Draining::begin(rig);
    running.rest().await.assert_complete();
    assert_eq!(waiting.answer().await.status(), 200);
    assert_eq!(draining.end().await.ledger().len(), 2);
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_no_drain() {
    let config = NARROW.replace(
        "step: 1ms",
        "step: 0us, context: 2000000, kv_tokens: 2000000",
    );
    let rig = Rig::start(&format!("server: {{ drain: 1s }}\n{config}")).await;
    let connection = Connection::open_narrow(rig.address()).await;
    let stuck = Stream::over(connection, &endless()).await;
    let begun = now();
    let rows = rig.drain().await.ledger();
    assert!(begun.elapsed() < secs(4), "{:?}", begun.elapsed());
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["outcome"], "drain_fence");
    drop(stuck);
}

#[tokio::test]
async fn idle_connections_are_closed_and_half_sent_requests_hold_nothing_up() {
    let rig = Rig::start(OPEN).await;
    let mut idle = Connection::open(rig.address()).await;
    assert_eq!(idle.ask(&short()).await.status(), 200);
    let mut fresh = Connection::open(rig.address()).await;
    let mut half = Connection::open(rig.address()).await;
    half.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
        .await;
    rig.until(secs(2), "all are known", |now| {
        now.sum("tollgate_connections", &[]) >= 3.0
    })
    .await;
    let begun = now();
    rig.drain().await;
    assert!(begun.elapsed() < secs(6), "{:?}", begun.elapsed());
    assert!(idle.is_ended().await);
    assert!(fresh.is_ended().await);
}

#[tokio::test]
async fn a_client_that_keeps_its_connection_sees_no_error_of_the_connection() {
    let rig = Rig::start(OPEN).await;
    let address = rig.address();
    let running = Stream::begin(
        address,
        &stream(json!({"ignore_eos": true, "max_tokens": 400})),
    )
    .await;
    let mut kept = Connection::open(address).await;
    assert_eq!(kept.ask(&short()).await.head.header("connection"), None);
    let mut draining = Draining::begin(rig);
    let mut last = None;
    let is_told = async || {
        let answer = kept.ask(&short()).await;
        let told = answer.head.header("connection") == Some("close");
        last = Some(answer);
        told
    };
    eventually(secs(1), "the connection is said to end", is_told).await;
    assert_eq!(last.unwrap().status(), 503);
    assert!(
        kept.is_ended().await,
        "it ends after an answer that said so"
    );
    assert!(!draining.is_over());
    running.rest().await.assert_complete();
    draining.end().await;
}

#[tokio::test]
async fn an_idle_server_is_gone_at_once_and_lets_its_port_go() {
    let rig = Rig::start(OPEN).await;
    let address = rig.address();
    let begun = now();
    rig.drain().await;
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}
