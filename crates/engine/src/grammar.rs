//! The size of grammars and schemas, checked before llama.cpp reads them: it follows them by
//! recursion, and memory grows with what they repeat.

use crate::model::GrammarError;

/// Bytes of a grammar or a schema; those in use have a few thousand.
const BYTES_MAX: usize = 64 * 1024;

/// Levels of nesting.
const DEPTH_MAX: usize = 64;

/// Whether llama.cpp may read this grammar.
pub(crate) fn check_size(grammar: &str) -> Result<(), GrammarError> {
    if grammar.len() > BYTES_MAX {
        return Err(GrammarError::TooLong(grammar.len()));
    }
    if grammar.contains('\0') {
        return Err(GrammarError::NotAGrammar);
    }
    // Brackets in literals count too: closing ones there can only make this miss some depth of a
    // grammar that is no longer than allowed.
    let mut depth = 0_usize;
    for byte in grammar.bytes() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(GrammarError::TooDeep);
        }
    }
    Ok(())
}

/// Whether llama.cpp may read this schema.
pub(crate) fn check_schema(schema: &str) -> Result<(), GrammarError> {
    if schema.len() > BYTES_MAX {
        return Err(GrammarError::TooLong(schema.len()));
    }
    let value: serde_json::Value =
        serde_json::from_str(schema).map_err(|error| GrammarError::NotJson(error.to_string()))?;
    if depth(&value) > DEPTH_MAX {
        return Err(GrammarError::TooDeep);
    }
    if !patterns_are_followed(&value) {
        return Err(GrammarError::Pattern);
    }
    match value {
        serde_json::Value::Object(_) => Ok(()),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_)
        | serde_json::Value::Array(_) => Err(GrammarError::NotASchema),
    }
}

/// Whether each string under a key `pattern` is one that llama.cpp follows: of others it says in
/// its log that any string will do.
fn patterns_are_followed(value: &serde_json::Value) -> bool {
    let is_followed = |pattern: &str| {
        let groups = pattern.matches("(?").count();
        let plain = pattern.matches("(?:").count();
        pattern.starts_with('^') && pattern.ends_with('$') && groups == plain
    };
    match value {
        serde_json::Value::Array(items) => items.iter().all(patterns_are_followed),
        serde_json::Value::Object(items) => items.iter().all(|(key, value)| match value.as_str() {
            Some(pattern) if key == "pattern" => is_followed(pattern),
            Some(_) | None => patterns_are_followed(value),
        }),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => true,
    }
}

/// Levels of arrays and objects. The parser has bounded them already, so recursion is safe.
fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(items) => 1 + items.values().map(depth).max().unwrap_or(0),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_too_deep_is_not_read_at_all() {
        let long = "x".repeat(BYTES_MAX + 1);
        assert_eq!(check_size(&long), Err(GrammarError::TooLong(long.len())));
        assert_eq!(check_schema(&long), Err(GrammarError::TooLong(long.len())));
        assert_eq!(check_size(&"(".repeat(65)), Err(GrammarError::TooDeep));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(70), "]".repeat(70));
        assert_eq!(check_schema(&deep), Err(GrammarError::TooDeep));
        let deeper = "[".repeat(10_000);
        assert!(matches!(
            check_schema(&deeper),
            Err(GrammarError::NotJson(_))
        ));
    }

    #[test]
    fn a_pattern_that_would_not_be_followed_is_refused() {
        let schema = |pattern| {
            let schema = format!(r#"{{"items":[{{"pattern":"{pattern}"}}]}}"#);
            check_schema(&schema)
        };
        assert_eq!(schema("^a(?:b|c)+$"), Ok(()));
        for pattern in ["a", "^(?=a)b$", "^a(?!b)$"] {
            assert_eq!(schema(pattern), Err(GrammarError::Pattern), "{pattern}");
        }
    }

    #[test]
    fn a_schema_is_an_object() {
        assert_eq!(check_schema("{}"), Ok(()));
        assert_eq!(check_schema("[1]"), Err(GrammarError::NotASchema));
        assert!(matches!(check_schema("{"), Err(GrammarError::NotJson(_))));
    }
}
