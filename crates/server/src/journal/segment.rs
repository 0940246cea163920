//! A segment: one file of the journal, its header, and the frames that records are put into.
//!
//! Frames are numbered without a gap over all segments. A segment says with which number it begins,
//! and takes back what the segment before it may hold from that number on: so a torn end, or
//! a batch of which nobody knows whether it is on disk, is left where it is and means nothing.

use std::fmt;
use std::io;

use super::disk::{Disk, DiskFile};
use super::record::{Malformed, Record, UnixMicros};

/// What a segment begins with.
const MAGIC: [u8; 8] = *b"TOLLGATE";

/// The version of the format: of header, frames and records together.
pub(crate) const VERSION: u16 = 1;

/// Bytes of a header.
pub(crate) const HEADER: usize = 56;

/// Bytes of a frame before its record.
const FRAME: usize = 24;

/// The longest record, in bytes: texts are bounded, and there are few of them.
const RECORD_MAX: usize = 16 << 10;

/// Bytes that are read at a time; at least one whole frame.
const CHUNK: usize = 256 << 10;

/// The end of the names of segments.
const SUFFIX: &str = ".segment";

/// The end of the name of a segment that is being made.
pub(crate) const UNFINISHED: &str = ".segment.new";

/// Tells the journal of one data folder from that of every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalId(pub u64);

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Where in the journal: a segment, and a byte of it at which a frame begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The number of the segment.
    pub segment: u64,
    /// The byte.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of segment {}", self.offset, self.segment)
    }
}

/// The name of a segment's file.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:012}{SUFFIX}")
}

/// The numbers of the segments in a folder, in order.
pub(crate) fn numbers(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let names = disk.list()?;
    let number = |name: &String| {
        let number = name.strip_suffix(SUFFIX)?.parse().ok()?;
        (file_name(number) == *name).then_some(number)
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) journal: JournalId,
    pub(crate) number: u64,
    /// The number of its first record.
    pub(crate) first: u64,
    /// Bytes after the header that were on disk before the segment had its name.
    pub(crate) founded: u32,
    /// The life of the gateway that made it.
    pub(crate) boot: u32,
    pub(crate) created: UnixMicros,
}

/// Why a file is no segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// It begins otherwise.
    #[error("it is not a segment of a journal")]
    Foreign,
    /// It has another version.
    #[error("it has version {found} of the format, and this Tollgate reads version {VERSION}")]
    Version {
        /// Which.
        found: u16,
    },
    /// Its checksum does not match.
    #[error("its header is damaged")]
    Damaged,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.founded.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.journal.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.created.get().to_le_bytes());
        bytes[48..52].copy_from_slice(&self.boot.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The version comes before the checksum: what another version sums up is not known here.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        if bytes.get(..8) != Some(&MAGIC) {
            return Err(BadHeader::Foreign);
        }
        let version = number(bytes, 8, 2).ok_or(BadHeader::Damaged)?;
        let found = u16::try_from(version).unwrap_or_default();
        if found != VERSION {
            return Err(BadHeader::Version { found });
        }
        let sum = bytes.get(..52).map(crc32c::crc32c).map(u64::from);
        if sum.is_none() || sum != number(bytes, 52, 4) {
            return Err(BadHeader::Damaged);
        }
        let field = |at| number(bytes, at, 8).unwrap_or_default();
        let small = |at| u32::try_from(number(bytes, at, 4).unwrap_or_default());
        Ok(Self {
            journal: JournalId(field(16)),
            number: field(24),
            first: field(32),
            founded: small(12).unwrap_or_default(),
            boot: small(48).unwrap_or_default(),
            created: UnixMicros::new(field(40)),
        })
    }

    /// Reads the header of an open file.
    pub(crate) fn read(file: &dyn DiskFile) -> io::Result<Result<Self, BadHeader>> {
        let mut bytes = Vec::new();
        let mut part = [0; HEADER];
        while bytes.len() < HEADER {
            let at = u64::try_from(bytes.len()).unwrap_or_default();
            match file.read_at(&mut part[bytes.len()..], at)? {
                0 => break,
                read => bytes.extend_from_slice(&part[bytes.len()..][..read]),
            }
        }
        Ok(Self::decode(&bytes))
    }

    /// Where its first record is.
    pub(crate) fn start(&self) -> Position {
        Position {
            segment: self.number,
            offset: u64::try_from(HEADER).unwrap_or_default(),
        }
    }

    /// Up to where it was on disk before it had its name.
    pub(crate) fn founded_to(&self) -> u64 {
        self.start().offset + u64::from(self.founded)
    }
}

/// Puts a record into a frame at the end of `out`. `synced` is the number of the first record that
/// may not be on disk yet.
pub(crate) fn frame(record: &Record, sequence: u64, synced: u64, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + FRAME, 0);
    record.encode(out);
    let length = u32::try_from(out.len() - begin - FRAME).unwrap_or(u32::MAX);
    let frame = &mut out[begin..];
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[8..16].copy_from_slice(&sequence.to_le_bytes());
    frame[16..24].copy_from_slice(&synced.to_le_bytes());
    let sum = sum(frame);
    frame[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Of the whole frame but for the checksum itself.
fn sum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..4]), &frame[8..])
}

