//! Tools as they are offered, and calls as models write them: whole, cut up, and broken.

use proptest::prelude::*;

use super::{CallReader, CallSyntax, Said, ToolCall, ToolChoice, Tools};
use crate::bad_request::BadRequest;
use crate::fields::Fields;

const WEATHER: &str =
    r#"{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}"#;
const TIME: &str = r#"{"type":"function","function":{"name":"time"}}"#;

fn tools(rest: &str) -> Result<Option<Tools>, BadRequest> {
    let body = format!("{{{rest}}}");
    Tools::of(&Fields::of_body(body.as_bytes()).unwrap())
}

/// What a text says, cut into pieces: talk, and each call with its arguments.
fn read(syntax: CallSyntax, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let names = vec!["weather".into(), "time".into()];
    let mut reader = CallReader::new(syntax, names, 8);
    let mut said = Vec::new();
    for piece in pieces {
        reader.push(piece, &mut said);
    }
    reader.finish(&mut said);
    let (mut talk, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for one in said {
        match one {
            Said::Text(text) => {
                assert!(!text.is_empty());
                talk.push_str(&text);
            }
            Said::Call { index, name } => {
                assert_eq!(index, calls.len(), "calls are numbered in order");
                calls.push((name, String::new()));
            }
            Said::Arguments { index, json } => {
                assert_eq!(index + 1, calls.len(), "arguments are of the last call");
                assert!(!json.is_empty());
                calls[index].1.push_str(&json);
            }
        }
    }
    assert_eq!(reader.calls(), calls.len());
    (talk, calls)
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[test]
fn tools_and_their_choice_are_read() {
    assert_eq!(tools(r#""tools":[]"#), Ok(None));
    let read = tools(&format!(
        r#""tools":[{WEATHER},{TIME}],"parallel_tool_calls":false"#
    ));
    let read = read.unwrap().unwrap();
    assert_eq!(
        read.list[0].parameters.as_deref(),
        Some(r#"{"type":"object"}"#)
    );
    assert_eq!(read.list[1].json, TIME);
    assert_eq!((read.choice, read.parallel), (ToolChoice::Auto, false));
    let named = r#"{"type":"function","function":{"name":"time"}}"#;
    for (choice, expected) in [
        ("\"none\"", ToolChoice::None),
        ("\"required\"", ToolChoice::Required),
        (named, ToolChoice::Named("time".into())),
    ] {
        let read = tools(&format!(r#""tools":[{TIME}],"tool_choice":{choice}"#));
        assert_eq!(read.unwrap().unwrap().choice, expected);
    }
}

#[test]
fn a_choice_without_tools_or_of_none_of_them_is_refused() {
    assert_eq!(tools(r#""tool_choice":"auto""#), Ok(None));
    for (rest, param) in [
        (r#""tool_choice":"required""#.to_owned(), "tool_choice"),
        (
            format!(r#""tools":[{TIME}],"tool_choice":"any""#),
            "tool_choice",
        ),
        (
            format!(r#""tools":[{TIME}],"tool_choice":{WEATHER}"#),
            "tool_choice.function.name",
        ),
        (format!(r#""tools":[{TIME},{TIME}]"#), "tools"),
        (
            r#""tools":[{"type":"web_search"}]"#.to_owned(),
            "tools.0.type",
        ),
        (
            r#""tools":[{"type":"function","function":{"name":"a b"}}]"#.to_owned(),
            "tools.0.function.name",
        ),
    ] {
        let refused = tools(&rest).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some(param), "{rest}");
    }
}

#[test]
fn calls_of_an_earlier_turn_are_read_with_arguments_in_either_form() {
    let json = r#"[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
        {"function":{"name":"g","arguments":{"y":2}}}]"#;
    let calls = ToolCall::list(json, "messages.1.tool_calls").unwrap();
    assert_eq!(calls[0].arguments, r#"{"x":1}"#);
    assert_eq!(
        (calls[1].id.as_str(), calls[1].arguments.as_str()),
        ("", r#"{"y":2}"#)
    );
    let refused = ToolCall::list("[1]", "messages.1.tool_calls").unwrap_err();
    assert_eq!(refused.param.as_deref(), Some("messages.1.tool_calls"));
}

#[test]
fn two_calls_in_one_turn_are_told_apart() {
    let text = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo {x}\"}}\n\
                </tool_call>\n<tool_call>\n{\"name\":\"time\",\"arguments\":{}}\n</tool_call>";
    let (talk, calls) = read(CallSyntax::Tagged, &[text]);
    assert_eq!(talk, "");
    assert_eq!(
        calls,
        [
            call("weather", r#"{"city": "Oslo {x}"}"#),
            call("time", "{}")
        ]
    );
}

#[test]
fn talk_before_and_after_a_call_stays_talk() {
    let text = "Let me look. <tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call> Done.";
    let (talk, calls) = read(CallSyntax::Tagged, &[text]);
    assert_eq!((talk.as_str(), calls.len()), ("Let me look.  Done.", 1));
}

#[test]
fn a_list_of_calls_is_as_many_calls() {
    let list = r#"[{"name":"weather","arguments":{"a":[1,2]}}, {"name":"time","arguments":{}}]"#;
    let expected = [call("weather", r#"{"a":[1,2]}"#), call("time", "{}")];
    let tagged = format!("<tool_call>{list}</tool_call>");
    assert_eq!(read(CallSyntax::Tagged, &[&tagged]).1, expected);
    let listed = format!("[TOOL_CALLS]{list}");
    assert_eq!(
        read(CallSyntax::Listed, &[&listed]),
        (String::new(), expected.to_vec())
    );
}

#[test]
fn a_bare_object_is_a_call_only_at_the_beginning_and_of_a_tool_that_is_offered() {
    let object = r#"{"name": "time", "parameters": {"zone": "UTC"}}"#;
    let expected = vec![call("time", r#"{"zone": "UTC"}"#)];
    assert_eq!(read(CallSyntax::Bare, &[object]).1, expected);
    let marked = format!("<|python_tag|>{object}");
    assert_eq!(read(CallSyntax::Bare, &[&marked]).1, expected);
    for talk in [
        r#"{"name": "Ada", "parameters": {}}"#,
        r#"{"a": 1}"#,
        r#"Say {"name": "time"}"#,
        "{not json",
    ] {
        assert_eq!(read(CallSyntax::Bare, &[talk]), (talk.to_owned(), vec![]));
    }
}

#[test]
fn what_is_no_call_is_talk_as_it_was_written() {
    for talk in [
        "<tool_call>",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>not json</tool_call>",
        "<tool_call>{\"name\": \"time",
        "a < b, <tool and [TOOL",
        "  ",
    ] {
        assert_eq!(
            read(CallSyntax::Tagged, &[talk]),
            (talk.to_owned(), vec![]),
            "{talk}"
        );
    }
}

#[test]
fn arguments_may_come_first_be_a_string_or_be_missing() {
    let wrap = |object: &str| format!("<tool_call>{object}</tool_call>");
    for (object, arguments) in [
        (r#"{"arguments": {"a": 1}, "name": "time"}"#, r#"{"a": 1}"#),
        (
            r#"{"name": "time", "arguments": "{\"a\": 1}"}"#,
            r#"{"a": 1}"#,
        ),
        (r#"{"name": "time"}"#, "{}"),
        (r#"{"name": "time", "arguments": null}"#, "{}"),
        (
            r#"{"id": 7, "name": "time", "arguments": {"b":"}\""}, "x": [1]}"#,
            r#"{"b":"}\""}"#,
        ),
    ] {
        let (talk, calls) = read(CallSyntax::Tagged, &[&wrap(object)]);
        assert_eq!(
            (talk.as_str(), calls),
            ("", vec![call("time", arguments)]),
            "{object}"
        );
    }
}

#[test]
fn a_call_that_is_cut_off_keeps_what_came_of_its_arguments() {
    let (talk, calls) = read(
        CallSyntax::Tagged,
        &["<tool_call>{\"name\":\"time\",\"arguments\":{\"a\":\"b"],
    );
    assert_eq!(
        (talk.as_str(), calls),
        ("", vec![call("time", "{\"a\":\"b")])
    );
}

#[test]
fn calls_past_the_most_are_talk() {
    let mut reader = CallReader::new(CallSyntax::Tagged, vec!["time".into()], 1);
    let mut said = Vec::new();
    let one = "<tool_call>{\"name\":\"time\"}</tool_call>";
    reader.push(&one.repeat(2), &mut said);
    reader.finish(&mut said);
    assert_eq!(reader.calls(), 1);
    assert_eq!(said.last(), Some(&Said::Text(one.to_owned())));
}

#[test]
fn arguments_go_out_as_they_come() {
    let mut reader = CallReader::new(CallSyntax::Tagged, vec!["time".into()], 8);
    let mut said = Vec::new();
    reader.push("<tool_call>{\"name\":\"time\",", &mut said);
    assert_eq!(said.len(), 1);
    reader.push("\"arguments\":{\"zone\":\"U", &mut said);
    reader.push("TC\"}", &mut said);
    let pieces: Vec<_> = said[1..].iter().collect();
    assert_eq!(pieces.len(), 2, "{pieces:?}");
}

proptest! {
    #[test]
    fn any_cut_of_any_text_reads_alike(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "{\"name\":\"time\",\"arguments\":{\"a\":1}}", "[",
            "]", "\n", ",", "talk", "{", "}", "\"name\"", ":", "\"time\"", "\"arguments\"",
            "<tool_", "é", "[TOOL_CALLS]", "<|python_tag|>", "\\\"", " ",
        ]), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        syntax in prop::sample::select(vec![
            CallSyntax::Tagged, CallSyntax::Listed, CallSyntax::Bare,
        ]),
    ) {
        let text = parts.concat();
        let places: Vec<_> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(syntax, &pieces), read(syntax, &[&text]));
    }
}
