//! Failure at every single operation of the disk, of every kind, and a power cut after it.

use std::collections::BTreeMap;

use super::faulty::{Chance, Failure, FaultyDisk, Plan};
use super::{ended, ends, mark, started, used};
use crate::journal::JournalError;
use crate::journal::reader::{Reader, Shelf};
use crate::journal::record::{INTERRUPTED, Record, RequestName, UnixMicros, Used};
use crate::journal::recovery::{Recovered, Wish, recover};

/// Small, so that a script fills several segments.
const SEGMENT_MAX: u64 = 1_500;

const BATCHES: usize = 14;

fn open(shelf: Shelf) -> Result<Recovered, JournalError> {
    let wish = Wish {
        boot: 7,
        now: UnixMicros::new(1),
        segment_max: SEGMENT_MAX,
    };
    recover(shelf, wish)
}

fn read(shelf: Shelf) -> Vec<Record> {
    let mut reader = Reader::of(shelf);
    let mut records = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        records.push(entry.record);
    }
    records
}

/// What was handed in, and what of it was said to be on disk.
#[derive(Debug, Default)]
struct Told {
    handed_in: Vec<Record>,
    acknowledged: Vec<Record>,
}

/// Batches of starts, marks and ends; the same for the same chance.
fn script(chance: &mut Chance) -> Vec<Vec<Record>> {
    let mut running: Vec<(u64, u64)> = Vec::new();
    let mut number = 0;
    let mut batch = || {
        let mut records = Vec::new();
        for _ in 0..=chance.below(4) {
            let pick = chance.below(running.len().max(1));
            match (chance.below(3), running.get_mut(pick)) {
                (1, Some((number, output))) => {
                    *output += 3;
                    records.push(Record::Mark(mark(*number, *output)));
                }
                (2, Some(_)) => {
                    let (number, output) = running.swap_remove(pick);
                    records.push(Record::Ended(ended(number, output + 1)));
                }
                (_, _) => {
                    number += 1;
                    running.push((number, 0));
                    records.push(Record::Started(started(number)));
                }
            }
        }
        records
    };
    (0..BATCHES).map(|_| batch()).collect()
}

/// Writes the script, each batch as often as it takes, until the power is cut or it is done.
fn write(disk: &FaultyDisk, script: &[Vec<Record>]) -> Told {
    let mut told = Told::default();
    let mut recovered = open(disk.shelf());
    for _ in 0..8 {
        match recovered {
            Ok(_) => break,
            Err(_) => recovered = open(disk.shelf()),
        }
    }
    let Ok(Recovered { mut writer, .. }) = recovered else {
        return told;
    };
    let mut pending = Vec::new();
    for batch in script {
        told.handed_in.extend(batch.iter().cloned());
        pending.extend(batch.iter().cloned());
        if writer.commit(&pending, UnixMicros::new(1)).is_ok() {
            told.acknowledged.append(&mut pending);
        }
    }
    // The disk is back, unless there is no power.
    for _ in 0..8 {
        if writer.commit(&pending, UnixMicros::new(1)).is_ok() {
            told.acknowledged.append(&mut pending);
        }
    }
    told
}

/// Each acknowledged record is there once, and nothing that was not handed in.
fn check(told: &Told, found: &[Record], what: &str) {
    let mut by_name: BTreeMap<RequestName, Vec<&Record>> = BTreeMap::new();
    for record in &told.handed_in {
        let name = match record {
            Record::Started(started) => started.request,
            Record::Mark(mark) => mark.request,
            Record::Ended(ended) => ended.request,
            Record::Opened(_) | Record::Carried(..) | Record::Lost(_) => unreachable!(),
        };
        by_name.entry(name).or_default().push(record);
    }
    let mut charged = BTreeMap::new();
    for end in ends(found) {
        assert!(
            charged.insert(end.request, end).is_none(),
            "{what}: {} is there twice",
            end.request
        );
        let handed_in = by_name.get(&end.request);
        let handed_in = handed_in.unwrap_or_else(|| panic!("{what}: {} is invented", end.request));
        if end.outcome == INTERRUPTED {
            let proven = |record: &&Record| match record {
                Record::Mark(mark) => mark.used == end.used,
                Record::Started(_) => end.used == Used::default(),
                Record::Opened(_) | Record::Carried(..) | Record::Ended(_) | Record::Lost(_) => {
                    false
                }
            };
            assert!(handed_in.iter().any(proven), "{what}: {end:?} is unproven");
        } else {
            assert!(handed_in.contains(&&Record::Ended(end.clone())), "{what}");
        }
    }
    for record in &told.acknowledged {
        match record {
            Record::Started(started) => {
                assert!(charged.contains_key(&started.request), "{what}: {record:?}");
            }
            Record::Mark(mark) => {
                let output = charged.get(&mark.request).map(|end| end.used.output);
                assert!(output >= Some(mark.used.output), "{what}: {record:?}");
            }
            Record::Ended(ended) => assert_eq!(charged.get(&ended.request), Some(&ended), "{what}"),
            Record::Opened(_) | Record::Carried(..) | Record::Lost(_) => unreachable!(),
        }
    }
}

