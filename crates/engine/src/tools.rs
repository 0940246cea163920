//! Tools for models: in words for those whose template knows none, and as a grammar where a call is
//! demanded.
//!
//! Schemas come from callers, and llama.cpp follows a grammar by every way that it could go on. So
//! what becomes a grammar here is bounded: what would have too many ways is left open, and a call
//! is then any JSON there. No tokens here.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};

use crate::model::{CallCount, CallStyle, ChatMessage, ToolOffer};

/// Whether a conversation has calls or their results in it.
pub(crate) fn are_in(messages: &[ChatMessage]) -> bool {
    let has = |message: &ChatMessage| message.role == "tool" || !message.calls.is_empty();
    messages.iter().any(has)
}

/// The conversation with tools told in words: what may be called in the system's message, calls in
/// the assistant's text, results as what the user says, those of one turn together.
pub(crate) fn in_words(messages: &[ChatMessage], offers: &[ToolOffer]) -> Vec<ChatMessage> {
    let mut told: Vec<ChatMessage> = Vec::with_capacity(messages.len() + 1);
    let mut last_was_tool = false;
    for message in messages {
        let is_tool = message.role == "tool";
        let text = if is_tool {
            format!("<tool_response>\n{}\n</tool_response>", message.content)
        } else {
            with_calls(message)
        };
        match told.last_mut() {
            Some(last) if is_tool && last_was_tool => {
                last.content.push('\n');
                last.content.push_str(&text);
            }
            Some(_) | None => {
                let role = if is_tool {
                    "user"
                } else {
                    message.role.as_str()
                };
                told.push(ChatMessage::new(role, text));
            }
        }
        last_was_tool = is_tool;
    }
    if !offers.is_empty() {
        let offered = offered(offers);
        match told.first_mut().filter(|first| first.role == "system") {
            Some(system) => system.content = format!("{}\n\n{offered}", system.content),
            None => told.insert(0, ChatMessage::new("system", offered)),
        }
    }
    told
}

fn offered(offers: &[ToolOffer]) -> String {
    let mut text = String::from(
        "You can call the functions below. To call one, write its name and its arguments as JSON \
         between tags, like this:\n<tool_call>\n{\"name\": \"function\", \"arguments\": {\"key\": \
         \"value\"}}\n</tool_call>\n\nThe functions:\n<tools>\n",
    );
    for offer in offers {
        text.push_str(&offer.json);
        text.push('\n');
    }
    text.push_str("</tools>");
    text
}

fn with_calls(message: &ChatMessage) -> String {
    let mut text = message.content.clone();
    for call in &message.calls {
        if !text.is_empty() {
            text.push('\n');
        }
        let name = quoted(&call.name);
        let arguments = &call.arguments;
        text.push_str("<tool_call>\n{\"name\": ");
        text.push_str(&name);
        text.push_str(", \"arguments\": ");
        text.push_str(arguments);
        text.push_str("}\n</tool_call>");
    }
    text
}

/// The schema of one call, as one object with every tool's name beside its arguments.
pub(crate) fn schema(offers: &[ToolOffer], style: CallStyle) -> String {
    let key = match style {
        CallStyle::Tagged | CallStyle::Listed => "arguments",
        CallStyle::Bare => "parameters",
    };
    let mut out = String::from("{\"anyOf\":[");
    for (n, offer) in offers.iter().enumerate() {
        let name = quoted(&offer.name);
        let arguments = arguments(offer);
        let comma = if n == 0 { "" } else { "," };
        // Err: a string takes everything.
        let _ = write!(
            out,
            "{comma}{{\"type\":\"object\",\"properties\":{{\"name\":{{\"const\":{name}}},\
             \"{key}\":{arguments}}},\"required\":[\"name\",\"{key}\"],\
             \"additionalProperties\":false}}"
        );
    }
    out.push_str("]}");
    out
}

