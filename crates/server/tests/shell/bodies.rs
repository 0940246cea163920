//! Bodies of every kind, good and bad, and that none of them harms the server.

use serde_json::{Value, json};

use crate::support::chat::{CHAT, TEXT, hi, say, with};
use crate::support::http::{Answer, Request};
use crate::support::rig::{FAST, Rig};

fn assert_bad(answer: &Answer, param: Option<&str>) {
    assert_eq!(answer.status(), 400, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["param"].as_str(), param, "{error}");
    assert!(!error["message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_not_json_is_refused_and_does_no_harm() {
    let rig = Rig::start(FAST).await;
    let good = hi().to_string();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let nested = good.replace("\"hi\"", &deep);
    let bodies: Vec<Vec<u8>> = vec![
        b"{:".into(),
        b"".into(),
        b" \r\n".into(),
        b"null".into(),
        b"[]".into(),
        b"\"x\"".into(),
        b"7".into(),
        deep.into(),
        nested.into(),
        good.replace("hi", "\\ud800").into(),
        good.replace("hi", "\u{1}").into(),
        [b"\xff", good.as_bytes()].concat(),
        good.replace("hi", "?")
            .into_bytes()
            .iter()
            .map(|b| if *b == b'?' { 0xff } else { *b })
            .collect(),
        format!("\u{feff}{good}").into(),
        good.replace("\"m\"", "NaN").into(),
        format!("{good}{good}").into(),
        good[..good.len() - 1].into(),
        good.replace('}', ",}").into(),
    ];
    for path in [CHAT, TEXT] {
        for body in &bodies {
            let answer = rig.send(&Request::post(path, body.clone())).await;
            assert_bad(&answer, answer.json()["error"]["param"].as_str());
            assert_eq!(answer.reason(), "bad_request");
        }
    }
    rig.assert_unharmed().await;
    assert_eq!(rig.scrape().await.ended("bad_request"), 36.0);
}

#[tokio::test]
async fn a_key_given_twice_is_refused_and_not_chosen_from() {
    let rig = Rig::start(FAST).await;
    let twice = hi()
        .to_string()
        .replace("\"model\":", "\"model\":\"other\",\"model\":");
    let answer = rig.send(&Request::post(CHAT, twice)).await;
    assert_bad(&answer, Some("model"));
}

#[tokio::test]
async fn a_bad_parameter_is_named() {
    let rig = Rig::start(FAST).await;
    let cases = [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
        (json!({"stop": [1]}), "stop.0"),
        (json!({"seed": 0.5}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"logprobs": 2}), "logprobs"),
        (json!({"logit_bias": {"257": 1}}), "logit_bias"),
        (json!({"stop_token_ids": [300]}), "stop_token_ids"),
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"tools": [{"type": "function"}]}), "tools.0.function"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"stream": "yes"}), "stream"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": null}), "messages"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages.0.content",
        ),
        (
            json!({"messages": [{"role": "user2", "content": "x"}]}),
            "messages.0.role",
        ),
    ];
    for (members, param) in cases {
        assert_bad(&rig.send(&say(members)).await, Some(param));
    }
    assert!(rig.scrape().await.is_idle());
}

#[tokio::test]
async fn a_conversation_that_the_template_refuses_is_the_callers_mistake() {
    let rig = Rig::start(FAST).await;
    let message = |role: &str| json!({"role": role, "content": "x"});
    let conversations = [
        json!([message("user"), message("user")]),
        json!([message("assistant")]),
        json!([message("system")]),
        json!([message("user"), {"role": "tool", "content": "x", "tool_call_id": "c"}]),
        json!([]),
    ];
    for messages in conversations {
        let answer = rig.send(&say(json!({"messages": messages}))).await;
        assert_bad(&answer, Some("messages"));
    }
    // A mistake of the caller's says nothing about the replica.
    assert_eq!(rig.get("/ready").await.status(), 200);
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn what_changes_nothing_is_taken_and_null_is_absence() {
    let rig = Rig::start(FAST).await;
    let extra = json!({
        "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "x_unknown": 1,
        "parallel_tool_calls": true, "user": "someone", "logprobs": false, "n": 1, "tools": null,
        "seed": 12_345_678_901_234_567_890_u64,
    });
    assert_eq!(rig.send(&say(extra)).await.status(), 200);
    let nulls = [
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "stream",
        "stream_options",
        "n",
        "user",
        "logprobs",
        "presence_penalty",
        "frequency_penalty",
    ];
    for name in nulls {
        let answer = rig.send(&say(json!({name: null}))).await;
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
    }
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    let parts = json!({"messages": [{"role": "user", "content": parts}]});
    assert_eq!(rig.send(&say(parts)).await.status(), 200);
}

#[tokio::test]
async fn a_body_may_come_in_any_pieces() {
    let rig = Rig::start(FAST).await;
    let members = json!({"seed": 2, "max_tokens": 40});
    let whole = rig.send(&say(members.clone())).await.json()["choices"].clone();
    for size in [1, 7, 4096] {
        let answer = rig.send(&say(members.clone()).chunked(size)).await;
        assert_eq!(answer.json()["choices"], whole);
    }
}

#[tokio::test]
async fn the_configured_bound_on_bodies_is_the_one_that_counts() {
    let wide = FAST
        .replace("fake:", "context: 16384\n    fake:")
        .replace("step:", "context: 16384, step:");
    let rig = Rig::start(&format!("server: {{ max_body: 8MiB }}\n{wide}")).await;
    // Past two frameworks' own defaults of 1 and 2 MiB, and far past the context: so it was read.
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(5 << 20)}]});
    let answer = rig.send(&say(long)).await;
    assert_eq!(
        answer.reason(),
        "context_length_exceeded",
        "{}",
        answer.text()
    );
    // Large enough to be parsed on a thread of its own, small enough to be answered.
    let fits =
        json!({"messages": [{"role": "user", "content": "x".repeat(16_000)}], "max_tokens": 3});
    let padded = with(fits, json!({"metadata": "y".repeat(100_000)}));
    assert_eq!(rig.send(&say(padded)).await.status(), 200);
}

#[tokio::test]
async fn token_prompts_are_held_to_the_vocabulary() {
    let rig = Rig::start(FAST).await;
    let ask = |prompt: Value| {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        Request::post(TEXT, body.to_string())
    };
    assert_eq!(rig.send(&ask(json!([104, 105]))).await.status(), 200);
    for prompt in [
        json!([257]),
        json!([4_294_967_295_u32]),
        json!([]),
        json!(""),
        json!([[1], [257]]),
    ] {
        assert_bad(&rig.send(&ask(prompt)).await, Some("prompt"));
    }
    assert_eq!(rig.send(&ask(json!([-1]))).await.status(), 400);
    rig.assert_unharmed().await;
}
