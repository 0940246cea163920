//! What every backend must do, run on each. Waits on channels with deadlines, never on time.

mod calls;
mod constrained;
mod mixes;
mod one_by_one;
mod parked;
mod rig;
mod sharing;

use std::collections::BTreeMap;

use tollgate_policy::engine::Config;
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason};
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

use crate::conformance::rig::{Answer, CONFIG, Event, Lab, Rig};
use crate::conformance::sharing::{
    a_stop_token_ends_the_text_and_is_not_shown, a_tenant_finds_nothing_of_another,
    choices_of_one_prompt_share_it_and_are_told_apart, logprobs_are_told_for_each_token_shown,
    prompts_of_one_job_are_answered_each, with_a_prefix_cache_everyone_says_the_same,
};
use crate::handle::lock;
use crate::seed::mix;
use crate::{Job, Sampling, Token};

const LENGTH: EngineEnding = EngineEnding::Finished(FinishReason::Length);
const STOP: EngineEnding = EngineEnding::Finished(FinishReason::Stop);

const PROMPTS: [&str; 8] = [
    "The capital of France is",
    "Once upon a time there was a toll gate on a long road, and",
    "1, 2, 3, 4,",
    "A B C D E",
    "def add(a, b):\n",
    "Roses are red, violets are",
    "你好",
    "The three primary colours are red,",
];

