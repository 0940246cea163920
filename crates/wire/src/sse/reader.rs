//! The incremental reader of an event stream.
//!
//! It works on bytes, so a character or a line end may be cut anywhere. It holds the data of the
//! one event that is open and nothing else: lines it has no use for are counted, not kept. It
//! must not know what the events mean.

use std::mem;

use super::is_line_end;

const BYTE_ORDER_MARK: [u8; 3] = *b"\xEF\xBB\xBF";

/// The longest field name that means something here: `event`.
const LONGEST_FIELD_NAME: usize = 5;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name, if it has one; invalid UTF-8 in it is replaced.
    pub event: Option<String>,
    /// Its data lines, joined by LF. Empty for an event with an empty `data:`, which some servers
    /// send to keep a connection alive.
    pub data: Vec<u8>,
}

/// What a stream is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// An event that is complete.
    Event(SseEvent),
    /// A comment line, without its colon and one space after that.
    Comment(Vec<u8>),
}

/// Why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event, or a single line, is larger than the reader may hold.
    #[error("an event of the stream is larger than {limit} bytes; raise the limit or send less")]
    EventTooLarge {
        /// The reader's limit, in bytes.
        limit: usize,
    },
    /// The name of an event is longer than any real one.
    #[error("the name of an event is longer than {limit} bytes; use a shorter one")]
    NameTooLong {
        /// [`SseReader::LONGEST_EVENT_NAME`].
        limit: usize,
    },
}

/// How the bytes of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseEnd {
    /// Between two events.
    Clean,
    /// Inside an event, which is lost.
    CutOff,
}

/// Reads an event stream from pieces of any size.
///
/// Call [`push`](Self::push) for each piece and [`finish`](Self::finish) at the end of the body.
/// `id` and `retry` fields are read over: nothing here reconnects.
#[derive(Clone, Debug)]
pub struct SseReader {
    limit: usize,
    /// Data lines of the open event, joined by LF; `None` before the first.
    data: Option<Vec<u8>>,
    /// Name of the open event; empty if it has none.
    event: Vec<u8>,
    /// The comment line that is being read.
    comment: Vec<u8>,
    /// Bytes read over in the current line.
    skipped: usize,
    /// Name of the field whose line is being read; invariant: at most `LONGEST_FIELD_NAME` bytes.
    name: Vec<u8>,
    line: Line,
    block: Block,
    seam: Seam,
    failed: Option<SseError>,
}

/// How far the current line has been read.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// In its field name, which may still be empty.
    Name,
    /// Just after the colon, where one space is dropped.
    Colon(Field),
    /// In its value.
    Value(Field),
}

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    Comment,
    /// `id`, `retry`, and all that the grammar does not know.
    Other,
}

/// Whether a line of a block, which a blank line ends, has been read; comments do not count.
#[derive(Clone, Copy, Debug)]
enum Block {
    Closed,
    Open,
}

/// What the next byte may belong to, because of the bytes before it.
#[derive(Clone, Copy, Debug)]
enum Seam {
    /// To a byte order mark of which this many bytes have been read: nothing else has been.
    Start(usize),
    /// To a CRLF whose CR has ended the line already.
    AfterCr,
    /// To nothing but its line.
    None,
}

impl Default for SseReader {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LIMIT)
    }
}

impl SseReader {
    /// Bytes that one event may have unless the caller says otherwise: well above the largest tool
    /// call seen in one event (3 MiB).
    pub const DEFAULT_LIMIT: usize = 8 * 1024 * 1024;

    /// Bytes that the name of an event may have. It is bounded apart from the limit because the
    /// replacement of invalid UTF-8 makes it grow.
    pub const LONGEST_EVENT_NAME: usize = 1024;

