//! The three policies: what a lane's place in the order is, and how it moves.
//!
//! A lane's place is a pair of numbers, least first. For `fifo` it is the ticket at its head; for
//! `vtc` its counter of service; for `drr` the round in which it can pay, then its turn in the
//! round.

use std::collections::BTreeSet;
use std::iter::Peekable;

use super::lane::Lane;
use crate::ids::TenantId;
use crate::units::Service;

/// By which rule the next request is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First in, first out: what an engine does by itself, and the baseline. A flooder starves
    /// everybody under it.
    Fifo,
    /// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): a quantum of service per round
    /// and weight; the estimate is charged at dispatch and corrected as tokens come.
    Drr {
        /// Service units a lane of weight one is granted per round; at least one.
        quantum: Service,
    },
    /// Virtual token counter (Sheng et al., OSDI 2024): the tenant that has had the least service
    /// goes first.
    #[default]
    Vtc,
}

impl Policy {
    /// The policy as configuration and metrics spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Drr { .. } => "drr",
            Self::Vtc => "vtc",
        }
    }

    /// How many lanes are looked at for one that may go. Plain first in, first out passes nobody
    /// by.
    pub(super) const fn scan_max(self) -> usize {
        match self {
            Self::Fifo => 1,
            Self::Drr { .. } | Self::Vtc => 16,
        }
    }
}

/// Where a lane stands, least first.
pub(super) type Key = (u64, u64);

/// In which of the orders a lane stands, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// By [`crate::tenant::Class::ALL`].
    pub(super) class: usize,
    pub(super) key: Key,
}

/// The lanes that have something waiting, by class, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders([BTreeSet<(Key, TenantId)>; 3]);

impl Orders {
    /// Moves a lane from where it is to where it is wanted.
    pub(super) fn move_to(
        &mut self,
        tenant: TenantId,
        placed: &mut Option<Place>,
        wanted: Option<Place>,
    ) {
        if *placed == wanted {
            return;
        }
        if let Some(old) = placed.take() {
            self.0[old.class].remove(&(old.key, tenant));
        }
        if let Some(new) = wanted {
            self.0[new.class].insert((new.key, tenant));
        }
        *placed = wanted;
    }

    /// The least place of all.
    pub(super) fn least(&self) -> Option<Key> {
        self.0
            .iter()
            .filter_map(|order| Some(order.first()?.0))
            .min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeSet::is_empty)
    }

    /// The lanes of the open classes, least first.
    pub(super) fn in_order(&self, open: [bool; 3]) -> impl Iterator<Item = TenantId> + '_ {
        let mut heads: [Peekable<_>; 3] = std::array::from_fn(|class| {
            let shown = if open[class] { usize::MAX } else { 0 };
            self.0[class].iter().take(shown).peekable()
        });
        std::iter::from_fn(move || {
            let least = heads.iter_mut().enumerate();
            let least = least.filter_map(|(class, head)| Some((**head.peek()?, class)));
            let (_, class) = least.min()?;
            heads[class].next().map(|(_, tenant)| *tenant)
        })
    }
}

/// What the lanes have in common: how far the order has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// The counter of the last lane that left the queue: where a lane joins that finds it empty.
    last_left: u64,
    /// The round of the lane that went last.
    round: u64,
    /// Turns given out.
    turns: u64,
}

impl Clock {
    /// A lane that had nothing waiting has something again, while the least place of the others is
    /// `floor`.
    ///
    /// It is lifted to where the others are, else it would catch up at their cost for having been
    /// idle; where nobody waits, to the counter of the last that left (Sheng et al., algorithm 2).
    /// A debt of rounds stays.
    pub(super) fn returns(&mut self, lane: &mut Lane, floor: Option<Key>) {
        lane.counter = lane
            .counter
            .max(floor.map_or(self.last_left, |(counter, _)| counter));
        lane.deficit = lane.deficit.min(0);
        lane.round = self.round;
        self.turns += 1;
        lane.turn = self.turns;
    }

    /// A lane has nothing waiting any more.
    pub(super) fn leaves(&mut self, lane: &Lane) {
        self.last_left = lane.counter;
    }

    /// A lane goes: the order has come as far as its place.
    pub(super) fn starts(&mut self, lane: &mut Lane, policy: Policy) {
        if let Policy::Drr { quantum } = policy {
            lane.advance(quantum);
            self.round = self.round.max(lane.round);
        }
    }
}
