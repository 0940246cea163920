//! `tollgate sim`: a report, exit codes for scripts, and a log that is the same every time.

use std::path::Path;

use crate::process::{Ended, run, tollgate};

const SMALL: &str = "\
title: small
duration: 5s
fleet: [{ slots: 4 }]
tenants:
  - name: a
    arrivals: { poisson: { rate: 20 } }
    prompt: { constant: 10 }
    output: { constant: 5 }
measures:
  - { what: served_percent, tenant: a, at_least: 99 }
";

fn sim(folder: &Path, text: &str, args: &[&str]) -> Ended {
    std::fs::write(folder.join("small.yaml"), text).unwrap();
    let all: Vec<&str> = ["sim", "small.yaml"].iter().chain(args).copied().collect();
    let mut command = tollgate(folder, &all);
    command.env_remove("TOLLGATE_TRACES");
    run(command)
}

#[test]
fn a_scenario_that_keeps_its_bounds_exits_0_with_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let ended = sim(folder.path(), SMALL, &["--seed", "7"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(
        ended.stdout.contains("seed 7, 5 s, tenants: 1"),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .ends_with("tollgate keeps every law and every bound.\n")
    );
}

#[test]
fn one_that_does_not_exits_1_and_says_how_to_play_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let text = SMALL.replace("at_least: 99", "at_least: 101");
    let ended = sim(folder.path(), &text, &["--seeds", "3..5"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    for wanted in [
        "play it again: tollgate sim small.yaml --seed 3",
        "2 seeds, 2 failed",
    ] {
        assert!(ended.stdout.contains(wanted), "{}", ended.stdout);
    }
}

#[test]
fn a_file_that_is_no_scenario_exits_2_with_the_place_of_its_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let ended = sim(folder.path(), &SMALL.replace("slots", "slot"), &[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.starts_with("small.yaml:3:"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("fleet[0]"), "{}", ended.stderr);
    let seeds = sim(folder.path(), SMALL, &["--seeds", "9..3"]);
    assert_eq!(seeds.code, Some(2));
    assert!(
        seeds.stderr.contains("no range of seeds"),
        "{}",
        seeds.stderr
    );
}

#[test]
fn the_same_seed_writes_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = |name: &str| {
        let ended = sim(folder.path(), SMALL, &["--log", name]);
        assert_eq!(ended.code, Some(0));
        std::fs::read_to_string(folder.path().join(name)).unwrap()
    };
    let first = log("first.log");
    assert!(first.lines().count() > 300);
    assert_eq!(first, log("second.log"));
}

#[test]
fn a_log_that_can_not_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let ended = sim(folder.path(), SMALL, &["--log", "no/such/folder.log"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.contains("no/such/folder.log"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_trace_that_is_not_at_hand_is_replaced_and_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let ended = sim(folder.path(), SMALL, &["--trace", "lmsys-27"]);
    assert!(
        ended.stderr.contains("a stand-in fitted to it is drawn"),
        "{}",
        ended.stderr
    );
    assert!(ended.stdout.contains("tenants: 27"), "{}", ended.stdout);
}
