//! The chat template of a model file, compiled once.
//!
//! Templates are written for Python's Jinja as Hugging Face runs it: blocks trimmed,
//! `raise_exception` to refuse messages, Python's methods on strings. `strftime_now` is left
//! undefined, for which templates have a default: a prompt then depends on the messages alone. The
//! file is not trusted: rendering has a bound.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;

use crate::model::{CallStyle, ChatMessage, TemplateError, ToolOffer};
use crate::tools;

/// Instructions that one rendering may take, on top of those for each message.
const FUEL: u64 = 100_000;

/// Instructions per message: some hundred times what the templates in use take.
const FUEL_PER_MESSAGE: u64 = 10_000;

/// Tokens that templates may name.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTokens {
    pub(crate) bos: String,
    pub(crate) eos: String,
}

/// A compiled template.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    special: SpecialTokens,
    /// Whether it takes tools itself.
    knows_tools: bool,
    style: CallStyle,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

/// What a template said with `raise_exception`; carried as the source of the error it makes.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    const NAME: &str = "chat";

    /// Compiles `source`.
    pub(crate) fn compile(source: String, special: SpecialTokens) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| classify(&error))?);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<(), Error> {
            let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
            Err(error.with_source(Raised(reason)))
        });
        environment.add_filter("tojson", to_json);
        let knows_tools = names(&source, "tools");
        let style = if knows_tools {
            style_of(&source)
        } else {
            CallStyle::Tagged
        };
        environment
            .add_template_owned(Self::NAME, source)
            .map_err(|error| classify(&error))?;
        Ok(Self {
            environment,
            special,
            knows_tools,
            style,
        })
    }

    /// How the model writes calls of tools.
    pub(crate) fn style(&self) -> CallStyle {
        self.style
    }

    /// The prompt for an answer to `messages`.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        offers: &[ToolOffer],
    ) -> Result<String, TemplateError> {
        if messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        if !self.knows_tools && (!offers.is_empty() || tools::are_in(messages)) {
            return self.render_values(&tools::in_words(messages, offers), &[]);
        }
        self.render_values(messages, offers)
    }

    fn render_values(
        &self,
        messages: &[ChatMessage],
        offers: &[ToolOffer],
    ) -> Result<String, TemplateError> {
        let count = u64::try_from(messages.len() + offers.len()).unwrap_or(u64::MAX);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(
            FUEL.saturating_add(count.saturating_mul(FUEL_PER_MESSAGE)),
        ));
        let template = environment
            .get_template(Self::NAME)
            .map_err(|error| classify(&error))?;
        let said: Vec<_> = messages.iter().map(value_of).collect();
        let offered: Vec<_> = offers.iter().map(|offer| parsed(&offer.json)).collect();
        let values = context! {
            messages => said,
            // None where there are none: templates ask whether it is defined and not none.
            tools => (!offered.is_empty()).then_some(offered),
            add_generation_prompt => true,
            bos_token => self.special.bos.as_str(),
            eos_token => self.special.eos.as_str(),
        };
        template.render(values).map_err(|error| classify(&error))
    }
}

/// A message as templates read it. Arguments are objects there, and strings on the wire.
fn value_of(message: &ChatMessage) -> Value {
    let ChatMessage {
        role,
        content,
        calls,
        answers,
        name,
    } = message;
    let mut value = BTreeMap::from([
        ("role", Value::from(role.as_str())),
        ("content", Value::from(content.as_str())),
    ]);
    let call = |call: &crate::model::PastCall| {
        let arguments = parsed(&call.arguments);
        context! {
            id => call.id.as_str(),
            type => "function",
            function => context! { name => call.name.as_str(), arguments },
        }
    };
    if !calls.is_empty() {
        value.insert("tool_calls", calls.iter().map(call).collect());
    }
    value.extend(
        answers
            .as_deref()
            .map(|id| ("tool_call_id", Value::from(id))),
    );
    value.extend(name.as_deref().map(|name| ("name", Value::from(name))));
    Value::from(value)
}

/// JSON as a value with its keys in the order in which they were written, or as the text it is.
fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|_| Value::from(json))
}

/// Whether a template's source has this word by itself.
fn names(source: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(word).any(|(at, _)| {
        let before = source[..at].chars().next_back();
        let after = source[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// By the marker that a template writes before a call in an assistant's message.
fn style_of(source: &str) -> CallStyle {
    if source.contains("<tool_call>") {
        CallStyle::Tagged
    } else if source.contains("[TOOL_CALLS]") {
        CallStyle::Listed
    } else if source.contains("<|python_tag|>") || source.contains("\"parameters\": ") {
        CallStyle::Bare
    } else {
        CallStyle::Tagged
    }
}

/// As Python's `json.dumps` writes it, which models were trained on: a space after each comma and
/// colon, and nothing escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // For the form of other writers, which is the same here.
    let _: Option<Value> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let form = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, form))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut out, Spaced,
        )),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&out).into_owned(),
    ))
}

