//! Many at once and many in a row: limits hold exactly, and nothing wears out.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tollgate_engine::fake::Faults;
use tollgate_policy::ids::RequestId;

use crate::support::chance::Chance;
use crate::support::chat::{CHAT, endless, keyed, say, short, stream};
use crate::support::http::{Connection, Request};
use crate::support::rig::{FAST, OPEN, Rig, key};
use crate::support::stream::Stream;
use crate::support::wait::{eventually, secs};

/// `config`, for one tenant with these limits alone.
fn limited(config: &str, limits: &str) -> String {
    let config = config.replace("identity: { anonymous: allow }", "");
    format!(
        "{config}\ntenants:\n  - name: t\n    keys: [{{ env: T }}]\n    limits: {{ {limits} }}\n"
    )
}

fn mine(request: Request) -> Request {
    keyed(request, &key("T"))
}

#[tokio::test]
async fn one_request_at_a_time_is_never_locked_out_by_bad_ones() {
    let rig = Rig::start(&limited(FAST, "concurrency: 1")).await;
    let bad = [
        say(json!({"messages": [{"role": "user2", "content": "x"}]})),
        say(json!({"model": "unknown"})),
        Request::post(CHAT, "{:"),
        say(json!({"max_tokens": 0})),
        say(json!({"messages": [{"role": "user", "content": "x".repeat(10_000)}]})),
        short()
            .without("content-type")
            .header("content-type", "text/plain"),
    ];
    for _ in 0..5 {
        for request in &bad {
            let answer = rig.send(&mine(request.clone())).await;
            assert!((400..500).contains(&answer.status()));
            assert!(rig.scrape().await.is_idle());
        }
        assert_eq!(
            rig.send(&mine(say(json!({"max_tokens": null}))))
                .await
                .status(),
            200
        );
    }
}

#[tokio::test]
async fn failures_of_the_engine_use_up_no_place() {
    let first = |n: std::ops::RangeInclusive<u64>| n.map(RequestId::new);
    let faults = Faults {
        begin: first(1..=5).collect(),
        output: first(6..=10).map(|id| (id, 1)).collect(),
        ..Faults::default()
    };
    let rig = Rig::start_with(&limited(FAST, "concurrency: 10"), faults).await;
    for n in 0..10 {
        let request = if n % 2 == 0 {
            short()
        } else {
            stream(json!({}))
        };
        let answer = rig.send(&mine(request)).await;
        assert_eq!(
            (answer.status(), answer.reason()),
            (502, "replica_failed_request"),
            "{}",
            answer.text()
        );
    }
    assert!(rig.scrape().await.is_idle());
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let address = rig.address();
        tasks.spawn(async move { mine(short()).send(address).await.status() });
    }
    assert_eq!(tasks.join_all().await, [200; 10]);
    rig.assert_unharmed_as(&key("T")).await;
}

#[tokio::test]
async fn a_stream_that_is_aborted_anywhere_gives_its_place_back() {
    let rig = Rig::start(&limited(OPEN, "concurrency: 1")).await;
    let mut chance = Chance::new(45);
    for _ in 0..200 {
        let mut running = None;
        let begins = async || {
            let begun = Stream::open(rig.address(), &mine(endless())).await;
            let good = begun.head.status == 200;
            running = Some(begun);
            good
        };
        eventually(secs(1), "the place of the one before is free", begins).await;
        running.unwrap().read_texts(chance.below(6)).await;
    }
    rig.assert_unharmed_as(&key("T")).await;
    let rows = rig.drain().await.ledger();
    let aborted = rows
        .iter()
        .filter(|row| row["outcome"] != "completed")
        .count();
    assert_eq!(aborted, 200);
}

#[tokio::test]
async fn what_fails_by_the_hundred_slows_nobody_down() {
    let rig = Rig::start(FAST).await;
    for _ in 0..150 {
        assert_eq!(
            rig.send(&say(json!({"model": "unknown"}))).await.status(),
            404
        );
    }
    rig.assert_unharmed().await;
    assert_eq!(rig.scrape().await.ended("model_not_found"), 150.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_passes_to_the_last_request_of_the_limit_and_no_further() {
    // One a minute comes back, so what passes is what the bucket held.
    let rig = Rig::start(&limited(FAST, "rpm: 1, burst: 50")).await;
    let mut tasks = JoinSet::new();
    for worker in 0..64 {
        let address = rig.address();
        let count = if worker < 52 { 8 } else { 7 };
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await;
            let mut statuses = Vec::new();
            for _ in 0..count {
                statuses.push(connection.ask(&mine(short())).await.status());
            }
            statuses
        });
    }
    let mut counts = BTreeMap::new();
    for status in tasks.join_all().await.into_iter().flatten() {
        *counts.entry(status).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([(200, 50), (429, 450)]));
    let scrape = rig.scrape().await;
    assert_eq!(
        (scrape.ended("completed"), scrape.ended("requests")),
        (50.0, 450.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_run_at_once_than_the_limit_also_while_clients_come_and_go() {
    let rig = Rig::start(&limited(OPEN, "concurrency: 4")).await;
    let mut tasks = JoinSet::new();
    for worker in 0..200 {
        tasks.spawn(come_and_go(rig.address(), Chance::new(worker)));
    }
    tasks.join_all().await;
    rig.until_idle(secs(2)).await;
    let rows = rig.drain().await.ledger();
    assert!(rows.len() >= 4, "{} were let in", rows.len());
    assert_eq!(peak(&rows), 4);
}

/// Three tries of one client; what is let in is read to its end or left.
async fn come_and_go(address: SocketAddr, mut chance: Chance) {
    for _ in 0..3 {
        let request = mine(stream(json!({"ignore_eos": true, "max_tokens": 40})));
        let begun = Stream::open(address, &request).await;
        if begun.head.status != 200 {
            assert_eq!(begun.head.header("x-tollgate-reason"), Some("concurrency"));
            continue;
        }
        match chance.below(2) {
            0 => begun.rest().await.assert_complete(),
            _ => drop(begun),
        }
    }
}

/// The most requests that ran at one moment.
fn peak(rows: &[Value]) -> i64 {
    let time = |row: &Value, name: &str| row[name].as_u64().unwrap();
    let mut changes = Vec::new();
    for row in rows {
        let received = time(row, "received_unix_us");
        changes.push((received + time(row, "queue_us"), 1));
        changes.push((received + time(row, "total_us"), -1));
    }
    // In one microsecond, those that end go first.
    changes.sort_unstable();
    let mut running = 0;
    let levels = changes.iter().map(|(_, change)| {
        running += change;
        running
    });
    levels.max().unwrap_or(0)
}