    /// A reader that holds at most `limit` bytes of one event.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            data: None,
            event: Vec::new(),
            comment: Vec::new(),
            skipped: 0,
            name: Vec::with_capacity(LONGEST_FIELD_NAME),
            line: Line::Name,
            block: Block::Closed,
            seam: Seam::Start(0),
            failed: None,
        }
    }

    /// Reads the next piece and gives `sink` each item that it completes, in order.
    ///
    /// # Errors
    /// The event that is open is too large. Items before it have been given to `sink`; the rest of
    /// the stream cannot be read, and every later call gives the same error.
    pub fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(SseItem)) -> Result<(), SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let read = self.read(bytes, &mut sink);
        if let Err(error) = read {
            *self = Self::new(self.limit); // What it held is of no use any more.
            self.failed = Some(error);
        }
        read
    }

    /// Says whether the stream, which is over, ended between two events.
    pub fn finish(self) -> SseEnd {
        let in_line = match self.line {
            Line::Name => !self.name.is_empty(),
            Line::Colon(field) | Line::Value(field) => field != Field::Comment,
        };
        let in_mark = matches!(self.seam, Seam::Start(1 | 2));
        match self.block {
            Block::Closed if !in_line && !in_mark && self.failed.is_none() => SseEnd::Clean,
            Block::Closed | Block::Open => SseEnd::CutOff,
        }
    }

    fn read(&mut self, bytes: &[u8], sink: &mut impl FnMut(SseItem)) -> Result<(), SseError> {
        let mut rest = self.cross_seam(bytes)?;
        while let Some(end) = rest.iter().position(|&byte| is_line_end(byte)) {
            let (line, tail) = rest.split_at(end);
            self.read_line(line)?;
            self.end_line(sink)?;
            rest = match tail {
                [b'\r'] => {
                    self.seam = Seam::AfterCr;
                    &[]
                }
                [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
                [] => &[],
            };
        }
        self.read_line(rest)
    }

    /// Drops what belongs to a byte order mark or a CRLF that the last piece began.
    fn cross_seam<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], SseError> {
        let Some(&first) = bytes.first() else {
            return Ok(bytes);
        };
        match self.seam {
            Seam::None => Ok(bytes),
            Seam::AfterCr => {
                self.seam = Seam::None;
                Ok(bytes.strip_prefix(b"\n").unwrap_or(bytes))
            }
            Seam::Start(seen) => match BYTE_ORDER_MARK.get(seen) {
                Some(&expected) if expected == first => {
                    self.seam = Seam::Start(seen + 1);
                    self.cross_seam(&bytes[1..])
                }
                Some(_) => {
                    self.seam = Seam::None;
                    self.read_line(&BYTE_ORDER_MARK[..seen])?; // It was text after all.
                    Ok(bytes)
                }
                None => {
                    self.seam = Seam::None;
                    Ok(bytes)
                }
            },
        }
    }

    /// Reads more of the current line: `bytes` holds no line end.
    fn read_line(&mut self, mut bytes: &[u8]) -> Result<(), SseError> {
        if matches!(self.line, Line::Name) {
            bytes = self.read_name(bytes)?;
        }
        if let Line::Colon(field) = self.line
            && !bytes.is_empty()
        {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.line = Line::Value(field);
        }
        match self.line {
            Line::Value(field) => self.hold(field, bytes),
            Line::Name | Line::Colon(_) => Ok(()),
        }
    }

    /// Reads more of the field name and gives back what follows its colon.
    fn read_name<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], SseError> {
        let room = LONGEST_FIELD_NAME - self.name.len();
        match bytes.iter().take(room + 1).position(|&byte| byte == b':') {
            Some(colon) => {
                self.name.extend_from_slice(&bytes[..colon]);
                let field = self.begin_field()?;
                self.line = Line::Colon(field);
                Ok(&bytes[colon + 1..])
            }
            None if bytes.len() <= room => {
                self.name.extend_from_slice(bytes);
                Ok(&[])
            }
            None => {
                self.block = Block::Open;
                self.name.clear();
                self.line = Line::Value(Field::Other);
                Ok(bytes)
            }
        }
    }

    /// The name is complete: makes ready for the value.
    fn begin_field(&mut self) -> Result<Field, SseError> {
        let field = match self.name.as_slice() {
            b"" => Field::Comment,
            b"data" => Field::Data,
            b"event" => Field::Event,
            _ => Field::Other,
        };
        self.name.clear();
        if field != Field::Comment {
            self.block = Block::Open;
        }
        match field {
            Field::Data if self.data.is_some() => self.hold(Field::Data, b"\n")?,
            Field::Data => self.data = Some(Vec::new()),
            Field::Event => self.event.clear(), // The last of several names counts.
            Field::Comment | Field::Other => {}
        }
        Ok(field)
    }

    fn end_line(&mut self, sink: &mut impl FnMut(SseItem)) -> Result<(), SseError> {
        match mem::replace(&mut self.line, Line::Name) {
            Line::Name if self.name.is_empty() => self.end_block(sink),
            Line::Name => {
                self.begin_field()?; // A line without a colon is a name with an empty value.
            }
            Line::Colon(Field::Comment) | Line::Value(Field::Comment) => {
                sink(SseItem::Comment(mem::take(&mut self.comment)));
            }
            Line::Colon(_) | Line::Value(_) => {}
        }
        self.skipped = 0;
        Ok(())
    }

    /// A blank line: the event is complete, if it has data.
    fn end_block(&mut self, sink: &mut impl FnMut(SseItem)) {
        self.block = Block::Closed;
        let name = mem::take(&mut self.event);
        if let Some(data) = self.data.take() {
            let event = (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned());
            sink(SseItem::Event(SseEvent { event, data }));
        }
    }

    /// Bytes of memory it has taken for what it holds.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let buffers = [&self.event, &self.comment, &self.name];
        let data = self.data.as_ref().map_or(0, Vec::capacity);
        data + buffers.map(Vec::capacity).iter().sum::<usize>()
    }

    /// Keeps or counts more of a value, within the limit.
    fn hold(&mut self, field: Field, bytes: &[u8]) -> Result<(), SseError> {
        let data = self.data.as_ref().map_or(0, Vec::len);
        let held = data + self.event.len() + self.comment.len() + self.skipped;
        if bytes.len() > self.limit.saturating_sub(held) {
            return Err(SseError::EventTooLarge { limit: self.limit });
        }
        match field {
            Field::Data => append(self.data.get_or_insert_default(), bytes, self.limit),
            Field::Comment => append(&mut self.comment, bytes, self.limit),
            Field::Other => self.skipped += bytes.len(),
            Field::Event => {
                let limit = Self::LONGEST_EVENT_NAME;
                if bytes.len() > limit - self.event.len() {
                    return Err(SseError::NameTooLong { limit });
                }
                append(&mut self.event, bytes, limit);
            }
        }
        Ok(())
    }
}

/// Appends `bytes` without growing the buffer past `limit`, as doubling it would.
///
/// invariant: `buffer.len() + bytes.len() <= limit`
fn append(buffer: &mut Vec<u8>, bytes: &[u8], limit: usize) {
    let needed = buffer.len() + bytes.len();
    if needed > buffer.capacity() {
        let roomy = needed.max(buffer.capacity().saturating_mul(2)).min(limit);
        buffer.reserve_exact(roomy - buffer.len());
    }
    buffer.extend_from_slice(bytes);
}
