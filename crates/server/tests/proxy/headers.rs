//! Who a client is stays here; what an engine is stays there.

use serde_json::json;

use crate::engine::{Engine, json, rig, whole};
use crate::support::chat::say;
use crate::support::http::{Connection, Request};

async fn engine() -> Engine {
    Engine::start(|_, mut wire| async move {
        wire.send(whole("hi", 1, 1)).await;
        Some(wire)
    })
    .await
}

#[tokio::test]
async fn keys_tenants_and_connections_are_not_passed_on() {
    let engine = engine().await;
    let keys = "upstream: { model: qwen, key: \"${ENGINE}\" }";
    let rig = rig(&[engine.address], "openai", keys).await;
    let request = say(json!({}))
        .header("authorization", "Bearer sk-client")
        .header("x-api-key", "sk-client")
        .header("cookie", "sk-client")
        .header("x-tenant-id", "other")
        .header("accept-encoding", "gzip")
        .header("te", "trailers")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("traceparent", "00-1-2-3")
        .header("x-custom", "kept");
    let answer = rig.send(&request).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let seen = engine.only();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-engine"));
    for gone in [
        "x-api-key",
        "cookie",
        "x-tenant-id",
        "accept-encoding",
        "te",
        "connection",
        "x-hop",
    ] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    assert!(!seen.head.contains("sk-client"));
    assert_eq!(seen.header("traceparent"), Some("00-1-2-3"));
    assert_eq!(seen.header("x-custom"), Some("kept"));
    assert_eq!(
        seen.header("host"),
        Some(engine.address.to_string().as_str())
    );
    assert_eq!(seen.header("x-request-id"), Some(answer.head.request_id()));
}

#[tokio::test]
async fn an_answer_says_who_made_it_and_nothing_of_the_engines_own() {
    let body = "{\"choices\":[]}";
    let engine = Engine::saying(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\nserver: uvicorn\r\n\
         set-cookie: a=b\r\nx-request-id: theirs\r\nkeep-alive: timeout=5\r\nopenai-model: x\r\n\
         x-ratelimit-limit-tokens: 7\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    let rig = engine.rig("").await;
    let answer = rig.send(&say(json!({}))).await;
    let header = |name| answer.head.header(name);
    assert_eq!(
        header("content-type"),
        Some("application/json; charset=utf-8")
    );
    assert_eq!(header("openai-model"), Some("x"));
    for gone in [
        "server",
        "set-cookie",
        "keep-alive",
        "x-ratelimit-limit-tokens",
    ] {
        assert_eq!(header(gone), None, "{gone}");
    }
    assert!(answer.head.request_id().starts_with("req-"));
    assert_eq!(header("x-tollgate-replica"), Some("0"));
    assert!(header("x-tollgate-queue-ms").is_some());
}

#[tokio::test]
async fn a_body_with_two_lengths_smuggles_nothing_to_the_engine() {
    let engine = engine().await;
    let rig = engine.rig("").await;
    let inner = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-tenant-id: other\r\n\
        content-length: 0\r\n\r\n";
    let heads = [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "transfer-encoding: chunked, identity\r\n",
    ];
    for head in heads {
        let mut client = Connection::open(rig.address()).await;
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: \
             application/json\r\n{head}\r\n0\r\n\r\n{inner}"
        );
        client.send(request.as_bytes()).await;
        while let Some(answer) = client.try_answer().await {
            assert!(answer.status() >= 400, "{head}: {}", answer.text());
        }
    }
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn an_error_body_that_is_passed_on_is_as_long_as_it_says() {
    let body = "{\"error\":{\"message\":\"no \\u00e9\",\"type\":\"t\",\"code\":null}}";
    let engine = Engine::saying(json("422 No", body)).await;
    let rig = engine.rig("").await;
    let request = Request::post("/v1/completions", r#"{"model":"m","prompt":"x"}"#);
    let answer = rig.send(&request).await;
    assert_eq!(
        answer.head.number("content-length"),
        u64::try_from(body.len()).unwrap()
    );
    assert_eq!(answer.text(), body);
}
