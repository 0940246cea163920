//! The planner by examples.

use super::*;

const ROOMY: Limits = Limits {
    tokens: Tokens::new(512),
    chunk: Tokens::new(512),
    pace: None,
    blocks: KvBlocks::new(1_000),
    seats: 8,
    places: 8,
    order: Order::DecodeFirst,
    scheduler: Scheduler::Continuous,
    joinable: false,
};

fn running(known: u64, computed: u64) -> View {
    let (known, computed) = (Tokens::new(known), Tokens::new(computed));
    View {
        known,
        computed,
        held: computed.blocks(),
        sole: computed.blocks(),
        reserved: None,
        served: Service::ZERO,
        running: 1,
        paced: false,
        gives: true,
    }
}

fn served(known: u64, computed: u64, served: u64) -> View {
    View {
        served: Service::new(served),
        ..running(known, computed)
    }
}

fn waiting(known: u64) -> Candidate {
    Candidate {
        known: Tokens::new(known),
        matched: Tokens::ZERO,
        held: KvBlocks::ZERO,
        idle: KvBlocks::ZERO,
        reserved: None,
        seated: false,
        gave: None,
        passed: 0,
        hold: Hold::No,
        paced: false,
        brief: false,
        served: Service::ZERO,
        running: 0,
    }
}

fn share(index: usize, count: u64) -> Share {
    Share {
        index,
        count: Tokens::new(count),
    }
}

fn blocks(blocks: u64) -> Limits {
    Limits {
        blocks: KvBlocks::new(blocks),
        ..ROOMY
    }
}

#[test]
fn a_long_prompt_gets_what_the_decodes_leave() {
    let running = [running(2_000, 0), running(31, 30), running(9, 8)];
    let plan = plan(&running, &[], ROOMY);
    assert_eq!(plan.shares, [share(0, 510), share(1, 1), share(2, 1)]);
}

#[test]
fn a_chunk_bounds_what_one_sequence_computes() {
    let limits = Limits {
        chunk: Tokens::new(100),
        ..ROOMY
    };
    let plan = plan(&[running(2_000, 0)], &[waiting(300)], limits);
    assert_eq!(
        (plan.shares, plan.admit),
        (vec![share(0, 100)], vec![share(0, 100)])
    );
}

#[test]
fn prefill_first_may_leave_the_decodes_nothing() {
    let limits = Limits {
        order: Order::PrefillFirst,
        ..ROOMY
    };
    let plan = plan(&[running(31, 30)], &[waiting(600)], limits);
    assert_eq!((plan.shares, plan.admit), (vec![], vec![share(0, 512)]));
}

#[test]
fn prompts_are_admitted_in_order_until_the_budget_is_spent() {
    let plan = plan(&[], &[waiting(500), waiting(100), waiting(3)], ROOMY);
    assert_eq!(plan.admit, [share(0, 500), share(1, 12)]);
}

#[test]
fn nobody_is_admitted_without_a_sequence_id() {
    let plan = plan(&[], &[waiting(5), waiting(5)], Limits { seats: 1, ..ROOMY });
    assert_eq!(plan.admit, [share(0, 5)]);
}

#[test]
fn a_sequence_that_kept_its_id_needs_no_other() {
    let seated = Candidate {
        seated: true,
        ..waiting(5)
    };
    let plan = plan(&[], &[seated, waiting(5)], Limits { seats: 0, ..ROOMY });
    assert_eq!(plan.admit, [share(0, 5)]);
}

#[test]
fn a_decode_without_a_block_takes_those_of_the_newest() {
    let running = [running(17, 16), running(20, 19), running(33, 32)];
    let plan = plan(&running, &[], blocks(0));
    assert_eq!(plan.preempt, [2]);
    assert_eq!(plan.shares, [share(0, 1), share(1, 1)]);
}

#[test]
fn the_victim_is_the_newest_of_the_tenant_served_most() {
    let running = [
        served(40, 39, 900),
        served(40, 39, 900),
        served(17, 16, 5),
        served(40, 39, 100),
    ];
    let plan = plan(&running, &[], blocks(0));
    assert_eq!(plan.preempt, [1]);
    assert_eq!(plan.shares, [share(0, 1), share(2, 1), share(3, 1)]);
}

#[test]
fn nobody_takes_from_a_tenant_that_was_served_less() {
    let plan = plan(&[served(17, 16, 900), served(40, 39, 5)], &[], blocks(0));
    assert_eq!((plan.preempt, plan.shares), (vec![], vec![share(1, 1)]));
}