/// The grammar of whole texts, from the grammar whose `root` is one call.
pub(crate) fn grammar(one: &str, style: CallStyle, count: CallCount) -> String {
    let mut out = String::with_capacity(one.len() + 128);
    let root = match (style, count) {
        (CallStyle::Tagged, CallCount::One) => r#""<tool_call>\n" call "\n</tool_call>""#,
        (CallStyle::Tagged, CallCount::Some) => {
            r#"tagged ("\n" tagged){0,7}
tagged ::= "<tool_call>\n" call "\n</tool_call>""#
        }
        (CallStyle::Listed, CallCount::One) => r#""[TOOL_CALLS][" call "]""#,
        (CallStyle::Listed, CallCount::Some) => r#""[TOOL_CALLS][" call (", " call){0,7} "]""#,
        (CallStyle::Bare, CallCount::One | CallCount::Some) => "call",
    };
    let _ = writeln!(out, "root ::= {root}");
    for line in one.lines() {
        match line.strip_prefix("root ::=") {
            Some(rest) => {
                let _ = writeln!(out, "call ::={rest}");
            }
            None => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    out
}

/// Any JSON object.
const ANY_OBJECT: &str = "{\"type\":\"object\"}";

/// Ways in which a grammar may go on at once: each is followed for every token.
const WAYS_MAX: usize = 256;

/// Schemas within a schema that are looked at; the rest is left open.
const NODES_MAX: usize = 1_000;

/// Bytes of one tool's schema; a request has at most 128 tools.
const BYTES_MAX: usize = 16 * 1024;

/// Levels that are followed; what is deeper is left open.
const LEVELS_MAX: usize = 12;

/// The schema of a tool's arguments, as much of it as is followed.
fn arguments(offer: &ToolOffer) -> String {
    let Some(json) = offer
        .parameters
        .as_deref()
        .filter(|json| json.len() <= BYTES_MAX)
    else {
        return ANY_OBJECT.to_owned();
    };
    let Ok(root) = serde_json::from_str::<Value>(json) else {
        return ANY_OBJECT.to_owned();
    };
    let mut bounded = Bounded {
        root: &root,
        nodes: 0,
        open: Vec::new(),
    };
    let shaped = bounded.shape(&root, 0);
    match shaped {
        Some(shaped) if shaped.is_object && shaped.json.len() <= BYTES_MAX => shaped.json,
        Some(_) | None => ANY_OBJECT.to_owned(),
    }
}

/// What is followed of a schema.
struct Shaped {
    json: String,
    /// In how many ways a text of it may go on at once, at most.
    ways: usize,
    is_object: bool,
}

struct Bounded<'a> {
    root: &'a Value,
    nodes: usize,
    /// References under way: one that contains itself is left open.
    open: Vec<String>,
}

impl Bounded<'_> {
    /// `None` leaves it open: any JSON.
    fn shape(&mut self, schema: &Value, level: usize) -> Option<Shaped> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || level > LEVELS_MAX || schema.kind() != ValueKind::Map {
            return None;
        }
        if let Some(target) = field(schema, "$ref") {
            return self.referred(&target, level);
        }
        if let Some(values) = field(schema, "enum") {
            return listed(&values);
        }
        if let Some(value) = field(schema, "const") {
            return listed(&Value::from(vec![value]));
        }
        let alternatives = field(schema, "anyOf").or_else(|| field(schema, "oneOf"));
        if let Some(alternatives) = alternatives {
            return self.any_of(&alternatives, level);
        }
        let kind = field(schema, "type");
        match kind.as_ref().map(|kind| (kind.kind(), kind)) {
            Some((ValueKind::Seq, kinds)) => self.one_of_types(schema, kinds, level),
            Some((_, kind)) => self.typed(schema, kind.as_str()?, level),
            None if field(schema, "properties").is_some() => self.object(schema, level),
            None => None,
        }
    }

    fn typed(&mut self, schema: &Value, kind: &str, level: usize) -> Option<Shaped> {
        match kind {
            "object" => self.object(schema, level),
            "array" => self.array(schema, level),
            "string" | "number" | "integer" | "boolean" | "null" => Some(Shaped {
                json: format!("{{\"type\":\"{kind}\"}}"),
                ways: 4,
                is_object: false,
            }),
            _ => None,
        }
    }

    fn one_of_types(&mut self, schema: &Value, kinds: &Value, level: usize) -> Option<Shaped> {
        let mut each = Vec::new();
        for kind in kinds.try_iter().ok()? {
            each.push(self.typed(schema, kind.as_str()?, level + 1)?);
        }
        alternatives(each)
    }

    fn any_of(&mut self, schemas: &Value, level: usize) -> Option<Shaped> {
        let mut each = Vec::new();
        for schema in schemas.try_iter().ok()? {
            each.push(self.shape(&schema, level + 1)?);
        }
        alternatives(each)
    }

    /// A reference is followed where it stands, so that what it leads to is counted each time.
    fn referred(&mut self, target: &Value, level: usize) -> Option<Shaped> {
        let path = target.as_str()?.to_owned();
        if self.open.contains(&path) {
            return None;
        }
        let mut found = self.root.clone();
        for step in path.strip_prefix('#')?.split('/').skip(1) {
            found = field(&found, &step.replace("~1", "/").replace("~0", "~"))?;
        }
        self.open.push(path);
        let shaped = self.shape(&found, level + 1);
        self.open.pop();
        shaped
    }

    fn array(&mut self, schema: &Value, level: usize) -> Option<Shaped> {
        let items = field(schema, "items").and_then(|items| self.shape(&items, level + 1));
        Some(match items {
            Some(items) => Shaped {
                json: format!("{{\"type\":\"array\",\"items\":{}}}", items.json),
                ways: items.ways + 1,
                is_object: false,
            },
            None => Shaped {
                json: "{\"type\":\"array\"}".to_owned(),
                ways: 8,
                is_object: false,
            },
        })
    }

    fn object(&mut self, schema: &Value, level: usize) -> Option<Shaped> {
        let Some(properties) = field(schema, "properties") else {
            return Some(Shaped {
                json: ANY_OBJECT.to_owned(),
                ways: 8,
                is_object: true,
            });
        };
        let required = field(schema, "required");
        let required: Vec<String> = match required.as_ref().map(Value::try_iter) {
            Some(Ok(names)) => names
                .filter_map(|name| Some(name.as_str()?.to_owned()))
                .collect(),
            Some(Err(_)) | None => Vec::new(),
        };
        let (mut json, mut needed) = (String::new(), String::new());
        let (mut ways, mut optional) = (0, 1);
        for key in properties.try_iter().ok()? {
            let name = key.as_str()?;
            let value = self.shape(&field(&properties, name)?, level + 1);
            let value = value.unwrap_or_else(open);
            ways = ways.max(value.ways);
            let comma = if json.is_empty() { "" } else { "," };
            let _ = write!(json, "{comma}{}:{}", quoted(name), value.json);
            if required.iter().any(|one| one == name) {
                let comma = if needed.is_empty() { "" } else { "," };
                let _ = write!(needed, "{comma}{}", quoted(name));
            } else {
                optional += 1;
            }
        }
        let ways = ways + optional;
        (ways <= WAYS_MAX).then(|| Shaped {
            json: format!(
                "{{\"type\":\"object\",\"properties\":{{{json}}},\"required\":[{needed}],\
                 \"additionalProperties\":false}}"
            ),
            ways,
            is_object: true,
        })
    }
}

