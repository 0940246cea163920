//! The verbs of admission, on what a real server left.

use std::path::Path;

use crate::deadline::PATIENCE;
use crate::process::{Ended, Server, run, serve, tollgate};

const PROMISING: &str = "\
listen: 127.0.0.1:0
identity: { anonymous: allow }
models: [{ name: m, engine: fake, slo: { ttft: 60s, alpha: 0.2 } }]
";

fn verb(folder: &Path, args: &[&str]) -> Ended {
    run(tollgate(folder, &[&["admission"], args].concat()))
}

#[test]
fn decisions_are_summed_up_and_printed_as_one_csv() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), PROMISING));
    for _ in 0..12 {
        assert!(server.stream(5).finish().is_done());
    }
    server.running.signal("TERM");
    assert_eq!(server.running.ended(PATIENCE).code, Some(0));

    let report = verb(folder.path(), &["report"]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    let line = report.stdout.lines().nth(1).unwrap();
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells[..4], ["m", "anonymous", "12", "0"], "{line}");

    let export = verb(folder.path(), &["export"]);
    let mut lines = export.stdout.lines();
    let columns = lines.next().unwrap().split(',').count();
    assert_eq!(lines.clone().count(), 12);
    assert!(lines.all(|line| line.split(',').count() == columns && line.contains(",completed,")));
}

#[test]
fn where_there_is_nothing_it_says_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let report = verb(folder.path(), &["report"]);
    assert_eq!(report.code, Some(2));
    assert!(
        report.stderr.contains("give --data-dir"),
        "{}",
        report.stderr
    );
    // Nobody can listen on port zero.
    let status = verb(folder.path(), &["status", "--admin", "127.0.0.1:0"]);
    assert_eq!(status.code, Some(2));
    assert!(status.stderr.contains("give --admin"), "{}", status.stderr);
}
