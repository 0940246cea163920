//! What a scraper sees: it is true, it moves, and it is bounded.

use std::collections::BTreeSet;

use serde_json::json;
use tokio::task::JoinSet;
use tollgate_engine::fake::Faults;

use crate::support::chat::{endless, keyed, say, short, stream};
use crate::support::http::{Connection, Request};
use crate::support::rig::{FAST, NARROW, OPEN, Rig, key};
use crate::support::scrape::Scrape;
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs};

/// Every metric there is.
const NAMES: [&str; 47] = [
    "tollgate_config_reloads",
    "tollgate_connections",
    "tollgate_dispatches",
    "tollgate_engine_cached_prefixes",
    "tollgate_engine_kv_blocks",
    "tollgate_engine_kv_blocks_cached",
    "tollgate_engine_places_given",
    "tollgate_engine_prompt_tokens",
    "tollgate_engine_reused_prompt_tokens",
    "tollgate_engine_running_sequences",
    "tollgate_engine_sequence_ids",
    "tollgate_engine_waiting_sequences",
    "tollgate_in_flight_requests",
    "tollgate_inter_token_latency_seconds",
    "tollgate_ledger_batches",
    "tollgate_ledger_failing",
    "tollgate_ledger_segment",
    "tollgate_ledger_spilled_lines",
    "tollgate_ledger_waiting_records",
    "tollgate_queue_requests",
    "tollgate_queue_time_seconds",
    "tollgate_queue_tokens",
    "tollgate_replica_kv_occupancy_ratio",
    "tollgate_replica_up",
    "tollgate_request_duration_seconds",
    "tollgate_requests",
    "tollgate_running_requests",
    "tollgate_service_jain_index",
    "tollgate_slo_trace_lost_lines",
    "tollgate_store_rounds",
    "tollgate_store_up",
    "tollgate_store_waiting_answer_bytes",
    "tollgate_tenant_attained_service",
    "tollgate_tenant_share_ratio",
    "tollgate_tenant_time_to_first_token_seconds",
    "tollgate_time_per_output_token_seconds",
    "tollgate_time_to_first_token_seconds",
    "tollgate_tokens",
    "tollgate_window_guests",
    "tollgate_window_headroom_sequences",
    "tollgate_window_kv_blocks",
    "tollgate_window_kv_blocks_limit",
    "tollgate_window_moves",
    "tollgate_window_prefill_tokens",
    "tollgate_window_prefill_tokens_limit",
    "tollgate_window_sequences",
    "tollgate_window_sequences_limit",
];

/// Those that move only with a configuration file, a disk that fails or a wide window; their own
/// tests move them.
const ELSEWHERE: [&str; 8] = [
    "tollgate_config_reloads",
    "tollgate_engine_places_given",
    "tollgate_ledger_failing",
    "tollgate_ledger_spilled_lines",
    "tollgate_slo_trace_lost_lines",
    "tollgate_store_waiting_answer_bytes",
    "tollgate_window_guests",
    "tollgate_window_headroom_sequences",
];

#[tokio::test]
async fn every_metric_that_is_declared_is_moved_by_something() {
    // Two at a time with steps long enough to look into, prompts that count against the window
    // though their tenant is alone, and a disk that is asked late.
    let slow = NARROW
        .replace(
            "max_sequences: 1",
            "max_sequences: 2\n    prefill_pacing: off",
        )
        .replace("step: 1ms", "step: 60ms")
        .replace("second: 1000000", "second: 2000");
    let slow = format!("{slow}\nledger: {{ sync: 1s }}\n");
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start_in(folder, &slow, Faults::default()).await;
    let mut clients = JoinSet::new();
    for n in 0..5 {
        let address = rig.address();
        let members = json!({"ignore_eos": true, "max_tokens": 8 + n, "stream": n % 2 == 0});
        clients.spawn(async move {
            Stream::open(address, &say(members))
                .await
                .until_over()
                .await
        });
    }
    let (mut declared, mut moved) = (BTreeSet::new(), BTreeSet::new());
    let all_moved = async || {
        let scrape = rig.scrape().await;
        let now_moved = scrape.declared.iter().filter(|name| scrape.has_moved(name));
        let now_moved = now_moved.filter(|name| !ELSEWHERE.contains(&name.as_str()));
        moved.extend(now_moved.cloned());
        declared.extend(scrape.declared.clone());
        moved.len() == NAMES.len() - ELSEWHERE.len()
    };
    eventually(secs(20), "all metrics move", all_moved).await;
    assert!(declared.iter().eq(NAMES), "{declared:?}");
    let wanted = NAMES.iter().filter(|name| !ELSEWHERE.contains(name));
    assert!(moved.iter().eq(wanted), "{moved:?}");
    clients.join_all().await;
    rig.until_idle(secs(2)).await;
}

