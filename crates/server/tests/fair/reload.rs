//! A changed configuration: taken on whole, or refused whole, and no way around a limit.

use serde_json::Value;

use crate::support::{Ask, NARROW, Rig, tenant};

fn yaml(tenants: &str) -> String {
    format!("{NARROW}tenants:\n{tenants}")
}

#[tokio::test]
async fn what_is_used_up_stays_used_up_however_often_the_file_is_read() {
    let with = |weight: u32| {
        let busy = tenant("busy", "limits: { rpm: 2 }");
        yaml(&format!(
            "{busy}{}",
            tenant("beside", &format!("weight: {weight}"))
        ))
    };
    let rig = Rig::start(&with(1)).await;
    let ask = Ask::short().of("busy");
    let mut accepted = 0;
    for n in 0..22 {
        let reply = rig.send(&ask).await;
        accepted += u32::from(reply.status == 200);
        if n >= 2 {
            assert_eq!(reply.outcome(), (429, "requests"));
        }
        // Every other time nothing has changed at all.
        assert_eq!(rig.reload(&with(1 + n / 2)).await, "applied");
    }
    assert_eq!(accepted, 2);
    assert_eq!(rig.reloads().await, (22, 0));
}

#[tokio::test]
async fn a_file_with_a_mistake_is_refused_whole_and_the_old_one_stays() {
    let old = yaml(&tenant("a", "weight: 1"));
    let rig = Rig::start(&old).await;
    let both = yaml(&format!(
        "{}{}",
        tenant("a", "weight: 0"),
        tenant("b", "limits: { rpm: -1 }")
    ));
    assert_eq!(rig.reload(&both).await, "refused");
    assert_eq!(rig.send(&Ask::short().of("a")).await.status, 200);
    assert_eq!(rig.send(&Ask::short().of("b")).await.status, 401);
    assert_eq!(rig.reload("listen: [").await, "refused");
    assert_eq!(rig.reload(&old).await, "applied");
    assert_eq!(rig.reloads().await, (1, 2));
}

#[tokio::test]
async fn what_needs_a_restart_is_refused_whole() {
    let rig = Rig::start(&yaml(&tenant("a", "weight: 1"))).await;
    let tenants = format!("{}{}", tenant("a", "weight: 1"), tenant("b", "weight: 1"));
    let others = [
        yaml(&tenants).replace("max_sequences: 1", "max_sequences: 2"),
        format!("{}fairness: {{ policy: fifo }}\n", yaml(&tenants)),
        format!("{}server: {{ drain: 9s }}\n", yaml(&tenants)),
    ];
    for other in others {
        assert_eq!(rig.reload(&other).await, "refused");
        assert_eq!(rig.send(&Ask::short().of("b")).await.status, 401);
    }
}

#[tokio::test]
async fn keys_come_and_go_at_once_and_find_their_tenant_wherever_it_stands() {
    let a = tenant("a", "limits: { rpm: 1 }");
    let rig = Rig::start(&yaml(&format!(
        "{a}{}",
        tenant("gone", "limits: { rpm: 1 }")
    )))
    .await;
    assert_eq!(rig.send(&Ask::short().of("a")).await.status, 200);
    assert_eq!(rig.send(&Ask::short().of("gone")).await.status, 200);
    let new = tenant("new", "limits: { rpm: 1 }");
    assert_eq!(rig.reload(&yaml(&format!("{new}{a}"))).await, "applied");
    assert_eq!(rig.send(&Ask::short().of("gone")).await.status, 401);
    assert_eq!(rig.send(&Ask::short().of("new")).await.status, 200);
    let used_up = rig.send(&Ask::short().of("a")).await;
    assert_eq!(
        used_up.outcome(),
        (429, "requests"),
        "it stands second now, and is the same"
    );
}

#[tokio::test]
async fn a_new_limit_holds_from_the_next_request_on() {
    let with = |limits: &str| yaml(&tenant("a", &format!("limits: {{ {limits} }}")));
    let rig = Rig::start(&with("rpm: 1000")).await;
    let ask = Ask::short().of("a");
    let first = rig.send(&ask).await;
    assert_eq!(first.number("x-ratelimit-limit-requests"), 1000);
    assert_eq!(first.header("x-ratelimit-limit-tokens"), None);
    assert_eq!(
        rig.reload(&with("rpm: 30, tpm: 90, max_output: 2")).await,
        "applied"
    );
    let second = rig.send(&ask).await;
    assert_eq!(second.number("x-ratelimit-limit-requests"), 30);
    assert_eq!(second.number("x-ratelimit-limit-tokens"), 90);
    assert_eq!(second.json()["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn a_request_in_flight_outlives_its_tenant() {
    let rig = Rig::start(&yaml(&tenant("a", "weight: 1"))).await;
    let long = Ask::complete(serde_json::json!({"ignore_eos": true, "max_tokens": 200}));
    let long = long.of("a");
    let (reply, applied) = tokio::join!(rig.send(&long), async {
        rig.until("it runs", async || {
            let page = rig.metrics().await;
            page.contains("tollgate_running_requests{model=\"m\"} 1")
        })
        .await;
        rig.reload(&yaml(&tenant("b", "weight: 1"))).await
    });
    assert_eq!((reply.status, applied), (200, "applied"));
    let usage: Value = reply.json()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 200);
    assert_eq!(rig.send(&Ask::short().of("a")).await.status, 401);
}

#[tokio::test]
async fn a_changed_file_is_taken_on_without_being_asked() {
    let rig = Rig::start(&yaml(&tenant("a", "weight: 1"))).await;
    rig.write(&yaml(&tenant("longer-than-before", "weight: 1")));
    rig.until("the new key works", async || {
        rig.send(&Ask::short().of("longer-than-before"))
            .await
            .status
            == 200
    })
    .await;
    assert_eq!(rig.reloads().await, (1, 0));
}

#[tokio::test]
async fn who_may_read_the_metrics_changes_live() {
    let with = |expose: &str| {
        format!(
            "{}metrics: {{ expose: {expose} }}\n",
            yaml(&tenant("a", "weight: 1"))
        )
    };
    let rig = Rig::start(&with("loopback")).await;
    assert_eq!(rig.reload(&with("any")).await, "applied");
    assert_eq!(rig.reload(&with("nobody")).await, "refused");
}
