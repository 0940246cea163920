//! The error body that OpenAI's clients understand, as a reply and inside a stream.
//!
//! The clients throw away a body that is not wrapped in `error`, and typed ones refuse one whose
//! `code` is a number: the types here leave no other shape to write. Which error a request gets
//! is not decided here.

use crate::{
    json_text::{push_json, push_optional},
    sse,
};

/// What went wrong, for the caller of an endpoint. Every member is always in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorBody<'a> {
    /// What is wrong and what to do about it, for a person.
    pub message: &'a str,
    /// OpenAI's `type`, such as `invalid_request_error`.
    pub kind: &'a str,
    /// The request member at fault, such as `messages.0.content`.
    pub param: Option<&'a str>,
    /// For a program to act on, such as `context_length_exceeded`. Never the HTTP status.
    pub code: Option<&'a str>,
}

impl ErrorBody<'_> {
    /// Appends the JSON body.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        push_json(out, self.message);
        out.extend_from_slice(b",\"type\":");
        push_json(out, self.kind);
        out.extend_from_slice(b",\"param\":");
        push_optional(out, self.param);
        out.extend_from_slice(b",\"code\":");
        push_optional(out, self.code);
        out.extend_from_slice(b"}}");
    }

    /// Appends an event named `error` with the body, for a stream whose status line is gone. The
    /// stream ends after it, without the terminator of a good one.
    pub fn write_event(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        self.write(&mut body);
        sse::write_event("error", &body, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::ErrorBody;

    const FULL: ErrorBody<'static> = ErrorBody {
        message: "temperature is 3; use a number from 0 to 2",
        kind: "invalid_request_error",
        param: Some("temperature"),
        code: Some("out_of_range"),
    };
    const BARE: ErrorBody<'static> = ErrorBody {
        message: "the path \"/v1/nope\" does not exist",
        kind: "invalid_request_error",
        param: None,
        code: None,
    };

    fn body(error: ErrorBody<'_>) -> String {
        let mut out = Vec::new();
        error.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// The body with a line for each member, for people.
    fn by_member(error: ErrorBody<'_>) -> String {
        body(error).replace(",\"", ",\n\"")
    }

    #[test]
    fn a_body_names_the_parameter_and_the_code() {
        insta::assert_snapshot!(by_member(FULL), @r#"
        {"error":{"message":"temperature is 3; use a number from 0 to 2",
        "type":"invalid_request_error",
        "param":"temperature",
        "code":"out_of_range"}}
        "#);
    }

    #[test]
    fn a_body_without_parameter_and_code_says_null() {
        insta::assert_snapshot!(by_member(BARE), @r#"
        {"error":{"message":"the path \"/v1/nope\" does not exist",
        "type":"invalid_request_error",
        "param":null,
        "code":null}}
        "#);
    }

    #[test]
    fn an_error_in_a_stream_is_an_error_event() {
        let mut out = Vec::new();
        FULL.write_event(&mut out);
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r#"
        event: error
        data: {"error":{"message":"temperature is 3; use a number from 0 to 2","type":"invalid_request_error","param":"temperature","code":"out_of_range"}}
        "#);
    }

    proptest! {
        #[test]
        fn every_member_reads_back_with_its_json_type(
            message: String,
            kind: String,
            param: Option<String>,
            code: Option<String>,
        ) {
            let error = ErrorBody {
                message: &message,
                kind: &kind,
                param: param.as_deref(),
                code: code.as_deref(),
            };
            let value: Value = serde_json::from_str(&body(error)).unwrap();
            let expected = serde_json::json!({
                "error": { "message": message, "type": kind, "param": param, "code": code }
            });
            prop_assert_eq!(value, expected);
        }
    }
}
