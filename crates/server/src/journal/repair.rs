//! Makes a damaged journal one that can be read and continued: what is whole stays, what is lost is
//! said in a record, and each file that is replaced is kept beside it.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{DiskFile, write_all};
use super::error::JournalError;
use super::lock::Lock;
use super::reader::{Shelf, is_torn};
use super::record::{Lost, Record, UnixMicros};
use super::segment::{Frame, Frames, HEADER, Header, JournalId, Next, UNFINISHED};
use super::segment::{file_name, frame};

/// The end of the name of the copy that is kept.
const KEPT: &str = ".damaged";

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The segments that were replaced or written anew.
    pub segments: Vec<RepairedSegment>,
    /// Records that are lost.
    pub lost: u64,
}

/// One segment that was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedSegment {
    /// Its file.
    pub path: PathBuf,
    /// What it was before, where it was there at all.
    pub kept: Option<PathBuf>,
    /// What is lost of it.
    pub lost: Vec<Lost>,
}

/// Repairs the journal of a data folder.
///
/// # Errors
/// Where the folder is in use, can't be read or written, or was written by another version.
pub fn repair(data_dir: &Path) -> Result<Repaired, JournalError> {
    let _lock = Lock::take(data_dir)?;
    let shelf = Shelf::of(data_dir);
    let numbers = shelf.numbers()?;
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else {
        return Ok(Repaired::default());
    };
    let surveyed = survey(&shelf, *first, *last)?;
    let mut repaired = Repaired::default();
    let mut before = None;
    for (place, number) in (*first..=*last).enumerate() {
        let next = surveyed.get(place + 1).copied().flatten();
        let own = surveyed.get(place).copied().flatten();
        let around = Around {
            journal: surveyed
                .iter()
                .flatten()
                .map(|header| header.journal)
                .next(),
            before,
            next: next.map(|next| next.first),
        };
        let found = read(&shelf, number, own, around)?;
        before = Some(found.end);
        if found.is_whole && own.is_some() {
            continue;
        }
        let done = replace(&shelf, number, &found);
        let done = done.map_err(|error| shelf.io("repair", error))?;
        repaired.lost += done
            .lost
            .iter()
            .map(|lost| lost.to - lost.from)
            .sum::<u64>();
        repaired.segments.push(done);
    }
    Ok(repaired)
}

/// The headers of these segments, as far as they can be read.
fn survey(shelf: &Shelf, first: u64, last: u64) -> Result<Vec<Option<Header>>, JournalError> {
    let mut headers = Vec::new();
    for number in first..=last {
        headers.push(match shelf.open(number) {
            Ok(opened) => opened.map(|(header, _)| header),
            Err(JournalError::Header {
                why: super::segment::BadHeader::Damaged,
                ..
            }) => None,
            Err(error) => return Err(error),
        });
    }
    Ok(headers)
}

/// What is known of a segment from those beside it.
#[derive(Clone, Copy, Debug)]
struct Around {
    journal: Option<JournalId>,
    /// The number after the last record before it.
    before: Option<u64>,
    /// The number of the first record after it.
    next: Option<u64>,
}

/// What could be read of a segment.
#[derive(Debug)]
struct Found {
    header: Header,
    frames: Vec<Frame>,
    lost: Vec<Lost>,
    is_whole: bool,
    /// The number after the last record.
    end: u64,
}

fn read(
    shelf: &Shelf,
    number: u64,
    own: Option<Header>,
    around: Around,
) -> Result<Found, JournalError> {
    let failed = |error| shelf.io("read", error);
    let header = own.unwrap_or_else(|| Header {
        journal: around.journal.unwrap_or(JournalId(0)),
        number,
        first: around.before.unwrap_or(1),
        founded: 0,
        boot: 0,
        created: UnixMicros::new(0),
    });
    let mut found = Found {
        header,
        frames: Vec::new(),
        lost: Vec::new(),
        is_whole: true,
        end: header.first,
    };
    let file = match shelf.disk.open(&file_name(number)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened.map_err(failed)?),
    };
    if let Some(file) = file {
        let mut frames = Frames::new(file, header.start().offset);
        let limit = around.next.unwrap_or(u64::MAX);
        while let Some(frame) = found.next_frame(&mut frames, limit).map_err(failed)? {
            found.take(frame);
        }
    }
    if let Some(next) = around.next.filter(|next| *next > found.end) {
        found.lose(next);
    }
    Ok(found)
}

