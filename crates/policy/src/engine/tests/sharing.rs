//! What requests share of their KV, and how they share an engine.

use super::*;

const CACHED: Config = Config {
    cache: CacheConfig {
        prefixes: 8,
        tenant_blocks: KvBlocks::new(64),
    },
    ..CONFIG
};

/// Runs to the end; the usage of each request, in the order of their ends.
fn run(engine: &mut Engine) -> Vec<(u64, Usage)> {
    let mut ends = vec![];
    while engine.gauges().running + engine.gauges().waiting > 0 {
        stepped(engine);
        ends.extend(usages(engine));
    }
    ends
}

fn usages(engine: &mut Engine) -> Vec<(u64, Usage)> {
    let ended = |effect| match effect {
        EngineEffect::Ended { id, usage, .. } => (id.get(), usage),
        EngineEffect::Refused { .. } => panic!("{effect:?}"),
    };
    effects(engine).into_iter().map(ended).collect()
}

fn cached(ends: &[(u64, Usage)]) -> Vec<(u64, u64)> {
    ends.iter()
        .map(|(id, usage)| (*id, usage.cached.get()))
        .collect()
}

#[test]
fn a_second_request_finds_the_prompt_of_the_first_and_pays_for_the_rest() {
    let mut engine = engine(CACHED);
    start_with(&mut engine, 1, 0, tokens(0, 100), 3);
    run(&mut engine);
    start_with(&mut engine, 2, 0, tokens(0, 100), 3);
    let step = stepped(&mut engine);
    let work = step.work[0];
    assert_eq!((work.start, work.count), (Tokens::new(96), Tokens::new(4)));
    assert_eq!((work.fresh, work.reused), (Tokens::new(4), Tokens::new(96)));
    let ends = run(&mut engine);
    assert_eq!(ends[0].1.prompt, Tokens::new(100));
    assert_eq!(ends[0].1.cached, Tokens::new(96));
    let totals = engine.gauges().totals;
    assert_eq!(
        (totals.prompt, totals.reused),
        (Tokens::new(200), Tokens::new(96))
    );
    idle(&mut engine);
}

#[test]
fn an_answer_is_found_by_the_next_turn_of_its_conversation() {
    let mut engine = engine(CACHED);
    start_with(&mut engine, 1, 0, tokens(0, 30), 20);
    run(&mut engine);
    let mut next = tokens(0, 30);
    next.extend([Token::new(-1); 20]);
    next.extend(tokens(1, 5));
    // The token sampled last was never computed.
    assert_eq!(engine.matched(TenantId::new(0), &next), Tokens::new(48));
}

#[test]
fn tenants_with_the_same_prompt_share_nothing_unless_it_was_published() {
    let mut engine = engine(CACHED);
    for (id, tenant) in [(1, 0), (2, 1), (3, 0)] {
        start_with(&mut engine, id, tenant, tokens(0, 100), 1);
        let ends = run(&mut engine);
        assert_eq!(cached(&ends), [(id, if id == 3 { 96 } else { 0 })]);
    }
    engine.publish(tokens(5, 40));
    for (id, tenant, expected) in [(4, 0, 0), (5, 1, 32)] {
        start_with(&mut engine, id, tenant, tokens(5, 60), 1);
        assert_eq!(cached(&run(&mut engine)), [(id, expected)]);
    }
}

#[test]
fn a_burst_of_equal_prompts_computes_them_once() {
    let mut engine = engine(CACHED);
    for id in 0..4 {
        start_with(&mut engine, id, 0, tokens(0, 100), 4);
    }
    let mut computed = 0;
    while engine.gauges().running + engine.gauges().waiting > 0 {
        let step = stepped(&mut engine);
        computed += step.work.iter().map(|work| work.fresh.get()).sum::<u64>();
    }
    assert_eq!(computed, 100 + 3 * 4);
    assert_eq!(engine.gauges().totals.reused, Tokens::new(3 * 96));
}

#[test]
fn prompts_that_begin_alike_by_little_do_not_wait_for_each_other() {
    let mut engine = engine(CACHED);
    let mut other = tokens(0, 20);
    other.extend(tokens(1, 80));
    start_with(&mut engine, 1, 0, tokens(0, 20), 9);
    start_with(&mut engine, 2, 0, other, 9);
    assert_eq!(stepped(&mut engine).work.len(), 2);
}

#[test]
fn who_waits_for_a_prompt_goes_on_when_its_computing_ends() {
    let mut engine = engine(CACHED);
    start_with(&mut engine, 1, 0, tokens(0, 200), 4);
    start_with(&mut engine, 2, 0, tokens(0, 200), 4);
    assert_eq!(stepped(&mut engine).work.len(), 1);
    engine.handle(EngineEvent::Failed {
        id: RequestId::new(1),
    });
    // What was entered before the failure is good; only the rest is computed.
    let step = stepped(&mut engine);
    assert_eq!(
        (step.work[0].id, step.work[0].start),
        (RequestId::new(2), Tokens::new(32))
    );
}

