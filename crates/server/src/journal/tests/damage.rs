//! A journal on a real disk that somebody or something has changed.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::{ended, ends, mark, started};
use crate::journal::reader::{Reader, Shelf};
use crate::journal::record::{Record, UnixMicros};
use crate::journal::recovery::{Recovered, Wish, recover};
use crate::journal::segment::HEADER;
use crate::journal::{BadHeader, JournalError, Position, remove_counted, repair, verify};

const SEGMENT_MAX: u64 = 2_000;

fn open(folder: &Path) -> Result<Recovered, JournalError> {
    let wish = Wish {
        boot: 7,
        now: UnixMicros::new(1),
        segment_max: SEGMENT_MAX,
    };
    recover(Shelf::of(folder), wish)
}

/// A journal of so many requests, each a batch of its own, and one that is still in flight.
fn written(folder: &Path, requests: u64) -> Vec<PathBuf> {
    let mut writer = open(folder).unwrap().writer;
    let mut write = |records: &[Record]| writer.commit(records, UnixMicros::new(1)).unwrap();
    for number in 1..=requests {
        write(&[Record::Started(started(number))]);
        write(&[Record::Ended(ended(number, number))]);
    }
    write(&[
        Record::Started(started(1_000)),
        Record::Mark(mark(1_000, 4)),
    ]);
    segments(folder)
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("journal")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "segment"));
    paths.sort();
    paths
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn read(folder: &Path) -> Result<Vec<Record>, JournalError> {
    let mut reader = Reader::open(folder);
    let mut records = Vec::new();
    while let Some(entry) = reader.next()? {
        records.push(entry.record);
    }
    Ok(records)
}

/// Everything in the folder, to see that nothing was touched.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(folder.join("journal")).unwrap();
    let mut all: Vec<_> = files
        .map(|file| file.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_torn_end_is_passed_over_and_everything_before_it_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 3);
    let last = paths.last().unwrap();
    let whole = fs::read(last).unwrap();
    let mark_begins = whole.len() - 40;
    for length in [mark_begins, whole.len() - 1] {
        fs::write(last, &whole[..length]).unwrap();
        assert_eq!(ends(&read(folder.path()).unwrap()).len(), 3);
    }
    let recovered = open(folder.path()).unwrap();
    assert_eq!(recovered.left.interrupted, 1);
    assert_eq!(ends(&read(folder.path()).unwrap()).len(), 4);
    assert!(verify(folder.path()).is_right());
}

#[test]
fn garbage_after_the_end_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 2);
    let last = paths.last().unwrap();
    change(last, |bytes| bytes.extend([0; 500]));
    assert_eq!(open(folder.path()).unwrap().left.interrupted, 1);
    assert_eq!(ends(&read(folder.path()).unwrap()).len(), 3);
}

#[test]
fn damage_in_the_middle_is_refused_and_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 3);
    change(paths.last().unwrap(), |bytes| bytes[HEADER + 30] ^= 1);
    let before = contents(folder.path());
    let error = open(folder.path()).unwrap_err();
    assert!(error.needs_a_decision());
    assert!(error.to_string().contains("ledger repair"), "{error}");
    assert_eq!(contents(folder.path()), before);
    assert!(!verify(folder.path()).is_right());
}

#[test]
fn a_record_cut_out_of_the_middle_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 3);
    let last = paths.last().unwrap();
    let length = fs::read(last).unwrap().len();
    change(last, |bytes| {
        bytes.drain(HEADER..length / 2);
    });
    assert!(matches!(
        open(folder.path()),
        Err(JournalError::Damaged { .. })
    ));
}

#[test]
fn a_journal_of_another_version_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 1);
    change(&paths[0], |bytes| bytes[8] = 9);
    let before = contents(folder.path());
    for refused in [
        open(folder.path()).map(drop),
        read(folder.path()).map(drop),
        repair(folder.path()).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(
            error,
            JournalError::Header {
                why: BadHeader::Version { found: 9 },
                ..
            }
        ));
        assert!(error.to_string().contains("version 9"), "{error}");
    }
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn a_file_that_is_no_segment_is_refused_and_other_names_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 1);
    fs::write(folder.path().join("journal/notes.txt"), "mine").unwrap();
    drop(open(folder.path()).unwrap());
    fs::write(&paths[0], "something else").unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("is not a segment"), "{error}");
}

#[test]
fn a_segment_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 60);
    assert!(paths.len() > 3);
    fs::remove_file(&paths[1]).unwrap();
    let error = open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("000000000002.segment"), "{error}");
    let error = read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("000000000002.segment"), "{error}");
}

