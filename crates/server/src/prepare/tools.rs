//! Tools of a chat: what the model is told of them, what its answer is held to, and how calls are
//! read out of it.

use tollgate_engine::{CallCount, CallStyle, ChatMessage, PastCall, Token, ToolOffer};
use tollgate_wire::{
    BadRequest, CallReader, CallSyntax, ChatRequest, Message, Role, Said, Tool, ToolCall,
    ToolChoice, Tools,
};

use super::here::bad;
use crate::app::EngineModel;

/// How calls are read out of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    syntax: CallSyntax,
    names: Vec<String>,
    most: usize,
}

impl Reading {
    /// Calls in one answer, where the caller does not bound them: far more than any has.
    const MOST: usize = 128;

    /// `None` where there is nothing to call.
    pub(super) fn of(served: &EngineModel, tools: Option<&Tools>) -> Option<Self> {
        let tools = tools.filter(|tools| tools.choice != ToolChoice::None)?;
        let syntax = match served.model.call_style() {
            CallStyle::Tagged => CallSyntax::Tagged,
            CallStyle::Listed => CallSyntax::Listed,
            CallStyle::Bare => CallSyntax::Bare,
        };
        Some(Self {
            syntax,
            names: tools.list.iter().map(|tool| tool.name.clone()).collect(),
            most: if tools.parallel { Self::MOST } else { 1 },
        })
    }

    pub(crate) fn reader(&self) -> CallReader {
        CallReader::new(self.syntax, self.names.clone(), self.most)
    }

    /// The name of a call of an answer. Models that write calls as a list know short ones only.
    pub(crate) fn call_id(&self, answer: &str, choice: u32, index: usize) -> String {
        let long = format!("call_{answer}_{choice}_{index}");
        match self.syntax {
            CallSyntax::Tagged | CallSyntax::Bare => long,
            CallSyntax::Listed => short(&long),
        }
    }

    /// A whole text, without its calls, and those.
    pub(crate) fn split(
        &self,
        text: &str,
        id: impl Fn(usize) -> String,
    ) -> (String, Vec<ToolCall>) {
        let (mut said, mut reader) = (Vec::new(), self.reader());
        reader.push(text, &mut said);
        reader.finish(&mut said);
        let (mut talk, mut calls) = (String::new(), Vec::<ToolCall>::new());
        for one in said {
            match one {
                Said::Text(text) => talk.push_str(&text),
                Said::Call { index, name } => calls.push(ToolCall {
                    id: id(index),
                    name,
                    arguments: String::new(),
                }),
                Said::Arguments { json, .. } => {
                    if let Some(call) = calls.last_mut() {
                        call.arguments.push_str(&json);
                    }
                }
            }
        }
        (talk, calls)
    }
}

/// Nine letters and digits that are as good as different for different texts (FNV-1a).
fn short(long: &str) -> String {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = long.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mut digit = || {
        let digit = u32::try_from(hash % 36).unwrap_or(0);
        hash /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    (0..9).map(|_| digit()).collect()
}

/// What the model is offered; nothing where it must not call.
pub(super) fn offers(chat: &ChatRequest) -> Vec<ToolOffer> {
    let tools = chat.tools.as_ref();
    let tools = tools.filter(|tools| tools.choice != ToolChoice::None);
    let offer = |tool: &Tool| ToolOffer {
        name: tool.name.clone(),
        parameters: tool.parameters.clone(),
        json: tool.json.clone(),
    };
    tools.map_or_else(Vec::new, |tools| tools.list.iter().map(offer).collect())
}

/// The grammar of an answer that must be a call.
pub(super) fn demanded(
    served: &EngineModel,
    chat: &ChatRequest,
) -> Result<Option<String>, BadRequest> {
    let Some(tools) = &chat.tools else {
        return Ok(None);
    };
    let mut offers = offers(chat);
    let count = match &tools.choice {
        ToolChoice::Auto | ToolChoice::None => return Ok(None),
        ToolChoice::Required if tools.parallel => CallCount::Some,
        ToolChoice::Required => CallCount::One,
        ToolChoice::Named(name) => {
            offers.retain(|offer| offer.name == *name);
            CallCount::One
        }
    };
    let grammar = served.model.call_grammar(&offers, count);
    grammar
        .map(Some)
        .map_err(|error| bad("tool_choice", &format!("tools: {error}")))
}

/// Markers of calls that the model writes as control tokens: else they would not be shown.
pub(super) fn spelled(served: &EngineModel, reading: &Reading) -> Vec<(Token, String)> {
    let markers: &[&str] = match reading.syntax {
        CallSyntax::Tagged => &["<tool_call>", "</tool_call>"],
        CallSyntax::Listed => &["[TOOL_CALLS]"],
        CallSyntax::Bare => &["<|python_tag|>"],
    };
    let before = served.model.tokenize("").map_or(0, |tokens| tokens.len());
    let one = |marker: &&str| {
        let tokens = served.model.tokenize(marker).ok()?;
        let own = tokens.get(before..)?;
        let [token] = own else { return None };
        Some((*token, (*marker).to_owned()))
    };
    markers.iter().filter_map(one).collect()
}

/// A message as templates read it: a role and one text, and its part in the calling of tools.
pub(super) fn message(n: usize, message: &Message) -> Result<ChatMessage, BadRequest> {
    let role = match message.role {
        // Newer clients' word for the same thing; templates know only the older one.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool | Role::Function => "tool",
    };
    let calls = match (&message.tool_calls, message.role) {
        (Some(json), Role::Assistant) => {
            let param = format!("messages.{n}.tool_calls");
            ToolCall::list(json, &param)?
        }
        (Some(_) | None, _) => Vec::new(),
    };
    let past = |call: ToolCall| PastCall {
        id: call.id,
        name: call.name,
        arguments: call.arguments,
    };
    Ok(ChatMessage {
        calls: calls.into_iter().map(past).collect(),
        answers: message.tool_call_id.clone(),
        name: message.name.clone(),
        ..ChatMessage::new(role, message.text())
    })
}
