//! What goes on of a stream and what is read in it, by example and by law.

use proptest::prelude::*;

use super::*;

fn delta(text: &str) -> String {
    let text = serde_json::to_string(text).unwrap();
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}},\"finish_reason\":null}}]}}\n\n"
    )
}

const FIN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn usage(prompt: u64, output: u64) -> String {
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\
         \"completion_tokens\":{output},\"total_tokens\":{}}}}}\n\n",
        prompt + output
    )
}

/// What goes on of a stream, and what it said.
fn read(wants: StreamUsage, stream: &[u8]) -> (String, Facts) {
    let mut tap = Tap::new(wants, Tap::DEFAULT_LIMIT);
    let mut out = Vec::new();
    tap.push(stream, &mut out);
    tap.finish();
    (String::from_utf8(out).unwrap(), tap.facts().clone())
}

fn counted(prompt: u64, output: u64) -> Option<Usage> {
    Some(Usage {
        prompt_tokens: prompt,
        completion_tokens: output,
        cached_tokens: 0,
    })
}

#[test]
fn a_plain_stream_goes_on_as_it_is_but_for_its_terminator() {
    let text = format!("{}{}{FIN}", delta("a"), delta("b"));
    let (out, facts) = read(StreamUsage::Omitted, format!("{text}{DONE}").as_bytes());
    assert_eq!(out, text);
    assert_eq!((facts.chunks, facts.deltas, facts.text_bytes), (3, 2, 2));
    assert_eq!((facts.finished, facts.finish), (1, Some(Finish::Stop)));
    assert!(facts.done && facts.fault.is_none());
}

#[test]
fn the_text_is_kept_only_where_that_is_wanted_and_only_while_there_is_room() {
    let texts = ["a", "h\u{e9}\n", "bc", "bc"];
    let stream: String = texts.map(delta).concat();
    let (bare, said) = read(StreamUsage::Omitted, stream.as_bytes());
    for (most, kept) in [(8, None), (9, Some("ah\u{e9}\nbcbc"))] {
        let mut tap = Tap::new(StreamUsage::Omitted, Tap::DEFAULT_LIMIT).keeping(most);
        let mut out = Vec::new();
        tap.push(stream.as_bytes(), &mut out);
        assert_eq!(tap.text(), kept, "{most}");
        assert_eq!(
            (String::from_utf8(out).unwrap(), tap.facts()),
            (bare.clone(), &said)
        );
    }
    let tap = Tap::new(StreamUsage::Omitted, Tap::DEFAULT_LIMIT);
    assert_eq!(tap.text(), None);
}

#[test]
fn a_usage_chunk_goes_on_only_where_it_was_asked_for() {
    let stream = format!("{}{FIN}{}{DONE}", delta("a"), usage(4, 6));
    let (out, facts) = read(StreamUsage::Omitted, stream.as_bytes());
    assert_eq!(out, format!("{}{FIN}", delta("a")));
    assert_eq!(facts.usage, counted(4, 6));
    let (out, _) = read(StreamUsage::Final, stream.as_bytes());
    assert_eq!(out, format!("{}{FIN}{}", delta("a"), usage(4, 6)));
}

#[test]
fn usage_beside_choices_goes_on_and_is_read() {
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":{\"prompt_tokens\":287,\
                \"completion_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":256}}}\n\n";
    let (out, facts) = read(StreamUsage::Omitted, last.as_bytes());
    assert_eq!(out, last);
    assert_eq!(facts.usage.unwrap().cached_tokens, 256);
}

#[test]
fn of_a_running_total_the_most_counts() {
    let mut stream: String = (0..=50).map(|n| usage(16, n)).collect();
    stream.push_str(
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n",
    );
    let (_, facts) = read(StreamUsage::Omitted, stream.as_bytes());
    assert_eq!(facts.usage, counted(16, 50));
}