fn younger(engine: &mut Engine, id: u64, elder: u64, prompt: u64) {
    engine.handle(EngineEvent::Start(Start {
        id: RequestId::new(id),
        tenant: TenantId::new(0),
        prompt: tokens(0, prompt),
        max_output: Tokens::new(4),
        elder: Some(RequestId::new(elder)),
        served: Service::ZERO,
        haste: Haste::AtOnce,
    }));
}

#[test]
fn a_younger_request_takes_over_all_but_the_last_token_of_its_elders_prompt() {
    // Also without a cache.
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 40, 4);
    younger(&mut engine, 2, 1, 40);
    younger(&mut engine, 3, 1, 40);
    stepped(&mut engine);
    stepped(&mut engine);
    let step = stepped(&mut engine);
    let starts: Vec<_> = step.work.iter().map(|work| work.start.get()).collect();
    assert_eq!(starts, [40, 39, 39]);
    // Two whole blocks are shared; each has a last one of its own.
    assert_eq!(engine.gauges().blocks_held, KvBlocks::new(2 + 3));
    assert_eq!(cached(&run(&mut engine)), [(1, 0), (2, 39), (3, 39)]);
    idle(&mut engine);
}

#[test]
fn a_younger_request_whose_elder_is_gone_computes_for_itself() {
    let mut engine = engine(CONFIG);
    start(&mut engine, 1, 40, 4);
    younger(&mut engine, 2, 1, 40);
    stepped(&mut engine);
    engine.handle(EngineEvent::Cancel {
        id: RequestId::new(1),
    });
    assert_eq!(stepped(&mut engine).work[0].id, RequestId::new(2));
    run(&mut engine);
    idle(&mut engine);
}

#[test]
fn small_requests_go_on_beside_a_big_one_that_is_not_starved() {
    // 256 blocks; one of 63 runs, and one of 219 waits.
    let mut engine = engine(Config {
        blocks: 256,
        sequences: 8,
        context: Tokens::new(4_096),
        waiting_max: 100,
        ..CONFIG
    });
    start_with(&mut engine, 0, 0, tokens(0, 600), 400);
    for _ in 0..20 {
        stepped(&mut engine);
    }
    start_with(&mut engine, 1, 0, tokens(1, 3_500), 4);
    for id in 2..60 {
        start_with(&mut engine, id, 1, tokens(id, 100), 4);
    }
    let order: Vec<_> = run(&mut engine).into_iter().map(|(id, _)| id).collect();
    let place = |id| order.iter().position(|one| *one == id).unwrap();
    assert!(place(2) < place(0), "small ones proceed: {order:?}");
    let passed = order[..place(1)].iter().filter(|id| **id > 1).count();
    assert_eq!(u32::try_from(passed), Ok(batch::PASSES_MAX), "{order:?}");
}

#[test]
fn no_request_is_preempted_more_often_than_may_be() {
    let mut engine = engine(Config {
        blocks: 9,
        context: Tokens::new(140),
        waiting_max: 50,
        ..CONFIG
    });
    for id in 0..40 {
        start_with(&mut engine, id, 0, tokens(id, 20), 100);
    }
    // `stepped` checks the bound after each step.
    let ends = run(&mut engine);
    assert_eq!(ends.len(), 40);
    assert!(engine.gauges().totals.preemptions > 0);
    idle(&mut engine);
}

#[test]
fn a_preempted_request_finds_what_was_not_evicted() {
    let mut engine = engine(Config {
        blocks: 8,
        cache: CacheConfig {
            prefixes: 8,
            tenant_blocks: KvBlocks::new(8),
        },
        ..CONFIG
    });
    start_with(&mut engine, 1, 0, tokens(1, 20), 60);
    start_with(&mut engine, 2, 0, tokens(2, 20), 60);
    let mut computed = 0;
    while engine.gauges().running + engine.gauges().waiting > 0 {
        computed += stepped(&mut engine)
            .work
            .iter()
            .map(|work| work.count.get())
            .sum::<u64>();
    }
    let ends = usages(&mut engine);
    assert!(engine.gauges().totals.preemptions > 0);
    // Its own KV, found again, is no discount.
    assert_eq!(cached(&ends), [(1, 0), (2, 0)]);
    let without_a_cache = 2 * (20 + 59) + 20 + 40;
    assert!(computed < without_a_cache, "{computed}");
}

#[test]
fn the_tenant_served_most_gives_way() {
    let mut engine = engine(Config {
        blocks: 8,
        ..CONFIG
    });
    // The first is the older one, and its tenant has had its share.
    start_with(&mut engine, 1, 0, tokens(1, 20), 60);
    engine.handle(EngineEvent::Start(Start {
        id: RequestId::new(2),
        tenant: TenantId::new(1),
        prompt: tokens(2, 20),
        max_output: Tokens::new(60),
        elder: None,
        served: Service::ZERO,
        haste: Haste::AtOnce,
    }));
    engine.handle(EngineEvent::Start(Start {
        id: RequestId::new(3),
        tenant: TenantId::new(0),
        prompt: tokens(3, 4),
        max_output: Tokens::new(1),
        elder: None,
        served: Service::new(10_000),
        haste: Haste::AtOnce,
    }));
    let order: Vec<_> = run(&mut engine).into_iter().map(|(id, _)| id).collect();
    assert!(engine.gauges().totals.preemptions > 0);
    assert_eq!(order, [3, 2, 1]);
}

