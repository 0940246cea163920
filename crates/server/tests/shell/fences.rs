//! Bounds on how long an answer may take, whether or not its client is reading.

use serde_json::json;

use crate::support::chat::{endless, say, stream};
use crate::support::http::Connection;
use crate::support::rig::Rig;
use crate::support::stream::Stream;
use crate::support::wait::{millis, now, secs};

/// One at a time, for a second at most; `step` sets the pace.
fn fenced(step: &str) -> String {
    format!(
        "
identity: {{ anonymous: allow }}
models:
  - name: m
    engine: fake
    max_sequences: 1
    max_stream: 1s
    stream: {{ keepalive: 500ms }}
    fake:
      step: {step}
      per_sequence: 0us
      context: 2000000
      kv_tokens: 2000000
      prefill_tokens_per_second: 1000000000
"
    )
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off_soon_after_the_deadline() {
    let rig = Rig::start(&fenced("0us")).await;
    let connection = Connection::open_narrow(rig.address()).await;
    let stuck = Stream::over(connection, &endless()).await;
    let begun = now();
    rig.until_idle(secs(2)).await;
    assert!(
        begun.elapsed() >= millis(900),
        "{:?}: it was not the fence",
        begun.elapsed()
    );
    rig.assert_unharmed().await;
    let row = rig.ledger_row(stuck.head.request_id()).await;
    assert_eq!(row["outcome"], "max_stream");
    let total = row["total_us"].as_u64().unwrap();
    assert!((1_000_000..2_000_000).contains(&total), "{total} us");
    assert!(!stuck.rest().await.whole);
}

#[tokio::test]
async fn a_client_that_reads_is_told_that_its_time_is_over() {
    let rig = Rig::start(&fenced("2ms")).await;
    let stream = Stream::begin(rig.address(), &endless()).await;
    let (begun, name) = (now(), stream.head.request_id().to_owned());
    let told = stream.rest().await;
    told.assert_failed("max_stream");
    assert!(
        (millis(900)..secs(2)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    assert!(told.text.len() > 50);
    rig.assert_unharmed().await;
    let row = rig.ledger_row(&name).await;
    assert_eq!(row["outcome"], "max_stream");
    assert!(
        row["output_tokens"].as_u64().unwrap() > 50,
        "what was made is charged"
    );
    assert!(row["finish_reason"].is_null());
    let scrape = rig.scrape().await;
    assert_eq!(
        (scrape.ended("max_stream"), scrape.reasons().len()),
        (1.0, 2),
        "it is counted once"
    );
}

#[tokio::test]
async fn a_whole_answer_that_takes_too_long_is_a_504() {
    let rig = Rig::start(&fenced("2ms")).await;
    let answer = rig.send(&say(json!({"ignore_eos": true}))).await;
    assert_eq!((answer.status(), answer.reason()), (504, "max_stream"));
    assert_eq!(answer.json()["error"]["code"], "max_stream");
    let row = rig.ledger_row(answer.head.request_id()).await;
    assert_eq!(row["outcome"], "max_stream");
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_fence_before_the_first_token_is_a_504_or_an_event_after_comments() {
    // A step takes longer than the fence, so there is no token to begin with.
    let config = fenced("1500ms");
    let rig = Rig::start(&config.replace("keepalive: 500ms", "keepalive: 900ms")).await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    told.assert_failed("max_stream");
    assert_eq!((told.text.as_str(), told.chunks.len()), ("", 0));
    assert!(told.comments > 0);
    rig.until_idle(secs(3)).await;
}

#[tokio::test]
async fn time_in_the_queue_does_not_count_as_time_of_the_answer() {
    let rig = Rig::start(&fenced("2ms")).await;
    let running = Stream::begin(rig.address(), &endless()).await;
    let mut waiting = Connection::open(rig.address()).await;
    // It waits for most of a second, and then needs most of another.
    let request = stream(json!({"ignore_eos": true, "max_tokens": 250}));
    waiting.send(&request.bytes()).await;
    running.rest().await.assert_failed("max_stream");
    let told = Stream::of(waiting).await.rest().await;
    told.assert_complete();
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_connection_that_had_a_fenced_answer_is_not_used_again() {
    let rig = Rig::start(&fenced("2ms")).await;
    let mut connection = Connection::open(rig.address()).await;
    connection.send(&endless().bytes()).await;
    let head = connection.head().await;
    assert_eq!(head.status, 200);
    let rest = connection.rest().await;
    let rest = String::from_utf8(rest).unwrap();
    assert_eq!(rest.matches("event: error").count(), 1);
    assert!(!rest.contains("HTTP/1.1"), "a second status line");
    assert!(!rest.contains("[DONE]"));
    assert!(!rest.ends_with("0\r\n\r\n"), "a terminator");
}
