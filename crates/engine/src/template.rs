//! The chat template of a model file, compiled once.
//!
//! Templates are written for Python's Jinja as Hugging Face runs it: blocks trimmed,
//! `raise_exception` to refuse messages, Python's methods on strings. `strftime_now` is left
//! undefined, for which templates have a default: a prompt then depends on the messages alone. The
//! file is not trusted: rendering has a bound.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::model::{ChatMessage, TemplateError};

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
        environment
            .add_template_owned(Self::NAME, source)
            .map_err(|error| classify(&error))?;
        Ok(Self {
            environment,
            special,
        })
    }

    /// The prompt for an answer to `messages`.
    pub(crate) fn render(&self, messages: &[ChatMessage]) -> Result<String, TemplateError> {
        if messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        let count = u64::try_from(messages.len()).unwrap_or(u64::MAX);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(
            FUEL.saturating_add(count.saturating_mul(FUEL_PER_MESSAGE)),
        ));
        let template = environment
            .get_template(Self::NAME)
            .map_err(|error| classify(&error))?;
        let values = context! {
            messages => Serde(messages),
            add_generation_prompt => true,
            bos_token => self.special.bos.as_str(),
            eos_token => self.special.eos.as_str(),
        };
        template.render(values).map_err(|error| classify(&error))
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
        ChatMessage {
            role: role.into(),
            content: content.into(),
        }
    }

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TemplateError> {
        let special = SpecialTokens {
            bos: "<s>".into(),
            eos: "</s>".into(),
        };
        ChatTemplate::compile(source.into(), special)?.render(messages)
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
}