#[test]
fn what_is_reserved_is_neither_taken_nor_given_away() {
    let reserved = View {
        reserved: Some(Tokens::new(64)),
        ..served(17, 16, 900)
    };
    // Three blocks are set aside for it, and three are free: the other one gets nothing.
    let plan = plan(&[reserved, served(17, 16, 5)], &[], blocks(3));
    assert_eq!((plan.preempt, plan.shares), (vec![], vec![share(0, 1)]));
}

#[test]
fn a_victim_gives_only_what_it_alone_holds() {
    let sharer = View {
        sole: KvBlocks::new(0),
        ..running(20, 19)
    };
    let plan = plan(&[running(17, 16), running(40, 39), sharer], &[], blocks(0));
    assert_eq!(plan.preempt, [1]);
}

#[test]
fn the_newest_without_a_block_waits_and_keeps_what_it_has() {
    let plan = plan(&[running(20, 19), running(17, 16)], &[], blocks(0));
    assert_eq!((plan.preempt, plan.shares), (vec![], vec![share(0, 1)]));
}

#[test]
fn work_already_given_to_a_victim_is_taken_back() {
    let limits = Limits {
        tokens: Tokens::new(2),
        seats: 0,
        ..blocks(0)
    };
    // The newer one decodes first; then the older one's prompt finds no block.
    let plan = plan(&[running(40, 16), running(20, 19)], &[], limits);
    assert_eq!(plan.preempt, [1]);
    assert_eq!(plan.shares, [share(0, 2)]);
}

#[test]
fn a_chunk_shrinks_to_the_blocks_there_are_before_anyone_is_preempted() {
    let plan = plan(&[running(100, 8), running(20, 19)], &[], blocks(1));
    assert_eq!(plan.preempt, Vec::<usize>::new());
    assert_eq!(plan.shares, [share(0, 24), share(1, 1)]);
}

#[test]
fn a_newcomer_waits_until_its_whole_prompt_fits_beside_what_others_are_owed() {
    // The runner is owed 3 blocks more and one to grow into; 5 are free, so one is left.
    let view = View {
        held: KvBlocks::new(1),
        ..running(64, 15)
    };
    let limits = Limits {
        tokens: Tokens::new(1),
        ..blocks(5)
    };
    let roomy = Limits {
        tokens: Tokens::new(20),
        ..limits
    };
    assert_eq!(plan(&[view], &[waiting(17)], limits).admit, []);
    assert_eq!(plan(&[view], &[waiting(17)], roomy).admit, []);
    let done = View {
        computed: Tokens::new(63),
        held: KvBlocks::new(4),
        ..view
    };
    assert_eq!(plan(&[done], &[waiting(17)], roomy).admit, [share(0, 17)]);
}

#[test]
fn a_lone_sequence_may_use_the_whole_pool() {
    assert_eq!(plan(&[], &[waiting(64)], blocks(4)).admit, [share(0, 64)]);
    // Also where all of it holds a prefix that it uses.
    let matched = Candidate {
        matched: Tokens::new(48),
        held: KvBlocks::new(3),
        idle: KvBlocks::new(3),
        ..waiting(64)
    };
    assert_eq!(plan(&[], &[matched], blocks(4)).admit, [share(0, 16)]);
}

#[test]
fn who_fits_passes_who_does_not_but_not_for_ever() {
    let big = waiting(160);
    let small = waiting(16);
    let limits = blocks(8);
    let plan_of = |passed| {
        let big = Candidate { passed, ..big };
        plan(&[running(16, 15)], &[big, small, small], limits)
    };
    let early = plan_of(0);
    assert_eq!(early.admit, [share(1, 16), share(2, 16)]);
    assert_eq!(early.passed, [0, 0]);
    assert_eq!(plan_of(PASSES_MAX - 1).admit, [share(1, 16)]);
    assert_eq!(plan_of(PASSES_MAX).admit, []);
}

#[test]
fn nobody_passes_one_that_was_preempted() {
    let big = Candidate {
        seated: true,
        ..waiting(160)
    };
    assert_eq!(
        plan(&[running(16, 15)], &[big, waiting(16)], blocks(8)).admit,
        []
    );
}

#[test]
fn one_that_could_share_waits_for_the_one_that_computes() {
    let held = Candidate {
        hold: Hold::With(0),
        ..waiting(40)
    };
    let plan_of = |first, budget| {
        let limits = Limits {
            tokens: Tokens::new(budget),
            ..blocks(8)
        };
        plan(&[], &[first, held], limits).admit
    };
    assert_eq!(plan_of(waiting(40), 512), [share(0, 40)]);
    // The first can't start, so the second need not wait for it.
    let stuck = Candidate {
        hold: Hold::Running,
        ..waiting(40)
    };
    assert_eq!(plan_of(stuck, 512), [share(1, 40)]);
}

