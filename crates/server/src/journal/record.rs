//! What the journal says, and how it is spelled in bytes.
//!
//! A record is a kind and its fields: numbers as variable-length integers, texts with their length
//! before them. Reading is strict: a field too few or a byte too many is no record. How records
//! are put into files, checked and numbered is not this file's concern.

mod codec;

use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use tollgate_policy::units::{KvByteMicros, Micros, Tokens};

use self::codec::{Reader, Writer};

/// The reason of a request whose process died before it ended.
pub const INTERRUPTED: &str = "interrupted";

/// A request, unique among all that a data folder has seen: which life of the gateway, and the
/// how-manieth in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestName {
    /// The life; a later one has a greater number.
    pub boot: u32,
    /// Counts up within one life.
    pub number: u64,
}

/// As in `x-request-id`.
impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req-{:08x}-{:x}", self.boot, self.number)
    }
}

impl FromStr for RequestName {
    type Err = NoRequestName;

    fn from_str(text: &str) -> Result<Self, NoRequestName> {
        let parts = text
            .strip_prefix("req-")
            .and_then(|rest| rest.split_once('-'));
        let (boot, number) = parts.ok_or(NoRequestName)?;
        let boot = u32::from_str_radix(boot, 16)?;
        let number = u64::from_str_radix(number, 16)?;
        Ok(Self { boot, number })
    }
}

impl Serialize for RequestName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text that does not name a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a request; they look like req-5f3a0b1c-2a")]
pub struct NoRequestName;

impl From<ParseIntError> for NoRequestName {
    fn from(_: ParseIntError) -> Self {
        Self
    }
}

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMicros(u64);

impl UnixMicros {
    /// So many microseconds after the epoch.
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds after the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The point `span` after this one.
    pub const fn after(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.get()))
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A process began to write.
    Opened(Opened),
    /// A request was given to a replica. Said twice where it went to a second one.
    Started(Started),
    /// A request that was in flight when a segment began, said again so that older segments need
    /// not be read to know it. Nothing new happened.
    Carried(Started, Option<Mark>),
    /// How far a request that is in flight has come.
    Mark(Mark),
    /// A request ended, by the one door or because its process died. There is one for each.
    Ended(Ended),
    /// Records that damage destroyed, as a repair found.
    Lost(Lost),
}

/// A process began to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Which life of the gateway this is.
    pub boot: u32,
    /// When.
    pub at: UnixMicros,
    /// Whose code it runs.
    pub version: String,
}

/// A request was given to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Which request.
    pub request: RequestName,
    /// Who pays.
    pub tenant: Arc<str>,
    /// With which of the tenant's keys, where keys have names.
    pub key: Option<Arc<str>>,
    /// What for.
    pub model: Arc<str>,
    /// Who serves it.
    pub replica: u32,
    /// When it was received.
    pub received: UnixMicros,
    /// When it was given to the replica.
    pub dispatched: UnixMicros,
}

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which request.
    pub request: RequestName,
    /// When.
    pub at: UnixMicros,
    /// What it had used by then, at least.
    pub used: Used,
}

/// How a request ended, and what it is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which request.
    pub request: RequestName,
    /// Who pays.
    pub tenant: Arc<str>,
    /// With which of the tenant's keys, where keys have names.
    pub key: Option<Arc<str>>,
    /// What for.
    pub model: Option<Arc<str>>,
    /// Who served it, if anyone did.
    pub replica: Option<u32>,
    /// The reason of its outcome, as in metrics and log; [`INTERRUPTED`] where its process died.
    pub outcome: Cow<'static, str>,
    /// Why generation stopped, where it stopped of itself.
    pub finish_reason: Option<Cow<'static, str>>,
    /// What it used.
    pub used: Used,
    /// Who counted that.
    pub counted: Counted,
    /// When it was received.
    pub received: UnixMicros,
    /// Time in the queue.
    pub queue: Micros,
    /// Time to the first token.
    pub ttft: Option<Micros>,
    /// Time in all.
    pub total: Micros,
}

impl Ended {
    /// When it ended.
    pub fn ended(&self) -> UnixMicros {
        self.received.after(self.total)
    }

