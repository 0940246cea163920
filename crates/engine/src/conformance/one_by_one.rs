//! What faults, model files and mistakes do: each on the one backend that can show it.

use tollgate_policy::engine::Config;
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::{EngineEnding, Failure};
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

use crate::conformance::rig::{self, CONFIG, Event};
use crate::conformance::{LENGTH, PROMPTS, STOP, jobs, run_all};
use crate::fake::Faults;
use crate::llama::LlamaModel;
use crate::{
    Backend, ChatMessage, Engine, Observer, Open, OpenError, Served, Spec, StartError,
    TemplateError,
};

/// Starts three jobs, and runs the engine until it is dead.
fn death(faults: Faults) -> Vec<Event> {
    let lab = rig::faulty(faults);
    let rig = lab.start(Config {
        sequences: 2,
        ..CONFIG
    });
    rig.submit_all((0..3).map(|id| rig.job(id, PROMPTS[0], 100)).collect());
    let mut events = vec![];
    while !matches!(events.last(), Some(Event::Died(_))) {
        events.push(rig.next());
    }
    assert!(rig.engine().submit(rig.job(9, PROMPTS[0], 1)).is_err());
    rig.assert_empty();
    assert_eq!(
        rig.events.try_iter().count(),
        0,
        "nothing is said after death"
    );
    events
}

fn assert_death(events: &[Event], said: &str) {
    let failed = EngineEnding::Failed(Failure::Engine);
    let mut ends = vec![];
    for pair in events.windows(2) {
        if let [Event::Observed(id, ending, _), Event::End(told, ..)] = pair {
            assert_eq!((id, *ending), (told, failed));
            ends.push(id.get());
        }
    }
    assert_eq!(ends, [0, 1, 2]);
    let Some(Event::Died(why)) = events.last() else {
        panic!("{events:?}")
    };
    assert!(why.contains(said), "{why}");
}

#[test]
fn a_panic_ends_every_request_and_then_says_why() {
    let faults = Faults {
        panic_step: Some(12),
        ..Default::default()
    };
    assert_death(&death(faults), "a panic was asked for here");
}

#[test]
fn a_backend_that_cannot_go_on_ends_every_request_and_then_says_why() {
    let faults = Faults {
        fatal_step: Some(12),
        ..Default::default()
    };
    assert_death(&death(faults), "a fault was asked for here");
}

#[test]
fn one_of_four_fails_at_any_token_and_the_others_do_not_notice() {
    let clean = run_all(&rig::fake().unwrap(), CONFIG, true);
    for at in [1, 10, 24] {
        let output = vec![(RequestId::new(2), at)];
        let faults = Faults {
            output,
            ..Default::default()
        };
        let lab = rig::faulty(faults);
        let rig = lab.start(CONFIG);
        let answers = rig.run(jobs(&rig, 24).into_iter().take(4).collect());
        rig.assert_empty();
        for (id, answer) in answers {
            let (expected, _) = &clean[&id];
            if id == 2 {
                assert_eq!(answer.ending, EngineEnding::Failed(Failure::Sequence));
                assert_eq!(answer.usage.output, Tokens::new(at - 1));
                assert!(expected.text.starts_with(&answer.text));
            } else {
                assert_eq!((answer.ending, &answer.text), (LENGTH, &expected.text));
            }
        }
    }
}

#[test]
fn a_sequence_that_cannot_begin_fails_alone() {
    let faults = Faults {
        begin: vec![RequestId::new(1)],
        ..Default::default()
    };
    let lab = rig::faulty(faults);
    let rig = lab.start(CONFIG);
    let answers = rig.run(jobs(&rig, 4).into_iter().take(2).collect());
    assert_eq!(answers[&0].ending, LENGTH);
    assert_eq!(answers[&1].ending, EngineEnding::Failed(Failure::Sequence));
    rig.assert_empty();
}

#[test]
fn characters_over_several_tokens_come_whole_and_the_cut_off_one_is_replaced() {
    let lab = rig::fake().unwrap();
    let rig = lab.start(CONFIG);
    let whole = rig.run(vec![rig.job(1, PROMPTS[2], 400)])[&1].clone();
    assert!(whole.text.contains('你') && whole.text.contains('🙂'));
    // A text cut inside a character ends with one replacement, and has no other.
    let bytes = whole.text.find('🙂').unwrap();
    let cut = rig.run(vec![rig.job(
        2,
        PROMPTS[2],
        u64::try_from(bytes).unwrap() + 2,
    )]);
    let mut expected = whole.text[..bytes].to_owned();
    expected.push(char::REPLACEMENT_CHARACTER);
    assert_eq!(cut[&2].text, expected);
    rig.assert_empty();
}

