//! What an engine's answer in one piece says, which goes on to the client as it is.

use crate::reply::Usage;
use crate::tap::{EngineError, Finish, Said, error_body, read_chunk};

/// An answer, as far as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// What the engine says was used, where it says so.
    pub usage: Option<Usage>,
    /// The last reason for the end of a choice.
    pub finish: Option<Finish>,
    /// Bytes of text in all choices.
    pub text_bytes: u64,
}

impl Whole {
    /// Reads an answer; `None` where it is not a JSON object.
    ///
    /// # Errors
    /// The error that stands in its place, whatever status it came with.
    pub fn read(body: &[u8]) -> Option<Result<Self, EngineError>> {
        // Its members are those of a chunk, but that a choice has a message and not a delta.
        Some(match read_chunk(body)? {
            Said::Error(error) => Err(error),
            Said::Chunk(chunk) => Ok(Self {
                usage: chunk.usage,
                finish: chunk.finish,
                text_bytes: chunk.text_bytes,
            }),
        })
    }
}

impl Whole {
    /// Hands on each text of an answer, in order.
    pub fn each_text(body: &[u8], on_text: &mut dyn FnMut(&str)) {
        if let Some(Said::Chunk(chunk)) = read_chunk(body) {
            chunk.each_text(on_text);
        }
    }
}

impl EngineError {
    /// The error in an engine's body, if it is JSON with one.
    pub fn of_body(body: &[u8]) -> Option<Self> {
        error_body(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<Result<Whole, EngineError>> {
        Whole::read(body.as_bytes())
    }

    fn usage(prompt: u64, output: u64, cached: u64) -> Option<Usage> {
        Some(Usage {
            prompt_tokens: prompt,
            completion_tokens: output,
            cached_tokens: cached,
        })
    }

    #[test]
    fn usage_is_read_in_each_of_its_shapes() {
        for (members, expected) in [
            (
                r#""usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}"#,
                usage(5, 2, 4),
            ),
            (
                r#""usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":null}"#,
                usage(5, 2, 0),
            ),
            (
                r#""usage":{"prompt_tokens":900,"total_tokens":900}"#,
                usage(900, 0, 0),
            ),
            (
                r#""timings":{"prompt_n":3,"cache_n":4,"predicted_n":9}"#,
                usage(7, 9, 4),
            ),
            (r#""usage":null"#, None),
            (r#""usage":{"tokens":"many"}"#, None),
            (r#""usage":7"#, None),
        ] {
            let whole = read(&format!("{{{members}}}")).unwrap().unwrap();
            assert_eq!(whole.usage, expected, "{members}");
        }
    }

    #[test]
    fn text_and_the_reason_for_its_end_are_read() {
        let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi you"},"finish_reason":"tool_calls"}]}"#;
        let whole = read(body).unwrap().unwrap();
        assert_eq!(
            (whole.text_bytes, whole.finish),
            (6, Some(Finish::ToolCalls))
        );
        let mut texts = Vec::new();
        Whole::each_text(body.as_bytes(), &mut |text| texts.push(text.to_owned()));
        assert_eq!(texts, ["hi you"]);
    }

    #[test]
    fn an_error_under_any_status_is_an_error() {
        let error = read(r#"{"error":{"message":"overloaded","code":503}}"#).unwrap();
        let error = error.unwrap_err();
        assert_eq!(
            (error.status, error.message.as_str()),
            (Some(503), "overloaded")
        );
        assert_eq!(
            error.shape,
            crate::tap::ErrorShape::Other,
            "its code is a number"
        );
        let old = read(r#"{"object":"error","message":"no","code":400}"#).unwrap();
        assert_eq!(old.unwrap_err().status, Some(400));
    }

    #[test]
    fn what_is_no_json_object_is_no_answer() {
        for body in ["", "nope", "[]", "{\"a\":", "\"x\""] {
            assert_eq!(read(body), None, "{body}");
        }
    }
}