    /// The end of a request whose process died: it is charged what its last mark proves, which is
    /// never more than was generated.
    pub fn interrupted(started: Started, mark: Option<Mark>) -> Self {
        let until = mark.map_or(started.dispatched, |mark| mark.at);
        let since_received = |at: UnixMicros| {
            let received = started.received.get();
            Micros::new(at.get().saturating_sub(received))
        };
        Self {
            queue: since_received(started.dispatched),
            total: since_received(until),
            request: started.request,
            tenant: started.tenant,
            key: started.key,
            model: Some(started.model),
            replica: Some(started.replica),
            outcome: Cow::Borrowed(INTERRUPTED),
            finish_reason: None,
            used: mark.map(|mark| mark.used).unwrap_or_default(),
            counted: Counted::Marked,
            received: started.received,
            ttft: None,
        }
    }
}

/// One row of an export: flat, with the unit in each name.
impl Serialize for Ended {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            request: RequestName,
            tenant: &'a str,
            key: Option<&'a str>,
            model: Option<&'a str>,
            replica: Option<u32>,
            outcome: &'a str,
            finish_reason: Option<&'a str>,
            prompt_tokens: u64,
            cached_tokens: u64,
            output_tokens: u64,
            kv_byte_us: u128,
            counted: &'static str,
            received_unix_us: u64,
            queue_us: u64,
            ttft_us: Option<u64>,
            total_us: u64,
        }
        Row {
            request: self.request,
            tenant: &self.tenant,
            key: self.key.as_deref(),
            model: self.model.as_deref(),
            replica: self.replica,
            outcome: &self.outcome,
            finish_reason: self.finish_reason.as_deref(),
            prompt_tokens: self.used.prompt.get(),
            cached_tokens: self.used.cached.get(),
            output_tokens: self.used.output.get(),
            kv_byte_us: self.used.kv.get(),
            counted: self.counted.label(),
            received_unix_us: self.received.get(),
            queue_us: self.queue.get(),
            ttft_us: self.ttft.map(Micros::get),
            total_us: self.total.get(),
        }
        .serialize(serializer)
    }
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Prompt tokens, reused ones included.
    pub prompt: Tokens,
    /// Those of them that were reused.
    pub cached: Tokens,
    /// Tokens generated, those that no client took included.
    pub output: Tokens,
    /// KV memory over time.
    pub kv: KvByteMicros,
}

/// Who counted what a request used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The engine.
    Engine,
    /// We did, since the engine said nothing.
    Estimated,
    /// It is what the last mark before a crash proves.
    Marked,
}

impl Counted {
    /// As exports say it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Estimated => "estimated",
            Self::Marked => "marked",
        }
    }
}

/// Records that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The number of the first of them.
    pub from: u64,
    /// The number after the last of them.
    pub to: u64,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its bytes are no record that this version knows")]
pub struct Malformed;

const OPENED: u8 = 1;
const STARTED: u8 = 2;
const CARRIED: u8 = 3;
const MARK: u8 = 4;
const ENDED: u8 = 5;
const LOST: u8 = 6;

impl Record {
    /// Spells it, at the end of `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        match self {
            Self::Opened(opened) => {
                out.byte(OPENED);
                out.number(opened.boot.into());
                out.number(opened.at.get());
                out.text(&opened.version);
            }
            Self::Started(started) => {
                out.byte(STARTED);
                started.encode(&mut out);
            }
            Self::Carried(started, mark) => {
                out.byte(CARRIED);
                started.encode(&mut out);
                out.optional(mark.as_ref(), |out, mark| {
                    out.number(mark.at.get());
                    mark.used.encode(out);
                });
            }
            Self::Mark(mark) => {
                out.byte(MARK);
                mark.request.encode(&mut out);
                out.number(mark.at.get());
                mark.used.encode(&mut out);
            }
            Self::Ended(ended) => {
                out.byte(ENDED);
                ended.encode(&mut out);
            }
            Self::Lost(lost) => {
                out.byte(LOST);
                out.number(lost.from);
                out.number(lost.to);
            }
        }
    }

    /// Reads what [`Record::encode`] spelled, and nothing else.
    ///
    /// # Errors
    /// [`Malformed`] for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(bytes);
        let record = match from.byte()? {
            OPENED => Self::Opened(Opened {
                boot: from.small()?,
                at: UnixMicros::new(from.number()?),
                version: from.text()?.to_owned(),
            }),
            STARTED => Self::Started(Started::decode(&mut from)?),
            CARRIED => {
                let started = Started::decode(&mut from)?;
                let request = started.request;
                let mark = from.optional(|from| Mark::decode(request, from))?;
                Self::Carried(started, mark)
            }
            MARK => {
                let request = RequestName::decode(&mut from)?;
                Self::Mark(Mark::decode(request, &mut from)?)
            }
            ENDED => Self::Ended(Ended::decode(&mut from)?),
            LOST => Self::Lost(Lost {
                from: from.number()?,
                to: from.number()?,
            }),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(record)
    }
}