#[test]
fn a_usage_chunk_without_choices_is_given_them() {
    let bare = "data: {\"id\":\"c1\",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n";
    let stream = format!("{}{FIN}{bare}{DONE}", delta("a"));
    let (out, _) = read(StreamUsage::Final, stream.as_bytes());
    let last = out.split("\n\n").filter(|event| !event.is_empty()).last();
    let chunk: serde_json::Value =
        serde_json::from_str(last.unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(chunk["choices"], serde_json::json!([]));
    assert_eq!((&chunk["id"], &chunk["created"]), (&"c1".into(), &7.into()));
    assert_eq!(chunk["usage"]["completion_tokens"], 2);
}

#[test]
fn usage_that_was_asked_for_and_never_came_is_reckoned() {
    let mut tap = Tap::new(StreamUsage::Final, 1000);
    let mut out = Vec::new();
    tap.push(
        format!("{}{FIN}{DONE}", delta("hello")).as_bytes(),
        &mut out,
    );
    out.clear();
    tap.write_end(counted(5, 2).unwrap(), &mut out);
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains("\"choices\":[],\"usage\":{\"prompt_tokens\":5"),
        "{out}"
    );
    assert!(out.ends_with(DONE), "{out}");
}

#[test]
fn empty_events_are_swallowed_and_comments_go_on() {
    let stream = format!(
        ": PROCESSING\n\n:\n{}data:\n\ndata: \n\n{}",
        delta("a"),
        delta("b")
    );
    let (out, facts) = read(StreamUsage::Omitted, stream.as_bytes());
    assert_eq!(
        out,
        format!(": PROCESSING\n\n:\n{}{}", delta("a"), delta("b"))
    );
    assert_eq!((facts.chunks, facts.deltas), (2, 2));
}

#[test]
fn a_choice_that_is_not_there_harms_nobody() {
    let stream = format!(
        "data: {{\"choices\":[]}}\n\n{}data: {{\"choices\":[],\"usage\":null}}\n\ndata: \
         {{\"choices\":null,\"x\":1e400}}\n\n{FIN}",
        delta("a")
    );
    let (out, facts) = read(StreamUsage::Omitted, stream.as_bytes());
    assert_eq!(out, stream);
    assert_eq!((facts.deltas, facts.usage), (1, None));
}

#[test]
fn an_error_ends_what_goes_on_in_each_of_its_shapes() {
    for error in [
        "data: {\"error\":{\"message\":\"full\",\"code\":503}}\n\n",
        "event: error\ndata: {\"message\":\"full\",\"code\":503}\n\n",
        "error: {\"code\":503,\"message\":\"full\",\"type\":\"x\"}\n\n",
        "data: {\"object\":\"error\",\"message\":\"full\",\"code\":\"503\"}\n\n",
    ] {
        let stream = format!("{}{error}{}{DONE}", delta("a"), delta("b"));
        let (out, facts) = read(StreamUsage::Omitted, stream.as_bytes());
        assert_eq!(out, delta("a"), "{error}");
        let Some(Fault::Error(said)) = &facts.fault else {
            panic!("{error} is read as {:?}", facts.fault)
        };
        assert_eq!(
            (said.status, said.message.as_str()),
            (Some(503), "full"),
            "{error}"
        );
        assert!(!facts.done, "a terminator after an error is false");
    }
}

#[test]
fn what_is_no_json_object_is_a_fault() {
    for data in ["{bad", "[1]", "7", "\"x\"", "{\"a\":1} {"] {
        let (out, facts) = read(StreamUsage::Omitted, format!("data: {data}\n\n").as_bytes());
        assert_eq!(
            (out.as_str(), facts.fault),
            ("", Some(Fault::NoChunk)),
            "{data}"
        );
    }
}

#[test]
fn an_event_past_the_limit_is_a_fault_and_not_kept() {
    let mut tap = Tap::new(StreamUsage::Omitted, 10_000);
    let mut out = Vec::new();
    for _ in 0..100 {
        tap.push(&[b'a'; 1000], &mut out);
    }
    assert_eq!(tap.facts().fault, Some(Fault::TooLarge));
    assert_eq!((out.len(), tap.held.capacity()), (0, 0));
}

#[test]
fn a_tool_call_of_three_mebibytes_goes_on_whole() {
    let arguments = "x".repeat(3 << 20);
    let event = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":0,\
         \"function\":{{\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
    );
    let mut tap = Tap::new(StreamUsage::Omitted, Tap::DEFAULT_LIMIT);
    let mut out = Vec::new();
    for piece in event.as_bytes().chunks(16 * 1024) {
        tap.push(piece, &mut out);
    }
    assert!(out == event.as_bytes());
    assert_eq!(tap.facts().text_bytes, 3 << 20);
    assert!(tap.held.capacity() <= 64 * 1024);
}

