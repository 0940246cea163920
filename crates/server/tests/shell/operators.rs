//! What an operator changes: tenants and keys of the store, over the operator's listener.

use serde_json::{Value, json};

use crate::support::chat::{CHAT, TEXT, hi, keyed, short};
use crate::support::http::{Answer, Request};
use crate::support::rig::{FAST, Rig, key};
use crate::support::wait::{eventually, secs};

const CONFIG: &str = "
admin: { listen: 127.0.0.1:0, keys: [{ name: ops, env: OPS }] }
store: {}
";

async fn rig() -> Rig {
    let config = FAST.replace("anonymous: allow", "anonymous: deny");
    Rig::start(&format!(
        "{CONFIG}{config}tenants: [{{ name: filed, keys: [{{ env: F }}] }}]\n"
    ))
    .await
}

/// What the operator asks for.
async fn ask(rig: &Rig, request: Request) -> Answer {
    keyed(request, &key("OPS")).send(rig.admin()).await
}

async fn post(rig: &Rig, path: &str, body: &Value) -> Answer {
    ask(rig, Request::post(path, body.to_string())).await
}

fn delete(path: &str) -> Request {
    Request::get(path).method("DELETE")
}

/// A tenant `t`, and a key of it: its id and what callers send.
async fn new_key(rig: &Rig, members: Value) -> (String, String) {
    post(rig, "/admin/v1/tenants", &json!({"name": "t"})).await;
    let body = crate::support::chat::with(json!({"tenant": "t"}), members);
    let made = post(rig, "/admin/v1/keys", &body).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    let text = |name: &str| made.json()[name].as_str().unwrap().to_owned();
    let (id, key) = (text("id"), text("key"));
    let known = async || status(rig, &key).await != 401;
    eventually(secs(60), "the key is known", known).await;
    (id, key)
}

async fn status(rig: &Rig, key: &str) -> u16 {
    rig.send(&keyed(Request::get("/v1/models"), key))
        .await
        .status()
}

#[tokio::test]
async fn a_key_that_was_made_is_good_until_it_is_revoked_and_then_like_any_other_wrong_one() {
    let rig = rig().await;
    let (id, key) = new_key(&rig, json!({"label": "ci"})).await;
    assert_eq!(rig.send(&keyed(short(), &key)).await.status(), 200);
    let unknown = rig.send(&keyed(short(), "tg-000000000000-0")).await;
    let revoked = ask(&rig, delete(&format!("/admin/v1/keys/{id}"))).await;
    assert_eq!(revoked.status(), 200, "{}", revoked.text());
    let refused = async || status(&rig, &key).await == 401;
    eventually(secs(60), "the key is refused", refused).await;
    let answer = rig.send(&keyed(short(), &key)).await;
    assert_eq!((answer.status(), answer.text()), (401, unknown.text()));
    let twice = ask(&rig, delete(&format!("/admin/v1/keys/{id}"))).await;
    assert_eq!(twice.status(), 404);
    let ledger = rig.drain().await.ledger();
    assert_eq!((ledger.len(), &ledger[0]["tenant"]), (1, &json!("t")));
}

#[tokio::test]
async fn an_expired_key_is_like_an_unknown_one() {
    let rig = rig().await;
    let (id, key) = new_key(&rig, json!({})).await;
    let unknown = rig.send(&keyed(short(), "tg-000000000000-0")).await;
    let path = format!("/admin/v1/keys/{id}/expire");
    assert_eq!(
        post(&rig, &path, &json!({"expires_us": 1})).await.status(),
        200
    );
    let refused = async || status(&rig, &key).await == 401;
    eventually(secs(60), "the key has expired", refused).await;
    let answer = rig.send(&keyed(short(), &key)).await;
    assert_eq!((answer.status(), answer.text()), (401, unknown.text()));
}

#[tokio::test]
async fn a_rotated_key_gives_way_to_its_heir() {
    let rig = rig().await;
    let (id, old) = new_key(&rig, json!({})).await;
    let path = format!("/admin/v1/keys/{id}/rotate");
    let rotated = ask(&rig, Request::post(&path, "")).await;
    assert_eq!(rotated.status(), 201, "{}", rotated.text());
    let new = rotated.json()["key"].as_str().unwrap().to_owned();
    let turned = async || status(&rig, &old).await == 401 && status(&rig, &new).await == 200;
    eventually(
        secs(60),
        "the new key is good and the old one is not",
        turned,
    )
    .await;
}

