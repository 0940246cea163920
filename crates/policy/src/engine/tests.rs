//! The scheduler under examples, and under random operations with its invariants checked after
//! each.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::batch::{Order, Scheduler};
use crate::pace::Haste;
use crate::usage::Usage;

mod exhaustion;
mod guests;
mod sharing;

const CONFIG: Config = Config {
    sequences: 4,
    guests: 0,
    blocks: 64,
    step_tokens: Tokens::new(32),
    chunk: Tokens::new(32),
    paced: true,
    order: Order::DecodeFirst,
    scheduler: Scheduler::Continuous,
    reservation: Reservation::Paged,
    context: Tokens::new(512),
    waiting_max: 8,
    cache: CacheConfig::OFF,
};

fn engine(config: Config) -> Engine {
    Engine::new(config).unwrap()
}

fn start(engine: &mut Engine, id: u64, prompt: u64, max_output: u64) {
    start_with(engine, id, 0, tokens(id, prompt), max_output);
}

/// Different tokens for each `text`, and the same at each call.
fn tokens(text: u64, count: u64) -> Vec<Token> {
    let text = i32::try_from(text).unwrap();
    let count = i32::try_from(count).unwrap();
    (0..count).map(|at| Token::new(text * 1_000 + at)).collect()
}

fn start_with(engine: &mut Engine, id: u64, tenant: u32, prompt: Vec<Token>, max_output: u64) {
    engine.handle(EngineEvent::Start(Start {
        id: RequestId::new(id),
        tenant: TenantId::new(tenant),
        prompt,
        max_output: Tokens::new(max_output),
        elder: None,
        served: Service::ZERO,
        haste: Haste::AtOnce,
    }));
}

#[test]
fn prompts_of_a_tenant_go_at_once_while_it_is_alone_and_after_those_of_others() {
    let mut engine = engine(Config {
        step_tokens: Tokens::new(100),
        chunk: Tokens::new(100),
        ..CONFIG
    });
    let come = |engine: &mut Engine, id, tenant, haste| {
        engine.handle(EngineEvent::Start(Start {
            id: RequestId::new(id),
            tenant: TenantId::new(tenant),
            prompt: tokens(id, 80),
            max_output: Tokens::new(50),
            elder: None,
            served: Service::ZERO,
            haste,
        }));
    };
    let counts = |engine: &mut Engine| -> Vec<_> {
        let step = engine.plan().unwrap();
        answer(engine, &step, |_| false);
        step.work
            .iter()
            .map(|work| (work.id.get(), work.count.get()))
            .collect()
    };
    come(&mut engine, 1, 0, Haste::WhileAlone);
    come(&mut engine, 2, 0, Haste::WhileAlone);
    assert_eq!(counts(&mut engine), [(1, 80), (2, 20)]);
    come(&mut engine, 3, 1, Haste::AtOnce);
    let step = counts(&mut engine);
    assert!(
        step.contains(&(3, 80)),
        "the newcomer's is not cut: {step:?}"
    );
    assert!(
        step.contains(&(2, 16)),
        "the others go on, a block at a time: {step:?}"
    );
}

/// Answers a step; texts end of which `ends` says so.
fn answer(engine: &mut Engine, step: &Step, ends: impl Fn(RequestId) -> bool) {
    let work = step.work.iter().filter(|work| work.samples);
    let sampled = work.map(|work| Sampled {
        id: work.id,
        token: Token::new(-1),
        ends: ends(work.id),
    });
    let sampled = sampled.collect();
    engine.handle(EngineEvent::Stepped { sampled });
    engine.invariants();
}

fn stepped(engine: &mut Engine) -> Step {
    let step = engine.plan().unwrap();
    answer(engine, &step, |_| false);
    step
}

/// Sequences that lost all they had computed.
fn trims(step: &Step) -> usize {
    let trim = |op: &&KvOp| matches!(op, KvOp::Trim { from, .. } if *from == Tokens::ZERO);
    step.ops.iter().filter(trim).count()
}

