//! Tools that a chat offers to the model, and the calls of them in a conversation.
//!
//! Schemas stay the sender's bytes: what a model makes of them is for the engine to say.

mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::bad_request::BadRequest;
use crate::fields::{Field, Fields, Kind};

pub use reader::{CallReader, CallSyntax, Said};

/// What a chat offers to the model besides talking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// At least one, each of another name.
    pub list: Vec<Tool>,
    /// Whether the model may, must or must not call.
    pub choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub parallel: bool,
}

/// One tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// 1 to 64 of `A-Za-z0-9_-`.
    pub name: String,
    /// The JSON schema of its arguments, an object as it was sent; `None` takes none.
    pub parameters: Option<String>,
    /// All of it, as it was sent.
    pub json: String,
}

/// Whether the model calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it sees fit.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least once.
    Required,
    /// This tool, once.
    Named(String),
}

impl Tools {
    /// Tools that one request may offer, as at OpenAI.
    pub const MAX_TOOLS: usize = 128;

    /// The tools of a chat's body; `None` where there are none to call.
    pub(crate) fn of(fields: &Fields<'_, '_>) -> Result<Option<Self>, BadRequest> {
        let offered = fields.get("tools").filter(|tools| !tools.is_empty());
        let choice = fields.get("tool_choice");
        let Some(offered) = offered else {
            return match choice {
                Some(field) if !matches!(field.json(), "\"none\"" | "\"auto\"") => {
                    Err(field.wrong_value("send tools to choose from, or leave it out"))
                }
                Some(_) | None => Ok(None),
            };
        };
        let rule = "use an array of 1 to 128 tools, each like {\"type\": \"function\", …}";
        let list = offered.items(Self::MAX_TOOLS, rule)?;
        let list = list.iter().map(|tool| Tool::of(&tool));
        let list: Vec<_> = list.collect::<Result<_, _>>()?;
        let names: BTreeSet<_> = list.iter().map(|tool| &tool.name).collect();
        if names.len() < list.len() {
            return Err(offered.wrong_value("give each tool a name of its own"));
        }
        let choice = choice.map(|field| ToolChoice::of(&field, &list));
        let parallel = fields.get("parallel_tool_calls");
        Ok(Some(Self {
            choice: choice.transpose()?.unwrap_or_default(),
            parallel: parallel.map_or(Ok(true), |field| field.boolean())?,
            list,
        }))
    }
}

impl Tool {
    const MAX_NAME: usize = 64;

    fn of(field: &Field<'_, '_>) -> Result<Self, BadRequest> {
        let rule = "use an object like {\"type\": \"function\", \"function\": {\"name\": \"f\"}}";
        let fields = field.object(rule)?;
        let kind = fields.require("type", rule)?;
        if kind.string(rule)? != "function" {
            return Err(kind.wrong_value("use function: this model calls no others"));
        }
        let function = fields.require("function", rule)?;
        let function = function.object(rule)?;
        let rule = "use 1 to 64 letters, digits, underscores and dashes";
        let name = function.require("name", rule)?;
        let text = name.string(rule)?;
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if text.is_empty() || text.len() > Self::MAX_NAME || !text.chars().all(legal) {
            return Err(name.wrong_value(rule));
        }
        let parameters = function
            .get("parameters")
            .map(|schema| match schema.kind() {
                Kind::Object => Ok(schema.json().to_owned()),
                Kind::Null | Kind::Boolean | Kind::Number | Kind::String | Kind::Array => {
                    Err(schema.wrong_type("use a JSON schema"))
                }
            });
        Ok(Self {
            name: text,
            parameters: parameters.transpose()?,
            json: field.json().to_owned(),
        })
    }
}

impl ToolChoice {
    fn of(field: &Field<'_, '_>, tools: &[Tool]) -> Result<Self, BadRequest> {
        let rule = "use none, auto, required, or {\"type\": \"function\", \"function\": \
                    {\"name\": …}} with the name of one of tools";
        match field.kind() {
            Kind::String => match field.string(rule)?.as_str() {
                "none" => Ok(Self::None),
                "auto" => Ok(Self::Auto),
                "required" => Ok(Self::Required),
                _ => Err(field.wrong_value(rule)),
            },
            Kind::Object => {
                let fields = field.object(rule)?;
                let kind = fields.require("type", rule)?;
                if kind.string(rule)? != "function" {
                    return Err(kind.wrong_value(rule));
                }
                let function = fields.require("function", rule)?;
                let function = function.object(rule)?;
                let name = function.require("name", rule)?;
                let text = name.string(rule)?;
                if tools.iter().any(|tool| tool.name == text) {
                    Ok(Self::Named(text))
                } else {
                    Err(name.wrong_value("name one of tools"))
                }
            }
            Kind::Null | Kind::Boolean | Kind::Number | Kind::Array => Err(field.wrong_type(rule)),
        }
    }
}

/// A call of a tool, made by a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the call, so that its result can.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON, as the model wrote it; no promise that it is an object, or even complete.
    pub arguments: String,
}

impl ToolCall {
    /// Calls that one message may have.
    const MAX_CALLS: usize = 1024;

    /// The calls of an assistant's message, from its `tool_calls` as it was sent.
    ///
    /// # Errors
    /// Names `param`, where they are no calls of functions.
    pub fn list(json: &str, param: &str) -> Result<Vec<Self>, BadRequest> {
        #[derive(Deserialize)]
        struct Call {
            #[serde(default)]
            id: Option<String>,
            function: Function,
        }
        #[derive(Deserialize)]
        struct Function {
            name: String,
            #[serde(default)]
            arguments: Option<serde_json::Value>,
        }
        let rule = "use calls like {\"id\": \"c\", \"type\": \"function\", \"function\": \
                    {\"name\": \"f\", \"arguments\": \"{}\"}}";
        let calls: Vec<Call> = serde_json::from_str(json)
            .map_err(|_| BadRequest::wrong_type(param, "something else than calls", rule))?;
        if calls.len() > Self::MAX_CALLS {
            let is = format!("an array of {}", calls.len());
            return Err(BadRequest::wrong_value(
                param,
                &is,
                "use at most 1024 calls",
            ));
        }
        let call = |call: Call| Self {
            id: call.id.unwrap_or_default(),
            name: call.function.name,
            arguments: match call.function.arguments {
                None => "{}".to_owned(),
                Some(serde_json::Value::String(text)) => text,
                Some(other) => other.to_string(),
            },
        };
        Ok(calls.into_iter().map(call).collect())
    }
}
