//! Files that people write: YAML to types, or the first mistake in words that tell what to write.
//!
//! A mistake stands with its path, line and column. A parser's own words name its types and its
//! options, which say nothing to whoever wrote the file; each that a file can bring about is said
//! anew here. What the values mean is decided elsewhere.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, Location};

/// What is wrong with a file, and where.
///
/// It displays as `12:7: tenants[1].weight: …`, for the name of the file to go before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistake {
    /// The key at fault; empty when it is the file as a whole.
    pub path: String,
    /// Line in the file, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl Mistake {
    /// A mistake of the file as a whole, about this key.
    pub(crate) fn at_start(path: &str, message: &str) -> Self {
        Self {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        }
    }
}

/// Reads a text into what it describes.
///
/// # Errors
/// The first mistake in it.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let mut path = String::new();
    let options = serde_saphyr::options! { with_snippet: false };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |de| {
        serde_path_to_error::deserialize::<_, T>(de).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    read.map_err(|error| {
        let at = error.location();
        // A key that could not be read has no name: the path ends at what it is in.
        let path = path.trim_end_matches('?').trim_end_matches('.');
        Mistake {
            path: path.to_owned(),
            line: at.map_or(1, |at| at.line()).max(1),
            column: at.map_or(1, |at| at.column()).max(1),
            message: words(&error, text),
        }
    })
}

/// What a person wrote, or how the pieces are put together, that is not what is wanted there.
fn words(error: &Error, text: &str) -> String {
    let error = error.without_snippet();
    if let Error::AliasError { error, .. } = error {
        return words(error, text);
    }
    of_scalar(error, text)
        .or_else(|| of_shape(error, text))
        .or_else(|| of_names(error))
        .unwrap_or_else(|| as_the_parser_says(error))
}

/// A value that is none of its kind.
fn of_scalar(error: &Error, text: &str) -> Option<String> {
    if let Error::InvalidScalar { ty, location } = error {
        let found = standing(text, location);
        return Some(match (found, kind(ty)) {
            ("", wanted) => format!("nothing stands here; use {wanted}, or leave the key out"),
            (found, wanted) => format!("`{found}` is no such value; use {wanted}"),
        });
    }
    if let Error::NullIntoString { .. } = error {
        return Some("nothing stands here; write a value, or leave the key out".to_owned());
    }
    if let Error::SerdeInvalidValue {
        unexpected,
        expected,
        ..
    } = error
    {
        return Some(match expected.contains("nonzero") {
            true => "0 is too small; use 1 or more".to_owned(),
            false => format!("{unexpected} stands here; use {expected}"),
        });
    }
    if let Error::SerdeInvalidType {
        expected, location, ..
    } = error
    {
        let found = standing(text, location);
        return Some(format!("`{found}` is no such value; use {expected}"));
    }
    None
}

/// What a parser's type takes, for a person.
fn kind(ty: &str) -> &'static str {
    match ty {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "u128" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "i128" => "a whole number",
        "floating point" => "a number like 2 or 0.5",
        "boolean" => "true or false",
        _ => "another value",
    }
}

/// A list where one value belongs, and the like.
fn of_shape(error: &Error, text: &str) -> Option<String> {
    if let Error::Unexpected { expected, location } = error {
        let found = shape(text, location);
        return match *expected {
            "mapping start" => Some(format!(
                "{found} stands where keys with values belong; write them as {{ key: value }}"
            )),
            "sequence start" => Some(format!(
                "{found} stands where a list belongs; write one as [one, two]"
            )),
            "string scalar" => Some("use one value here, and no list and no keys".to_owned()),
            _ => None,
        };
    }
    if let Error::SerdeInvalidLength { len, expected, .. } = error {
        let wanted: String = expected.chars().filter(char::is_ascii_digit).collect();
        return (!wanted.is_empty()).then(|| format!("{len} items; use {wanted}"));
    }
    if matches!(
        error,
        Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
            | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
    ) {
        let said = "no kind is named here; use a name, or { name: … } where it has values";
        return Some(said.to_owned());
    }
    if let Error::ExpectedMappingEndAfterEnumVariantValue { .. } = error {
        return Some("a second kind stands here; keep one of both".to_owned());
    }
    if let Error::UnexpectedValueForUnitEnumVariant { .. } = error {
        return Some("this kind has no values; write its name alone".to_owned());
    }
    if let Error::MultipleDocuments { .. } = error {
        return Some("a second document begins here; keep one in a file".to_owned());
    }
    matches!(error, Error::Eof { .. }).then(|| "it ends before it says anything".to_owned())
}