#[test]
fn a_segment_of_another_journal_is_refused() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = written(folder.path(), 40);
    let others = written(other.path(), 40);
    fs::copy(&others[1], &paths[1]).unwrap();
    for refused in [open(folder.path()).map(drop), read(folder.path()).map(drop)] {
        assert!(matches!(refused.unwrap_err(), JournalError::Foreign { .. }));
    }
}

#[test]
fn a_repair_keeps_a_copy_says_what_is_lost_and_the_journal_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 40);
    change(&paths[1], |bytes| bytes[HEADER + 30] ^= 1);
    let damaged = fs::read(&paths[1]).unwrap();
    let done = repair(folder.path()).unwrap();
    assert_eq!((done.segments.len(), done.lost), (1, 1));
    let kept = done.segments[0].kept.as_ref().unwrap();
    assert_eq!(fs::read(kept).unwrap(), damaged);
    drop(open(folder.path()).unwrap());
    let account = verify(folder.path());
    assert!(account.is_right(), "{account:?}");
    assert_eq!(account.lost, 1);
    // The damage hit one record; a request whose start is lost still has its end.
    assert!(account.ended >= 40);
    assert_eq!(repair(folder.path()).unwrap(), Default::default());
}

#[test]
fn a_missing_segment_is_written_down_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 40);
    fs::remove_file(&paths[1]).unwrap();
    let done = repair(folder.path()).unwrap();
    assert_eq!(done.segments.len(), 1);
    assert_eq!(done.segments[0].kept, None);
    assert!(done.lost > 1);
    drop(open(folder.path()).unwrap());
    let account = verify(folder.path());
    assert!(account.is_right(), "{account:?}");
    assert_eq!(account.lost, done.lost);
}

#[test]
fn only_what_is_old_and_counted_is_removed_and_never_the_last_two() {
    let folder = tempfile::tempdir().unwrap();
    let paths = written(folder.path(), 120);
    let all = paths.len();
    assert!(all > 4);
    let remove = |segment, ended_before| {
        let counted = Position { segment, offset: 0 };
        remove_counted(folder.path(), counted, UnixMicros::new(ended_before)).unwrap()
    };
    assert_eq!(remove(1, 2), 0, "nothing is counted");
    assert_eq!(remove(3, 1), 0, "nothing is old");
    assert_eq!(remove(3, 2), 2);
    assert_eq!(segments(folder.path()), paths[2..]);
    assert_eq!(remove(u64::MAX, 2), all - 4);
    assert_eq!(segments(folder.path()), paths[all - 2..]);
    let mut reader = Reader::open(folder.path());
    let gone = reader.seek(Position {
        segment: 1,
        offset: 60,
    });
    assert!(matches!(gone, Err(JournalError::Gone { .. })));
    assert_eq!(open(folder.path()).unwrap().left.interrupted, 1);
    assert!(verify(folder.path()).is_right());
}

#[test]
fn a_reader_stops_where_it_is_told_to_and_goes_on_when_it_is_told_again() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 20);
    let mut reader = Reader::open(folder.path());
    let mut all = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        all.push(entry);
    }
    let mut bounded = Reader::open(folder.path());
    for (n, entry) in all.iter().enumerate() {
        bounded.until(entry.next);
        assert_eq!(bounded.next().unwrap().as_ref(), Some(entry), "{n}");
        // The next segment may have begun, of which nothing is let out yet.
        assert_eq!(bounded.next().unwrap(), None, "{n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Whatever bits flip, nothing is invented, and after a repair the journal can be used.
    #[test]
    fn any_damage_is_torn_end_refusal_or_repair(
        flips in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1_u8..),
            1..5,
        ),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let paths = written(folder.path(), 12);
        let whole = read(folder.path()).unwrap();
        for (path, at, bits) in flips {
            change(&paths[path.index(paths.len())], |bytes| {
                // Magic and version aside: they say that a file is not ours to repair.
                let at = 12 + at.index(bytes.len() - 12);
                bytes[at] ^= bits;
            });
        }
        if open(folder.path()).is_err() {
            prop_assert!(repair(folder.path()).is_ok());
            prop_assert!(open(folder.path()).is_ok());
        }
        // An old segment is not read at start; damage in it is found by whoever reads it.
        if read(folder.path()).is_err() {
            prop_assert!(repair(folder.path()).is_ok());
        }
        let found = read(folder.path()).unwrap();
        for end in ends(&found).into_iter().filter(|end| end.outcome != "interrupted") {
            prop_assert!(ends(&whole).contains(&end), "{:?} is invented", end);
        }
        prop_assert!(verify(folder.path()).is_right());
    }
}
