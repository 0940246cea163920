//! The reader of objects, with no parameter's own rule in play.

use insta::assert_snapshot;

use super::*;
use crate::bad_request::told;

fn refusal(body: &str) -> BadRequest {
    Fields::of_body(body.as_bytes()).unwrap_err()
}

/// What `check` says of the value of `x` in `{"x": value}`.
fn on<T>(value: &str, check: impl Fn(&Field<'_, '_>) -> T) -> T {
    let body = format!("{{\"x\": {value} }}");
    let fields = Fields::of_body(body.as_bytes()).unwrap();
    check(&fields.get("x").unwrap())
}

#[test]
fn a_body_that_is_no_object_is_refused_by_what_it_is() {
    assert_snapshot!(told([
        refusal("null"),
        refusal("[]"),
        refusal(r#""x""#),
        refusal(" 7"),
        refusal("true"),
    ]), @"
    the body is null; send a JSON object
    the body is an array; send a JSON object
    the body is a string; send a JSON object
    the body is a number; send a JSON object
    the body is a boolean; send a JSON object
    ");
}

#[test]
fn bad_grammar_is_refused_with_its_place() {
    assert_snapshot!(told([
        refusal("{:"),
        refusal(r#"{"a":1"#),
        refusal("{\"a\":1,\n}"),
        refusal(r#"{"a":NaN}"#),
        refusal(r#"{"a":1} {}"#),
        refusal(r#"{'a':1}"#),
        refusal("{\"a\":\"\n\"}"),
    ]), @r"
    the body is not valid JSON: key must be a string at line 1 column 2; send one JSON object
    the body is not valid JSON: EOF while parsing an object at line 1 column 6; send one JSON object
    the body is not valid JSON: trailing comma at line 2 column 1; send one JSON object
    the body is not valid JSON: expected value at line 1 column 6; send one JSON object
    the body is not valid JSON: trailing characters at line 1 column 9; send one JSON object
    the body is not valid JSON: key must be a string at line 1 column 2; send one JSON object
    the body is not valid JSON: control character (\u0000-\u001F) found while parsing a string at line 1 column 6; send one JSON object
    ");
}

#[test]
fn a_key_that_is_there_twice_is_refused_by_name() {
    let twice = refusal(r#"{"model":"a","model":"b"}"#);
    assert_snapshot!(twice, @"model is there twice; send it once");
    assert_eq!(twice.param.as_deref(), Some("model"));
    assert_eq!(twice.code, Some("duplicate_parameter"));
}

#[test]
fn a_key_spelled_with_escapes_is_the_same_key() {
    let twice = refusal(r#"{"model":"a","mod\u0065l":"b"}"#);
    assert_eq!(twice.param.as_deref(), Some("model"));
}

#[test]
fn an_unknown_key_that_is_there_twice_is_refused_too() {
    let twice = refusal(r#"{"x_unknown":1,"x_unknown":1}"#);
    assert_eq!(twice.param.as_deref(), Some("x_unknown"));
}

#[test]
fn a_very_long_key_is_cut_where_it_is_named() {
    let key = "é".repeat(100_000);
    let twice = refusal(&format!(r#"{{"{key}":1,"{key}":1}}"#));
    assert_eq!(twice.param, Some("é".repeat(MAX_SHOWN)));
}

#[test]
fn keys_are_bounded_and_the_bound_itself_is_allowed() {
    let object = |count| {
        let keys: Vec<String> = (0..count).map(|key| format!(r#""k{key}":0"#)).collect();
        format!("{{{}}}", keys.join(","))
    };
    assert!(Fields::of_body(object(MAX_KEYS).as_bytes()).is_ok());
    let inner = on(&object(MAX_KEYS + 1), |field| field.object("").unwrap_err());
    assert_eq!(inner.param.as_deref(), Some("x"));
    assert_snapshot!(told([refusal(&object(MAX_KEYS + 1)), inner]), @"
    the body is an object of more than 1024 keys; send only those that mean something
    x is an object of more than 1024 keys; send only those that mean something
    ");
}

#[test]
fn null_is_the_same_as_absent() {
    let fields = Fields::of_body(br#"{"a": null}"#).unwrap();
    assert!(fields.get("a").is_none());
    assert!(fields.get("b").is_none());
    assert_snapshot!(
        fields.require("a", "use a string").unwrap_err(),
        @"a is missing; use a string"
    );
}

#[test]
fn values_stay_the_bytes_that_were_sent() {
    let json = r#"{ "n" : 1234567890123456789012345678901234567890.0e-1, "s":"\u0041"}"#;
    assert_eq!(on(json, |field| field.json().to_owned()), json);
}

#[test]
fn integers_are_read_from_their_digits() {
    let integer = |value| on(value, |field| field.integer(-1..=9, "use a whole number"));
    assert_eq!(integer("-1"), Ok(-1));
    assert_eq!(integer("9"), Ok(9));
    for bad in [
        "-2",
        "10",
        "1.0",
        "1e0",
        "99999999999999999999",
        "true",
        "\"5\"",
        "[1]",
        "{}",
    ] {
        assert!(integer(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_value_is_told_apart_from_a_type() {
    let code = |value| on(value, |field| field.integer(1..=9, "").unwrap_err().code);
    assert_eq!(code("0"), Some("invalid_value"));
    assert_eq!(code("\"5\""), Some("invalid_type"));
}

#[test]
fn floats_beyond_every_range_are_refused_and_tiny_ones_are_zero() {
    let float = |value| {
        on(value, |field| {
            field.float(0.0..=2.0, "use a number from 0 to 2")
        })
    };
    assert_eq!(float("2"), Ok(2.0));
    assert_eq!(float("1e-999"), Ok(0.0));
    assert_eq!(float("0.1"), Ok(0.1));
    assert_snapshot!(told([
        float("1e999").unwrap_err(),
        float("-0.5").unwrap_err(),
        float("\"1\"").unwrap_err(),
    ]), @r#"
    x is 1e999; use a number from 0 to 2
    x is -0.5; use a number from 0 to 2
    x is "1"; use a number from 0 to 2
    "#);
}

#[test]
fn a_long_value_is_told_by_its_size_only() {
    let secret = format!("\"{}\"", "secret ".repeat(20));
    assert_snapshot!(told([
        on(&secret, |field| field.boolean().unwrap_err()),
        on("[1, 2]", |field| field.boolean().unwrap_err()),
        on("{}", |field| field.boolean().unwrap_err()),
        on("\"\"", |field| field.boolean().unwrap_err()),
    ]), @"
    x is a string of 142 bytes; use true or false
    x is an array; use true or false
    x is an object; use true or false
    x is an empty string; use true or false
    ");
}

#[test]
fn arrays_are_bounded_at_both_ends() {
    let items = |value| {
        on(value, |field| {
            field
                .items(2, "use 1 or 2")
                .map(|items| items.iter().count())
        })
    };
    assert_eq!(items("[1]"), Ok(1));
    assert_eq!(items("[1, [2]]"), Ok(2));
    assert_snapshot!(told([
        items("[ ]").unwrap_err(),
        items("[1,2,3,4]").unwrap_err(),
        items("{}").unwrap_err(),
    ]), @"
    x is an empty array; use 1 or 2
    x is an array of 4; use 1 or 2
    x is an object; use 1 or 2
    ");
}

#[test]
fn a_path_leads_through_arrays_and_objects() {
    let refused = on(r#"[0, {"y": 7}]"#, |field| {
        let items = field.items(9, "").unwrap();
        let second = items.iter().nth(1).unwrap();
        let inner = second.object("").unwrap();
        inner.get("y").unwrap().boolean().unwrap_err()
    });
    assert_eq!(refused.param.as_deref(), Some("x.1.y"));
}
