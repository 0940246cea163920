//! `tollgate bench ladder`, `bench realism` and `report`: from a ladder to its page.

use std::path::Path;

use insta::assert_snapshot;

use crate::process::{Ended, run, tollgate};

fn ran(folder: &Path, line: &str) -> Ended {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = tollgate(folder, &words);
    command.env_remove("TOLLGATE_TRACES");
    run(command)
}

#[test]
fn a_ladder_on_a_virtual_clock_leaves_a_page_and_rows_that_the_report_reads() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let ladder = "bench ladder --sim --loads 4,8 --seeds 1 --duration 10s --warm-up 1s --out l";
    let ended = ran(at, ladder);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("continuous+prefix: ") && ended.stdout.contains("8 of 8 cells"));
    let again = ran(at, ladder);
    assert_eq!(
        (again.code, again.stderr.as_str()),
        (Some(0), ""),
        "nothing is left to run"
    );
    let ended = ran(
        at,
        "report l/cells --baseline fifo --out page.html --csv scores.csv",
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(ended.stdout, @"page.html: 8 runs with numbers, 0 without");
    let page = std::fs::read_to_string(at.join("page.html")).unwrap();
    assert!(page.contains("Each series against fifo"));
    let scores = std::fs::read_to_string(at.join("scores.csv")).unwrap();
    assert_eq!(scores.lines().count(), 9);
}

#[test]
fn the_committed_ladder_is_what_its_command_gives() {
    let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../results"));
    let document = std::fs::read_to_string(results.join("ladder.md")).unwrap();
    let mut commands = document
        .lines()
        .filter(|line| line.starts_with("tollgate bench ladder --sim"));
    let command = commands.next().unwrap().trim_start_matches("tollgate ");
    let folder = tempfile::tempdir().unwrap();
    let ended = ran(folder.path(), command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let peaks = std::fs::read_to_string(folder.path().join("ladder-sim/ladder-peaks.csv")).unwrap();
    let committed = std::fs::read_to_string(results.join("ladder-sim.csv")).unwrap();
    assert_eq!(peaks, committed);
}

#[test]
fn a_ladder_on_servers_starts_one_for_each_cell_and_sends_a_probe_first() {
    let folder = tempfile::tempdir().unwrap();
    let ladder = "bench ladder --fake --loads 10 --seeds 1 --rungs static,slo-goodput,slo-99 \
                  --cost 1000,10,100000 --duration 2s --warm-up 500ms --out l";
    let ended = ran(folder.path(), ladder);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for cell in ["static-10-s1", "slo-goodput-10-s1", "slo-99-10-s1"] {
        let record = folder.path().join(format!("l/cells/{cell}.json"));
        let record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
        assert_eq!(
            record["cell"]["failed"],
            serde_json::Value::Null,
            "{record:#}"
        );
        assert!(record["cell"]["canary_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(record["cell"]["source"].as_str().unwrap().len(), 16);
        assert!(record["header"]["machine"]["cores"].as_u64().unwrap() > 0);
        let rows = folder.path().join(format!("l/cells/{cell}.csv"));
        assert!(
            std::fs::read_to_string(rows)
                .unwrap()
                .contains(",completed,")
        );
    }
}

#[test]
fn a_folder_that_holds_another_ladder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let first = "bench ladder --sim --loads 4 --seeds 1 --rungs fifo --duration 5s --out l";
    assert_eq!(ran(at, first).code, Some(0));
    let later = ran(
        at,
        "bench ladder --sim --loads 4 --seeds 1 --rungs fifo --duration 6s --out l",
    );
    assert_eq!((later.code, later.stdout.as_str()), (Some(2), ""));
    assert!(
        later.stderr.contains("l holds another ladder"),
        "{}",
        later.stderr
    );
}

#[test]
fn a_report_of_nothing_is_refused_and_leaves_no_page() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other.csv"), "a,b\n1,2\n").unwrap();
    let ended = ran(folder.path(), "report other.csv --out page.html");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.contains("other.csv holds no raw rows"),
        "{}",
        ended.stderr
    );
    assert!(!folder.path().join("page.html").exists());
}

#[test]
fn stand_ins_pass_the_gate_and_controls_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ran(folder.path(), "bench realism --trace lmsys-27");
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .contains("the stand-in has to pass, and passes"),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .contains("Poisson arrivals has to fail, and fails"),
        "{}",
        ended.stdout
    );
    let ended = ran(folder.path(), "bench realism --trace azure-code");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("has no stand-in"), "{}", ended.stderr);
}

#[test]
fn help_of_the_report_and_of_the_ladder_has_examples() {
    let folder = tempfile::tempdir().unwrap();
    assert_snapshot!(ran(folder.path(), "report --help").stdout);
    assert_snapshot!(ran(folder.path(), "bench ladder --help").stdout);
    assert_snapshot!(ran(folder.path(), "bench realism --help").stdout);
}
