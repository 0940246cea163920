//! Requests as clients make them.

use serde_json::{Value, json};

use super::http::{Answer, Request};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

/// The body of a short chat with model `m`.
pub(crate) fn hi() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
}

/// `hi`, with these members beside.
pub(crate) fn hi_with(members: Value) -> Value {
    with(hi(), members)
}

/// `body`, with these members set.
pub(crate) fn with(mut body: Value, members: Value) -> Value {
    let Value::Object(members) = members else {
        panic!("members are an object")
    };
    body.as_object_mut().unwrap().extend(members);
    body
}

/// A chat request with this body.
pub(crate) fn chat(body: &Value) -> Request {
    Request::post(CHAT, body.to_string())
}

/// `hi` with these members beside, as a request.
pub(crate) fn say(members: Value) -> Request {
    chat(&hi_with(members))
}

/// The same as a stream.
pub(crate) fn stream(members: Value) -> Request {
    say(with(members, json!({"stream": true})))
}

/// A stream that goes on until something else ends it.
pub(crate) fn endless() -> Request {
    stream(json!({"ignore_eos": true}))
}

/// A short answer of known length.
pub(crate) fn short() -> Request {
    say(json!({"ignore_eos": true, "max_tokens": 5}))
}

/// The request with a key in the usual place.
pub(crate) fn keyed(request: Request, key: &str) -> Request {
    request.header("authorization", format!("Bearer {key}"))
}

/// The text of a whole answer, and why it ended.
pub(crate) fn told(answer: &Answer) -> (String, String) {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let choice = &answer.json()["choices"][0];
    let text = match choice.get("message") {
        Some(message) => &message["content"],
        None => &choice["text"],
    };
    let owned = |value: &Value| value.as_str().unwrap().to_owned();
    (owned(text), owned(&choice["finish_reason"]))
}
