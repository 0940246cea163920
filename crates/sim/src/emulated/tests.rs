//! The engine on a virtual clock, by example and under random requests.

mod following;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

/// Runs an engine from wake to wake, and keeps what it told with the time.
struct World {
    engine: Emulated,
    now: Time,
    told: Vec<(u64, Effect)>,
}

impl World {
    fn new(config: Config) -> Self {
        let engine = Emulated::new(config).unwrap();
        let now = Time::START;
        Self {
            engine,
            now,
            told: Vec::new(),
        }
    }

    fn handle(&mut self, event: Event) {
        self.engine.handle(event, self.now);
        self.engine.invariants();
        while let Some(effect) = self.engine.poll_effect() {
            self.told.push((self.now.as_micros(), effect));
        }
    }

    fn ask(&mut self, id: u64, prompt: u64, output: u64) {
        self.ask_with(id, prompt, output, &[]);
    }

    fn ask_with(&mut self, id: u64, prompt: u64, output: u64, prefix: &[u64]) {
        self.handle(Event::Arrived(Request {
            id: RequestId::new(id),
            prompt: Tokens::new(prompt),
            output: Tokens::new(output),
            prefix: prefix.into(),
        }));
    }

    fn wake(&mut self) -> bool {
        let Some(at) = self.engine.next_wake() else {
            return false;
        };
        self.now = at;
        self.handle(Event::Wake);
        true
    }

    /// Lets everything end, within a bound that only a stuck engine meets.
    fn finish(&mut self) {
        for _ in 0..1_000_000 {
            if !self.wake() {
                return;
            }
        }
        panic!("the engine does not come to an end");
    }

    /// When each output token of a request came.
    fn tokens(&self, id: u64) -> Vec<u64> {
        let of = |(at, effect): &(u64, Effect)| match effect {
            Effect::Stepped { served } => {
                let mine = |one: &&Served| one.id.get() == id && one.output > Tokens::ZERO;
                served.iter().find(mine).map(|_| *at)
            }
            Effect::Started { .. }
            | Effect::Preempted { .. }
            | Effect::Ended { .. }
            | Effect::Cancelled { .. }
            | Effect::Refused { .. } => None,
        };
        self.told.iter().filter_map(of).collect()
    }

    fn ended(&self) -> Vec<(u64, Used)> {
        let of = |(_, effect): &(u64, Effect)| match effect {
            Effect::Ended { id, used } => Some((id.get(), *used)),
            Effect::Started { .. }
            | Effect::Stepped { .. }
            | Effect::Preempted { .. }
            | Effect::Cancelled { .. }
            | Effect::Refused { .. } => None,
        };
        self.told.iter().filter_map(of).collect()
    }
}

/// Few slots and round costs: a step takes 1 ms, each sequence 10 us, each prompt token 1 us.
fn small() -> Config {
    Config {
        slots: NonZeroU32::new(2).unwrap(),
        cost: Cost {
            step: Micros::from_millis(1),
            per_sequence: Micros::new(10),
            prefill_tokens_per_second: 1_000_000.try_into().unwrap(),
        },
        chunk: Tokens::new(100),
        kv: Tokens::new(1_600),
        context: Tokens::new(800),
        waiting_max: 4,
        prefix_cache: PrefixCache::Off,
    }
}

fn cached() -> Config {
    Config {
        prefix_cache: PrefixCache::On,
        ..small()
    }
}

#[test]
fn a_lone_request_costs_its_prefill_and_then_a_step_for_each_token() {
    let mut world = World::new(Config::default());
    world.ask(1, 128, 3);
    world.finish();
    // 10 ms + 0.15 ms + 128 tokens at 12,000 a second; then 10.15 ms each.
    assert_eq!(world.tokens(1), [20_816, 30_966, 41_116]);
    let used = Used {
        prompt: Tokens::new(128),
        cached: Tokens::ZERO,
        output: Tokens::new(3),
    };
    assert_eq!(world.ended(), [(1, used)]);
}

#[test]
fn no_more_run_than_there_are_slots_and_the_first_in_line_goes_first() {
    let mut world = World::new(small());
    for (id, output) in [(1, 2), (2, 9), (3, 1), (4, 1)] {
        world.ask(id, 10, output);
    }
    assert_eq!(
        (world.engine.gauges().running, world.engine.gauges().waiting),
        (1, 3)
    );
    world.finish();
    let order: Vec<u64> = world.ended().iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [1, 3, 4, 2]);
}

#[test]
fn a_long_prompt_is_computed_in_pieces_while_others_generate() {
    let mut world = World::new(small());
    world.ask(1, 1, 6);
    world.wake();
    world.ask(2, 250, 1);
    world.finish();
    // 99 tokens of the long prompt fit beside the other's one; then 99 and 52.
    let ends = [1_011, 2_021, 3_140, 4_259, 5_331, 6_341];
    assert_eq!(world.tokens(1), ends);
    assert_eq!(world.tokens(2), [5_331]);
}

