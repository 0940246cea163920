//! Writes the journal: a batch, then one sync for all of it.
//!
//! What the disk may or may not hold after an error is never asked. Nothing is written over or cut
//! off: the batch goes into a new segment, which takes back what the old one may hold of it. So one
//! rename decides, and each record counts once, whenever the power goes.

use std::collections::BTreeMap;
use std::io;

use super::disk::{DiskFile, write_all};
use super::error::JournalError;
use super::reader::Shelf;
use super::record::{Mark, Record, RequestName, Started, UnixMicros};
use super::segment::{Header, JournalId, Position, UNFINISHED, file_name, frame};

/// The requests in flight, as the journal knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlight(BTreeMap<RequestName, (Started, Option<Mark>)>);

impl InFlight {
    /// Takes in what a record says.
    pub(super) fn note(&mut self, record: &Record) {
        match record {
            Record::Started(started) => {
                let entry = self.0.entry(started.request);
                entry
                    .and_modify(|(known, _)| known.clone_from(started))
                    .or_insert_with(|| (started.clone(), None));
            }
            Record::Carried(started, mark) => {
                self.0.insert(started.request, (started.clone(), *mark));
            }
            Record::Mark(mark) => {
                if let Some((_, last)) = self.0.get_mut(&mark.request) {
                    *last = Some(*mark);
                }
            }
            Record::Ended(ended) => {
                self.0.remove(&ended.request);
            }
            Record::Opened(_) | Record::Lost(_) => {}
        }
    }

    /// Each of them, to be said again.
    pub(super) fn carried(&self) -> impl Iterator<Item = Record> {
        let each = self.0.values().cloned();
        each.map(|(started, mark)| Record::Carried(started, mark))
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.0.len()).unwrap_or(u64::MAX)
    }

    /// The last mark of one of them.
    pub(super) fn mark(&self, request: RequestName) -> Option<Mark> {
        self.0.get(&request).and_then(|(_, mark)| *mark)
    }

    /// Each of them, with its last mark.
    pub(super) fn into_each(self) -> impl Iterator<Item = (Started, Option<Mark>)> {
        self.0.into_values()
    }
}

/// Where the journal is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continue {
    pub(super) journal: JournalId,
    /// The life of the gateway that writes.
    pub(super) boot: u32,
    /// The number of the segment to begin.
    pub(super) segment: u64,
    /// The number of the next record.
    pub(super) sequence: u64,
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Writer {
    shelf: Shelf,
    header: Header,
    file: Box<dyn DiskFile>,
    /// Where the next frame goes.
    offset: u64,
    /// The number of the next record; all before it are on disk.
    next: u64,
    /// As of what is on disk.
    in_flight: InFlight,
    /// Bytes after which a segment is followed by the next.
    segment_max: u64,
    place: Place,
}

/// Where the next batch may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// To the end of the segment.
    Here,
    /// Into a new segment: this one is full, or what it holds is not known.
    NewSegment,
    /// Nowhere until the file is back under its name.
    Gone,
}

impl Writer {
    /// Begins a segment with these records.
    pub(super) fn begin(
        shelf: Shelf,
        to: Continue,
        records: &[Record],
        (segment_max, now): (u64, UnixMicros),
    ) -> Result<Self, JournalError> {
        let begun = begin_segment(&shelf, to, records, now);
        let begun = begun.map_err(|error| shelf.io("write", error))?;
        let mut in_flight = InFlight::default();
        for record in records {
            in_flight.note(record);
        }
        Ok(Self {
            header: begun.header,
            file: begun.file,
            offset: begun.header.founded_to(),
            next: begun.next,
            shelf,
            in_flight,
            segment_max,
            place: Place::Here,
        })
    }

