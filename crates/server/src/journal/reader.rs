//! Reads the journal, also while it is written: records in order, each with its position.
//!
//! It follows the numbers of records over segments and stops at the first that is not as it was
//! written. It changes nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, RealDisk};
use super::error::JournalError;
use super::record::Record;
use super::segment::{BadHeader, Frame, Frames, Header, JournalId, Next, Position};
use super::segment::{file_name, numbers};

/// The folder of the journal inside the data folder.
pub(crate) const FOLDER: &str = "journal";

/// A record where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it begins.
    pub at: Position,
    /// Where the one after it begins: what to read from next time.
    pub next: Position,
    /// Its number.
    pub sequence: u64,
    /// What it says.
    pub record: Record,
}

/// The segments of a journal, from outside.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub(crate) disk: Arc<dyn Disk>,
    /// For messages.
    pub(crate) folder: PathBuf,
}

impl Shelf {
    /// That of a data folder.
    pub(crate) fn of(data_dir: &Path) -> Self {
        let folder = data_dir.join(FOLDER);
        Self {
            disk: Arc::new(RealDisk::new(folder.clone())),
            folder,
        }
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.folder.join(file_name(number))
    }

    pub(crate) fn io(&self, what: &'static str, source: io::Error) -> JournalError {
        JournalError::Io {
            what,
            folder: self.folder.clone(),
            source,
        }
    }

    pub(crate) fn damaged(&self, at: Position) -> JournalError {
        JournalError::Damaged {
            folder: self.folder.clone(),
            at,
        }
    }

    pub(crate) fn numbers(&self) -> Result<Vec<u64>, JournalError> {
        match numbers(&*self.disk) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            numbers => numbers.map_err(|error| self.io("list", error)),
        }
    }

    /// Opens a segment to read it; `None` if there is none.
    pub(crate) fn open(&self, number: u64) -> Result<Option<(Header, Frames)>, JournalError> {
        let file = match self.disk.open(&file_name(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| self.io("open", error))?,
        };
        let header = Header::read(&*file).map_err(|error| self.io("read", error))?;
        let header = header.map_err(|why| JournalError::Header {
            path: self.path(number),
            why,
        })?;
        if header.number != number {
            return Err(JournalError::Header {
                path: self.path(number),
                why: BadHeader::Damaged,
            });
        }
        let frames = Frames::new(file, header.start().offset);
        Ok(Some((header, frames)))
    }

    /// The headers of all segments, in order, if they are of one journal and none is missing.
    pub(crate) fn headers(&self) -> Result<Vec<Header>, JournalError> {
        let mut headers: Vec<Header> = Vec::new();
        for number in self.numbers()? {
            let Some((header, _)) = self.open(number)? else {
                continue;
            };
            if let Some(before) = headers.last() {
                if before.journal != header.journal {
                    let path = self.path(number);
                    return Err(JournalError::Foreign { path });
                }
                if before.number + 1 != number {
                    let path = self.path(before.number + 1);
                    return Err(JournalError::Missing { path });
                }
                if header.first < before.first {
                    return Err(self.damaged(header.start()));
                }
            }
            headers.push(header);
        }
        Ok(headers)
    }
}

/// Reads records in order.
#[derive(Debug)]
pub struct Reader {
    shelf: Shelf,
    journal: Option<JournalId>,
    at: At,
    until: Option<Position>,
}

#[derive(Debug)]
enum At {
    /// Nothing has been opened yet; begins at the oldest segment.
    Oldest,
    Inside(Inside),
}

/// A segment that is read.
#[derive(Debug)]
struct Inside {
    header: Header,
    frames: Frames,
    /// The number that comes next, where that is known.
    expected: Option<u64>,
    /// The number from which on the next segment speaks, where there is one.
    limit: Option<u64>,
}

impl Reader {
    /// A reader of the journal in a data folder, at its oldest record. A journal that is not there
    /// yet has none.
    pub fn open(data_dir: &Path) -> Self {
        Self::of(Shelf::of(data_dir))
    }

    pub(crate) fn of(shelf: Shelf) -> Self {
        Self {
            shelf,
            journal: None,
            at: At::Oldest,
            until: None,
        }
    }

    /// Which journal it is, once a record has been read or a position was sought.
    pub fn journal(&self) -> Option<JournalId> {
        self.journal
    }

    /// Reads no further than to here from now on. What lies behind what is known to be on disk can
    /// still be taken back by a power cut, so whoever remembers how far they read must not go
    /// there.
    pub fn until(&mut self, limit: Position) {
        self.until = Some(limit);
    }

    /// Goes to a position that an [`Entry`] named; the default one is the oldest record.
    ///
    /// # Errors
    /// [`JournalError::Gone`] where its segment has been removed, and as [`Reader::next`].
    pub fn seek(&mut self, to: Position) -> Result<(), JournalError> {
        if to == Position::default() {
            self.at = At::Oldest;
            return Ok(());
        }
        let Some((header, mut frames)) = self.shelf.open(to.segment)? else {
            return Err(JournalError::Gone {
                folder: self.shelf.folder.clone(),
                at: to,
                oldest: self.shelf.numbers()?.first().copied().unwrap_or_default(),
            });
        };
        let start = header.start().offset;
        let offset = to.offset.max(start);
        frames.seek(offset);
        let next = self.shelf.open(to.segment + 1)?;
        self.journal = Some(header.journal);
        self.at = At::Inside(Inside {
            expected: (offset == start).then_some(header.first),
            limit: next.map(|(next, _)| next.first),
            frames,
            header,
        });
        Ok(())
    }