impl Found {
    /// The next frame that counts, after whatever is broken before it.
    fn next_frame(&self, frames: &mut Frames, limit: u64) -> io::Result<Option<Frame>> {
        let mut at = frames.offset();
        loop {
            match frames.next()? {
                Next::End => return Ok(None),
                Next::Frame(frame) if frame.sequence >= limit => return Ok(None),
                Next::Frame(frame) if frame.sequence >= self.end && frame.record.is_ok() => {
                    return Ok(Some(frame));
                }
                Next::Frame(_) => {}
                Next::Broken => {
                    frames.seek(at);
                    // The end of the last segment may be torn: that is no damage.
                    if limit == u64::MAX && is_torn(&self.header, frames, self.end)? {
                        return Ok(None);
                    }
                    frames.seek(at);
                    if frames.resume(self.end)?.is_none() {
                        return Ok(None);
                    }
                }
            }
            at = frames.offset();
        }
    }

    fn take(&mut self, frame: Frame) {
        if frame.sequence > self.end {
            self.lose(frame.sequence);
        }
        self.end = match &frame.record {
            Ok(Record::Lost(lost)) => lost.to.max(frame.sequence + 1),
            Ok(_) | Err(_) => frame.sequence + 1,
        };
        self.frames.push(frame);
    }

    /// What comes before the record with this number is gone.
    fn lose(&mut self, to: u64) {
        let lost = Lost { from: self.end, to };
        self.is_whole = false;
        self.lost.push(lost);
        self.frames.push(Frame {
            sequence: lost.from,
            synced: lost.from,
            record: Ok(Record::Lost(lost)),
            length: 0,
        });
        self.end = to;
    }
}

/// Puts what was found in the place of what is there, and keeps that.
fn replace(shelf: &Shelf, number: u64, found: &Found) -> io::Result<RepairedSegment> {
    let mut bytes = vec![0; HEADER];
    for one in &found.frames {
        if let Ok(record) = &one.record {
            frame(record, one.sequence, one.synced, &mut bytes);
        }
    }
    let header = Header {
        founded: u32::try_from(bytes.len() - HEADER).map_err(io::Error::other)?,
        ..found.header
    };
    bytes[..HEADER].copy_from_slice(&header.encode());
    let disk = &*shelf.disk;
    let kept = keep(shelf, number)?;
    let name = format!("{number:012}{UNFINISHED}");
    let mut file = disk.create(&name)?;
    write_all(&mut *file, &bytes, 0)?;
    file.sync()?;
    disk.rename(&name, &file_name(number))?;
    disk.sync()?;
    Ok(RepairedSegment {
        path: shelf.path(number),
        kept,
        lost: found.lost.clone(),
    })
}

/// Copies a segment beside itself, under a name that is free.
fn keep(shelf: &Shelf, number: u64) -> io::Result<Option<PathBuf>> {
    let disk = &*shelf.disk;
    let own = file_name(number);
    let names = disk.list()?;
    if !names.contains(&own) {
        return Ok(None);
    }
    let free = |name: &String| !names.contains(name);
    let name = (1..)
        .map(|n| format!("{own}.{n}{KEPT}"))
        .find(free)
        .unwrap_or_default();
    let from = disk.open(&own)?;
    let mut to = disk.create(&name)?;
    copy(&*from, &mut *to)?;
    to.sync()?;
    disk.sync()?;
    Ok(Some(shelf.folder.join(name)))
}

fn copy(from: &dyn DiskFile, to: &mut dyn DiskFile) -> io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        let read = from.read_at(&mut chunk, at)?;
        if read == 0 {
            return Ok(());
        }
        write_all(to, &chunk[..read], at)?;
        at += u64::try_from(read).unwrap_or_default();
    }
}
