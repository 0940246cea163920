//! The whole journal, its thread included, on a real disk and on one that does not answer.

use std::sync::mpsc::channel;
use std::time::Duration;

use tollgate_policy::units::Micros;

use super::faulty::{Chance, FaultyDisk, Plan};
use super::{ended, ends, started};
use crate::clock::Clock;
use crate::journal::lock::Lock;
use crate::journal::record::Record;
use crate::journal::segment::Position;
use crate::journal::{Health, Journal, Left, Reader, Settings};

const SETTINGS: Settings = Settings {
    sync: Duration::from_millis(20),
    segment_max: 4_000,
};

fn open(folder: &std::path::Path) -> (Journal, Left) {
    Journal::open(folder, SETTINGS, Clock::start()).unwrap()
}

#[tokio::test]
async fn what_is_handed_in_is_on_disk_soon_and_can_be_read_from_where_one_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, left) = open(folder.path());
    assert_eq!(left.interrupted, 0);
    let mut synced = journal.synced();
    let mut reader = Reader::open(folder.path());
    let mut stopped = Position::default();
    let mut found = Vec::new();
    for number in 1..=60 {
        journal.append(Record::Started(started(number)));
        journal.append(Record::Ended(ended(number, number)));
        let before = *synced.borrow_and_update();
        if number % 10 == 0 {
            let moved = synced.wait_for(|synced| *synced > before);
            tokio::time::timeout(Duration::from_secs(60), moved)
                .await
                .unwrap()
                .unwrap();
        }
        // A reader that begins anew each time, as a process would that was restarted.
        reader.seek(stopped).unwrap();
        while let Some(entry) = reader.next().unwrap() {
            stopped = entry.next;
            found.push(entry.record);
        }
    }
    journal.close();
    reader.seek(stopped).unwrap();
    while let Some(entry) = reader.next().unwrap() {
        found.push(entry.record);
    }
    let numbers: Vec<_> = ends(&found).iter().map(|end| end.request.number).collect();
    assert_eq!(numbers, (1..=60).collect::<Vec<_>>());
    assert!(stopped.segment > 1, "several segments were filled");
    assert_eq!(*journal.health().borrow(), Health::Writing);
    assert_eq!((journal.spilled(), journal.waiting()), (0, 0));
}

#[test]
fn a_life_of_the_gateway_has_a_number_that_none_before_had() {
    let folder = tempfile::tempdir().unwrap();
    let mut boots = Vec::new();
    for _ in 0..3 {
        let (journal, _) = open(folder.path());
        boots.push(journal.boot());
        journal.close();
    }
    assert!(boots.is_sorted_by(|one, next| one < next), "{boots:?}");
}

#[test]
fn an_end_that_comes_after_the_end_goes_to_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    journal.append(Record::Ended(ended(1, 1)));
    journal.close();
    journal.append(Record::Ended(ended(2, 1)));
    journal.append(Record::Started(started(3)));
    assert_eq!(journal.spilled(), 1);
}

#[test]
fn two_can_not_have_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = open(folder.path());
    let second = Journal::open(folder.path(), SETTINGS, Clock::start());
    let said = second.unwrap_err().to_string();
    assert!(said.contains("another Tollgate"), "{said}");
    first.close();
    drop(open(folder.path()));
}

/// Takes what a test hands in, and how long each took.
fn hand_in(journal: &Journal, first: u64, requests: u64) -> Vec<Micros> {
    let clock = Clock::start();
    let each = (first..first + requests).flat_map(|number| {
        [
            Record::Started(started(number)),
            Record::Ended(ended(number, number)),
        ]
        .map(|record| {
            let began = clock.now();
            journal.append(record);
            clock.now().since(began)
        })
    });
    each.collect()
}

#[test]
fn whoever_hands_in_waits_for_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(Plan::NONE, Chance(1));
    let lock = Lock::take(folder.path()).unwrap();
    let opened = Journal::open_on(disk.shelf(), lock, SETTINGS, Clock::start());
    let (journal, _) = opened.unwrap();
    let held = disk.hold();
    std::thread::scope(|scope| {
        let (done, all) = channel();
        let journal = &journal;
        scope.spawn(move || done.send(hand_in(journal, 1, 5_000).len()).unwrap());
        assert_eq!(all.recv_timeout(Duration::from_secs(60)), Ok(10_000));
        assert_eq!(journal.batches(), 0, "and the disk has none of it");
        drop(held);
    });
    journal.close();
    assert_eq!((journal.spilled(), journal.waiting()), (0, 0));
}

#[test]
fn handing_in_is_a_matter_of_microseconds_while_others_do_and_the_disk_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(folder.path());
    let mut took: Vec<_> = std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| {
            let journal = &journal;
            scope.spawn(move || {
                let parts = (0..50).map(|part| {
                    // The pace of some thousands of requests a second.
                    std::thread::park_timeout(Duration::from_millis(10));
                    hand_in(journal, 1 + thread * 100_000 + part * 40, 40)
                });
                parts.flatten().collect::<Vec<_>>()
            })
        });
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    journal.close();
    took.sort();
    let [p50, p99, most] = [500, 990, 1_000].map(|part| took[(took.len() - 1) * part / 1_000]);
    println!(
        "{} records: p50 {p50:?}, p99 {p99:?}, most {most:?}",
        took.len()
    );
    assert!(p50 < Micros::from_millis(1), "{p50:?}");
    assert_eq!((journal.spilled(), journal.waiting()), (0, 0));
}