#[tokio::test]
async fn a_key_is_good_for_its_scopes_only() {
    let rig = rig().await;
    let scopes = json!({"scopes": {"endpoints": ["chat"]}});
    let (_, chat_only) = new_key(&rig, scopes).await;
    assert_eq!(
        rig.send(&keyed(Request::post(CHAT, hi().to_string()), &chat_only))
            .await
            .status(),
        200
    );
    let text = Request::post(TEXT, json!({"model": "m", "prompt": "x"}).to_string());
    let refused = rig.send(&keyed(text, &chat_only)).await;
    assert_eq!((refused.status(), refused.reason()), (403, "key_scope"));
    let (_, reader) = new_key(&rig, json!({"scopes": {"read_only": true}})).await;
    let refused = rig.send(&keyed(short(), &reader)).await;
    assert_eq!((refused.status(), refused.reason()), (403, "key_scope"));
    assert_eq!(status(&rig, &reader).await, 200);
    let (_, elsewhere) = new_key(&rig, json!({"scopes": {"models": ["another"]}})).await;
    let refused = rig.send(&keyed(short(), &elsewhere)).await;
    assert_eq!(
        (refused.status(), refused.reason()),
        (404, "model_not_found")
    );
}

#[tokio::test]
async fn limits_of_a_stored_tenant_hold_and_change_while_it_calls() {
    let rig = rig().await;
    let (_, key) = new_key(&rig, json!({})).await;
    let limited = json!({"name": "t", "limits": {"rpm": 1}});
    let changed = Request::post("/admin/v1/tenants/t", limited.to_string()).method("PUT");
    assert_eq!(ask(&rig, changed).await.status(), 200);
    let bounded = async || {
        let answer = rig.send(&keyed(Request::get("/v1/models"), &key)).await;
        answer.head.header("x-ratelimit-limit-requests") == Some("1")
    };
    eventually(secs(60), "the new limit holds", bounded).await;
    assert_eq!(ask(&rig, delete("/admin/v1/tenants/t")).await.status(), 200);
    let gone = async || status(&rig, &key).await == 401;
    eventually(secs(60), "the tenant's keys are revoked with it", gone).await;
}

#[tokio::test]
async fn a_limit_of_one_model_is_no_limit_of_another() {
    let other = "\n  - { name: n, engine: fake, fake: { step: 0us } }\n";
    let config = FAST.replace("anonymous: allow", "anonymous: deny");
    let rig = Rig::start(&format!("{CONFIG}{}{other}", config.trim_end())).await;
    let (_, key) = new_key(&rig, json!({})).await;
    let own = json!([{"model": "m", "limits": {"rpm": 1}}]);
    let limited = json!({"name": "t", "limits": {"rpm": 9}, "model_limits": own});
    let changed = Request::post("/admin/v1/tenants/t", limited.to_string()).method("PUT");
    assert_eq!(ask(&rig, changed).await.status(), 200);
    let of = async |model: &str| {
        let request = json!({"model": model, "max_tokens": 1, "messages": hi()["messages"]});
        rig.send(&keyed(Request::post(CHAT, request.to_string()), &key))
            .await
    };
    let bounded = async || {
        let answer = of("m").await;
        answer.head.header("x-ratelimit-limit-requests") == Some("1")
    };
    eventually(secs(60), "the model's limit holds", bounded).await;
    let refused = of("m").await;
    assert_eq!((refused.status(), refused.reason()), (429, "requests"));
    let served = of("n").await;
    assert_eq!(served.status(), 200, "{}", served.text());
    assert_eq!(served.head.header("x-ratelimit-limit-requests"), Some("9"));
    let wrong = json!({"name": "t", "model_limits": [{"model": "m", "limits": {"rmp": 1}}]});
    let wrong = Request::post("/admin/v1/tenants/t", wrong.to_string()).method("PUT");
    assert_eq!(ask(&rig, wrong).await.status(), 400);
}

#[tokio::test]
async fn a_tenant_of_the_configuration_is_not_made_a_second_time() {
    let rig = rig().await;
    let twice = post(&rig, "/admin/v1/tenants", &json!({"name": "filed"})).await;
    assert_eq!(twice.status(), 409);
    assert!(
        twice
            .text()
            .contains("the configuration has a tenant filed")
    );
    let key = post(&rig, "/admin/v1/keys", &json!({"tenant": "filed"})).await;
    assert_eq!(key.status(), 404);
}

