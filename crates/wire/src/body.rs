//! The checks on a body's bytes that come before reading it as JSON.
//!
//! After them no later step can fail on the text itself: it is UTF-8, nested no deeper than any
//! JSON library reads, and every `\u` escape stands for a whole character, in the parts that nobody
//! here reads as well. It doesn't check grammar.

use crate::bad_request::BadRequest;

/// How deep arrays and objects may nest: far deeper than a tool's schema goes, and less than the
/// 127 levels at which `serde_json` stops, so that a part kept as raw JSON can still be read later.
pub(crate) const MAX_DEPTH: usize = 100;

/// The body as text that may be read as JSON.
pub(crate) fn checked_text(body: &[u8]) -> Result<&str, BadRequest> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        BadRequest::unreadable(format!(
            "the body is not UTF-8 at byte {at}; send UTF-8 text"
        ))
    })?;
    if text.trim_ascii().is_empty() {
        return Err(BadRequest::unreadable(
            "the body is empty; send a JSON object",
        ));
    }
    if text.starts_with('\u{feff}') {
        let message = "the body starts with a byte order mark; send the JSON without it";
        return Err(BadRequest::unreadable(message));
    }
    check_nesting_and_escapes(body)?;
    Ok(text)
}

/// One pass that only tells strings from the rest.
fn check_nesting_and_escapes(body: &[u8]) -> Result<(), BadRequest> {
    let mut depth: usize = 0;
    let mut at = 0;
    while let Some(byte) = body.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(body, at)?,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(BadRequest::unreadable(format!(
                "the body nests arrays and objects deeper than {MAX_DEPTH} levels; flatten it"
            )));
        }
    }
    Ok(())
}

/// Where the string whose contents start at `start` is over, behind its closing quote.
fn end_of_string(body: &[u8], start: usize) -> Result<usize, BadRequest> {
    let mut at = start;
    loop {
        let rest = body.get(at..).unwrap_or_default();
        let Some(step) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) else {
            return Ok(body.len()); // Never closed: the JSON reader will say so.
        };
        at += step;
        if body.get(at) == Some(&b'"') {
            return Ok(at + 1);
        }
        at += escape_length(body, at)?;
    }
}

/// The length of the escape at `at`, a surrogate pair being one.
fn escape_length(body: &[u8], at: usize) -> Result<usize, BadRequest> {
    let Some(unit) = code_unit(body, at) else {
        return Ok(2); // `\n` and the like, or an error that the JSON reader will find.
    };
    let is_low = |unit| (0xdc00..=0xdfff).contains(&unit);
    match unit {
        0xd800..=0xdbff if code_unit(body, at + 6).is_some_and(is_low) => Ok(12),
        0xd800..=0xdfff => Err(BadRequest::unreadable(format!(
            "the escape at byte {at} is half of a surrogate pair; send whole characters"
        ))),
        _ => Ok(6),
    }
}

/// The UTF-16 code unit that an escape `\uXXXX` at `at` stands for.
fn code_unit(body: &[u8], at: usize) -> Option<u32> {
    let digits = body.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        Some(unit * 16 + char::from(*digit).to_digit(16)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &[u8]) -> String {
        checked_text(body).unwrap_err().message
    }

    #[test]
    fn an_empty_body_is_refused() {
        assert_eq!(refusal(b""), "the body is empty; send a JSON object");
        assert_eq!(refusal(b" \r\n"), "the body is empty; send a JSON object");
    }

    #[test]
    fn a_byte_order_mark_is_refused() {
        assert!(refusal(b"\xef\xbb\xbf{}").contains("byte order mark"));
    }

    #[test]
    fn invalid_utf8_is_refused_with_its_place() {
        assert_eq!(
            refusal(b"{\"a\":\"\xff\"}"),
            "the body is not UTF-8 at byte 6; send UTF-8 text"
        );
    }

    #[test]
    fn nesting_is_refused_past_the_bound_and_not_at_it() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(checked_text(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(refusal(nested(MAX_DEPTH + 1).as_bytes()).contains("deeper than 100 levels"));
        assert!(refusal(nested(10_000).as_bytes()).contains("deeper than 100 levels"));
    }

    #[test]
    fn brackets_inside_strings_do_not_nest() {
        let body = format!(r#"{{"a":"\"{}"}}"#, "[".repeat(1000));
        assert_eq!(checked_text(body.as_bytes()), Ok(body.as_str()));
    }

    #[test]
    fn half_a_surrogate_pair_is_refused_wherever_it_stands() {
        for body in [
            r#"{"x":"\ud800"}"#,
            r#"["\udc00"]"#,
            r#""\ud83dx""#,
            r#""\uD83D\uD83D""#,
        ] {
            assert!(
                refusal(body.as_bytes()).contains("half of a surrogate pair"),
                "{body}"
            );
        }
    }

    #[test]
    fn whole_pairs_and_escaped_backslashes_pass() {
        for body in [r#""\ud83d\ude42""#, r#""\\ud800""#, r#""\u00e9\n""#] {
            assert!(checked_text(body.as_bytes()).is_ok(), "{body}");
        }
    }

    #[test]
    fn broken_escapes_are_left_to_the_json_reader() {
        for body in [r#""\ud8"#, r#""\"#, r#""\uzzzz""#, r#""abc"#] {
            assert!(checked_text(body.as_bytes()).is_ok(), "{body}");
        }
    }
}
