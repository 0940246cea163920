//! Why a body is refused: the caller's mistake, told so that the caller can mend it.
//!
//! Always a 400 with the type `invalid_request_error`. The message states the value, the rule and
//! the next step, and never repeats a long text of the body, so it may be logged.

use std::fmt;

/// The codes that a refused body carries.
mod code {
    pub(super) const DUPLICATE: &str = "duplicate_parameter";
    pub(super) const JSON: &str = "invalid_json";
    pub(super) const MISSING: &str = "missing_required_parameter";
    pub(super) const TYPE: &str = "invalid_type";
    pub(super) const UNSUPPORTED: &str = "unsupported_parameter";
    pub(super) const VALUE: &str = "invalid_value";
}

/// A body that is refused, with the words for its sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// The value, the rule and the next step, like `temperature is 3; use a number from 0 to 2`.
    pub message: String,
    /// The parameter at fault, like `temperature` or `messages.0.content`; `None` where it is the
    /// body as a whole.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
}

impl BadRequest {
    /// The body can't be read at all.
    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: None,
            code: Some(code::JSON),
        }
    }

    /// `param` has to be there and isn't; `rule` says what to send.
    pub(crate) fn missing(param: impl fmt::Display, rule: &str) -> Self {
        Self::about(param, "is missing", rule, code::MISSING)
    }

    /// `param` holds what it can't hold: `is` tells what is there, `rule` what to send.
    pub(crate) fn wrong_type(param: impl fmt::Display, is: &str, rule: &str) -> Self {
        Self::about(param, &format!("is {is}"), rule, code::TYPE)
    }

    /// `param` has the right type and a value that is out of bounds.
    pub(crate) fn wrong_value(param: impl fmt::Display, is: &str, rule: &str) -> Self {
        Self::about(param, &format!("is {is}"), rule, code::VALUE)
    }

    /// `param` stands twice in one object.
    pub(crate) fn duplicate(param: impl fmt::Display) -> Self {
        Self::about(param, "is there twice", "send it once", code::DUPLICATE)
    }

    /// `param` asks for something that the model can't do; `finding` tells what, `rule` the next
    /// step.
    pub(crate) fn unsupported(param: impl fmt::Display, finding: &str, rule: &str) -> Self {
        Self::about(param, finding, rule, code::UNSUPPORTED)
    }

    fn about(param: impl fmt::Display, finding: &str, rule: &str, code: &'static str) -> Self {
        let param = param.to_string();
        let message = format!("{param} {finding}; {rule}");
        Self {
            message,
            param: Some(param),
            code: Some(code),
        }
    }
}

/// The messages of some refusals, one a line, for a snapshot of them all.
#[cfg(test)]
pub(crate) fn told<const N: usize>(refusals: [BadRequest; N]) -> String {
    refusals.map(|refusal| refusal.message).join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_value_the_rule_and_the_next_step() {
        let refusal = BadRequest::wrong_value("temperature", "3", "use a number from 0 to 2");
        assert_eq!(
            refusal.to_string(),
            "temperature is 3; use a number from 0 to 2"
        );
        assert_eq!(refusal.param.as_deref(), Some("temperature"));
        assert_eq!(refusal.code, Some("invalid_value"));
    }

    #[test]
    fn a_body_that_cannot_be_read_names_no_parameter() {
        let refusal = BadRequest::unreadable("the body is empty; send a JSON object");
        assert_eq!(refusal.param, None);
        assert_eq!(refusal.code, Some("invalid_json"));
    }
}
