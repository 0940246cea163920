//! Runs against an emulated engine: overload, sessions, prefixes, and an early end.

use std::num::{NonZeroU32, NonZeroUsize};

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::Tokens;
use tollgate_sim::emulated::{Config, Cost, Effect, Emulated, Event, Request};
use tollgate_sim::workload::{Session, SharedPrefix};

use super::*;
use crate::engine::{EngineServer, Pace, Script, Settings};

fn engine(pace: Pace) -> EngineServer {
    EngineServer::start(Settings {
        listen: "127.0.0.1:0".parse().unwrap(),
        models: vec!["m".to_owned()],
        pace,
        script: Script::default(),
        seen: 0,
        output_default: 16,
        threads: 1,
    })
    .unwrap()
}

fn instant() -> EngineServer {
    engine(Pace::Instant(Tokens::new(8_192)))
}

fn spec_of(engine: &EngineServer, tenants: Vec<TenantSpec>, secs: u64) -> Spec {
    Spec {
        endpoint: format!("http://{}", engine.address()).parse().unwrap(),
        model: "m".to_owned(),
        source: Source::Drawn(tenants),
        cycle: Cycle::Open,
        reply: Reply::Streamed,
        tokenizer: Tokenizer::Bytes { template: 18 },
        timing: Timing {
            duration: Micros::from_secs(secs),
            warm_up: Micros::ZERO,
            drain: Micros::from_secs(60),
            slip_p99_max: Micros::from_secs(20),
        },
        seed: 1,
        threads: 1,
        rows: None,
        command: "bench".to_owned(),
    }
}

fn rows(spec: &Spec) -> Vec<Row> {
    run_keeping_rows(spec, &Stop::new(), |_| {}).unwrap().1
}

#[test]
fn against_half_the_engine_that_it_needs_latency_grows_window_after_window() {
    // Four slots, and ten steps of 20 ms an answer: 20 requests a second, of which 40 are offered.
    let engine = engine(Pace::Emulated(Config {
        slots: NonZeroU32::new(4).unwrap(),
        cost: Cost {
            step: Micros::from_millis(20),
            per_sequence: Micros::ZERO,
            prefill_tokens_per_second: 10_000_000.try_into().unwrap(),
        },
        ..Config::default()
    }));
    let mut tenant = tenant("a", 40.0, Identity::TenantHeader);
    tenant.load.output = Lengths::Constant(10);
    let rows = rows(&spec_of(&engine, vec![tenant], 4));
    let mean = |second: u64| {
        let inside = rows
            .iter()
            .filter(|row| row.intended.as_micros() / 1_000_000 == second);
        let waits: Vec<u64> = inside
            .map(|row| row.first_token.unwrap().since(row.intended).get())
            .collect();
        waits.iter().sum::<u64>() / waits.len() as u64
    };
    let means = [0, 1, 2, 3].map(mean);
    // Each second half a second of work is left over.
    for pair in means.windows(2) {
        assert!(pair[1] > pair[0] + 200_000, "{means:?}");
    }
}

/// TTFT in microseconds of each arrival, in order, on the virtual clock.
fn virtual_waits(workload: &Workload, config: Config) -> Vec<u64> {
    let arrivals: Vec<Arrival> = workload.arrivals().collect();
    let mut engine = Emulated::new(config).unwrap();
    let mut waits = vec![None; arrivals.len()];
    let mut come = 0;
    loop {
        let next = arrivals.get(come).map(|arrival| arrival.at);
        let wake = engine.next_wake();
        let Some(now) = [next, wake].into_iter().flatten().min() else {
            return waits.into_iter().map(Option::unwrap).collect();
        };
        if wake == Some(now) {
            engine.handle(Event::Wake, now);
        } else {
            let arrival = arrivals[come];
            let id = RequestId::new(come as u64);
            come += 1;
            let request = Request {
                id,
                prompt: arrival.prompt,
                output: arrival.output,
                prefix: Arc::default(),
            };
            engine.handle(Event::Arrived(request), now);
        }
        while let Some(effect) = engine.poll_effect() {
            if let Effect::Stepped { served } = effect {
                for one in served.iter().filter(|one| one.output > Tokens::ZERO) {
                    let place = usize::try_from(one.id.get()).unwrap();
                    waits[place].get_or_insert_with(|| now.since(arrivals[place].at).get());
                }
            }
        }
    }
}

