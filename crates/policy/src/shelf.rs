//! Which models are loaded, where a device has no room for all of them: one is loaded when it is
//! first asked for, and what is used least goes to make room.
//!
//! Used least is counted with half-lives, so that frequency counts and old fame fades; of equals
//! the one unused for longest goes. One that works, or that somebody waits for, never goes. On a
//! device one is loaded or unloaded at a time: two that load at once can each find the room that is
//! there for one. Whether a replica works is not decided here.

use crate::units::{KvBytes, Micros, Time};

/// What it takes to have a model loaded, for one that is loaded only when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// The device it is loaded on; those with the same number share it.
    pub device: u32,
    /// Memory it takes there.
    pub memory: KvBytes,
    /// Memory that the device has for all of them.
    pub room: KvBytes,
}

/// Where a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not on its device.
    Away,
    /// Asked for since then, and not yet begun to be loaded.
    Wanted(Time),
    /// Being loaded since then.
    Coming(Time),
    /// On its device.
    Here,
    /// Being unloaded, and asked for again since then, if it is.
    Going(Option<Time>),
}

/// One model on the shelf.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    loading: Loading,
    presence: Presence,
    /// Requests, each counted half as much with each half-life.
    uses: u64,
    used: Time,
    /// How long it took to load, when it was loaded last.
    took: Option<Micros>,
}

/// What to do next on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Load this one.
    Load(usize),
    /// Unload this one.
    Unload(usize),
}

impl Item {
    /// What a use counts, so that there is something to halve.
    const USE: u64 = 1 << 20;

    const HALF_LIFE: Micros = Micros::from_secs(600);

    /// One that is not loaded.
    pub const fn new(loading: Loading) -> Self {
        Self {
            loading,
            presence: Presence::Away,
            uses: 0,
            used: Time::START,
            took: None,
        }
    }

    /// Where it is.
    pub const fn presence(&self) -> Presence {
        self.presence
    }

    /// Somebody asks for it.
    pub fn ask(&mut self, now: Time) {
        self.uses = self.faded(now).saturating_add(Self::USE);
        self.used = now;
        match self.presence {
            Presence::Away => self.presence = Presence::Wanted(now),
            Presence::Going(None) => self.presence = Presence::Going(Some(now)),
            Presence::Wanted(_) | Presence::Coming(_) | Presence::Here | Presence::Going(_) => {}
        }
    }

    /// It is on its device.
    pub const fn came(&mut self, now: Time) {
        if let Presence::Coming(since) = self.presence {
            self.took = Some(now.since(since));
        }
        self.presence = Presence::Here;
    }

    /// It has left its device.
    pub const fn went(&mut self) {
        self.presence = match self.presence {
            Presence::Going(Some(since)) => Presence::Wanted(since),
            Presence::Going(None)
            | Presence::Away
            | Presence::Wanted(_)
            | Presence::Coming(_)
            | Presence::Here => Presence::Away,
        };
    }

    /// How long a newcomer waits until it is there, as far as is known.
    pub fn wait(&self, now: Time) -> Option<Micros> {
        match self.presence {
            Presence::Here => None,
            Presence::Away | Presence::Wanted(_) | Presence::Going(_) => self.took,
            Presence::Coming(since) => {
                let took = self.took?.get();
                Some(Micros::new(took.saturating_sub(now.since(since).get())))
            }
        }
    }

    fn faded(&self, now: Time) -> u64 {
        let lives = now.since(self.used).get() / Self::HALF_LIFE.get();
        let lives = u32::try_from(lives).unwrap_or(u32::MAX);
        self.uses.checked_shr(lives).unwrap_or(0)
    }

    const fn takes_room(&self) -> bool {
        match self.presence {
            Presence::Away | Presence::Wanted(_) => false,
            Presence::Coming(_) | Presence::Here | Presence::Going(_) => true,
        }
    }
}

/// The next thing to do among `items`, of which `None` are models that are always loaded, where
/// `is_idle` says which have nothing to do. It is marked as begun.
pub fn next(
    items: &mut [Option<Item>],
    is_idle: impl Fn(usize) -> bool,
    now: Time,
) -> Option<Step> {
    let mut wanted: Vec<(Time, usize)> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        if let Some(Presence::Wanted(since)) = item.map(|item| item.presence) {
            wanted.push((since, at));
        }
    }
    wanted.sort_unstable();
    for (_, at) in wanted {
        let Some(loading) = items.get(at).copied().flatten().map(|item| item.loading) else {
            continue;
        };
        if let Some(step) = make_room(items, (at, loading), &is_idle, now) {
            begin(items, step, now);
            return Some(step);
        }
    }
    None
}

fn make_room(
    items: &[Option<Item>],
    (at, loading): (usize, Loading),
    is_idle: &impl Fn(usize) -> bool,
    now: Time,
) -> Option<Step> {
    let beside = || {
        let each = items.iter().enumerate();
        let present = each.filter_map(|(at, item)| Some((at, (*item)?)));
        present.filter(|(_, item)| item.loading.device == loading.device && item.takes_room())
    };
    if beside().any(|(_, item)| item.presence != Presence::Here) {
        return None;
    }
    let held = beside().fold(0, |sum: u64, (_, item)| {
        sum.saturating_add(item.loading.memory.get())
    });
    let needed = held.saturating_add(loading.memory.get());
    if needed <= loading.room.get() {
        return Some(Step::Load(at));
    }
    let idle = || beside().filter(|(at, _)| is_idle(*at));
    let could_go: u64 = idle().map(|(_, item)| item.loading.memory.get()).sum();
    if needed.saturating_sub(could_go) > loading.room.get() {
        return None; // All that is idle would go in vain.
    }
    let least = idle().min_by_key(|(at, item)| (item.faded(now), item.used, *at));
    least.map(|(at, _)| Step::Unload(at))
}

