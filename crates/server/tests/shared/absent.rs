//! A PostgreSQL that is away when a gateway starts, and comes back.

use serde_json::json;
use tollgate_engine::fake::Faults;

use crate::aside;
use crate::cluster::Cluster;
use crate::support::chat::{keyed, say, short};
use crate::support::rig::{FAST, Rig, key};
use crate::support::wait::{eventually, secs};
use crate::together::{ask, config, new_key, usage};

#[tokio::test]
async fn a_gateway_starts_without_its_store_and_takes_it_on_when_it_is_back() {
    let mut cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("away"));
    let own = "tenants: [{ name: filed, keys: [{ env: F }] }]\n";
    let priced = format!("{FAST}prices: [{{ model: m, prompt: 0, output: 1000 }}]\n{own}");
    let config = config(&url, &priced);
    let rig = Rig::start(&config).await;
    let limits = json!({"tpm": 100});
    let (_, stored) = new_key(&rig, json!({"name": "t", "limits": limits})).await;
    let owing = say(json!({"ignore_eos": true, "max_tokens": 3_000}));
    let known = async || rig.send(&keyed(owing.clone(), &stored)).await.status() == 200;
    eventually(secs(60), "the key is good", known).await;
    let folder = rig.drain().await.into_folder();
    cluster.stop();

    let rig = Rig::start_in(folder, &config, Faults::default()).await;
    assert_eq!(rig.scrape().await.sum("tollgate_store_up", &[]), 0.0);
    for _ in 0..3 {
        let served = rig.send(&keyed(short(), &key("F"))).await;
        assert_eq!(served.status(), 200, "{}", served.text());
    }
    // Whether this key is good can't be known, so it is not said to be wrong.
    let unsure = rig.send(&keyed(short(), &stored)).await;
    assert_eq!((unsure.status(), unsure.reason()), (503, "store"));
    assert!(unsure.head.header("retry-after").is_some());
    let page = ask(&rig, crate::support::http::Request::get("/admin/v1/usage")).await;
    assert_eq!(page.status(), 503, "{}", page.text());

    aside(|| cluster.serve());
    let back = async || rig.scrape().await.sum("tollgate_store_up", &[]) == 1.0;
    eventually(secs(60), "the store is back", back).await;
    let refused = async || {
        let answer = rig.send(&keyed(short(), &stored)).await;
        (answer.status(), answer.reason()) == (429, "tokens")
    };
    eventually(secs(60), "the key is known, and what it owes", refused).await;
    let wrong = rig.send(&keyed(short(), "tg-000000000000-0")).await;
    assert_eq!(wrong.status(), 401);
    let counted = async || {
        let sum = usage(&rig, "filed").await;
        sum["requests"] == 3 && sum["cost_nano_usd"] == 15_000_000
    };
    eventually(secs(60), "what was served meanwhile is counted", counted).await;
}

#[tokio::test]
async fn a_budget_holds_by_the_journal_where_the_store_is_away() {
    let mut cluster = aside(Cluster::start);
    let url = aside(|| cluster.database("budget"));
    let own =
        "tenants: [{ name: filed, keys: [{ env: F }], budget: { usd: 0.0125, per: month } }]\n";
    let priced = format!("{FAST}prices: [{{ model: m, prompt: 0, output: 1000 }}]\n{own}");
    let config = config(&url, &priced);
    let rig = Rig::start(&config).await;
    for _ in 0..2 {
        let served = rig.send(&keyed(short(), &key("F"))).await;
        assert_eq!(served.status(), 200, "{}", served.text());
        rig.until_idle(secs(60)).await;
    }
    let folder = rig.drain().await.into_folder();
    cluster.stop();
    let rig = Rig::start_in(folder, &config, Faults::default()).await;
    let refused = rig.send(&keyed(short(), &key("F"))).await;
    assert_eq!((refused.status(), refused.reason()), (429, "budget"));
}