#[test]
fn through_sockets_an_engine_is_no_faster_than_on_the_virtual_clock_and_hardly_slower() {
    // Eight slots, some 16 requests a second; the costs are large beside those of this machine.
    let config = Config {
        slots: NonZeroU32::new(8).unwrap(),
        cost: Cost {
            step: Micros::from_millis(30),
            per_sequence: Micros::from_millis(1),
            prefill_tokens_per_second: 4_000.try_into().unwrap(),
        },
        chunk: Tokens::new(512),
        ..Config::default()
    };
    for rate in [8.0, 24.0, 48.0] {
        let engine = engine(Pace::Emulated(config));
        let mut tenant = tenant("a", rate, Identity::TenantHeader);
        (tenant.load.prompt, tenant.load.output) = (Lengths::Constant(64), Lengths::Constant(10));
        let spec = spec_of(&engine, vec![tenant], 2);
        let mut real: Vec<u64> = rows(&spec)
            .iter()
            .map(|row| row.first_token.unwrap().since(row.intended).get())
            .collect();
        let mut virtual_time = virtual_waits(&workload(&spec).unwrap(), config);
        assert_eq!(real.len(), virtual_time.len());
        real.sort_unstable();
        virtual_time.sort_unstable();
        for percent in [50, 95] {
            let at = real.len() * percent / 100;
            let (real, expected) = (real[at], virtual_time[at]);
            let shown = format!("{rate}/s, p{percent}: {real} us, virtually {expected} us");
            println!("{shown}");
            // Never faster, and no slower than a busy test machine makes it.
            assert!(real + 20_000 > expected * 9 / 10, "{shown}");
            assert!(real < 2 * expected + 2_000_000, "{shown}");
        }
    }
}

#[test]
fn a_closed_loop_asks_a_slow_engine_for_less_and_hides_that_it_is_slow() {
    let engine = engine(Pace::Emulated(Config {
        slots: NonZeroU32::MIN,
        ..Config::default()
    }));
    let spec = Spec {
        cycle: Cycle::Closed(NonZeroUsize::MIN),
        ..spec_of(
            &engine,
            vec![tenant("a", 1_000.0, Identity::TenantHeader)],
            1,
        )
    };
    let rows = rows(&spec);
    // Four tokens are four steps of 10 ms at least.
    assert!(rows.len() < 25, "{}", rows.len());
    let mut ends: Vec<(Time, Time)> = rows.iter().map(|row| (row.intended, row.end)).collect();
    ends.sort_unstable();
    assert!(
        ends.windows(2).all(|pair| pair[1].0 >= pair[0].1),
        "one at a time"
    );
}

#[test]
fn a_session_goes_on_when_its_answer_has_come_and_stops_with_the_run() {
    let engine = instant();
    let mut tenant = tenant("a", 30.0, Identity::TenantHeader);
    tenant.load.session = Some(Session {
        turns: 3,
        think_s: 0.02,
    });
    let spec = spec_of(&engine, vec![tenant], 1);
    let sessions = workload(&spec).unwrap().arrivals().count();
    let rows = rows(&spec);
    assert!(
        rows.len() > 2 * sessions && rows.len() <= 3 * sessions,
        "{}",
        rows.len()
    );
    let until = Time::START + spec.timing.duration;
    assert!(rows.iter().all(|row| row.intended < until));
}

#[test]
fn as_many_prompts_as_the_share_begin_alike() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let mut tenant = tenant("a", 300.0, Identity::TenantHeader);
    tenant.load.shared = Some(SharedPrefix {
        tokens: 64,
        variants: 1,
        share: 0.5,
        family: None,
    });
    report(&spec(&endpoint, vec![tenant]));
    let mut beginnings: Vec<String> = endpoint
        .asked()
        .iter()
        .map(|asked| asked.prompt()[..64].to_owned())
        .collect();
    let all = beginnings.len();
    beginnings.sort_unstable();
    beginnings.dedup();
    // All of one beginning are one, the others are each their own.
    let alike = all + 1 - beginnings.len();
    assert!(alike > all / 4 && alike < 3 * all / 4, "{alike} of {all}");
}

#[test]
fn a_run_that_is_stopped_ends_soon_keeps_its_rows_and_gives_no_report() {
    let engine = instant();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let spec = Spec {
        rows: Some(path.clone()),
        ..spec_of(
            &engine,
            vec![tenant("a", 50.0, Identity::TenantHeader)],
            86_000,
        )
    };
    let stop = Stop::new();
    let error = run(&spec, &stop, |progress| {
        if progress.completed > 5 {
            stop.pull();
        }
    })
    .unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("stopped after ") && said.contains("rows are in"),
        "{said}"
    );
    let lines = std::fs::read_to_string(path).unwrap().lines().count();
    assert!(lines > 6, "{lines}");
}