/// JSON on one line with spaces where Python has them.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn classify(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooMany;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(reason)) = cause.downcast_ref() {
            return TemplateError::Refused {
                reason: reason.clone(),
            };
        }
        source = cause.source();
    }
    TemplateError::Broken {
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage::new(role, content)
    }

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TemplateError> {
        let special = SpecialTokens {
            bos: "<s>".into(),
            eos: "</s>".into(),
        };
        ChatTemplate::compile(source.into(), special)?.render(messages, &[])
    }

    #[test]
    fn messages_the_template_refuses_are_the_callers_mistake() {
        let source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
            {{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
        let refused = render(source, &[message("user", "a"), message("user", "b")]).unwrap_err();
        assert_eq!(
            refused,
            TemplateError::Refused {
                reason: "roles must alternate".into()
            }
        );
        assert!(refused.is_callers());
        assert_eq!(render(source, &[message("user", "a")]).unwrap(), "a");
    }

    #[test]
    fn a_template_that_does_not_compile_or_run_is_not_the_callers_mistake() {
        let messages = [message("user", "a")];
        for source in ["{% for %}", "{{ messages | no_such_filter }}"] {
            assert!(
                !render(source, &messages).unwrap_err().is_callers(),
                "{source}"
            );
        }
    }

    #[test]
    fn no_messages_are_refused_before_the_template_sees_them() {
        assert_eq!(
            render("{{ messages[0].content }}", &[]),
            Err(TemplateError::NoMessages)
        );
    }

    #[test]
    fn a_template_that_never_ends_runs_out_of_fuel() {
        let source =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert_eq!(
            render(source, &[message("user", "a")]),
            Err(TemplateError::TooMany)
        );
    }

    #[test]
    fn ten_thousand_messages_are_within_the_bound() {
        let messages = vec![message("user", "a"); 10_000];
        let rendered = render(
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            &messages,
        );
        assert_eq!(rendered.unwrap().len(), 10_000);
    }

    #[test]
    fn blocks_are_trimmed_and_pythons_methods_are_known() {
        let source =
            "  {% if true %}\n{{ bos_token }}{{ messages[0]['content'].strip() }}{% endif %}";
        assert_eq!(render(source, &[message("user", " hi ")]).unwrap(), "<s>hi");
    }

    #[test]
    fn text_is_not_escaped() {
        let rendered = render(
            "{{ messages[0].content }}",
            &[message("user", "<b>&'\"{{ x }}")],
        );
        assert_eq!(rendered.unwrap(), "<b>&'\"{{ x }}");
    }

    fn offer() -> ToolOffer {
        ToolOffer {
            name: "time".into(),
            parameters: None,
            json: r#"{"type":"function","function":{"name":"time","description":"<now>"}}"#.into(),
        }
    }

    fn called() -> ChatMessage {
        ChatMessage {
            calls: vec![crate::model::PastCall {
                id: "c1".into(),
                name: "time".into(),
                arguments: r#"{"zone":"UTC"}"#.into(),
            }],
            ..message("assistant", "")
        }
    }

    fn answered() -> ChatMessage {
        ChatMessage {
            answers: Some("c1".into()),
            ..message("tool", "12:00")
        }
    }

    #[test]
    fn a_template_that_knows_tools_gets_them_as_python_would_write_them() {
        let source = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}\
            {% for m in messages %}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }} \
            {{ c.function.arguments | tojson }}{% endfor %}{% if m.role == 'tool' %}\
            [{{ m.tool_call_id }}: {{ m.content }}]{% endif %}{% endfor %}";
        let template = ChatTemplate::compile(source.into(), SpecialTokens::default()).unwrap();
        let messages = [message("user", "a"), called(), answered()];
        let rendered = template.render(&messages, &[offer()]).unwrap();
        assert_eq!(
            rendered,
            "{\"type\": \"function\", \"function\": {\"name\": \"time\", \
             \"description\": \"<now>\"}}<tool_call>time {\"zone\": \"UTC\"}[c1: 12:00]"
        );
        assert_eq!(template.style(), CallStyle::Tagged);
        assert_eq!(template.render(&messages[..1], &[]).unwrap(), "");
    }

    #[test]
    fn a_template_without_tools_hears_of_them_in_words() {
        let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
        let template = ChatTemplate::compile(source.into(), SpecialTokens::default()).unwrap();
        let messages = [message("user", "a"), called(), answered()];
        let rendered = template.render(&messages, &[offer()]).unwrap();
        assert!(rendered.starts_with("system: "), "{rendered}");
        assert!(rendered.contains(&offer().json), "{rendered}");
        assert!(
            rendered.ends_with(
                "user: a\nassistant: <tool_call>\n{\"name\": \"time\", \"arguments\": \
             {\"zone\":\"UTC\"}}\n</tool_call>\nuser: <tool_response>\n12:00\n</tool_response>\n"
            ),
            "{rendered}"
        );
    }

    #[test]
    fn the_style_of_calls_is_what_the_template_writes() {
        for (source, style) in [
            ("{{ tools }}[TOOL_CALLS]", CallStyle::Listed),
            ("{{ tools }}<|python_tag|>", CallStyle::Bare),
            ("{{ tools }}<tool_call>", CallStyle::Tagged),
            ("{{ my_tools }}[TOOL_CALLS]", CallStyle::Tagged),
        ] {
            let template = ChatTemplate::compile(source.into(), SpecialTokens::default());
            assert_eq!(template.unwrap().style(), style, "{source}");
        }
    }
}
