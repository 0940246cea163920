//! Whole runs over real sockets, against an endpoint that answers as it is told.

mod emulated;
mod endpoint;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tollgate_sim::workload::TenantLoad;
use tollgate_sim::{Arrivals, Lengths};

use super::*;
use crate::spec::{Key, Reply, TenantSpec, Timing, Tokenizer};
use crate::summary::Validity;
use endpoint::{Answer, Asked, TestEndpoint};

fn tenant(name: &str, rate: f64, identity: Identity) -> TenantSpec {
    let (prompt, output) = (Lengths::Constant(128), Lengths::Constant(4));
    let load = TenantLoad::new(name, Arrivals::Poisson { rate }, prompt, output);
    TenantSpec { load, identity }
}

/// A third of a second of load. Its bound on the slip is one that a busy test machine keeps.
fn spec(endpoint: &TestEndpoint, tenants: Vec<TenantSpec>) -> Spec {
    Spec {
        endpoint: endpoint.url().parse().unwrap(),
        model: "m".to_owned(),
        source: Source::Drawn(tenants),
        cycle: Cycle::Open,
        reply: Reply::Streamed,
        tokenizer: Tokenizer::Bytes { template: 18 },
        timing: Timing {
            duration: Micros::from_millis(333),
            warm_up: Micros::ZERO,
            drain: Micros::from_secs(20),
            slip_p99_max: Micros::from_secs(20),
        },
        seed: 1,
        threads: 1,
        rows: None,
        command: "bench".to_owned(),
    }
}

fn one_tenant(endpoint: &TestEndpoint, rate: f64) -> Spec {
    spec(
        endpoint,
        vec![tenant("quiet", rate, Identity::TenantHeader)],
    )
}

fn report(spec: &Spec) -> Report {
    run(spec, &Stop::new(), |_| {}).unwrap()
}

#[test]
fn requests_go_out_when_they_are_due_while_nothing_answers() {
    // The endpoint says nothing until the last request has come: who waits for an answer before
    // the next request waits for ever.
    let all = Arc::new(AtomicU64::new(u64::MAX));
    let due = Arc::clone(&all);
    let endpoint = TestEndpoint::start(move |_, _| Answer::WhenAsked(due.load(Ordering::SeqCst)));
    let spec = one_tenant(&endpoint, 300.0);
    let count = workload(&spec).unwrap().arrivals().count() as u64;
    all.store(count, Ordering::SeqCst);
    let report = report(&spec);
    assert!(count > 50, "{count}");
    assert_eq!((report.totals.due, report.totals.completed), (count, count));
    assert_eq!(
        endpoint.connections(),
        count,
        "none can wait for another's connection"
    );
    // The first was due almost at the start, and answered after the last was sent.
    assert!(
        report.tenants[0].ttft.max_ms > Some(200.0),
        "{:?}",
        report.tenants[0].ttft
    );
}

#[test]
fn a_request_that_is_never_answered_is_unfinished_and_its_wait_is_a_latency() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Silence);
    let mut spec = one_tenant(&endpoint, 300.0);
    spec.timing.drain = Micros::ZERO;
    let report = report(&spec);
    assert!(report.totals.due > 50 && report.totals.unfinished == report.totals.due);
    assert_eq!(report.tenants[0].ttft.n as u64, report.totals.due);
    assert!(report.tenants[0].ttft.max_ms > Some(200.0));
    assert!(report.is_valid());
}

#[test]
fn a_client_that_was_held_up_counts_from_the_intended_send_and_is_invalid() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let mut spec = one_tenant(&endpoint, 100.0);
    spec.timing.slip_p99_max = Micros::from_millis(100);
    let held_up = || Clock::started(Duration::from_secs(2));
    let report = run_on(&spec, &Stop::new(), held_up, |_| {}).unwrap().0;
    // The last was due after 333 ms, and left after 2 s.
    assert!(
        report.tenants[0].ttft.p50_ms > Some(1_600.0),
        "{:?}",
        report.tenants[0].ttft
    );
    assert!(report.slip.p50_ms > 1_600.0);
    let Validity::Invalid(reasons) = &report.validity else {
        panic!("a late run is invalid")
    };
    assert!(
        reasons[0].starts_with("requests were sent too late"),
        "{reasons:?}"
    );
    assert_eq!(report.exit_code(), 2);
    let shown = report.to_string();
    assert!(
        shown.contains("INVALID") && !shown.contains("tok/s"),
        "{shown}"
    );
    assert!(report.to_json().get("tenants").is_none());
    assert_eq!(report.point("quiet", "late"), None);
}