    /// Puts these records on disk. After an error none of them counts, and all of them may be
    /// handed in again.
    pub(super) fn commit(&mut self, records: &[Record], now: UnixMicros) -> io::Result<()> {
        self.find_place(now)?;
        if records.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        let mut next = self.next;
        for record in records {
            frame(record, next, self.next, &mut bytes);
            next += 1;
        }
        let written =
            write_all(&mut *self.file, &bytes, self.offset).and_then(|()| self.file.sync());
        if let Err(error) = written {
            self.place = Place::NewSegment;
            return Err(error);
        }
        // In a file that nobody can find, it is not written.
        let before = self.offset;
        self.offset += u64::try_from(bytes.len()).unwrap_or_default();
        if let Err(error) = self.look() {
            self.offset = before;
            return Err(error);
        }
        self.next = next;
        for record in records {
            self.in_flight.note(record);
        }
        if self.offset >= self.segment_max {
            self.place = Place::NewSegment;
        }
        Ok(())
    }

    /// Looks whether the file is still there under its name.
    pub(super) fn look(&mut self) -> io::Result<()> {
        let name = file_name(self.header.number);
        if self.place != Place::Gone && !self.shelf.disk.holds(&name, &*self.file)? {
            tracing::error!(
                target: "tollgate::ledger",
                path = %self.shelf.path(self.header.number).display(),
                "the segment was removed or replaced while it is written; it is put back"
            );
            self.place = Place::Gone;
        }
        if self.place == Place::Gone {
            self.put_back(&name)?;
        }
        Ok(())
    }

    /// Up to where all is on disk.
    pub(super) fn synced(&self) -> Position {
        Position {
            segment: self.header.number,
            offset: self.offset,
        }
    }

    fn find_place(&mut self, now: UnixMicros) -> io::Result<()> {
        match self.place {
            Place::Here => Ok(()),
            Place::Gone => self.look(),
            Place::NewSegment => {
                let to = Continue {
                    journal: self.header.journal,
                    boot: self.header.boot,
                    segment: self.header.number + 1,
                    sequence: self.next,
                };
                let carried: Vec<_> = self.in_flight.carried().collect();
                let begun = begin_segment(&self.shelf, to, &carried, now)?;
                self.header = begun.header;
                self.file = begun.file;
                self.offset = begun.header.founded_to();
                self.next = begun.next;
                self.place = Place::Here;
                Ok(())
            }
        }
    }

    /// Writes what the open file holds, up to where it is known, under its name again.
    fn put_back(&mut self, name: &str) -> io::Result<()> {
        let disk = &*self.shelf.disk;
        disk.make()?;
        let unfinished = unfinished(self.header.number);
        let mut copy = disk.create(&unfinished)?;
        let mut chunk = vec![0; 64 << 10];
        let mut at = 0;
        while at < self.offset {
            let wanted = usize::try_from(self.offset - at).unwrap_or(chunk.len());
            let wanted = wanted.min(chunk.len());
            let read = self.file.read_at(&mut chunk[..wanted], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            write_all(&mut *copy, &chunk[..read], at)?;
            at += u64::try_from(read).unwrap_or_default();
        }
        copy.sync()?;
        disk.rename(&unfinished, name)?;
        disk.sync()?;
        self.file = copy;
        self.place = Place::Here;
        Ok(())
    }
}

/// The name of a segment that is not whole yet.
fn unfinished(number: u64) -> String {
    format!("{number:012}{UNFINISHED}")
}

/// A segment that has just been begun.
struct Begun {
    header: Header,
    file: Box<dyn DiskFile>,
    /// The number of the next record.
    next: u64,
}

/// Writes a segment with these records, and only then gives it its name: under its name it is
/// whole.
fn begin_segment(
    shelf: &Shelf,
    to: Continue,
    records: &[Record],
    now: UnixMicros,
) -> io::Result<Begun> {
    let mut bytes = Vec::new();
    let mut next = to.sequence;
    for record in records {
        frame(record, next, to.sequence, &mut bytes);
        next += 1;
    }
    let header = Header {
        journal: to.journal,
        number: to.segment,
        first: to.sequence,
        founded: u32::try_from(bytes.len()).map_err(io::Error::other)?,
        boot: to.boot,
        created: now,
    };
    bytes.splice(..0, header.encode());
    let name = unfinished(to.segment);
    let disk = &*shelf.disk;
    let mut file = disk.create(&name)?;
    write_all(&mut *file, &bytes, 0)?;
    file.sync()?;
    disk.rename(&name, &file_name(to.segment))?;
    disk.sync()?;
    Ok(Begun { header, file, next })
}
