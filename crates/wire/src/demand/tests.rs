//! What counts as asking, and what doesn't.

use insta::assert_snapshot;

use super::*;
use crate::bad_request::told;

type Of = fn(&Fields<'_, '_>) -> Result<Vec<Demand>, BadRequest>;

fn demands(of: Of, rest: &str) -> Result<Vec<&'static str>, BadRequest> {
    let body = format!("{{{rest}}}");
    let demands = of(&Fields::of_body(body.as_bytes()).unwrap())?;
    Ok(demands.into_iter().map(|demand| demand.param).collect())
}

fn chat(rest: &str) -> Vec<&'static str> {
    demands(of_chat, rest).unwrap()
}

fn completion(rest: &str) -> Vec<&'static str> {
    demands(of_completion, rest).unwrap()
}

const NONE: [&str; 0] = [];

#[test]
fn harmless_and_unknown_parameters_demand_nothing() {
    let rest = r#""store":true,"metadata":{"a":"b"},"service_tier":"auto",
        "parallel_tool_calls":true,"safety_identifier":"s","prompt_cache_key":"k","prediction":{"type":"content"},"x_unknown":1,
        "user":"u","reasoning_effort":"low""#;
    assert_eq!(chat(rest), NONE);
    assert_eq!(completion(rest), NONE);
}

#[test]
fn what_is_null_false_or_empty_demands_nothing() {
    for (param, _) in CHAT.iter().chain(SHARED).chain(COMPLETION) {
        assert_eq!(chat(&format!(r#""{param}":null"#)), NONE, "{param}");
        assert_eq!(completion(&format!(r#""{param}":null"#)), NONE, "{param}");
    }
    assert_eq!(
        chat(r#""tools":[ ],"logit_bias":{ },"grammar":"","n":1"#),
        NONE
    );
    assert_eq!(
        completion(r#""echo":false,"suffix":"","best_of":1,"use_beam_search":false"#),
        NONE
    );
}

#[test]
fn features_of_either_kind_are_demands() {
    for rest in [
        r#""logit_bias":{"50256":-100}"#,
        r#""grammar":"root ::= \"a\"""#,
        r#""json_schema":{"type":"object"}"#,
        r#""guided_regex":"a+""#,
        r#""response_format":{"type":"json_object"}"#,
        r#""response_format":"json""#,
        r#""n":2"#,
        r#""min_tokens":1"#,
        r#""stop_token_ids":[2]"#,
    ] {
        let param = rest.split('"').nth(1).unwrap();
        assert_eq!(chat(rest), [param]);
        assert_eq!(completion(rest), [param]);
    }
}

#[test]
fn plain_text_is_no_format_to_demand() {
    assert_eq!(
        chat(r#""response_format":{"type":"text"},"modalities":["text"]"#),
        NONE
    );
    assert_eq!(chat(r#""modalities":["text","audio"]"#), ["modalities"]);
    assert_eq!(chat(r#""modalities":"audio""#), ["modalities"]);
}

#[test]
fn a_choice_of_tools_is_a_demand_where_it_makes_the_model_call_one() {
    assert_eq!(chat(r#""tool_choice":"none","function_call":"auto""#), NONE);
    assert_eq!(chat(r#""tool_choice":"auto""#), NONE);
    assert_eq!(chat(r#""tool_choice":"required""#), ["tool_choice"]);
    assert_eq!(chat(r#""function_call":{"name":"f"}"#), ["function_call"]);
    assert_eq!(
        chat(r#""tools":[{"type":"function"}],"tool_choice":"auto""#),
        ["tools"]
    );
}

#[test]
fn an_empty_object_can_ask_by_being_there() {
    assert_eq!(chat(r#""web_search_options":{}"#), ["web_search_options"]);
}

#[test]
fn each_kind_has_features_that_the_other_has_not() {
    let text = r#""suffix":"end","echo":true,"best_of":2"#;
    assert_eq!(completion(text), ["best_of", "echo", "suffix"]);
    assert_eq!(chat(text), NONE);
    let chats =
        r#""tools":[{}],"functions":[{}],"audio":{"voice":"a"},"chat_template_kwargs":{"a":1}"#;
    assert_eq!(
        chat(chats),
        ["audio", "chat_template_kwargs", "functions", "tools"]
    );
    assert_eq!(completion(chats), NONE);
}

#[test]
fn the_number_of_choices_is_bounded() {
    for bad in ["0", "129", "1.5", "\"2\"", "-1"] {
        let refused = demands(of_chat, &format!(r#""n":{bad}"#)).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("n"));
    }
    assert_eq!(chat(r#""n":128"#), ["n"]);
    assert_snapshot!(
        demands(of_completion, r#""n":129"#).unwrap_err(),
        @"n is 129; use a whole number from 1 to 128"
    );
}

#[test]
fn log_probabilities_need_no_alternatives() {
    assert_eq!(chat(r#""logprobs":true"#), ["logprobs"]);
    assert_eq!(chat(r#""logprobs":false"#), NONE);
    assert_eq!(chat(r#""logprobs":true,"top_logprobs":0"#), ["logprobs"]);
    assert_eq!(
        chat(r#""logprobs":true,"top_logprobs":20"#),
        ["logprobs", "top_logprobs"]
    );
}

#[test]
fn alternatives_need_log_probabilities_and_are_bounded() {
    let refusal = |rest| demands(of_chat, rest).unwrap_err();
    assert_snapshot!(told([
        refusal(r#""top_logprobs":3"#),
        refusal(r#""logprobs":false,"top_logprobs":3"#),
        refusal(r#""logprobs":true,"top_logprobs":21"#),
        refusal(r#""top_logprobs":50"#),
        refusal(r#""logprobs":1"#),
    ]), @"
    top_logprobs is 3; set logprobs to true, or leave it out
    top_logprobs is 3; set logprobs to true, or leave it out
    top_logprobs is 21; use a whole number from 0 to 20
    top_logprobs is 50; use a whole number from 0 to 20
    logprobs is 1; use true or false
    ");
}

#[test]
fn log_probabilities_of_a_text_completion_are_a_count() {
    assert_eq!(completion(r#""logprobs":0"#), ["logprobs"]);
    assert_eq!(completion(r#""logprobs":5"#), ["logprobs"]);
    assert_snapshot!(told([
        demands(of_completion, r#""logprobs":6"#).unwrap_err(),
        demands(of_completion, r#""logprobs":true"#).unwrap_err(),
    ]), @"
    logprobs is 6; use a whole number from 0 to 5
    logprobs is true; use a whole number from 0 to 5
    ");
}

#[test]
fn a_demand_is_refused_by_name() {
    let refusal = Demand { param: "tools" }.refusal();
    assert_snapshot!(refusal, @"tools asks for what this model can't do; leave it out");
    assert_eq!(refusal.param.as_deref(), Some("tools"));
    assert_eq!(refusal.code, Some("unsupported_parameter"));
}
