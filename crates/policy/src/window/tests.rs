//! What a window lets in, and how it finds its size, by example.

use super::*;

fn window(bounds: Bounds, sequences: u32, kv: u64) -> Window {
    let mut window = Window::new(bounds);
    window.resize(Capacity {
        sequences,
        kv: KvBlocks::new(kv),
    });
    window
}

fn ask(class: Class, kv: u64) -> Ask {
    Ask {
        class,
        kv: KvBlocks::new(kv),
        prompt: Tokens::new(100),
        may_use_kept: false,
        beside_others: false,
        guest: Guest::No,
        floor: 0,
        tenant_kv: KvBlocks::ZERO,
    }
}

fn hold(window: &mut Window, class: Class, kv: u64) {
    window.hold(class, KvBlocks::new(kv), Tokens::ZERO);
}

#[test]
fn a_replica_that_others_have_filled_is_not_empty_because_we_hold_nothing_in_it() {
    let mut window = window(Bounds::default(), 10, 100);
    let reserved = Ask {
        floor: 60,
        ..ask(Class::Reserved, 5)
    };
    window.report(0, KvBlocks::new(97));
    assert_eq!(window.room_for(&reserved, None), Err(Blocked::Kv));
    window.report(0, KvBlocks::new(80));
    assert_eq!(window.room_for(&reserved, None), Ok(()));
}

#[test]
fn what_a_replica_said_of_our_own_is_outdated_when_we_hold_nothing_any_more() {
    let mut window = window(Bounds::default(), 10, 100);
    hold(&mut window, Class::Standard, 90);
    window.report(0, KvBlocks::new(90));
    window.release(Class::Standard, KvBlocks::new(90));
    assert_eq!(window.occupancy(), KvBlocks::ZERO);
    assert_eq!(window.room_for(&ask(Class::Standard, 99), None), Ok(()));
}

#[test]
fn a_tenant_that_is_alone_is_not_held_to_prefill_where_the_replica_keeps_it_back_for_others() {
    for (paced, room) in [(true, Ok(())), (false, Err(Blocked::Prefill))] {
        let bounds = Bounds {
            paced,
            ..Bounds::default()
        };
        let mut window = window(bounds, 10, 1_000);
        let prompt = Tokens::new(100);
        let counted = window.counted(prompt, Haste::WhileAlone);
        window.hold(Class::Standard, KvBlocks::new(1), counted);
        let alone = Ask {
            may_use_kept: true,
            ..ask(Class::Standard, 1)
        };
        assert_eq!(window.room_for(&alone, Some(Tokens::new(50))), room);
        window.hold(Class::Standard, KvBlocks::new(1), prompt);
        let newcomer = Ask {
            beside_others: true,
            ..alone
        };
        let blocked = Err(Blocked::Prefill);
        assert_eq!(window.room_for(&newcomer, Some(Tokens::new(50))), blocked);
    }
}

#[test]
fn more_is_kept_for_a_while_where_newcomers_found_none_up_to_a_bound() {
    let at = |secs| Time::START + Micros::from_secs(secs);
    let mut auto = window(Bounds::default(), 64, 100);
    assert_eq!(auto.headroom(), 2);
    (0..20).for_each(|_| auto.sent_to(Newcomer::Late, at(1)));
    assert_eq!(auto.headroom(), 8);
    auto.sent_to(Newcomer::No, at(10));
    assert_eq!(auto.headroom(), 8);
    auto.sent_to(Newcomer::InTime, at(21));
    assert_eq!(auto.headroom(), 6);
    auto.sent_to(Newcomer::No, at(1_000));
    assert_eq!(auto.headroom(), 2);
    let set = Bounds {
        headroom: Knob::Fixed(5),
        ..Bounds::default()
    };
    let mut set = window(set, 64, 100);
    set.sent_to(Newcomer::Late, at(1));
    assert_eq!(set.headroom(), 5);
}

#[test]
fn a_small_window_keeps_one_for_as_long_as_newcomers_come_once_one_was_late() {
    let at = |secs| Time::START + Micros::from_secs(secs);
    for (sequences, most) in [(3, 0), (4, 1), (8, 1), (9, 2), (15, 2)] {
        let mut small = window(Bounds::default(), sequences, 100);
        small.sent_to(Newcomer::InTime, at(1));
        assert_eq!(small.headroom(), 0, "nobody was late");
        (0..9).for_each(|_| small.sent_to(Newcomer::Late, at(2)));
        assert_eq!(small.headroom(), most, "of {sequences}");
        // Each time the flood goes on, and a newcomer finds its place.
        for secs in [30, 60, 90, 120] {
            small.sent_to(Newcomer::No, at(secs));
            small.sent_to(Newcomer::InTime, at(secs + 20));
        }
        assert_eq!(small.headroom(), most.min(1), "of {sequences}");
        small.sent_to(Newcomer::No, at(199));
        assert_eq!(small.headroom(), most.min(1));
        small.sent_to(Newcomer::No, at(201));
        assert_eq!(small.headroom(), 0, "nobody came for a minute");
    }
}

