//! Every shape of reply as it goes over the wire, and that any text survives the way.

use proptest::prelude::*;
use serde_json::Value;

use super::{
    Answer, CallOpening, Choice, ChunkWriter, FinishReason, Likely, Logprob, Piece, Stamp,
    StreamUsage, Usage,
};
use crate::ToolCall;
use crate::sse::{SseEnd, SseItem, SseReader};

const CHAT: Stamp<'static> = Stamp {
    id: "chatcmpl-1",
    created: 1_700_000_000,
    model: "smollm2",
    system_fingerprint: None,
};
const TEXT: Stamp<'static> = Stamp {
    id: "cmpl-1",
    created: 1_700_000_000,
    model: "smollm2",
    system_fingerprint: Some("fp_1"),
};
const USAGE: Usage = Usage {
    prompt_tokens: 12,
    completion_tokens: 3,
    cached_tokens: 8,
};

fn choice(text: &str, finish: FinishReason) -> Choice {
    Choice {
        text: text.to_owned(),
        calls: Vec::new(),
        finish,
        logprobs: None,
    }
}

fn answer(choices: &[Choice]) -> Answer<'_> {
    Answer {
        choices,
        usage: USAGE,
    }
}

fn piece(text: &str) -> Piece<'_> {
    Piece {
        choice: 0,
        text,
        offset: 0,
        logprobs: None,
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

/// The same JSON with a line for each member, for people.
fn by_member(json: &str) -> String {
    json.replace(",\"", ",\n\"")
}

/// All events of a short stream.
fn stream(chunks: &ChunkWriter, finish: FinishReason) -> String {
    written(|out| {
        chunks.opening(0, out);
        chunks.content(piece("Hel"), out);
        chunks.content(piece("lo\n"), out);
        chunks.finish(0, finish, out);
        chunks.usage(USAGE, out);
    })
}

/// The JSON of each event in `stream`.
fn events(stream: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut reader = SseReader::default();
    let read = reader.push(stream.as_bytes(), |item| match item {
        SseItem::Event(event) => values.push(serde_json::from_slice(&event.data).unwrap()),
        SseItem::Comment(_) => panic!("a reply has no comments"),
    });
    read.unwrap();
    assert_eq!(reader.finish(), SseEnd::Clean);
    values
}

#[test]
fn a_chat_body_has_one_choice_with_its_message() {
    let body = written(|out| answer(&[choice("Hello", FinishReason::Stop)]).write_chat(&CHAT, out));
    insta::assert_snapshot!(by_member(&body), @r#"
    {"id":"chatcmpl-1",
    "object":"chat.completion",
    "created":1700000000,
    "model":"smollm2",
    "choices":[{"index":0,
    "message":{"role":"assistant",
    "content":"Hello",
    "refusal":null},
    "logprobs":null,
    "finish_reason":"stop"}],
    "usage":{"prompt_tokens":12,
    "completion_tokens":3,
    "total_tokens":15,
    "prompt_tokens_details":{"cached_tokens":8}}}
    "#);
}

#[test]
fn a_text_body_has_one_choice_with_its_text() {
    let body =
        written(|out| answer(&[choice("Hello", FinishReason::Length)]).write_text(&TEXT, out));
    insta::assert_snapshot!(by_member(&body), @r#"
    {"id":"cmpl-1",
    "object":"text_completion",
    "created":1700000000,
    "model":"smollm2",
    "system_fingerprint":"fp_1",
    "choices":[{"index":0,
    "text":"Hello",
    "logprobs":null,
    "finish_reason":"length"}],
    "usage":{"prompt_tokens":12,
    "completion_tokens":3,
    "total_tokens":15,
    "prompt_tokens_details":{"cached_tokens":8}}}
    "#);
}

#[test]
fn a_chat_stream_without_usage_has_no_usage_member() {
    let chunks = ChunkWriter::chat(&CHAT, StreamUsage::Omitted);
    insta::assert_snapshot!(stream(&chunks, FinishReason::Stop), @r#"
    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"content":"lo\n"},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}
    "#);
}

#[test]
fn a_chat_stream_with_usage_has_it_null_until_a_last_chunk_without_choices() {
    let chunks = ChunkWriter::chat(&CHAT, StreamUsage::Final);
    insta::assert_snapshot!(stream(&chunks, FinishReason::Length), @r#"
    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{"content":"lo\n"},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}

    data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":8}}}
    "#);
}

#[test]
fn a_text_stream_without_usage_has_no_usage_member() {
    let chunks = ChunkWriter::text(&TEXT, StreamUsage::Omitted);
    insta::assert_snapshot!(stream(&chunks, FinishReason::Length), @r#"
    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"Hel","logprobs":null,"finish_reason":null}]}

    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"lo\n","logprobs":null,"finish_reason":null}]}

    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}
    "#);
}

