//! The parameters that some engines have and others have not, each checked against its range.
//!
//! That they are asked for is also among the demands; whoever serves them reads them here.

use std::num::NonZeroU32;

use crate::bad_request::BadRequest;
use crate::fields::{Field, Fields, Kind};

/// What a request may ask for beyond the ordinary.
#[derive(Clone, Debug, PartialEq)]
pub struct Extras {
    /// How many answers, 1 to 128.
    pub choices: NonZeroU32,
    /// Tell how likely each token was, and this many of the likeliest in its place.
    pub logprobs: Option<u32>,
    /// Added to the logits of these tokens, -100 to 100 each; at most [`Extras::MAX_BIASES`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that end the text; at most [`Extras::MAX_STOP_TOKENS`].
    pub stop_tokens: Vec<u32>,
    /// 0 to 1: tokens about as surprising as is usual.
    pub typical_p: Option<f32>,
    /// What the text must be.
    pub constraint: Option<Constraint>,
    /// Whether a text begins with its prompt.
    pub echo: bool,
}

/// What a text must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// What a grammar in llama.cpp's notation says.
    Grammar(String),
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema describes: an object, as it was sent.
    JsonSchema(String),
}

impl Constraint {
    /// The parameter that asks for it.
    pub const fn param(&self) -> &'static str {
        match self {
            Self::Grammar(_) => "grammar",
            Self::JsonObject | Self::JsonSchema(_) => "response_format",
        }
    }

    fn of(fields: &Fields<'_, '_>) -> Result<Option<Self>, BadRequest> {
        let grammar = fields.get("grammar").filter(|field| !field.is_empty());
        let format = fields.get("response_format");
        let format = format.map(|format| Self::of_format(&format)).transpose()?;
        match (grammar, format.flatten()) {
            (None, format) => Ok(format),
            (Some(grammar), None) => {
                let text = grammar.string("use a grammar in llama.cpp's notation, as a string")?;
                Ok(Some(Self::Grammar(text)))
            }
            (Some(grammar), Some(_)) => {
                Err(grammar.wrong_value("leave out either it or response_format"))
            }
        }
    }

    fn of_format(field: &Field<'_, '_>) -> Result<Option<Self>, BadRequest> {
        let rule = "use an object whose type is text, json_object or json_schema";
        let format = field.object(rule)?;
        let kind = format.require("type", rule)?;
        match kind.string(rule)?.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(Self::JsonObject)),
            "json_schema" => {
                let rule = "use an object with a schema";
                let inner = format.require("json_schema", rule)?;
                let inner = inner.object(rule)?;
                let schema = inner.require("schema", rule)?;
                match schema.kind() {
                    Kind::Object => Ok(Some(Self::JsonSchema(schema.json().to_owned()))),
                    Kind::Null | Kind::Boolean | Kind::Number | Kind::String | Kind::Array => {
                        Err(schema.wrong_type("use a JSON schema"))
                    }
                }
            }
            _ => Err(kind.wrong_value(rule)),
        }
    }
}

impl Extras {
    /// Tokens that one request may bias.
    pub const MAX_BIASES: usize = 1024;
    /// Tokens that may end a text.
    pub const MAX_STOP_TOKENS: usize = 128;

    pub(crate) fn of(fields: &Fields<'_, '_>) -> Result<Self, BadRequest> {
        let typical = fields.get("typical_p");
        Ok(Self {
            choices: choices(fields)?,
            logprobs: logprobs(fields)?,
            logit_bias: logit_bias(fields)?,
            stop_tokens: stop_tokens(fields)?,
            typical_p: typical
                .map(|value| value.float(0.0..=1.0, "use a number from 0 to 1"))
                .transpose()?,
            constraint: Constraint::of(fields)?,
            echo: fields
                .get("echo")
                .map_or(Ok(false), |value| value.boolean())?,
        })
    }
}

impl Default for Extras {
    fn default() -> Self {
        Self {
            choices: NonZeroU32::MIN,
            logprobs: None,
            logit_bias: Vec::new(),
            stop_tokens: Vec::new(),
            typical_p: None,
            constraint: None,
            echo: false,
        }
    }
}

fn choices(fields: &Fields<'_, '_>) -> Result<NonZeroU32, BadRequest> {
    let rule = "use a whole number from 1 to 128";
    let count = fields.get("n").map(|field| field.integer(1..=128, rule));
    let count = count
        .transpose()?
        .and_then(|count| u32::try_from(count).ok());
    Ok(count.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN))
}

