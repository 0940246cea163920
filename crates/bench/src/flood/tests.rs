//! The scenarios, and the comparison on two small engines.

use std::num::NonZeroU32;

use tollgate_policy::units::Micros;
use tollgate_sim::emulated::Config;

use super::*;
use crate::engine::{EngineServer, Pace, Script, Settings};
use crate::spec::{Cycle, Identity, Reply, TenantSpec, Timing, Tokenizer};

const ALL: [usize; 3] = [2, 6, 8];

#[test]
fn every_scenario_has_the_tenants_that_are_watched_and_loads_that_can_be_drawn() {
    for (scenario, tenants) in Scenario::value_variants()
        .iter()
        .flat_map(|scenario| ALL.map(|tenants| (scenario, tenants)))
    {
        let loads = scenario.loads(tenants);
        for quiet in scenario.quiet(tenants) {
            assert!(loads.iter().any(|load| load.name == quiet), "{scenario:?}");
        }
        for load in loads {
            load.arrivals.check().unwrap();
            load.output.check().unwrap();
        }
    }
    assert_eq!(Scenario::Flood.loads(8).len(), 8);
}

#[test]
fn the_quiet_tenant_sends_the_same_whoever_is_beside_it() {
    let quiet = |scenario: Scenario| scenario.loads(2).pop().unwrap();
    assert_eq!(quiet(Scenario::Flood), quiet(Scenario::Solo));
    assert_eq!(quiet(Scenario::Four), quiet(Scenario::Long));
}

/// An engine with so many slots.
fn engine(slots: u32) -> EngineServer {
    let config = Config {
        slots: NonZeroU32::new(slots).unwrap(),
        ..Config::default()
    };
    EngineServer::start(Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        models: vec!["m".to_owned()],
        pace: Pace::Emulated(config),
        script: Script::default(),
        seen: 0,
        output_default: 16,
        threads: 1,
    })
    .unwrap()
}

fn arm(name: &str, engine: &EngineServer) -> Arm {
    let tenant = |name: &str, rate| TenantSpec {
        load: load(name, rate, 16),
        identity: Identity::TenantHeader,
    };
    Arm {
        name: name.to_owned(),
        spec: Spec {
            endpoint: format!("http://{}", engine.address()).parse().unwrap(),
            model: "m".to_owned(),
            source: Source::Drawn(vec![tenant("flooder", 40.0), tenant("quiet", 10.0)]),
            cycle: Cycle::Open,
            reply: Reply::Streamed,
            tokenizer: Tokenizer::Bytes { template: 18 },
            timing: Timing {
                duration: Micros::from_secs(1),
                warm_up: Micros::ZERO,
                drain: Micros::from_secs(60),
                slip_p99_max: Micros::from_secs(20),
            },
            seed: 1,
            threads: 1,
            rows: None,
            command: "flood".to_owned(),
        },
    }
}

#[test]
fn arms_stand_side_by_side_and_an_engine_with_one_slot_is_the_worse() {
    let (wide, narrow) = (engine(64), engine(1));
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("flood.csv");
    let mut arms = vec![arm("wide", &wide), arm("fifo", &narrow)];
    for arm in &mut arms {
        arm.spec.rows = Some(rows.clone());
    }
    let plan = Plan {
        arms,
        quiet: vec!["quiet".to_owned()],
        rounds: 2,
    };
    let mut order = Vec::new();
    let report = run(&plan, &Stop::new(), |name, round, _| {
        let turn = (name.to_owned(), round);
        if order.last() != Some(&turn) {
            order.push(turn);
        }
    })
    .unwrap();
    let [wide, narrow] = [&report.arms[0], &report.arms[1]];
    assert!(wide.invalid.is_empty(), "{:?}", wide.invalid);
    assert!(wide.quiet_ttft.p50_ms < narrow.quiet_ttft.p50_ms);
    assert_eq!(wide.quiet_requests, narrow.quiet_requests, "the same load");
    assert!(wide.quiet_requests[0] > 5 && wide.other_requests[0] > 20);
    assert_eq!(wide.worst.as_ref().unwrap().0, "quiet");
    assert_eq!(report.exit_code(), 0);
    let text = report.to_string();
    assert!(
        text.contains("fifo") && text.contains("quiet TTFT p99 by 10 s"),
        "{text}"
    );
    for file in ["flood-wide-1.csv", "flood-fifo-2.csv"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
    let plot = report.frontier("A flood");
    let names = plot.series.iter().map(|one| one.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["wide", "fifo"]);
}
