//! A storm of retries is refused before it is served twice.

use crate::support::{Ask, NARROW, Reply, Rig, tenant};

async fn rig() -> Rig {
    let tenants = tenant("a", "weight: 1") + &tenant("gold", "class: reserved");
    Rig::start(&format!("{NARROW}tenants:\n{tenants}")).await
}

fn retry(tenant: &str) -> Ask {
    Ask::short()
        .of(tenant)
        .header("x-stainless-retry-count", "2")
}

fn assert_over_budget(reply: &Reply) {
    assert_eq!(reply.outcome(), (503, "retry_budget"));
    assert!((30..=60).contains(&reply.number("retry-after")));
}

/// Uses up what is always let in.
async fn exhaust(rig: &Rig) {
    for n in 0..20 {
        let reply = rig.send(&retry("a")).await;
        if reply.status != 200 {
            assert!(n > 0, "a single retry is no storm");
            return assert_over_budget(&reply);
        }
    }
    panic!("retries are let in for ever");
}

#[tokio::test]
async fn retries_past_their_part_are_refused_and_first_tries_are_not() {
    let rig = rig().await;
    exhaust(&rig).await;
    assert_eq!(rig.send(&Ask::short().of("a")).await.status, 200);
    assert_over_budget(&rig.send(&retry("a")).await);
    assert_eq!(rig.send(&retry("gold")).await.status, 200);
    let page = rig.metrics().await;
    assert!(page.contains("reason=\"retry_budget\"} 2"), "{page}");
}

#[tokio::test]
async fn a_repeated_idempotency_key_is_a_retry_unless_there_is_an_answer_to_repeat() {
    let rig = rig().await;
    let keyed = |key: &str| Ask::short().of("a").header("idempotency-key", key);
    assert_eq!(rig.send(&keyed("k1")).await.status, 200);
    exhaust(&rig).await;
    // Served once, it costs nothing to say again.
    assert_eq!(rig.send(&keyed("k1")).await.status, 200);
    let turned_away = keyed("k2").header("x-stainless-retry-count", "1");
    assert_over_budget(&rig.send(&turned_away).await);
    assert_over_budget(&rig.send(&keyed("k2")).await);
    assert_eq!(rig.send(&keyed("k3")).await.status, 200);
    let of_another = Ask::short().of("gold").header("idempotency-key", "k2");
    assert_eq!(rig.send(&of_another).await.status, 200);
}
