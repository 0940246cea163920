//! One tenant's line, and the account from which its place in the order follows.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::Holding;
use super::order::{Place, Policy};
use crate::tenant::Class;
use crate::units::{Service, Time, Tokens};

/// Counter units of one unit of service at weight one. Divisible by every weight up to 16, so that
/// with ordinary weights no division is rounded.
const SCALE: u64 = 720_720;

/// One tenant in one queue.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Deadline and ticket of each request that waits.
    pub(super) line: BTreeSet<(Time, u64)>,
    /// Prompts and estimated outputs of those.
    pub(super) work: Tokens,
    pub(super) class: Class,
    weight: NonZeroU32,
    activity: Activity,
    pub(super) holding: Holding,
    /// Service since the start.
    pub(super) attained: Service,
    /// `vtc`: service charged, over weight, in units of 1 / [`SCALE`].
    pub(super) counter: u64,
    /// `drr`: what it can still spend, as of `round`.
    pub(super) deficit: i64,
    pub(super) round: u64,
    /// `drr`: its place within a round.
    pub(super) turn: u64,
    /// Where it stands in the order. invariant: somewhere, if and only if its line is not empty.
    pub(super) placed: Option<Place>,
}

/// Whether a tenant counts for the shares of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    No,
    Yes,
    Until(Time),
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            line: BTreeSet::new(),
            work: Tokens::ZERO,
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            activity: Activity::No,
            holding: Holding::default(),
            attained: Service::ZERO,
            counter: 0,
            deficit: 0,
            round: 0,
            turn: 0,
            placed: None,
        }
    }
}

impl Lane {
    /// Where it belongs with `ticket` at its head.
    pub(super) fn place(&self, policy: Policy, ticket: u64) -> Place {
        let key = match policy {
            Policy::Fifo => (ticket, 0),
            Policy::Vtc => (self.counter, 0),
            Policy::Drr { quantum } => (self.pays_in(quantum), self.turn),
        };
        Place {
            class: self.class.place(),
            key,
        }
    }

    pub(super) fn debit(&mut self, policy: Policy, service: Service) {
        match policy {
            Policy::Fifo => {}
            Policy::Vtc => self.counter = self.counter.saturating_add(self.normalized(service)),
            Policy::Drr { .. } => self.deficit = self.deficit.saturating_sub(signed(service)),
        }
    }

    pub(super) fn credit(&mut self, policy: Policy, service: Service) {
        match policy {
            Policy::Fifo => {}
            Policy::Vtc => self.counter = self.counter.saturating_sub(self.normalized(service)),
            Policy::Drr { .. } => self.deficit = self.deficit.saturating_add(signed(service)),
        }
    }

    /// `drr`: brings the account up to the round in which it can pay.
    pub(super) fn advance(&mut self, quantum: Service) {
        let round = self.pays_in(quantum);
        let granted = i128::from(round - self.round) * i128::from(self.grant(quantum));
        let deficit = i128::from(self.deficit) + granted;
        self.deficit = i64::try_from(deficit).unwrap_or(i64::MAX);
        self.round = round;
    }

    pub(super) fn is_active(&self) -> bool {
        self.activity != Activity::No
    }

    /// Whether it counts as active, with one request waiting at most.
    pub(super) fn is_modest(&self) -> bool {
        self.is_active() && self.line.len() <= 1
    }

    /// When it stops counting as active, if that has been said.
    pub(super) fn expires(&self) -> Option<Time> {
        match self.activity {
            Activity::Until(at) => Some(at),
            Activity::No | Activity::Yes => None,
        }
    }

    /// Counts as active from now on; the weight that this adds.
    pub(super) fn activate(&mut self, weight: NonZeroU32) -> u64 {
        self.weight = weight;
        self.activity = Activity::Yes;
        u64::from(weight.get())
    }

    /// Does not count as active any more; the weight that this takes away.
    pub(super) fn deactivate(&mut self) -> u64 {
        match std::mem::replace(&mut self.activity, Activity::No) {
            Activity::No => 0,
            Activity::Yes | Activity::Until(_) => u64::from(self.weight.get()),
        }
    }

    pub(super) fn rest(&mut self, until: Time) {
        self.activity = Activity::Until(until);
    }

    /// `drr`: the first round in which it has something to spend.
    fn pays_in(&self, quantum: Service) -> u64 {
        if self.deficit > 0 {
            return self.round;
        }
        let owed = self.deficit.unsigned_abs() + 1;
        self.round
            .saturating_add(owed.div_ceil(self.grant(quantum)))
    }

    /// `drr`: what it is granted per round.
    fn grant(&self, quantum: Service) -> u64 {
        quantum
            .get()
            .max(1)
            .saturating_mul(u64::from(self.weight.get()))
    }

    fn normalized(&self, service: Service) -> u64 {
        service.get().saturating_mul(SCALE) / u64::from(self.weight.get())
    }
}

fn signed(service: Service) -> i64 {
    i64::try_from(service.get()).unwrap_or(i64::MAX)
}
