//! Reading a JSON object key by key, so that every mistake names its parameter.
//!
//! Values stay the sender's bytes until somebody asks for one as a type: what nobody asks for is
//! never decoded, and no number passes through a float. It knows no parameter by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::bad_request::BadRequest;
use crate::body::checked_text;

/// Keys that one object may have; clients send some dozens.
pub(crate) const MAX_KEYS: usize = 1024;

/// Bytes of a value that a message repeats at most, so that no prompt gets into it.
const MAX_SHOWN: usize = 32;

const EMPTY_ARRAY: &str = "an empty array";

/// Where a value stands in the body; displays as `messages.0.content`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'p> {
    /// The whole body.
    Body,
    /// The value of a key.
    Key(&'p Self, &'p str),
    /// An element of an array, counted from 0.
    Item(&'p Self, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => Ok(()),
            Self::Key(Self::Body, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Item(parent, index) => write!(f, "{parent}.{index}"),
        }
    }
}

/// The keys of one object, each there once.
#[derive(Debug)]
pub(crate) struct Fields<'a, 'p> {
    path: Path<'p>,
    values: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

impl<'a> Fields<'a, 'static> {
    /// Reads a whole body.
    pub(crate) fn of_body(body: &'a [u8]) -> Result<Self, BadRequest> {
        let text = checked_text(body)?;
        let keys = read_object(text).map_err(|error| {
            if error.is_data() {
                let is = Kind::of(text.trim_ascii()).article();
                BadRequest::unreadable(format!("the body is {is}; send a JSON object"))
            } else {
                BadRequest::unreadable(format!(
                    "the body is not valid JSON: {error}; send one JSON object"
                ))
            }
        })?;
        keys.into_fields(Path::Body)
    }
}

impl<'a, 'p> Fields<'a, 'p> {
    /// The value of `name`, unless it is absent or `null`.
    pub(crate) fn get(&self, name: &'static str) -> Option<Field<'a, '_>> {
        let json = self.values.get(name)?.get();
        (json != "null").then_some(Field {
            json,
            path: self.path_to(name),
        })
    }

    /// The value of `name` as it was sent, `null` too: a part of the text that was read.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).map(|value| value.get())
    }

    /// The value of `name`, or the refusal that says what to send.
    pub(crate) fn require(
        &self,
        name: &'static str,
        rule: &str,
    ) -> Result<Field<'a, '_>, BadRequest> {
        self.get(name)
            .ok_or_else(|| BadRequest::missing(self.path_to(name), rule))
    }

    /// All keys and values, but for those that are `null`.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, Field<'a, '_>)> {
        let values = self
            .values
            .iter()
            .filter(|(_, value)| value.get() != "null");
        values.map(|(key, value)| {
            let field = Field {
                json: value.get(),
                path: Path::Key(&self.path, key),
            };
            (key.as_ref(), field)
        })
    }

    /// Where the value of `name` is or would be.
    pub(crate) fn path_to<'s>(&'s self, name: &'static str) -> Path<'s> {
        Path::Key(&self.path, name)
    }
}

/// One value of the body, not yet decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a, 'p> {
    /// Valid JSON with no space around it.
    json: &'a str,
    path: Path<'p>,
}

impl<'a> Field<'a, '_> {
    /// The value as it was sent.
    pub(crate) fn json(&self) -> &'a str {
        self.json
    }

    /// What sort of value it is.
    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.json)
    }

    /// The refusal of this value for being of the wrong type.
    pub(crate) fn wrong_type(&self, rule: &str) -> BadRequest {
        BadRequest::wrong_type(self.path, &self.shown(), rule)
    }

    /// The refusal of this value for being out of bounds.
    pub(crate) fn wrong_value(&self, rule: &str) -> BadRequest {
        BadRequest::wrong_value(self.path, &self.shown(), rule)
    }

    /// The text of a string.
    pub(crate) fn string(&self, rule: &str) -> Result<String, BadRequest> {
        serde_json::from_str(self.json).map_err(|_| self.wrong_type(rule))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self) -> Result<bool, BadRequest> {
        serde_json::from_str(self.json).map_err(|_| self.wrong_type("use true or false"))
    }

    /// A whole number in `range`, written without fraction or exponent.
    pub(crate) fn integer(
        &self,
        range: RangeInclusive<i64>,
        rule: &str,
    ) -> Result<i64, BadRequest> {
        self.number_text(rule)?
            .parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.wrong_value(rule))
    }

    /// A number in `range`, after rounding to what the engine reckons with.
    pub(crate) fn float(&self, range: RangeInclusive<f32>, rule: &str) -> Result<f32, BadRequest> {
        self.number_text(rule)?
            .parse()
            .ok()
            .filter(|number| range.contains(number))
            .ok_or_else(|| self.wrong_value(rule))
    }

    /// A number as it was written.
    pub(crate) fn number_text(&self, rule: &str) -> Result<&'a str, BadRequest> {
        match self.kind() {
            Kind::Number => Ok(self.json),
            Kind::Null | Kind::Boolean | Kind::String | Kind::Array | Kind::Object => {
                Err(self.wrong_type(rule))
            }
        }
    }

    /// The keys of an object.
    pub(crate) fn object(&self, rule: &str) -> Result<Fields<'a, '_>, BadRequest> {
        read_object(self.json)
            .map_err(|_| self.wrong_type(rule))?
            .into_fields(self.path)
    }

    /// The elements of an array of 1 to `max`.
    pub(crate) fn items(&self, max: usize, rule: &str) -> Result<Items<'a, '_>, BadRequest> {
        let read =
            BoundedItems { max }.deserialize(&mut serde_json::Deserializer::from_str(self.json));
        match read.map_err(|_| self.wrong_type(rule))? {
            (_, 0) => Err(BadRequest::wrong_value(self.path, EMPTY_ARRAY, rule)),
            (_, count) if count > max => {
                let is = format!("an array of {count}");
                Err(BadRequest::wrong_value(self.path, &is, rule))
            }
            (values, _) => Ok(Items {
                values,
                path: &self.path,
            }),
        }
    }

    /// An array of token ids: read in one go, as there may be very many.
    pub(crate) fn token_ids(&self, rule: &str) -> Result<Vec<u32>, BadRequest> {
        serde_json::from_str(self.json).map_err(|_| {
            let is = "an array with something that is no token id";
            BadRequest::wrong_type(self.path, is, rule)
        })
    }

    /// Whether it is a string, an array or an object without contents.
    pub(crate) fn is_empty(&self) -> bool {
        let (open, close) = match self.kind() {
            Kind::String => return self.json == "\"\"",
            Kind::Array => ('[', ']'),
            Kind::Object => ('{', '}'),
            Kind::Null | Kind::Boolean | Kind::Number => return false,
        };
        let inner = self
            .json
            .strip_prefix(open)
            .and_then(|json| json.strip_suffix(close));
        inner.is_some_and(|inner| inner.trim_ascii().is_empty())
    }

    /// The value as a message may repeat it.
    fn shown(&self) -> String {
        let kind = self.kind();
        match kind {
            Kind::String if self.is_empty() => "an empty string".to_owned(),
            Kind::Array if self.is_empty() => EMPTY_ARRAY.to_owned(),
            Kind::Array | Kind::Object => kind.article().to_owned(),
            Kind::Null | Kind::Boolean | Kind::Number | Kind::String => {
                if self.json.len() <= MAX_SHOWN {
                    self.json.to_owned()
                } else {
                    format!("{} of {} bytes", kind.article(), self.json.len())
                }
            }
        }
    }
}

