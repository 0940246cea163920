//! Lanes against a naive model: each sequence has what it would have if nothing were ever moved.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use tollgate_policy::ids::SeqId;

use super::{Cells, Lanes};

const RUNNING: u32 = 4;
const IDS: u32 = 8;

/// A KV for each lane, which knows what was computed for each position.
#[derive(Default)]
struct Kv {
    lanes: BTreeMap<SeqId, BTreeMap<u64, u64>>,
    /// Bytes are taken no more.
    full: bool,
    moves: u32,
}

impl Kv {
    fn of(&self, lane: SeqId) -> Vec<u64> {
        let lane = self.lanes.get(&lane);
        lane.map_or(vec![], |lane| lane.values().copied().collect())
    }
}

impl Cells for Kv {
    type Saved = BTreeMap<u64, u64>;

    fn copy(&mut self, _: SeqId, _: SeqId, _: Range<u64>) {
        panic!("lanes have nothing in common");
    }

    fn clear(&mut self, lane: SeqId, positions: Range<u64>) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.retain(|position, _| !positions.contains(position));
        }
    }

    fn save(&mut self, lane: SeqId) -> Option<Self::Saved> {
        (!self.full).then(|| self.lanes.get(&lane).cloned().unwrap_or_default())
    }

    fn load(&mut self, lane: SeqId, saved: &Self::Saved) -> bool {
        assert!(self.of(lane).is_empty(), "{lane} is not empty");
        self.moves += 1;
        self.lanes.insert(lane, saved.clone());
        true
    }
}

/// What a scheduler and its cache tell a backend, and what a step computes.
#[derive(Clone, Debug)]
enum Op {
    /// A sequence that runs computes so many tokens more.
    Compute(u32, u64),
    /// A sequence that runs begins anew with the first tokens of any other.
    Adopt(u32, u32, u64),
    /// A prefix is kept: the first tokens of any other.
    Keep(u32, u32, u64),
    Trim(u32, u64),
    /// A step begins.
    CloseUp,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let running = || 0..RUNNING;
    let any = || 0..IDS;
    let one = prop_oneof![
        4 => (running(), 1..50_u64).prop_map(|(seq, count)| Op::Compute(seq, count)),
        3 => (running(), any(), 1..90_u64).prop_map(|(to, from, end)| Op::Adopt(to, from, end)),
        3 => (RUNNING..IDS, any(), 1..90_u64).prop_map(|(to, from, end)| Op::Keep(to, from, end)),
        2 => (any(), 0..90_u64).prop_map(|(seq, from)| Op::Trim(seq, from)),
        2 => any().prop_map(|seq| Op::Trim(seq, 0)),
        2 => Just(Op::CloseUp),
    ];
    prop::collection::vec(one, 1..80)
}

#[derive(Default)]
struct Both {
    kv: Kv,
    naive: BTreeMap<u32, Vec<u64>>,
    computed: u64,
}

impl Both {
    fn first(&self, seq: u32, end: u64) -> Vec<u64> {
        let all = self.naive.get(&seq).map_or(&[][..], Vec::as_slice);
        let end = usize::try_from(end).unwrap();
        all[..end.min(all.len())].to_vec()
    }

    fn apply(&mut self, lanes: &mut Lanes<BTreeMap<u64, u64>>, op: &Op) {
        match *op {
            Op::Compute(seq, count) => {
                let lane = lanes.enter(SeqId::new(seq), &mut self.kv).unwrap();
                let all = self.naive.entry(seq).or_default();
                for _ in 0..count {
                    self.computed += 1;
                    let position = u64::try_from(all.len()).unwrap();
                    let cells = self.kv.lanes.entry(lane).or_default();
                    assert_eq!(cells.insert(position, self.computed), None);
                    all.push(self.computed);
                }
            }
            Op::Adopt(to, from, end) | Op::Keep(to, from, end) => {
                let first = self.first(from, end);
                if to == from || first.is_empty() {
                    return;
                }
                self.apply(lanes, &Op::Trim(to, 0));
                let end = u64::try_from(first.len()).unwrap();
                let (from, seq) = (SeqId::new(from), SeqId::new(to));
                assert!(lanes.copy(from, seq, end, &mut self.kv));
                self.naive.insert(to, first);
            }
            Op::Trim(seq, from) => {
                lanes.trim(SeqId::new(seq), from, &mut self.kv);
                let rest = self.first(seq, from);
                self.naive.insert(seq, rest);
            }
            Op::CloseUp => {
                lanes.close_up(&mut self.kv);
                assert!(lanes.held.iter().all(Option::is_some));
            }
        }
    }

