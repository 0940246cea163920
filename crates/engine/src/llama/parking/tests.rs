//! Parking against a naive model: who runs has what it would have if nothing were ever taken out.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use tollgate_policy::ids::SeqId;

use super::{Cells, PIECE, Parking};

const RUNNING: u32 = 4;
const OWNERS: u32 = 4;
const GATE: u32 = RUNNING + OWNERS;

/// A KV that knows what was computed for each cell: a number that no other cell has.
#[derive(Default)]
struct Kv {
    /// By sequence and position.
    cells: BTreeMap<(SeqId, u64), u64>,
    room: Cell<bool>,
}

type Saved = BTreeMap<u64, u64>;

impl Kv {
    fn of(&self, seq: SeqId) -> Saved {
        let range = (seq, 0)..=(seq, u64::MAX);
        let each = self.cells.range(range);
        each.map(|((_, position), what)| (*position, *what))
            .collect()
    }

    /// Cells in use, each counted once however many sequences have it.
    fn used(&self) -> usize {
        self.cells.values().collect::<BTreeSet<_>>().len()
    }
}

impl Cells for Kv {
    type Saved = Saved;

    fn copy(&mut self, from: SeqId, to: SeqId, positions: Range<u64>) {
        for (position, what) in self.of(from) {
            if positions.contains(&position) {
                self.cells.insert((to, position), what);
            }
        }
    }

    fn clear(&mut self, seq: SeqId, positions: Range<u64>) {
        self.cells
            .retain(|(of, position), _| *of != seq || !positions.contains(position));
    }

    fn save(&mut self, seq: SeqId) -> Option<Saved> {
        Some(self.of(seq))
    }

    fn load(&mut self, seq: SeqId, saved: &Saved) -> bool {
        assert!(self.of(seq).is_empty());
        assert!(saved.len() <= usize::try_from(PIECE).unwrap());
        if self.room.get() {
            for (position, what) in saved {
                self.cells.insert((seq, *position), *what);
            }
        }
        self.room.get()
    }
}

/// What a scheduler and its cache tell a backend, and what a step computes.
#[derive(Clone, Debug)]
enum Op {
    /// A running sequence computes so many tokens more.
    Compute(u32, u64),
    /// A running sequence begins anew with the first tokens of any other.
    Adopt(u32, u32, u64),
    /// An owner begins anew with the first tokens of another, and goes on with those of a third.
    Keep(u32, u32, u64, u32),
    Trim(u32, u64),
    Settle,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let running = || 0..RUNNING;
    let any = || 0..GATE;
    let owner = || RUNNING..GATE;
    let one = prop_oneof![
        4 => (running(), 1..200u64).prop_map(|(seq, count)| Op::Compute(seq, count)),
        3 => (running(), any(), 0..400u64).prop_map(|(to, from, end)| Op::Adopt(to, from, end)),
        3 => (owner(), owner(), 0..300u64, running())
            .prop_map(|(to, from, end, rest)| Op::Keep(to, from, end, rest)),
        2 => (any(), 0..400u64).prop_map(|(seq, from)| Op::Trim(seq, from)),
        2 => Just(Op::Settle),
    ];
    prop::collection::vec(one, 1..60)
}

/// The same without any parking: what each sequence has.
#[derive(Default)]
struct Naive(BTreeMap<u32, Vec<u64>>);

impl Naive {
    fn len(&self, seq: u32) -> u64 {
        self.0
            .get(&seq)
            .map_or(0, |all| u64::try_from(all.len()).unwrap())
    }

    fn copy(&mut self, from: u32, to: u32, positions: Range<u64>) {
        let range =
            usize::try_from(positions.start).unwrap()..usize::try_from(positions.end).unwrap();
        let some = self.0.get(&from).map_or(vec![], |all| all[range].to_vec());
        self.0.entry(to).or_default().extend(some);
    }

    fn trim(&mut self, seq: u32, from: u64) {
        let from = usize::try_from(from).unwrap();
        self.0.entry(seq).or_default().truncate(from);
    }
}

struct Both {
    kv: Kv,
    parking: Parking<Saved>,
    naive: Naive,
    computed: u64,
}