#[test]
fn fifo_runs_one_and_static_a_batch_at_a_time() {
    let plan_of = |scheduler, running: &[View]| {
        let limits = Limits { scheduler, ..ROOMY };
        let plan = plan(running, &[waiting(4), waiting(4)], limits);
        plan.admit.len()
    };
    let one = [running(31, 30)];
    for (scheduler, alone, beside) in [
        (Scheduler::Fifo, 1, 0),
        (Scheduler::Static, 2, 0),
        (Scheduler::Continuous, 2, 2),
    ] {
        let counts = (plan_of(scheduler, &[]), plan_of(scheduler, &one));
        assert_eq!(counts, (alone, beside), "{scheduler:?}");
    }
}

#[test]
fn a_paced_prompt_is_computed_a_part_in_each_step_and_a_decode_of_its_tenant_goes_on() {
    let limits = Limits {
        pace: Some(Tokens::new(40)),
        ..ROOMY
    };
    let paced = |view: View| View {
        paced: true,
        ..view
    };
    let running = [
        paced(running(100, 99)),
        paced(running(100, 0)),
        paced(running(100, 0)),
    ];
    let plan = plan(&running, &[], limits);
    let counts = plan.shares.iter().map(|share| share.count.get());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 40]);
}

#[test]
fn a_prompt_that_is_not_paced_is_computed_whole_and_the_paced_ones_give_way_to_it() {
    let limits = Limits {
        pace: Some(Tokens::new(120)),
        ..ROOMY
    };
    let paced = Candidate {
        paced: true,
        ..waiting(200)
    };
    let plan = plan(&[], &[paced, waiting(100)], limits);
    let counts = plan.admit.iter().map(|share| share.count.get());
    assert_eq!(counts.collect::<Vec<_>>(), [20, 100]);
    let plan = super::plan(&[], &[paced, waiting(300)], limits);
    let counts = plan.admit.iter().map(|share| share.count.get());
    assert_eq!(counts.collect::<Vec<_>>(), [16, 300], "they always go on");
}

/// Two sequences of a tenant that was served 9, the first one of two tokens, and one that was
/// served 5.
fn full() -> [View; 3] {
    let much = View {
        running: 2,
        ..served(31, 30, 9)
    };
    [much, served(31, 30, 5), much]
}

const FULL: Limits = Limits { places: 0, ..ROOMY };

#[test]
fn who_was_served_least_takes_the_newest_place_of_who_was_served_most() {
    let plan = plan(&full(), &[waiting(20)], FULL);
    assert_eq!(plan.preempt, [2]);
    assert_eq!(plan.shares, [share(0, 1), share(1, 1)]);
    assert_eq!(plan.admit, [share(0, 20)]);
}

#[test]
fn one_place_changes_hands_in_a_step() {
    let plan = plan(&full(), &[waiting(20), waiting(30)], FULL);
    assert_eq!((plan.preempt, plan.admit), (vec![2], vec![share(0, 20)]));
}

#[test]
fn no_place_is_taken_from_who_had_no_more_or_runs_no_more() {
    let none = |one: Candidate| {
        let plan = plan(&full(), &[one], FULL);
        (plan.preempt, plan.admit) == (vec![], vec![])
    };
    let asks = |served: u64, running: usize| Candidate {
        served: Service::new(served),
        running,
        ..waiting(20)
    };
    assert!(!none(asks(8, 0)));
    assert!(none(asks(9, 0)), "it was served as much");
    assert!(none(asks(0, 1)), "then it would run more");
}

#[test]
fn what_has_its_room_set_aside_keeps_its_place() {
    let mut running = full();
    running[2].reserved = Some(Tokens::new(40));
    assert_eq!(plan(&running, &[waiting(20)], FULL).preempt, [0]);
    running[0].reserved = Some(Tokens::new(40));
    assert_eq!(plan(&running, &[waiting(20)], FULL).preempt, []);
}

#[test]
fn who_gave_up_a_place_waits_for_one_and_lets_others_by() {
    let gave = Candidate {
        seated: true,
        served: Service::new(9),
        running: 2,
        ..waiting(31)
    };
    let plan = |places: usize| {
        let limits = Limits { places, ..ROOMY };
        plan(&full(), &[gave, waiting(20)], limits)
    };
    let busy = plan(0);
    assert_eq!((busy.admit, busy.delayed), (vec![share(1, 20)], 1));
    let free = plan(1);
    assert_eq!(
        (free.preempt, free.admit),
        (vec![2], vec![share(0, 31), share(1, 20)])
    );
}

