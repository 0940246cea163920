//! What a request may ask for beyond one plain answer, and what its tenant finds of earlier ones.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::chat::{TEXT, keyed, say, stream};
use crate::support::http::Request;
use crate::support::rig::{OPEN, Rig, key};
use crate::support::stream::Stream;

#[tokio::test]
async fn choices_are_counted_and_streamed_as_they_are_said_whole() {
    let rig = Rig::start(OPEN).await;
    let members = json!({
        "n": 3, "seed": 7, "max_tokens": 24, "ignore_eos": true,
        "stream_options": {"include_usage": true},
    });
    let told = Stream::begin(rig.address(), &stream(members)).await;
    let told = told.rest().await;
    told.assert_complete();
    let (mut texts, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    for chunk in &told.chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap();
            let text = choice["delta"]["content"].as_str().unwrap_or_default();
            assert!(!reasons.contains_key(&index), "nothing after the reason");
            *texts.entry(index).or_insert_with(String::new) += text;
            if let Some(reason) = choice["finish_reason"].as_str() {
                reasons.insert(index, reason.to_owned());
            }
        }
    }
    assert_eq!(reasons.len(), 3);
    let members = json!({"n": 3, "seed": 7, "max_tokens": 24, "ignore_eos": true});
    let whole = rig.send(&say(members)).await.json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, choice) in (0..).zip(choices) {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], texts[&index]);
        assert_eq!(choice["finish_reason"], reasons[&index]);
    }
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert_eq!(whole["usage"]["completion_tokens"], 3 * 24);
    let usage = &told.chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 3 * 24);
    assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn a_list_of_prompts_is_answered_in_its_order_and_echoed() {
    let rig = Rig::start(OPEN).await;
    let ask = |members: Value| {
        let mut body = json!({
            "model": "m", "max_tokens": 9, "ignore_eos": true, "temperature": 0, "echo": true,
        });
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        Request::post(TEXT, body.to_string())
    };
    let both = rig
        .send(&ask(json!({"prompt": ["one", "two"]})))
        .await
        .json();
    for (index, prompt) in ["one", "two"].into_iter().enumerate() {
        let alone = rig.send(&ask(json!({"prompt": prompt}))).await.json();
        let text = alone["choices"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(prompt) && text.len() > prompt.len());
        assert_eq!(both["choices"][index]["text"], text);
    }
    assert_eq!(both["usage"]["prompt_tokens"], 6);
    assert_eq!(both["usage"]["completion_tokens"], 18);
}

#[tokio::test]
async fn log_probabilities_come_with_the_tokens_they_are_of() {
    let rig = Rig::start(OPEN).await;
    let asked = json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 10, "ignore_eos": true});
    let whole = rig.send(&say(asked.clone())).await.json();
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(content.len(), 10);
    let told = Stream::begin(rig.address(), &stream(asked))
        .await
        .rest()
        .await;
    let mut streamed = Vec::new();
    for chunk in &told.chunks {
        let logprobs = &chunk["choices"][0]["logprobs"];
        streamed.extend(
            logprobs["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    assert_eq!(streamed.len(), content.len());
    assert_eq!(content[0]["top_logprobs"][0]["bytes"], content[0]["bytes"]);
}

#[tokio::test]
async fn a_tenant_is_told_of_its_own_cached_tokens_only() {
    let config = "
models: [{ name: m, engine: fake, prefix_cache: on, fake: { step: 1ms, per_sequence: 0us } }]
tenants:
  - { name: a, keys: [{ env: A }] }
  - { name: b, keys: [{ env: B }] }
";
    let rig = Rig::start(config).await;
    let long = json!({
        "messages": [{"role": "user", "content": "toll ".repeat(20)}], "max_tokens": 2,
    });
    let mut cached = Vec::new();
    for name in ["A", "B", "A"] {
        let answer = rig.send(&keyed(say(long.clone()), &key(name))).await;
        let details = &answer.json()["usage"]["prompt_tokens_details"];
        cached.push(details["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!(&cached[..2], [0, 0]);
    assert!(cached[2] >= 96, "{cached:?}");
}

#[tokio::test]
async fn what_the_operator_published_is_computed_once_for_all_tenants() {
    let system = "You keep the toll gate on a long road, and every cart must stop and pay.";
    let config = format!(
        "
models:
  - name: m
    engine: fake
    prefix_cache: on
    kv: contiguous
    published_prefixes: [{{ text: \"{system}\" }}]
    fake: {{ step: 1ms, per_sequence: 0us }}
tenants:
  - {{ name: a, keys: [{{ env: A }}] }}
  - {{ name: b, keys: [{{ env: B }}] }}
"
    );
    let rig = Rig::start(&config).await;
    let mut cached = Vec::new();
    for (name, own) in [("A", "one"), ("B", "another"), ("B", "a third")] {
        let messages = json!([
            {"role": "system", "content": system},
            {"role": "user", "content": own.repeat(20)},
        ]);
        let asked = say(json!({"messages": messages, "max_tokens": 2}));
        let answer = rig.send(&keyed(asked, &key(name))).await;
        let details = &answer.json()["usage"]["prompt_tokens_details"];
        cached.push(details["cached_tokens"].as_u64().unwrap());
    }
    // Whole blocks of it: what follows it is each tenant's own.
    assert_eq!(cached[0], 0);
    assert!(cached[1] >= 64 && cached[1] < 96, "{cached:?}");
}

#[tokio::test]
async fn embeddings_are_refused_by_name() {
    let rig = Rig::start(OPEN).await;
    let body = json!({"model": "m", "input": "x"});
    let answer = rig
        .send(&Request::post("/v1/embeddings", body.to_string()))
        .await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json()["error"]["param"], "model");
    assert!(answer.text().contains("does not pool"));
}