fn effects(engine: &mut Engine) -> Vec<EngineEffect> {
    std::iter::from_fn(|| engine.poll_effect()).collect()
}

fn ended(id: u64, ending: EngineEnding, prompt: u64, output: u64) -> EngineEffect {
    let usage = Usage {
        prompt: Tokens::new(prompt),
        cached: Tokens::ZERO,
        output: Tokens::new(output),
    };
    EngineEffect::Ended {
        id: RequestId::new(id),
        tenant: TenantId::new(0),
        ending,
        usage,
    }
}

fn idle(engine: &mut Engine) {
    // Sequences that are over are told to the backend before nothing is left to do.
    if let Some(step) = engine.plan() {
        assert_eq!(step.work, []);
        answer(engine, &step, |_| false);
    }
    assert_eq!(engine.plan(), None);
    let gauges = engine.gauges();
    let empty = Gauges {
        blocks_total: KvBlocks::new(u64::from(engine.config.blocks)),
        blocks_idle: gauges.blocks_idle,
        prefixes: gauges.prefixes,
        totals: gauges.totals,
        ..Gauges::default()
    };
    assert_eq!(gauges, empty);
}

#[test]
fn a_prompt_is_computed_in_chunks_and_sampled_after_the_last() {
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 40, 2);
    let chunks: Vec<_> = (0..3).map(|_| stepped(&mut engine).work[0]).collect();
    let shape: Vec<_> = chunks
        .iter()
        .map(|w| (w.start.get(), w.count.get(), w.samples))
        .collect();
    assert_eq!(shape, [(0, 32, false), (32, 8, true), (40, 1, true)]);
    let length = EngineEnding::Finished(FinishReason::Length);
    assert_eq!(effects(&mut engine), [ended(1, length, 40, 2)]);
    idle(&mut engine);
}

#[test]
fn a_text_that_ends_frees_all_it_held() {
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 4, 100);
    let step = engine.plan().unwrap();
    answer(&mut engine, &step, |_| true);
    let stop = EngineEnding::Finished(FinishReason::Stop);
    assert_eq!(effects(&mut engine), [ended(1, stop, 4, 1)]);
    let seq = SeqId::new(0);
    assert_eq!(engine.plan().unwrap().ops, [KvOp::End { seq }]);
    answer(&mut engine, &Step::default(), |_| false);
    idle(&mut engine);
}

#[test]
fn the_context_ends_a_text_that_never_would() {
    let mut engine = engine(Config {
        context: Tokens::new(20),
        ..CONFIG
    });
    start(&mut engine, 1, 15, 100_000);
    for _ in 0..5 {
        stepped(&mut engine);
    }
    let length = EngineEnding::Finished(FinishReason::Length);
    assert_eq!(effects(&mut engine), [ended(1, length, 15, 5)]);
    idle(&mut engine);
}

#[test]
fn a_prompt_that_never_fits_is_refused_and_blocks_nobody() {
    let mut engine = engine(Config {
        blocks: 4,
        ..CONFIG
    });
    start(&mut engine, 1, 64, 1);
    start(&mut engine, 2, 63, 1);
    let because = Refused::ContextExceeded {
        asked: Tokens::new(65),
        limit: Tokens::new(64),
    };
    let refused = EngineEffect::Refused {
        id: RequestId::new(1),
        because,
    };
    assert_eq!(effects(&mut engine), [refused]);
    assert_eq!(stepped(&mut engine).work[0].id, RequestId::new(2));
}

#[test]
fn nothing_to_compute_and_nothing_to_generate_are_refused() {
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 0, 1);
    start(&mut engine, 2, 1, 0);
    let refused = |id, because| EngineEffect::Refused {
        id: RequestId::new(id),
        because,
    };
    let expected = [
        refused(1, Refused::EmptyPrompt),
        refused(2, Refused::NoOutput),
    ];
    assert_eq!(effects(&mut engine), expected);
    idle(&mut engine);
}

