//! The body of `POST /v1/embeddings` and its answer.

use crate::bad_request::BadRequest;
use crate::completion::{Prompt, PromptText};
use crate::fields::{Field, Fields};
use crate::json_text::push_json;
use crate::params::model;

/// A request for the vectors of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest {
    /// The model's name or alias as sent.
    pub model: String,
    /// The texts, 1 to [`Prompt::MAX_PROMPTS`], none of them empty.
    pub input: Vec<PromptText>,
    /// How the numbers are sent.
    pub encoding: Encoding,
    /// How many numbers each vector shall have, where the caller says.
    pub dimensions: Option<u32>,
}

/// How the numbers of a vector are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As JSON numbers.
    #[default]
    Float,
    /// Four bytes each, the lowest first, in base64: what the official clients ask for.
    Base64,
}

impl EmbeddingRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The first mistake found, naming its parameter.
    pub fn parse(body: &[u8]) -> Result<Self, BadRequest> {
        let fields = Fields::of_body(body)?;
        let encoding = fields.get("encoding_format");
        let dimensions = fields.get("dimensions");
        let most = i64::from(u32::MAX);
        let count = |field: Field<'_, '_>| field.integer(1..=most, "use a whole number above 0");
        Ok(Self {
            model: model(&fields)?,
            input: Prompt::of(&fields, "input")?.into(),
            encoding: encoding
                .map(|field| Encoding::of(&field))
                .transpose()?
                .unwrap_or_default(),
            dimensions: dimensions
                .map(count)
                .transpose()?
                .and_then(|count| u32::try_from(count).ok()),
        })
    }
}

impl Encoding {
    fn of(field: &Field<'_, '_>) -> Result<Self, BadRequest> {
        let rule = "use float or base64";
        match field.string(rule)?.as_str() {
            "float" => Ok(Self::Float),
            "base64" => Ok(Self::Base64),
            _ => Err(field.wrong_value(rule)),
        }
    }
}

/// Appends the body of an answer: each vector under its place in the input.
pub fn write_embeddings(
    vectors: &[Vec<f32>],
    encoding: Encoding,
    model: &str,
    prompt_tokens: u64,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    for (index, vector) in vectors.iter().enumerate() {
        let before: &[u8] = if index == 0 { b"" } else { b"," };
        out.extend_from_slice(before);
        out.extend_from_slice(b"{\"object\":\"embedding\",\"index\":");
        push_json(out, &index);
        out.extend_from_slice(b",\"embedding\":");
        match encoding {
            Encoding::Float => push_json(out, vector),
            Encoding::Base64 => push_base64(vector, out),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"],\"model\":");
    push_json(out, model);
    out.extend_from_slice(b",\"usage\":{\"prompt_tokens\":");
    push_json(out, &prompt_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    push_json(out, &prompt_tokens);
    out.extend_from_slice(b"}}");
}

/// RFC 4648, section 4, with padding.
fn push_base64(vector: &[f32], out: &mut Vec<u8>) {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    out.push(b'"');
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for at in 0..4 {
            let sign = usize::try_from((bits >> (18 - 6 * at)) & 63).unwrap_or(0);
            let there = usize::try_from(at).unwrap_or(0) <= three.len();
            out.push(if there { SIGNS[sign] } else { b'=' });
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Result<EmbeddingRequest, BadRequest> {
        EmbeddingRequest::parse(format!("{{\"model\":\"m\",{rest}}}").as_bytes())
    }

    #[test]
    fn input_is_a_text_tokens_or_a_list_of_either() {
        let text = |text: &str| PromptText::Text(text.into());
        for (input, expected) in [
            ("\"a\"", vec![text("a")]),
            ("[\"a\",\"b\",\"c\"]", vec![text("a"), text("b"), text("c")]),
            ("[1,2]", vec![PromptText::Tokens(vec![1, 2])]),
            (
                "[[1],[2]]",
                vec![PromptText::Tokens(vec![1]), PromptText::Tokens(vec![2])],
            ),
        ] {
            let read = parse(&format!("\"input\":{input}")).unwrap();
            assert_eq!((read.input, read.encoding), (expected, Encoding::Float));
        }
        let read = parse("\"input\":\"a\",\"encoding_format\":\"base64\",\"dimensions\":8");
        let read = read.unwrap();
        assert_eq!(
            (read.encoding, read.dimensions),
            (Encoding::Base64, Some(8))
        );
    }

    #[test]
    fn nothing_to_embed_is_refused_by_name() {
        for (rest, param) in [
            ("\"input\":\"\"", "input"),
            ("\"input\":[]", "input"),
            ("\"input\":[\"a\",\"\"]", "input.1"),
            ("\"user\":\"u\"", "input"),
            (
                "\"input\":\"a\",\"encoding_format\":\"int8\"",
                "encoding_format",
            ),
            ("\"input\":\"a\",\"dimensions\":0", "dimensions"),
        ] {
            let refused = parse(rest).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{rest}");
        }
    }

    #[test]
    fn numbers_are_the_same_in_either_encoding() {
        let vectors = [vec![1.0, -0.5, 0.25], vec![f32::MIN_POSITIVE]];
        let written = |encoding| {
            let mut out = Vec::new();
            write_embeddings(&vectors, encoding, "m", 9, &mut out);
            serde_json::from_slice::<serde_json::Value>(&out).unwrap()
        };
        let floats = written(Encoding::Float);
        assert_eq!(
            floats["data"][0]["embedding"],
            serde_json::json!([1.0, -0.5, 0.25])
        );
        assert_eq!(floats["data"][1]["index"], 1);
        assert_eq!(
            floats["usage"],
            serde_json::json!({"prompt_tokens": 9, "total_tokens": 9})
        );
        let packed = written(Encoding::Base64);
        // As Python's base64.b64encode(struct.pack("<3f", 1, -0.5, 0.25)) writes it.
        assert_eq!(packed["data"][0]["embedding"], "AACAPwAAAL8AAIA+");
        assert_eq!(packed["data"][1]["embedding"], "AACAAA==");
    }
}
