//! Chat requests: messages of every shape, hostile bodies, and laws over any bytes.

use std::num::NonZeroU32;

use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::bad_request::told;
use crate::extras::Extras;
use crate::params::{Delivery, Sampling};

fn parse(messages: &str) -> Result<ChatRequest, BadRequest> {
    ChatRequest::parse(format!(r#"{{"model":"m","messages":{messages}}}"#).as_bytes())
}

fn message(message: &str) -> Message {
    parse(&format!("[{message}]")).unwrap().messages.remove(0)
}

/// The refusal of `messages`, having checked that it names `param`.
fn refusal(param: &str, messages: &str) -> BadRequest {
    let refused = parse(messages).unwrap_err();
    assert_eq!(refused.param.as_deref(), Some(param), "{messages}");
    refused
}

#[test]
fn a_plain_request_is_read() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let request = ChatRequest::parse(body).unwrap();
    assert_eq!(request.params.model, "m");
    assert_eq!(request.params.demands, []);
    assert_eq!(request.messages.len(), 1);
    assert_eq!(request.messages[0].role, Role::User);
    assert_eq!(request.messages[0].text(), "hi");
}

#[test]
fn unknown_parameters_are_skipped_whatever_they_hold() {
    let body =
        br#"{"store":true,"metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true,
        "x_unknown":[1e999,{"y":"\u0000"}],"model":"m",
        "messages":[{"role":"user","content":"hi","x":[[]]}]}"#;
    let request = ChatRequest::parse(body).unwrap();
    assert_eq!(request.params.demands, []);
}