#[test]
fn the_end_of_a_turn_is_counted_and_not_shown() {
    let lab = rig::fake().unwrap();
    let rig = lab.start(CONFIG);
    let mut job = rig.job(1, PROMPTS[0], 2_000);
    job.stop.ignore_eos = false;
    let answer = &rig.run(vec![job])[&1];
    assert_eq!(answer.ending, STOP);
    // A token is a byte, and one more ended the turn.
    assert_eq!(
        answer.usage.output.get(),
        u64::try_from(answer.text.len()).unwrap() + 1
    );
    rig.assert_empty();
}

struct Unheard;

impl Observer for Unheard {
    fn stepped(&mut self, _: &[Served], _: tollgate_policy::engine::Gauges) {}

    fn ended(&mut self, _: RequestId, _: EngineEnding, _: Usage) {}

    fn died(&mut self, why: String) {
        panic!("an engine that never started did not die: {why}");
    }
}

struct Panics;

impl Open for Panics {
    fn open(self: Box<Self>, _: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        panic!("no backend here");
    }
}

fn start(limits: Config, open: Box<dyn Open>) -> StartError {
    let spec = Spec {
        name: "engine-under-test".into(),
        limits,
        seed: 1,
        published: vec![],
    };
    Engine::start(spec, open, Box::new(Unheard)).unwrap_err()
}

#[test]
fn a_backend_that_panics_while_it_is_built_is_an_error_of_the_start() {
    let error = start(CONFIG, Box::new(Panics));
    assert_eq!(
        error.to_string(),
        "building the backend panicked: no backend here"
    );
}

#[test]
fn a_context_that_llama_cannot_make_is_an_error_of_the_start() {
    let Some(lab) = rig::llama() else { return };
    // More sequences than llama.cpp has (LLAMA_MAX_SEQ in llama-cparams.h).
    let limits = Config {
        sequences: 500,
        ..CONFIG
    };
    let error = start(limits, lab.open(&limits));
    assert!(
        matches!(error, StartError::Open(OpenError::Context { .. })),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_model_is_an_error_that_names_it() {
    for (path, says) in [
        ("no/such.gguf", "No such file"),
        ("Cargo.toml", "is not a model"),
    ] {
        let error = LlamaModel::load(path.as_ref()).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains(says), "{error}");
    }
}

#[test]
fn the_models_own_template_renders_and_its_control_tokens_are_tokens() {
    let Some(lab) = rig::llama() else { return };
    let message = ChatMessage::new("user", "Hi 你好");
    let text = lab
        .model
        .render_chat(std::slice::from_ref(&message), &[])
        .unwrap();
    assert!(text.starts_with("<|im_start|>system\n"), "{text}");
    assert!(text.ends_with("<|im_start|>user\nHi 你好<|im_end|>\n<|im_start|>assistant\n"));
    let tokens = lab.model.tokenize(&text).unwrap();
    let start = lab.model.tokenize("<|im_start|>").unwrap();
    assert_eq!(start.len(), 1);
    assert_eq!(tokens.iter().filter(|token| **token == start[0]).count(), 3);
    assert_eq!(
        lab.model.render_chat(&[], &[]),
        Err(TemplateError::NoMessages)
    );
}

#[test]
fn a_model_knows_its_sizes() {
    let Some(lab) = rig::llama() else { return };
    // SmolLM2-135M: 30 layers, 3 KV heads of 64, keys and values in two bytes.
    assert_eq!(lab.model.kv_bytes_per_token().get(), 30 * 3 * 64 * 2 * 2);
    assert!(lab.model.vocabulary() > 40_000);
    assert!(lab.model.context() >= Tokens::new(2_048));
    let text = "internationalization ".repeat(50);
    let tokens = u64::try_from(lab.model.tokenize(&text).unwrap().len()).unwrap();
    let bytes = u64::try_from(text.len()).unwrap();
    assert!(tokens >= bytes / u64::from(lab.model.max_token_bytes()));
}