#[test]
fn where_kv_runs_out_the_newest_computes_again_and_nobody_loses_a_token() {
    let mut world = World::new(Config {
        kv: Tokens::new(160),
        context: Tokens::new(160),
        ..small()
    });
    world.ask(1, 64, 60);
    world.ask(2, 64, 60);
    world.finish();
    let counters = *world.engine.counters();
    assert!(counters.preempted >= 1, "{counters:?}");
    assert!(counters.recomputed >= Tokens::new(64), "{counters:?}");
    assert_eq!((world.tokens(1).len(), world.tokens(2).len()), (60, 60));
    assert_eq!(
        counters.prompt,
        Tokens::new(128),
        "once each, whatever was done again"
    );
    assert!(world.told.iter().all(|(_, effect)| {
        !matches!(effect, Effect::Preempted { id } if *id == RequestId::new(1))
    }));
    assert_eq!(world.engine.gauges().kv_used, KvBlocks::ZERO);
}

#[test]
fn a_prompt_that_begins_as_an_earlier_one_computes_only_the_rest() {
    let mut world = World::new(cached());
    world.ask_with(1, 80, 1, &[7, 8, 9]);
    world.finish();
    world.ask_with(2, 80, 1, &[7, 8, 10]);
    world.finish();
    let cached: Vec<u64> = world
        .ended()
        .iter()
        .map(|(_, used)| used.cached.get())
        .collect();
    assert_eq!(cached, [0, 32]);
    let counters = world.engine.counters();
    assert_eq!(counters.prompt, Tokens::new(80 + 48));
    assert_eq!(
        (counters.prefix_queried, counters.prefix_hit),
        (Tokens::new(160), Tokens::new(32))
    );
    assert_eq!(
        world.engine.gauges().kv_used,
        KvBlocks::ZERO,
        "what the cache keeps is free"
    );
}

#[test]
fn a_whole_prompt_in_the_cache_still_computes_its_last_block() {
    let mut world = World::new(cached());
    for id in [1, 2] {
        world.ask_with(id, 32, 1, &[7, 8]);
        world.finish();
    }
    assert_eq!(world.ended()[1].1.cached, Tokens::new(16));
}

#[test]
fn the_cache_makes_room_for_those_who_need_it_the_longest_unused_first() {
    let config = Config {
        kv: Tokens::new(160),
        context: Tokens::new(160),
        ..cached()
    };
    let mut world = World::new(config);
    world.ask_with(1, 33, 1, &[1, 2]);
    world.finish();
    world.ask_with(2, 33, 1, &[3, 4]);
    world.finish();
    // Seven blocks: the six that nothing is kept in, and one of the first prompt's end.
    world.ask_with(3, 100, 1, &[]);
    world.finish();
    world.ask_with(4, 33, 1, &[1, 2]);
    world.finish();
    world.ask_with(5, 33, 1, &[3, 4]);
    world.finish();
    let cached: Vec<u64> = world
        .ended()
        .iter()
        .map(|(_, used)| used.cached.get())
        .collect();
    assert_eq!(cached, [0, 0, 0, 16, 32]);
}

#[test]
fn names_are_of_no_use_while_the_cache_is_off() {
    let mut world = World::new(small());
    for id in [1, 2] {
        world.ask_with(id, 80, 1, &[7, 8, 9]);
        world.finish();
    }
    assert_eq!(world.engine.counters().prompt, Tokens::new(160));
    assert_eq!(world.engine.counters().prefix_queried, Tokens::ZERO);
}

#[test]
fn a_client_that_leaves_frees_its_place_at_once_wherever_it_is() {
    let mut world = World::new(small());
    for id in 1..=3 {
        world.ask(id, 10, 50);
    }
    world.wake();
    world.wake();
    assert_eq!(world.engine.gauges().running, 2);
    world.handle(Event::Cancelled(RequestId::new(1)));
    world.handle(Event::Cancelled(RequestId::new(3)));
    world.handle(Event::Cancelled(RequestId::new(99)));
    let gauges = world.engine.gauges();
    assert_eq!((gauges.running, gauges.waiting), (1, 0));
    assert_eq!(world.engine.counters().cancelled, 2);
    world.handle(Event::Cancelled(RequestId::new(2)));
    world.finish();
    assert_eq!(
        world.engine.gauges(),
        Gauges {
            kv_total: KvBlocks::new(100),
            ..Gauges::default()
        }
    );
    assert!(world.ended().is_empty());
}

