//! Data and configurations that can't be worked with: a clear message, exit code 2, and nothing is
//! touched.

use std::fs;
use std::path::Path;

use crate::deadline::PATIENCE;
use crate::process::{OPEN, Server, run, serve, tollgate};

/// All files below a folder, and what is in them.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                all.push((path.display().to_string(), fs::read(path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

/// A folder in which a server has served something.
fn served() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(serve(folder.path(), OPEN));
    assert!(server.stream(5).finish().is_done());
    server.running.signal("TERM");
    assert_eq!(server.running.ended(PATIENCE).code, Some(0));
    folder
}

/// Every verb that reads the store, and the server, refuse with these words and leave all as it is.
fn assert_all_refuse(folder: &Path, said: &str) {
    let data = folder.join("tollgate-data");
    fs::write(folder.join("tollgate.yaml"), OPEN).unwrap();
    let before = contents(&data);
    let verbs: [&[&str]; 5] = [
        &["usage"],
        &["invoice", "t", "--month", "2026-07"],
        &["keys", "list"],
        &["tenants", "create", "t"],
        &["ledger", "verify"],
    ];
    let mut commands: Vec<_> = verbs.iter().map(|verb| tollgate(folder, verb)).collect();
    commands.push(tollgate(folder, &["serve", "--config", "tollgate.yaml"]));
    for command in commands {
        let what = format!("{command:?}");
        let ended = run(command);
        assert_eq!(ended.code, Some(2), "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{what}: {}", ended.stderr);
        assert!(contents(&data) == before, "{what} changed something");
    }
}

#[test]
fn a_database_that_can_not_be_read_is_told_and_left_alone() {
    let folder = served();
    let path = folder.path().join("tollgate-data/tollgate.db");
    for beside in ["tollgate.db-wal", "tollgate.db-shm"] {
        let _ = fs::remove_file(path.with_file_name(beside));
    }
    fs::write(
        &path,
        "somebody's notes, and no database at all. ".repeat(30),
    )
    .unwrap();
    assert_all_refuse(folder.path(), "can't be used as a store");
}

#[test]
fn a_database_of_something_else_is_told_and_left_alone() {
    let folder = served();
    let path = folder.path().join("tollgate-data/tollgate.db");
    let whole = fs::read(&path).unwrap();
    // The first page of a database has its header in the first hundred bytes.
    let mut broken = whole;
    broken[100..600].fill(0xff);
    fs::write(&path, broken).unwrap();
    assert_all_refuse(folder.path(), "can't be used as a store");
}

#[test]
fn a_schema_from_the_future_is_told_and_left_alone() {
    let folder = served();
    let path = folder.path().join("tollgate-data/tollgate.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    let later = "UPDATE meta SET value = 99 WHERE name = 'schema'";
    database.execute(later, []).unwrap();
    drop(database);
    assert_all_refuse(folder.path(), "has schema 99");
}

#[test]
fn a_folder_where_the_database_should_be_is_told_and_left_alone() {
    let folder = served();
    let path = folder.path().join("tollgate-data/tollgate.db");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_all_refuse(folder.path(), "can't be used as a store");
}

#[test]
fn what_is_asked_wrongly_is_told_and_changes_nothing() {
    let folder = served();
    let data = folder.path().join("tollgate-data");
    let tenant = run(tollgate(folder.path(), &["tenants", "create", "t"]));
    assert_eq!(tenant.code, Some(0), "{}", tenant.stderr);
    let before = contents(&data);
    let key = ["keys", "create", "--tenant"];
    let cases: [(&[&str], &str); 12] = [
        (&["nobody"], "no tenant nobody"),
        (&["t", "--endpoints", "chat,images"], "no endpoint images"),
        (&["t", "--expires", "2020-01-01"], "expired already"),
        (&["t", "--expires", "soon"], "soon is no time"),
        (&["t", "--budget=-1/day"], "-1/day"),
        (&["t", "--budget", "1/day/Europe/Atlantis"], "Atlantis"),
        (&["tenants", "create", "u", "--class", "golden"], "golden"),
        (&["tenants", "create", "t"], "a tenant t already"),
        (
            &["usage", "--from", "2026-05", "--to", "2026-04"],
            "not before to",
        ),
        (&["usage", "--from", "yesterday"], "yesterday is no time"),
        (&["usage", "--by", "colour"], "can't sum by colour"),
        (
            &["invoice", "t", "--month", "2026-13"],
            "2026-13 is no month",
        ),
    ];
    for (place, (rest, said)) in cases.into_iter().enumerate() {
        let args = if place < 6 {
            [&key, rest].concat()
        } else {
            rest.to_vec()
        };
        let ended = run(tollgate(folder.path(), &args));
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
        assert!(contents(&data) == before, "{args:?} changed something");
    }
}

#[test]
fn a_configuration_that_makes_no_sense_of_money_or_time_is_told_where() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\
identity: { anonymous: allow }
models: [{ name: m, engine: fake }]
prices: [{ model: m, prompt: -1 }, { model: m, from: 2026-13-01, output: 1 }, { model: n }, \
{ model: m, from: 2026-02-01 }, { model: m, from: 2026-02-01 }]
tenants:
  - name: t
    budget: { usd: -5, per: day, zone: Europe/Atlantis }
  - name: u
    budget: { usd: 5, per: week }
";
    fs::write(folder.path().join("tollgate.yaml"), text).unwrap();
    for verb in ["check", "serve"] {
        let ended = run(tollgate(
            folder.path(),
            &[verb, "--config", "tollgate.yaml"],
        ));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        for (place, what) in [
            ("3:30", "prices[0].prompt is -1"),
            ("3:54", "prices[1].from is 2026-13-01"),
            ("3:88", "prices[2].model is n"),
            ("3:143", "prices[4].from is that of an earlier price"),
            ("6:20", "tenants[0].budget.usd is -5"),
            ("6:40", "tenants[0].budget.zone is Europe/Atlantis"),
            ("8:28", "tenants[1].budget.per is week"),
        ] {
            assert!(
                said.contains(place) && said.contains(what),
                "{what} in {said}"
            );
        }
        assert_eq!(said.matches("prices[").count(), 4, "{said}");
        assert!(!folder.path().join("tollgate-data").exists());
    }
}
