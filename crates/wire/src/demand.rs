//! What a body asks for beyond the ordinary: features that change the answer and that an engine may
//! not have.
//!
//! It only finds them. Whether to serve, forward or refuse is the server's decision. Parameters
//! that leave the answer as it is (`store`, `metadata`, `service_tier`, `parallel_tool_calls`, and
//! any name not listed here) are no demands.

use std::borrow::Cow;

use serde::Deserialize;

use crate::bad_request::BadRequest;
use crate::fields::{Field, Fields};

/// A feature that the body asks for and that an engine may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The parameter that asks for it.
    pub param: &'static str,
}

impl Demand {
    /// The refusal for a model that can't do this.
    pub fn refusal(self) -> BadRequest {
        BadRequest::unsupported(
            self.param,
            "asks for what this model can't do",
            "leave it out",
        )
    }
}

/// The most choices that OpenAI makes of one prompt.
const MAX_CHOICES: i64 = 128;

/// Whether a value, which is not `null`, asks for something.
type Asks = fn(&Field<'_, '_>) -> bool;

/// What either kind of request may ask for.
const SHARED: &[(&str, Asks)] = &[
    ("bad_words", something),
    ("ebnf", something),
    ("grammar", something),
    ("guided_choice", something),
    ("guided_grammar", something),
    ("guided_json", something),
    ("guided_regex", something),
    ("json_schema", something),
    ("logit_bias", something),
    ("min_tokens", above_zero),
    ("regex", something),
    ("response_format", not_plain_text),
    ("stop_token_ids", something),
    ("structured_outputs", something),
    ("typical_p", below_one),
    ("use_beam_search", something),
];

const CHAT: &[(&str, Asks)] = &[
    ("audio", something),
    ("chat_template", something),
    ("chat_template_kwargs", something),
    ("function_call", a_call),
    ("functions", something),
    ("modalities", more_than_text),
    ("tool_choice", a_call),
    ("tools", something),
    ("web_search_options", something_even_empty),
];

const COMPLETION: &[(&str, Asks)] = &[
    ("best_of", above_one),
    ("echo", something),
    ("suffix", something),
];

/// What the body of a chat completion demands.
pub(crate) fn of_chat(fields: &Fields<'_, '_>) -> Result<Vec<Demand>, BadRequest> {
    let mut demands = asked(fields, CHAT);
    choices(fields, &mut demands)?;
    let logprobs = fields
        .get("logprobs")
        .map_or(Ok(false), |value| value.boolean())?;
    demands.extend(logprobs.then_some(Demand { param: "logprobs" }));
    if let Some(field) = fields.get("top_logprobs") {
        let top = field.integer(0..=20, "use a whole number from 0 to 20")?;
        if !logprobs {
            return Err(field.wrong_value("set logprobs to true, or leave it out"));
        }
        demands.extend((top > 0).then_some(Demand {
            param: "top_logprobs",
        }));
    }
    Ok(demands)
}

/// What the body of a text completion demands, its prompts aside.
pub(crate) fn of_completion(fields: &Fields<'_, '_>) -> Result<Vec<Demand>, BadRequest> {
    let mut demands = asked(fields, COMPLETION);
    choices(fields, &mut demands)?;
    if let Some(field) = fields.get("logprobs") {
        field.integer(0..=5, "use a whole number from 0 to 5")?;
        demands.push(Demand { param: "logprobs" });
    }
    Ok(demands)
}

fn asked(fields: &Fields<'_, '_>, own: &'static [(&'static str, Asks)]) -> Vec<Demand> {
    let asks = |(param, asks): &(&'static str, Asks)| {
        fields
            .get(param)
            .is_some_and(|value| asks(&value))
            .then_some(Demand { param })
    };
    own.iter().chain(SHARED).filter_map(asks).collect()
}

fn choices(fields: &Fields<'_, '_>, demands: &mut Vec<Demand>) -> Result<(), BadRequest> {
    if let Some(field) = fields.get("n") {
        let count = field.integer(1..=MAX_CHOICES, "use a whole number from 1 to 128")?;
        demands.extend((count > 1).then_some(Demand { param: "n" }));
    }
    Ok(())
}

/// Everything but `false` and empty strings, arrays and objects.
fn something(field: &Field<'_, '_>) -> bool {
    field.json() != "false" && !field.is_empty()
}

/// An object here asks by being there: its keys only tune what it asks for.
fn something_even_empty(_: &Field<'_, '_>) -> bool {
    true
}

fn above_zero(field: &Field<'_, '_>) -> bool {
    above(field, 0.0)
}

fn above_one(field: &Field<'_, '_>) -> bool {
    above(field, 1.0)
}

fn below_one(field: &Field<'_, '_>) -> bool {
    field
        .json()
        .parse()
        .map_or(true, |number: f64| number < 1.0)
}

/// What is no number is left for the one who serves it to refuse, and so counts as asked for.
fn above(field: &Field<'_, '_>, bound: f64) -> bool {
    field
        .json()
        .parse()
        .map_or(true, |number: f64| number > bound)
}

/// A choice of tools that makes the model call one. `auto` without tools leaves nothing to choose
/// from.
fn a_call(field: &Field<'_, '_>) -> bool {
    !matches!(field.json(), "\"none\"" | "\"auto\"")
}

fn not_plain_text(field: &Field<'_, '_>) -> bool {
    #[derive(Deserialize)]
    struct Format<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    serde_json::from_str(field.json()).map_or(true, |format: Format<'_>| format.kind != "text")
}

fn more_than_text(field: &Field<'_, '_>) -> bool {
    serde_json::from_str(field.json()).map_or(true, |kinds: Vec<String>| kinds != ["text"])
}

#[cfg(test)]
mod tests;