#[test]
fn reserved_room_needs_no_preemption() {
    let mut engine = engine(Config {
        blocks: 8,
        reservation: Reservation::Contiguous,
        ..CONFIG
    });
    for id in 0..4 {
        start_with(&mut engine, id, 0, tokens(id, 20), 60);
    }
    let mut widest = 0;
    while engine.gauges().running + engine.gauges().waiting > 0 {
        widest = widest.max(stepped(&mut engine).work.len());
    }
    assert_eq!((widest, engine.gauges().totals.preemptions), (1, 0));
}

#[test]
fn a_pool_driven_to_exhaustion_for_long_leaks_nothing() {
    let mut engine = engine(Config {
        sequences: 64,
        step_tokens: Tokens::new(128),
        chunk: Tokens::new(64),
        paced: true,
        blocks: 96,
        waiting_max: 200,
        cache: CacheConfig {
            prefixes: 64,
            tenant_blocks: KvBlocks::new(48),
        },
        ..CONFIG
    });
    let mut next = 0;
    // Ten minutes at ten steps a second.
    for _ in 0..6_000 {
        while engine.gauges().waiting < 100 {
            let (text, tenant) = (next % 6, u32::try_from(next % 2).unwrap());
            start_with(
                &mut engine,
                next,
                tenant,
                tokens(text, 20 + next % 90),
                1 + next % 70,
            );
            next += 1;
        }
        let step = engine.plan().unwrap();
        let total = step.work.iter().map(|work| work.count.get()).sum::<u64>();
        assert!(total <= 128 && step.work.len() <= 64);
        let sampled = step.work.iter().filter(|work| work.samples);
        let sampled = sampled.map(|work| Sampled {
            id: work.id,
            token: Token::new(-1),
            ends: false,
        });
        engine.handle(EngineEvent::Stepped {
            sampled: sampled.collect(),
        });
        assert!(effects(&mut engine).len() <= 64);
    }
    run(&mut engine);
    engine.invariants();
    idle(&mut engine);
    assert!(engine.gauges().totals.reused > Tokens::ZERO);
    assert!(engine.gauges().totals.preemptions > 0);
}

/// What an engine takes for 60 requests that come at once, of which seven in ten begin with one of
/// four prompts, by a simple cost of steps. They may say 300 tokens, and end after 30.
fn makespan(config: Config) -> u64 {
    let mut engine = engine(config);
    for id in 0..60 {
        let mut prompt = if id % 10 < 7 {
            tokens(id % 4, 550)
        } else {
            vec![]
        };
        prompt.extend(tokens(100 + id, 40));
        start_with(&mut engine, id, 0, prompt, 300);
    }
    let (mut micros, mut said) = (0, BTreeMap::new());
    while engine.gauges().running + engine.gauges().waiting > 0 {
        let step = engine.plan().unwrap();
        let computed: u64 = step.work.iter().map(|work| work.count.get()).sum();
        micros += 10_000 + 80 * computed;
        for work in step.work.iter().filter(|work| work.samples) {
            *said.entry(work.id).or_insert(0) += 1;
        }
        answer(&mut engine, &step, |id| said.get(&id) == Some(&30));
    }
    micros
}

#[test]
fn each_rung_serves_a_shared_workload_sooner_than_the_one_below() {
    let below = Config {
        sequences: 16,
        blocks: 400,
        step_tokens: Tokens::new(512),
        chunk: Tokens::new(512),
        paced: true,
        context: Tokens::new(1_000),
        waiting_max: 60,
        ..CONFIG
    };
    let with = |scheduler, reservation, cache| {
        makespan(Config {
            scheduler,
            reservation,
            cache,
            ..below
        })
    };
    let cache = CacheConfig {
        prefixes: 64,
        tenant_blocks: KvBlocks::new(200),
    };
    let (off, paged) = (CacheConfig::OFF, Reservation::Paged);
    let rungs = [
        with(Scheduler::Fifo, paged, off),
        with(Scheduler::Static, paged, off),
        with(Scheduler::Continuous, paged, off),
        with(Scheduler::Continuous, paged, cache),
    ];
    let contiguous = with(Scheduler::Continuous, Reservation::Contiguous, off);
    println!("microseconds by rung: {rungs:?}; contiguous: {contiguous}");
    let tenth_less = |slower: &u64, faster: &u64| slower * 9 > faster * 10;
    assert!(rungs.is_sorted_by(tenth_less), "{rungs:?}");
    assert!(tenth_less(&contiguous, &rungs[2]), "{contiguous}");
}
