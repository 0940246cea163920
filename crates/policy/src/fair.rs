//! The queue of one model: who is next, across tenants.
//!
//! One type, whatever the policy: it is told of arrivals, departures and of service as it is given,
//! and answers who is next. It holds no request beyond its id, and only live ones: what leaves is
//! gone from every index at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{RequestId, TenantId};
use crate::units::{Service, Time, Tokens};

/// By which rule the next request is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First in, first out: what an engine does by itself, and the baseline. A flooder starves
    /// everybody under it.
    #[default]
    Fifo,
}

impl Policy {
    /// The policy as configuration and metrics spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
        }
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// What it is expected to cost: prompt and estimated output.
    pub work: Tokens,
    /// When it gives up.
    pub deadline: Time,
}

/// The queue is at its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Requests that wait for a replica of one model.
#[derive(Clone, Debug)]
pub struct FairQueue {
    policy: Policy,
    /// Most requests that may wait.
    max: usize,
    /// Counts up with each arrival; the order of arrival.
    next_ticket: u64,
    /// invariant: `line`, `tickets` and `deadlines` hold the same requests.
    line: BTreeMap<u64, Waiting>,
    tickets: BTreeMap<RequestId, u64>,
    deadlines: BTreeSet<(Time, RequestId)>,
    /// invariant: the sum of `work` over `line`.
    work: Tokens,
    /// Service each tenant has had here since the start, before division by its weight.
    attained: BTreeMap<TenantId, Service>,
}

impl FairQueue {
    /// An empty queue for at most `max` requests.
    pub fn new(policy: Policy, max: usize) -> Self {
        Self {
            policy,
            max,
            next_ticket: 0,
            line: BTreeMap::new(),
            tickets: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            work: Tokens::ZERO,
            attained: BTreeMap::new(),
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`Full`] at the bound; nothing changes then.
    pub fn push(&mut self, waiting: Waiting) -> Result<(), Full> {
        if self.is_full() {
            return Err(Full);
        }
        self.line.insert(self.next_ticket, waiting);
        self.tickets.insert(waiting.id, self.next_ticket);
        self.deadlines.insert((waiting.deadline, waiting.id));
        self.work += waiting.work;
        self.next_ticket += 1;
        self.invariants();
        Ok(())
    }

    /// The request that is next.
    pub fn head(&self) -> Option<Waiting> {
        match self.policy {
            Policy::Fifo => self.line.first_key_value().map(|(_, waiting)| *waiting),
        }
    }

    /// Takes one request out, wherever it stands.
    pub fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let ticket = self.tickets.remove(&id)?;
        let waiting = self.line.remove(&ticket)?;
        self.deadlines.remove(&(waiting.deadline, id));
        self.work = self.work - waiting.work;
        self.invariants();
        Some(waiting)
    }

    /// The request whose deadline is first.
    pub fn first_deadline(&self) -> Option<(Time, RequestId)> {
        self.deadlines.first().copied()
    }

    /// `service` was given to `tenant`, now: charged as served, never at arrival.
    pub fn charge(&mut self, tenant: TenantId, service: Service) {
        *self.attained.entry(tenant).or_default() += service;
    }

    /// Service that `tenant` has had here since the start.
    pub fn attained(&self, tenant: TenantId) -> Service {
        self.attained.get(&tenant).copied().unwrap_or_default()
    }

    /// The requests that wait, in no promised order.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.tickets.keys().copied()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Whether one more would be too many.
    pub fn is_full(&self) -> bool {
        self.line.len() >= self.max
    }

    /// The work that waits: prompts and estimated outputs.
    pub fn work(&self) -> Tokens {
        self.work
    }

    fn invariants(&self) {
        debug_assert_eq!(self.line.len(), self.tickets.len());
        debug_assert_eq!(self.line.len(), self.deadlines.len());
        debug_assert!(self.line.len() <= self.max);
        debug_assert!(!self.line.is_empty() || self.work == Tokens::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u64, deadline: u64) -> Waiting {
        Waiting {
            id: RequestId::new(id),
            tenant: TenantId::new(0),
            work: Tokens::new(10),
            deadline: Time::from_micros(deadline),
        }
    }

    #[test]
    fn the_first_to_come_is_the_first_to_go() {
        let mut queue = FairQueue::new(Policy::Fifo, 10);
        for id in [3, 1, 2] {
            queue.push(waiting(id, 100)).unwrap();
        }
        let order: Vec<_> = std::iter::from_fn(|| {
            let head = queue.head()?;
            queue.remove(head.id).map(|gone| gone.id.get())
        })
        .collect();
        assert_eq!(order, [3, 1, 2]);
        assert_eq!(queue.work(), Tokens::ZERO);
    }

    #[test]
    fn a_full_queue_refuses_and_counts_only_the_living() {
        let mut queue = FairQueue::new(Policy::Fifo, 2);
        queue.push(waiting(1, 5)).unwrap();
        queue.push(waiting(2, 5)).unwrap();
        assert_eq!(queue.push(waiting(3, 5)), Err(Full));
        queue.remove(RequestId::new(1)).unwrap();
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.push(waiting(3, 5)), Ok(()));
    }

    #[test]
    fn the_first_deadline_belongs_to_whoever_gives_up_first() {
        let mut queue = FairQueue::new(Policy::Fifo, 10);
        queue.push(waiting(1, 50)).unwrap();
        queue.push(waiting(2, 20)).unwrap();
        assert_eq!(
            queue.first_deadline(),
            Some((Time::from_micros(20), RequestId::new(2)))
        );
        queue.remove(RequestId::new(2)).unwrap();
        assert_eq!(
            queue.first_deadline(),
            Some((Time::from_micros(50), RequestId::new(1)))
        );
    }

    #[test]
    fn service_is_remembered_by_tenant() {
        let mut queue = FairQueue::new(Policy::Fifo, 10);
        queue.charge(TenantId::new(4), Service::new(7));
        queue.charge(TenantId::new(4), Service::new(5));
        assert_eq!(queue.attained(TenantId::new(4)), Service::new(12));
        assert_eq!(queue.attained(TenantId::new(5)), Service::ZERO);
    }
}
