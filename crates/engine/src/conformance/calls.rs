//! Calls of tools that are demanded, and vectors, on the real model.

use std::sync::Arc;

use tollgate_policy::engine::Config;
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::units::Tokens;

use crate::conformance::rig::{self, CONFIG};
use crate::conformance::{PROMPTS, STOP};
use crate::llama::{LlamaModel, Pooling};
use crate::{CallCount, ChatMessage, Model as _, ToolOffer};

fn offer(name: &str, parameters: &str) -> ToolOffer {
    let json = format!(
        r#"{{"type":"function","function":{{"name":"{name}","parameters":{parameters}}}}}"#
    );
    ToolOffer {
        name: name.into(),
        parameters: Some(parameters.into()),
        json,
    }
}

#[test]
fn a_demanded_call_is_one_of_the_tools_with_arguments_of_its_schema() {
    let Some(lab) = rig::llama() else { return };
    let rig = lab.start(CONFIG);
    let offers = [
        offer(
            "weather",
            r##"{"type":"object","properties":{"city":{"$ref":"#/$defs/city"},
                "unit":{"enum":["C","F"]}},"required":["city","unit"],
                "$defs":{"city":{"type":"string"}}}"##,
        ),
        offer(
            "clock",
            r#"{"type":"object","properties":{},"required":[]}"#,
        ),
    ];
    let asked = ChatMessage::new("user", "What is the weather in Oslo, in celsius?");
    let prompt = lab.model.render_chat(&[asked], &offers).unwrap();
    assert!(prompt.contains("\"weather\""), "the model is told of it");
    for (id, count, of) in [
        (1, CallCount::One, &offers[..1]),
        (2, CallCount::Some, &offers[..]),
    ] {
        let mut job = rig.job(id, &prompt, 200);
        job.stop.ignore_eos = false;
        job.sampling.grammar = Some(lab.model.call_grammar(of, count).unwrap());
        let answer = &rig.run(vec![job])[&id];
        assert_eq!(answer.ending, STOP, "{}", answer.text);
        let calls = answer.text.split("<tool_call>\n").skip(1);
        let calls: Vec<serde_json::Value> = calls
            .map(|call| call.trim_end().strip_suffix("</tool_call>").unwrap())
            .map(|call| serde_json::from_str(call).unwrap())
            .collect();
        assert!(!calls.is_empty() && (count == CallCount::Some || calls.len() == 1));
        for call in calls {
            match call["name"].as_str() {
                Some("weather") => {
                    let arguments = &call["arguments"];
                    assert!(arguments["city"].is_string(), "{arguments}");
                    assert!(["C", "F"].contains(&arguments["unit"].as_str().unwrap()));
                }
                name => assert_eq!(name, Some("clock")),
            }
        }
    }
    rig.assert_empty();
}

/// Each of these, followed to the letter, has more ways to go on than a computer has memory for.
#[test]
fn a_hostile_schema_of_a_tool_costs_no_more_than_any_json() {
    let Some(lab) = rig::llama() else { return };
    let doubled = (0..11).fold(r#"{"type":"string"}"#.to_owned(), |inner, _| {
        format!(r#"{{"anyOf":[{inner},{inner}]}}"#)
    });
    let chain: Vec<_> = (0..30)
        .map(|n| {
            let next = format!(r##"{{"$ref":"#/$defs/{}"}}"##, n + 1);
            format!(r##""{n}":{{"type":"array","items":{{"anyOf":[{next},{next}]}}}}"##)
        })
        .collect();
    let hostile = [
        format!(r#"{{"type":"object","properties":{{"a":{doubled}}},"required":["a"]}}"#),
        format!(
            r##"{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/0"}}}},"required":["a"],
                "$defs":{{{},"30":{{"type":"null"}}}}}}"##,
            chain.join(",")
        ),
        r##"{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}}}"##.into(),
        r#"{"type":"object","properties":{"a":{"type":"string","pattern":"^(((a*)*)*)*$",
            "minLength":100000}},"required":["a"]}"#
            .into(),
        r#"{"type":"array","items":{},"minItems":1000000}"#.into(),
    ];
    let rig = lab.start(CONFIG);
    let jobs = (1..).zip(&hostile).map(|(id, schema)| {
        let mut job = rig.job(id, PROMPTS[0], 24);
        let grammar = lab
            .model
            .call_grammar(&[offer("f", schema)], CallCount::One);
        job.sampling.grammar = Some(grammar.unwrap());
        job
    });
    // They come to an end, each by itself or at its most tokens; the test run has a time limit.
    for answer in rig.run(jobs.collect()).values() {
        assert!(matches!(answer.ending, EngineEnding::Finished(_)));
        assert!(answer.text.starts_with("<tool_call>\n{"), "{}", answer.text);
    }
    rig.assert_empty();
}