/// A configuration under which each limit refuses somebody.
fn one_refusal_each() -> String {
    format!(
        "
{}
fairness: {{ policy: fifo }}
tenants:
  - {{ name: a, keys: [{{ env: A }}] }}
  - {{ name: slow, keys: [{{ env: SLOW }}], limits: {{ rpm: 1, burst: 1 }} }}
  - {{ name: one, keys: [{{ env: ONE }}], limits: {{ concurrency: 1 }} }}
",
        NARROW
            .replace("identity: { anonymous: allow }", "")
            .replace(
                "fake:",
                "queue: { max_requests: 3, max_wait: 300ms }\n    fake:"
            )
    )
}

#[tokio::test]
async fn each_refusal_is_counted_under_its_own_reason() {
    let config = one_refusal_each();
    let rig = Rig::start(&config).await;
    let as_tenant = |request: Request, name: &str| keyed(request, &key(name));
    assert_eq!(rig.send(&as_tenant(short(), "SLOW")).await.status(), 200);
    assert_eq!(
        rig.send(&as_tenant(short(), "SLOW")).await.reason(),
        "requests"
    );
    let running = Stream::begin(rig.address(), &as_tenant(endless(), "ONE")).await;
    assert_eq!(
        rig.send(&as_tenant(short(), "ONE")).await.reason(),
        "concurrency"
    );
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(rig.address()).await;
        connection.send(&as_tenant(short(), "A").bytes()).await;
        waiting.push(connection);
    }
    rig.until(secs(2), "three wait", |now| {
        now.sum("tollgate_queue_requests", &[]) == 3.0
    })
    .await;
    assert_eq!(
        rig.send(&as_tenant(short(), "A")).await.reason(),
        "queue_full"
    );
    for mut connection in waiting {
        assert_eq!(connection.answer().await.reason(), "queue_time");
    }
    let after = rig.scrape().await;
    assert_eq!(
        after.sum("tollgate_queue_requests", &[]),
        0.0,
        "nobody waits who has given up"
    );
    assert_eq!(after.sum("tollgate_queue_tokens", &[]), 0.0);
    assert_eq!(rig.send(&short()).await.reason(), "bad_key");
    assert_eq!(rig.get("/nope").await.reason(), "no_route");
    drop(running);
    rig.until_idle(secs(2)).await;
    let counted = rig.scrape().await;
    for reason in [
        "requests",
        "concurrency",
        "queue_full",
        "bad_key",
        "no_route",
        "client_gone_mid_stream",
    ] {
        assert_eq!(counted.ended(reason), 1.0, "{reason}");
    }
    assert_eq!(
        (counted.ended("queue_time"), counted.ended("completed")),
        (3.0, 1.0)
    );
}

#[tokio::test]
async fn tenants_without_end_make_no_series_without_end() {
    let config = FAST.replace(
        "anonymous: allow",
        "anonymous: deny, trust_tenant_header: true",
    );
    let rig = Rig::start(&config).await;
    serve_tenants(&rig, 0..1_000).await;
    let half = rig.scrape().await;
    serve_tenants(&rig, 1_000..2_000).await;
    let all = rig.scrape().await;
    assert_eq!(all.ended("completed"), 2_000.0);
    assert_eq!(all.series(), half.series(), "a name more is no series more");
    // Tokens of three kinds, service, and a histogram of TTFT: for a hundred tenants and `other`.
    assert!(all.series() < 101 * 30, "{} series", all.series());
    let tokens = |kind: &str| all.sum("tollgate_tokens_total", &[("kind", kind)]);
    assert_eq!(
        (tokens("prompt"), tokens("output")),
        (2_000.0 * 20.0, 2_000.0 * 5.0)
    );
    assert_eq!(
        all.sum("tollgate_tenant_time_to_first_token_seconds_count", &[]),
        2_000.0
    );
    // A prompt token counts once, an output token twice, also for those that share a label.
    assert_eq!(
        all.sum("tollgate_tenant_attained_service", &[]),
        2_000.0 * (20.0 + 2.0 * 5.0)
    );
    let rest = all.sum("tollgate_tenant_attained_service", &[("tenant", "other")]);
    assert!(rest >= 1_900.0 * 30.0, "{rest}");
}