/// Keys and names that are not known, twice there, or not there.
fn of_names(error: &Error) -> Option<String> {
    if let Error::SerdeUnknownField {
        field, expected, ..
    } = error
    {
        let known = listed(expected);
        return Some(format!("there is no key `{field}` here; use {known}"));
    }
    if let Error::SerdeUnknownVariant {
        variant, expected, ..
    } = error
    {
        let known = listed(expected);
        return Some(format!("there is no `{variant}` here; use {known}"));
    }
    if let Error::SerdeMissingField { field, .. } = error {
        return Some(format!("`{field}` is missing; add it"));
    }
    if let Error::DuplicateMappingKey { key, .. } = error {
        let key = key.as_deref().unwrap_or("this key");
        return Some(format!("`{key}` stands here twice; keep one"));
    }
    None
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => format!("`{one}`"),
        [first @ .., last] => format!("one of {} or {last}", first.join(", ")),
    }
}

/// Mistakes in the YAML itself, which the parser has words for that a person knows.
fn as_the_parser_says(error: &Error) -> String {
    let text = error.to_string();
    let text = text.trim();
    // The place goes before the message, and the parser writes it into it as well.
    let message = text.split(" at line ").next().unwrap_or(text);
    let message = message
        .rsplit_once(": line ")
        .map_or(message, |(what, _)| what);
    message.to_owned()
}

/// The same, where what is not shown in full is no single value.
fn shape(text: &str, at: &Location) -> String {
    let from = at.span().byte_offset();
    let from = from.and_then(|from| usize::try_from(from).ok());
    let rest = from.and_then(|from| text.get(from..)).unwrap_or_default();
    match (standing(text, at), rest.chars().next()) {
        (_, Some('[')) | ("", Some('-')) => "a list".to_owned(),
        (_, Some('{')) => "a key with a value".to_owned(),
        ("", Some(first)) if first.is_alphanumeric() => "a key with a value".to_owned(),
        ("", _) => "nothing".to_owned(),
        (found, _) => format!("`{found}`"),
    }
}

/// Characters of a value that are shown.
const SHOWN: usize = 40;

