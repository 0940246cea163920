//! What is going to happen, in the order of time; what is due at the same time happens in the order
//! in which it was planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::Time;

use super::flight::Ask;
use crate::fault::FaultKind;

/// Something that is going to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A client asks again: for the same, or for what follows an answer.
    Again(Ask),
    /// Somebody else sends a replica a request.
    Other(usize),
    /// A replica is asked what it holds.
    Report(usize),
    /// A replica's step ends; stale where the replica has another time in mind by now.
    Step(usize),
    /// A replica has been started, or has not.
    Started(usize),
    /// A client leaves that is still there.
    Leaves(RequestId),
    /// A client has taken the last byte of its answer.
    Taken(RequestId),
    /// A fault sets in.
    Fault(FaultKind),
    /// A fault that lasts is over.
    Over(FaultKind),
    /// The replicas' levels are looked at.
    Sample,
    /// A model has been fitted.
    Fitted,
    /// No more requests come: the gateway is told to drain.
    Close,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    planned: u64,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    /// Counts up with each entry.
    ticket: u64,
    what: Happening,
}

impl Agenda {
    pub(super) fn plan(&mut self, at: Time, what: Happening) {
        self.planned += 1;
        self.entries.push(Reverse(Entry {
            at,
            ticket: self.planned,
            what,
        }));
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Happening)> {
        self.entries
            .pop()
            .map(|Reverse(entry)| (entry.at, entry.what))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.ticket).cmp(&(other.at, other.ticket))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.ticket == other.ticket
    }
}

impl Eq for Entry {}