async fn serve_tenants(rig: &Rig, names: std::ops::Range<u32>) {
    let mut connection = Connection::open(rig.address()).await;
    for n in names {
        let request = short().header("x-tenant-id", format!("t{n}"));
        assert_eq!(connection.ask(&request).await.status(), 200);
    }
    rig.until_idle(secs(1)).await;
}

#[tokio::test]
async fn what_callers_make_up_makes_no_series() {
    let rig = Rig::start(FAST).await;
    let ask = async |n: u32| {
        rig.send(
            &say(json!({"user": format!("u{n}"), "max_tokens": 2}))
                .header("x-session-id", format!("s{n}")),
        )
        .await;
        rig.send(&say(json!({"model": format!("m{n}")}))).await;
        rig.get(&format!("/path/{n}")).await;
    };
    ask(0).await;
    let before = rig.scrape().await;
    for n in 1..100 {
        ask(n).await;
    }
    let after = rig.scrape().await;
    assert_eq!(after.series(), before.series());
    assert_eq!(after.ended("no_route"), 100.0);
}

#[tokio::test]
async fn the_first_token_is_the_first_text_and_not_the_first_byte() {
    let slow = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    stream: { keepalive: 100ms }
    fake: { step: 2ms, per_sequence: 0us, prefill_tokens_per_second: 40 }
";
    let rig = Rig::start(slow).await;
    let request = stream(json!({"ignore_eos": true, "max_tokens": 100}));
    let told = Stream::begin(rig.address(), &request).await.rest().await;
    told.assert_complete();
    assert!(told.comments > 0, "bytes came long before the text");
    rig.until_idle(secs(1)).await;
    let scrape = rig.scrape().await;
    let sum = |name: &str| scrape.sum(&format!("tollgate_{name}_seconds_sum"), &[]);
    let (ttft, total) = (sum("time_to_first_token"), sum("request_duration"));
    // 20 tokens at 40 a second, then 99 steps of 2 ms.
    assert!((0.5..0.8).contains(&ttft), "{ttft}");
    assert!((ttft + 0.19..2.0).contains(&total), "{total} after {ttft}");
    assert!(sum("queue_time") < 0.1);
    let tpot = sum("time_per_output_token");
    assert!((tpot - (total - ttft) / 99.0).abs() < 1e-5, "{tpot}");
    assert_eq!(
        scrape.sum("tollgate_tenant_time_to_first_token_seconds_sum", &[]),
        ttft
    );
    // Each gap once, whatever number of tokens a piece of text had.
    let itl = "tollgate_inter_token_latency_seconds";
    let gaps = scrape.sum(&format!("{itl}_count"), &[]);
    assert!((90.0..100.0).contains(&gaps), "{gaps}");
    assert!(sum("inter_token_latency") <= total - ttft + 0.01);
}

#[tokio::test]
async fn time_in_the_queue_is_in_the_time_to_the_first_token() {
    let rig = Rig::start(NARROW).await;
    let running = Stream::begin(
        rig.address(),
        &stream(json!({"ignore_eos": true, "max_tokens": 300})),
    )
    .await;
    let waiting = rig.send(&short()).await;
    running.rest().await.assert_complete();
    let row = rig.ledger_row(waiting.head.request_id()).await;
    let span = |name: &str| row[name].as_u64().unwrap();
    assert!(span("queue_us") > 200_000, "{row}");
    assert!(span("queue_us") / 1_000 >= waiting.head.number("x-tollgate-queue-ms"));
    assert!(span("queue_us") <= span("ttft_us") && span("ttft_us") <= span("total_us"));
    assert!(span("total_us") - span("queue_us") < 200_000, "{row}");
}

#[tokio::test]
async fn metrics_are_text_of_their_kind_with_closed_sets_of_labels() {
    let rig = Rig::start(OPEN).await;
    rig.send(&short()).await;
    rig.until_idle(secs(1)).await;
    let answer = rig.get("/metrics").await;
    let kind = answer.head.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(answer.text().ends_with("# EOF\n"));
    let described = answer
        .text()
        .lines()
        .filter(|line| line.starts_with("# HELP "))
        .count();
    let scrape = Scrape::parse(answer.text());
    assert_eq!(described, scrape.declared.len());
    let labels: BTreeSet<&str> = answer
        .text()
        .split(['{', ','])
        .filter_map(|part| part.split_once("=\""))
        .map(|(label, _)| label)
        .collect();
    let known = [
        "class", "kind", "le", "model", "reason", "replica", "result", "tenant",
    ];
    assert_eq!(labels, BTreeSet::from(known));
}
