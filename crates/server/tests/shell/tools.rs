//! Tools: calls in streams and in whole answers, as clients read them.

use serde_json::{Value, json};

use crate::support::chat::{chat, say, stream, with};
use crate::support::rig::{FAST, Rig};
use crate::support::stream::Stream;

/// Two tools, and a prompt that has the model say exactly this.
fn asked(script: &str, members: Value) -> Value {
    let tool = |name: &str| {
        let function = json!({"name": name, "parameters": {"type": "object"}});
        json!({"type": "function", "function": function})
    };
    let said = json!({
        "messages": [{"role": "user", "content": format!("\u{2}say:{script}\u{3}")}],
        "tools": [tool("weather"), tool("time")],
    });
    with(said, members)
}

const TWO: &str = "Let me look.<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \
                   \"Oslo\"}}</tool_call>\n<tool_call>{\"name\": \"time\", \"arguments\": {}}\
                   </tool_call>";

/// Each call of a stream as its id, name and arguments, and what was said beside them.
fn calls_of(chunks: &[Value]) -> (String, Vec<[String; 3]>, String) {
    let (mut talk, mut calls, mut reason) = (String::new(), Vec::<[String; 3]>::new(), None);
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        assert!(reason.is_none(), "nothing comes after the reason");
        reason = choice["finish_reason"].as_str().map(str::to_owned);
        talk += choice["delta"]["content"].as_str().unwrap_or_default();
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            let arguments = call["function"]["arguments"].as_str().unwrap();
            if let Some(id) = call["id"].as_str() {
                assert_eq!(index, calls.len(), "each call is opened once, in order");
                assert_eq!(call["type"], "function");
                let name = call["function"]["name"].as_str().unwrap();
                calls.push([id, name, arguments].map(str::to_owned));
            } else {
                calls[index][2] += arguments;
            }
        }
    }
    (talk, calls, reason.unwrap())
}

#[tokio::test]
async fn two_calls_have_indices_ids_and_arguments_of_their_own_streamed_or_not() {
    let rig = Rig::start(FAST).await;
    let told = Stream::begin(rig.address(), &stream(asked(TWO, json!({})))).await;
    let told = told.rest().await;
    told.assert_complete();
    let (talk, calls, reason) = calls_of(&told.chunks);
    assert_eq!(
        (talk.as_str(), reason.as_str()),
        ("Let me look.", "tool_calls")
    );
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0][0], calls[1][0]);
    assert_eq!(calls[0][1..], ["weather", "{\"city\": \"Oslo\"}"]);
    assert_eq!(calls[1][1..], ["time", "{}"]);

    let whole = rig.send(&say(asked(TWO, json!({})))).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me look.");
    let made = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(made.len(), 2);
    assert_eq!(made[0]["function"]["name"], "weather");
    assert_eq!(made[1]["function"]["arguments"], "{}");
    rig.assert_unharmed().await;
}

#[tokio::test]
async fn a_call_that_the_budget_cut_off_ends_with_length() {
    let rig = Rig::start(FAST).await;
    let script = &TWO["Let me look.".len()..];
    let cut = json!({"max_tokens": 60});
    let told = Stream::begin(rig.address(), &stream(asked(script, cut.clone()))).await;
    let (_, calls, reason) = calls_of(&told.rest().await.chunks);
    assert_eq!((calls.len(), reason.as_str()), (1, "length"));
    let whole = rig.send(&say(asked(script, cut))).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn an_answer_that_calls_nothing_is_an_answer() {
    let rig = Rig::start(FAST).await;
    let talk = "No tool needed: 1 < 2.";
    for (members, expected) in [
        (json!({}), talk),
        // With tools that must not be called, what looks like a call is text.
        (json!({"tool_choice": "none"}), TWO),
    ] {
        let told = Stream::begin(rig.address(), &stream(asked(expected, members.clone()))).await;
        let (text, calls, reason) = calls_of(&told.rest().await.chunks);
        assert_eq!((text.as_str(), calls.len()), (expected, 0));
        assert_eq!(reason, "stop");
        let whole = rig.send(&say(asked(expected, members))).await.json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["content"], expected);
        assert_eq!(message.get("tool_calls"), None);
    }
}

#[tokio::test]
async fn one_call_at_a_time_is_one_call() {
    let rig = Rig::start(FAST).await;
    let alone = json!({"parallel_tool_calls": false});
    let whole = rig.send(&say(asked(TWO, alone))).await.json();
    let calls = whole["choices"][0]["message"]["tool_calls"].as_array();
    assert_eq!(calls.unwrap().len(), 1);
}

#[tokio::test]
async fn results_of_calls_go_back_to_the_model() {
    let rig = Rig::start(FAST).await;
    let call = json!({
        "id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"},
    });
    let body = json!({"model": "m", "max_tokens": 4, "messages": [
        {"role": "user", "content": "what time is it"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]});
    let answer = rig.send(&chat(&body)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

#[tokio::test]
async fn what_cannot_be_done_with_tools_is_refused_by_name() {
    let rig = Rig::start(FAST).await;
    let forced = json!({"type": "function", "function": {"name": "time"}});
    for (members, param) in [
        // The made-up model follows no grammar, so it can't be held to a call.
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": forced}), "tool_choice"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (json!({"functions": [{"name": "f"}]}), "functions"),
    ] {
        let answer = rig.send(&say(asked("x", members))).await;
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param);
    }
    rig.assert_unharmed().await;
}
