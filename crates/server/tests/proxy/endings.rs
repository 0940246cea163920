//! Every way in which an engine can end an answer comes out as the right one.

use serde_json::json;

use crate::engine::{DONE, END, Engine, FIN, STREAM, chunk, delta, json, rig, whole};
use crate::support::chat::{say, stream};
use crate::support::http::Answer;
use crate::support::stream::{Stream, Told};
use crate::support::wait::{secs, soon};

/// What a client gets that asks an engine which answers with these bytes and closes.
async fn answer(bytes: impl Into<Vec<u8>>, streams: bool) -> (Answer, String) {
    let engine = Engine::saying(bytes).await;
    let rig = engine.rig("").await;
    let request = if streams {
        stream(json!({}))
    } else {
        say(json!({}))
    };
    let answer = soon("an answer", rig.send(&request)).await;
    rig.until_idle(secs(60)).await;
    let row = rig.ledger_first().await;
    (answer, row["outcome"].as_str().unwrap().to_owned())
}

/// What is left of a stream that has begun well.
async fn told(engine: &Engine) -> (Told, serde_json::Value) {
    let rig = engine.rig("").await;
    let told = Stream::begin(rig.address(), &stream(json!({})))
        .await
        .rest()
        .await;
    rig.until_idle(secs(60)).await;
    let row = rig.ledger_first().await;
    (told, row)
}

/// An engine that sends these events, and then closes its connection in the middle of the body.
async fn breaking_off(events: Vec<String>) -> Engine {
    Engine::start(move |_, mut wire| {
        let events = events.clone();
        async move {
            wire.send(STREAM).await;
            for event in &events {
                wire.send(chunk(event)).await;
            }
            None
        }
    })
    .await
}

#[tokio::test]
async fn a_full_queue_that_comes_as_a_good_stream_with_an_error_is_a_503() {
    let error = "data: {\"error\":{\"message\":\"queue full\",\"type\":\"x\",\"code\":503}}\n\n";
    let mut bytes = STREAM.as_bytes().to_vec();
    bytes.extend(chunk(error));
    bytes.extend(chunk(DONE));
    bytes.extend_from_slice(END.as_bytes());
    let (answer, outcome) = answer(bytes, true).await;
    assert_eq!((answer.status(), answer.reason()), (503, "replica_busy"));
    assert!(answer.head.number("retry-after") >= 1);
    assert_eq!(outcome, "replica_busy");
}

#[tokio::test]
async fn a_stream_with_nothing_in_it_is_a_502() {
    let stream =
        |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{body}");
    for body in [
        "",
        ": hb\n\n: hb\n\n: hb\n\n",
        DONE,
        "data: {bad\n\n",
        "data: {\"a\":",
    ] {
        let (answer, outcome) = answer(stream(body), true).await;
        assert_eq!(answer.status(), 502, "{body:?}: {}", answer.text());
        assert_eq!(answer.json()["error"]["type"], "server_error");
        assert!(outcome.starts_with("replica_"), "{outcome}");
    }
}

#[tokio::test]
async fn a_failure_behind_the_first_token_is_an_error_event_and_no_good_end() {
    let engine = breaking_off(vec![delta("a"), delta("b")]).await;
    let (told, row) = told(&engine).await;
    told.assert_failed("replica_broke_off");
    assert_eq!(told.text, "ab");
    assert_eq!(
        (&row["output_tokens"], &row["counted"]),
        (&2.into(), &"estimated".into())
    );
}

#[tokio::test]
async fn a_stream_that_ends_cleanly_in_the_middle_of_an_answer_has_failed() {
    let engine = Engine::streaming(vec![delta("a"), delta("b")]).await;
    told(&engine).await.0.assert_failed("replica_broke_off");
}

#[tokio::test]
async fn half_an_event_at_the_end_is_no_event() {
    let engine = breaking_off(vec![delta("a"), delta("b")[..30].to_owned()]).await;
    let (told, _) = told(&engine).await;
    told.assert_failed("replica_broke_off");
    assert_eq!(told.text, "a");
}

/// What a client gets of a stream whose second part is sent only when the first has arrived.
async fn told_in_two(first: &str, then: &[&str]) -> (Told, serde_json::Value) {
    let (go, gone) = tokio::sync::watch::channel(false);
    let first = first.to_owned();
    let then: Vec<String> = then.iter().map(|event| (*event).to_owned()).collect();
    let engine = Engine::start(move |_, mut wire| {
        let (first, then, mut gone) = (first.clone(), then.clone(), gone.clone());
        async move {
            wire.send(STREAM).await;
            wire.send(chunk(first)).await;
            gone.wait_for(|go| *go).await.unwrap();
            let then: Vec<&str> = then.iter().map(String::as_str).collect();
            wire.send_chunks(&then).await;
            wire.send(END).await;
            Some(wire)
        }
    })
    .await;
    let rig = engine.rig("").await;
    let mut stream = Stream::begin(rig.address(), &stream(json!({}))).await;
    assert_eq!(stream.read_texts(1).await.text, "a");
    go.send(true).unwrap();
    let told = stream.rest().await;
    rig.until_idle(secs(60)).await;
    (told, rig.ledger_first().await)
}