#[test]
fn no_more_wait_than_may() {
    let mut engine = engine(Config {
        waiting_max: 2,
        ..CONFIG
    });
    for id in 0..3 {
        start(&mut engine, id, 4, 4);
    }
    let refused = EngineEffect::Refused {
        id: RequestId::new(2),
        because: Refused::Full(2),
    };
    assert_eq!(effects(&mut engine), [refused]);
}

#[test]
fn a_cancel_takes_effect_before_the_next_step_wherever_the_request_is() {
    let mut engine = engine(Config {
        sequences: 2,
        ..CONFIG
    });
    start(&mut engine, 1, 4, 100);
    start(&mut engine, 2, 100, 100);
    start(&mut engine, 3, 4, 100);
    stepped(&mut engine);
    for id in 1..=3 {
        engine.handle(EngineEvent::Cancel {
            id: RequestId::new(id),
        });
    }
    // Ended already, and never there: both are ignored.
    engine.handle(EngineEvent::Cancel {
        id: RequestId::new(1),
    });
    engine.handle(EngineEvent::Cancel {
        id: RequestId::new(9),
    });
    let cancelled = EngineEnding::Cancelled;
    let expected = [
        ended(1, cancelled, 4, 1),
        ended(2, cancelled, 28, 0),
        ended(3, cancelled, 0, 0),
    ];
    assert_eq!(effects(&mut engine), expected);
    idle(&mut engine);
}

#[test]
fn a_failure_during_a_step_ends_one_request_and_spends_nothing_of_it() {
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 4, 9);
    start(&mut engine, 2, 4, 9);
    let step = engine.plan().unwrap();
    engine.handle(EngineEvent::Failed {
        id: RequestId::new(1),
    });
    answer(&mut engine, &step, |_| false);
    let failed = EngineEnding::Failed(Failure::Sequence);
    assert_eq!(effects(&mut engine), [ended(1, failed, 0, 0)]);
    assert_eq!(stepped(&mut engine).work[0].id, RequestId::new(2));
}

#[test]
fn a_preempted_sequence_resumes_before_newcomers_and_is_charged_once() {
    let mut engine = engine(Config {
        blocks: 4,
        ..CONFIG
    });
    start(&mut engine, 1, 16, 40);
    start(&mut engine, 2, 16, 20);
    start(&mut engine, 3, 1, 1);
    let mut fresh: BTreeMap<RequestId, Tokens> = BTreeMap::new();
    let (mut preempted, mut order) = (0, vec![]);
    while engine.gauges().running + engine.gauges().waiting > 0 {
        let step = stepped(&mut engine);
        preempted += trims(&step);
        for work in step.work {
            *fresh.entry(work.id).or_default() += work.fresh;
        }
        for effect in effects(&mut engine) {
            let EngineEffect::Ended { id, usage, .. } = effect else {
                panic!("{effect:?}")
            };
            assert_eq!(fresh[&id], usage.prompt);
            order.push((id.get(), usage.output.get()));
        }
    }
    assert!(preempted > 0);
    assert_eq!(order, [(1, 40), (2, 20), (3, 1)]);
    idle(&mut engine);
}

#[test]
fn bounds_with_which_nothing_could_run_are_refused() {
    let refused = |config| Engine::new(config).map(|_| ()).unwrap_err();
    assert_eq!(
        refused(Config {
            sequences: 0,
            ..CONFIG
        }),
        ConfigError::NoSequences
    );
    let step_tokens = Tokens::new(3);
    let small = ConfigError::StepTooSmall {
        step_tokens,
        sequences: 4,
    };
    assert_eq!(
        refused(Config {
            step_tokens,
            ..CONFIG
        }),
        small
    );
    let no_context = ConfigError::NoContext(Tokens::ZERO);
    assert_eq!(
        refused(Config {
            blocks: 0,
            ..CONFIG
        }),
        no_context
    );
    assert_eq!(
        refused(Config {
            waiting_max: 0,
            ..CONFIG
        }),
        ConfigError::NoWaiting
    );
}