#[test]
fn refusals_are_counted_by_their_reason_and_tenants_are_told_apart() {
    let endpoint = TestEndpoint::start(|_, asked: &Asked| {
        let flooder = asked.head.contains("authorization: Bearer sk-flood");
        if flooder {
            Answer::Refusal(429, "requests")
        } else {
            Answer::Tokens(4)
        }
    });
    let key = Identity::Key(Key::new("sk-flood"));
    let tenants = vec![
        tenant("flooder", 200.0, key),
        tenant("quiet", 60.0, Identity::TenantHeader),
    ];
    let report = report(&spec(&endpoint, tenants));
    let [flooder, quiet] = &report.tenants[..] else {
        panic!("two tenants")
    };
    assert_eq!(flooder.refused.get("requests"), Some(&flooder.due));
    assert_eq!((flooder.completed, flooder.ttft.n), (0, 0));
    assert_eq!((quiet.completed, quiet.refused.len()), (quiet.due, 0));
    assert!(quiet.due > 5 && flooder.due > 30);
    assert_eq!(report.totals.refused, flooder.due);
    assert!(report.to_string().contains("flooder: refused: requests "));
}

#[test]
fn a_request_asks_for_its_lengths_and_never_twice_for_the_same_text() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let report = report(&one_tenant(&endpoint, 100.0));
    let asked = endpoint.asked();
    assert_eq!(asked.len() as u64, report.totals.due);
    let mut texts: Vec<String> = asked.iter().map(Asked::prompt).collect();
    assert!(
        texts.iter().all(|text| text.len() == 110),
        "128 less the template's 18"
    );
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), asked.len());
    for one in &asked {
        assert!(
            one.head
                .starts_with("POST /v1/chat/completions HTTP/1.1\r\n")
        );
        assert!(one.head.contains("x-tenant-id: quiet\r\n"), "{}", one.head);
        let body = one.json();
        assert_eq!(
            (&body["max_tokens"], &body["ignore_eos"]),
            (&4.into(), &true.into())
        );
        assert_eq!(body["stream_options"]["include_usage"], true);
    }
    assert!(report.tenants[0].tokens_per_s > 0.0);
    assert_eq!(report.tenants[0].output_tokens, [Some(4.0), Some(4.0)]);
    let point = report.point("quiet", "now").unwrap();
    assert_eq!(Some(point.p99_ms), report.tenants[0].ttft.p99_ms);
    assert_eq!(point.tokens_per_s, report.totals.tokens_per_s);
}

#[test]
fn half_streams_error_events_and_resets_fail_and_never_complete() {
    let kinds = [
        (Answer::HalfStream, "cut_off"),
        (Answer::ErrorEvent, "error_event"),
        (Answer::Reset, "reset"),
        (Answer::ResetMidStream, "reset"),
        (Answer::DoneAtOnce, "no_finish"),
        (Answer::Refusal(500, "bug"), "http_500"),
        (Answer::Tokens(4), ""),
    ];
    for (answer, kind) in kinds {
        let endpoint = TestEndpoint::start(move |_, _| answer);
        let report = report(&one_tenant(&endpoint, 60.0));
        let tenant = &report.tenants[0];
        assert!(tenant.due > 5);
        let (failed, completed) = (tenant.failed.get(kind).copied(), tenant.completed);
        let expected = if kind.is_empty() {
            (None, tenant.due)
        } else {
            (Some(tenant.due), 0)
        };
        assert_eq!(
            (failed, completed),
            expected,
            "{answer:?}: {:?}",
            tenant.failed
        );
    }
}

#[test]
fn buffered_answers_have_their_first_token_at_their_end() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Whole);
    let report = report(&Spec {
        reply: Reply::Buffered,
        ..one_tenant(&endpoint, 100.0)
    });
    let tenant = &report.tenants[0];
    assert_eq!(tenant.completed, tenant.due);
    assert_eq!((tenant.ttft.n, tenant.tpot.n), (tenant.e2e.n, 0));
}

