//! What requests share must not be heard: prefix cache on, choices of one prompt, and all of that
//! under pressure say what each request says alone.

use std::collections::BTreeMap;

use tollgate_policy::engine::{CacheConfig, Config};
use tollgate_policy::ids::TenantId;
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason};
use tollgate_policy::units::{KvBlocks, Tokens};

use crate::conformance::rig::{self, Answer, CACHED, CONFIG, Lab, Rig};
use crate::conformance::{LENGTH, PROMPTS, assert_same};
use crate::fake::Faults;
use crate::handle::lock;
use crate::seed::mix;
use crate::{Job, Sampling, Token};

/// Longer than two blocks on either backend.
const SYSTEM: &str = "You keep the toll gate on a long road. Every cart that comes by must stop, \
                      pay what its load is worth, and wait its turn. Be brief and be fair. ";

fn prompt(text: &str) -> String {
    format!("{SYSTEM}{text}")
}

fn jobs(rig: &Rig) -> Vec<Job> {
    let prompts = PROMPTS.iter().chain(&PROMPTS[..4]).map(|text| prompt(text));
    (0..)
        .zip(prompts)
        .map(|(id, prompt)| rig.job(id, &prompt, 10))
        .collect()
}

type Answers = BTreeMap<u64, (Answer, Vec<Token>)>;

fn with_tokens(rig: &Rig, answers: BTreeMap<u64, Answer>) -> Answers {
    let mut generated = rig.generated();
    let mut tokens = |id| generated.remove(&id).unwrap_or_default();
    let one = |(id, answer)| (id, (answer, tokens(id)));
    answers.into_iter().map(one).collect()
}

/// The same texts; what was cached of the prompts may differ.
fn assert_same_texts(lab: &Lab, expected: &Answers, mut actual: Answers) {
    for (id, (answer, _)) in &mut actual {
        assert_eq!(answer.usage.prompt, expected[id].0.usage.prompt);
        answer.usage.cached = expected[id].0.usage.cached;
    }
    let text = |id: u64| prompt(PROMPTS[usize::try_from(id % 8).unwrap()]);
    assert_same(lab, expected, &actual, text);
}

pub(super) fn with_a_prefix_cache_everyone_says_the_same(lab: &Lab) {
    let off = lab.start(CONFIG);
    let answers = off.run(jobs(&off));
    let expected = with_tokens(&off, answers);
    off.assert_empty();
    let tiny = Config {
        blocks: 24,
        // Fewer than there are sequence ids.
        step_tokens: Tokens::new(16),
        ..CACHED
    };
    // A burst that shares what it computes, then one that finds it all; and one without much room.
    for (limits, rounds) in [(CACHED, 2), (tiny, 1)] {
        let rig = lab.start(limits);
        for round in 0..rounds {
            let answers = rig.run(jobs(&rig));
            let cached = answers
                .values()
                .filter(|one| one.usage.cached > Tokens::ZERO);
            assert!(cached.count() > 0, "round {round}");
            let actual = with_tokens(&rig, answers);
            assert_same_texts(lab, &expected, actual);
            lock(&rig.log).generated.clear();
        }
        assert!(lock(&rig.log).copies > 0);
        rig.assert_empty();
    }
}

pub(super) fn choices_of_one_prompt_share_it_and_are_told_apart(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let text = prompt(PROMPTS[1]);
    let alone = rig.run(vec![rig.job(1, &text, 12)])[&1].clone();
    let mut job = rig.job(2, &text, 12);
    job.choices = 3;
    job.echo = true;
    let three = rig.run(vec![job])[&2].clone();
    assert_eq!(three.ending, LENGTH);
    assert_eq!(three.choices.len(), 3);
    for said in three.choices.values() {
        assert_eq!(said.finish, Some(FinishReason::Length));
        assert!(said.text.starts_with(SYSTEM));
    }
    // One prompt, three answers; all but its last token computed once.
    assert_eq!(three.usage.prompt, alone.usage.prompt);
    assert_eq!(three.usage.output, Tokens::new(36));
    assert!(lock(&rig.log).copies >= 2);
    let mut hot = rig.job(3, &text, 12);
    hot.choices = 2;
    hot.sampling = Sampling {
        seed: Some(5),
        ..Sampling::default()
    };
    let hot = &rig.run(vec![hot])[&3].choices;
    assert_ne!(
        hot[&0].text, hot[&1].text,
        "each choice has a seed of its own"
    );
    rig.assert_empty();
}

pub(super) fn prompts_of_one_job_are_answered_each(lab: &Lab) {
    let rig = lab.start(CACHED);
    let alone = rig.run(vec![rig.job(1, PROMPTS[0], 8), rig.job(2, PROMPTS[4], 8)]);
    let mut both = rig.job(3, PROMPTS[0], 8);
    both.prompts.push(lab.model.tokenize(PROMPTS[4]).unwrap());
    let both = &rig.run(vec![both])[&3];
    assert_eq!(both.choices.len(), 2);
    assert_eq!(
        both.usage.prompt,
        alone[&1].usage.prompt + alone[&2].usage.prompt
    );
    let mut nothing = rig.job(4, PROMPTS[0], 8);
    nothing.prompts.clear();
    let nothing = &rig.run(vec![nothing])[&4];
    assert_eq!(nothing.ending, EngineEnding::Failed(Failure::Sequence));
    rig.assert_empty();
}

