//! Goes on with a journal where the process before left it.
//!
//! It looks first and changes nothing until all is well. Then it begins a segment of its own, whose
//! first records are the ends of what was in flight. Nothing is written before that segment has its
//! name, so recovery that dies is begun again, and gives the same.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use super::error::JournalError;
use super::reader::{Reader, Shelf};
use super::record::{Ended, Opened, Record, UnixMicros};
use super::segment::{Header, JournalId, UNFINISHED};
use super::writer::{Continue, InFlight, Writer};

/// How the journal is to be continued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The life of the gateway, if no older one has been called so.
    pub(super) boot: u32,
    pub(super) now: UnixMicros,
    /// Bytes of a segment.
    pub(super) segment_max: u64,
}

/// A journal that goes on.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) writer: Writer,
    /// The life of the gateway that writes it.
    pub(super) boot: u32,
    /// The ends of requests that were in flight.
    pub(super) interrupted: Vec<Ended>,
}

/// Begins a journal, or goes on with it.
pub(super) fn recover(shelf: Shelf, wish: Wish) -> Result<Recovered, JournalError> {
    let make = shelf.disk.make();
    make.map_err(|error| shelf.io("write", error))?;
    let headers = shelf.headers()?;
    let (to, in_flight) = match headers.last() {
        None => (beginning(wish.boot), InFlight::default()),
        Some(last) => {
            let (sequence, in_flight) = read_end(&shelf, &headers)?;
            let boots = headers.iter().map(|header| header.boot).max();
            let to = Continue {
                journal: last.journal,
                boot: boots.map_or(wish.boot, |boot| wish.boot.max(boot + 1)),
                segment: last.number + 1,
                sequence,
            };
            (to, in_flight)
        }
    };
    let interrupted: Vec<_> = in_flight
        .into_each()
        .map(|(started, mark)| Ended::interrupted(started, mark))
        .collect();
    let mut records = vec![Record::Opened(Opened {
        boot: to.boot,
        at: wish.now,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })];
    records.extend(interrupted.iter().cloned().map(Record::Ended));
    remove_unfinished(&shelf)?;
    let writer = Writer::begin(shelf, to, &records, (wish.segment_max, wish.now))?;
    Ok(Recovered {
        writer,
        boot: to.boot,
        interrupted,
    })
}

/// The number of the next record, and what was in flight. The last segment says again what was in
/// flight when it began, so older ones need not be read; but the one before it is, to see that all
/// is there up to where the last begins.
fn read_end(shelf: &Shelf, headers: &[Header]) -> Result<(u64, InFlight), JournalError> {
    let mut reader = Reader::of(shelf.clone());
    let from = headers.len().saturating_sub(2);
    let mut in_flight = InFlight::default();
    let mut next = 1;
    if let Some(header) = headers.get(from) {
        reader.seek(header.start())?;
        next = header.first;
    }
    while let Some(entry) = reader.next()? {
        in_flight.note(&entry.record);
    }
    if let Some((_, _, Some(expected))) = reader.tail() {
        next = expected;
    }
    Ok((next, in_flight))
}

fn beginning(boot: u32) -> Continue {
    Continue {
        journal: JournalId(RandomState::new().build_hasher().finish()),
        boot,
        segment: 1,
        sequence: 1,
    }
}

/// Segments that never got their name.
fn remove_unfinished(shelf: &Shelf) -> Result<(), JournalError> {
    let names = shelf.disk.list();
    let names = names.map_err(|error| shelf.io("list", error))?;
    for name in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
        let removed = shelf.disk.remove(name);
        removed.map_err(|error| shelf.io("write", error))?;
    }
    Ok(())
}
