//! How much text a JSON value holds, without keeping any of it.
//!
//! What it counts is what an engine makes tokens of, roughly: texts by their bytes, token ids one
//! by one, pictures and sounds as so many things. How many tokens a byte is, it does not know.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// How much there is to read in a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSize {
    /// Bytes of text, escapes decoded.
    pub text_bytes: u64,
    /// Token ids.
    pub tokens: u64,
    /// Pictures, sounds and files: what is encoded in them is no text, however long.
    pub media: u64,
}

/// Members whose text is a picture, a sound or a file, or the address of one.
const MEDIA: [&str; 5] = ["url", "image_url", "data", "file_data", "audio_url"];

/// Members whose text the model does not read, or as a word or two.
const SILENT: [&str; 6] = ["role", "id", "type", "tool_call_id", "format", "detail"];

/// Bytes up to which the text of such a member is left out. Templates write roles and ids into
/// prompts as they are, so a long one is text like any other.
const SILENT_BYTES: usize = 64;

/// Measures a prompt: messages, a text, token ids, or a list of either.
pub(crate) fn measure(json: &str) -> PromptSize {
    each_text(json, &mut |_| {})
}

/// The same, and hands on each text that counts, in order.
pub(crate) fn each_text(json: &str, on_text: &mut dyn FnMut(&str)) -> PromptSize {
    let mut size = PromptSize::default();
    let seed = Measure {
        size: &mut size,
        on_text,
        kind: Kind::Text,
    };
    // Err: not JSON, which whoever cut it out has checked.
    let _ = seed.deserialize(&mut serde_json::Deserializer::from_str(json));
    size
}

/// Bytes of text in one piece of an answer.
pub(crate) fn text_bytes(value: &RawValue) -> u64 {
    match value.get() {
        "null" | "\"\"" | "{}" => 0,
        json => measure(json).text_bytes,
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Media,
    Silent,
}

struct Measure<'s> {
    size: &'s mut PromptSize,
    on_text: &'s mut dyn FnMut(&str),
    kind: Kind,
}

impl Measure<'_> {
    fn again(&mut self, kind: Kind) -> Measure<'_> {
        Measure {
            size: self.size,
            on_text: self.on_text,
            kind,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

/// Whether what stands for a picture, a sound or a file can be one: an address, or bytes in ASCII.
/// What can't is counted as the text that it may be, or a prompt could hide in it and cost nothing.
fn is_encoded(text: &str) -> bool {
    let is_prose = text.starts_with("data:text/") || text.starts_with("data:,");
    let in_ascii = |byte: u8| byte.is_ascii_graphic() || matches!(byte, b'\r' | b'\n');
    !is_prose && text.bytes().all(in_ascii)
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let is_text = match self.kind {
            Kind::Text => true,
            Kind::Media => {
                self.size.media += 1;
                !is_encoded(text)
            }
            Kind::Silent => text.len() > SILENT_BYTES,
        };
        if is_text {
            self.size.text_bytes += u64::try_from(text.len()).unwrap_or(u64::MAX);
            (self.on_text)(text);
        }
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.size.tokens += 1;
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.size.tokens += 1;
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let kind = self.kind;
        while seq.next_element_seed(self.again(kind))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(key)) = map.next_key()? {
            let kind = if SILENT.contains(&key.as_ref()) {
                Kind::Silent
            } else if MEDIA.contains(&key.as_ref()) {
                Kind::Media
            } else {
                Kind::Text
            };
            map.next_value_seed(self.again(kind))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text_bytes: u64, tokens: u64, media: u64) -> PromptSize {
        PromptSize {
            text_bytes,
            tokens,
            media,
        }
    }

    #[test]
    fn text_is_counted_by_its_decoded_bytes_wherever_it_stands() {
        let messages = r#"[{"role":"system","content":"ab\n"},
            {"role":"user","content":[{"type":"text","text":"h\u00e9"},{"type":"x","y":{"z":"123"}}]}]"#;
        assert_eq!(measure(messages), size(3 + 3 + 3, 0, 0));
    }

    #[test]
    fn each_text_that_counts_is_handed_on_as_it_reads() {
        let messages = r#"[{"role":"user","content":[{"type":"text","text":"h\u00e9"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]},"b"]"#;
        let mut texts = Vec::new();
        let size = each_text(messages, &mut |text| texts.push(text.to_owned()));
        assert_eq!(texts, ["h\u{e9}", "b"]);
        assert_eq!(size, self::size(4, 0, 1));
    }

    #[test]
    fn token_ids_are_counted_one_by_one() {
        assert_eq!(measure("[1,2,3]"), size(0, 3, 0));
        assert_eq!(measure("[[1,2],[3]]"), size(0, 3, 0));
        assert_eq!(measure(r#"["ab","c"]"#), size(3, 0, 0));
    }

    #[test]
    fn a_picture_is_one_thing_however_long_it_is() {
        let data = "A".repeat(100_000);
        let part = format!(
            r#"[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}},
                {{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}},
                {{"type":"text","text":"data:{data}"}}]"#
        );
        assert_eq!(measure(&part), size(100_005, 0, 2), "text stays text");
    }

    #[test]
    fn text_that_poses_as_something_else_is_counted_as_text() {
        let long = "word ".repeat(200);
        let hidden = [
            (format!(r#"[{{"role":"{long}","content":""}}]"#), 0),
            (format!(r#"[{{"type":"x","data":"{long}"}}]"#), 1),
            (
                format!(
                    r#"[{{"image_url":{{"url":"data:text/plain,{}"}}}}]"#,
                    "w".repeat(1_000)
                ),
                1,
            ),
            (
                format!(r#"[{{"image_url":{{"url":"{}"}}}}]"#, "字".repeat(400)),
                1,
            ),
            (
                format!(r#"[{{"properties":{{"type":{{"description":"{long}"}}}}}}]"#),
                0,
            ),
        ];
        for (prompt, media) in hidden {
            let size = measure(&prompt);
            assert!(size.text_bytes >= 1_000, "{size:?} of {prompt}");
            assert_eq!(size.media, media, "{prompt}");
        }
    }

    #[test]
    fn a_picture_that_is_none_still_costs_what_one_costs() {
        let urls = [
            "",
            "!",
            "data:image/png;base64,",
            "data:image/png;base64,AA",
            "https://x/1.png",
        ];
        let parts =
            urls.map(|url| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#));
        assert_eq!(measure(&format!("[{}]", parts.join(","))), size(0, 0, 5));
        let file = format!(
            r#"[{{"type":"file","file":{{"file_data":"{}"}}}}]"#,
            "QUJD".repeat(9_999)
        );
        assert_eq!(measure(&file), size(0, 0, 1));
    }
}
