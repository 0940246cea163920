//! Whether a request that its replica failed before the first token is tried on another one.
//!
//! Within a budget: where all replicas fail, each try makes it worse. A pool earns the right to a
//! try by what it dispatches, so that in the long run tries are a share of the load; and what it
//! has saved up covers all that one replica had when it went.

use crate::ids::ReplicaId;

/// What a pool has left for further tries.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// In per cent of a try. invariant: `<= Self::SAVED_MAX * 100`.
    saved: u32,
}

impl Budget {
    /// Tries per hundred requests, in the long run.
    const PERCENT: u32 = 20;

    /// Tries that can be saved up: what one replica has in flight, and it is more at few.
    const SAVED_MAX: u32 = 256;

    /// A request was dispatched for the first time.
    pub const fn earn(&mut self) {
        let saved = self.saved.saturating_add(Self::PERCENT);
        let most = Self::SAVED_MAX * 100;
        self.saved = if saved < most { saved } else { most };
    }

    /// Takes one try, if there is one left.
    pub const fn take(&mut self) -> bool {
        let Some(left) = self.saved.checked_sub(100) else {
            return false;
        };
        self.saved = left;
        true
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            saved: Self::SAVED_MAX * 100,
        }
    }
}

/// Where a request has been tried in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// invariant: filled from the front.
    failed: [Option<ReplicaId>; Self::MAX - 1],
    /// The replica that answered it with an error of its own, if one did.
    pub(crate) erred: Option<ReplicaId>,
}

impl Tries {
    /// Replicas that one request is given to at most.
    pub const MAX: usize = 3;

    /// Notes that a replica failed it.
    pub fn note(&mut self, replica: ReplicaId) {
        if let Some(free) = self.failed.iter_mut().find(|one| one.is_none()) {
            *free = Some(replica);
        }
    }

    /// Whether there may be another.
    pub fn may_again(&self) -> bool {
        self.failed.iter().any(Option::is_none)
    }

    /// Whether it has been tried here.
    pub fn includes(&self, replica: ReplicaId) -> bool {
        self.failed.contains(&Some(replica))
    }

    /// Whether it has been tried at all.
    pub fn is_first(&self) -> bool {
        self.failed[0].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_all_fail_tries_are_a_fifth_of_the_load() {
        let mut budget = Budget::default();
        let mut tries = 0;
        for _ in 0..10_000 {
            budget.earn();
            tries += u32::from(budget.take());
        }
        assert!((2_000..=2_256).contains(&tries), "{tries}");
    }

    #[test]
    fn what_one_replica_had_may_go_elsewhere_at_once() {
        let mut budget = Budget::default();
        assert!((0..256).all(|_| budget.take()));
        assert!(!budget.take());
    }

    #[test]
    fn a_request_is_given_to_three_replicas_at_most() {
        let mut tries = Tries::default();
        assert!(tries.may_again() && tries.is_first());
        tries.note(ReplicaId::new(4));
        assert!(tries.may_again() && tries.includes(ReplicaId::new(4)));
        tries.note(ReplicaId::new(5));
        assert!(!tries.may_again() && !tries.includes(ReplicaId::new(6)));
    }
}
