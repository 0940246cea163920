//! Each shared parameter at its bounds and past them.

use insta::assert_snapshot;

use super::*;
use crate::bad_request::told;

const CHAT: [&str; 2] = ["max_completion_tokens", "max_tokens"];

/// The parameters of a body with a model and `rest`.
fn parse(rest: &str) -> Result<Params, BadRequest> {
    let body = format!(
        r#"{{"model":"m"{}{rest}}}"#,
        if rest.is_empty() { "" } else { "," }
    );
    Params::of(&Fields::of_body(body.as_bytes()).unwrap(), CHAT, Vec::new())
}

/// The refusal of `rest`, having checked that it names `param`.
fn refusal(param: &str, rest: &str) -> BadRequest {
    let refused = parse(rest).unwrap_err();
    assert_eq!(refused.param.as_deref(), Some(param), "{rest}");
    refused
}

fn without_model(body: &str) -> BadRequest {
    Params::of(&Fields::of_body(body.as_bytes()).unwrap(), CHAT, Vec::new()).unwrap_err()
}

#[test]
fn a_model_is_required_and_is_a_name() {
    assert_snapshot!(told([
        without_model("{}"),
        without_model(r#"{"model":null}"#),
        without_model(r#"{"model":7}"#),
        without_model(r#"{"model":""}"#),
        without_model(r#"{"model":["m"]}"#),
    ]), @"
    model is missing; use the name of a model, as GET /v1/models lists them
    model is missing; use the name of a model, as GET /v1/models lists them
    model is 7; use the name of a model, as GET /v1/models lists them
    model is an empty string; use the name of a model, as GET /v1/models lists them
    model is an array; use the name of a model, as GET /v1/models lists them
    ");
}

#[test]
fn a_very_long_model_name_is_left_to_the_lookup() {
    let name = "m".repeat(100_000);
    let body = format!(r#"{{"model":"{name}"}}"#);
    let fields = Fields::of_body(body.as_bytes()).unwrap();
    assert_eq!(Params::of(&fields, CHAT, Vec::new()).unwrap().model, name);
}

#[test]
fn what_is_absent_or_null_has_no_value() {
    let nulls = [
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "stream",
        "stream_options",
        "ignore_eos",
        "user",
    ]
    .map(|name| format!(r#""{name}":null"#));
    let params = parse(&nulls.join(",")).unwrap();
    assert_eq!(params, parse("").unwrap());
    assert_eq!(params.max_output, None);
    assert_eq!(params.stop, Vec::<String>::new());
    assert_eq!(params.sampling, Sampling::default());
    assert_eq!(params.delivery, Delivery::default());
    assert_eq!((params.ignore_eos, params.user), (false, None));
}

#[test]
fn the_most_output_tokens_are_a_positive_whole_number() {
    for name in CHAT {
        let max = |value: &str| parse(&format!(r#""{name}":{value}"#));
        assert_eq!(max("1").unwrap().max_output, NonZeroU32::new(1));
        assert_eq!(
            max("4294967295").unwrap().max_output,
            NonZeroU32::new(u32::MAX)
        );
        for bad in ["0", "-1", "1.5", "1.0", "\"5\"", "4294967296", "true", "[]"] {
            refusal(name, &format!(r#""{name}":{bad}"#));
        }
    }
    assert_snapshot!(told([
        refusal("max_tokens", r#""max_tokens":0"#),
        refusal("max_tokens", r#""max_tokens":"5""#),
    ]), @r#"
    max_tokens is 0; use a whole number from 1 to 4294967295, or leave it out
    max_tokens is "5"; use a whole number from 1 to 4294967295, or leave it out
    "#);
}

#[test]
fn of_two_limits_on_the_output_the_preferred_one_counts() {
    let both = parse(r#""max_tokens":5,"max_completion_tokens":7"#).unwrap();
    assert_eq!(both.max_output, NonZeroU32::new(7));
    let null = parse(r#""max_tokens":5,"max_completion_tokens":null"#).unwrap();
    assert_eq!(null.max_output, NonZeroU32::new(5));
}

#[test]
fn the_limit_that_does_not_count_is_checked_too() {
    refusal("max_tokens", r#""max_tokens":0,"max_completion_tokens":7"#);
}

#[test]
fn stop_is_one_string_or_up_to_four() {
    assert_eq!(parse(r#""stop":"\n""#).unwrap().stop, ["\n"]);
    assert_eq!(
        parse(r#""stop":["a","b","c","d"]"#).unwrap().stop,
        ["a", "b", "c", "d"]
    );
    assert_snapshot!(told([
        refusal("stop", r#""stop":["a","b","c","d","e"]"#),
        refusal("stop", r#""stop":[]"#),
        refusal("stop", r#""stop":"""#),
        refusal("stop.1", r#""stop":["a",""]"#),
        refusal("stop.0", r#""stop":[null]"#),
        refusal("stop", r#""stop":7"#),
    ]), @"
    stop is an array of 5; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    stop is an empty array; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    stop is an empty string; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    stop.1 is an empty string; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    stop.0 is null; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    stop is 7; use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each
    ");
}

#[test]
fn a_stop_string_is_bounded_in_bytes() {
    let stop = |bytes| parse(&format!(r#""stop":"{}""#, "é".repeat(bytes / 2)));
    assert_eq!(
        stop(Params::MAX_STOP_BYTES).unwrap().stop[0].len(),
        Params::MAX_STOP_BYTES
    );
    let refused = stop(Params::MAX_STOP_BYTES + 2).unwrap_err();
    assert!(
        refused
            .message
            .starts_with("stop is a string of 260 bytes; "),
        "{refused}"
    );
}

#[test]
fn numbers_are_taken_at_the_ends_of_their_ranges() {
    let low = parse(
        r#""temperature":0,"top_p":0,"min_p":0,"presence_penalty":-2,"frequency_penalty":-2.0,
           "repetition_penalty":0.01"#,
    );
    let sampling = low.unwrap().sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.min_p),
        (Some(0.0), Some(0.0), Some(0.0))
    );
    assert_eq!(sampling.presence_penalty, Some(-2.0));
    assert_eq!(sampling.frequency_penalty, Some(-2.0));
    assert_eq!(sampling.repetition_penalty, Some(0.01));
    let high = parse(
        r#""temperature":2.0,"top_p":1,"min_p":1,"presence_penalty":2,"frequency_penalty":2,
           "repetition_penalty":2"#,
    );
    let sampling = high.unwrap().sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.min_p),
        (Some(2.0), Some(1.0), Some(1.0))
    );
    assert_eq!(sampling.presence_penalty, Some(2.0));
    assert_eq!(sampling.frequency_penalty, Some(2.0));
    assert_eq!(sampling.repetition_penalty, Some(2.0));
}

#[test]
fn numbers_outside_their_ranges_are_refused_by_name() {
    assert_snapshot!(
        refusal("temperature", r#""temperature":3"#),
        @"temperature is 3; use a number from 0 to 2"
    );
    refusal("temperature", r#""temperature":-0.1"#);
    refusal("temperature", r#""temperature":"hot""#);
    refusal("top_p", r#""top_p":1.1"#);
    refusal("top_p", r#""top_p":-1"#);
    refusal("min_p", r#""min_p":1.5"#);
    refusal("presence_penalty", r#""presence_penalty":2.5"#);
    refusal("frequency_penalty", r#""frequency_penalty":-2.5"#);
    assert_snapshot!(
        refusal("repetition_penalty", r#""repetition_penalty":0"#),
        @"repetition_penalty is 0; use a number above 0 and up to 2"
    );
    refusal("repetition_penalty", r#""repetition_penalty":2.1"#);
    refusal("repetition_penalty", r#""repetition_penalty":1e-99"#);
}

#[test]
fn top_k_of_nothing_is_no_limit() {
    let top_k = |value: &str| {
        parse(&format!(r#""top_k":{value}"#))
            .unwrap()
            .sampling
            .top_k
    };
    assert_eq!((top_k("0"), top_k("-1")), (None, None));
    assert_eq!(top_k("20"), NonZeroU32::new(20));
    assert_snapshot!(
        refusal("top_k", r#""top_k":-2"#),
        @"top_k is -2; use a whole number from 1 to 2147483647, or -1 for no limit"
    );
    refusal("top_k", r#""top_k":2147483648"#);
    refusal("top_k", r#""top_k":1.5"#);
}

#[test]
fn a_seed_of_64_bits_is_not_rounded() {
    let seed = |value: &str| parse(&format!(r#""seed":{value}"#)).unwrap().sampling.seed;
    assert_eq!(seed("0"), Some(0));
    assert_eq!(
        seed("12345678901234567890"),
        Some(12_345_678_901_234_567_890)
    );
    assert_eq!(seed("18446744073709551615"), Some(u64::MAX));
    assert_eq!(seed("-1"), Some(u64::MAX));
    assert_eq!(seed("-9223372036854775808"), Some(1 << 63));
}

#[test]
fn a_seed_past_64_bits_is_refused() {
    assert_snapshot!(
        refusal("seed", r#""seed":18446744073709551616"#),
        @"seed is 18446744073709551616; use a whole number of 64 bits"
    );
    refusal("seed", r#""seed":-9223372036854775809"#);
    refusal("seed", r#""seed":1.5"#);
    refusal("seed", r#""seed":"1""#);
}

#[test]
fn usage_may_be_asked_for_in_a_stream_only() {
    let delivery = |rest: &str| parse(rest).unwrap().delivery;
    let of = |stream, include_usage| Delivery {
        stream,
        include_usage,
    };
    assert_eq!(delivery(r#""stream":true"#), of(true, false));
    assert_eq!(delivery(r#""stream":false"#), of(false, false));
    let options = |options: &str| format!(r#""stream":true,"stream_options":{options}"#);
    assert_eq!(
        delivery(&options(r#"{"include_usage":true}"#)),
        of(true, true)
    );
    assert_eq!(
        delivery(&options(r#"{"include_usage":false}"#)),
        of(true, false)
    );
    assert_eq!(
        delivery(&options(r#"{"include_usage":null,"x":1}"#)),
        of(true, false)
    );
    assert_eq!(delivery(&options("{}")), of(true, false));
    assert_snapshot!(
        refusal("stream_options", r#""stream_options":{"include_usage":true}"#),
        @"stream_options is an object; leave it out, or set stream to true"
    );
    refusal("stream_options", r#""stream":false,"stream_options":{}"#);
    refusal("stream_options", &options("true"));
    refusal(
        "stream_options.include_usage",
        &options(r#"{"include_usage":1}"#),
    );
    refusal("stream", r#""stream":"true""#);
}

#[test]
fn switches_and_names_have_their_types() {
    assert!(parse(r#""ignore_eos":true"#).unwrap().ignore_eos);
    assert_eq!(parse(r#""user":"u1""#).unwrap().user.as_deref(), Some("u1"));
    refusal("ignore_eos", r#""ignore_eos":1"#);
    refusal("user", r#""user":7"#);
}