#[test]
fn connections_are_used_again() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let report = report(&one_tenant(&endpoint, 300.0));
    assert_eq!(report.totals.completed, report.totals.due);
    assert!(
        endpoint.connections() < report.totals.due,
        "{}",
        endpoint.connections()
    );
}

#[test]
fn what_a_prompt_costs_is_learned_before_the_run() {
    // 20 tokens of template and a token for four bytes.
    let endpoint = TestEndpoint::start(|_, _| Answer::Counted {
        template: 20,
        bytes_a_token: 4,
    });
    let learned = Spec {
        tokenizer: Tokenizer::Learned,
        reply: Reply::Buffered,
        ..one_tenant(&endpoint, 60.0)
    };
    let report = report(&learned);
    assert_eq!(report.tenants[0].prompt_tokens, [Some(128.0), Some(128.0)]);
    let deaf = TestEndpoint::start(|_, _| Answer::Refusal(401, "invalid_api_key"));
    let error = run(
        &Spec {
            tokenizer: Tokenizer::Learned,
            ..one_tenant(&deaf, 60.0)
        },
        &Stop::new(),
        |_| {},
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("cannot learn") && error.contains("401"),
        "{error}"
    );
}

#[test]
fn there_is_no_report_of_an_endpoint_that_is_down() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let spec = one_tenant(&endpoint, 100.0);
    drop(endpoint);
    let error = run(&spec, &Stop::new(), |_| {}).unwrap_err().to_string();
    assert!(
        error.starts_with("nothing answers at http://127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn there_is_no_report_without_its_rows() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let spec = |path: &str| Spec {
        rows: Some(path.into()),
        ..one_tenant(&endpoint, 100.0)
    };
    for path in ["no/such/folder/rows.csv", "/dev/full"] {
        let error = run(&spec(path), &Stop::new(), |_| {})
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("cannot write raw rows to {path}: ")),
            "{error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let report = report(&Spec {
        rows: Some(path.clone()),
        ..one_tenant(&endpoint, 100.0)
    });
    let lines = std::fs::read_to_string(path).unwrap().lines().count() as u64;
    assert_eq!(lines, report.totals.due + 1);
}

#[test]
fn a_run_that_measures_nothing_does_not_start() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let mut spec = one_tenant(&endpoint, 100.0);
    spec.timing.warm_up = spec.timing.duration;
    assert!(matches!(
        run(&spec, &Stop::new(), |_| {}),
        Err(BenchError::NothingMeasured)
    ));
    let no_name = tenant("a\nb", 1.0, Identity::TenantHeader);
    spec.timing.warm_up = Micros::ZERO;
    spec.source = Source::Drawn(vec![no_name]);
    assert!(matches!(
        run(&spec, &Stop::new(), |_| {}),
        Err(BenchError::Header(_))
    ));
    assert_eq!(endpoint.connections(), 0);
}

#[test]
fn the_bound_on_open_requests_is_enforced_and_makes_the_run_invalid() {
    let endpoint = TestEndpoint::start(|_, _| Answer::Tokens(4));
    let spec = one_tenant(&endpoint, 100.0);
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let workload = workload(&spec).unwrap();
    let address = resolve(&spec.endpoint).unwrap();
    let asker = asker(&spec, &workload, address, runtime.handle()).unwrap();
    let session = Session {
        asker,
        clock: Clock::start(),
        prompts: Prompts::told(spec.tokenizer, 1).unwrap(),
        window: Window {
            from: Time::START,
            until: Time::START + spec.timing.duration,
        },
        over: CancellationToken::new(),
    };
    let load = Load {
        session: Arc::new(session),
        tasks: TaskTracker::new(),
        cycle: Cycle::Open,
        stop: Stop::new(),
        broken: AtomicBool::new(false),
    };
    // As if that many requests were open; they end with the test.
    let open: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| load.tasks.token()).collect();
    let (sender, receiver) = channel();
    load.send_all(&runtime, &workload, &sender);
    drop((sender, open));
    let rows: Vec<Row> = receiver.iter().collect();
    assert!(rows.len() > 10 && rows.iter().all(|row| row.ending == Ending::NotSent));
    assert!(!Report::new(&spec, workload.tenants(), &rows, 0).is_valid());
}
