//! What a tenant is told of its limits is true.

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{Ask, NARROW, Reply, Rig, tenant, wait_as_told};

async fn rig(tenants: &[(&str, &str)]) -> Rig {
    let each = tenants.iter().map(|(name, rest)| tenant(name, rest));
    let tenants: String = each.collect();
    Rig::start(&format!("{NARROW}tenants:\n{tenants}")).await
}

/// The tokens a tenant has left, asked without using any.
async fn left(rig: &Rig, tenant: &str) -> u64 {
    let reply = rig.send(&Ask::get("/v1/models").of(tenant)).await;
    reply.number("x-ratelimit-remaining-tokens")
}

fn used(reply: &Reply) -> u64 {
    if reply.header("content-type") == Some("application/json") {
        return reply.json()["usage"]["total_tokens"].as_u64().unwrap();
    }
    let usage = reply.body.split("\"total_tokens\":").nth(1).unwrap();
    let end = usage.find(|c: char| !c.is_ascii_digit()).unwrap();
    usage[..end].parse().unwrap()
}

#[tokio::test]
async fn waiting_as_long_as_told_succeeds() {
    let tenants =
        tenant("a", "limits: { rpm: 600, burst: 1 }") + &tenant("b", "limits: { tpm: 600 }");
    let fast = NARROW.replace("step: 1ms", "step: 0us");
    let rig = Rig::start(&format!("{fast}tenants:\n{tenants}")).await;
    let tokens = |most: u64| Ask::complete(json!({"ignore_eos": true, "max_tokens": most}));
    // All of the bucket, and then some more of it.
    let cases = [
        ("requests", Ask::short().of("a"), Ask::short().of("a")),
        ("tokens", tokens(597).of("b"), tokens(9).of("b")),
    ];
    for (reason, all, more) in cases {
        assert_eq!(rig.send(&all).await.outcome(), (200, "none"));
        let refused = rig.send(&more).await;
        assert_eq!(refused.outcome(), (429, reason));
        let (secs, millis) = (
            refused.number("retry-after"),
            refused.number("retry-after-ms"),
        );
        assert!((1..=60).contains(&secs) && secs == millis.div_ceil(1_000));
        wait_as_told(&refused).await;
        assert_eq!(rig.send(&more).await.outcome(), (200, "none"));
    }
}

#[tokio::test]
async fn what_is_left_falls_by_what_was_used_streamed_or_not() {
    let rig = rig(&[
        ("a", "limits: { tpm: 1200 }"),
        ("idle", "limits: { tpm: 1200 }"),
    ])
    .await;
    for stream in [false, true] {
        // Far more is reserved than the model makes before it ends by itself.
        let mut members = json!({"max_tokens": 600, "seed": 3, "stop": ["e"], "stream": stream});
        if stream {
            members["stream_options"] = json!({"include_usage": true});
        }
        let before = left(&rig, "a").await;
        let reply = rig.send(&Ask::complete(members).of("a")).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let used = used(&reply);
        assert!(used < 400, "{used}");
        // Twenty tokens a second come back meanwhile.
        let expected = (before - used)..=(before - used + 60).min(1200);
        rig.until("the reservation is settled", async || {
            expected.contains(&left(&rig, "a").await)
        })
        .await;
    }
    assert_eq!(
        left(&rig, "idle").await,
        1200,
        "another's use is not its own"
    );
}

#[tokio::test]
async fn the_reservation_of_a_client_that_leaves_comes_back() {
    let rig = rig(&[("a", "limits: { tpm: 1200 }")]).await;
    for _ in 0..3 {
        let long = Ask::complete(json!({"ignore_eos": true, "max_tokens": 1000, "stream": true}));
        let gone = rig.hold(&long.of("a")).await;
        rig.until("it holds its reservation", async || {
            left(&rig, "a").await < 400
        })
        .await;
        drop(gone);
        rig.until("it is given back", async || left(&rig, "a").await > 600)
            .await;
    }
}

#[tokio::test]
async fn of_requests_at_once_no_more_are_let_in_than_their_tokens_allow() {
    let rig = rig(&[("a", "limits: { tpm: 100 }")]).await;
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        let ask = Ask::complete(json!({"ignore_eos": true, "max_tokens": 80})).of("a");
        let address = rig.server.address();
        clients.spawn(async move { ask.send(address).await });
    }
    let replies = clients.join_all().await;
    let served = replies.iter().filter(|reply| reply.status == 200);
    assert_eq!(served.count(), 1);
    let refused = replies.iter().filter(|reply| reply.status != 200);
    for reply in refused {
        assert_eq!(reply.outcome(), (429, "tokens"));
        assert!(reply.number("x-ratelimit-remaining-tokens") < 83);
    }
}

#[tokio::test]
async fn a_prompt_that_no_wait_would_let_in_is_said_to_be_too_long() {
    let rig = rig(&[("a", "limits: { tpm: 2 }")]).await;
    let reply = rig.send(&Ask::short().of("a")).await;
    assert_eq!(reply.outcome(), (429, "tokens"));
    assert_eq!(reply.header("x-should-retry"), Some("false"));
    assert!(
        reply
            .body
            .contains("the prompt has 3 tokens, and your limit lets in 2")
    );
}
