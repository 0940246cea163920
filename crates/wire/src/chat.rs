//! The body of `POST /v1/chat/completions`.
//!
//! It checks each message alone. Whether the conversation as a whole suits the model (turns that
//! alternate, a system message where the template has none) is for the model's template to say.

use std::borrow::Cow;

use crate::bad_request::BadRequest;
use crate::demand;
use crate::fields::{Field, Fields, Kind};
use crate::params::Params;
use crate::tools::Tools;

/// A request for the next message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The conversation, oldest first; at least one message.
    pub messages: Vec<Message>,
    /// What the model may call.
    pub tools: Option<Tools>,
    /// Everything else.
    pub params: Params,
}

impl ChatRequest {
    /// Messages that one request may have: far past what fits into a context, and a bound on what
    /// they cost to hold.
    pub const MAX_MESSAGES: usize = 16_384;

    /// Reads a body.
    ///
    /// # Errors
    /// The first mistake found, naming its parameter.
    pub fn parse(body: &[u8]) -> Result<Self, BadRequest> {
        let fields = Fields::of_body(body)?;
        let demands = demand::of_chat(&fields)?;
        let params = Params::of(&fields, ["max_completion_tokens", "max_tokens"], demands)?;
        let rule = "use an array of 1 to 16384 messages";
        let messages = fields.require("messages", rule)?;
        let messages = messages.items(Self::MAX_MESSAGES, rule)?;
        let messages = messages.iter().map(|message| Message::of(&message));
        Ok(Self {
            messages: messages.collect::<Result<_, _>>()?,
            tools: Tools::of(&fields)?,
            params,
        })
    }