#[derive(Clone, Debug)]
enum Operation {
    Start {
        /// Also says whose it is; prompts of one text begin alike.
        text: u64,
        prompt: u64,
        max_output: u64,
        /// Whether the request before it had the same prompt, and came with it.
        younger: bool,
    },
    Cancel(u64),
    Fail(u64),
    /// A step, in which texts end whose request's number has this remainder by 16.
    Step(u64),
    CancelDuringStep(u64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        8 => (0_u64..4, 1_u64..150, 1_u64..60, any::<bool>()).prop_map(
            |(text, prompt, max_output, younger)| Operation::Start {
                text, prompt, max_output, younger,
            }
        ),
        2 => (0_u64..60).prop_map(Operation::Cancel),
        1 => (0_u64..60).prop_map(Operation::Fail),
        20 => (0_u64..64).prop_map(Operation::Step),
        1 => (0_u64..60).prop_map(Operation::CancelDuringStep),
    ];
    prop::collection::vec(operation, 0..150)
}

fn configs() -> impl Strategy<Value = Config> {
    let knobs = prop_oneof![
        4 => Just(Scheduler::Continuous), 1 => Just(Scheduler::Fifo), 1 => Just(Scheduler::Static)
    ];
    let knobs = (knobs, any::<[bool; 2]>(), 0_u32..6, 1_u64..20, 0_u32..4);
    (1_u32..6, 2_u32..24, 8_u64..64, 1_u64..64, knobs).prop_map(
        |(sequences, blocks, step_tokens, chunk, (scheduler, knobs, prefixes, quota, guests))| {
            Config {
                sequences,
                guests,
                blocks,
                step_tokens: Tokens::new(step_tokens),
                chunk: Tokens::new(chunk),
                paced: true,
                order: if knobs[0] {
                    Order::DecodeFirst
                } else {
                    Order::PrefillFirst
                },
                scheduler,
                reservation: if knobs[1] {
                    Reservation::Paged
                } else {
                    Reservation::Contiguous
                },
                context: Tokens::new(200),
                waiting_max: 8,
                cache: CacheConfig {
                    prefixes,
                    tenant_blocks: KvBlocks::new(quota),
                },
            }
        },
    )
}

/// Plans a step and checks it against the limits, without the planner's own sums.
fn checked_plan(engine: &mut Engine, config: Config) -> Option<Step> {
    let busy = engine.gauges().running + engine.gauges().waiting > 0;
    let step = engine.plan();
    engine.invariants();
    let work: &[Work] = step.as_ref().map_or(&[], |step| &step.work);
    assert!(
        !busy || !work.is_empty(),
        "an engine with requests makes progress"
    );
    let total = work.iter().fold(Tokens::ZERO, |sum, work| sum + work.count);
    assert!(total <= config.step_tokens);
    let mut seqs: Vec<_> = work.iter().map(|work| work.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), work.len(), "no sequence twice in a step");
    assert!(
        work.iter()
            .all(|work| work.count > Tokens::ZERO && work.seq.get() < config.seats())
    );
    assert!(work.len() <= usize::try_from(config.sequences).unwrap());
    step
}