impl Both {
    fn new() -> Self {
        let kv = Kv::default();
        kv.room.set(true);
        Self {
            kv,
            parking: Parking::new(SeqId::new(RUNNING), SeqId::new(GATE)),
            naive: Naive::default(),
            computed: 0,
        }
    }

    fn copy(&mut self, from: u32, to: u32, positions: Range<u64>) -> bool {
        self.naive.copy(from, to, positions.clone());
        let (from, to) = (SeqId::new(from), SeqId::new(to));
        self.parking.copy(from, to, positions, &mut self.kv)
    }

    fn trim(&mut self, seq: u32, from: u64) {
        self.naive.trim(seq, from);
        self.parking.trim(SeqId::new(seq), from, &mut self.kv);
    }

    fn compute(&mut self, seq: u32, count: u64) {
        let all = self.naive.0.entry(seq).or_default();
        for _ in 0..count {
            let position = u64::try_from(all.len()).unwrap();
            all.push(self.computed);
            self.kv
                .cells
                .insert((SeqId::new(seq), position), self.computed);
            self.computed += 1;
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Compute(seq, count) => self.compute(seq, count),
            Op::Adopt(to, from, end) if to != from => {
                self.trim(to, 0);
                let end = end.min(self.naive.len(from));
                assert!(self.copy(from, to, 0..end));
            }
            Op::Keep(to, from, end, rest) if to != from => {
                self.trim(to, 0);
                let end = end.min(self.naive.len(from));
                self.copy(from, to, 0..end);
                let all = self.naive.len(rest);
                if all > end {
                    self.copy(rest, to, end..all);
                }
            }
            Op::Trim(seq, from) => self.trim(seq, from),
            Op::Settle => self.parking.settle(&mut self.kv),
            Op::Adopt(..) | Op::Keep(..) => {}
        }
    }

    /// Who runs has what it would have without parking, and the KV holds nothing else after all
    /// was settled.
    fn check(&mut self, settled: bool) {
        for seq in 0..RUNNING {
            let expected = self.naive.0.get(&seq).cloned().unwrap_or_default();
            let actual: Vec<_> = self.kv.of(SeqId::new(seq)).into_values().collect();
            assert_eq!(actual, expected, "sequence {seq}");
        }
        assert!(self.kv.of(SeqId::new(GATE)).is_empty());
        if settled {
            let running = (0..RUNNING).filter_map(|seq| self.naive.0.get(&seq));
            let used: BTreeSet<_> = running.flatten().collect();
            assert_eq!(self.kv.used(), used.len());
        }
    }
}

proptest! {
    #[test]
    fn who_runs_has_what_it_would_have_if_nothing_were_ever_taken_out(ops in ops()) {
        let mut both = Both::new();
        for op in &ops {
            both.run(op);
            both.check(matches!(op, Op::Settle));
        }
        for seq in 0..GATE {
            both.trim(seq, 0);
        }
        prop_assert!(both.kv.cells.is_empty());
        prop_assert!(both.parking.pieces.is_empty() && both.parking.held.is_empty());
        prop_assert!(both.parking.idle.is_empty());
    }
}

#[test]
fn what_is_put_back_for_one_is_there_for_all_and_is_not_saved_again() {
    let mut both = Both::new();
    both.compute(0, 300);
    both.copy(0, RUNNING, 0..300);
    both.trim(0, 0);
    both.parking.settle(&mut both.kv);
    assert_eq!((both.kv.used(), both.parking.parked()), (0, 3));
    assert!(both.copy(RUNNING, 1, 0..200));
    assert!(both.copy(RUNNING, 2, 0..300));
    assert_eq!((both.kv.used(), both.parking.parked()), (300, 0));
    both.check(true);
}

#[test]
fn who_was_to_have_what_finds_no_room_is_told_so_and_the_next_may_have_it() {
    let mut both = Both::new();
    both.compute(0, 100);
    both.copy(0, RUNNING, 0..100);
    both.trim(0, 0);
    both.parking.settle(&mut both.kv);
    both.kv.room.set(false);
    assert!(!both.copy(RUNNING, 1, 0..64));
    both.trim(1, 0);
    both.kv.room.set(true);
    assert!(both.copy(RUNNING, 1, 0..64));
    both.check(false);
}
