//! The scheduler under examples, and under random operations with its invariants checked after
//! each.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const CONFIG: Config = Config {
    sequences: 4,
    blocks: 64,
    step_tokens: Tokens::new(32),
    order: Order::DecodeFirst,
    context: Tokens::new(512),
    waiting_max: 8,
};

fn engine(config: Config) -> Engine {
    Engine::new(config).unwrap()
}

fn start(engine: &mut Engine, id: u64, prompt: u64, max_output: u64) {
    engine.handle(EngineEvent::Start {
        id: RequestId::new(id),
        tenant: TenantId::new(0),
        prompt: Tokens::new(prompt),
        max_output: Tokens::new(max_output),
    });
}

fn stepped(engine: &mut Engine) -> Step {
    let step = engine.plan().unwrap();
    engine.handle(EngineEvent::Stepped { ended: vec![] });
    engine.invariants();
    step
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
        engine.handle(EngineEvent::Stepped { ended: vec![] });
    }
    assert_eq!(engine.plan(), None);
    let total = KvBlocks::new(u64::from(engine.config.blocks));
    assert_eq!(
        engine.gauges(),
        Gauges {
            blocks_total: total,
            ..Gauges::default()
        }
    );
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
    engine.plan().unwrap();
    engine.handle(EngineEvent::Stepped {
        ended: vec![RequestId::new(1)],
    });
    let stop = EngineEnding::Finished(FinishReason::Stop);
    assert_eq!(effects(&mut engine), [ended(1, stop, 4, 1)]);
    assert_eq!(engine.plan().unwrap().over, [SeqId::new(0)]);
    engine.handle(EngineEvent::Stepped { ended: vec![] });
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
    engine.plan().unwrap();
    engine.handle(EngineEvent::Failed {
        id: RequestId::new(1),
    });
    engine.handle(EngineEvent::Stepped { ended: vec![] });
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
        preempted += step.preempted.len();
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
        prompt: u64,
        max_output: u64,
    },
    Cancel(u64),
    Fail(u64),
    /// A step, in which texts end whose request's number has this remainder by 16.
    Step(u64),
    CancelDuringStep(u64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        8 => (1_u64..150, 1_u64..60)
            .prop_map(|(prompt, max_output)| Operation::Start { prompt, max_output }),
        2 => (0_u64..60).prop_map(Operation::Cancel),
        1 => (0_u64..60).prop_map(Operation::Fail),
        20 => (0_u64..64).prop_map(Operation::Step),
        1 => (0_u64..60).prop_map(Operation::CancelDuringStep),
    ];
    prop::collection::vec(operation, 0..150)
}

fn configs() -> impl Strategy<Value = Config> {
    (1_u32..6, 2_u32..24, 8_u64..64, any::<bool>()).prop_map(
        |(sequences, blocks, step_tokens, decode_first)| Config {
            sequences,
            blocks,
            step_tokens: Tokens::new(step_tokens),
            order: if decode_first {
                Order::DecodeFirst
            } else {
                Order::PrefillFirst
            },
            context: Tokens::new(200),
            waiting_max: 8,
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
            .all(|work| work.count > Tokens::ZERO && work.seq.get() < config.sequences)
    );
    step
}

/// Applies one operation; `next` is the number of the next request.
fn apply(engine: &mut Engine, config: Config, operation: &Operation, next: &mut u64) {
    match operation {
        Operation::Start { prompt, max_output } => {
            start(engine, *next, *prompt, *max_output);
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
                let sampled = step
                    .work
                    .iter()
                    .filter(|work| work.samples)
                    .map(|work| work.id);
                let ended = sampled.filter(|id| id.get() % 16 == *remainder).collect();
                engine.handle(EngineEvent::Stepped { ended });
            }
        }
        Operation::CancelDuringStep(id) => {
            if checked_plan(engine, config).is_some() {
                engine.handle(EngineEvent::Cancel {
                    id: RequestId::new(*id),
                });
                engine.handle(EngineEvent::Stepped { ended: vec![] });
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
        preempted += step.preempted.len();
        for work in &step.work {
            let (positions, samples) = runs.entry(work.id.get()).or_default();
            let (start, end) = (work.start.get(), work.start.get() + work.count.get());
            // What is computed again begins at the start; nothing is left out.
            let there = u64::try_from(positions.len()).unwrap();
            assert!(start <= there);
            positions.extend(there..end.max(there));
            *samples += u64::from(work.samples);
        }
        engine.handle(EngineEvent::Stepped { ended: vec![] });
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
