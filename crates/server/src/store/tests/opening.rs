//! Stores that are not ours to change, and stores that come and go.

use super::*;

/// The files of a folder, and what is in them.
fn contents(folder: &std::path::Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.db");
    std::fs::write(&path, "not a database, but somebody's notes: ".repeat(40)).unwrap();
    let before = contents(folder.path());
    let error = Store::open(Location::File(path.clone())).unwrap_err();
    assert!(error.is_lasting());
    let said = error.to_string();
    assert!(
        said.contains("tollgate.db") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn a_schema_from_the_future_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.db");
    let mut store = Store::open(Location::File(path.clone())).unwrap();
    let later = "UPDATE meta SET value = 99 WHERE name = 'schema'";
    store.with(|database| database.batch(later)).unwrap();
    drop(store);
    let before = contents(folder.path());
    let error = Store::open(Location::File(path.clone())).unwrap_err();
    assert!(error.is_lasting());
    let said = error.to_string();
    assert!(
        said.contains("schema 99") && said.contains(&format!("up to {}", schema::VERSION)),
        "{said}"
    );
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn a_store_of_an_older_version_keeps_what_it_has_and_learns_the_rest() {
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().unwrap();
    let server = cluster.database("older");
    for location in [
        Location::File(folder.path().join("tollgate.db")),
        Location::Server(server),
    ] {
        let old = Store::at(location.clone());
        let mut database = old.dial().unwrap();
        database.begin().unwrap();
        database.lock_shape().unwrap();
        schema::first(&mut *database).unwrap();
        let insert = "INSERT INTO tenants (name, class, weight, limits, created_us) \
                      VALUES ('old', 'standard', 3, '{\"rpm\":5}', 0)";
        database.batch(insert).unwrap();
        database.batch("COMMIT").unwrap();
        drop(database);
        let mut store = Store::open(location).unwrap();
        let tenants = store.tenants().unwrap();
        assert_eq!((&*tenants[0].name, tenants[0].weight), ("old", 3));
        assert_eq!(tenants[0].model_limits, []);
    }
}

#[test]
fn a_store_that_is_opened_again_has_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::File(folder.path().join("tollgate.db"));
    let mut store = Store::open(location.clone()).unwrap();
    store.fold("j", &[charge(0, "t", SPRING)], upto(1)).unwrap();
    drop(store);
    let mut store = Store::open(location).unwrap();
    assert_eq!(
        (
            total(&mut store).requests,
            store.folded("j").unwrap().number
        ),
        (1, 1)
    );
}

#[test]
fn a_password_in_a_url_is_in_no_message() {
    let url = "postgres://ops:hunter2@127.0.0.1:1/tollgate?connect_timeout=1";
    let location = Location::Server(url.to_owned());
    let error = Store::open(location.clone()).unwrap_err();
    assert!(!error.is_lasting(), "a server that is away may come back");
    let shown = format!(
        "{error} {error:?} {location:?} {:?}",
        Store::at(location.clone())
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_server_is_reached_by_tls_only_if_its_certificate_is_trusted_and_its_name_is_right() {
    let own = rcgen::generate_simple_self_signed(vec!["db.test".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, own.cert.pem()).unwrap();
    let mut cluster = Cluster::start();
    let key = own.signing_key.serialize_pem();
    let port = cluster.encrypt(&own.cert.pem(), &key);
    let open = |name: &str, more: &str| {
        let url = format!(
            "host={name} hostaddr=127.0.0.1 port={port} user=tollgate dbname=postgres \
             sslmode=verify-full {more}"
        );
        Store::open(Location::Server(url))
    };
    let trusting = format!("sslrootcert={}", file.display());
    let mut store = open("db.test", &trusting).unwrap();
    store.fold("j", &[charge(0, "t", SPRING)], upto(1)).unwrap();
    let encrypted = "SELECT CASE WHEN ssl THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END \
                     FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let rows = store.query(encrypted, &[]).unwrap();
    assert_eq!(rows[0].int(0).unwrap(), 1);
    for (name, more) in [("db.test", ""), ("other.test", &*trusting)] {
        let refused = open(name, more).unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
    }
}

#[test]
fn a_server_that_went_away_is_found_again_and_counts_nothing_twice() {
    let mut cluster = Cluster::start();
    let location = Location::Server(cluster.database("coming_and_going"));
    let mut store = Store::open(location.clone()).unwrap();
    let charges: Vec<_> = (0..6).map(|n| charge(n, "t", SPRING)).collect();
    store.fold("j", &charges[..3], upto(3)).unwrap();
    cluster.stop();
    let error = store.fold("j", &charges, upto(6)).unwrap_err();
    assert!(matches!(error, StoreError::Down { .. }), "{error:?}");
    assert!(store.fold("j", &charges, upto(6)).is_err());
    cluster.serve();
    let folded = store.fold("j", &charges, upto(6)).unwrap();
    assert_eq!((folded.counted, folded.known), (3, 3));
    assert_eq!(total(&mut store).requests, 6);
}

#[test]
fn gateways_that_share_a_server_fold_at_once_without_losing_or_doubling() {
    let cluster = Cluster::start();
    let url = cluster.database("shared");
    let gateway = |journal: &'static str| {
        let location = Location::Server(url.clone());
        std::thread::spawn(move || {
            // Each makes the tables, at the same moment.
            let mut store = Store::open(location).unwrap();
            for n in 0..20 {
                let batch: Vec<_> = (n * 10..n * 10 + 10)
                    .map(|n| charge(n, if n % 2 == 0 { "a" } else { "b" }, SPRING + n))
                    .collect();
                store.fold(journal, &batch, upto(n * 10 + 10)).unwrap();
            }
        })
    };
    let running = ["one", "two", "three"].map(gateway);
    for one in running {
        one.join().unwrap();
    }
    let mut store = Store::open(Location::Server(url)).unwrap();
    assert_eq!(total(&mut store).requests, 600);
    assert_eq!(store.verify_usage().unwrap(), []);
}
