//! The ledger's verbs, on what a real server left.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::deadline::PATIENCE;
use crate::process::{Ended, OPEN, Running, Server, run, serve, tollgate};

/// What `ledger show` prints, of which every line must be JSON.
pub(crate) fn shown(folder: &Path) -> String {
    let ended = verb(folder, &["show", "--format", "json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// The requests that ended, in order.
pub(crate) fn rows(folder: &Path) -> Vec<Value> {
    let shown = shown(folder);
    let rows = shown
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

fn verb(folder: &Path, args: &[&str]) -> Ended {
    run(tollgate(folder, &[&["ledger"], args].concat()))
}

/// Serves so many requests, and ends.
fn served(folder: &Path, requests: usize) {
    let server = Server::start(serve(folder, OPEN));
    for _ in 0..requests {
        assert!(server.stream(5).finish().is_done());
    }
    server.running.signal("TERM");
    assert_eq!(server.running.ended(PATIENCE).code, Some(0));
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("tollgate-data/journal")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn what_was_served_adds_up_and_is_shown_in_order() {
    let folder = tempfile::tempdir().unwrap();
    served(folder.path(), 3);
    let rows = rows(folder.path());
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row["output_tokens"] == 5));
    assert!(rows.is_sorted_by_key(|row| row["received_unix_us"].as_u64()));
    let table = verb(folder.path(), &["show"]).stdout;
    assert_eq!(table.lines().count(), 3);
    let verified = verb(folder.path(), &["verify"]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    for said in ["3 requests ended", "15 output tokens", "everything adds up"] {
        assert!(verified.stdout.contains(said), "{}", verified.stdout);
    }
}

#[test]
fn damage_is_refused_with_code_2_until_it_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    served(folder.path(), 3);
    let path = segments(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for refused in [
        run(serve(folder.path(), OPEN)),
        verb(folder.path(), &["verify"]),
        verb(folder.path(), &["show"]),
    ] {
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(
            refused.stderr.contains("ledger repair"),
            "{}",
            refused.stderr
        );
    }
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing was changed");
    let repaired = verb(folder.path(), &["repair"]);
    assert_eq!(repaired.code, Some(0), "{}", repaired.stderr);
    assert!(
        repaired.stdout.contains("1 records are lost"),
        "{}",
        repaired.stdout
    );
    served(folder.path(), 1);
    assert_eq!(verb(folder.path(), &["verify"]).code, Some(0));
}

#[test]
fn a_ledger_of_another_version_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    served(folder.path(), 1);
    let path = segments(folder.path()).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 200;
    fs::write(&path, &bytes).unwrap();
    for refused in [
        run(serve(folder.path(), OPEN)),
        verb(folder.path(), &["verify"]),
        verb(folder.path(), &["repair"]),
    ] {
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("version 200"), "{}", refused.stderr);
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(segments(folder.path()), [path]);
}

#[test]
fn a_second_server_on_one_folder_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::start(serve(folder.path(), OPEN));
    let second = Running::start(serve(folder.path(), OPEN)).ended(PATIENCE);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    let process = first.running.pid().to_string();
    for said in ["another Tollgate", &process] {
        assert!(second.stderr.contains(said), "{}", second.stderr);
    }
    assert_eq!(verb(folder.path(), &["repair"]).code, Some(2));
    assert_eq!(
        verb(folder.path(), &["verify"]).code,
        Some(0),
        "reading may"
    );
    assert!(first.stream(5).finish().is_done());
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = verb(folder.path(), &["verify", "--data-dir", "nowhere"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("nowhere"), "{}", refused.stderr);
}

#[test]
fn a_store_that_differs_is_told_request_by_request() {
    let folder = tempfile::tempdir().unwrap();
    served(folder.path(), 3);
    let names: Vec<_> = rows(folder.path())
        .iter()
        .map(|row| row["request"].as_str().unwrap().to_owned())
        .collect();
    let path = folder.path().join("tollgate-data/tollgate.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    for (change, request) in [
        "SET output_tokens = 4 WHERE request = ?1",
        "SET tenant = 'somebody-else' WHERE request = ?1",
    ]
    .iter()
    .zip(&names)
    {
        let sql = format!("UPDATE request_log {change}");
        assert_eq!(database.execute(&sql, [request]), Ok(1));
    }
    let gone = "DELETE FROM request_log WHERE request = ?1";
    assert_eq!(database.execute(gone, [&names[2]]), Ok(1));
    drop(database);
    let verified = verb(folder.path(), &["verify"]);
    assert_eq!(verified.code, Some(2), "{}", verified.stdout);
    for said in [
        format!("{}: prompt", names[0]),
        format!("{}: the tenant is", names[1]),
        format!("{}: not in the store", names[2]),
        "the store differs".to_owned(),
    ] {
        assert!(
            verified.stderr.contains(&said),
            "{said} in {}",
            verified.stderr
        );
    }
}

#[test]
fn where_there_is_no_store_the_journal_is_recounted_and_no_store_is_made() {
    let folder = tempfile::tempdir().unwrap();
    served(folder.path(), 1);
    let data = folder.path().join("tollgate-data");
    for name in ["tollgate.db", "tollgate.db-wal", "tollgate.db-shm"] {
        // Err: the database was closed in order, and has but one file.
        let _ = fs::remove_file(data.join(name));
    }
    let verified = verb(folder.path(), &["verify"]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.contains("no store"), "{}", verified.stdout);
    for verb in [
        &["keys", "list"][..],
        &["keys", "create", "--tenant", "t"],
        &["tenants", "create", "t", "--weight", "0"],
        &["usage"],
    ] {
        let refused = run(tollgate(folder.path(), verb));
        assert_eq!(refused.code, Some(2), "{verb:?}: {}", refused.stderr);
    }
    assert!(!data.join("tollgate.db").exists());
}
