//! Requests with an `Idempotency-Key` before an engine in another process: it is asked once, and
//! paid once, however often its answer is given.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::{DONE, END, Engine, FIN, STREAM, chunk, delta, json, usage, whole};
use crate::support::chat::{say, stream};
use crate::support::http::{Answer, Connection, Request};
use crate::support::wait::{eventually, secs};

fn keyed(request: Request) -> Request {
    request.header("idempotency-key", "k1")
}

fn how(answer: &Answer) -> &str {
    let how = answer.head.header("x-tollgate-idempotency");
    how.unwrap_or("made")
}

/// An engine that plays `scripts`, one for each request that comes, and the last for all later.
async fn playing(scripts: Vec<Vec<u8>>) -> Engine {
    let scripts = Arc::new(scripts);
    let next = Arc::new(AtomicUsize::new(0));
    Engine::start(move |_, mut wire| {
        let at = next.fetch_add(1, Ordering::SeqCst).min(scripts.len() - 1);
        let bytes = scripts[at].clone();
        async move {
            wire.send(bytes).await;
            None
        }
    })
    .await
}

/// A whole stream of these events.
fn streamed(events: &[&str]) -> Vec<u8> {
    let mut bytes = STREAM.as_bytes().to_vec();
    for event in events {
        bytes.extend(chunk(event));
    }
    bytes.extend(END.as_bytes());
    bytes
}

#[tokio::test]
async fn a_repeat_gets_the_same_bytes_and_the_engine_is_not_asked_again() {
    let text = delta("hello");
    let events = [text.as_str(), FIN, &usage(100, 40), DONE];
    for (answer, request) in [
        (streamed(&events), stream(json!({}))),
        (whole("hello", 100, 40).into_bytes(), say(json!({}))),
    ] {
        let engine = playing(vec![answer]).await;
        let rig = engine.rig("").await;
        let first = rig.send(&keyed(request.clone())).await;
        assert_eq!((first.status(), how(&first)), (200, "made"));
        assert!(first.text().contains("hello"));
        for _ in 0..3 {
            let again = rig.send(&keyed(request.clone())).await;
            assert_eq!((again.status(), how(&again)), (200, "replayed"));
            assert_eq!(again.text(), first.text());
            let kind = "content-type";
            assert_eq!(again.head.header(kind), first.head.header(kind));
        }
        engine.only();
        rig.until_idle(secs(60)).await;
        let scrape = rig.scrape().await;
        assert_eq!(
            scrape.sum("tollgate_tokens_total", &[("kind", "output")]),
            40.0
        );
        let rows = rig.drain().await.ledger();
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (&rows[0]["prompt_tokens"], &rows[0]["output_tokens"]),
            (&json!(100), &json!(40))
        );
    }
}

#[tokio::test]
async fn a_client_whose_link_was_cut_before_the_answer_has_it_made_and_paid_once() {
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let engine = Engine::start(move |_, mut wire| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            wire.send(whole("late", 10, 10)).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    let request = keyed(say(json!({})));
    let mut cut = Connection::open(rig.address()).await;
    cut.send(&request.bytes()).await;
    engine.until_seen(1).await;
    drop(cut);
    let address = rig.address();
    let again = request.clone();
    let mut joined = JoinSet::new();
    joined.spawn(async move { again.send(address).await });
    go.add_permits(1);
    let joined = joined.join_next().await.unwrap().unwrap();
    assert_eq!(joined.status(), 200, "{}", joined.text());
    assert!(joined.text().contains("late"));
    assert_eq!(how(&rig.send(&request).await), "replayed");
    engine.only();
    let rows = rig.drain().await.ledger();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (&rows[0]["outcome"], &rows[0]["output_tokens"]),
        (&json!("completed"), &json!(10))
    );
}

#[tokio::test]
async fn an_answer_that_broke_off_or_was_an_error_is_not_given_again() {
    let text = delta("hello");
    let mut broken = STREAM.as_bytes().to_vec();
    broken.extend(chunk(&text));
    let refusal = json("400 Bad Request", "{\"error\":{\"message\":\"no\"}}");
    let good = streamed(&[&text, FIN, &usage(5, 1), DONE]);
    let engine = playing(vec![broken, refusal.into_bytes(), good]).await;
    let rig = engine.rig("").await;
    let request = keyed(stream(json!({})));
    let mut first = Connection::open(rig.address()).await;
    first.send(&request.bytes()).await;
    assert_eq!(first.head().await.status, 200);
    let freed = async || {
        let answer = rig.send(&request).await;
        answer.status() == 400
    };
    eventually(secs(60), "the engine is asked again", freed).await;
    let third = rig.send(&request).await;
    assert_eq!((third.status(), how(&third)), (200, "made"));
    assert!(third.text().ends_with(DONE));
    let fourth = rig.send(&request).await;
    assert_eq!((fourth.text(), how(&fourth)), (third.text(), "replayed"));
    assert_eq!(engine.seen().len(), 3);
}

#[tokio::test]
async fn an_answer_too_long_to_be_kept_is_given_once_and_not_made_again() {
    let long = "x".repeat(9 << 20);
    let engine = playing(vec![whole(&long, 5, 7).into_bytes()]).await;
    let rig = engine.rig("").await;
    let request = keyed(say(json!({})));
    let first = rig.send(&request).await;
    assert_eq!(first.status(), 200);
    assert!(first.body.len() > 9 << 20);
    rig.until_idle(secs(60)).await;
    let again = rig.send(&request).await;
    assert_eq!(
        (again.status(), again.reason()),
        (409, "idempotency_too_long")
    );
    engine.only();
    assert_eq!(rig.drain().await.ledger().len(), 1);
}

#[tokio::test]
async fn a_long_answer_in_the_making_is_read_by_all_who_asked_for_it() {
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let engine = Engine::start(move |_, mut wire| {
        let gate = Arc::clone(&gate);
        async move {
            wire.send(STREAM).await;
            wire.send(chunk(delta("first"))).await;
            gate.acquire().await.unwrap().forget();
            wire.send_chunks(&[&delta("last"), FIN, &usage(5, 2), DONE])
                .await;
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    let request = keyed(stream(json!({})));
    let address = rig.address();
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let request = request.clone();
        readers.spawn(async move { request.send(address).await });
    }
    engine.until_seen(1).await;
    go.add_permits(1);
    let mut texts = Vec::new();
    while let Some(answer) = readers.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        texts.push(answer.text().to_owned());
    }
    assert!(texts[0].ends_with(DONE));
    assert!(texts.iter().all(|text| *text == texts[0]));
    engine.only();
    assert_eq!(rig.drain().await.ledger().len(), 1);
}
