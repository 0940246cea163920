//! What `/v1/models` and `/v1/models/{id}` answer.
//!
//! Which models a caller may see is not decided here.

use crate::json_text::push_json;

/// One model as a caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCard<'a> {
    /// The name to ask for.
    pub id: &'a str,
    /// When the model was loaded, in seconds since the Unix epoch.
    pub created: u64,
    /// Tokens that one request may use, prompt and output together; `None` while nobody knows.
    pub context_length: Option<u64>,
}

impl ModelCard<'_> {
    /// Appends the JSON of this one model.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_json(out, self.id);
        out.extend_from_slice(b",\"object\":\"model\",\"created\":");
        push_json(out, &self.created);
        out.extend_from_slice(b",\"owned_by\":\"tollgate\"");
        if let Some(tokens) = self.context_length {
            // Two names for one number: clients of OpenRouter look for the first, of vLLM for the
            // second.
            out.extend_from_slice(b",\"context_length\":");
            push_json(out, &tokens);
            out.extend_from_slice(b",\"max_model_len\":");
            push_json(out, &tokens);
        }
        out.push(b'}');
    }
}

/// Appends the JSON of the list, in the order given.
pub fn write_model_list(models: &[ModelCard<'_>], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    for (index, model) in models.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        model.write(out);
    }
    out.extend_from_slice(b"]}");
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{ModelCard, write_model_list};

    const KNOWN: ModelCard<'static> = ModelCard {
        id: "smollm2",
        created: 1_700_000_000,
        context_length: Some(8192),
    };
    const UNKNOWN: ModelCard<'static> = ModelCard {
        id: "org/\"quoted\"",
        created: 0,
        context_length: None,
    };

    fn list(models: &[ModelCard<'_>]) -> String {
        let mut out = Vec::new();
        write_model_list(models, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The same JSON with a line for each member, for people.
    fn by_member(json: &str) -> String {
        json.replace(",\"", ",\n\"")
    }

    #[test]
    fn a_model_shows_the_context_that_a_request_may_use() {
        let mut out = Vec::new();
        KNOWN.write(&mut out);
        insta::assert_snapshot!(by_member(&String::from_utf8(out).unwrap()), @r#"
        {"id":"smollm2",
        "object":"model",
        "created":1700000000,
        "owned_by":"tollgate",
        "context_length":8192,
        "max_model_len":8192}
        "#);
    }

    #[test]
    fn a_list_keeps_the_order_and_leaves_out_an_unknown_context() {
        insta::assert_snapshot!(by_member(&list(&[KNOWN, UNKNOWN])), @r#"
        {"object":"list",
        "data":[{"id":"smollm2",
        "object":"model",
        "created":1700000000,
        "owned_by":"tollgate",
        "context_length":8192,
        "max_model_len":8192},{"id":"org/\"quoted\"",
        "object":"model",
        "created":0,
        "owned_by":"tollgate"}]}
        "#);
    }

    #[test]
    fn a_list_of_no_models_is_a_list() {
        insta::assert_snapshot!(list(&[]), @r#"{"object":"list","data":[]}"#);
    }

    #[test]
    fn a_list_is_json_whatever_the_names() {
        let value: Value = serde_json::from_str(&list(&[KNOWN, UNKNOWN])).unwrap();
        assert_eq!(value["data"][1]["id"], "org/\"quoted\"");
    }
}
