//! Budgets, as a client meets them.

use serde_json::json;
use tollgate_engine::fake::Faults;

use crate::support::chat::{keyed, say, short};
use crate::support::http::{Connection, Request};
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::wait::{eventually, secs};

/// A thousandth of a dollar for each generated token, and a budget of so many dollars a day.
fn priced(config: &str, usd: &str) -> String {
    let config = config.replace("anonymous: allow", "anonymous: deny");
    format!(
        "{config}
prices: [{{ model: m, prompt: 0, output: 1000 }}]
tenants:
  - name: t
    keys: [{{ env: T }}]
    budget: {{ usd: {usd}, per: day, zone: Asia/Kolkata }}
"
    )
}

#[tokio::test]
async fn an_exhausted_budget_is_told_as_one_and_not_as_a_rate() {
    // Five tokens cost half a cent.
    let rig = Rig::start(&priced(FAST, "0.012")).await;
    let request = keyed(short(), &key("T"));
    for _ in 0..2 {
        assert_eq!(rig.send(&request).await.status(), 200);
    }
    rig.until_idle(secs(60)).await;
    let refused = rig.send(&request).await;
    assert_eq!((refused.status(), refused.reason()), (429, "budget"));
    let error = &refused.json()["error"];
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("insufficient_quota"), &json!("insufficient_quota"))
    );
    assert_eq!(refused.head.header("retry-after"), None);
    assert_eq!(refused.head.header("x-should-retry"), Some("false"));
    // One that costs less still fits.
    let small = say(json!({"ignore_eos": true, "max_tokens": 2}));
    assert_eq!(rig.send(&keyed(small, &key("T"))).await.status(), 200);
}

#[tokio::test]
async fn what_requests_in_flight_hold_comes_back_however_they_end() {
    let rig = Rig::start(&priced(OPEN, "13")).await;
    // Holds seven dollars, and leaves after a token or two.
    let long = crate::support::chat::stream(json!({"ignore_eos": true, "max_tokens": 7_000}));
    let long = keyed(long, &key("T"));
    for _ in 0..2 {
        let mut client = Connection::open(rig.address()).await;
        let begun = async || {
            client = Connection::open(rig.address()).await;
            client.send(&long.bytes()).await;
            client.head().await.status == 200
        };
        eventually(secs(60), "what the one before held is back", begun).await;
        let beside = rig.send(&long).await;
        assert_eq!(
            (beside.status(), beside.reason()),
            (429, "budget_in_flight")
        );
        assert_eq!(beside.json()["error"]["code"], "rate_limit_exceeded");
        assert!(beside.head.header("retry-after").is_some());
        drop(client);
    }
    rig.until_idle(secs(60)).await;
    assert_eq!(rig.send(&keyed(short(), &key("T"))).await.status(), 200);
}

#[tokio::test]
async fn after_a_restart_the_spending_is_the_ledgers() {
    let config = priced(FAST, "0.012");
    let request = keyed(short(), &key("T"));
    let rig = Rig::start(&config).await;
    for _ in 0..2 {
        assert_eq!(rig.send(&request).await.status(), 200);
    }
    let folder = rig.drain().await.into_folder();
    let rig = Rig::start_in(folder, &config, Faults::default()).await;
    let refused = rig.send(&request).await;
    assert_eq!((refused.status(), refused.reason()), (429, "budget"));
}

#[tokio::test]
async fn a_tenants_own_key_sums_what_that_tenant_used_and_nothing_else() {
    let rig = Rig::start(&priced(FAST, "100")).await;
    assert_eq!(rig.send(&keyed(short(), &key("T"))).await.status(), 200);
    let usage = |query: &str| keyed(Request::get(&format!("/v1/usage{query}")), &key("T"));
    let counted = async || {
        let page = rig.send(&usage("?by=model")).await;
        assert_eq!(page.status(), 200, "{}", page.text());
        let rows = &page.json()["data"];
        rows[0]["requests"] == 1 && rows[0]["output_tokens"] == 5 && rows[0]["model"] == "m"
    };
    eventually(secs(60), "the request is counted", counted).await;
    let page = rig.send(&usage("?by=model")).await.json();
    assert_eq!(page["data"][0]["cost_nano_usd"], 5_000_000);
    assert_eq!(rig.send(&usage("?tenant=another")).await.status(), 403);
    assert_eq!(rig.send(&usage("?colour=red")).await.status(), 400);
    assert_eq!(rig.get("/v1/usage").await.status(), 401);
}