/// One that gave up its place, of a tenant that was served 9 and runs one more, to compute so much
/// again, so many steps ago.
fn gave(again: u64, steps: u32) -> Candidate {
    Candidate {
        seated: true,
        gave: Some(steps),
        matched: Tokens::new(800 - again),
        held: KvBlocks::new((800 - again) / 16),
        served: Service::new(9),
        running: 1,
        ..waiting(800)
    }
}

const ONE_FREE: Limits = Limits {
    tokens: Tokens::new(2_000),
    chunk: Tokens::new(2_000),
    places: 1,
    ..ROOMY
};

#[test]
fn a_newcomer_goes_before_who_gave_up_its_place_for_as_long_as_that_would_keep_it() {
    let first = |steps| {
        let plan = plan(&full()[..2], &[gave(160, steps), waiting(20)], ONE_FREE);
        (plan.admit[0].index, plan.delayed)
    };
    assert_eq!(
        (first(0), first(19)),
        ((1, 1), (1, 1)),
        "an eighth of 160 tokens"
    );
    assert_eq!(first(20).0, 0);
    let of = |other: Candidate| plan(&full()[..2], &[gave(16, 3), other], ONE_FREE).admit[0].index;
    assert_eq!(of(waiting(20)), 1, "a block at least");
    let served = Candidate {
        served: Service::new(9),
        ..waiting(20)
    };
    assert_eq!(of(served), 0, "it was served as much");
    let runs = Candidate {
        running: 1,
        ..waiting(20)
    };
    assert_eq!(of(runs), 0, "then it would run more");
    let none = gave(16, 3);
    let none = Candidate { running: 0, ..none };
    let plan = plan(&full()[1..2], &[none, waiting(20)], ONE_FREE);
    assert_eq!(plan.admit[0].index, 0, "its tenant has no other place");
}

#[test]
fn who_would_compute_much_again_leaves_the_last_place_empty_for_a_while() {
    let admits = |again, steps, places| {
        let limits = Limits { places, ..ONE_FREE };
        let plan = plan(&full()[..2], &[gave(again, steps)], limits);
        (plan.admit.len(), plan.delayed)
    };
    assert_eq!(admits(320, 39, 1), (0, 1), "an eighth of 320");
    assert_eq!(admits(320, 40, 1), (1, 0));
    assert_eq!(admits(320, 0, 2), (1, 0), "another one is left");
    assert_eq!(
        admits(7, 0, 1),
        (1, 0),
        "there is next to nothing to compute"
    );
    let much = Candidate {
        matched: Tokens::ZERO,
        held: KvBlocks::ZERO,
        ..gave(0, 127)
    };
    let much = |steps| Candidate {
        known: Tokens::new(1_600),
        gave: Some(steps),
        ..much
    };
    let admits = |one| plan(&full()[..2], &[one], ONE_FREE).admit.len();
    assert_eq!(
        (admits(much(127)), admits(much(128))),
        (0, 1),
        "and no longer than that"
    );
}

#[test]
fn the_place_that_is_left_empty_is_for_those_alone_that_would_be_given_it() {
    let others = [
        gave(320, 0),
        gave(16, 30),
        Candidate {
            served: Service::new(9),
            ..waiting(20)
        },
    ];
    let plan = plan(&full()[..2], &others, ONE_FREE);
    assert_eq!((plan.admit, plan.delayed), (vec![], 2));
}

#[test]
fn who_is_over_soon_takes_the_only_place_of_a_tenant_that_was_served_more() {
    let running = [served(31, 30, 9), served(31, 30, 5)];
    let brief = Candidate {
        brief: true,
        ..waiting(20)
    };
    assert_eq!(plan(&running, &[waiting(20)], FULL).preempt, []);
    assert_eq!(plan(&running, &[brief], FULL).preempt, [0]);
    let another = Candidate {
        running: 1,
        ..brief
    };
    assert_eq!(plan(&running, &[another], FULL).preempt, []);
}

#[test]
fn one_that_gave_up_its_place_and_does_not_fit_lets_others_by_for_a_while() {
    let limits = Limits {
        blocks: KvBlocks::new(10),
        ..ONE_FREE
    };
    let of = |passed| {
        let gave = Candidate {
            passed,
            ..gave(800, 200)
        };
        plan(&full()[..2], &[gave, waiting(20)], limits).admit
    };
    assert_eq!((of(0), of(PASSES_MAX)), (vec![share(1, 20)], vec![]));
}
