//! Several engines of one model, and one that is kept for a class.

use serde_json::json;

use crate::support::{Ask, NARROW, Rig, sample, tenant};

async fn rig(replicas: &str) -> Rig {
    let model = NARROW.replace(
        "max_sequences: 1",
        &format!("max_sequences: 1\n    replicas: {replicas}"),
    );
    let tenants = tenant("a", "weight: 1") + &tenant("gold", "class: reserved, floor: 20%");
    let other = "  - { name: other, engine: fake }\n";
    Rig::start(&format!("{model}{other}tenants:\n{tenants}")).await
}

#[tokio::test]
async fn two_replicas_serve_two_at_once() {
    let rig = rig("[{}, {}]").await;
    let _first = rig.hold(&Ask::endless().of("a")).await;
    rig.until("one runs", async || {
        let page = rig.metrics().await;
        page.contains("tollgate_running_requests{model=\"m\"} 1")
    })
    .await;
    let second = rig.send(&Ask::short().of("gold")).await;
    assert_eq!(second.status, 200);
    let page = rig.metrics().await;
    for (model, replica) in [("m", 0), ("m", 1), ("other", 2)] {
        let name = format!("tollgate_replica_up{{model=\"{model}\",replica=\"{replica}\"}}");
        assert_eq!(sample(&page, &name), Some("1"));
    }
    let facts = rig.server.models();
    assert_eq!((facts[0].replicas, facts[1].replicas), (2, 1));
    let other = rig
        .send(&Ask::complete(json!({"model": "other", "max_tokens": 2})).of("a"))
        .await;
    assert_eq!(other.number("x-tollgate-replica"), 2);
}

#[tokio::test]
async fn replicas_answer_alike() {
    let rig = rig("[{}, {}]").await;
    let ask = Ask::complete(json!({"seed": 5, "max_tokens": 30})).of("gold");
    let alone = rig.send(&ask).await;
    let _busy = rig.hold(&Ask::endless().of("a")).await;
    let beside = rig.send(&ask).await;
    assert_eq!(alone.json()["choices"], beside.json()["choices"]);
}

#[tokio::test]
async fn a_replica_that_is_kept_for_a_class_takes_no_other() {
    let rig = rig("[{}, { only: reserved }]").await;
    let _running = rig.hold(&Ask::endless().of("a")).await;
    let _waiting = rig.hold(&Ask::endless().of("a")).await;
    rig.until("one waits", async || {
        let page = rig.metrics().await;
        page.contains("tollgate_queue_requests{model=\"m\"} 1")
    })
    .await;
    let reserved = rig.send(&Ask::short().of("gold")).await;
    assert_eq!(
        (reserved.status, reserved.number("x-tollgate-replica")),
        (200, 1)
    );
    let page = rig.metrics().await;
    assert!(page.contains("tollgate_queue_requests{model=\"m\"} 1"));
}