#[tokio::test]
async fn an_engine_that_dies_says_so_in_its_stream_and_its_terminator_is_not_believed() {
    let error = "data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\n";
    let (told, row) = told_in_two(&delta("a"), &[error, DONE]).await;
    told.assert_failed("replica_failed_request");
    assert_eq!(row["outcome"], "replica_failed_request");
}

#[tokio::test]
async fn an_event_that_is_no_json_ends_the_stream_with_an_error() {
    let (told, _) = told_in_two(&delta("a"), &["data: {bad\n\n", FIN, DONE]).await;
    told.assert_failed("replica_bad_answer");
}

#[tokio::test]
async fn an_answer_that_has_ended_needs_no_terminator() {
    let (told, row) = told(&Engine::streaming(vec![delta("a"), FIN.into()]).await).await;
    assert!(told.whole && told.error.is_none() && !told.done);
    assert_eq!(row["outcome"], "completed");
}

#[tokio::test]
async fn an_engines_refusal_of_a_stream_keeps_its_status_and_its_words() {
    let body = "{\"error\":{\"message\":\"bad\",\"type\":\"invalid_request_error\"}}";
    for status in [
        "400 Bad Request",
        "404 Not Found",
        "413 Too Large",
        "422 Unprocessable",
    ] {
        let (answer, outcome) = answer(json(status, body), true).await;
        assert_eq!(answer.status().to_string(), status[..3]);
        assert_eq!(answer.text(), body);
        assert_eq!(answer.head.header("content-type"), Some("application/json"));
        assert_eq!(outcome, "replica_refused");
    }
}

#[tokio::test]
async fn a_refusal_in_another_shape_is_put_into_one_that_clients_read() {
    for body in [
        "{\"object\":\"error\",\"message\":\"too long\",\"code\":400}",
        "{\"error\":{\"message\":\"too long\",\"code\":400}}",
        "too long",
        "{\"error\":\"too long\"}",
    ] {
        let (answer, _) = answer(json("400 Bad Request", body), false).await;
        let error = &answer.json()["error"];
        assert_eq!(error["message"], "too long", "{body}");
        assert!(
            error["type"].is_string() && error["code"].is_null(),
            "{body}: {error}"
        );
    }
}

#[tokio::test]
async fn a_refusal_does_not_tell_the_name_behind_an_alias() {
    let body = "{\"error\":{\"message\":\"model `qwen` has no room for that\",\"code\":null}}";
    let engine = Engine::saying(json("400 Bad Request", body)).await;
    let rig = engine.rig("").await;
    let answer = rig.send(&say(json!({"model": "fast"}))).await;
    assert_eq!(
        answer.json()["error"]["message"],
        "model `fast` has no room for that"
    );
}

#[tokio::test]
async fn an_engines_failure_is_a_502_and_its_lack_of_room_a_503() {
    let body = "{\"error\":{\"message\":\"x\"}}";
    for (status, expected, reason) in [
        ("500 Oops", 502, "replica_failed_request"),
        ("502 Bad Gateway", 502, "replica_failed_request"),
        ("504 Timeout", 502, "replica_failed_request"),
        ("503 Unavailable", 503, "replica_busy"),
        ("401 Unauthorized", 502, "replica_bad_answer"),
        ("302 Found", 502, "replica_bad_answer"),
    ] {
        for streams in [false, true] {
            let (answer, outcome) = answer(json(status, body), streams).await;
            assert_eq!(
                (answer.status(), answer.reason()),
                (expected, reason),
                "{status}"
            );
            assert_eq!(outcome, reason);
        }
    }
}

#[tokio::test]
async fn when_to_come_back_is_passed_on_and_an_engines_own_limits_are_not() {
    let limited = |status: &str| {
        format!(
            "HTTP/1.1 {status}\r\nretry-after: 17\r\nx-ratelimit-remaining-requests: 0\r\n\
             content-length: 0\r\n\r\n"
        )
    };
    for (status, expected) in [("429 Slow", 429), ("503 Busy", 503)] {
        let (answer, _) = answer(limited(status), false).await;
        assert_eq!(answer.status(), expected);
        assert_eq!(answer.head.number("retry-after"), 17);
        assert_eq!(answer.head.header("x-ratelimit-remaining-requests"), None);
    }
}

