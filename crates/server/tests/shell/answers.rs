//! The form of a good answer: headers, chunks, order, pace.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::chat::{TEXT, endless, hi, keyed, say, short, stream, with};
use crate::support::http::Request;
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::stream::Stream;
use crate::support::wait::{millis, now};

/// A model with an alias, and a tenant with a limit.
const LIMITED: &str = "
models:
  - name: m
    aliases: [fast]
    engine: fake
    fake: { step: 1ms, per_sequence: 0us }
tenants:
  - name: t
    keys: [{ env: T }]
    limits: { rpm: 60, burst: 5 }
";

#[tokio::test]
async fn a_stream_is_the_role_then_text_then_the_reason_then_done() {
    let rig = Rig::start(OPEN).await;
    let request = stream(json!({"ignore_eos": true, "max_tokens": 30}));
    let told = Stream::begin(rig.address(), &request).await.rest().await;
    told.assert_complete();
    let (first, rest) = told.chunks.split_first().unwrap();
    let role = json!({"role": "assistant", "content": ""});
    assert_eq!(first["choices"][0]["delta"], role);
    let (last, texts) = rest.split_last().unwrap();
    assert!(!texts.is_empty());
    for chunk in texts {
        assert!(
            chunk["choices"][0]["delta"]["content"].is_string(),
            "{chunk}"
        );
        assert_eq!(chunk["choices"][0]["delta"].get("role"), None);
    }
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    for chunk in &told.chunks[..told.chunks.len() - 1] {
        assert_eq!(chunk["choices"][0].get("finish_reason"), Some(&Value::Null));
    }
    for chunk in &told.chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], told.chunks[0]["id"]);
        assert_eq!(chunk["created"], told.chunks[0]["created"]);
        assert_eq!(chunk.get("usage"), None, "nobody asked for usage");
    }
}

#[tokio::test]
async fn usage_is_one_chunk_without_choices_where_it_is_asked_for() {
    let rig = Rig::start(OPEN).await;
    let asked = json!({
        "ignore_eos": true, "max_tokens": 7, "stream_options": {"include_usage": true},
    });
    let told = Stream::begin(rig.address(), &stream(asked))
        .await
        .rest()
        .await;
    told.assert_complete();
    let (last, before) = told.chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 7);
    let prompt = last["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(last["usage"]["total_tokens"], prompt + 7);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    for chunk in before {
        assert_eq!(chunk.get("usage"), Some(&Value::Null));
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
    }
    let whole = rig
        .send(&say(json!({"ignore_eos": true, "max_tokens": 7})))
        .await;
    // The same prompt again: its one whole block is there.
    let mut again = last["usage"].clone();
    again["prompt_tokens_details"]["cached_tokens"] = json!(16);
    assert_eq!(whole.json()["usage"], again);
}