#[test]
fn a_text_stream_with_usage_has_it_null_until_a_last_chunk_without_choices() {
    let chunks = ChunkWriter::text(&TEXT, StreamUsage::Final);
    insta::assert_snapshot!(stream(&chunks, FinishReason::Stop), @r#"
    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"Hel","logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"lo\n","logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}

    data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"smollm2","system_fingerprint":"fp_1","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":8}}}
    "#);
}

#[test]
fn the_finish_reason_is_null_until_the_last_content_chunk() {
    for chunks in [
        ChunkWriter::chat(&CHAT, StreamUsage::Omitted),
        ChunkWriter::text(&TEXT, StreamUsage::Omitted),
    ] {
        let events = events(&stream(&chunks, FinishReason::Stop));
        let (last, earlier) = events.split_last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        for event in earlier {
            assert_eq!(event["choices"][0].get("finish_reason"), Some(&Value::Null));
        }
    }
}

#[test]
fn every_chunk_carries_the_same_identity_and_model() {
    let chunks = ChunkWriter::chat(&CHAT, StreamUsage::Final);
    for event in events(&stream(&chunks, FinishReason::Stop)) {
        assert_eq!(event["id"], CHAT.id);
        assert_eq!(event["created"], CHAT.created);
        assert_eq!(event["model"], CHAT.model);
        assert_eq!(event["object"], "chat.completion.chunk");
    }
}

#[test]
fn a_total_beyond_the_largest_number_stays_at_it() {
    let usage = Usage {
        prompt_tokens: u64::MAX,
        completion_tokens: 1,
        cached_tokens: 0,
    };
    let value: Value = serde_json::from_str(&written(|out| usage.write(out))).unwrap();
    assert_eq!(value["total_tokens"], u64::MAX);
}

fn logprobs() -> Vec<Logprob> {
    let likely = |bytes: &[u8], logprob| Likely {
        bytes: bytes.to_vec(),
        logprob,
    };
    let one = |bytes: &[u8]| Logprob {
        chosen: likely(bytes, -0.5),
        top: vec![likely(b"x", -0.25), likely(b"y", f32::NEG_INFINITY)],
    };
    vec![one("é".as_bytes()), one(b"\xff")]
}

#[test]
fn choices_are_counted_and_tell_how_likely_their_tokens_were() {
    let likely = Choice {
        logprobs: Some(logprobs()),
        ..choice("b", FinishReason::Length)
    };
    let choices = [choice("a", FinishReason::Stop), likely];
    let body = written(|out| answer(&choices).write_chat(&CHAT, out));
    let chat: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(chat["choices"][0]["logprobs"], Value::Null);
    let second = &chat["choices"][1];
    assert_eq!(
        (&second["index"], &second["finish_reason"]),
        (&1.into(), &"length".into())
    );
    let content = &second["logprobs"]["content"];
    assert_eq!(content[0]["token"], "é");
    assert_eq!(content[1]["bytes"], serde_json::json!([255]));
    assert_eq!(content[0]["top_logprobs"][1]["logprob"], -9999.0);
    let body = written(|out| answer(&choices).write_text(&TEXT, out));
    let text: Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({
        "tokens": ["é", "\u{fffd}"], "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"x": -0.25, "y": -9999.0}, {"x": -0.25, "y": -9999.0}],
        "text_offset": [0, 1],
    });
    assert_eq!(text["choices"][1]["logprobs"], expected);
}