/// Any JSON.
fn open() -> Shaped {
    Shaped {
        json: "{}".to_owned(),
        ways: 8,
        is_object: false,
    }
}

/// Every alternative is a way of its own until the text has told them apart.
fn alternatives(each: Vec<Shaped>) -> Option<Shaped> {
    let ways: usize = each.iter().map(|one| one.ways).sum();
    if each.is_empty() || ways > WAYS_MAX {
        return None;
    }
    let is_object = each.iter().all(|one| one.is_object);
    let all: Vec<_> = each.into_iter().map(|one| one.json).collect();
    Some(Shaped {
        json: format!("{{\"anyOf\":[{}]}}", all.join(",")),
        ways,
        is_object,
    })
}

/// An enumeration of values that are no containers.
fn listed(values: &Value) -> Option<Shaped> {
    let mut all = Vec::new();
    for value in values.try_iter().ok()? {
        let plain = matches!(
            value.kind(),
            ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None
        );
        if !plain {
            return None;
        }
        all.push(serde_json::to_string(&value).ok()?);
    }
    if all.is_empty() || all.len() > WAYS_MAX {
        return None;
    }
    let ways = all.len();
    Some(Shaped {
        json: format!("{{\"enum\":[{}]}}", all.join(",")),
        ways,
        is_object: false,
    })
}

