//! The one place that writes JSON values into a reply.
//!
//! Replies are put together from fixed text and escaped values, without a tree of values between:
//! a streamed token costs one pass over its text. This must not know what a reply looks like.

use serde::Serialize;

/// Appends `value` as JSON: a string escaped and in quotes, a number as it is.
pub(crate) fn push_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(
        written.is_ok(),
        "a Vec takes every byte, and strings and integers every form"
    );
}

/// Appends `value` as JSON, or `null`.
pub(crate) fn push_optional<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: Option<&T>) {
    match value {
        Some(value) => push_json(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::push_json;

    fn written(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_json(&mut out, text);
        out
    }

    #[test]
    fn control_characters_quotes_and_emoji_read_back_as_they_were() {
        let text = "\u{0}\u{1}\u{8}\t\n\r\u{c}\u{1f}\u{7f}\"\\/\u{2028}你好🙂";
        assert_eq!(
            serde_json::from_slice::<String>(&written(text)).unwrap(),
            text
        );
    }

    #[test]
    fn an_escaped_text_holds_no_line_end() {
        assert_eq!(written("a\r\nb"), br#""a\r\nb""#);
    }

    proptest! {
        #[test]
        fn any_text_reads_back_as_it_was(text in any::<String>()) {
            let json = written(&text);
            prop_assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
            prop_assert!(!json.iter().any(|byte| matches!(byte, b'\n' | b'\r')));
        }
    }
}
