//! The policy's window in front of an engine that says four times a second how many wait in it.

use tollgate_policy::tenant::Class;
use tollgate_policy::window::{Ask, Bounds, Capacity, Guest, Window};

use super::*;

/// An engine with so many slots, in front of which the window was taken to be 256.
struct Front {
    world: World,
    window: Window,
    sent: u64,
    /// The most that ran at once.
    running: usize,
}

impl Front {
    fn new(slots: u32) -> Self {
        let config = Config {
            slots: NonZeroU32::new(slots).unwrap(),
            cost: Cost {
                step: Micros::from_millis(20),
                per_sequence: Micros::ZERO,
                ..Cost::default()
            },
            kv: Tokens::new(100_000_000),
            ..Config::default()
        };
        let kv = config.kv_blocks();
        let mut window = Window::new(Bounds {
            reach: 4_096,
            ..Bounds::default()
        });
        window.resize(Capacity { sequences: 256, kv });
        Self {
            world: World::new(config),
            window,
            sent: 0,
            running: 0,
        }
    }

    /// Lets a quarter of a second pass in which as many as `wanted` are to run; each is sent as
    /// soon as the window has room, and arrives `late` milliseconds after that.
    fn quarter(&mut self, wanted: u64, late: u64) {
        let ask = Ask {
            class: Class::Standard,
            kv: KvBlocks::new(1),
            prompt: Tokens::new(16),
            may_use_kept: true,
            beside_others: false,
            guest: Guest::No,
            floor: 0,
            tenant_kv: KvBlocks::ZERO,
        };
        let end = self.world.now + Micros::from_millis(250);
        let mut under_way = Vec::new();
        while self.sent < wanted && self.window.room_for(&ask, None).is_ok() {
            self.window.hold(ask.class, ask.kv, Tokens::ZERO);
            self.sent += 1;
            under_way.push(self.sent);
        }
        let arrive = self.world.now + Micros::from_millis(late);
        self.pass(arrive.min(end));
        for id in under_way {
            self.world.ask(id, 16, 8_000);
        }
        self.pass(end);
        let gauges = self.world.engine.gauges();
        self.running = self.running.max(gauges.running);
        let waiting = u32::try_from(gauges.waiting).unwrap();
        self.window.report(waiting, gauges.kv_used);
    }

    fn pass(&mut self, until: Time) {
        while self.world.engine.next_wake().is_some_and(|at| at <= until) {
            self.world.wake();
        }
        self.world.now = until;
    }
}

#[test]
fn a_window_grows_to_what_is_asked_of_an_engine_that_can_do_it() {
    for late in [0, 5, 245] {
        let mut front = Front::new(600);
        for _ in 0..12 {
            front.quarter(512, late);
        }
        assert_eq!((front.sent, front.running), (512, 512), "{late} ms");
    }
}

#[test]
fn a_window_that_grew_past_what_an_engine_can_do_comes_back_to_it() {
    for slots in [64, 300, 600] {
        let mut front = Front::new(slots);
        for _ in 0..40 {
            front.quarter(2_000, 5);
        }
        let limit = front.window.limit();
        let most = slots + slots / 8;
        assert!(limit <= most, "{limit} for {slots} slots");
        assert_eq!(front.running, usize::try_from(slots).unwrap());
    }
}
