//! The load tools as a person runs them: an engine in one terminal, a load in the other.

use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;

use crate::deadline::eventually;
use crate::process::{Ended, Running, run, tollgate};

/// An emulated engine on a port of its own, and its URL.
fn engine(folder: &Path, more: &[&str]) -> (Running, String) {
    let args = ["bench", "engine", "--listen", "127.0.0.1:0"];
    let mut running = Running::start(tollgate(folder, &[&args, more].concat()));
    let line = running.line(|line| line.contains("listens on"));
    let (_, url) = line.split_once("http://").unwrap();
    (running, format!("http://{}", url.trim()))
}

/// A short load whose bound on the slip is one that a busy test machine keeps.
fn load<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "bench",
        "run",
        "--url",
        url,
        "--model",
        "stub",
        "--duration",
        "1s",
        "--warm-up",
        "0s",
        "--slip-max",
        "20s",
    ];
    [&args, more].concat()
}

fn ran(folder: &Path, args: &[&str]) -> Ended {
    run(tollgate(folder, args))
}

const TENANT: &str = "a:rate=40,prompt=64,output=4";

#[test]
fn a_load_on_an_emulated_engine_is_reported_with_its_rows_and_its_json() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, url) = engine(folder.path(), &[]);
    let more = [
        "--tenant",
        TENANT,
        "--rows",
        "rows.csv",
        "--json",
        "report.json",
    ];
    let ended = ran(folder.path(), &load(&url, &more));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("open loop of 1 s"),
        "{}",
        ended.stdout
    );
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let due = report["totals"]["due"].as_u64().unwrap();
    assert!(
        due > 10 && report["totals"]["completed"] == due,
        "{report:#}"
    );
    assert_eq!(
        report["tenants"][0]["prompt_tokens"][1], 64.0,
        "what a byte costs was learned"
    );
    let rows = std::fs::read_to_string(folder.path().join("rows.csv")).unwrap();
    assert_eq!(rows.lines().count() as u64, due + 1);
    engine.signal("INT");
    let engine = engine.ended(crate::deadline::PATIENCE);
    assert_eq!(engine.code, Some(0));
    assert!(
        engine.stdout.contains(&format!("{} requests", due + 2)),
        "{}",
        engine.stdout
    );
}

#[test]
fn a_closed_loop_says_that_it_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let (_engine, url) = engine(folder.path(), &["--instant"]);
    let ended = ran(
        folder.path(),
        &load(&url, &["--tenant", TENANT, "--closed", "2"]),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("CLOSED loop of 2 clients"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("no latencies under a load"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_load_that_is_stopped_keeps_its_rows_and_reports_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_engine, url) = engine(folder.path(), &["--instant"]);
    let args = [
        "bench",
        "run",
        "--url",
        &url,
        "--model",
        "stub",
        "--duration",
        "1440m",
        "--tenant",
        TENANT,
        "--rows",
        "rows.csv",
    ];
    let running = Running::start(tollgate(folder.path(), &args));
    let path = folder.path().join("rows.csv");
    eventually("rows are written", || {
        let text = std::fs::read_to_string(&path).ok()?;
        (text.lines().count() > 5).then_some(())
    });
    running.signal("INT");
    let ended = running.ended(crate::deadline::PATIENCE);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("stopped after"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("rows are in rows.csv"),
        "{}",
        ended.stderr
    );
    let rows = std::fs::read_to_string(&path).unwrap();
    assert!(rows.ends_with('\n') && rows.lines().count() > 5);
}

#[test]
fn what_cannot_be_run_is_said_and_exits_with_two() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("vtc_lmsys_27tenants.csv"),
        "when,who\n1,2\n",
    )
    .unwrap();
    std::fs::write(
        folder.path().join("load.yaml"),
        "tenants:\n  - { name: a, speed: 3 }\n",
    )
    .unwrap();
    let nobody = "http://127.0.0.1:1";
    for (more, said) in [
        (
            &["--tenant", TENANT][..],
            "nothing answers at http://127.0.0.1:1",
        ),
        (
            &["--tenant", "a:rate=0,prompt=1,output=1"],
            "0 requests per second; use more than 0",
        ),
        (
            &["--tenant", "a:rate=9e9,prompt=1,output=1"],
            "use more than 0 and at most 1000000",
        ),
        (
            &["--trace", "lmsys-27", "--trace-dir", "."],
            "the columns are `when,who`; they must be",
        ),
        (&["--workload", "load.yaml"], "load.yaml:2:"),
    ] {
        let ended = ran(folder.path(), &load(nobody, more));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(2), ""),
            "{more:?}"
        );
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
}