fn begin(items: &mut [Option<Item>], step: Step, now: Time) {
    let (at, presence) = match step {
        Step::Load(at) => (at, Presence::Coming(now)),
        Step::Unload(at) => (at, Presence::Going(None)),
    };
    if let Some(Some(item)) = items.get_mut(at) {
        item.presence = presence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    /// Models of these sizes on one device with room for 10.
    fn shelf(sizes: &[u64]) -> Vec<Option<Item>> {
        let item = |size: &u64| {
            Some(Item::new(Loading {
                device: 0,
                memory: KvBytes::new(*size),
                room: KvBytes::new(10),
            }))
        };
        sizes.iter().map(item).collect()
    }

    fn ask(items: &mut [Option<Item>], at: usize, secs_at: u64) {
        items[at].as_mut().unwrap().ask(secs(secs_at));
    }

    fn load(items: &mut [Option<Item>], at: usize, secs_at: u64) {
        ask(items, at, secs_at);
        assert_eq!(next(items, |_| true, secs(secs_at)), Some(Step::Load(at)));
        items[at].as_mut().unwrap().came(secs(secs_at + 5));
    }

    #[test]
    fn one_is_loaded_when_it_is_first_asked_for_and_not_before() {
        let mut items = shelf(&[4, 4]);
        assert_eq!(next(&mut items, |_| true, secs(0)), None);
        load(&mut items, 1, 1);
        ask(&mut items, 1, 2);
        assert_eq!(next(&mut items, |_| true, secs(2)), None, "it is there");
    }

    #[test]
    fn only_one_loads_at_a_time_on_a_device_and_in_the_order_of_asking() {
        let mut items = shelf(&[2, 2, 2]);
        items[2].as_mut().unwrap().loading.device = 1;
        ask(&mut items, 1, 1);
        ask(&mut items, 0, 2);
        ask(&mut items, 2, 3);
        assert_eq!(next(&mut items, |_| true, secs(3)), Some(Step::Load(1)));
        assert_eq!(
            next(&mut items, |_| true, secs(3)),
            Some(Step::Load(2)),
            "another device"
        );
        assert_eq!(next(&mut items, |_| true, secs(3)), None);
        items[1].as_mut().unwrap().came(secs(9));
        assert_eq!(next(&mut items, |_| true, secs(9)), Some(Step::Load(0)));
    }

    #[test]
    fn what_is_used_least_goes_first_and_of_equals_what_was_used_last_longest_ago() {
        let mut items = shelf(&[4, 4, 4]);
        load(&mut items, 0, 1);
        load(&mut items, 1, 10);
        ask(&mut items, 0, 20);
        ask(&mut items, 2, 30);
        assert_eq!(next(&mut items, |_| true, secs(30)), Some(Step::Unload(1)));
        items[1].as_mut().unwrap().went();
        assert_eq!(next(&mut items, |_| true, secs(30)), Some(Step::Load(2)));

        let mut items = shelf(&[4, 4, 4]);
        load(&mut items, 1, 1);
        load(&mut items, 0, 10);
        ask(&mut items, 2, 30);
        assert_eq!(next(&mut items, |_| true, secs(30)), Some(Step::Unload(1)));
    }

    #[test]
    fn old_fame_fades() {
        let mut items = shelf(&[4, 4, 4]);
        load(&mut items, 0, 0);
        for n in 0..8 {
            ask(&mut items, 0, n);
        }
        load(&mut items, 1, 4_000);
        ask(&mut items, 2, 4_010);
        assert_eq!(
            next(&mut items, |_| true, secs(4_010)),
            Some(Step::Unload(0))
        );
    }

    #[test]
    fn one_that_works_never_goes_and_nothing_goes_in_vain() {
        let mut items = shelf(&[6, 3, 8]);
        load(&mut items, 0, 1);
        load(&mut items, 1, 10);
        ask(&mut items, 2, 20);
        let idle = |at| at != 0;
        assert_eq!(
            next(&mut items, idle, secs(20)),
            None,
            "without 1 there is no room either"
        );
        assert_eq!(next(&mut items, |_| true, secs(30)), Some(Step::Unload(0)));
        assert_eq!(
            next(&mut items, |_| true, secs(30)),
            None,
            "one thing at a time"
        );
        items[0].as_mut().unwrap().went();
        assert_eq!(next(&mut items, |_| true, secs(31)), Some(Step::Unload(1)));
    }

    #[test]
    fn how_long_loading_takes_is_known_once_it_was_loaded() {
        let mut items = shelf(&[4]);
        let item = |items: &[Option<Item>]| items[0].unwrap();
        ask(&mut items, 0, 1);
        assert_eq!(item(&items).wait(secs(1)), None);
        load(&mut items, 0, 1);
        items[0].as_mut().unwrap().went();
        assert_eq!(item(&items).wait(secs(50)), Some(Micros::from_secs(5)));
        ask(&mut items, 0, 50);
        next(&mut items, |_| true, secs(50));
        assert_eq!(item(&items).wait(secs(52)), Some(Micros::from_secs(3)));
    }
}
