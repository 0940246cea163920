//! How likely tokens were, in the two shapes that OpenAI has for it.

use serde_json::{Value, json};

use crate::json_text::push_json;

/// How likely a token was, and what was likelier.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token that was chosen.
    pub chosen: Likely,
    /// The likeliest ones in its place, the likeliest first.
    pub top: Vec<Likely>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// The bytes that it stands for, which may be part of a character.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// What stands for the logarithm of nothing, which JSON can't say: as at OpenAI.
const NEVER: f32 = -9999.0;

impl Likely {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn finite(&self) -> f32 {
        self.logprob.max(NEVER)
    }

    fn chat(&self) -> Value {
        json!({ "token": self.text(), "logprob": self.finite(), "bytes": self.bytes })
    }
}

/// Appends the `logprobs` of a chat.
pub(super) fn write_chat(logprobs: &[Logprob], out: &mut Vec<u8>) {
    let one = |one: &Logprob| {
        let mut value = one.chosen.chat();
        value["top_logprobs"] = one.top.iter().map(Likely::chat).collect();
        value
    };
    let content: Value = logprobs.iter().map(one).collect();
    push_json(out, &json!({ "content": content, "refusal": null }));
}

/// Appends the `logprobs` of a text whose tokens begin at character `offset`.
pub(super) fn write_text(logprobs: &[Logprob], mut offset: usize, out: &mut Vec<u8>) {
    let mut offsets = Vec::new();
    for one in logprobs {
        offsets.push(offset);
        offset += one.chosen.text().chars().count();
    }
    let top = |one: &Logprob| -> Value {
        let pairs = one
            .top
            .iter()
            .map(|likely| (likely.text(), json!(likely.finite())));
        Value::Object(pairs.collect())
    };
    let chosen = || logprobs.iter().map(|one| &one.chosen);
    let value = json!({
        "tokens": chosen().map(Likely::text).collect::<Vec<_>>(),
        "token_logprobs": chosen().map(Likely::finite).collect::<Vec<_>>(),
        "top_logprobs": logprobs.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    });
    push_json(out, &value);
}