/// What stands there, as it was written; of what is long, the beginning.
fn standing<'t>(text: &'t str, at: &Location) -> &'t str {
    let span = at.span();
    let bounds = span.byte_offset().zip(span.byte_len());
    let found = bounds.and_then(|(from, len)| {
        let from = usize::try_from(from).ok()?;
        let until = from.checked_add(usize::try_from(len).ok()?)?;
        text.get(from..until)
    });
    let found = found.unwrap_or_default();
    let line = found.lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => &line[..end],
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(
        dead_code,
        reason = "only what goes wrong on the way there is looked at"
    )]
    struct Form {
        #[serde(default)]
        whole: u32,
        #[serde(default)]
        part: f64,
        #[serde(default)]
        on: bool,
        #[serde(default)]
        name: String,
        #[serde(default)]
        list: Vec<u8>,
        #[serde(default)]
        by_number: BTreeMap<std::num::NonZeroU32, u64>,
        pair: Option<[u8; 2]>,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[expect(
        dead_code,
        reason = "only what goes wrong on the way there is looked at"
    )]
    enum Kind {
        Plain,
        At { rate: f64 },
    }

    fn mistake(text: &str) -> String {
        read::<Form>(text).unwrap_err().to_string()
    }

    #[test]
    fn each_mistake_says_what_stands_there_and_what_to_write() {
        for (text, said) in [
            (
                "whole: many",
                "1:8: whole: `many` is no such value; use a whole number from 0 to 4294967295",
            ),
            (
                "whole: -3",
                "1:8: whole: `-3` is no such value; use a whole number from 0 to 4294967295",
            ),
            (
                "part: x",
                "1:7: part: `x` is no such value; use a number like 2 or 0.5",
            ),
            (
                "on: maybe",
                "1:5: on: `maybe` is no such value; use true or false",
            ),
            (
                "list: [1, 300]",
                "1:11: list[1]: `300` is no such value; use a whole number from 0 to 255",
            ),
            (
                "list:\n  a: 1",
                "2:3: list: a key with a value stands where a list belongs",
            ),
            (
                "by_number:\n  - 1",
                "by_number: a list stands where keys with values belong",
            ),
            (
                "list: 5",
                "1:7: list: `5` stands where a list belongs; write one as [one, two]",
            ),
            (
                "name: [a]",
                "1:7: name: use one value here, and no list and no keys",
            ),
            ("by_number: { 0: 1 }", "0 is too small; use 1 or more"),
            (
                "by_number: { 2: 1, 2: 3 }",
                "by_number: `2` stands here twice; keep one",
            ),
            ("by_number: 5", "`5` stands where keys with values belong"),
            ("pair: [1]", "pair: 1 items; use 2"),
            (
                "kind: other",
                "there is no `other` here; use one of plain or at",
            ),
            ("kind: { at: {} }", "kind.at: `rate` is missing; add it"),
            ("kind: {}", "no kind is named here"),
            (
                "other: 1",
                "1:1: other: there is no key `other` here; use one of whole, part",
            ),
            (
                "whole: 1\nwhole: 2",
                "2:1: `whole` stands here twice; keep one",
            ),
            ("whole: 1\n---\non: true", "a second document begins here"),
        ] {
            let found = mistake(text);
            assert!(found.contains(said), "{text}: {found}");
        }
    }

    #[test]
    fn a_value_that_is_left_out_is_told_as_that() {
        for text in ["whole:", "on:\nname: a", "name:", "by_number:"] {
            let found = mistake(text);
            assert!(found.contains("nothing stands"), "{text}: {found}");
        }
    }

    #[test]
    fn no_mistake_has_the_parsers_own_words() {
        for text in [
            "[]",
            "5",
            "{",
            "whole: [",
            "by_number:\n  - 1",
            "list:\n  a: 1",
            "list:",
            "a: *b",
            "a: !c 1",
            "\"",
            "whole: 1.5",
            "whole: 99999999999",
            "part: {}",
            "on: []",
            "name: { a: 1 }",
            "list: {}",
            "pair: 3",
            "kind: []",
            "kind: { at: 3 }",
            "kind: { plain: 3 }",
            "kind: { at: { rate: 1 }, b: 2 }",
            "by_number: { a: 1 }",
            "by_number: { 1: }",
            "by_number: { ? [1] : 2 }",
        ] {
            let found = mistake(text);
            for word in [
                "u8",
                "u32",
                "u64",
                "Option",
                "scalar",
                "mapping start",
                "sequence start",
                "variant",
                "enum",
                "field",
                "deserialize",
                "from_str",
                "DuplicateKeyPolicy",
                "?:",
            ] {
                assert!(!found.contains(word), "{text}: {found}");
            }
        }
    }

    #[test]
    fn of_what_is_long_the_beginning_is_shown() {
        let found = mistake(&format!("whole: {}", "é".repeat(500)));
        assert!(found.chars().count() < 120, "{found}");
    }
}