#[test]
fn what_can_never_run_or_wait_is_refused() {
    let mut world = World::new(small());
    world.ask(1, 700, 101);
    world.ask(2, 0, 1);
    world.ask(3, 1, 0);
    for id in 10..=16 {
        world.ask(id, 1, 1);
    }
    let why: Vec<_> = world
        .told
        .iter()
        .filter_map(|(_, effect)| match effect {
            Effect::Refused { id, why } => Some((id.get(), *why)),
            Effect::Started { .. }
            | Effect::Stepped { .. }
            | Effect::Preempted { .. }
            | Effect::Ended { .. }
            | Effect::Cancelled { .. } => None,
        })
        .collect();
    let full = Refused::QueueFull;
    assert_eq!(
        why,
        [
            (1, Refused::TooLong),
            (2, Refused::Empty),
            (3, Refused::Empty),
            (15, full),
            (16, full)
        ]
    );
    assert!(
        Emulated::new(Config {
            kv: Tokens::new(799),
            ..small()
        })
        .is_err()
    );
    assert!(
        Emulated::new(Config {
            chunk: Tokens::ZERO,
            ..small()
        })
        .is_err()
    );
}

#[test]
fn an_engine_that_slows_down_does_so_from_the_next_step_on() {
    let mut world = World::new(small());
    world.ask(1, 90, 3);
    world.handle(Event::CostChanged { percent: 300 });
    world.finish();
    assert_eq!(world.tokens(1), [1_100, 1_100 + 3_030, 1_100 + 6_060]);
}

#[test]
fn a_driver_that_wakes_late_loses_no_time_unless_it_slept_for_long() {
    let mut world = World::new(small());
    world.ask(1, 90, 100);
    let first = world.engine.next_wake().unwrap();
    world.now = first + Micros::new(400);
    world.handle(Event::Wake);
    assert_eq!(world.engine.next_wake(), Some(first + Micros::new(1_010)));
    world.now = first + Micros::from_secs(5);
    world.handle(Event::Wake);
    let next = world.engine.next_wake().unwrap();
    assert_eq!(next, earlier(world.now, CATCH_UP) + Micros::new(1_010));
}

/// How long to wait, then a request (prompt, output, family of prompts) or a client that leaves.
type Doing = (u64, Option<(u64, u64, u64)>);

fn doing() -> impl Strategy<Value = Doing> {
    let request = (1_u64..120, 1_u64..40, 0_u64..4);
    (0_u64..6_000, proptest::option::weighted(0.8, request))
}

/// What came of random requests: the world, and how many were asked for.
fn played(doings: &[Doing], config: Config) -> World {
    let mut world = World::new(config);
    for (number, (wait, request)) in (0_u64..).zip(doings) {
        let at = world.now + Micros::new(*wait);
        while world.engine.next_wake().is_some_and(|wake| wake <= at) {
            world.wake();
        }
        world.now = at;
        match request {
            Some((prompt, output, family)) => {
                let names: Vec<u64> = (0..prompt / 16).map(|block| family * 100 + block).collect();
                world.ask_with(number, *prompt, *output, &names);
            }
            None => world.handle(Event::Cancelled(RequestId::new(number / 2))),
        }
    }
    world.finish();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_ends_once_with_all_its_tokens_and_all_kv_comes_back(
        doings in proptest::collection::vec(doing(), 1..60),
        blocks in 10_u64..40,
        slots in 1_u32..6,
    ) {
        let config = Config {
            slots: NonZeroU32::new(slots).unwrap(),
            kv: Tokens::new(blocks * 16),
            context: Tokens::new(160),
            waiting_max: 100,
            ..cached()
        };
        let world = played(&doings, config);
        let mut ends: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
        for (_, effect) in &world.told {
            match effect {
                Effect::Ended { id, used } => {
                    let end = ends.entry(id.get()).or_default();
                    *end = (end.0 + 1, Some(used.output.get()));
                }
                Effect::Cancelled { id, .. } | Effect::Refused { id, .. } => {
                    ends.entry(id.get()).or_default().0 += 1;
                }
                Effect::Started { .. } | Effect::Stepped { .. } | Effect::Preempted { .. } => {}
            }
        }
        for (number, (_, request)) in (0_u64..).zip(&doings) {
            let Some((_, output, _)) = request else { continue };
            let (times, made) = ends.get(&number).copied().unwrap_or_default();
            prop_assert_eq!(times, 1, "request {}", number);
            if let Some(made) = made {
                prop_assert_eq!(made, *output);
                prop_assert_eq!(u64::try_from(world.tokens(number).len()).unwrap(), *output);
            }
        }
        prop_assert_eq!(world.engine.gauges().kv_used, KvBlocks::ZERO);
        prop_assert_eq!(world.told, played(&doings, config).told);
    }
}