    fn check(&self, lanes: &Lanes<BTreeMap<u64, u64>>) {
        for seq in 0..RUNNING {
            let lane = lanes.of(SeqId::new(seq));
            let has = lane.map_or(vec![], |lane| self.kv.of(lane));
            assert_eq!(has, self.first(seq, u64::MAX), "sequence {seq}");
        }
        let held = lanes.held.iter().flatten().count();
        let used = self.kv.lanes.values().filter(|lane| !lane.is_empty());
        assert!(used.count() <= held, "nothing is left behind");
        assert!(lanes.held.len() <= usize::try_from(RUNNING).unwrap());
    }
}

proptest! {
    #[test]
    fn whatever_is_shared_moved_or_kept_who_runs_has_what_is_its_own(ops in ops()) {
        let mut lanes = Lanes::new(SeqId::new(RUNNING), usize::try_from(RUNNING).unwrap());
        let mut both = Both::default();
        for op in &ops {
            both.apply(&mut lanes, op);
            both.check(&lanes);
        }
        // What is kept is whole, even when nobody runs any more.
        (0..RUNNING).for_each(|seq| both.apply(&mut lanes, &Op::Trim(seq, 0)));
        prop_assert_eq!(lanes.as_bytes(), lanes.kept.len());
        for id in RUNNING..IDS {
            both.apply(&mut lanes, &Op::Adopt(0, id, u64::MAX));
            both.check(&lanes);
        }
    }
}

fn some() -> (Lanes<BTreeMap<u64, u64>>, Both) {
    (Lanes::new(SeqId::new(RUNNING), 4), Both::default())
}

#[test]
fn the_last_one_takes_the_place_of_one_that_is_over() {
    let (mut lanes, mut both) = some();
    (0..4).for_each(|seq| both.apply(&mut lanes, &Op::Compute(seq, 9)));
    both.apply(&mut lanes, &Op::Trim(1, 0));
    assert_eq!(both.kv.moves, 0);
    both.apply(&mut lanes, &Op::CloseUp);
    both.check(&lanes);
    assert_eq!(
        (both.kv.moves, lanes.of(SeqId::new(3))),
        (1, Some(SeqId::new(1)))
    );
    both.apply(&mut lanes, &Op::Compute(1, 5));
    assert_eq!(
        lanes.of(SeqId::new(1)),
        Some(SeqId::new(3)),
        "the newest is the last"
    );
}

#[test]
fn a_burst_that_shares_a_prefix_reads_its_bytes_once() {
    let (mut lanes, mut both) = some();
    both.apply(&mut lanes, &Op::Compute(0, 40));
    both.apply(&mut lanes, &Op::Keep(5, 0, 32));
    assert_eq!(lanes.as_bytes(), 0, "its own sequence has it still");
    both.apply(&mut lanes, &Op::Adopt(1, 5, 32));
    assert_eq!(lanes.as_bytes(), 1);
    both.kv.full = true;
    both.apply(&mut lanes, &Op::Adopt(2, 5, 16));
    both.check(&lanes);
}

#[test]
fn who_was_to_have_what_can_not_be_read_is_told() {
    let (mut lanes, mut both) = some();
    both.apply(&mut lanes, &Op::Compute(0, 40));
    both.apply(&mut lanes, &Op::Keep(5, 0, 32));
    both.kv.full = true;
    both.apply(&mut lanes, &Op::Trim(0, 0));
    let kv = &mut both.kv;
    assert!(
        !lanes.copy(SeqId::new(5), SeqId::new(1), 32, kv),
        "it is gone"
    );
    assert!(
        !lanes.copy(SeqId::new(6), SeqId::new(2), 32, kv),
        "it never was"
    );
}

#[test]
fn there_are_no_more_lanes_than_there_are() {
    let (mut lanes, mut both) = some();
    (0..4).for_each(|seq| both.apply(&mut lanes, &Op::Compute(seq, 9)));
    assert_eq!(lanes.enter(SeqId::new(7), &mut both.kv), None);
    both.apply(&mut lanes, &Op::Trim(2, 0));
    assert!(lanes.enter(SeqId::new(7), &mut both.kv).is_some());
}
