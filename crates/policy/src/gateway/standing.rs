//! What the replicas of a pool add up to, kept as they change: with many of them, to look at each
//! one for every request and every token would cost more than all else.
//!
//! A replica that a fact touches is counted anew before anything is read here. Which replica gets a
//! request is not decided here.

use std::collections::BTreeSet;

use super::{Gateway, Replica, Stay};
use crate::ids::{ReplicaId, position};
use crate::tenant::Class;
use crate::units::Time;

/// Replicas of one pool, as one class sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    /// Sequences that those which are up may hold. invariant: the sum of their windows' limits.
    pub(super) slots: u32,
    /// Those that take work of the class.
    pub(super) up: BTreeSet<ReplicaId>,
    /// Those of them that have room for some request of the class.
    pub(super) open: BTreeSet<ReplicaId>,
}

/// How one replica is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Its window's limit, by [`Class::ALL`], where it takes work of the class.
    slots: [Option<u32>; 3],
    open: [bool; 3],
    /// When time alone changes something about it.
    alarm: Option<Time>,
}

impl Count {
    fn of(replica: &Replica) -> Self {
        let serving = replica.stay == Stay::Serving;
        let takes = Class::ALL.map(|class| replica.takes(replica.model, class));
        let limit = replica.window.limit();
        let open = Class::ALL.map(|class| replica.is_open_to(class));
        Self {
            slots: takes.map(|takes| takes.then_some(limit)),
            open: [0, 1, 2].map(|place| takes[place] && open[place]),
            alarm: replica.health.wakes_at().filter(|_| serving),
        }
    }
}

impl Gateway {
    /// Counts the replicas anew that were touched since this was last called.
    pub(super) fn count_touched(&mut self) {
        while let Some(id) = self.touched.pop() {
            let replica = &mut self.replicas[position(id.get())];
            let wanted = Count::of(replica);
            let counted = std::mem::replace(&mut replica.count, wanted);
            if counted == wanted {
                continue;
            }
            let pool = &mut self.pools[position(replica.model.get())];
            for place in 0..Class::ALL.len() {
                let standing = &mut pool.standing[place];
                standing.slots -= counted.slots[place].unwrap_or(0);
                standing.slots += wanted.slots[place].unwrap_or(0);
                keep(&mut standing.up, id, wanted.slots[place].is_some());
                keep(&mut standing.open, id, wanted.open[place]);
            }
            if let Some(old) = counted.alarm {
                self.alarms.remove(&(old, id));
            }
            self.alarms.extend(wanted.alarm.map(|at| (at, id)));
        }
    }

    /// Panics unless every replica is counted as it is.
    pub(super) fn standing_invariants(&self) {
        assert!(
            self.touched.is_empty(),
            "a replica was touched and not counted"
        );
        for (replica, n) in self.replicas.iter().zip(0..) {
            let wanted = Count::of(replica);
            assert_eq!(replica.count, wanted, "replica {n} is not as it is counted");
            let alarm = wanted.alarm.map(|at| (at, ReplicaId::new(n)));
            assert!(alarm.is_none_or(|alarm| self.alarms.contains(&alarm)));
        }
    }
}

fn keep(set: &mut BTreeSet<ReplicaId>, id: ReplicaId, is_in: bool) {
    if is_in {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}