    /// The next record; `None` while there is none yet.
    ///
    /// # Errors
    /// [`JournalError`], where something is not as it was written. The next call says the same.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends at its first None; here more may come"
    )]
    pub fn next(&mut self) -> Result<Option<Entry>, JournalError> {
        loop {
            let At::Inside(inside) = &mut self.at else {
                let Some(oldest) = self.shelf.numbers()?.first().copied() else {
                    return Ok(None);
                };
                self.seek(Position {
                    segment: oldest,
                    offset: 0,
                })?;
                continue;
            };
            let at = inside.position();
            if self.until.is_some_and(|limit| at >= limit) {
                return Ok(None);
            }
            let read = inside.frames.next();
            match read.map_err(|error| self.shelf.io("read", error))? {
                Next::Frame(frame) if inside.accepts(frame.sequence) => {
                    let next = inside.position();
                    let (entry, number) = entry(frame, at, next, &self.shelf)?;
                    inside.expected = Some(number);
                    return Ok(Some(entry));
                }
                Next::Frame(_) | Next::End | Next::Broken => inside.frames.seek(at.offset),
            }
            // What this segment holds from here on counts no more, or is not whole yet.
            if !self.go_on(at)? {
                return Ok(None);
            }
        }
    }

    /// Where it stands, and the number that comes next, where that is known.
    pub(crate) fn tail(&self) -> Option<(&Header, Position, Option<u64>)> {
        match &self.at {
            At::Oldest => None,
            At::Inside(inside) => Some((&inside.header, inside.position(), inside.expected)),
        }
    }

    /// Sees whether there is more: here, or in the next segment.
    fn go_on(&mut self, at: Position) -> Result<bool, JournalError> {
        let At::Inside(inside) = &mut self.at else {
            return Ok(false);
        };
        let number = inside.header.number + 1;
        let Some((next, _)) = self.shelf.open(number)? else {
            if self.shelf.numbers()?.last() > Some(&number) {
                let path = self.shelf.path(number);
                return Err(JournalError::Missing { path });
            }
            return self.look_behind(at);
        };
        if next.journal != inside.header.journal {
            let path = self.shelf.path(number);
            return Err(JournalError::Foreign { path });
        }
        // It may have been written after the first look, and before the next segment was.
        inside.limit = Some(next.first);
        let again = inside.frames.peek();
        let again = again.map_err(|error| self.shelf.io("read", error))?;
        if again.is_some_and(|number| inside.accepts(number)) {
            return Ok(true);
        }
        if inside.expected.is_some_and(|number| number < next.first) {
            return Err(self.shelf.damaged(at));
        }
        self.seek(next.start())?;
        Ok(true)
    }

    /// The last segment has no whole frame here. That is how one looks that is being written, and
    /// how one looks after a crash; but not if a record was written after it that knew it on disk.
    fn look_behind(&self, at: Position) -> Result<bool, JournalError> {
        let At::Inside(Inside {
            expected: Some(expected),
            ..
        }) = self.at
        else {
            return Ok(false);
        };
        let Some((header, mut frames)) = self.shelf.open(at.segment)? else {
            return Ok(false);
        };
        frames.seek(at.offset);
        let torn = is_torn(&header, &mut frames, expected);
        if torn.map_err(|error| self.shelf.io("read", error))? {
            Ok(false)
        } else {
            Err(self.shelf.damaged(at))
        }
    }
}

impl Inside {
    fn position(&self) -> Position {
        Position {
            segment: self.header.number,
            offset: self.frames.offset(),
        }
    }

    fn accepts(&self, number: u64) -> bool {
        self.expected.is_none_or(|expected| expected == number)
            && self.limit.is_none_or(|limit| number < limit)
    }
}

/// Whether what is broken in the last segment, at the frame with this number, may never have been
/// on disk: then it is a torn end, which nobody was promised anything of. A batch is written only
/// once the one before it is on disk, so a whole frame of a later batch proves the opposite.
pub(crate) fn is_torn(header: &Header, frames: &mut Frames, expected: u64) -> io::Result<bool> {
    if frames.offset() < header.founded_to() {
        return Ok(false);
    }
    loop {
        match frames.next()? {
            Next::Frame(frame) if frame.synced > expected => return Ok(false),
            Next::Frame(_) => {}
            Next::End => return Ok(true),
            Next::Broken => {
                if frames.resume(expected)?.is_none() {
                    return Ok(true);
                }
            }
        }
    }
}

/// What a frame says, and the number after it.
fn entry(
    frame: Frame,
    at: Position,
    next: Position,
    shelf: &Shelf,
) -> Result<(Entry, u64), JournalError> {
    let record = frame.record.map_err(|_| shelf.damaged(at))?;
    let after = match &record {
        Record::Lost(lost) => lost.to.max(frame.sequence + 1),
        Record::Opened(_)
        | Record::Started(_)
        | Record::Carried(..)
        | Record::Mark(_)
        | Record::Ended(_) => frame.sequence + 1,
    };
    let entry = Entry {
        at,
        next,
        sequence: frame.sequence,
        record,
    };
    Ok((entry, after))
}
