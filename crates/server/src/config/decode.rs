//! Reads typed values out of the tree and reports what does not fit.
//!
//! Every reading method gives `None` only after a problem was reported here or earlier, so a caller
//! may fill in anything and go on to find the next mistake. What the keys mean is not decided here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use tollgate_policy::units::Micros;
use tollgate_policy::window::Knob;

use super::nearest::nearest;
use super::problem::{Mark, Problems, shown};
use super::quantity;
use super::tree::{Node, Value};

/// Whether messages may show what the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Text,
    /// It may be a key that someone pasted in.
    Stars,
}

/// One value of the file, with its path.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'n> {
    node: &'n Node,
    path: String,
    show: Show,
    problems: &'n Problems,
}

impl<'n> Cursor<'n> {
    /// The whole file.
    pub(super) fn root(node: &'n Node, problems: &'n Problems) -> Self {
        Self {
            node,
            path: String::new(),
            show: Show::Text,
            problems,
        }
    }

    /// The same value, whose text, and that of all below it, stays out of messages.
    pub(super) fn secret(self) -> Self {
        Self {
            show: Show::Stars,
            ..self
        }
    }

    /// Reports a problem of this value; the message reads on from its path.
    pub(super) fn report(&self, message: impl Into<String>) {
        let message = match self.path.as_str() {
            "" => format!("the file {}", message.into()),
            _ => message.into(),
        };
        self.problems
            .add(self.node.at.problem(self.path.clone(), message));
    }

    /// Reports what this value is, and `want`: what it should be.
    pub(super) fn refuse<T>(&self, want: impl Display) -> Option<T> {
        if !matches!(self.node.value, Value::Broken) {
            self.report(format!("is {}; use {want}", self.shown()));
        }
        None
    }

    /// The value as a message may show it.
    pub(super) fn shown(&self) -> String {
        match (&self.node.value, self.show) {
            (Value::Null | Value::Broken, _) => "empty".to_owned(),
            (Value::List(items), _) if items.is_empty() => "an empty list".to_owned(),
            (Value::List(_), _) => "a list".to_owned(),
            (Value::Mapping(_), _) => "a mapping".to_owned(),
            (Value::Scalar(_), Show::Stars) => "***".to_owned(),
            (Value::Scalar(scalar), Show::Text) => {
                shown(scalar.written.as_deref().unwrap_or(&scalar.text))
            }
        }
    }

    /// Whether it is a list without items.
    pub(super) fn is_empty_list(&self) -> bool {
        matches!(&self.node.value, Value::List(items) if items.is_empty())
    }

    /// Reads a mapping with `read`, then reports the keys that it did not ask for.
    pub(super) fn mapping<T>(&self, read: impl FnOnce(&mut Fields<'_, 'n>) -> T) -> Option<T> {
        let Value::Mapping(entries) = &self.node.value else {
            return self.refuse("a mapping of keys to values");
        };
        let mut fields = Fields::open(self, entries);
        let out = read(&mut fields);
        fields.close();
        Some(out)
    }

    /// Reads each item of a list with `item`, leaving out those it refuses.
    pub(super) fn list<T>(&self, mut item: impl FnMut(Self) -> Option<T>) -> Option<Vec<T>> {
        let Value::List(items) = &self.node.value else {
            return self.refuse("a list like [a, b]");
        };
        let cursors = items.iter().enumerate().map(|(index, node)| Self {
            node,
            path: format!("{}[{index}]", self.path),
            show: self.show,
            problems: self.problems,
        });
        Some(cursors.filter_map(&mut item).collect())
    }

    /// The text of a scalar; `want` says what it should be.
    pub(super) fn text(&self, want: impl Display) -> Option<&'n str> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::Null | Value::List(_) | Value::Mapping(_) | Value::Broken => self.refuse(want),
        }
    }

    /// A whole number in `range`.
    pub(super) fn integer<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let (low, high) = (range.start(), range.end());
        let number: Option<i128> = self
            .text(format_args!("a whole number, {low}..={high}"))?
            .parse()
            .ok();
        let Some(number) = number else {
            return self.refuse(format_args!("a whole number, {low}..={high}"));
        };
        match T::try_from(number) {
            Ok(number) if range.contains(&number) => Some(number),
            Ok(_) | Err(_) => self.refuse(format_args!("{low}..={high}")),
        }
    }

    /// A duration in `range`.
    pub(super) fn duration(&self, range: RangeInclusive<Micros>) -> Option<Micros> {
        let low = quantity::show_duration(*range.start());
        let high = quantity::show_duration(*range.end());
        match quantity::duration(self.text("a duration like 30s")?) {
            Some(span) if range.contains(&span) => Some(span),
            Some(_) => self.refuse(format_args!("{low}..={high}")),
            None => self.refuse(format_args!(
                "a duration like 30s, 250ms or 10m, {low}..={high}"
            )),
        }
    }

    /// A size in bytes, in `range`.
    pub(super) fn size(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let (low, high) = (
            quantity::show_size(*range.start()),
            quantity::show_size(*range.end()),
        );
        match quantity::size(self.text("a size like 32MiB")?) {
            Some(bytes) if range.contains(&bytes) => Some(bytes),
            Some(_) => self.refuse(format_args!("{low}..={high}")),
            None => self.refuse(format_args!(
                "a size in KiB, MiB, GiB or bytes, {low}..={high}"
            )),
        }
    }

    /// A part in whole per cent, in `range`.
    pub(super) fn percent<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<u16> + PartialOrd + Display,
    {
        let (low, high) = (range.start(), range.end());
        let want = format!("{low}%..={high}%");
        match quantity::percent(self.text("a part like 20%")?).map(T::try_from) {
            Some(Ok(percent)) if range.contains(&percent) => Some(percent),
            Some(_) => self.refuse(want),
            None => self.refuse(format_args!("a part like 20%, {want}")),
        }
    }

    /// An amount with up to three decimals, in thousandths, in `range`.
    pub(super) fn thousandths(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let low = quantity::show_thousandths(*range.start());
        let high = quantity::show_thousandths(*range.end());
        match quantity::thousandths(self.text("a number like 40 or 0.5")?) {
            Some(amount) if range.contains(&amount) => Some(amount),
            Some(_) => self.refuse(format_args!("{low}..={high}")),
            None => self.refuse(format_args!(
                "a number with at most three decimals, {low}..={high}"
            )),
        }
    }

    /// `auto`, or a whole number in `range`.
    pub(super) fn knob<T>(&self, range: RangeInclusive<T>) -> Option<Knob<T>>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let want = format!("auto or {}..={}", range.start(), range.end());
        let text = self.text(&want)?;
        if text == "auto" {
            return Some(Knob::Auto);
        }
        let number: Option<i128> = text.parse().ok();
        match number.map(T::try_from) {
            Some(Ok(number)) if range.contains(&number) => Some(Knob::Fixed(number)),
            Some(_) | None => self.refuse(want),
        }
    }

    /// One of the named values.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let want = names.join(" or ");
        let text = self.text(&want)?;
        match choices.iter().find(|(name, _)| *name == text) {
            Some((_, choice)) => Some(*choice),
            None => self.refuse(want),
        }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self) -> Option<bool> {
        self.choice(&[("true", true), ("false", false)])
    }

    /// A name of 1 to `chars_max` letters, digits and characters of `signs`, all ASCII.
    pub(super) fn name(&self, signs: &str, chars_max: usize) -> Option<&'n str> {
        let want = format!("1 to {chars_max} characters out of A-Z a-z 0-9 {signs}");
        let text = self.text(&want)?;
        let fits = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
        match (1..=chars_max).contains(&text.len()) && text.chars().all(fits) {
            true => Some(text),
            false => self.refuse(want),
        }
    }
}