/// Applies one operation; `next` is the number of the next request.
fn apply(engine: &mut Engine, config: Config, operation: &Operation, next: &mut u64) {
    match operation {
        Operation::Start {
            text,
            prompt,
            max_output,
            younger,
        } => {
            engine.handle(EngineEvent::Start(Start {
                id: RequestId::new(*next),
                tenant: TenantId::new(u32::try_from(*text % 2).unwrap()),
                prompt: tokens(*text, *prompt),
                max_output: Tokens::new(*max_output),
                elder: younger.then(|| RequestId::new(next.saturating_sub(1))),
                served: Service::new(*text * 100),
                haste: match *text % 3 {
                    0 => Haste::AtOnce,
                    1 => Haste::WhileAlone,
                    _ => Haste::AsTheyCome,
                },
            }));
            *next += 1;
        }
        Operation::Cancel(id) => engine.handle(EngineEvent::Cancel {
            id: RequestId::new(*id),
        }),
        Operation::Fail(id) => engine.handle(EngineEvent::Failed {
            id: RequestId::new(*id),
        }),
        Operation::Step(remainder) => {
            if let Some(step) = checked_plan(engine, config) {
                answer(engine, &step, |id| id.get() % 16 == *remainder);
            }
        }
        Operation::CancelDuringStep(id) => {
            if let Some(step) = checked_plan(engine, config) {
                engine.handle(EngineEvent::Cancel {
                    id: RequestId::new(*id),
                });
                answer(engine, &step, |_| false);
            }
        }
    }
}

/// The positions that each request computed, and how often it sampled; then how many were
/// preempted.
fn run_to_end(config: Config, starts: &[(u64, u64)]) -> (BTreeMap<u64, (Vec<u64>, u64)>, usize) {
    let mut engine = engine(Config {
        waiting_max: starts.len(),
        ..config
    });
    for (id, (prompt, max_output)) in (0..).zip(starts) {
        start(&mut engine, id, *prompt, *max_output);
    }
    let mut runs: BTreeMap<u64, (Vec<u64>, u64)> = BTreeMap::new();
    let mut preempted = 0;
    while let Some(step) = checked_plan(
        &mut engine,
        Config {
            waiting_max: starts.len(),
            ..config
        },
    ) {
        preempted += trims(&step);
        for work in &step.work {
            let (positions, samples) = runs.entry(work.id.get()).or_default();
            let (start, end) = (work.start.get(), work.start.get() + work.count.get());
            // What is computed again begins at the start; nothing is left out.
            let there = u64::try_from(positions.len()).unwrap();
            assert!(start <= there);
            positions.extend(there..end.max(there));
            *samples += u64::from(work.samples);
        }
        answer(&mut engine, &step, |_| false);
    }
    (runs, preempted)
}

proptest! {
    #[test]
    fn every_request_ends_once_and_everything_returns_to_zero(
        config in configs(), operations in operations()
    ) {
        let mut engine = engine(config);
        let mut next = 0;
        let mut ends: BTreeMap<RequestId, u32> = BTreeMap::new();
        let mut count = |engine: &mut Engine| {
            for effect in effects(engine) {
                let (EngineEffect::Ended { id, .. } | EngineEffect::Refused { id, .. }) = effect;
                *ends.entry(id).or_default() += 1;
            }
        };
        for operation in &operations {
            apply(&mut engine, config, operation, &mut next);
            engine.invariants();
            count(&mut engine);
        }
        while engine.gauges().running + engine.gauges().waiting > 0 {
            // Ends at the latest when every request reached its length.
            apply(&mut engine, config, &Operation::Step(99), &mut next);
            engine.invariants();
            count(&mut engine);
        }
        prop_assert!(ends.keys().copied().eq((0..next).map(RequestId::new)));
        prop_assert!(ends.values().all(|count| *count == 1));
        idle(&mut engine);
    }

    #[test]
    fn a_tiny_pool_computes_the_same_positions_and_samples_as_often(
        starts in prop::collection::vec((1_u64..60, 1_u64..120), 1..12),
        decode_first in any::<bool>(),
    ) {
        let order = if decode_first { Order::DecodeFirst } else { Order::PrefillFirst };
        let roomy = Config { blocks: 1_000, order, context: Tokens::new(140), ..CONFIG };
        // 140 tokens take 9 blocks: one request fits, four don't.
        let tiny = Config { blocks: 9, ..roomy };
        let (expected, none) = run_to_end(roomy, &starts);
        let (actual, _) = run_to_end(tiny, &starts);
        prop_assert_eq!(none, 0);
        prop_assert_eq!(actual, expected);
    }
}
