//! Environment variables in values: `${NAME}`, and `$$` for a dollar sign.
//!
//! Values only, never keys, and before anything is decoded, so that each key may come from outside.
//! A replaced value keeps what the file said: messages show that, since the value may be a secret.

use super::problem::Problems;
use super::tree::{Node, Value};

/// Looks a variable up by name.
pub(super) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Replaces the variables in all values at and under `node`, whose path is `path`.
pub(super) fn expand(node: &mut Node, path: &str, env: Env<'_>, problems: &Problems) {
    let at = node.at;
    match &mut node.value {
        Value::Null | Value::Broken => {}
        Value::Scalar(scalar) if !scalar.text.contains('$') => {}
        Value::Scalar(scalar) => match replaced(&scalar.text, env) {
            Ok(text) => scalar.written = Some(std::mem::replace(&mut scalar.text, text)),
            Err(message) => {
                problems.add(at.problem(path, message));
                node.value = Value::Broken;
            }
        },
        Value::List(list) => {
            for (index, item) in list.iter_mut().enumerate() {
                expand(item, &format!("{path}[{index}]"), env, problems);
            }
        }
        Value::Mapping(entries) => {
            for (key, value) in entries {
                expand(value, &joined(path, key), env, problems);
            }
        }
    }
}

/// The path of the value under `key`.
fn joined(path: &str, key: &Node) -> String {
    match &key.value {
        Value::Scalar(name) if path.is_empty() => super::problem::shown(&name.text),
        Value::Scalar(name) => format!("{path}.{}", super::problem::shown(&name.text)),
        Value::Null | Value::Broken | Value::List(_) | Value::Mapping(_) => path.to_owned(),
    }
}

/// `text` with its variables replaced.
fn replaced(text: &str, env: Env<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let Some((name, after)) = after
            .strip_prefix('{')
            .and_then(|open| open.split_once('}'))
        else {
            return Err(
                "has a lone `$`; use ${NAME} for a variable and $$ for the sign".to_owned(),
            );
        };
        if !is_variable(name) {
            return Err("has `${…}` without a variable's name in it; use ${NAME}".to_owned());
        }
        match env(name) {
            Some(value) => out.push_str(&value),
            None => {
                return Err(format!(
                    "needs the environment variable {name}, which is not set"
                ));
            }
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether `name` can be the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && chars.all(|c| c == '_' || c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_x(text: &str) -> Result<String, String> {
        replaced(text, &|name| (name == "X").then(|| "$value".to_owned()))
    }

    #[test]
    fn a_variable_is_replaced_once_and_its_value_is_not_read_again() {
        assert_eq!(with_x("a${X}b${X}").as_deref(), Ok("a$valueb$value"));
    }

    #[test]
    fn two_dollar_signs_are_one() {
        assert_eq!(with_x("$${X}$$").as_deref(), Ok("${X}$"));
    }

    #[test]
    fn what_only_looks_like_a_variable_is_refused() {
        for text in ["$X", "$", "${X", "${}", "${1X}", "${a-b}", "${MISSING}"] {
            assert!(with_x(text).is_err(), "{text}");
        }
    }
}