#[test]
fn the_gate_is_open_for_what_was_decided_before_and_shut_for_one_slot() {
    let folder = tempfile::tempdir().unwrap();
    let gate = |more: &[&str]| {
        let args = ["bench", "gate", "--baseline", "gate.json"];
        ran(folder.path(), &[&args, more].concat())
    };
    let missing = gate(&[]);
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.stderr.contains("write it with --update"),
        "{}",
        missing.stderr
    );
    assert_eq!(gate(&["--update"]).code, Some(0));
    let same = gate(&["--exact"]);
    assert_eq!(same.code, Some(0), "{}", same.stderr);
    assert!(same.stdout.contains("all as before"), "{}", same.stdout);
    let narrow = gate(&["--slots", "1"]);
    assert_eq!(narrow.code, Some(1));
    assert!(
        narrow.stderr.contains("worse: quiet TTFT p99"),
        "{}",
        narrow.stderr
    );
    std::fs::write(folder.path().join("gate.json"), "{}").unwrap();
    assert_eq!(gate(&[]).code, Some(2));
}

#[test]
fn the_arms_of_a_flood_are_started_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let args = "bench flood --tenants 6 --duration 2s --warm-up 0s --drain 30s --slip-max 20s \
                --json flood.json";
    let args: Vec<&str> = args.split(' ').collect();
    let ended = ran(folder.path(), &args);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    for arm in ["solo, fifo", "limits only", "fair"] {
        assert!(ended.stdout.contains(arm), "{}", ended.stdout);
    }
    let report = std::fs::read_to_string(folder.path().join("flood.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["arms"].as_array().unwrap().len(), 4);
}

#[test]
fn a_calibration_says_what_the_engine_does_not_serve() {
    let folder = tempfile::tempdir().unwrap();
    let slow = [
        "--slots",
        "2",
        "--step",
        "40ms",
        "--per-sequence",
        "20ms",
        "--context",
        "512",
    ];
    let (_engine, url) = engine(folder.path(), &slow);
    let calibrate = |more: &str| {
        let args = ["bench", "calibrate", "--url", &url, "--tokenizer", "bytes"];
        let more: Vec<&str> = more.split(' ').collect();
        ran(folder.path(), &[&args, &more[..]].concat())
    };
    let ended = calibrate("--model stub --sequences 1,4 --prompts 64,256 --output 8 --each 3s");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let said = "4 sequences at once: no step had more than 2: ";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(
        ended.stdout.contains(&format!("# {said}")),
        "{}",
        ended.stdout
    );
    // Before any of the runs, of which each would take two minutes.
    for (more, said) in [
        (
            "--model none",
            "404 Not Found: The model `none` does not exist",
        ),
        (
            "--model stub --prompts 64,5000",
            "does not serve a prompt of 5000 tokens",
        ),
    ] {
        let ended = calibrate(&format!("{more} --each 2m"));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{more}");
        assert!(ended.stderr.contains(said), "{more}: {}", ended.stderr);
    }
    for (more, said) in [
        ("--each 0s", "use 1s or more"),
        ("--output 0", "use a whole number from 4 to 100000"),
        ("--prompts 0,9", "use a whole number from 1 to 1000000"),
        ("--sequences 3,3", "name 2 at least"),
        ("--key a=PATH", "use *=VARIABLE"),
    ] {
        let ended = calibrate(&format!("--model stub {more}"));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{more}");
        assert!(ended.stderr.contains(said), "{more}: {}", ended.stderr);
    }
}

#[test]
fn a_calibration_finds_the_engine_that_it_asks() {
    let folder = tempfile::tempdir().unwrap();
    let (_engine, url) = engine(
        folder.path(),
        &[
            "--step",
            "40ms",
            "--per-sequence",
            "20ms",
            "--prefill",
            "4000",
        ],
    );
    let args = [
        "bench",
        "calibrate",
        "--url",
        &url,
        "--model",
        "stub",
        "--sequences",
        "1,4",
        "--prompts",
        "64,1000",
        "--output",
        "8",
        "--each",
        "4s",
        "--tokenizer",
        "bytes",
    ];
    let ended = ran(folder.path(), &args);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let number = |name: &str| -> f64 {
        let line = ended
            .stdout
            .lines()
            .find(|line| line.trim().starts_with(name))
            .unwrap();
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    // A busy machine makes each step later by some, so the bounds are wide.
    assert!(
        (20_000.0..80_000.0).contains(&number("- step:")),
        "{}",
        ended.stdout
    );
    assert!(
        (10_000.0..40_000.0).contains(&number("per_sequence:")),
        "{}",
        ended.stdout
    );
    let prefill = number("prefill_per_second:");
    assert!((2_000.0..8_000.0).contains(&prefill), "{}", ended.stdout);
}

#[test]
fn help_of_each_verb_has_examples() {
    let folder = tempfile::tempdir().unwrap();
    let help = |verb: &[&str]| {
        let ended = ran(folder.path(), &[&["bench"], verb, &["--help"]].concat());
        assert_eq!(ended.code, Some(0));
        ended.stdout
    };
    assert_snapshot!("bench", help(&[]));
    for verb in ["engine", "run", "flood", "gate", "calibrate"] {
        let said = help(&[verb]);
        assert!(said.contains("Examples:"), "{said}");
        assert_snapshot!(format!("bench_{verb}"), said);
    }
}