#[test]
fn each_class_is_let_in_up_to_its_own_threshold() {
    let mut window = window(Bounds::default(), 10, 100);
    hold(&mut window, Class::Standard, 59);
    assert_eq!(window.room_for(&ask(Class::BestEffort, 1), None), Ok(()));
    hold(&mut window, Class::Standard, 1);
    assert_eq!(
        window.room_for(&ask(Class::BestEffort, 6), None),
        Err(Blocked::Kv)
    );
    assert_eq!(
        window.room_for(&ask(Class::BestEffort, 5), None),
        Ok(()),
        "its minimum"
    );
    assert_eq!(window.room_for(&ask(Class::Standard, 25), None), Ok(()));
    assert_eq!(
        window.room_for(&ask(Class::Standard, 26), None),
        Err(Blocked::Kv)
    );
    let reserved = Ask {
        floor: 40,
        ..ask(Class::Reserved, 32)
    };
    assert_eq!(window.room_for(&reserved, None), Ok(()));
    let over_floor = Ask {
        tenant_kv: KvBlocks::new(9),
        ..reserved
    };
    assert_eq!(window.room_for(&over_floor, None), Err(Blocked::Kv));
    let too_much = Ask {
        floor: 100,
        ..ask(Class::Reserved, 33)
    };
    assert_eq!(
        window.room_for(&too_much, None),
        Err(Blocked::Kv),
        "never past 92"
    );
}

#[test]
fn what_the_replica_says_counts_where_it_is_more_than_was_reserved() {
    let mut window = window(Bounds::default(), 10, 100);
    hold(&mut window, Class::Standard, 10);
    window.report(0, KvBlocks::new(84));
    assert_eq!(
        window.room_for(&ask(Class::Standard, 2), None),
        Err(Blocked::Kv)
    );
    assert_eq!(window.room_for(&ask(Class::Standard, 1), None), Ok(()));
}

#[test]
fn the_last_sequences_are_kept_for_tenants_below_their_share() {
    let mut window = window(Bounds::default(), 64, 10_000);
    for _ in 0..62 {
        assert_eq!(window.room_for(&ask(Class::Standard, 1), None), Ok(()));
        hold(&mut window, Class::Standard, 1);
    }
    assert_eq!(
        window.room_for(&ask(Class::Standard, 1), None),
        Err(Blocked::Headroom)
    );
    let below = Ask {
        may_use_kept: true,
        ..ask(Class::Standard, 1)
    };
    assert_eq!(window.room_for(&below, None), Ok(()));
}

const GUESTS: Bounds = Bounds {
    guests: 3,
    headroom: Knob::Fixed(0),
    concurrency: Knob::Auto,
    reach: 0,
    prefill: Knob::Auto,
    paced: true,
    thresholds: Bounds::open().thresholds,
};

#[test]
fn beyond_what_it_can_run_a_replica_takes_guests_alone_and_the_last_one_for_a_moment() {
    let mut full = window(GUESTS, 4, 1_000);
    (0..4).for_each(|_| hold(&mut full, Class::Standard, 1));
    let flood = ask(Class::Standard, 1);
    let newcomer = |guest| Ask {
        may_use_kept: true,
        beside_others: true,
        guest,
        ..flood
    };
    let (staying, brief) = (newcomer(Guest::Staying), newcomer(Guest::Brief));
    let none = Err(Blocked::Guests);
    assert_eq!(full.room_for(&flood, None), none);
    assert_eq!(
        full.room_for(&newcomer(Guest::No), None),
        none,
        "nobody gives it a place"
    );
    let behind = Ask {
        may_use_kept: false,
        ..brief
    };
    assert_eq!(full.room_for(&behind, None), none, "somebody is before it");
    assert_eq!(full.guests_taken(), 0);
    for _ in 0..2 {
        assert_eq!(full.room_for(&staying, None), Ok(()));
        hold(&mut full, Class::Standard, 1);
    }
    assert_eq!(
        (full.room_for(&staying, None), full.room_for(&brief, None)),
        (none, Ok(()))
    );
    hold(&mut full, Class::Standard, 1);
    assert_eq!(full.room_for(&brief, None), Err(Blocked::Sequences));
    assert_eq!(full.guests_taken(), 3);
}