impl RequestName {
    fn encode(self, out: &mut Writer<'_>) {
        out.number(self.boot.into());
        out.number(self.number);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            boot: from.small()?,
            number: from.number()?,
        })
    }
}

impl Started {
    fn encode(&self, out: &mut Writer<'_>) {
        self.request.encode(out);
        out.text(&self.tenant);
        out.optional(self.key.as_deref(), Writer::text);
        out.text(&self.model);
        out.number(self.replica.into());
        out.number(self.received.get());
        out.number(self.dispatched.get());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            request: RequestName::decode(from)?,
            tenant: from.text()?.into(),
            key: from.optional(Reader::text)?.map(Arc::from),
            model: from.text()?.into(),
            replica: from.small()?,
            received: UnixMicros::new(from.number()?),
            dispatched: UnixMicros::new(from.number()?),
        })
    }
}

impl Mark {
    fn decode(request: RequestName, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            request,
            at: UnixMicros::new(from.number()?),
            used: Used::decode(from)?,
        })
    }
}

impl Ended {
    fn encode(&self, out: &mut Writer<'_>) {
        self.request.encode(out);
        out.text(&self.tenant);
        out.optional(self.key.as_deref(), Writer::text);
        out.optional(self.model.as_deref(), Writer::text);
        out.optional(self.replica, |out, replica| out.number(replica.into()));
        out.text(&self.outcome);
        out.optional(self.finish_reason.as_deref(), Writer::text);
        self.used.encode(out);
        out.byte(match self.counted {
            Counted::Engine => 0,
            Counted::Estimated => 1,
            Counted::Marked => 2,
        });
        out.number(self.received.get());
        out.number(self.queue.get());
        out.optional(self.ttft, |out, ttft| out.number(ttft.get()));
        out.number(self.total.get());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            request: RequestName::decode(from)?,
            tenant: from.text()?.into(),
            key: from.optional(Reader::text)?.map(Arc::from),
            model: from.optional(Reader::text)?.map(Arc::from),
            replica: from.optional(Reader::small)?,
            outcome: known(from.text()?),
            finish_reason: from.optional(Reader::text)?.map(known),
            used: Used::decode(from)?,
            counted: match from.byte()? {
                0 => Counted::Engine,
                1 => Counted::Estimated,
                2 => Counted::Marked,
                _ => return Err(Malformed),
            },
            received: UnixMicros::new(from.number()?),
            queue: Micros::new(from.number()?),
            ttft: from.optional(Reader::number)?.map(Micros::new),
            total: Micros::new(from.number()?),
        })
    }
}

/// A reason; the most frequent ones take no memory of their own.
fn known(reason: &str) -> Cow<'static, str> {
    const OFTEN: [&str; 3] = ["completed", "stop", "length"];
    let known = OFTEN.into_iter().find(|known| *known == reason);
    known.map_or_else(|| Cow::Owned(reason.to_owned()), Cow::Borrowed)
}

impl Used {
    fn encode(self, out: &mut Writer<'_>) {
        out.number(self.prompt.get());
        out.number(self.cached.get());
        out.number(self.output.get());
        out.wide(self.kv.get());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            prompt: Tokens::new(from.number()?),
            cached: Tokens::new(from.number()?),
            output: Tokens::new(from.number()?),
            kv: KvByteMicros::new(from.wide()?),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