/// A key of a map; `None` where it has none of this name.
fn field(map: &Value, key: &str) -> Option<Value> {
    let value = map.get_item(&Value::from(key)).ok()?;
    (!value.is_undefined()).then_some(value)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(parameters: &str) -> String {
        arguments(&ToolOffer {
            name: "f".into(),
            parameters: Some(parameters.into()),
            json: String::new(),
        })
    }

    #[test]
    fn what_can_be_followed_is_kept_in_the_order_of_the_schema() {
        let schema = r##"{"type":"object","description":"x","properties":{
            "when":{"type":"string","format":"date","pattern":"^a$","maxLength":9},
            "at":{"$ref":"#/$defs/place"},"how":{"enum":["fast",2,null]},
            "tags":{"type":"array","items":{"type":["string","null"]},"maxItems":90000}},
            "required":["at","when"],
            "$defs":{"place":{"type":"object","properties":{"lat":{"type":"number"}}}}}"##;
        let expected = concat!(
            r#"{"type":"object","properties":{"when":{"type":"string"},"#,
            r#""at":{"type":"object","properties":{"lat":{"type":"number"}},"required":[],"#,
            r#""additionalProperties":false},"how":{"enum":["fast",2,null]},"#,
            r#""tags":{"type":"array","items":{"anyOf":[{"type":"string"},{"type":"null"}]}}},"#,
            r#""required":["when","at"],"additionalProperties":false}"#
        );
        assert_eq!(followed(schema), expected);
    }

    #[test]
    fn what_has_too_many_ways_is_left_open() {
        // Each level doubles the ways: two to the power of twelve.
        let mut doubled = r#"{"type":"string"}"#.to_owned();
        for _ in 0..11 {
            doubled = format!(r#"{{"anyOf":[{doubled},{doubled}]}}"#);
        }
        let schema = format!(r#"{{"type":"object","properties":{{"a":{doubled}}}}}"#);
        let a = r#""properties":{"a":{}}"#;
        assert!(schema.len() > BYTES_MAX && followed(&schema) == ANY_OBJECT);
        let referred = r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/0"}},"$defs":{
            "0":{"anyOf":[{"$ref":"#/$defs/1"},{"$ref":"#/$defs/1"}]},
            "1":{"anyOf":[{"$ref":"#/$defs/2"},{"$ref":"#/$defs/2"}]},
            "2":{"anyOf":[{"$ref":"#/$defs/3"},{"$ref":"#/$defs/3"}]},
            "3":{"anyOf":[{"$ref":"#/$defs/4"},{"$ref":"#/$defs/4"}]},
            "4":{"anyOf":[{"$ref":"#/$defs/5"},{"$ref":"#/$defs/5"}]},
            "5":{"anyOf":[{"$ref":"#/$defs/6"},{"$ref":"#/$defs/6"}]},
            "6":{"anyOf":[{"type":"string"},{"type":"number"}]}}}"##;
        assert!(followed(referred).contains(a), "{}", followed(referred));
        let endless = r##"{"type":"object","properties":{"a":{"$ref":"#"}}}"##;
        assert_eq!(
            followed(endless),
            r#"{"type":"object","properties":{"a":{"type":"object","properties":{"a":{}},"required":[],"additionalProperties":false}},"required":[],"additionalProperties":false}"#
        );
    }

    #[test]
    fn what_is_no_schema_of_an_object_is_any_object() {
        for schema in [
            "[]",
            "{\"type\":\"string\"}",
            "{\"type\":7}",
            "{",
            "{}",
            "{\"$ref\":\"x\"}",
        ] {
            assert_eq!(followed(schema), ANY_OBJECT, "{schema}");
        }
    }

    #[test]
    fn results_of_one_turn_are_one_message() {
        let tool = |text: &str| ChatMessage::new("tool", text);
        let told = in_words(&[ChatMessage::new("user", "q"), tool("1"), tool("2")], &[]);
        assert_eq!(told.len(), 2);
        assert_eq!(
            told[1].content,
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        );
    }
}
