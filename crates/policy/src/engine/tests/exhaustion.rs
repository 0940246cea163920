//! A pool that is always too small, for as long as ten minutes: nothing grows, nothing is lost, and
//! everybody gets to the end.

use super::*;
use crate::outcome::FinishReason;

/// Ten minutes, at a step of ten milliseconds.
const STEPS: u64 = 60_000;

/// Sequences that are kept coming: as many run at once, and half as many wait.
const FLOOD: u64 = 96;

fn next(state: &mut u64, bound: u64) -> u64 {
    // Knuth's constants for a linear congruence.
    let factor = 6_364_136_223_846_793_005;
    *state = state
        .wrapping_mul(factor)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

const SHORT: Config = Config {
    sequences: 64,
    guests: 8,
    // An eighth of what they would take.
    blocks: 64,
    step_tokens: Tokens::new(256),
    chunk: Tokens::new(64),
    context: Tokens::new(256),
    waiting_max: 64,
    cache: CacheConfig {
        prefixes: 16,
        tenant_blocks: KvBlocks::new(24),
    },
    ..CONFIG
};

#[test]
fn ten_minutes_of_exhaustion_leak_nothing_and_starve_nobody() {
    let mut engine = engine(SHORT);
    let (mut state, mut begun, mut open) = (7, 0, BTreeMap::new());
    let (mut finished, mut oldest, mut widest) = (0_u64, 0, 0);
    for now in 0..STEPS {
        while u64::try_from(open.len()).unwrap() < FLOOD && engine.gauges().waiting < 60 {
            let (prompt, output) = (1 + next(&mut state, 150), 1 + next(&mut state, 60));
            let tenant = u32::try_from(begun % 5).unwrap();
            let text = next(&mut state, 40);
            start_with(&mut engine, begun, tenant, tokens(text, prompt), output);
            open.insert(RequestId::new(begun), now);
            begun += 1;
        }
        let step = engine.plan().expect("some sequence always goes on");
        let count: u64 = step.work.iter().map(|work| work.count.get()).sum();
        assert!(
            count <= SHORT.step_tokens.get(),
            "no step is planned over its limits"
        );
        widest = widest.max(step.work.len());
        let work = step.work.iter().filter(|work| work.samples);
        let sampled = work.map(|work| Sampled {
            id: work.id,
            token: Token::new(-1),
            ends: false,
        });
        let sampled = sampled.collect();
        engine.handle(EngineEvent::Stepped { sampled });
        if now % 64 == 0 {
            engine.invariants();
        }
        for effect in effects(&mut engine) {
            let EngineEffect::Ended { id, ending, .. } = effect else {
                panic!("all of them fit: {effect:?}");
            };
            assert_eq!(ending, EngineEnding::Finished(FinishReason::Length));
            oldest = oldest.max(now - open.remove(&id).unwrap());
            finished += 1;
        }
    }
    let totals = engine.gauges().totals;
    println!("{finished} of {begun} ended, the slowest after {oldest} steps; {totals:?}");
    assert!(finished > 1_000 && totals.preemptions > 0 && totals.reused > Tokens::ZERO);
    assert!(widest <= 64);
    // The slowest took longer than all others together would take one by one if it were starved.
    assert!(oldest < STEPS / 10, "the slowest took {oldest} steps");
    for id in open.into_keys() {
        engine.handle(EngineEvent::Cancel { id });
    }
    effects(&mut engine);
    engine.invariants();
    let held = engine.gauges();
    assert_eq!(
        (held.running, held.waiting, held.blocks_held),
        (0, 0, KvBlocks::ZERO)
    );
    assert!(engine.served.is_empty());
}