pub(super) fn a_tenant_finds_nothing_of_another(lab: &Lab) {
    let rig = lab.start(CACHED);
    let mut cached = vec![];
    for (id, tenant) in [(1, 0), (2, 1), (3, 0)] {
        let mut job = rig.job(id, &prompt(PROMPTS[0]), 2);
        job.tenant = TenantId::new(tenant);
        cached.push(rig.run(vec![job])[&id].usage.cached.get());
    }
    assert_eq!(&cached[..2], [0, 0]);
    assert!(cached[2] > 0, "its own prompt it finds");
    rig.assert_empty();
}

pub(super) fn a_stop_token_ends_the_text_and_is_not_shown(lab: &Lab) {
    let rig = lab.start(CONFIG);
    rig.run(vec![rig.job(1, PROMPTS[2], 20)]);
    let tokens = rig.generated().remove(&1).unwrap();
    let stop = tokens[4];
    let first = tokens.iter().position(|token| *token == stop).unwrap();
    let mut job = rig.job(2, PROMPTS[2], 20);
    job.stop.tokens = vec![stop];
    let cut = &rig.run(vec![job])[&2];
    assert_eq!(cut.ending, EngineEnding::Finished(FinishReason::Stop));
    assert_eq!(cut.usage.output.get(), u64::try_from(first).unwrap() + 1);
    rig.assert_empty();
}

pub(super) fn logprobs_are_told_for_each_token_shown(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let mut job = rig.job(1, PROMPTS[0], 10);
    job.sampling.logprobs = Some(2);
    let answer = &rig.run(vec![job])[&1];
    let said = &answer.choices[&0];
    let bytes: Vec<u8> = said
        .logprobs
        .iter()
        .flat_map(|one| one.chosen.bytes.clone())
        .collect();
    assert!(String::from_utf8_lossy(&bytes).starts_with(said.text.trim_end_matches('\u{fffd}')));
    for one in &said.logprobs {
        assert!(one.chosen.logprob <= 0.0);
        // What is greedy is the likeliest.
        assert_eq!(one.top[0], one.chosen);
        assert_eq!(one.top.len(), if lab.is_llama() { 2 } else { 1 });
    }
    rig.assert_empty();
}

/// Many small mixes: lengths, prompts, tenants, seeds of arrival, pools and chunk sizes.
#[test]
fn two_hundred_random_mixes_on_the_fake_say_what_each_says_alone() {
    let lab = rig::fake().unwrap();
    for mix_seed in 0..200_u64 {
        let mut state = mix(mix_seed);
        let mut below = |n: u64| {
            state = mix(state);
            state % n
        };
        let asked: Vec<_> = (0..2 + below(8))
            .map(|_| (below(8), 1 + below(40), below(3) == 0, below(2)))
            .collect();
        let blocks = u32::try_from(16 + below(40)).unwrap();
        let limits = Config {
            sequences: u32::try_from(1 + below(6)).unwrap(),
            blocks,
            step_tokens: Tokens::new(8 + below(120)),
            chunk: Tokens::new(4 + below(60)),
            context: Tokens::new(256),
            cache: CacheConfig {
                prefixes: u32::try_from(below(8)).unwrap(),
                tenant_blocks: KvBlocks::new(1 + below(30)),
            },
            ..CONFIG
        };
        let (alone, rig) = (lab.start(CONFIG), lab.start(limits));
        let job = |rig: &Rig, id, (text, output, system, tenant): (u64, u64, bool, u64)| {
            let text = PROMPTS[usize::try_from(text).unwrap()];
            let text = if system { &SYSTEM[..100] } else { text };
            let mut job = rig.job(id, text, output);
            job.tenant = TenantId::new(u32::try_from(tenant).unwrap());
            job
        };
        let answers = rig.run(
            (0..)
                .zip(&asked)
                .map(|(id, one)| job(&rig, id, *one))
                .collect(),
        );
        for (id, one) in (0..).zip(&asked) {
            let expected = &alone.run(vec![job(&alone, id, *one)])[&id];
            assert_eq!(
                answers[&id].text, expected.text,
                "mix {mix_seed}, request {id}"
            );
        }
        alone.assert_empty();
        rig.assert_empty();
    }
}

#[test]
fn a_choice_that_fails_fails_its_request_and_no_other() {
    let faults = Faults {
        output: vec![(tollgate_policy::ids::RequestId::new(1), 3)],
        ..Faults::default()
    };
    let lab = rig::faulty(faults);
    let rig = lab.start(CONFIG);
    let mut job = rig.job(1, PROMPTS[0], 10);
    job.choices = 3;
    let answers = rig.run(vec![job, rig.job(2, PROMPTS[0], 10)]);
    assert_eq!(answers[&1].ending, EngineEnding::Failed(Failure::Sequence));
    assert_eq!(answers[&2].ending, LENGTH);
    rig.assert_empty();
}