#[tokio::test]
async fn nobody_without_an_admin_key_comes_in() {
    let rig = rig().await;
    let paths = [
        "/admin/v1/queue",
        "/admin/v1/keys",
        "/admin/v1/usage",
        "/admin/v1/openapi.json",
    ];
    for path in paths {
        let none = Request::get(path).send(rig.admin()).await;
        let tenants = keyed(Request::get(path), &key("F")).send(rig.admin()).await;
        assert_eq!((none.status(), tenants.status()), (401, 401), "{path}");
        assert_eq!(none.text(), tenants.text());
        assert_eq!(ask(&rig, Request::get(path)).await.status(), 200, "{path}");
        assert_eq!(
            rig.send(&keyed(Request::get(path), &key("OPS")))
                .await
                .status(),
            404,
            "{path}"
        );
    }
    let open = Rig::start(&format!("admin: {{ listen: 127.0.0.1:0 }}\n{FAST}")).await;
    let made = Request::post("/admin/v1/tenants", "{}")
        .send(open.admin())
        .await;
    assert_eq!(made.status(), 403);
    assert_eq!(
        Request::get("/admin/v1/queue")
            .send(open.admin())
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn no_key_or_hash_is_in_a_list_an_audit_or_a_metric() {
    let rig = rig().await;
    let (id, key) = new_key(&rig, json!({})).await;
    rig.send(&keyed(short(), &key)).await;
    let secret = key.rsplit('-').next().unwrap();
    let digest = <sha2::Sha256 as sha2::Digest>::digest(key.as_bytes());
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for path in [
        "/admin/v1/keys",
        "/admin/v1/audit",
        "/admin/v1/tenants",
        "/admin/v1/usage",
    ] {
        let page = ask(&rig, Request::get(path)).await;
        assert_eq!(page.status(), 200, "{path}");
        assert!(
            !page.text().contains(secret) && !page.text().contains(&hash),
            "{path}"
        );
    }
    let keys = ask(&rig, Request::get("/admin/v1/keys")).await.json();
    assert_eq!(keys["data"][0]["id"], id);
    assert_eq!(keys["data"][0].get("hash"), None);
    let metrics = rig.get("/metrics").await;
    assert!(!metrics.text().contains(secret) && !metrics.text().contains(&hash));
}

#[tokio::test]
async fn every_path_of_the_description_is_there_and_bad_input_is_told() {
    let rig = rig().await;
    let described = ask(&rig, Request::get("/admin/v1/openapi.json"))
        .await
        .json();
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    for (path, methods) in paths {
        let path = path.replace("{month}", "2026-07").replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let request = Request::post(&path, "{:").method(&method.to_uppercase());
            let answer = ask(&rig, request).await;
            assert_ne!(answer.status(), 405, "{method} {path}");
            assert!(
                !answer.text().contains("there is no /admin"),
                "{method} {path}"
            );
            if matches!(method.as_str(), "post" | "put") {
                assert_eq!(answer.status(), 400, "{method} {path}: {}", answer.text());
            }
        }
    }
    for query in [
        "by=colour",
        "from=yesterday",
        "from=2026-05&to=2026-04",
        "colour=red",
    ] {
        let answer = ask(&rig, Request::get(&format!("/admin/v1/usage?{query}"))).await;
        assert_eq!(answer.status(), 400, "{query}");
    }
}

/// What is asked for, where, and the status and words of the refusal.
const SENSELESS: [(&str, &str, u16, &str); 14] = [
    ("keys", r#"{"tenant": "nobody"}"#, 404, "no tenant nobody"),
    (
        "keys",
        r#"{"tenant": "t", "scopes": {"endpoints": ["images"]}}"#,
        400,
        "no endpoint images",
    ),
    (
        "keys",
        r#"{"tenant": "t", "expires_us": 1}"#,
        400,
        "expired already",
    ),
    (
        "keys",
        r#"{"tenant": "t", "budget": {"usd": "-1", "per": "day"}}"#,
        400,
        "-1",
    ),
    (
        "keys",
        r#"{"tenant": "t", "budget": {"usd": "1", "per": "day", "zone": "M/N"}}"#,
        400,
        "M/N",
    ),
    (
        "keys",
        r#"{"tenant": "t", "budget": {"usd": "1", "per": "week"}}"#,
        400,
        "week",
    ),
    ("keys", r#"{"tenant": "t", "scope": "all"}"#, 400, "scope"),
    (
        "tenants",
        r#"{"name": "u", "class": "golden"}"#,
        400,
        "golden",
    ),
    ("tenants", r#"{"name": "u", "weight": 0}"#, 400, "weight"),
    (
        "tenants",
        r#"{"name": "u", "limits": {"rpm": 0}}"#,
        400,
        "nonzero",
    ),
    (
        "tenants",
        r#"{"name": "u", "limits": {"burst": 2}}"#,
        400,
        "burst",
    ),
    ("tenants", r#"{"name": "../u"}"#, 400, "../u"),
    ("tenants", r#"{"name": "t"}"#, 409, "t already"),
    ("tenants", r#"{"name": "filed"}"#, 409, "filed"),
];

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_words_and_changes_nothing() {
    let rig = rig().await;
    new_key(&rig, json!({})).await;
    let all = async || {
        let mut texts = Vec::new();
        for list in ["tenants", "keys", "audit"] {
            let request = Request::get(&format!("/admin/v1/{list}"));
            texts.push(ask(&rig, request).await.text().to_owned());
        }
        texts
    };
    let before = all().await;
    for (list, body, status, said) in SENSELESS {
        let request = Request::post(&format!("/admin/v1/{list}"), body.to_owned());
        let answer = ask(&rig, request).await;
        assert_eq!(answer.status(), status, "{body}: {}", answer.text());
        let error = &answer.json()["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(said), "{said} in {}", answer.text());
    }
    assert_eq!(all().await, before);
}