/// The keys of one mapping, to be asked for by name.
#[derive(Debug)]
pub(super) struct Fields<'c, 'n> {
    cursor: &'c Cursor<'n>,
    entries: Vec<(&'n str, &'n Node)>,
    known: Vec<&'static str>,
    /// Keys with a message of their own; known, but not to be suggested.
    refused: Vec<&'static str>,
}

impl<'c, 'n> Fields<'c, 'n> {
    fn open(cursor: &'c Cursor<'n>, raw: &'n [(Node, Node)]) -> Self {
        let mut fields = Self {
            cursor,
            entries: vec![],
            known: vec![],
            refused: vec![],
        };
        let mut places: BTreeMap<&str, Mark> = BTreeMap::new();
        for (key, node) in raw {
            let Value::Scalar(scalar) = &key.value else {
                fields.report_at(key.at, cursor.path.clone(), "has a key without a name");
                continue;
            };
            let name = scalar.text.as_str();
            if let Some(first) = places.get(name) {
                let message = format!("is given twice; the first is on line {}", first.line);
                fields.report_at(key.at, fields.path_of_stranger(name), message);
                continue;
            }
            places.insert(name, key.at);
            fields.entries.push((name, node));
        }
        fields
    }

    /// The value of `key`, if it is there and not empty.
    pub(super) fn find(&mut self, key: &'static str) -> Option<Cursor<'n>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let node = self
            .node(key)
            .filter(|node| !matches!(node.value, Value::Null))?;
        let Cursor { show, problems, .. } = *self.cursor;
        Some(Cursor {
            node,
            path: self.path_of(key),
            show,
            problems,
        })
    }

    /// Reads the value of `key` with `read`, if it is there.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Cursor<'n>) -> Option<T>,
    ) -> Option<T> {
        self.find(key).and_then(read)
    }

    /// Reads the value of `key` with `read`, and reports `need` when it is not there.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        need: &str,
        read: impl FnOnce(Cursor<'n>) -> Option<T>,
    ) -> Option<T> {
        match self.find(key) {
            Some(value) => read(value),
            None => {
                self.report(key, format!("is missing; {need}"));
                None
            }
        }
    }

    /// Reports a problem of `key`: at its value, or at the mapping when it is not there.
    pub(super) fn report(&self, key: &str, message: impl Into<String>) {
        let at = self.node(key).unwrap_or(self.cursor.node).at;
        self.report_at(at, self.path_of(key), message);
    }

    fn report_at(&self, at: Mark, path: String, message: impl Into<String>) {
        self.cursor.problems.add(at.problem(path, message));
    }

    fn node(&self, key: &str) -> Option<&'n Node> {
        self.entries
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, node)| *node)
    }

    fn path_of(&self, key: &str) -> String {
        match self.cursor.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// The path of a key that only the file names.
    fn path_of_stranger(&self, key: &str) -> String {
        match self.cursor.show {
            Show::Text => self.path_of(&shown(key)),
            Show::Stars => self.path_of("***"),
        }
    }

    /// Reports the keys that nobody asked for.
    fn close(self) {
        for (name, node) in &self.entries {
            if self.known.contains(name) || self.refused.contains(name) {
                continue;
            }
            let hint = match nearest(name, &self.known) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known here: {}", self.known.join(", ")),
            };
            let message = format!("is not a known key; {hint}");
            self.report_at(node.at, self.path_of_stranger(name), message);
        }
        #[cfg(test)]
        for key in &self.known {
            self.cursor
                .problems
                .known
                .borrow_mut()
                .insert(self.path_of(key));
        }
    }
}