    /// Refuses parts that are not text, for a model that reads nothing else.
    ///
    /// # Errors
    /// Names the first such part, like `messages.0.content.1`.
    pub fn require_text(&self) -> Result<(), BadRequest> {
        for (index, message) in self.messages.iter().enumerate() {
            for (place, part) in message.parts().iter().enumerate() {
                match part {
                    Part::Text(_) => {}
                    Part::Other { kind } => {
                        let param = format!("messages.{index}.content.{place}");
                        let kind: String = kind.chars().take(MAX_SHOWN_KIND).collect();
                        let finding = format!("is of type {kind:?}");
                        let rule = "send only text to this model";
                        return Err(BadRequest::unsupported(param, &finding, rule));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Characters of an unknown part's type that a message repeats.
const MAX_SHOWN_KIND: usize = 32;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; `None` only for [`Role::Assistant`].
    pub content: Option<Content>,
    /// A name for the speaker, or of the function that [`Role::Function`] answers for.
    pub name: Option<String>,
    /// The calls that the assistant made: a JSON array, as it was sent.
    pub tool_calls: Option<String>,
    /// The call that [`Role::Tool`] answers; always there for that role.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// The message as one text; parts are joined by a newline, as vLLM and llama.cpp do, and those
    /// of other kinds left out.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.content {
            None => Cow::Borrowed(""),
            Some(Content::Text(text)) => Cow::Borrowed(text),
            Some(Content::Parts(parts)) => {
                let texts: Vec<&str> = parts.iter().filter_map(Part::text).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }

    fn parts(&self) -> &[Part] {
        match &self.content {
            None | Some(Content::Text(_)) => &[],
            Some(Content::Parts(parts)) => parts,
        }
    }

    fn of(field: &Field<'_, '_>) -> Result<Self, BadRequest> {
        let fields = field.object("use an object with a role and a content")?;
        let role = Role::of(&fields)?;
        let message = Self {
            role,
            content: Content::of(&fields, role)?,
            name: optional_string(&fields, "name")?,
            tool_calls: tool_calls(&fields)?,
            tool_call_id: optional_string(&fields, "tool_call_id")?,
        };
        let lacks = |param, rule| Err(BadRequest::missing(fields.path_to(param), rule));
        match role {
            Role::Tool if message.tool_call_id.is_none() => {
                lacks("tool_call_id", "name the call that this message answers")
            }
            Role::Function if message.name.is_none() => {
                lacks("name", "name the function that this message answers for")
            }
            Role::System
            | Role::Developer
            | Role::User
            | Role::Assistant
            | Role::Tool
            | Role::Function => Ok(message),
        }
    }
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator's instructions.
    System,
    /// The same, as newer clients call it.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
    /// The result of a function call, as older clients send it.
    Function,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 6] = [
        Self::System,
        Self::Developer,
        Self::User,
        Self::Assistant,
        Self::Tool,
        Self::Function,
    ];

    /// The role as the wire and chat templates spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Function => "function",
        }
    }

    fn of(fields: &Fields<'_, '_>) -> Result<Self, BadRequest> {
        let rule = "use system, developer, user, assistant, tool or function";
        let field = fields.require("role", rule)?;
        let name = field.string(rule)?;
        let named = Self::ALL.into_iter().find(|role| role.as_str() == name);
        named.ok_or_else(|| field.wrong_value(rule))
    }
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Plain text, maybe empty.
    Text(String),
    /// Parts in order; at least one.
    Parts(Vec<Part>),
}

impl Content {
    /// Parts that one message may have; a bound on what they cost to hold.
    pub const MAX_PARTS: usize = 16_384;

    fn of(fields: &Fields<'_, '_>, role: Role) -> Result<Option<Self>, BadRequest> {
        let rule = "use a string, or an array of one or more parts";
        let Some(field) = fields.get("content") else {
            return match role {
                Role::Assistant => Ok(None),
                Role::System | Role::Developer | Role::User | Role::Tool | Role::Function => {
                    Err(BadRequest::missing(fields.path_to("content"), rule))
                }
            };
        };
        match field.kind() {
            Kind::String => Ok(Some(Self::Text(field.string(rule)?))),
            Kind::Array => {
                let parts = field.items(Self::MAX_PARTS, rule)?;
                let parts = parts
                    .iter()
                    .map(|part| Part::of(&part))
                    .collect::<Result<_, _>>()?;
                Ok(Some(Self::Parts(parts)))
            }
            Kind::Null | Kind::Boolean | Kind::Number | Kind::Object => Err(field.wrong_type(rule)),
        }
    }
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text, a refusal's included.
    Text(String),
    /// Anything else, such as a picture: its contents are not read.
    Other {
        /// The part's `type`, as sent.
        kind: String,
    },
}

impl Part {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Other { .. } => None,
        }
    }

    fn of(field: &Field<'_, '_>) -> Result<Self, BadRequest> {
        let fields =
            field.object("use an object like {\"type\": \"text\", \"text\": \"Hello\"}")?;
        let rule = "use a string like \"text\"";
        let kind = fields.require("type", rule)?.string(rule)?;
        let text_at = |name| {
            let rule = "use a string";
            fields.require(name, rule)?.string(rule).map(Self::Text)
        };
        match kind.as_str() {
            "text" => text_at("text"),
            "refusal" => text_at("refusal"),
            _ => Ok(Self::Other { kind }),
        }
    }
}

fn optional_string(
    fields: &Fields<'_, '_>,
    name: &'static str,
) -> Result<Option<String>, BadRequest> {
    fields
        .get(name)
        .map(|value| value.string("use a string"))
        .transpose()
}

fn tool_calls(fields: &Fields<'_, '_>) -> Result<Option<String>, BadRequest> {
    let Some(field) = fields.get("tool_calls") else {
        return Ok(None);
    };
    match field.kind() {
        Kind::Array => Ok(Some(field.json().to_owned())),
        Kind::Null | Kind::Boolean | Kind::Number | Kind::String | Kind::Object => {
            Err(field.wrong_type("use an array of calls"))
        }
    }
}

#[cfg(test)]
mod tests;
