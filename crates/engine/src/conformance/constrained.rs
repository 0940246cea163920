//! Grammars, schemas and biases on the real model.

use tollgate_policy::outcome::EngineEnding;

use crate::conformance::rig::{self, CONFIG};
use crate::conformance::{LENGTH, PROMPTS, STOP};
use crate::{GrammarError, Sampling};

const DIGITS: &str = r#"root ::= [0-9] [0-9] "-" [a-c]"#;

#[test]
fn a_text_is_what_its_grammar_says_beside_texts_without() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    lab.model.check_grammar(DIGITS).unwrap();
    let mut held = rig.job(1, PROMPTS[0], 20);
    held.sampling.grammar = Some(DIGITS.into());
    let mut hot = rig.job(2, PROMPTS[1], 20);
    hot.sampling = Sampling {
        grammar: Some(DIGITS.into()),
        seed: Some(3),
        ..Sampling::default()
    };
    let free = rig.job(3, PROMPTS[2], 6);
    let answers = rig.run(vec![held, hot, free]);
    for id in [1, 2] {
        let text = answers[&id].text.as_bytes();
        assert_eq!(answers[&id].ending, STOP);
        assert!(
            text.len() == 4 && text[0].is_ascii_digit() && text[2] == b'-',
            "{text:?}"
        );
    }
    assert_eq!(answers[&3].ending, LENGTH);
    rig.assert_empty();
}

#[test]
fn a_schema_makes_json_that_it_describes() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    let schema = r#"{"type":"object","properties":{"open":{"type":"boolean"},
        "toll":{"enum":["low","high"]}},"required":["open","toll"],"additionalProperties":false}"#;
    let mut job = rig.job(1, "Describe the gate as JSON: ", 60);
    job.sampling.grammar = Some(lab.model.json_grammar(Some(schema)).unwrap());
    let answer = &rig.run(vec![job])[&1];
    assert_eq!(answer.ending, STOP, "{}", answer.text);
    let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert!(
        value["open"].is_boolean() && value["toll"].is_string(),
        "{value}"
    );
    rig.assert_empty();
}

#[test]
fn what_cannot_be_followed_is_refused_before_it_runs() {
    let Some(lab) = rig::llama() else { return };
    for broken in [
        "root ::= [a",
        "root ::= missing",
        "root ::= root \"a\"",
        "other ::= \"a\"",
        "root ::= (\"a\"",
        "root ::= \"a\"{100000}",
    ] {
        let refused = lab.model.check_grammar(broken);
        assert_eq!(refused, Err(GrammarError::NotAGrammar), "{broken}");
    }
    for broken in [r##"{"$ref":"#/nowhere"}"##, r#"{"type":"nonsense"}"#] {
        let refused = lab.model.json_grammar(Some(broken));
        assert_eq!(refused, Err(GrammarError::NotASchema), "{broken}");
    }
    let long = format!(r#"{{"description":"{}"}}"#, "x".repeat(1_000_000));
    let refused = lab.model.json_grammar(Some(&long));
    assert!(matches!(refused, Err(GrammarError::TooLong(_))));
    assert!(lab.model.json_grammar(None).is_ok());
}

#[test]
fn a_broken_grammar_that_got_in_fails_its_request_alone() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    let mut broken = rig.job(1, PROMPTS[0], 6);
    broken.sampling.grammar = Some("root ::= missing".into());
    let answers = rig.run(vec![broken, rig.job(2, PROMPTS[1], 6)]);
    assert!(matches!(answers[&1].ending, EngineEnding::Failed(_)));
    assert_eq!(answers[&2].ending, LENGTH);
    rig.assert_empty();
}

#[test]
fn a_bias_makes_or_bars_a_token() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    rig.run(vec![rig.job(1, PROMPTS[0], 1)]);
    let likeliest = rig.generated()[&1][0];
    let mut barred = rig.job(2, PROMPTS[0], 4);
    barred.sampling.logit_bias = vec![(likeliest, -100.0)];
    let other = lab.model.tokenize("gate").unwrap()[0];
    let mut made = rig.job(3, PROMPTS[0], 4);
    made.sampling.logit_bias = vec![(other, 100.0)];
    made.sampling.typical_p = 0.9;
    rig.run(vec![barred, made]);
    let generated = rig.generated();
    assert!(!generated[&2].contains(&likeliest));
    assert_eq!(generated[&3], vec![other; 4]);
    rig.assert_empty();
}

#[test]
fn characters_that_never_become_whole_are_replaced_and_told_as_they_are() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    // A letter so rare that the vocabulary has its bytes only.
    let letter = lab.model.tokenize("\u{10380}").unwrap();
    assert!(letter.len() > 1, "{letter:?}");
    for (id, part) in (1..).zip(letter) {
        let mut job = rig.job(id, PROMPTS[0], 6);
        job.sampling.logit_bias = vec![(part, 100.0)];
        job.sampling.logprobs = Some(0);
        let answer = &rig.run(vec![job])[&id];
        assert_eq!(answer.ending, LENGTH);
        let replaced = answer
            .text
            .chars()
            .all(|c| c == char::REPLACEMENT_CHARACTER);
        assert!(replaced && !answer.text.is_empty(), "{:?}", answer.text);
        let told = &answer.choices[&0].logprobs;
        assert_eq!(told.len(), 6);
        for one in told {
            assert_eq!(one.chosen.bytes, told[0].chosen.bytes);
            assert!(str::from_utf8(&one.chosen.bytes).is_err());
        }
    }
    rig.assert_empty();
}
