//! The list of models, and who may name which.

use serde_json::{Value, json};

use crate::support::chat::{hi_with, keyed, say, told};
use crate::support::http::{Answer, Request};
use crate::support::rig::{Rig, key};

const TWO: &str = "
models:
  - name: large
    aliases: [big, gpt-4o]
    engine: fake
    fake: { step: 0us, context: 4096 }
  - name: small
    engine: fake
    context: 512
    fake: { step: 0us, context: 2048 }
tenants:
  - name: all
    keys: [{ env: ALL }]
  - name: few
    keys: [{ env: FEW }]
    models: [small]
    limits: { rpm: 1, burst: 10 }
";

async fn get(rig: &Rig, path: &str, name: &str) -> Answer {
    rig.send(&keyed(Request::get(path), &key(name))).await
}

fn ids(answer: &Answer) -> Vec<String> {
    let list = answer.json()["data"].clone();
    let id = |card: &Value| card["id"].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(id).collect()
}

#[tokio::test]
async fn the_list_shows_each_name_and_the_context_that_counts() {
    let rig = Rig::start(TWO).await;
    let list = get(&rig, "/v1/models", "ALL").await;
    assert_eq!(ids(&list), ["large", "big", "gpt-4o", "small"]);
    assert_eq!(list.json()["data"][1]["context_length"], 4096);
    assert_eq!(list.json()["data"][3]["context_length"], 512);
    let one = get(&rig, "/v1/models/gpt-4o", "ALL").await;
    assert_eq!(
        (&one.json()["id"], &one.json()["context_length"]),
        (&json!("gpt-4o"), &json!(4096))
    );
    // The number is the one that requests are held to.
    let long =
        json!({"model": "small", "messages": [{"role": "user", "content": "x".repeat(600)}]});
    let refused = rig.send(&keyed(say(long), &key("ALL"))).await;
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    assert!(refused.text().contains("512"));
}

#[tokio::test]
async fn a_tenant_sees_and_uses_only_its_models() {
    let rig = Rig::start(TWO).await;
    assert_eq!(ids(&get(&rig, "/v1/models", "FEW").await), ["small"]);
    let good = rig
        .send(&keyed(say(json!({"model": "small"})), &key("FEW")))
        .await;
    told(&good);
    let left = good.head.number("x-ratelimit-remaining-requests");
    for model in ["large", "big"] {
        let hidden = rig
            .send(&keyed(say(json!({"model": model})), &key("FEW")))
            .await;
        assert_eq!(hidden.status(), 404);
        assert_eq!(
            hidden.head.number("x-ratelimit-remaining-requests"),
            left,
            "nothing is spent"
        );
        let hidden = hidden.text().replace(model, "NAME");
        let absent = rig
            .send(&keyed(say(json!({"model": "absent"})), &key("FEW")))
            .await;
        assert_eq!(hidden, absent.text().replace("absent", "NAME"));
        let hidden = get(&rig, &format!("/v1/models/{model}"), "FEW").await;
        let absent = get(&rig, "/v1/models/absent", "FEW").await;
        assert_eq!((hidden.status(), absent.status()), (404, 404));
        assert_eq!(
            hidden.text().replace(model, "NAME"),
            absent.text().replace("absent", "NAME")
        );
    }
}

#[tokio::test]
async fn no_model_name_does_harm() {
    let rig = Rig::start(TWO).await;
    let long = "n".repeat(100_000);
    let cases = [
        (json!(""), 400),
        (json!(long), 404),
        (json!("unknown"), 404),
        (json!("LARGE"), 404),
        (json!("large\u{0}"), 404),
        (json!(7), 400),
        (json!(null), 400),
    ];
    for (model, status) in cases {
        let request = crate::support::chat::chat(&hi_with(json!({"model": model})));
        let answer = rig.send(&keyed(request, &key("ALL"))).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(answer.json()["error"]["param"], "model");
        assert!(
            answer.body.len() < 1_000,
            "a name is not repeated at length"
        );
    }
    let absent = crate::support::chat::chat(&json!({"messages": []}));
    assert_eq!(rig.send(&keyed(absent, &key("ALL"))).await.status(), 400);
    assert!(rig.scrape().await.is_idle());
}