/// Defines each test once for the fake and once for llama.cpp.
macro_rules! on_both {
    ($($name:ident,)*) => {
        mod on_fake {
            $(#[test] fn $name() { super::rig::fake().iter().for_each(super::$name); })*
        }
        mod on_llama {
            $(#[test] fn $name() { super::rig::llama().iter().for_each(super::$name); })*
        }
    };
}

on_both! {
    every_job_is_told_one_end_and_leaves_nothing,
    eight_together_say_what_each_says_alone,
    a_prompt_in_chunks_says_what_it_says_whole,
    a_tiny_pool_says_the_same_and_says_it_once,
    the_most_output_is_the_most,
    the_context_ends_a_text_that_never_would,
    a_prompt_that_does_not_fit_fails_alone,
    a_stop_string_over_tokens_cuts_the_text_where_it_begins,
    of_one_seed_comes_one_text,
    a_cancel_during_prefill_takes_effect_before_the_next_step,
    a_cancel_during_decode_takes_effect_before_the_next_step,
    a_cancel_before_the_start_costs_nothing,
    a_token_outside_the_vocabulary_fails_its_own_request_alone,
    a_storm_of_cancels_leaves_nothing,
    stopping_fails_what_runs_and_gives_back_what_comes_later,
    an_engine_started_again_answers,
    the_hottest_text_is_still_text,
    with_a_prefix_cache_everyone_says_the_same,
    choices_of_one_prompt_share_it_and_are_told_apart,
    prompts_of_one_job_are_answered_each,
    a_tenant_finds_nothing_of_another,
    a_stop_token_ends_the_text_and_is_not_shown,
    logprobs_are_told_for_each_token_shown,
}

fn jobs(rig: &Rig, max_output: u64) -> Vec<Job> {
    (0..)
        .zip(PROMPTS)
        .map(|(id, prompt)| rig.job(id, prompt, max_output))
        .collect()
}

/// Runs all prompts, together or one after the other; the answers, and the tokens of each.
fn run_all(lab: &Lab, limits: Config, together: bool) -> BTreeMap<u64, (Answer, Vec<Token>)> {
    let rig = lab.start(limits);
    let mut answers = BTreeMap::new();
    let jobs = jobs(&rig, 24);
    if together {
        answers.extend(rig.run(jobs));
    } else {
        for job in jobs {
            answers.extend(rig.run(vec![job]));
        }
    }
    let mut generated = rig.generated();
    rig.assert_empty();
    let mut tokens = |id| generated.remove(&id).unwrap_or_default();
    answers
        .into_iter()
        .map(|(id, answer)| (id, (answer, tokens(id))))
        .collect()
}

/// The same texts and usages. Where two texts part, the two likeliest tokens must be no further
/// apart than the order of computing alone moves them.
fn assert_same(
    lab: &Lab,
    expected: &BTreeMap<u64, (Answer, Vec<Token>)>,
    actual: &BTreeMap<u64, (Answer, Vec<Token>)>,
    prompt: impl Fn(u64) -> String,
) {
    let mut parted = 0;
    assert!(expected.keys().eq(actual.keys()));
    for ((id, (one, one_tokens)), (other, other_tokens)) in expected.iter().zip(actual.values()) {
        assert_eq!((one.ending, one.usage), (other.ending, other.usage));
        let same = one_tokens
            .iter()
            .zip(other_tokens)
            .take_while(|(a, b)| a == b)
            .count();
        if same == one_tokens.len() {
            assert_eq!(one.text, other.text);
            continue;
        }
        parted += 1;
        let mut tokens = lab.model.tokenize(&prompt(*id)).unwrap();
        tokens.extend(&one_tokens[..same]);
        let (gap, noise) = lab.gap_and_noise(&tokens);
        println!("request {id} parts at token {same}: gap {gap}, noise {noise}");
        assert!(
            gap <= noise,
            "request {id} parts at token {same}: gap {gap}, noise {noise}"
        );
    }
    println!("{parted} of {} parted at a tie", expected.len());
}

fn plain(id: u64) -> String {
    PROMPTS[usize::try_from(id).unwrap()].to_owned()
}

fn every_job_is_told_one_end_and_leaves_nothing(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let mut jobs = jobs(&rig, 16);
    for job in &mut jobs {
        job.stop.ignore_eos = false;
        job.sampling = Sampling::default();
    }
    let answers = rig.run(jobs);
    assert_eq!(answers.len(), PROMPTS.len());
    assert!(
        answers
            .values()
            .all(|answer| [STOP, LENGTH].contains(&answer.ending))
    );
    rig.assert_empty();
}

fn eight_together_say_what_each_says_alone(lab: &Lab) {
    let alone = run_all(lab, CONFIG, false);
    let together = run_all(lab, CONFIG, true);
    assert!(alone.values().all(|(answer, _)| !answer.text.is_empty()));
    assert_same(lab, &alone, &together, plain);
}

fn a_prompt_in_chunks_says_what_it_says_whole(lab: &Lab) {
    let whole = run_all(lab, CONFIG, false);
    let chunked = run_all(
        lab,
        Config {
            step_tokens: Tokens::new(8),
            ..CONFIG
        },
        false,
    );
    assert_same(lab, &whole, &chunked, plain);
}

fn a_tiny_pool_says_the_same_and_says_it_once(lab: &Lab) {
    let roomy = run_all(lab, CONFIG, true);
    // One request takes up to six blocks on the fake, where a token is a byte; eight are not room
    // for eight.
    let rig = lab.start(Config {
        blocks: 8,
        ..CONFIG
    });
    let answers = rig.run(jobs(&rig, 24));
    let mut generated = rig.generated();
    let mut tokens = |id| generated.remove(&id).unwrap_or_default();
    let tiny = answers
        .into_iter()
        .map(|(id, answer)| (id, (answer, tokens(id))))
        .collect();
    assert!(lock(&rig.log).preempted > 0);
    rig.assert_empty();
    assert_same(lab, &roomy, &tiny, plain);
}

fn the_most_output_is_the_most(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let answer = &rig.run(vec![rig.job(1, PROMPTS[0], 7)])[&1];
    assert_eq!(
        (answer.ending, answer.usage.output),
        (LENGTH, Tokens::new(7))
    );
    let one = &rig.run(vec![rig.job(2, PROMPTS[0], 1)])[&2];
    assert_eq!((one.ending, one.usage.output), (LENGTH, Tokens::new(1)));
    rig.assert_empty();
}

fn the_context_ends_a_text_that_never_would(lab: &Lab) {
    let prompt = Tokens::of_len(&lab.model.tokenize(PROMPTS[1]).unwrap());
    let rig = lab.start(Config {
        context: prompt + Tokens::new(5),
        ..CONFIG
    });
    let answer = &rig.run(vec![rig.job(1, PROMPTS[1], 100_000)])[&1];
    assert_eq!(answer.ending, LENGTH);
    let usage = Usage {
        prompt,
        cached: Tokens::ZERO,
        output: Tokens::new(5),
    };
    assert_eq!(answer.usage, usage);
    rig.assert_empty();
}

fn a_prompt_that_does_not_fit_fails_alone(lab: &Lab) {
    let rig = lab.start(Config {
        context: Tokens::new(80),
        ..CONFIG
    });
    let long = "toll ".repeat(100);
    let answers = rig.run(vec![rig.job(1, &long, 4), rig.job(2, PROMPTS[0], 4)]);
    assert_eq!(answers[&1].ending, EngineEnding::Failed(Failure::Sequence));
    assert_eq!(answers[&1].usage, Usage::default());
    assert_eq!(answers[&2].ending, LENGTH);
    rig.assert_empty();
}

fn a_stop_string_over_tokens_cuts_the_text_where_it_begins(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let whole = rig.run(vec![rig.job(1, PROMPTS[7], 40)])[&1].clone();
    // Longer than one token on either backend.
    let stop: String = whole.text.chars().skip(3).take(12).collect();
    let mut job = rig.job(2, PROMPTS[7], 40);
    job.stop.strings = vec!["never said".into(), stop.clone()];
    let cut = rig.run(vec![job])[&2].clone();
    assert_eq!(cut.ending, STOP);
    assert_eq!(Some(cut.text.as_str()), whole.text.split(&stop).next());
    assert!(cut.usage.output < whole.usage.output);
    rig.assert_empty();
}

fn of_one_seed_comes_one_text(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let job = |id, seed| {
        let mut job = rig.job(id, PROMPTS[1], 24);
        job.sampling = Sampling {
            seed,
            ..Sampling::default()
        };
        job
    };
    // One after the other: in one batch ties may fall differently.
    let seeds = [Some(7), Some(7), Some(8), None, None];
    let mut texts = vec![];
    for (id, seed) in (0..).zip(seeds) {
        texts.push(rig.run(vec![job(id, seed)])[&id].text.clone());
    }
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
    assert_ne!(
        texts[3], texts[4],
        "without a seed each request has its own"
    );
    rig.assert_empty();
}

/// Cancels request 1 at the first event that `when` holds of, from within the engine, so the next
/// step is not taken.
fn cancelled(lab: &Lab, limits: Config, when: fn(&Event) -> bool) -> Answer {
    let rig = lab.start_with(limits, move |engine, event| {
        if when(event) {
            engine.cancel(RequestId::new(1));
        }
    });
    let prompt = PROMPTS[1].repeat(4);
    let answers = rig.run(vec![rig.job(1, &prompt, 100), rig.job(2, PROMPTS[0], 8)]);
    assert_eq!(answers[&2].ending, LENGTH, "the other goes on");
    assert_eq!(answers[&1].ending, EngineEnding::Cancelled);
    rig.assert_empty();
    answers[&1].clone()
}

fn a_cancel_during_prefill_takes_effect_before_the_next_step(lab: &Lab) {
    let limits = Config {
        step_tokens: Tokens::new(8),
        ..CONFIG
    };
    let answer = cancelled(lab, limits, |event| matches!(event, Event::Stepped(_)));
    assert_eq!(answer.usage.prompt, Tokens::new(8));
    assert_eq!(
        (answer.text.as_str(), answer.usage.output),
        ("", Tokens::ZERO)
    );
}

fn a_cancel_during_decode_takes_effect_before_the_next_step(lab: &Lab) {
    let first = |event: &Event| matches!(event, Event::Delta(id, _) if id.get() == 1);
    let answer = cancelled(lab, CONFIG, first);
    assert!(!answer.text.is_empty());
    // The token with the first text is the last one; characters of more than one token take up to
    // four.
    assert!(answer.usage.output <= Tokens::new(4));
}

fn a_cancel_before_the_start_costs_nothing(lab: &Lab) {
    let rig = lab.start_with(
        Config {
            sequences: 1,
            ..CONFIG
        },
        |engine, event| {
            if let Event::Stepped(_) = event {
                engine.cancel(RequestId::new(2));
            }
        },
    );
    // Not yet submitted, and one that never will be.
    rig.engine().cancel(RequestId::new(9));
    let answers = rig.run(vec![rig.job(1, PROMPTS[0], 8), rig.job(2, PROMPTS[1], 8)]);
    assert_eq!(answers[&1].ending, LENGTH);
    assert_eq!(answers[&2].ending, EngineEnding::Cancelled);
    assert_eq!(answers[&2].usage, Usage::default());
    rig.assert_empty();
}

fn a_token_outside_the_vocabulary_fails_its_own_request_alone(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let broken = |id| {
        let mut job = rig.job(id, PROMPTS[3], 8);
        job.prompts[0].push(Token::new(9_999_999));
        job
    };
    let mut jobs: Vec<_> = jobs(&rig, 8).into_iter().take(3).collect();
    jobs.insert(1, broken(9));
    let answers = rig.run(jobs);
    assert_eq!(answers[&9].ending, EngineEnding::Failed(Failure::Sequence));
    assert_eq!(answers[&9].usage.output, Tokens::ZERO);
    for id in 0..3 {
        assert_eq!(answers[&id].ending, LENGTH);
    }
    // Alone it is still the request's fault, and not the engine's.
    assert_eq!(
        rig.run(vec![broken(10)])[&10].ending,
        EngineEnding::Failed(Failure::Sequence)
    );
    assert_eq!(
        rig.run(vec![rig.job(11, PROMPTS[0], 2)])[&11].ending,
        LENGTH
    );
    rig.assert_empty();
}

fn a_storm_of_cancels_leaves_nothing(lab: &Lab) {
    let count = if lab.is_llama() { 60 } else { 300 };
    // Each event cancels some request, chosen by a fixed stream.
    let mut state = 0;
    let limits = Config {
        blocks: 12,
        step_tokens: Tokens::new(16),
        ..CONFIG
    };
    let rig = lab.start_with(limits, move |engine, _| {
        state = mix(state);
        engine.cancel(RequestId::new(state % (2 * count)));
    });
    let jobs = (0..count).map(|id| {
        let prompt = PROMPTS[usize::try_from(id % 8).unwrap()];
        rig.job(id, prompt, 1 + mix(id) % 12)
    });
    let answers = rig.run(jobs.collect());
    let cancelled = answers
        .values()
        .filter(|answer| answer.ending == EngineEnding::Cancelled);
    let cancelled = cancelled.count();
    println!("{cancelled} of {count} were cancelled");
    assert!(cancelled > 0 && cancelled < answers.len());
    assert_eq!(
        rig.run(vec![rig.job(u64::MAX, PROMPTS[0], 2)])[&u64::MAX].ending,
        LENGTH
    );
    rig.assert_empty();
}

fn stopping_fails_what_runs_and_gives_back_what_comes_later(lab: &Lab) {
    // Far more than either says before it is stopped; the fake is fast, and its blocks are free.
    let llama = (CONFIG.blocks, 2_000);
    let (blocks, tokens) = if lab.is_llama() {
        llama
    } else {
        (70_000, 1_000_000)
    };
    let context = Tokens::new(2 * tokens);
    let rig = lab.start(Config {
        sequences: 1,
        blocks,
        context,
        ..CONFIG
    });
    rig.submit(rig.job(1, PROMPTS[0], tokens));
    rig.submit(rig.job(2, PROMPTS[1], tokens));
    while !matches!(rig.next(), Event::Delta(..)) {}
    rig.engine().stop();
    let ends = rig.events.try_iter().filter_map(|event| match event {
        Event::End(id, ending, _) => Some((id.get(), ending)),
        Event::Died(why) => panic!("it was told to stop, and did not die: {why}"),
        Event::Delta(..)
        | Event::Vector(..)
        | Event::Finished(..)
        | Event::Observed(..)
        | Event::Stepped(_) => None,
    });
    let failed = EngineEnding::Failed(Failure::Engine);
    assert_eq!(ends.collect::<Vec<_>>(), [(1, failed), (2, failed)]);
    let back = rig.engine().submit(rig.job(3, PROMPTS[0], 1)).unwrap_err();
    assert_eq!(back.id, RequestId::new(3));
    rig.engine().cancel(RequestId::new(3));
    rig.assert_empty();
}

fn an_engine_started_again_answers(lab: &Lab) {
    for _ in 0..2 {
        let rig = lab.start(CONFIG);
        assert_eq!(rig.run(vec![rig.job(1, PROMPTS[0], 2)])[&1].ending, LENGTH);
        rig.assert_empty();
    }
}

fn the_hottest_text_is_still_text(lab: &Lab) {
    let rig = lab.start(CONFIG);
    let jobs = (0..8).map(|id| {
        let mut job = rig.job(id, "Write in Chinese and with emoji: 你好🙂", 40);
        job.sampling = Sampling {
            temperature: 1.9,
            seed: Some(id),
            ..Sampling::default()
        };
        job
    });
    let answers = rig.run(jobs.collect());
    assert!(
        answers
            .values()
            .all(|answer| answer.ending == LENGTH && !answer.text.is_empty())
    );
    rig.assert_empty();
}