#[test]
fn a_piece_names_its_choice_and_tells_how_likely_its_tokens_were() {
    let logprobs = logprobs();
    let piece = Piece {
        choice: 2,
        offset: 7,
        logprobs: Some(&logprobs),
        ..piece("é")
    };
    let chat = ChunkWriter::chat(&CHAT, StreamUsage::Final);
    let text = ChunkWriter::text(&TEXT, StreamUsage::Omitted);
    let stream = written(|out| {
        chat.content(piece, out);
        text.content(piece, out);
    });
    let events = events(&stream);
    assert_eq!(events[0]["choices"][0]["index"], 2);
    assert_eq!(
        events[0]["choices"][0]["logprobs"]["content"][0]["logprob"],
        -0.5
    );
    assert_eq!(
        events[1]["choices"][0]["logprobs"]["text_offset"],
        serde_json::json!([7, 8])
    );
}

#[test]
fn calls_stand_in_the_message_and_content_is_null_beside_them_alone() {
    let call = |id: &str| ToolCall {
        id: id.into(),
        name: "time".into(),
        arguments: "{\"zone\":\"UTC\"}".into(),
    };
    let calls = vec![call("a"), call("b")];
    let called = |text| Choice {
        calls: calls.clone(),
        ..choice(text, FinishReason::ToolCalls)
    };
    let choices = [called(""), called("Let me see.")];
    let body = written(|out| answer(&choices).write_chat(&CHAT, out));
    let chat: Value = serde_json::from_str(&body).unwrap();
    let message = &chat["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(chat["choices"][0]["finish_reason"], "tool_calls");
    let expected = serde_json::json!({
        "id": "b", "type": "function",
        "function": {"name": "time", "arguments": "{\"zone\":\"UTC\"}"},
    });
    assert_eq!(message["tool_calls"][1], expected);
    assert_eq!(chat["choices"][1]["message"]["content"], "Let me see.");
}

#[test]
fn a_streamed_call_begins_with_its_id_and_name_and_goes_on_with_arguments() {
    let chunks = ChunkWriter::chat(&CHAT, StreamUsage::Omitted);
    let opening = CallOpening {
        index: 1,
        id: "call_7",
        name: "time",
    };
    let stream = written(|out| {
        chunks.call(0, opening, out);
        chunks.arguments(0, 1, "{\"zone\":", out);
        chunks.finish(0, FinishReason::ToolCalls, out);
    });
    let events = events(&stream);
    let begun = serde_json::json!({
        "index": 1, "id": "call_7", "type": "function",
        "function": {"name": "time", "arguments": ""},
    });
    assert_eq!(events[0]["choices"][0]["delta"]["tool_calls"][0], begun);
    let more = serde_json::json!({"index": 1, "function": {"arguments": "{\"zone\":"}});
    assert_eq!(events[1]["choices"][0]["delta"]["tool_calls"][0], more);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "tool_calls");
}

proptest! {
    #[test]
    fn any_text_survives_in_a_body(text: String, model: String) {
        let stamp = Stamp { model: &model, system_fingerprint: Some(&text), ..CHAT };
        let choices = [choice(&text, FinishReason::Stop)];
        let answer = answer(&choices);
        let chat: Value =
            serde_json::from_str(&written(|out| answer.write_chat(&stamp, out))).unwrap();
        prop_assert_eq!(&chat["choices"][0]["message"]["content"], &text);
        prop_assert_eq!(&chat["model"], &model);
        prop_assert_eq!(&chat["system_fingerprint"], &text);
        let plain: Value =
            serde_json::from_str(&written(|out| answer.write_text(&stamp, out))).unwrap();
        prop_assert_eq!(&plain["choices"][0]["text"], &text);
    }

    #[test]
    fn any_text_survives_in_a_stream(pieces: Vec<String>) {
        let chat = ChunkWriter::chat(&CHAT, StreamUsage::Omitted);
        let text = ChunkWriter::text(&TEXT, StreamUsage::Final);
        let mut out = Vec::new();
        for piece in &pieces {
            chat.content(super::tests::piece(piece), &mut out);
            text.content(super::tests::piece(piece), &mut out);
        }
        let events = events(&String::from_utf8(out).unwrap());
        prop_assert_eq!(events.len(), 2 * pieces.len());
        for (pair, piece) in events.chunks(2).zip(&pieces) {
            prop_assert_eq!(&pair[0]["choices"][0]["delta"]["content"], piece);
            prop_assert_eq!(&pair[1]["choices"][0]["text"], piece);
        }
    }
}
