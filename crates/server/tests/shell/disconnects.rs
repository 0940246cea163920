//! Clients that leave, at any moment: what they held is given back, and what they used is written
//! down.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::chance::Chance;
use crate::support::chat::{endless, hi_with, say, short, stream};
use crate::support::http::{Connection, Piece, Request};
use crate::support::rig::{NARROW, Rig};
use crate::support::scrape::Scrape;
use crate::support::stream::Stream;
use crate::support::wait::{millis, now, secs};

/// Four at a time; prompts take a while.
const BUSY: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    max_sequences: 4
    step_tokens: 64
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 40000 }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_clients_that_leave_leaves_nothing_behind() {
    let rig = Rig::start(BUSY).await;
    let mut tasks = JoinSet::new();
    for n in 0..300 {
        tasks.spawn(visit(rig.address(), Chance::new(n)));
    }
    let served: Vec<String> = tasks.join_all().await.into_iter().flatten().collect();
    rig.assert_unharmed().await;
    // What a client sent before it left may be read long after; this looks at the last of them.
    let alone = |now: &Scrape| now.is_idle() && now.sum("tollgate_connections", &[]) == 1.0;
    rig.until(secs(2), "the last connection has ended", alone)
        .await;
    let scrape = rig.scrape().await;
    let admitted: f64 = scrape
        .reasons()
        .iter()
        .filter(|(reason, _)| is_charged(reason))
        .map(|(_, n)| n)
        .sum();
    let rows = rig.drain().await.ledger();
    let names: BTreeSet<&str> = rows
        .iter()
        .map(|row| row["request"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), rows.len(), "a request has two rows");
    assert_eq!(rows.len(), served_count(admitted), "{:?}", scrape.reasons());
    for name in &served {
        assert!(
            names.contains(name.as_str()),
            "{name} was answered and is not in the ledger"
        );
    }
    assert!(
        served.len() > 100,
        "only {} were answered at all",
        served.len()
    );
}

fn served_count(count: f64) -> usize {
    format!("{count}").parse().unwrap()
}

/// Whether requests that end so were let in before.
fn is_charged(reason: &str) -> bool {
    match reason {
        "completed"
        | "client_gone_queued"
        | "client_gone_before_first_token"
        | "client_gone_mid_stream"
        | "queue_time" => true,
        "bad_request" => false,
        other => panic!("nobody should have ended with {other}"),
    }
}

