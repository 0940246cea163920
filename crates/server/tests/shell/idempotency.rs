//! Requests with an `Idempotency-Key`: made once, billed once, answered as often as asked.

use serde_json::json;
use tollgate_engine::fake::Faults;

use crate::support::chat::{endless, keyed, say, short, stream};
use crate::support::http::{Connection, Piece, Request};
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::wait::{eventually, secs};

fn with_key(request: Request, key: &str) -> Request {
    request.header("idempotency-key", key)
}

fn how(head: &crate::support::http::Head) -> &str {
    head.header("x-tollgate-idempotency").unwrap_or("made")
}

#[tokio::test]
async fn a_repeat_gets_the_same_bytes_and_is_neither_made_nor_billed_again() {
    let rig = Rig::start(FAST).await;
    let requests = [
        with_key(say(json!({"max_tokens": 7, "ignore_eos": true})), "whole"),
        with_key(
            stream(json!({"max_tokens": 7, "ignore_eos": true})),
            "streamed",
        ),
    ];
    for request in &requests {
        let first = rig.send(request).await;
        assert_eq!((first.status(), how(&first.head)), (200, "made"));
        for _ in 0..2 {
            let again = rig.send(request).await;
            assert_eq!((again.status(), how(&again.head)), (200, "replayed"));
            assert_eq!(again.text(), first.text());
            let kind = |answer: &crate::support::http::Answer| {
                answer.head.header("content-type").map(str::to_owned)
            };
            assert_eq!(kind(&again), kind(&first));
        }
    }
    assert!(rig.scrape().await.is_idle());
    assert_eq!(rig.drain().await.ledger().len(), 2);
}

#[tokio::test]
async fn a_repeat_joins_the_one_that_runs() {
    let rig = Rig::start(OPEN).await;
    let request = with_key(stream(json!({"max_tokens": 300, "ignore_eos": true})), "k");
    let mut first = Connection::open(rig.address()).await;
    first.send(&request.bytes()).await;
    let head = first.head().await;
    let mut framing = head.framing();
    let Piece::Data(mut body) = first.piece(&mut framing).await else {
        panic!("no first event")
    };
    let again = rig.send(&request).await;
    assert_eq!(how(&again.head), "joined");
    loop {
        match first.piece(&mut framing).await {
            Piece::Data(data) => body.extend(data),
            Piece::End => break,
            Piece::CutOff => panic!("cut off"),
        }
    }
    assert_eq!(again.body, body);
    assert!(again.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(rig.drain().await.ledger().len(), 1);
}

#[tokio::test]
async fn a_client_whose_link_was_cut_gets_the_answer_that_was_made_meanwhile() {
    let rig = Rig::start(OPEN).await;
    let request = with_key(stream(json!({"max_tokens": 50, "ignore_eos": true})), "k1");
    let mut first = Connection::open(rig.address()).await;
    first.send(&request.bytes()).await;
    first.head().await;
    drop(first);
    let again = rig.send(&request).await;
    assert_eq!(again.status(), 200);
    assert!(again.text().ends_with("data: [DONE]\n\n"));
    let ledger = rig.drain().await.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (&ledger[0]["outcome"], &ledger[0]["output_tokens"]),
        (&json!("completed"), &json!(50))
    );
}

#[tokio::test]
async fn the_same_key_with_another_body_is_refused_and_for_another_tenant_is_another_key() {
    let config = FAST.replace("anonymous: allow", "anonymous: deny");
    let tenant = |name| format!("  - {{ name: {name}, keys: [{{ env: {name} }}] }}\n");
    let rig = Rig::start(&format!("{config}tenants:\n{}{}", tenant("A"), tenant("B"))).await;
    let ask = |tokens: u32, who: &str| {
        let request = with_key(say(json!({"max_tokens": tokens, "ignore_eos": true})), "k");
        keyed(request, &key(who))
    };
    assert_eq!(rig.send(&ask(5, "A")).await.status(), 200);
    let other = rig.send(&ask(6, "A")).await;
    assert_eq!((other.status(), other.reason()), (422, "idempotency_reuse"));
    assert_eq!(other.json()["error"]["code"], "idempotency_key_reused");
    let b = rig.send(&ask(6, "B")).await;
    assert_eq!((b.status(), how(&b.head)), (200, "made"));
    let too_long = keyed(with_key(short(), &"k".repeat(300)), &key("A"));
    assert_eq!(rig.send(&too_long).await.status(), 400);
    assert_eq!(rig.drain().await.ledger().len(), 2);
}

#[tokio::test]
async fn a_key_whose_request_was_refused_is_free_again() {
    let rig = Rig::start(&format!(
        "{OPEN}tenants: [{{ name: anonymous, limits: {{ concurrency: 1 }} }}]\n"
    ))
    .await;
    let mut busy = Connection::open(rig.address()).await;
    busy.send(&endless().bytes()).await;
    busy.head().await;
    let request = with_key(short(), "k");
    let refused = rig.send(&request).await;
    assert_eq!((refused.status(), refused.reason()), (429, "concurrency"));
    drop(busy);
    let served = async || rig.send(&request).await.status() == 200;
    eventually(secs(60), "the key is free again", served).await;
    assert_eq!(how(&rig.send(&request).await.head), "replayed");
}

#[tokio::test]
async fn an_answer_outlives_the_process_that_made_it() {
    let request = with_key(stream(json!({"max_tokens": 9, "ignore_eos": true})), "k");
    let rig = Rig::start(FAST).await;
    let first = rig.send(&request).await;
    let folder = rig.drain().await.into_folder();
    let rig = Rig::start_in(folder, FAST, Faults::default()).await;
    let again = rig.send(&request).await;
    assert_eq!((again.status(), how(&again.head)), (200, "replayed"));
    assert_eq!(again.text(), first.text());
    let other = rig.send(&with_key(short(), "k")).await;
    assert_eq!(other.status(), 422);
    let other = rig.send(&with_key(short(), "k")).await;
    assert_eq!(other.status(), 422, "and not stuck");
    assert_eq!(rig.drain().await.ledger().len(), 1);
}