#[test]
fn a_text_has_one_vector_alone_and_among_others_and_in_any_chunks() {
    let Some(path) = rig::model_file() else {
        return;
    };
    for pooling in [Pooling::Mean, Pooling::Last] {
        let model = LlamaModel::load_for(&path, Some(pooling)).unwrap();
        let length = usize::try_from(model.vector_length().unwrap()).unwrap();
        let lab = rig::pooled(Arc::clone(&model));
        let limits = Config {
            context: Tokens::new(256),
            ..CONFIG
        };
        let small = Config {
            step_tokens: Tokens::new(8),
            sequences: 3,
            ..limits
        };
        let alone = lab.start(limits);
        let mut expected = Vec::new();
        for (id, prompt) in (0..).zip(PROMPTS) {
            let answer = &alone.run(vec![alone.job(id, prompt, 1)])[&id];
            assert_eq!((answer.ending, answer.usage.output), (STOP, Tokens::ZERO));
            expected.push(answer.choices[&0].vector.clone());
        }
        alone.assert_empty();
        for limits in [limits, small] {
            let together = lab.start(limits);
            let mut job = together.job(1, PROMPTS[0], 1);
            let prompts = PROMPTS.iter().rev().chain(&PROMPTS);
            job.prompts = prompts
                .map(|text| lab.model.tokenize(text).unwrap())
                .collect();
            let answer = &together.run(vec![job])[&1];
            for (place, said) in &answer.choices {
                let place = usize::try_from(*place).unwrap();
                let place = if place < 8 { 7 - place } else { place - 8 };
                let wanted = &expected[place];
                assert_eq!((said.vector.len(), wanted.len()), (length, length));
                // Not bit by bit: kernels for few and for many tokens round differently.
                let likeness = |other: &[f32]| -> f32 {
                    said.vector.iter().zip(other).map(|(a, b)| a * b).sum()
                };
                let same = likeness(wanted);
                assert!(same > 0.995, "{pooling:?}, text {place}: {same}");
                let others = expected.iter().filter(|other| *other != wanted);
                assert!(
                    others
                        .map(|other| likeness(other))
                        .all(|other| other < same)
                );
            }
            assert_eq!(answer.choices.len(), 16);
            together.assert_empty();
        }
    }
}

#[test]
fn a_text_with_a_token_outside_the_vocabulary_fails_alone() {
    let Some(path) = rig::model_file() else {
        return;
    };
    let model = LlamaModel::load_for(&path, Some(Pooling::Mean)).unwrap();
    let lab = rig::pooled(model);
    let rig = lab.start(CONFIG);
    let mut broken = rig.job(1, PROMPTS[0], 1);
    broken.prompts[0].push(crate::Token::new(9_999_999));
    let answers = rig.run(vec![broken, rig.job(2, PROMPTS[1], 1)]);
    assert!(matches!(answers[&1].ending, EngineEnding::Failed(_)));
    assert_eq!(answers[&2].ending, STOP);
    assert!(!answers[&2].choices[&0].vector.is_empty());
    rig.assert_empty();
}