/// One client, which leaves somewhere; the name of its request, where it was answered.
async fn visit(to: SocketAddr, mut chance: Chance) -> Option<String> {
    let most = 5 + chance.below(60);
    let prompt = "x".repeat(chance.below(2_000));
    let members = json!({
        "ignore_eos": true, "max_tokens": most, "stream": chance.below(4) > 0,
        "messages": [{"role": "user", "content": prompt}],
    });
    let request = say(members);
    let patience = millis(u64::try_from(chance.below(60)).unwrap());
    let kind = chance.below(8);
    let slow = kind == 7;
    let mut connection = match slow {
        true => Connection::open_narrow(to).await,
        false => Connection::open(to).await,
    };
    match kind {
        0 => return None,
        1 => {
            let head = request.head_bytes();
            connection
                .send(&head[..1 + chance.below(head.len() - 1)])
                .await;
            return None;
        }
        2 => {
            let bytes = request.bytes();
            connection
                .send(&bytes[..bytes.len() - 1 - chance.below(20)])
                .await;
            return None;
        }
        3 => {
            connection.send(&request.bytes()).await;
            return None;
        }
        _ => connection.send(&request.bytes()).await,
    }
    // Queued or in prefill when its patience ends, unless it is patient.
    let head = match kind {
        4 => timeout(patience, connection.head()).await.ok()?,
        _ => connection.head().await,
    };
    assert_eq!(head.status, 200);
    let name = head.request_id().to_owned();
    let mut framing = head.framing();
    let pieces = if kind == 5 {
        chance.below(most)
    } else {
        usize::MAX
    };
    for _ in 0..pieces {
        match connection.piece(&mut framing).await {
            Piece::Data(_) if slow => tokio::task::yield_now().await,
            Piece::Data(_) => {}
            Piece::End => break,
            Piece::CutOff => panic!("{name} was cut off"),
        }
    }
    Some(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_leave_the_queue_never_reach_the_engine() {
    let rig = Rig::start(NARROW).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Vec::new();
    for n in 0..200 {
        let request = if n % 2 == 0 {
            stream(json!({}))
        } else {
            say(json!({}))
        };
        let mut connection = Connection::open(rig.address()).await;
        connection.send(&request.bytes()).await;
        waiting.push(connection);
    }
    rig.until(secs(5), "all wait", |now| {
        now.sum("tollgate_queue_requests", &[]) == 200.0
    })
    .await;
    let mut live = Connection::open(rig.address()).await;
    live.send(&short().bytes()).await;
    rig.until(secs(5), "one more waits", |now| {
        now.sum("tollgate_queue_requests", &[]) == 201.0
    })
    .await;
    drop(waiting);
    rig.until(secs(1), "they are gone", |now| {
        now.sum("tollgate_queue_requests", &[]) == 1.0
    })
    .await;
    let left = now();
    drop(running);
    assert_eq!(live.answer().await.status(), 200);
    assert!(left.elapsed() < secs(1), "{:?}", left.elapsed());
    rig.assert_unharmed().await;
    let rows = rig.drain().await.ledger();
    let gone: Vec<&Value> = rows
        .iter()
        .filter(|row| row["outcome"] == "client_gone_queued")
        .collect();
    assert_eq!((rows.len(), gone.len()), (203, 200));
    for row in gone {
        assert!(
            row["replica"].is_null() && row["prompt_tokens"] == 0 && row["output_tokens"] == 0,
            "{row}"
        );
    }
}

/// Sends `request`, waits until the engine has it, leaves, and returns its row of the ledger.
async fn leave_when_running(rig: &Rig, request: &Request) -> Value {
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&request.bytes()).await;
    let runs = |now: &Scrape| now.sum("tollgate_engine_running_sequences", &[]) == 1.0;
    rig.until(secs(5), "it runs", runs).await;
    let left = now();
    drop(connection);
    rig.until_idle(secs(1)).await;
    assert!(left.elapsed() < secs(1));
    rig.assert_unharmed().await;
    rig.ledger_first().await
}

#[tokio::test]
async fn a_whole_answer_that_nobody_waits_for_is_not_made() {
    let rig = Rig::start(NARROW).await;
    let row = leave_when_running(&rig, &say(json!({"ignore_eos": true}))).await;
    assert_eq!(row["outcome"], "client_gone_before_first_token");
    let made = row["output_tokens"].as_u64().unwrap();
    assert!(
        made < 1_500,
        "{made} tokens of an answer of 8,000 that takes 8 s"
    );
    assert_eq!(row["prompt_tokens"], 20);
    assert!(row["finish_reason"].is_null());
}

#[tokio::test]
async fn a_prompt_is_not_read_to_its_end_for_nobody() {
    let slow = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    max_sequences: 4
    step_tokens: 16
    fake: { step: 0us, per_sequence: 0us, prefill_tokens_per_second: 400 }
";
    let rig = Rig::start(slow).await;
    // Ten seconds of prefill.
    let long =
        json!({"messages": [{"role": "user", "content": "x".repeat(4_000)}], "stream": true});
    let row = leave_when_running(&rig, &say(long)).await;
    assert_eq!(row["outcome"], "client_gone_before_first_token");
    assert!(row["ttft_us"].is_null());
    assert_eq!(row["output_tokens"], 0);
    let read = row["prompt_tokens"].as_u64().unwrap();
    assert!(read < 600, "{read} of 4,000 tokens were read");
}

#[tokio::test]
async fn the_next_request_starts_right_after_a_client_left_mid_stream() {
    let rig = Rig::start(NARROW).await;
    let mut running = Stream::begin(rig.address(), &endless()).await;
    let name = running.head.request_id().to_owned();
    running.read_texts(3).await;
    drop(running);
    let left = now();
    assert_eq!(rig.send(&short()).await.status(), 200);
    assert!(left.elapsed() < millis(500), "{:?}", left.elapsed());
    let row = rig.ledger_row(&name).await;
    assert_eq!(row["outcome"], "client_gone_mid_stream");
    let made = row["output_tokens"].as_u64().unwrap();
    assert!((3..1_000).contains(&made), "{made} tokens");
    assert!(row["ttft_us"].as_u64().unwrap() <= row["total_us"].as_u64().unwrap());
}

#[tokio::test]
async fn a_client_that_is_slow_gets_every_token_in_order() {
    let config = NARROW.replace("step: 1ms", "step: 0us, context: 65536");
    let rig = Rig::start(&config).await;
    // More than the system takes off the server's hands.
    let members = json!({"ignore_eos": true, "max_tokens": 40_000, "seed": 36});
    let whole = crate::support::chat::told(&rig.send(&say(members.clone())).await);
    let connection = Connection::open_narrow(rig.address()).await;
    let mut slow = Stream::over(connection, &stream(members)).await;
    let first = slow.read_texts(1).await;
    // All of it is made long before it is read; the replica does not wait for the reader.
    let made = |now: &Scrape| now.sum("tollgate_engine_running_sequences", &[]) == 0.0;
    rig.until(secs(5), "the answer is made", made).await;
    assert_eq!(
        rig.scrape().await.sum("tollgate_in_flight_requests", &[]),
        1.0
    );
    let rest = slow.rest().await;
    rest.assert_complete();
    assert_eq!(first.text + &rest.text, whole.0);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_client_that_says_no_more_is_still_answered() {
    let rig = Rig::start(NARROW).await;
    let mut connection = Connection::open(rig.address()).await;
    let body = hi_with(json!({"max_tokens": 200, "ignore_eos": true}));
    connection
        .send(&crate::support::chat::chat(&body).bytes())
        .await;
    connection.say_no_more().await;
    // Half-closed is how HTTP/1 clients look that have gone; either way nothing may be left.
    if let Some(answer) = connection.try_answer().await {
        assert_eq!(answer.status(), 200);
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_client_that_sends_more_and_leaves_has_left() {
    let rig = Rig::start(NARROW).await;
    let whole = hi_with(json!({"max_tokens": 100_000, "ignore_eos": true}));
    let request = crate::support::chat::chat(&whole);
    for more in [
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        vec![b'G'; 4_000],
    ] {
        // Once behind the request in one piece, and once after it.
        let mut together = Connection::open(rig.address()).await;
        together
            .send(&[request.bytes(), more.clone()].concat())
            .await;
        let mut apart = Connection::open(rig.address()).await;
        apart.send(&request.bytes()).await;
        rig.until(secs(60), "both are in", |scrape| {
            scrape.sum("tollgate_in_flight_requests", &[]) == 2.0
        })
        .await;
        apart.send(&more).await;
        drop((together, apart));
        rig.until_idle(secs(60)).await;
    }
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn requests_that_are_sent_ahead_are_answered_when_it_is_their_turn() {
    let rig = Rig::start(NARROW).await;
    let request = crate::support::chat::chat(&hi_with(json!({"max_tokens": 50})));
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&request.bytes()).await;
    let health = Request::get("/health").bytes();
    for _ in 0..3 {
        connection.send(&health).await;
    }
    assert_eq!(connection.answer().await.status(), 200);
    for _ in 0..3 {
        assert_eq!(connection.answer().await.text(), "ok\n");
    }
}