/// The elements of one array.
#[derive(Debug)]
pub(crate) struct Items<'a, 'p> {
    values: Vec<&'a RawValue>,
    path: &'p Path<'p>,
}

impl<'a, 'p> Items<'a, 'p> {
    /// The elements in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Field<'a, 'p>> {
        let path = self.path;
        self.values
            .iter()
            .enumerate()
            .map(move |(index, value)| Field {
                json: value.get(),
                path: Path::Item(path, index),
            })
    }
}

/// What sort of JSON value a text is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    fn of(json: &str) -> Self {
        match json.bytes().next() {
            Some(b'"') => Self::String,
            Some(b'[') => Self::Array,
            Some(b'{') => Self::Object,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'-' | b'0'..=b'9') => Self::Number,
            Some(_) | None => Self::Null,
        }
    }

    fn article(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// What one pass over an object's text found.
struct Keys<'a> {
    values: BTreeMap<Cow<'a, str>, &'a RawValue>,
    fault: Option<KeyFault>,
}

/// Why an object is refused for its keys.
enum KeyFault {
    Twice(String),
    TooMany,
}

impl<'a> Keys<'a> {
    fn into_fields<'p>(self, path: Path<'p>) -> Result<Fields<'a, 'p>, BadRequest> {
        match self.fault {
            None => Ok(Fields {
                path,
                values: self.values,
            }),
            Some(KeyFault::Twice(key)) => Err(BadRequest::duplicate(Path::Key(&path, &key))),
            Some(KeyFault::TooMany) => {
                let is = format!("an object of more than {MAX_KEYS} keys");
                let rule = "send only those that mean something";
                Err(match path {
                    Path::Body => BadRequest::unreadable(format!("the body is {is}; {rule}")),
                    Path::Key(..) | Path::Item(..) => BadRequest::wrong_value(path, &is, rule),
                })
            }
        }
    }
}

fn read_object(json: &str) -> serde_json::Result<Keys<'_>> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let keys = reader.deserialize_map(KeysVisitor)?;
    reader.end()?;
    Ok(keys)
}

/// A key, decoded, so that `"mod\u0065l"` is no way around a rule for `model`.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    /// Reads to the end also after a fault: bad grammar further on is the more useful thing to
    /// tell.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeMap::new();
        let mut fault = None;
        while let Some(Name(key)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            if fault.is_some() {
                continue;
            } else if values.contains_key(&key) {
                fault = Some(KeyFault::Twice(excerpt(&key)));
            } else if values.len() == MAX_KEYS {
                fault = Some(KeyFault::TooMany);
            } else {
                values.insert(key, value);
            }
        }
        Ok(Keys { values, fault })
    }
}

/// The start of a key, which may be of any length.
fn excerpt(key: &str) -> String {
    key.chars().take(MAX_SHOWN).collect()
}

/// Reads an array, keeps up to `max` elements and counts them all.
struct BoundedItems {
    max: usize,
}

impl<'de> DeserializeSeed<'de> for BoundedItems {
    type Value = (Vec<&'de RawValue>, usize);

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BoundedItems {
    type Value = (Vec<&'de RawValue>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while values.len() < self.max
            && let Some(value) = seq.next_element()?
        {
            values.push(value);
        }
        let mut count = values.len();
        if count == self.max {
            while seq.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
            }
        }
        Ok((values, count))
    }
}

#[cfg(test)]
mod tests;