#[test]
fn a_window_smaller_than_its_replica_has_no_guests_and_one_with_guests_keeps_nothing() {
    let auto = Bounds {
        headroom: Knob::Auto,
        ..GUESTS
    };
    assert_eq!(window(auto, 8, 1_000).headroom(), 0);
    let narrow = Bounds {
        concurrency: Knob::Fixed(NonZeroU32::MIN),
        ..GUESTS
    };
    let mut narrow = window(narrow, 4, 1_000);
    hold(&mut narrow, Class::Standard, 1);
    let brief = Ask {
        may_use_kept: true,
        beside_others: true,
        guest: Guest::Brief,
        ..ask(Class::Standard, 1)
    };
    assert_eq!(narrow.room_for(&brief, None), Err(Blocked::Sequences));
}

#[test]
fn what_is_full_says_so_and_what_keeps_a_place_says_that() {
    let kept = Bounds {
        headroom: Knob::Fixed(1),
        ..GUESTS
    };
    let why = |bounds, held: u32, kv: u64| {
        let mut window = window(bounds, 4, 100);
        (0..held).for_each(|_| hold(&mut window, Class::Standard, 20));
        window
            .room_for(&ask(Class::Standard, kv), None)
            .unwrap_err()
            .label()
    };
    assert_eq!(
        (why(kept, 3, 1), why(kept, 4, 1)),
        ("headroom", "sequences")
    );
    let none = Bounds { guests: 0, ..kept };
    assert_eq!(
        (why(none, 3, 1), why(none, 4, 1)),
        ("headroom", "sequences")
    );
    assert_eq!(why(kept, 2, 90), "kv", "a place is free");
    assert_eq!(
        why(kept, 4, 90),
        "sequences",
        "guests may pass it until one is"
    );
}

#[test]
fn prefill_in_flight_is_bounded_but_never_to_nothing() {
    let mut window = window(Bounds::default(), 64, 10_000);
    let bearable = Some(Tokens::new(250));
    hold(&mut window, Class::Standard, 1);
    assert_eq!(
        window.room_for(&ask(Class::Standard, 1), Some(Tokens::new(10))),
        Ok(())
    );
    window.hold(Class::Standard, KvBlocks::new(1), Tokens::new(100));
    assert_eq!(window.room_for(&ask(Class::Standard, 1), bearable), Ok(()));
    window.hold(Class::Standard, KvBlocks::new(1), Tokens::new(100));
    assert_eq!(
        window.room_for(&ask(Class::Standard, 1), bearable),
        Err(Blocked::Prefill)
    );
    let below = Ask {
        may_use_kept: true,
        beside_others: true,
        ..ask(Class::Standard, 1)
    };
    assert_eq!(
        window.room_for(&below, bearable),
        Ok(()),
        "up to as much again, beside others"
    );
    window.prefilled(Tokens::new(100));
    assert_eq!(window.room_for(&ask(Class::Standard, 1), bearable), Ok(()));
}

#[test]
fn it_shrinks_while_sequences_wait_inside_and_grows_back_when_used_up() {
    let mut window = window(Bounds::default(), 10, 1_000);
    for _ in 0..10 {
        hold(&mut window, Class::Standard, 1);
    }
    window.report(3, KvBlocks::ZERO);
    assert_eq!(window.limit(), 10, "they may just not have begun");
    window.report(3, KvBlocks::ZERO);
    assert_eq!((window.limit(), window.moved()), (7, Moved::Shrank));
    for _ in 0..3 {
        window.release(Class::Standard, KvBlocks::new(1));
    }
    window.report(0, KvBlocks::ZERO);
    assert_eq!((window.limit(), window.moved()), (8, Moved::Grew));
    window.report(0, KvBlocks::ZERO);
    assert_eq!(
        window.limit(),
        8,
        "it does not grow while it is not used up"
    );
}

#[test]
fn a_window_that_shrank_grows_back_though_some_of_it_is_kept_for_others() {
    let mut window = window(Bounds::default(), 1_024, 1_000_000);
    let fill = |window: &mut Window| {
        while window.room_for(&ask(Class::Standard, 1), None).is_ok() {
            hold(window, Class::Standard, 1);
        }
    };
    fill(&mut window);
    let running = window.sequences();
    for _ in 0..3 {
        window.report(running / 2, KvBlocks::ZERO);
    }
    assert_eq!(window.moved(), Moved::Shrank);
    for _ in 0..running / 2 + 50 {
        window.release(Class::Standard, KvBlocks::new(1));
    }
    for _ in 0..20 {
        fill(&mut window);
        window.report(0, KvBlocks::ZERO);
    }
    assert!(window.headroom() > 0, "some is kept");
    assert_eq!((window.limit(), window.moved()), (1_024, Moved::Grew));
}

