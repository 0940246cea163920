//! Text completions: prompts of every shape, and any bytes at all.

use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::bad_request::told;

fn parse(prompt: &str) -> Result<CompletionRequest, BadRequest> {
    CompletionRequest::parse(format!(r#"{{"model":"m","prompt":{prompt}}}"#).as_bytes())
}

fn prompt(prompt: &str) -> Prompt {
    parse(prompt).unwrap().prompt
}

/// The refusal of `prompt`, having checked that it names `param`.
fn refusal(param: &str, prompt: &str) -> BadRequest {
    let refused = parse(prompt).unwrap_err();
    assert_eq!(refused.param.as_deref(), Some(param), "{prompt}");
    refused
}

fn text(text: &str) -> PromptText {
    PromptText::Text(text.to_owned())
}

#[test]
fn one_prompt_comes_bare_or_as_a_list_of_one() {
    assert_eq!(prompt(r#""hi\n""#), Prompt::One(text("hi\n")));
    assert_eq!(prompt(r#"["hi"]"#), Prompt::One(text("hi")));
    let tokens = Prompt::One(PromptText::Tokens(vec![0, 4_294_967_295]));
    assert_eq!(prompt("[0, 4294967295]"), tokens);
    assert_eq!(prompt("[ [0,4294967295] ]"), tokens);
}

#[test]
fn a_list_of_prompts_is_a_demand() {
    let request = parse(r#"["a", [1, 2]]"#).unwrap();
    assert_eq!(
        request.prompt,
        Prompt::Many(vec![text("a"), PromptText::Tokens(vec![1, 2])])
    );
    assert_eq!(request.params.demands, [Demand { param: "prompt" }]);
    assert_eq!(parse(r#"["a"]"#).unwrap().params.demands, []);
}

#[test]
fn a_prompt_is_required_and_not_empty() {
    assert_snapshot!(told([
        CompletionRequest::parse(br#"{"model":"m"}"#).unwrap_err(),
        refusal("prompt", "null"),
        refusal("prompt", r#""""#),
        refusal("prompt", "[]"),
        refusal("prompt.0", "[[]]"),
        refusal("prompt.1", r#"["a",""]"#),
    ]), @"
    prompt is missing; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt is missing; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt is an empty string; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt is an empty array; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt.0 is an empty array; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt.1 is an empty string; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    ");
}

#[test]
fn a_prompt_of_another_type_is_refused() {
    refusal("prompt", "{}");
    refusal("prompt.0", "[null]");
    refusal("prompt.0", "[true]");
    refusal("prompt.1", r#"["a",1]"#);
    assert_snapshot!(told([refusal("prompt", "[1,-1]"), refusal("prompt", "7")]), @"
    prompt is an array with something that is no token id; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    prompt is 7; use a string, an array of token ids, or an array of 1 to 2048 of these, none of them empty
    ");
    refusal("prompt", "[1.5]");
    refusal("prompt", r#"[1,"a"]"#);
    refusal("prompt", "[4294967296]");
    refusal("prompt.0", "[[[1]]]");
}

#[test]
fn the_number_of_prompts_is_bounded() {
    let prompts = |count| serde_json::to_string(&vec!["a"; count]).unwrap();
    assert!(parse(&prompts(Prompt::MAX_PROMPTS)).is_ok());
    let refused = refusal("prompt", &prompts(Prompt::MAX_PROMPTS + 1));
    assert!(
        refused.message.starts_with("prompt is an array of 2049; "),
        "{refused}"
    );
}

#[test]
fn the_older_name_of_the_limit_counts_first() {
    let body = br#"{"model":"m","prompt":"a","max_tokens":5,"max_completion_tokens":7}"#;
    let request = CompletionRequest::parse(body).unwrap();
    assert_eq!(request.params.max_output.map(|max| max.get()), Some(5));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body: Vec<u8>) {
        let _ = CompletionRequest::parse(&body);
    }

    #[test]
    fn prompts_that_were_written_are_read_back(
        written in ".+",
        tokens in prop::collection::vec(any::<u32>(), 1..9),
    ) {
        let body = json!({ "model": "m", "prompt": [written, tokens] }).to_string();
        let request = CompletionRequest::parse(body.as_bytes()).unwrap();
        let expected = vec![text(&written), PromptText::Tokens(tokens)];
        prop_assert_eq!(request.prompt, Prompt::Many(expected));
    }
}
