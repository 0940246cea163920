//! Goes on with a journal where the process before left it.
//!
//! It looks first and changes nothing until all is well. Then it begins a segment of its own, whose
//! first records are the ends of what was in flight. Nothing is written before that segment has its
//! name, so recovery that dies is begun again, and gives the same.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use tollgate_policy::units::Micros;

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

/// How long ago an end may be that still bears on a limit: a debt of an hour is more than any
/// tenant can run up.
const RECENT: Micros = Micros::from_secs(3600);

/// Recent ends that are kept at most: the busiest minute of the busiest gateway.
const RECENT_MAX: usize = 100_000;

/// Bytes of older segments that are read for them: more than so many ends take.
const OLDER_BYTES_MAX: u64 = 64 << 20;

/// A journal that goes on.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) writer: Writer,
    /// The life of the gateway that writes it.
    pub(super) boot: u32,
    pub(super) left: Left,
}

/// What lives of the gateway before this one have left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Requests that were in flight when the last one died.
    pub(crate) interrupted: usize,
    /// What ended lately, the interrupted ones included, in the order of the journal.
    pub(crate) recent: Vec<Ended>,
}

/// What is read of a journal before it is gone on with.
#[derive(Debug, Default)]
struct End {
    /// The number of the next record.
    sequence: u64,
    in_flight: InFlight,
    recent: VecDeque<Ended>,
}

/// Begins a journal, or goes on with it.
pub(super) fn recover(shelf: Shelf, wish: Wish) -> Result<Recovered, JournalError> {
    let make = shelf.disk.make();
    make.map_err(|error| shelf.io("write", error))?;
    let headers = shelf.headers()?;
    let end = read_end(&shelf, &headers, wish.now)?;
    let to = match headers.last() {
        None => beginning(wish.boot),
        Some(last) => {
            let boots = headers.iter().map(|header| header.boot).max();
            let own = life(last.journal, wish.boot);
            Continue {
                journal: last.journal,
                boot: boots.map_or(own, |boot| own.max(boot + 1)),
                segment: last.number + 1,
                sequence: end.sequence,
            }
        }
    };
    let interrupted: Vec<_> = end
        .in_flight
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
    let left = Left {
        interrupted: interrupted.len(),
        recent: end.recent.into_iter().chain(interrupted).collect(),
    };
    Ok(Recovered {
        writer,
        boot: to.boot,
        left,
    })
}

/// Reads the end of a journal. The last segment says again what was in flight when it began, so
/// older ones need not be read; but the one before it is, to see that all is there up to where the
/// last begins.
fn read_end(shelf: &Shelf, headers: &[Header], now: UnixMicros) -> Result<End, JournalError> {
    let mut end = End::default();
    let from = headers.len().saturating_sub(2);
    let Some(header) = headers.get(from) else {
        return Ok(end);
    };
    let mut reader = Reader::of(shelf.clone());
    reader.seek(header.start())?;
    end.recent = older_ends(shelf, &headers[..=from], now);
    while let Some(entry) = reader.next()? {
        end.in_flight.note(&entry.record);
        if let Record::Ended(ended) = entry.record
            && is_recent(&ended, now)
        {
            end.recent.push_back(ended);
        }
    }
    let more = end.recent.len().saturating_sub(RECENT_MAX);
    end.recent.drain(..more);
    let next = reader.tail().and_then(|(_, _, expected)| expected);
    end.sequence = next.unwrap_or(header.first);
    Ok(end)
}

fn is_recent(ended: &Ended, now: UnixMicros) -> bool {
    ended.ended().after(RECENT) >= now
}

/// What ended lately by the segments before the last of these: a gateway that is started again and
/// again begins a segment each time. They bear on limits alone, so what can't be read is left out.
fn older_ends(shelf: &Shelf, headers: &[Header], now: UnixMicros) -> VecDeque<Ended> {
    let mut recent = VecDeque::new();
    let mut bytes = 0;
    let pairs = headers.iter().rev().zip(headers.iter().rev().skip(1));
    for (next, header) in pairs {
        let enough = bytes >= OLDER_BYTES_MAX || recent.len() >= RECENT_MAX;
        if enough || next.created.after(RECENT) < now {
            break;
        }
        let Ok((ends, size)) = ends_of(shelf, header, now) else {
            tracing::warn!(
                target: "tollgate::ledger",
                path = %shelf.path(header.number).display(),
                "an old segment can't be read; limits forget what was used in it"
            );
            break;
        };
        bytes += size;
        for ended in ends.into_iter().rev() {
            recent.push_front(ended);
        }
    }
    recent
}

/// What ended lately by one segment, and its bytes.
fn ends_of(
    shelf: &Shelf,
    header: &Header,
    now: UnixMicros,
) -> Result<(Vec<Ended>, u64), JournalError> {
    let mut reader = Reader::of(shelf.clone());
    reader.seek(header.start())?;
    let (mut ends, mut bytes) = (Vec::new(), 0);
    while let Some(entry) = reader.next()? {
        if entry.at.segment != header.number {
            break;
        }
        bytes = entry.at.offset;
        if let Record::Ended(ended) = entry.record
            && is_recent(&ended, now)
        {
            ends.push(ended);
        }
    }
    Ok((ends, bytes))
}

fn beginning(boot: u32) -> Continue {
    let journal = JournalId(RandomState::new().build_hasher().finish());
    Continue {
        journal,
        boot: life(journal, boot),
        segment: 1,
        sequence: 1,
    }
}

/// The number of a life. Gateways that are started together, as in a rollout, call their requests
/// differently all the same: each counts from within a day of the wish, as its journal has it.
fn life(journal: JournalId, wish: u32) -> u32 {
    let apart = u32::try_from(journal.0 & 0xffff).unwrap_or_default();
    wish.saturating_add(apart)
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