#[test]
fn reasoning_and_tool_calls_are_text_and_a_role_is_none() {
    for (delta, bytes) in [
        (r#"{"role":"assistant","content":""}"#, 0),
        (r#"{"role":"assistant","content":null}"#, 0),
        (r#"{"reasoning_content":"abc"}"#, 3),
        (r#"{"reasoning":"abc"}"#, 3),
        (r#"{"refusal":"no"}"#, 2),
        (
            r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}"#,
            1,
        ),
    ] {
        let event = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
        let (_, facts) = read(StreamUsage::Omitted, event.as_bytes());
        assert_eq!(facts.text_bytes, bytes, "{delta}");
    }
}

#[test]
fn a_terminator_without_a_line_end_is_one() {
    let (_, facts) = read(
        StreamUsage::Omitted,
        format!("{FIN}data: [DONE]").as_bytes(),
    );
    assert!(facts.done);
    let (_, facts) = read(
        StreamUsage::Omitted,
        format!("{FIN}data: {{\"choices\"").as_bytes(),
    );
    assert!(!facts.done);
}

/// A stream with everything in it that engines send.
fn events() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        "[a-z ]{0,6}",
        Just("你好🙂".to_owned()),
        Just("q\"\\\n".to_owned())
    ];
    let event = prop_oneof![
        8 => text.prop_map(|text| delta(&text)),
        1 => Just(FIN.to_owned()),
        1 => (0_u64..99, 0_u64..99).prop_map(|(prompt, output)| usage(prompt, output)),
        1 => Just(": hb\n\n".to_owned()),
        1 => Just(":\n".to_owned()),
        1 => Just("data:\n\n".to_owned()),
        1 => Just("\n".to_owned()),
        1 => Just("event: message\nid: 7\ndata: {\"choices\":[]}\n\n".to_owned()),
        1 => Just("data: {\"choices\":\ndata: []}\n\n".to_owned()),
        1 => Just(DONE.to_owned()),
        1 => Just("data: {\"error\":{\"message\":\"x\"}}\n\n".to_owned()),
        1 => Just("data: {half\n\n".to_owned()),
    ];
    let ends = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let events = prop::collection::vec((event, ends), 0..12);
    (any::<bool>(), events).prop_map(|(mark, events)| {
        let mut stream = String::new();
        stream.push_str(if mark { "\u{feff}" } else { "" });
        for (event, end) in events {
            stream.push_str(&event.replace('\n', end));
        }
        stream
    })
}

proptest! {
    #[test]
    fn any_split_of_a_stream_reads_alike(
        stream in events(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        asked: bool,
    ) {
        let wants = if asked { StreamUsage::Final } else { StreamUsage::Omitted };
        let (whole, said) = read(wants, stream.as_bytes());
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut tap = Tap::new(wants, Tap::DEFAULT_LIMIT);
        let mut out = Vec::new();
        for pair in cuts.windows(2) {
            tap.push(&stream.as_bytes()[pair[0]..pair[1]], &mut out);
        }
        tap.finish();
        prop_assert_eq!(String::from_utf8(out).unwrap(), whole);
        prop_assert_eq!(tap.facts(), &said);
    }

    #[test]
    fn what_goes_on_is_some_of_what_came_in_the_same_order(stream in events()) {
        let (out, _) = read(StreamUsage::Omitted, stream.as_bytes());
        let mut rest = stream.as_bytes();
        for byte in out.bytes() {
            let at = rest.iter().position(|other| *other == byte);
            prop_assert!(at.is_some());
            rest = &rest[at.unwrap() + 1..];
        }
    }

    #[test]
    fn bytes_of_any_kind_never_panic(stream: Vec<u8>, asked: bool) {
        let wants = if asked { StreamUsage::Final } else { StreamUsage::Omitted };
        let mut tap = Tap::new(wants, 64);
        let mut out = Vec::new();
        for byte in stream {
            tap.push(&[byte], &mut out);
        }
        tap.finish();
        tap.write_end(Usage::default(), &mut out);
    }
}