#[tokio::test]
async fn an_error_under_a_good_status_is_an_error() {
    let body = "{\"error\":{\"message\":\"overloaded\"}}";
    for streams in [false, true] {
        let (answer, _) = answer(json("200 OK", body), streams).await;
        assert_eq!(answer.status(), 502, "{}", answer.text());
    }
    let (answer, _) = answer(
        json("200 OK", "{\"error\":{\"message\":\"x\",\"code\":400}}"),
        false,
    )
    .await;
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn what_is_no_answer_is_a_502() {
    for bytes in [
        "SSH-2.0-x\r\n\r\n".to_owned(),
        json("200 OK", "not json"),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            .into(),
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"a\":"
            .into(),
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}".into(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".into(),
    ] {
        let (answer, outcome) = answer(bytes.clone(), false).await;
        assert_eq!(answer.status(), 502, "{bytes}");
        assert!(outcome.starts_with("replica_"), "{outcome}");
    }
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_a_502_and_is_found_again() {
    let engine = Engine::saying(whole("hi", 1, 1)).await;
    let address = engine.address;
    let rig = rig(&[address], "vllm", "upstream: { model: qwen }").await;
    drop(engine);
    let answer = rig.send(&stream(json!({}))).await;
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, "replica_unreachable")
    );
    let answer = rig.send(&say(json!({}))).await;
    assert_eq!(
        answer.status(),
        503,
        "while nobody is there: {}",
        answer.text()
    );
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn hundreds_of_bad_answers_hold_nothing_and_harm_no_other() {
    let engine = Engine::start(|seen, mut wire| async move {
        match seen.json()["seed"].as_u64().unwrap() % 4 {
            0 => {
                wire.send(json("200 OK", "{\"error\":{\"message\":\"x\"}}"))
                    .await
            }
            1 => wire.send(json("500 Oops", &"x".repeat(100_000))).await,
            2 => wire.send_stream(&["data: {bad\n\n"]).await,
            _ => wire.send_stream(&[&delta("a"), FIN, DONE]).await,
        }
        Some(wire)
    })
    .await;
    let rig = engine.rig("").await;
    let address = rig.address();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200_u64 {
        tasks.spawn(async move {
            let answer = stream(json!({"seed": n})).send(address).await;
            (n % 4, answer.status())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        let (kind, status) = ended.unwrap();
        assert_eq!(status, if kind == 3 { 200 } else { 502 }, "{kind}");
    }
    rig.until_idle(secs(60)).await;
}

#[tokio::test]
async fn tokens_that_come_in_one_piece_with_an_error_are_the_clients_and_are_paid_for() {
    for ending in [
        "data: {\"error\":{\"message\":\"no memory\",\"code\":500}}\n\n".to_owned(),
        "data: {bad\n\n".to_owned(),
        String::new(),
    ] {
        let mut bytes = STREAM.as_bytes().to_vec();
        for event in [&delta("a"), &delta("b"), &ending] {
            if !event.is_empty() {
                bytes.extend(chunk(event));
            }
        }
        // Without an error of its own, the body itself breaks.
        bytes.extend_from_slice(if ending.is_empty() {
            b"zz\r\n"
        } else {
            b"0\r\n\r\n"
        });
        let engines = [
            Engine::saying(bytes.clone()).await,
            Engine::saying(bytes).await,
        ];
        let rig = rig(
            &[engines[0].address, engines[1].address],
            "vllm",
            "upstream: { model: qwen }",
        )
        .await;
        let told = Stream::begin(rig.address(), &stream(json!({}))).await;
        let told = told.rest().await;
        assert_eq!(told.text, "ab", "{ending}");
        assert!(
            told.error.is_some() && !told.done && !told.whole,
            "{told:?}"
        );
        rig.until_idle(secs(60)).await;
        let row = rig.ledger_first().await;
        assert_eq!(row["output_tokens"], 2, "{row}");
        let asked = engines[0].seen().len() + engines[1].seen().len();
        assert_eq!(asked, 1, "what had begun is not made again");
    }
}

#[tokio::test]
async fn an_error_behind_a_chunk_without_a_token_is_tried_elsewhere() {
    let role = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\
        \"qwen\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\
        \"finish_reason\":null}]}\n\n";
    let mut bytes = STREAM.as_bytes().to_vec();
    bytes.extend(chunk(role));
    bytes.extend(chunk(
        "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n",
    ));
    let bad = Engine::saying(bytes).await;
    let good = Engine::streaming(vec![delta("a"), FIN.to_owned(), DONE.to_owned()]).await;
    let rig = rig(
        &[bad.address, good.address],
        "vllm",
        "upstream: { model: qwen }",
    )
    .await;
    for _ in 0..6 {
        let told = Stream::begin(rig.address(), &stream(json!({}))).await;
        told.rest().await.assert_complete();
    }
    assert!(!bad.seen().is_empty(), "chance left it out");
}
