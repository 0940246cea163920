//! Prints how each rule of routing does: `cargo run --release -p tollgate-sim --example routing [--
//! TRACE_DIR]`.
//!
//! With the folder of the traces it runs Mooncake's conversations too.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::Path;

use tollgate_policy::route::Policy;
use tollgate_policy::units::{Micros, Time, Tokens};
use tollgate_sim::routing::{
    DecodeWorld, PrefillWorld, Prefixed, Reports, Rule, conversations, decode, infinite_cache,
    mooncake, prefill,
};
use tollgate_sim::workload::{TenantLoad, Workload};
use tollgate_sim::{Arrivals, Lengths};

const RULES: [Rule; 7] = [
    Rule::Tollgate(Policy::RoundRobin),
    Rule::Tollgate(Policy::LeastLoad),
    Rule::Tollgate(Policy::PowerOfTwo),
    Rule::Tollgate(Policy::Hash),
    Rule::LowestReport,
    Rule::LongestPrefix,
    Rule::Tollgate(Policy::Prefix),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    kv_in_flight()?;
    let minutes = Micros::from_secs(20 * 60);
    caches(
        "conversations, stand-in",
        &conversations(minutes, 1),
        Tokens::new(1_000_000),
    );
    if let Some(dir) = std::env::args().nth(1) {
        let requests = mooncake(Path::new(&dir), 1)?;
        caches(
            "conversations, the trace",
            &requests,
            Tokens::new(3_000_000),
        );
    }
    Ok(())
}

fn caches(name: &str, requests: &[Prefixed], cache: Tokens) {
    let bound = infinite_cache(requests);
    println!(
        "\n{name}: {} requests, a cache without end finds {:.1}%\n",
        requests.len(),
        bound * 100.0
    );
    println!("| reports | rule | hits | of the bound | imbalance | TTFT p50 / p99 s |");
    println!("|---|---|---|---|---|---|");
    for every_ms in [250, 10_000, 30_000] {
        for rule in RULES {
            let reports = Reports {
                every: Micros::from_millis(every_ms),
                routers: 1,
            };
            let world = PrefillWorld::for_load(requests, 8, cache, reports);
            let score = prefill(rule, requests, world, 1);
            println!(
                "| {every_ms} ms | {} | {:.1}% | {:.2} | {:.2} | {:.1} / {:.1} |",
                rule.label(),
                score.hits * 100.0,
                score.hits / bound,
                score.imbalance,
                score.ttft_s.0,
                score.ttft_s.1,
            );
        }
    }
}

fn kv_in_flight() -> Result<(), Box<dyn std::error::Error>> {
    println!("| routers | rule | KV in flight, max over mean | p99 |");
    println!("|---|---|---|---|");
    let load = TenantLoad {
        session: None,
        shared: None,
        name: "all".to_owned(),
        arrivals: Arrivals::Poisson { rate: 333.0 },
        prompt: Lengths::Lognormal {
            median: 800.0,
            sigma: 0.8,
            min: 1,
            max: 8_000,
        },
        output: Lengths::Lognormal {
            median: 200.0,
            sigma: 0.8,
            min: 1,
            max: 2_000,
        },
    };
    let until = Time::START + Micros::from_secs(180);
    let workload = Workload::drawn(vec![load], until, 1)?;
    for routers in [1, 4] {
        let world = DecodeWorld {
            replicas: 44,
            ttft: Micros::from_millis(200),
            tpot: Micros::from_millis(50),
            total: Tokens::new(1_000_000),
            expected_output: Tokens::new(256),
            from: Time::START + Micros::from_secs(60),
            reports: Reports {
                every: Micros::from_millis(250),
                routers,
            },
        };
        for rule in RULES {
            let score = decode(rule, workload.arrivals(), world, 1);
            println!(
                "| {routers} | {} | {:.2} | {:.2} |",
                rule.label(),
                score.mean,
                score.p99
            );
        }
    }
    Ok(())
}