#[test]
fn hostile_bodies_are_refused() {
    let nested = |open: &str, close: &str| {
        let value = open.repeat(10_000) + &close.repeat(10_000);
        format!(r#"{{"model":"m","messages":{value}}}"#)
    };
    let bodies = [
        "".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "\"x\"".to_owned(),
        "{:".to_owned(),
        "NaN".to_owned(),
        nested("[", "]"),
        nested("{\"a\":", "}"),
        "[".repeat(10_000),
        r#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#.to_owned(),
        "\u{feff}{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
            .to_owned(),
        r#"{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"hi"}]}"#.to_owned(),
        r#"{"model":"a","model":"b","messages":[{"role":"user","content":"hi"}]}"#.to_owned(),
    ];
    for body in bodies {
        assert!(ChatRequest::parse(body.as_bytes()).is_err(), "{body:.60}");
    }
    let not_utf8 = b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xf0\x9f\"}]}";
    assert!(ChatRequest::parse(not_utf8).is_err());
}

#[test]
fn messages_are_required_and_at_least_one() {
    assert_snapshot!(told([
        ChatRequest::parse(br#"{"model":"m"}"#).unwrap_err(),
        refusal("messages", "null"),
        refusal("messages", "[]"),
        refusal("messages", r#""hi""#),
        refusal("messages.0", r#"["hi"]"#),
        refusal("messages.1", r#"[{"role":"user","content":"a"},null]"#),
    ]), @r#"
    messages is missing; use an array of 1 to 16384 messages
    messages is missing; use an array of 1 to 16384 messages
    messages is an empty array; use an array of 1 to 16384 messages
    messages is "hi"; use an array of 1 to 16384 messages
    messages.0 is "hi"; use an object with a role and a content
    messages.1 is null; use an object with a role and a content
    "#);
}

#[test]
fn the_number_of_messages_is_bounded() {
    let messages = |count| {
        format!(
            "[{}]",
            vec![r#"{"role":"user","content":""}"#; count].join(",")
        )
    };
    assert!(parse(&messages(ChatRequest::MAX_MESSAGES)).is_ok());
    assert_snapshot!(
        refusal("messages", &messages(ChatRequest::MAX_MESSAGES + 1)),
        @"messages is an array of 16385; use an array of 1 to 16384 messages"
    );
}

#[test]
fn every_role_is_read() {
    for role in Role::ALL {
        let json = format!(
            r#"{{"role":"{}","content":"a","name":"f","tool_call_id":"c"}}"#,
            role.as_str()
        );
        assert_eq!(message(&json).role, role);
    }
}

#[test]
fn a_role_is_required_and_known() {
    assert_snapshot!(told([
        refusal("messages.0.role", r#"[{"content":"a"}]"#),
        refusal("messages.0.role", r#"[{"role":"wizard","content":"a"}]"#),
        refusal("messages.0.role", r#"[{"role":7,"content":"a"}]"#),
    ]), @r#"
    messages.0.role is missing; use system, developer, user, assistant, tool or function
    messages.0.role is "wizard"; use system, developer, user, assistant, tool or function
    messages.0.role is 7; use system, developer, user, assistant, tool or function
    "#);
    refusal("messages.0.role", r#"[{"role":"","content":"a"}]"#);
    refusal("messages.0.role", r#"[{"role":"User","content":"a"}]"#);
}

#[test]
fn a_key_that_is_there_twice_in_a_message_is_refused() {
    refusal(
        "messages.0.role",
        r#"[{"role":"user","role":"system","content":"a"}]"#,
    );
}

#[test]
fn content_may_be_missing_for_the_assistant_only() {
    assert_eq!(
        message(r#"{"role":"assistant","content":null}"#).content,
        None
    );
    assert_eq!(message(r#"{"role":"assistant"}"#).text(), "");
    for role in ["system", "developer", "user", "tool", "function"] {
        refusal(
            "messages.0.content",
            &format!(r#"[{{"role":"{role}","content":null}}]"#),
        );
        refusal("messages.0.content", &format!(r#"[{{"role":"{role}"}}]"#));
    }
    assert_snapshot!(
        refusal("messages.0.content", r#"[{"role":"user"}]"#),
        @"messages.0.content is missing; use a string, or an array of one or more parts"
    );
}

#[test]
fn content_of_another_type_is_refused() {
    assert_snapshot!(
        refusal("messages.0.content", r#"[{"role":"user","content":7}]"#),
        @"messages.0.content is 7; use a string, or an array of one or more parts"
    );
    refusal("messages.0.content", r#"[{"role":"user","content":{}}]"#);
    refusal("messages.0.content", r#"[{"role":"user","content":true}]"#);
    assert_snapshot!(told([
        refusal("messages.0.content", r#"[{"role":"user","content":[]}]"#),
        refusal("messages.0.content.0", r#"[{"role":"user","content":["a"]}]"#),
    ]), @r#"
    messages.0.content is an empty array; use a string, or an array of one or more parts
    messages.0.content.0 is "a"; use an object like {"type": "text", "text": "Hello"}
    "#);
}

#[test]
fn text_parts_make_one_text() {
    let json = r#"{"role":"user","content":[
        {"type":"text","text":"a"},{"type":"refusal","refusal":"b"}]}"#;
    let message = message(json);
    let parts = ["a", "b"].map(|text| Part::Text(text.to_owned())).to_vec();
    assert_eq!(message.content, Some(Content::Parts(parts)));
    assert_eq!(message.text(), "a\nb");
}

#[test]
fn a_part_needs_a_type_and_a_text_part_its_text() {
    let part = |part: &str| format!(r#"[{{"role":"user","content":[{part}]}}]"#);
    assert_snapshot!(told([
        refusal("messages.0.content.0.type", &part(r#"{"text":"a"}"#)),
        refusal("messages.0.content.0.text", &part(r#"{"type":"text"}"#)),
    ]), @r#"
    messages.0.content.0.type is missing; use a string like "text"
    messages.0.content.0.text is missing; use a string
    "#);
    refusal(
        "messages.0.content.0.text",
        &part(r#"{"type":"text","text":7}"#),
    );
    refusal(
        "messages.0.content.0.refusal",
        &part(r#"{"type":"refusal","text":"a"}"#),
    );
}

#[test]
fn parts_that_are_not_text_are_kept_and_can_be_refused() {
    let json = r#"[{"role":"user","content":"a"},{"role":"user","content":[
        {"type":"text","text":"what is this?"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]"#;
    let request = parse(json).unwrap();
    let image = Part::Other {
        kind: "image_url".to_owned(),
    };
    assert_eq!(request.messages[1].parts()[1], image);
    assert_eq!(request.messages[1].text(), "what is this?");
    let refused = request.require_text().unwrap_err();
    assert_eq!(refused.param.as_deref(), Some("messages.1.content.1"));
    assert_snapshot!(
        refused,
        @r#"messages.1.content.1 is of type "image_url"; send only text to this model"#
    );
}

#[test]
fn text_alone_suits_a_text_model() {
    let json = r#"[{"role":"assistant"},{"role":"user","content":[{"type":"text","text":"a"}]}]"#;
    assert_eq!(parse(json).unwrap().require_text(), Ok(()));
}

#[test]
fn a_very_long_part_type_is_cut_where_it_is_named() {
    let kind = "k".repeat(100_000);
    let request = parse(&format!(
        r#"[{{"role":"user","content":[{{"type":"{kind}"}}]}}]"#
    ))
    .unwrap();
    assert!(request.require_text().unwrap_err().message.len() < 200);
}

#[test]
fn tool_calls_are_kept_as_they_were_sent() {
    let calls = r#"[ {"id":"c1","function":{"arguments":"{\"n\": 12345678901234567890}"}} ]"#;
    let assistant = message(&format!(
        r#"{{"role":"assistant","content":null,"tool_calls":{calls}}}"#
    ));
    assert_eq!(assistant.tool_calls.as_deref(), Some(calls));
    let tool = message(r#"{"role":"tool","content":"42","tool_call_id":"c1"}"#);
    assert_eq!(tool.tool_call_id.as_deref(), Some("c1"));
    refusal(
        "messages.0.tool_calls",
        r#"[{"role":"assistant","tool_calls":{}}]"#,
    );
    refusal(
        "messages.0.name",
        r#"[{"role":"user","content":"a","name":7}]"#,
    );
}

#[test]
fn a_result_names_what_it_answers() {
    assert_snapshot!(told([
        refusal("messages.0.tool_call_id", r#"[{"role":"tool","content":"42"}]"#),
        refusal("messages.0.name", r#"[{"role":"function","content":"42"}]"#),
    ]), @"
    messages.0.tool_call_id is missing; name the call that this message answers
    messages.0.name is missing; name the function that this message answers for
    ");
}

#[test]
fn every_parameter_is_read_from_its_own_name() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"hi"}],
        "max_tokens":5,"max_completion_tokens":7,"stop":"x","temperature":0.5,"top_p":0.25,"top_k":20,
        "min_p":0.05,"presence_penalty":1.5,"frequency_penalty":-1.5,"repetition_penalty":1.25,
        "seed":12345678901234567890,"stream":true,"stream_options":{"include_usage":true},
        "ignore_eos":true,"user":"u1","n":2}"#;
    let expected = Params {
        model: "m".to_owned(),
        max_output: NonZeroU32::new(7),
        stop: vec!["x".to_owned()],
        ignore_eos: true,
        sampling: Sampling {
            temperature: Some(0.5),
            top_p: Some(0.25),
            top_k: NonZeroU32::new(20),
            min_p: Some(0.05),
            presence_penalty: Some(1.5),
            frequency_penalty: Some(-1.5),
            repetition_penalty: Some(1.25),
            seed: Some(12_345_678_901_234_567_890),
        },
        delivery: Delivery {
            stream: true,
            include_usage: true,
        },
        user: Some("u1".to_owned()),
        extras: Extras {
            choices: NonZeroU32::new(2).unwrap(),
            ..Extras::default()
        },
        demands: vec![demand::Demand { param: "n" }],
    };
    assert_eq!(ChatRequest::parse(body).unwrap().params, expected);
}

fn any_part() -> impl Strategy<Value = Part> {
    prop_oneof![
        any::<String>().prop_map(Part::Text),
        "image_url|input_audio|file".prop_map(|kind| Part::Other { kind }),
    ]
}

fn any_content() -> impl Strategy<Value = Content> {
    prop_oneof![
        any::<String>().prop_map(Content::Text),
        prop::collection::vec(any_part(), 1..4).prop_map(Content::Parts),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let role = prop::sample::select(Role::ALL.to_vec());
    (
        role,
        any_content(),
        any::<String>(),
        any::<Option<String>>(),
    )
        .prop_map(|(role, content, name, call)| Message {
            role,
            content: (role != Role::Assistant || !name.is_empty()).then_some(content),
            name: Some(name),
            tool_calls: call
                .as_ref()
                .map(|call| json!([{ "id": call }]).to_string()),
            tool_call_id: Some(call.unwrap_or_default()),
        })
}

fn written(message: &Message) -> Value {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Other { kind } => json!({ "type": kind }),
    };
    let content = message.content.as_ref().map(|content| match content {
        Content::Text(text) => json!(text),
        Content::Parts(parts) => parts.iter().map(part).collect(),
    });
    let calls = message.tool_calls.as_deref();
    let calls: Option<Value> = calls.map(|calls| serde_json::from_str(calls).unwrap());
    json!({
        "role": message.role.as_str(), "content": content, "name": message.name,
        "tool_calls": calls, "tool_call_id": message.tool_call_id,
    })
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body: Vec<u8>) {
        let _ = ChatRequest::parse(&body);
    }

    #[test]
    fn no_change_to_a_good_body_makes_it_panic(at in 0_usize..400, byte: u8, cut: bool) {
        let mut body = br#"{"model":"m","stop":["a"],"top_p":1,"messages":[{"role":"user",
            "content":[{"type":"text","text":"\u00e9\ud83d\ude42"}]}],
            "stream":true,"stream_options":{"include_usage":true}}"#.to_vec();
        let at = at % body.len();
        if cut { body.truncate(at) } else { body[at] = byte }
        if let Err(refused) = ChatRequest::parse(&body) {
            prop_assert!(refused.message.contains("; "), "{}", refused);
        }
    }

    #[test]
    fn messages_that_were_written_are_read_back(
        messages in prop::collection::vec(any_message(), 1..5),
    ) {
        let written: Value = messages.iter().map(written).collect();
        let body = json!({ "model": "m", "messages": written });
        let request = ChatRequest::parse(body.to_string().as_bytes()).unwrap();
        prop_assert_eq!(request.messages, messages);
    }

    #[test]
    fn any_seed_and_any_temperature_are_read_exactly(seed: u64, temperature in 0.0_f32..=2.0) {
        let rest = format!(r#""seed":{seed},"temperature":{temperature}"#);
        let messages = r#"[{"role":"user","content":""}]"#;
        let body = format!(r#"{{"model":"m","messages":{messages},{rest}}}"#);
        let sampling = ChatRequest::parse(body.as_bytes()).unwrap().params.sampling;
        prop_assert_eq!(sampling.seed, Some(seed));
        prop_assert_eq!(sampling.temperature, Some(temperature));
    }
}