/// A record where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) sequence: u64,
    /// All before this one was on disk when it was written.
    pub(crate) synced: u64,
    pub(crate) record: Result<Record, Malformed>,
    /// Bytes of all of it.
    pub(crate) length: usize,
}

/// What bytes are, as a frame.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and it is taken apart at once"
)]
enum Parsed {
    Frame(Frame),
    /// The begin of one, perhaps.
    Short,
    /// No frame.
    Bad,
}

fn parse(bytes: &[u8]) -> Parsed {
    let Some(length) = number(bytes, 0, 4).and_then(|length| usize::try_from(length).ok()) else {
        return Parsed::Short;
    };
    // A record has a kind at least.
    if length == 0 || length > RECORD_MAX {
        return Parsed::Bad;
    }
    let Some(frame) = bytes.get(..FRAME + length) else {
        return Parsed::Short;
    };
    if number(frame, 4, 4) != Some(u64::from(sum(frame))) {
        return Parsed::Bad;
    }
    Parsed::Frame(Frame {
        sequence: number(frame, 8, 8).unwrap_or_default(),
        synced: number(frame, 16, 8).unwrap_or_default(),
        record: Record::decode(&frame[FRAME..]),
        length: frame.len(),
    })
}

/// The number in so many bytes, lowest first, if they are there.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    let digits = bytes.iter().rev();
    Some(digits.fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

/// What comes next in a segment.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and it is taken apart at once"
)]
pub(crate) enum Next {
    /// A record.
    Frame(Frame),
    /// The end of the file.
    End,
    /// Bytes that are no frame, or not the whole of one.
    Broken,
}

/// Reads the frames of one segment, one after the other.
#[derive(Debug)]
pub(crate) struct Frames {
    file: Box<dyn DiskFile>,
    /// Where `buffer[start]` is in the file.
    at: u64,
    buffer: Vec<u8>,
    start: usize,
}

impl Frames {
    pub(crate) fn new(file: Box<dyn DiskFile>, at: u64) -> Self {
        Self {
            file,
            at,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Where the next frame begins.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// Goes to another frame.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.at = offset;
        self.start = 0;
        self.buffer.clear();
    }

    /// The number of the frame that is here now, if there is a whole one.
    pub(crate) fn peek(&mut self) -> io::Result<Option<u64>> {
        let at = self.at;
        self.seek(at);
        let next = self.next()?;
        self.seek(at);
        match next {
            Next::Frame(frame) => Ok(Some(frame.sequence)),
            Next::End | Next::Broken => Ok(None),
        }
    }

    pub(crate) fn next(&mut self) -> io::Result<Next> {
        match parse(&self.buffer[self.start..]) {
            Parsed::Frame(frame) => return Ok(self.advance(frame)),
            // Read anew: the rest may be there by now, or other bytes in the place of these.
            Parsed::Short | Parsed::Bad => {
                self.fill()?;
            }
        }
        match parse(&self.buffer[self.start..]) {
            Parsed::Frame(frame) => Ok(self.advance(frame)),
            Parsed::Short if self.start == self.buffer.len() => Ok(Next::End),
            Parsed::Short | Parsed::Bad => Ok(Next::Broken),
        }
    }

    /// The next frame behind these bytes that may have been written there, wherever it begins: one
    /// whose number is `from` at least, and no greater than there is room for before it. Stays
    /// there.
    pub(crate) fn resume(&mut self, from: u64) -> io::Result<Option<Frame>> {
        let broken = self.at;
        let mut more = true;
        loop {
            self.skip(1);
            if more && self.buffer.len() - self.start < FRAME + RECORD_MAX {
                more = self.fill()?;
            }
            if self.start == self.buffer.len() {
                return Ok(None);
            }
            let most = from + (self.at - broken) / u64::try_from(FRAME).unwrap_or(1);
            let bytes = &self.buffer[self.start..];
            // Before the checksum, which is dear at every byte.
            let likely = number(bytes, 8, 8).is_some_and(|n| (from..=most).contains(&n))
                && number(bytes, 16, 8).is_some_and(|synced| synced <= most);
            if !likely {
                continue;
            }
            if let Parsed::Frame(frame) = parse(bytes) {
                return Ok(Some(frame));
            }
        }
    }

    fn advance(&mut self, frame: Frame) -> Next {
        self.skip(frame.length);
        Next::Frame(frame)
    }

    fn skip(&mut self, bytes: usize) {
        let bytes = bytes.min(self.buffer.len() - self.start);
        self.start += bytes;
        self.at += u64::try_from(bytes).unwrap_or_default();
    }

    /// Reads on from here, also where the end was before: a segment that is written grows. Says
    /// whether there may be more.
    fn fill(&mut self) -> io::Result<bool> {
        self.start = 0;
        self.buffer.clear();
        self.buffer.resize(CHUNK, 0);
        let mut end = 0;
        while end < CHUNK {
            let at = self.at + u64::try_from(end).unwrap_or_default();
            match self.file.read_at(&mut self.buffer[end..], at) {
                Ok(0) => break,
                Ok(read) => end += read,
                Err(error) => {
                    self.buffer.clear();
                    return Err(error);
                }
            }
        }
        self.buffer.truncate(end);
        Ok(end == CHUNK)
    }
}