/// Chats say whether and, apart from that, how many; texts say how many.
fn logprobs(fields: &Fields<'_, '_>) -> Result<Option<u32>, BadRequest> {
    let Some(field) = fields.get("logprobs") else {
        return Ok(None);
    };
    let count = |field: Field<'_, '_>| {
        let count = field.integer(0..=20, "use a whole number from 0 to 20")?;
        Ok(u32::try_from(count).unwrap_or(0))
    };
    match field.json() {
        "false" => Ok(None),
        "true" => fields.get("top_logprobs").map_or(Ok(0), count).map(Some),
        _ => count(field).map(Some),
    }
}

fn logit_bias(fields: &Fields<'_, '_>) -> Result<Vec<(u32, f32)>, BadRequest> {
    let Some(field) = fields.get("logit_bias").filter(|field| !field.is_empty()) else {
        return Ok(Vec::new());
    };
    let rule = "use an object of up to 1024 token ids, each with a number from -100 to 100";
    let biases = field.object(rule)?;
    let biases = biases.each().map(|(key, bias)| {
        let token = key.parse().map_err(|_| field.wrong_value(rule))?;
        Ok((token, bias.float(-100.0..=100.0, rule)?))
    });
    let biases: Vec<_> = biases.collect::<Result<_, BadRequest>>()?;
    if biases.len() > Extras::MAX_BIASES {
        return Err(field.wrong_value(rule));
    }
    Ok(biases)
}

fn stop_tokens(fields: &Fields<'_, '_>) -> Result<Vec<u32>, BadRequest> {
    let Some(field) = fields
        .get("stop_token_ids")
        .filter(|field| !field.is_empty())
    else {
        return Ok(Vec::new());
    };
    let rule = "use an array of up to 128 token ids";
    let tokens = field.token_ids(rule)?;
    if tokens.len() > Extras::MAX_STOP_TOKENS {
        return Err(field.wrong_value(rule));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extras(rest: &str) -> Result<Extras, BadRequest> {
        let body = format!("{{{rest}}}");
        Extras::of(&Fields::of_body(body.as_bytes()).unwrap())
    }

    #[test]
    fn nothing_asked_for_is_the_default() {
        let rest = r#""n":null,"logit_bias":{},"stop_token_ids":[],"grammar":"",
            "response_format":{"type":"text"},"logprobs":false"#;
        assert_eq!(extras(rest), Ok(Extras::default()));
    }

    #[test]
    fn everything_asked_for_is_read() {
        let rest = r#""n":3,"logprobs":true,"top_logprobs":5,"logit_bias":{"7":-100,"8":1.5},
            "stop_token_ids":[1,2],"typical_p":0.5,"echo":true,"grammar":"root ::= \"a\"""#;
        let expected = Extras {
            choices: NonZeroU32::new(3).unwrap(),
            logprobs: Some(5),
            logit_bias: vec![(7, -100.0), (8, 1.5)],
            stop_tokens: vec![1, 2],
            typical_p: Some(0.5),
            constraint: Some(Constraint::Grammar("root ::= \"a\"".into())),
            echo: true,
        };
        assert_eq!(extras(rest), Ok(expected));
    }

    #[test]
    fn a_format_names_an_object_or_a_schema() {
        let format = |json: &str| {
            let read = extras(&format!(r#""response_format":{json}"#));
            read.map(|extras| extras.constraint)
        };
        assert_eq!(
            format(r#"{"type":"json_object"}"#),
            Ok(Some(Constraint::JsonObject))
        );
        assert_eq!(
            format(r#"{"type":"json_schema","json_schema":{"name":"n","schema":{"a": 1}}}"#),
            Ok(Some(Constraint::JsonSchema(r#"{"a": 1}"#.into())))
        );
        for (bad, param) in [
            (r#""json""#, "response_format"),
            (r#"{"type":"xml"}"#, "response_format.type"),
            (r#"{"type":"json_schema"}"#, "response_format.json_schema"),
            (
                r#"{"type":"json_schema","json_schema":{"schema":"x"}}"#,
                "response_format.json_schema.schema",
            ),
        ] {
            assert_eq!(format(bad).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let ids: Vec<_> = (0..129).collect();
        let ids = format!(r#""stop_token_ids":{ids:?}"#);
        for (rest, param) in [
            (r#""n":0"#, "n"),
            (r#""logit_bias":{"a":1}"#, "logit_bias"),
            (r#""logit_bias":{"1":101}"#, "logit_bias.1"),
            (r#""typical_p":2"#, "typical_p"),
            (ids.as_str(), "stop_token_ids"),
            (
                r#""grammar":"g","response_format":{"type":"json_object"}"#,
                "grammar",
            ),
        ] {
            assert_eq!(
                extras(rest).unwrap_err().param.as_deref(),
                Some(param),
                "{rest}"
            );
        }
    }
}
