//! Two gateways, one store.

use serde_json::{Value, json};

use crate::aside;
use crate::cluster::Cluster;
use crate::support::chat::{keyed, say, short};
use crate::support::http::{Answer, Request};
use crate::support::rig::{FAST, Rig, key};
use crate::support::wait::{eventually, secs};

/// A gateway on this database, with an operator.
pub(crate) fn config(url: &str, models: &str) -> String {
    let models = models.replace("anonymous: allow", "anonymous: deny");
    format!(
        "admin: {{ listen: 127.0.0.1:0, keys: [{{ name: ops, env: OPS }}] }}\nstore: {{ url: \
         \"{url}\" }}\n{models}"
    )
}

pub(crate) async fn ask(rig: &Rig, request: Request) -> Answer {
    keyed(request, &key("OPS")).send(rig.admin()).await
}

/// A tenant with these members, and a key of it: its id and what callers send.
pub(crate) async fn new_key(rig: &Rig, tenant: Value) -> (String, String) {
    let made = ask(rig, Request::post("/admin/v1/tenants", tenant.to_string())).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    let body = json!({"tenant": tenant["name"]}).to_string();
    let made = ask(rig, Request::post("/admin/v1/keys", body)).await;
    assert_eq!(made.status(), 201, "{}", made.text());
    let text = |name: &str| made.json()[name].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

pub(crate) async fn served(rig: &Rig, key: &str) -> bool {
    rig.send(&keyed(short(), key)).await.status() == 200
}

/// Sums of a tenant, by the gateway that is asked.
pub(crate) async fn usage(rig: &Rig, tenant: &str) -> Value {
    let path = format!("/admin/v1/usage?by=tenant&tenant={tenant}");
    let page = ask(rig, Request::get(&path)).await;
    assert_eq!(page.status(), 200, "{}", page.text());
    page.json()["data"][0].clone()
}

#[tokio::test]
async fn a_key_is_good_at_both_and_refused_at_both_once_either_revokes_it() {
    let cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("keys"));
    let one = Rig::start(&config(&url, FAST)).await;
    let other = Rig::start(&config(&url, FAST)).await;
    let (id, key) = new_key(&one, json!({"name": "t"})).await;
    for rig in [&one, &other] {
        let known = async || served(rig, &key).await;
        eventually(secs(60), "the key is good", known).await;
    }
    let revoke = Request::get(&format!("/admin/v1/keys/{id}")).method("DELETE");
    assert_eq!(ask(&other, revoke).await.status(), 200);
    // Under traffic all the time: what is known of a key does not get older by being used.
    for rig in [&other, &one] {
        let refused = async || {
            let answer = rig.send(&keyed(short(), &key)).await;
            answer.status() == 401
        };
        eventually(secs(60), "the key is refused", refused).await;
    }
}

#[tokio::test]
async fn what_either_serves_counts_once_and_is_one_sum() {
    let cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("usage"));
    let priced = format!("{FAST}prices: [{{ model: m, prompt: 0, output: 1000 }}]\n");
    let one = Rig::start(&config(&url, &priced)).await;
    // The other one has no prices and another model: it leaves those of this one as they are.
    let elsewhere = FAST.replace("name: m", "name: n");
    let other = Rig::start(&config(&url, &elsewhere)).await;
    let (_, key) = new_key(&one, json!({"name": "t"})).await;
    for (rig, model) in [(&one, "m"), (&other, "n")] {
        let request = say(json!({"model": model, "ignore_eos": true, "max_tokens": 5}));
        let known = async || rig.send(&keyed(request.clone(), &key)).await.status() == 200;
        eventually(secs(60), "the key is good", known).await;
        for _ in 0..9 {
            let answer = rig.send(&keyed(request.clone(), &key)).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
    }
    for rig in [&one, &other] {
        let counted = async || {
            let sum = usage(rig, "t").await;
            sum["requests"] == 20 && sum["output_tokens"] == 100
        };
        eventually(secs(60), "all is counted", counted).await;
        // Fifty tokens at a thousandth of a dollar, and fifty at nothing.
        assert_eq!(usage(rig, "t").await["cost_nano_usd"], 50_000_000);
    }
    let _ = one.drain().await;
    assert_eq!(usage(&other, "t").await["requests"], 20);
}

#[tokio::test]
async fn a_budget_that_is_spent_at_one_is_spent_at_the_other() {
    let cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("budgets"));
    let priced = format!("{FAST}prices: [{{ model: m, prompt: 0, output: 1000 }}]\n");
    let one = Rig::start(&config(&url, &priced)).await;
    let other = Rig::start(&config(&url, &priced)).await;
    // Five tokens a request, half a cent.
    let budget = json!({"usd": "0.05", "per": "month"});
    let (_, key) = new_key(&one, json!({"name": "t", "budget": budget})).await;
    for rig in [&one, &other] {
        let known = async || {
            rig.send(&keyed(Request::get("/v1/models"), &key))
                .await
                .status()
                == 200
        };
        eventually(secs(60), "the key is good", known).await;
    }
    for n in 0..10 {
        let answer = one.send(&keyed(short(), &key)).await;
        assert_eq!(answer.status(), 200, "{n}: {}", answer.text());
        one.until_idle(secs(60)).await;
    }
    let spent = one.send(&keyed(short(), &key)).await;
    assert_eq!((spent.status(), spent.reason()), (429, "budget"));
    // Asked for one token at a time, the other one can't spend much before it hears of it.
    let small = say(json!({"ignore_eos": true, "max_tokens": 1}));
    let heard = async || {
        let answer = other.send(&keyed(small.clone(), &key)).await;
        (answer.status(), answer.reason()) == (429, "budget")
    };
    eventually(secs(60), "the other one hears of it", heard).await;
}

#[tokio::test]
async fn an_answer_of_one_is_given_again_by_the_other() {
    let cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("answers"));
    let one = Rig::start(&config(&url, FAST)).await;
    let other = Rig::start(&config(&url, FAST)).await;
    let (_, key) = new_key(&one, json!({"name": "t"})).await;
    for rig in [&one, &other] {
        let known = async || {
            rig.send(&keyed(Request::get("/v1/models"), &key))
                .await
                .status()
                == 200
        };
        eventually(secs(60), "the key is good", known).await;
    }
    let request = keyed(short(), &key).header("idempotency-key", "k");
    let first = one.send(&request).await;
    assert_eq!(first.status(), 200);
    let kept = async || {
        let scrape = one.scrape().await;
        scrape.sum("tollgate_store_waiting_answer_bytes", &[]) == 0.0
            && scrape.sum("tollgate_store_rounds", &[]) > 0.0
    };
    eventually(secs(60), "the answer is kept", kept).await;
    let again = async || {
        let again = other.send(&request).await;
        again.head.header("x-tollgate-idempotency") == Some("replayed")
            && again.text() == first.text()
    };
    eventually(secs(60), "it is given again", again).await;
}