#[test]
fn sequences_that_were_long_under_way_are_not_taken_for_a_queue() {
    let guessed = Bounds {
        reach: 4_096,
        ..Bounds::default()
    };
    let mut window = window(guessed, 1_000, 1_000_000);
    for round in 0..20 {
        // Each time others have just arrived, and those of the last time have begun.
        for _ in 0..25 {
            hold(&mut window, Class::Standard, 1);
        }
        window.report(20, KvBlocks::ZERO);
        window.report(if round % 2 == 0 { 20 } else { 0 }, KvBlocks::ZERO);
        window.report(0, KvBlocks::ZERO);
    }
    assert_eq!((window.limit(), window.sequences()), (1_000, 500));
}

#[test]
fn a_window_of_guessed_size_follows_what_is_asked_while_none_waits_inside_and_the_pace_is_kept() {
    let guessed = Bounds {
        reach: 4_096,
        ..Bounds::default()
    };
    let mut window = window(guessed, 256, 1_000_000);
    let fill_and_report = |window: &mut Window, reports: u32| {
        for _ in 0..reports {
            while window.room_for(&ask(Class::Standard, 1), None).is_ok() {
                hold(window, Class::Standard, 1);
            }
            window.report(0, KvBlocks::ZERO);
        }
    };
    window.report(0, KvBlocks::ZERO);
    assert_eq!(window.limit(), 256, "nobody asks for more");
    window.note_pace(Pace::Missed);
    fill_and_report(&mut window, 10);
    assert_eq!(window.limit(), 256, "it is slow enough as it is");
    window.note_pace(Pace::Kept);
    fill_and_report(&mut window, 10);
    assert!(window.limit() >= 512, "{}", window.limit());
    fill_and_report(&mut window, 30);
    assert_eq!((window.limit(), window.moved()), (4_096, Moved::Grew));
    for _ in 0..3 {
        window.report(96, KvBlocks::ZERO);
    }
    assert!(window.limit() < 4_000, "as soon as some wait inside");
}

#[test]
fn a_replica_that_never_says_what_it_holds_is_not_full_for_ever() {
    let mut window = window(Bounds::default(), 10, 100);
    hold(&mut window, Class::Standard, 5);
    for _ in 0..50 {
        hold(&mut window, Class::Standard, 5);
        window.release(Class::Standard, KvBlocks::new(5));
    }
    assert_eq!(window.occupancy(), KvBlocks::new(5));
    assert_eq!(window.room_for(&ask(Class::Standard, 50), None), Ok(()));
}

#[test]
fn what_was_sent_since_a_report_counts_on_top_of_it() {
    let mut window = window(Bounds::default(), 10, 100);
    window.report(0, KvBlocks::new(60));
    hold(&mut window, Class::Standard, 20);
    assert_eq!(window.occupancy(), KvBlocks::new(80));
    window.report(0, KvBlocks::new(70));
    assert_eq!(window.occupancy(), KvBlocks::new(70));
}

#[test]
fn a_replica_that_never_reports_is_not_taken_for_a_full_one() {
    let mut window = window(Bounds::default(), 10, 100);
    for _ in 0..100 {
        hold(&mut window, Class::Standard, 20);
        window.release(Class::Standard, KvBlocks::new(20));
    }
    assert_eq!(window.occupancy(), KvBlocks::ZERO);
}

#[test]
fn a_replica_that_is_back_is_given_more_with_each_answer() {
    let mut window = window(Bounds::default(), 10, 1_000);
    window.warm_up();
    assert_eq!((window.limit(), window.moved()), (2, Moved::Returned));
    for _ in 0..2 {
        hold(&mut window, Class::Standard, 1);
    }
    assert_eq!(
        window.room_for(&ask(Class::Standard, 1), None),
        Err(Blocked::Sequences)
    );
    for answered in 1..8 {
        window.answered();
        assert_eq!(window.limit(), 2 + answered);
    }
    window.answered();
    assert_eq!((window.limit(), window.warming), (10, None));
}

#[test]
fn a_request_that_is_alone_fits_whatever_it_is_expected_to_grow_to() {
    let window = window(Bounds::default(), 4, 10);
    assert_eq!(
        window.room_for(&ask(Class::BestEffort, 1_000), None),
        Ok(())
    );
}

#[test]
fn what_was_held_is_given_back_whole() {
    let mut window = window(Bounds::default(), 4, 10);
    window.hold(Class::BestEffort, KvBlocks::new(6), Tokens::new(9));
    window.prefilled(Tokens::new(9));
    window.release(Class::BestEffort, KvBlocks::new(6));
    assert_eq!(window.held, Held::default());
}
