//! The body of `POST /v1/completions`.
//!
//! Token ids are only checked to be numbers; which of them the model has is for the engine to say.

use crate::bad_request::BadRequest;
use crate::demand;
use crate::demand::Demand;
use crate::fields::{Field, Fields, Kind};
use crate::params::Params;

/// A request to continue a text.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// Everything else.
    pub params: Params,
}

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The first mistake found, naming its parameter.
    pub fn parse(body: &[u8]) -> Result<Self, BadRequest> {
        let fields = Fields::of_body(body)?;
        let mut demands = demand::of_completion(&fields)?;
        let prompt = Prompt::of(&fields, "prompt")?;
        match prompt {
            Prompt::One(_) => {}
            Prompt::Many(_) => demands.push(Demand { param: "prompt" }),
        }
        let params = Params::of(&fields, ["max_tokens", "max_completion_tokens"], demands)?;
        Ok(Self { prompt, params })
    }
}

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// One prompt, sent bare or as a list of one.
    One(PromptText),
    /// Two to [`Prompt::MAX_PROMPTS`] prompts, in order; also among the demands as `prompt`.
    Many(Vec<PromptText>),
}

/// One prompt; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// Text, to be cut into tokens by the model.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

const RULE: &str =
    "use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty";

impl Prompt {
    /// Prompts that one request may have, as at OpenAI.
    pub const MAX_PROMPTS: usize = 2048;

    /// Reads the parameter of this name.
    pub(crate) fn of(fields: &Fields<'_, '_>, name: &'static str) -> Result<Self, BadRequest> {
        let field = fields.require(name, RULE)?;
        if field.kind() == Kind::Array && !is_token_list(&field) {
            let mut prompts = field
                .items(Self::MAX_PROMPTS, RULE)?
                .iter()
                .map(|prompt| PromptText::of(&prompt))
                .collect::<Result<Vec<_>, _>>()?;
            if prompts.len() > 1 {
                return Ok(Self::Many(prompts));
            }
            return prompts
                .pop()
                .map(Self::One)
                .ok_or_else(|| field.wrong_value(RULE));
        }
        PromptText::of(&field).map(Self::One)
    }
}

impl From<Prompt> for Vec<PromptText> {
    fn from(prompt: Prompt) -> Self {
        match prompt {
            Prompt::One(prompt) => vec![prompt],
            Prompt::Many(prompts) => prompts,
        }
    }
}

impl PromptText {
    fn of(field: &Field<'_, '_>) -> Result<Self, BadRequest> {
        let (prompt, is_empty) = match field.kind() {
            Kind::String => {
                let text = field.string(RULE)?;
                let is_empty = text.is_empty();
                (Self::Text(text), is_empty)
            }
            Kind::Array => {
                let tokens = field.token_ids(RULE)?;
                let is_empty = tokens.is_empty();
                (Self::Tokens(tokens), is_empty)
            }
            Kind::Null | Kind::Boolean | Kind::Number | Kind::Object => {
                return Err(field.wrong_type(RULE));
            }
        };
        if is_empty {
            Err(field.wrong_value(RULE))
        } else {
            Ok(prompt)
        }
    }
}

/// Whether an array's first element is a number: then the array is one prompt, not a list of them.
fn is_token_list(field: &Field<'_, '_>) -> bool {
    let inner = field
        .json()
        .strip_prefix('[')
        .unwrap_or_default()
        .trim_ascii_start();
    inner.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

#[cfg(test)]
mod tests;