#[tokio::test]
async fn a_stream_says_to_every_proxy_that_it_is_one() {
    let rig = Rig::start(OPEN).await;
    let stream = Stream::begin(rig.address(), &stream(json!({"max_tokens": 3}))).await;
    let head = stream.head.clone();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("cache-control"), Some("no-cache"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    assert_eq!(head.header("content-length"), None);
    stream.rest().await.assert_complete();
}

#[tokio::test]
async fn each_token_is_sent_when_it_is_made() {
    let slow = OPEN.replace("step: 1ms", "step: 25ms");
    let rig = Rig::start(&slow).await;
    let request = stream(json!({"ignore_eos": true, "max_tokens": 40, "seed": 3}));
    let stream = Stream::begin(rig.address(), &request).await;
    let begun = now();
    let counts = stream.events_by_write().await;
    // Forty steps, less the one that opened the stream: held back, it would all come at the end.
    assert!(begun.elapsed() > millis(25 * 36), "{:?}", begun.elapsed());
    let alone = counts.iter().filter(|count| **count == 1).count();
    // The first write has the role beside the text, the last one the reason and [DONE].
    assert!(alone * 4 >= (counts.len() - 2) * 3, "{counts:?}");
    assert!(counts.len() > 20, "{counts:?}");
}

#[tokio::test]
async fn the_first_token_does_not_wait_for_the_second() {
    let slow = OPEN.replace("step: 1ms", "step: 300ms");
    let rig = Rig::start(&slow).await;
    let mut stream = Stream::begin(rig.address(), &endless()).await;
    let begun = now();
    let told = stream.read_texts(1).await;
    assert!(!told.text.is_empty());
    assert!(
        begun.elapsed() < millis(250),
        "it came with the head: {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn an_answer_says_who_served_it_and_what_is_left() {
    let rig = Rig::start(LIMITED).await;
    let request = keyed(short(), &key("T"));
    let first = rig.send(&request).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.head.header("content-type"), Some("application/json"));
    assert_eq!(
        first.head.number("content-length"),
        u64::try_from(first.body.len()).unwrap()
    );
    assert_eq!(first.head.number("x-tollgate-replica"), 0);
    assert!(first.head.number("x-tollgate-queue-ms") < 1_000);
    assert_eq!(first.head.number("x-ratelimit-limit-requests"), 60);
    assert_eq!(first.head.number("x-ratelimit-remaining-requests"), 4);
    assert_eq!(first.head.header("x-ratelimit-reset-requests"), Some("1s"));
    let streamed = keyed(stream(json!({"max_tokens": 2})), &key("T"));
    let streamed = Stream::begin(rig.address(), &streamed).await;
    assert_eq!(streamed.head.number("x-ratelimit-remaining-requests"), 3);
    assert_eq!(streamed.head.number("x-tollgate-replica"), 0);
    assert!(streamed.head.header("x-tollgate-queue-ms").is_some());
}

#[tokio::test]
async fn every_answer_has_a_name_of_its_own() {
    let rig = Rig::start(OPEN).await;
    let mut names = BTreeSet::new();
    for _ in 0..5 {
        let requests = [
            short(),
            say(json!({"max_tokens": 0})),
            Request::get("/v1/models"),
            Request::get("/health"),
            Request::get("/nope"),
        ];
        for request in requests {
            let answer = rig.send(&request).await;
            let name = answer.head.request_id().to_owned();
            if answer.status() == 200 && request.bytes().starts_with(b"POST") {
                assert_eq!(answer.json()["id"], format!("chatcmpl-{name}"));
            }
            assert!(names.insert(name), "a name was given twice");
        }
    }
    assert_eq!(names.len(), 25);
}

#[tokio::test]
async fn a_model_is_called_in_every_chunk_what_the_caller_called_it() {
    let rig = Rig::start(LIMITED).await;
    for path in ["/v1/chat/completions", TEXT] {
        let body = with(
            hi(),
            json!({"model": "fast", "prompt": "hi", "max_tokens": 6}),
        );
        let whole = keyed(Request::post(path, body.to_string()), &key("T"));
        let whole = rig.send(&whole).await;
        assert_eq!(whole.json()["model"], "fast");
        let body = with(
            body,
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        );
        let streamed = keyed(Request::post(path, body.to_string()), &key("T"));
        let told = Stream::begin(rig.address(), &streamed).await.rest().await;
        told.assert_complete();
        for chunk in &told.chunks {
            assert_eq!(chunk["model"], "fast");
        }
    }
}

#[tokio::test]
async fn text_completions_have_their_own_shape() {
    let rig = Rig::start(OPEN).await;
    let body = json!({
        "model": "m", "prompt": "once", "max_tokens": 12, "ignore_eos": true, "seed": 4,
    });
    let whole = rig.send(&Request::post(TEXT, body.to_string())).await;
    let json = whole.json();
    assert_eq!(json["object"], "text_completion");
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-req-"));
    assert_eq!(json["usage"]["prompt_tokens"], 4);
    let body = with(
        body,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let streamed = Request::post(TEXT, body.to_string());
    let told = Stream::begin(rig.address(), &streamed).await.rest().await;
    told.assert_complete();
    assert_eq!(
        Some(told.text.as_str()),
        json["choices"][0]["text"].as_str()
    );
    let (usage, texts) = told.chunks.split_last().unwrap();
    assert_eq!(usage["usage"], json["usage"]);
    for chunk in texts {
        assert_eq!(chunk["object"], "text_completion");
        assert!(chunk["choices"][0]["text"].is_string());
    }
}

#[tokio::test]
async fn a_client_that_waits_sees_comments_and_then_the_same_answer() {
    let slow = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    stream: { keepalive: 100ms }
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 40 }
";
    let members = json!({"ignore_eos": true, "max_tokens": 20, "seed": 8});
    let rig = Rig::start(slow).await;
    let told = Stream::begin(rig.address(), &stream(members.clone()))
        .await
        .rest()
        .await;
    told.assert_complete();
    assert!(
        (2..=8).contains(&told.comments),
        "{} comments",
        told.comments
    );
    assert_eq!(told.chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let fast = Rig::start(FAST).await;
    let whole = fast.send(&say(members)).await;
    assert_eq!(
        whole.json()["choices"][0]["message"]["content"],
        told.text.as_str()
    );
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let rig = Rig::start(OPEN).await;
    let mut connection = crate::support::http::Connection::open(rig.address()).await;
    for _ in 0..3 {
        assert_eq!(connection.ask(&short()).await.status(), 200);
        assert_eq!(
            connection
                .ask(&say(json!({"max_tokens": -1})))
                .await
                .status(),
            400
        );
    }
    assert_eq!(rig.scrape().await.ended("completed"), 3.0);
}
