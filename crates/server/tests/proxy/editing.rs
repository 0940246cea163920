//! An engine gets the client's own bytes, but for what must be another.

use serde_json::{Value, json};

use crate::engine::{DONE, Engine, FIN, config, delta, whole};
use crate::support::chat::{hi, say, stream};
use crate::support::http::Request;
use crate::support::rig::{Rig, key};
use crate::support::stream::Stream;
use crate::support::wait::secs;

async fn engine() -> Engine {
    Engine::start(|_, mut wire| async move {
        wire.send(whole("hi", 1, 1)).await;
        Some(wire)
    })
    .await
}

fn chat(body: &str) -> Request {
    Request::post("/v1/chat/completions", body)
}

/// Without a salt, so that nothing but what a test is about is edited.
const PLAIN: &str = "upstream: { model: qwen, cache_salt: off }";

#[tokio::test]
async fn an_alias_becomes_the_name_there_and_no_other_byte_changes() {
    let engine = engine().await;
    let rig = engine.rig(PLAIN).await;
    let body = "{ \"model\" : \"fast\",\n \"messages\":[{\"role\":\"user\",\
        \"content\":\"h\\u0069\"}],\
        \"chat_template_kwargs\":{\"enable_thinking\":false},\"top_k\":20,\"min_p\":0.0500,\
        \"seed\":12345678901234567890,\"store\":true,\"x_unknown\":[1,  2] }";
    let answer = rig.send(&chat(body)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(engine.only().text(), body.replace("fast", "qwen"));
}

#[tokio::test]
async fn each_endpoint_names_the_model_there() {
    let engine = engine().await;
    let rig = engine.rig(PLAIN).await;
    for (path, body) in [
        ("/v1/completions", r#"{"model":"fast","prompt":"a"}"#),
        ("/v1/completions", r#"{"model":"m","prompt":["a","b"]}"#),
        ("/v1/embeddings", r#"{"model":"fast","input":"a"}"#),
    ] {
        rig.send(&Request::post(path, body)).await;
        let seen = engine.seen().pop().unwrap();
        assert!(seen.head.starts_with(&format!("POST {path} ")));
        assert_eq!(seen.json()["model"], "qwen");
    }
}

#[tokio::test]
async fn an_answer_says_what_the_engine_calls_its_model_in_one_piece_as_in_a_stream() {
    let engine = Engine::start(|seen, mut wire| async move {
        if seen.json()["stream"] == true {
            wire.send_stream(&[&delta("a"), FIN, DONE]).await;
        } else {
            wire.send(whole("a", 1, 1)).await;
        }
        Some(wire)
    })
    .await;
    let rig = engine.rig(PLAIN).await;
    for name in ["m", "fast"] {
        let piece = rig.send(&say(json!({"model": name}))).await.json();
        assert_eq!(piece["model"], "qwen", "{piece}");
        let asked = stream(json!({"model": name}));
        let told = Stream::begin(rig.address(), &asked).await.rest().await;
        assert!(!told.chunks.is_empty());
        for chunk in &told.chunks {
            assert_eq!(chunk["model"], "qwen", "{chunk}");
        }
    }
}

#[tokio::test]
async fn a_stream_asks_for_its_usage_whether_or_not_the_client_does() {
    let engine = engine().await;
    let rig = engine.rig(PLAIN).await;
    for options in [
        json!({}),
        json!({"stream_options": {"include_usage": false}}),
    ] {
        rig.send(&stream(options)).await;
        let seen = engine.seen().pop().unwrap();
        assert_eq!(
            seen.json()["stream_options"],
            json!({"include_usage": true})
        );
    }
}

#[tokio::test]
async fn what_makes_no_limit_is_refused_by_name_and_never_reaches_the_engine() {
    let engine = engine().await;
    let rig = engine.rig("").await;
    for (members, param) in [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"n": 0}), "n"),
    ] {
        let answer = rig.send(&say(members)).await;
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.json()["error"]["param"], param);
    }
    assert!(engine.seen().is_empty());
    let answer = rig.send(&say(json!({"max_tokens": null}))).await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn what_is_no_json_is_refused_and_the_process_lives() {
    let engine = engine().await;
    let rig = engine.rig("").await;
    let deep = format!(
        "{{\"model\":\"m\",\"messages\":{}{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    let bodies: Vec<Vec<u8>> = [
        "{:",
        "",
        "null",
        "[]",
        "\"x\"",
        &deep,
        "\u{feff}{}",
        "{\"model\":NaN}",
        "{\"model\":\"m\",\"messages\":[\"\\ud800\"]}",
        "{\"model\":\"m\",\"model\":\"fast\",\"messages\":[]}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([b"{\"model\":\"\xff\"}".to_vec()])
    .collect();
    for body in bodies {
        let answer = rig
            .send(&Request::post("/v1/chat/completions", body.clone()))
            .await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(answer.status(), 400, "{shown}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert!(engine.seen().is_empty());
    assert_eq!(rig.send(&say(json!({}))).await.status(), 200);
}

#[tokio::test]
async fn a_model_that_is_not_there_is_a_404_whatever_its_name() {
    let engine = engine().await;
    let rig = engine.rig("").await;
    let long = "x".repeat(100_000);
    for (model, status) in [
        (json!("nope"), 404),
        (json!(long), 404),
        (json!(""), 400),
        (json!(7), 400),
    ] {
        let answer = rig.send(&say(json!({"model": model}))).await;
        assert_eq!(answer.status(), status);
        assert!(answer.body.len() < 1_000);
    }
    let nameless = chat(r#"{"messages":[]}"#);
    assert_eq!(rig.send(&nameless).await.status(), 400);
    rig.until_idle(secs(60)).await;
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn a_prompt_of_a_megabyte_arrives_whole() {
    let engine = engine().await;
    let rig = engine.rig(PLAIN).await;
    let body = format!(
        r#"{{"model":"fast","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(250_000)
    );
    let answer = rig.send(&chat(&body)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(engine.only().text() == body.replace("fast", "qwen"));
}

/// A gateway with two tenants that are known by their keys.
async fn two_tenants(engine: &Engine, keys: &str, limits: &str) -> Rig {
    let models = config(&[engine.address], "vllm", keys);
    Rig::start(&format!(
        "{models}tenants:\n  - {{ name: a, keys: [{{ env: A }}], {limits} }}\n  - {{ name: b, \
         keys: [{{ env: B }}], {limits} }}\n"
    ))
    .await
}

fn as_tenant(request: Request, name: &str) -> Request {
    request.header("authorization", format!("Bearer {}", key(name)))
}

#[tokio::test]
async fn each_tenant_has_prefixes_of_its_own_whatever_salt_it_sends() {
    let engine = engine().await;
    let rig = two_tenants(&engine, "", "class: standard").await;
    let salt = async |name, members: Value| {
        rig.send(&as_tenant(say(members), name)).await;
        let seen = engine.seen().pop().unwrap().json();
        seen["cache_salt"].as_str().unwrap().to_owned()
    };
    let a = salt("A", json!({})).await;
    assert_eq!(a.len(), 64);
    assert_eq!(salt("A", json!({"cache_salt": "of b"})).await, a);
    let b = salt("B", json!({})).await;
    assert_ne!(a, b);
    assert_eq!(salt("B", json!({"cache_salt": a})).await, b);
}

#[tokio::test]
async fn the_order_of_fairness_is_told_where_the_engine_has_one() {
    let engine = Engine::start(|_, mut wire| async move {
        wire.send(whole("hi", 1000, 500)).await;
        Some(wire)
    })
    .await;
    let rig = two_tenants(
        &engine,
        "upstream: { model: qwen, priority: on }",
        "class: standard",
    )
    .await;
    let priority = async |name| {
        rig.send(&as_tenant(say(json!({"priority": -9})), name))
            .await;
        rig.until_idle(secs(60)).await;
        engine.seen().pop().unwrap().json()["priority"]
            .as_i64()
            .unwrap()
    };
    let (first, second) = (priority("A").await, priority("A").await);
    assert!(
        second > first,
        "who has had more comes later: {first}, {second}"
    );
    assert!(priority("B").await < second);
}

#[tokio::test]
async fn an_answer_is_no_longer_than_its_tenant_may_have() {
    let engine = engine().await;
    let rig = two_tenants(&engine, PLAIN, "limits: { max_output: 50 }").await;
    let most = async |members: Value| {
        rig.send(&as_tenant(say(members), "A")).await;
        engine.seen().pop().unwrap().json()["max_tokens"].clone()
    };
    assert_eq!(most(json!({})).await, 50);
    assert_eq!(most(json!({"max_tokens": 60})).await, 50);
    assert_eq!(most(json!({"max_tokens": 40})).await, 40);
    assert_eq!(hi()["max_tokens"], Value::Null);
}

#[tokio::test]
async fn models_elsewhere_are_listed_beside_those_here() {
    let engine = engine().await;
    let yaml = config(
        &[engine.address],
        "openai",
        "context: 4096\nupstream: { model: qwen }",
    );
    let rig = Rig::start(&format!("{yaml}  - {{ name: local, engine: fake }}\n")).await;
    let list = rig.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| &card["id"])
        .collect();
    assert_eq!(ids, ["m", "fast", "local"]);
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    let answer = rig
        .send(&say(json!({"model": "local", "max_tokens": 2})))
        .await;
    assert_eq!(answer.status(), 200);
    assert!(engine.seen().is_empty());
}