/// Opens what a power cut left, with a power cut at each operation of that too.
fn recover_and_check(disk: &FaultyDisk, told: &Told, what: &str) {
    for point in 0.. {
        let plan = Plan {
            from: point,
            count: 1,
            how: Failure::PowerCut,
        };
        let first = disk.after_power_cut(plan);
        let whole = open(first.shelf()).is_ok() && first.operations() <= point;
        let second = first.after_power_cut(Plan::NONE);
        let recovered = open(second.shelf());
        let recovered = recovered.unwrap_or_else(|error| panic!("{what}: {error}"));
        check(told, &read(second.shelf()), what);
        drop(recovered);
        if whole {
            return;
        }
    }
}

#[test]
fn whatever_fails_at_any_operation_each_acknowledged_record_is_there_once_and_none_is_invented() {
    let mut points = 0;
    for seed in 0..12 {
        let script = script(&mut Chance(seed));
        let calm = FaultyDisk::new(Plan::NONE, Chance(seed));
        let told = write(&calm, &script);
        assert_eq!(told.acknowledged.len(), told.handed_in.len());
        assert!(calm.operations() > 3 * BATCHES / 2, "segments were filled");
        for from in 0..calm.operations() {
            let failures = [
                (Failure::PowerCut, 1),
                (Failure::ShortWrite, 1 + from % 3),
                (Failure::NoSpace, 1 + from % 7),
                (Failure::Io, 1 + from % 5),
            ];
            for (how, count) in failures {
                let plan = Plan { from, count, how };
                let what = format!("seed {seed}, {plan:?}");
                let disk = FaultyDisk::new(plan, Chance(seed ^ 0xabcd));
                let told = write(&disk, &script);
                if how != Failure::PowerCut {
                    let all = told.handed_in.len();
                    assert_eq!(told.acknowledged.len(), all, "{what}: the disk came back");
                }
                recover_and_check(&disk, &told, &what);
                points += 1;
            }
        }
    }
    assert!(points > 1_000, "{points} points");
}

#[test]
fn a_second_recovery_finds_nothing_more_to_end() {
    let disk = FaultyDisk::new(Plan::NONE, Chance(1));
    let mut first = open(disk.shelf()).unwrap();
    let records = [
        Record::Started(started(1)),
        Record::Started(started(2)),
        Record::Mark(mark(2, 5)),
        Record::Ended(ended(1, 3)),
    ];
    first.writer.commit(&records, UnixMicros::new(1)).unwrap();
    drop(first);
    let second = open(disk.shelf()).unwrap();
    assert_eq!(second.left.interrupted, 1);
    assert_eq!(second.left.recent.last().unwrap().used, used(5));
    assert!(second.boot > 7, "a life has a number of its own");
    drop(second);
    let third = open(disk.shelf()).unwrap();
    assert_eq!(third.left.interrupted, 0);
    assert_eq!(ends(&read(disk.shelf())).len(), 2);
}

#[test]
fn what_ended_lately_is_known_however_often_a_gateway_was_started_since() {
    let disk = FaultyDisk::new(Plan::NONE, Chance(1));
    for life in 1..=6 {
        let mut open = open(disk.shelf()).unwrap();
        let numbers: Vec<_> = open
            .left
            .recent
            .iter()
            .map(|end| end.request.number)
            .collect();
        assert_eq!(numbers, (1..life).collect::<Vec<_>>());
        let records = [
            Record::Started(started(life)),
            Record::Ended(ended(life, 3)),
        ];
        open.writer.commit(&records, UnixMicros::new(1)).unwrap();
    }
}

#[test]
fn what_is_in_flight_is_known_from_the_last_segment_alone() {
    let disk = FaultyDisk::new(Plan::NONE, Chance(1));
    let mut first = open(disk.shelf()).unwrap();
    let long = [Record::Started(started(1)), Record::Mark(mark(1, 4))];
    first.writer.commit(&long, UnixMicros::new(1)).unwrap();
    for number in 2..100 {
        let short = [
            Record::Started(started(number)),
            Record::Ended(ended(number, 1)),
        ];
        first.writer.commit(&short, UnixMicros::new(1)).unwrap();
    }
    drop(first);
    let second = open(disk.shelf()).unwrap();
    assert_eq!(second.left.interrupted, 1);
    assert_eq!(second.left.recent.last().unwrap().used, used(4));
}

#[test]
fn a_file_that_is_removed_while_it_is_written_is_put_back() {
    use crate::journal::disk::Disk as _;
    let disk = FaultyDisk::new(Plan::NONE, Chance(1));
    let mut first = open(disk.shelf()).unwrap();
    let one = [Record::Ended(ended(1, 1))];
    first.writer.commit(&one, UnixMicros::new(1)).unwrap();
    let names = disk.list().unwrap();
    disk.remove(&names[0]).unwrap();
    let two = [Record::Ended(ended(2, 1))];
    first.writer.commit(&two, UnixMicros::new(1)).unwrap();
    assert_eq!(ends(&read(disk.shelf())).len(), 2);
    disk.remove(&names[0]).unwrap();
    first.writer.look().unwrap();
    assert_eq!(ends(&read(disk.shelf())).len(), 2);
}
