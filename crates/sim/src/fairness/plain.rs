//! Schedulers written as plainly as can be: a counter per tenant, and a scan for the least.

use std::collections::VecDeque;

use tollgate_policy::units::{KvBlocks, Time, Tokens};

use super::{Schedule, expected};
use crate::workload::Arrival;

/// When, and how much, a tenant's counter is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// Never: the order of arrival decides.
    Arrival,
    /// Prompt and 128 output tokens when it goes, whatever comes of it.
    Fixed,
    /// Prompt when it goes, output as it is generated.
    AsServed,
}

pub(super) struct Plain {
    charge: Charge,
    room: KvBlocks,
    held: KvBlocks,
    running: usize,
    lanes: Vec<Lane>,
    tenant_of: Vec<usize>,
    last_left: u64,
}

#[derive(Clone, Default)]
struct Lane {
    counter: u64,
    line: VecDeque<(usize, Tokens, KvBlocks)>,
}

impl Plain {
    pub(super) fn new(charge: Charge, tenants: usize, room: Tokens) -> Self {
        Self {
            charge,
            room: KvBlocks::new(room.get() / KvBlocks::SLOTS.get()),
            held: KvBlocks::ZERO,
            running: 0,
            lanes: vec![Lane::default(); tenants],
            tenant_of: Vec::new(),
            last_left: 0,
        }
    }

    /// The tenant that is next: the least counter, or the earliest arrival.
    fn next(&self) -> Option<usize> {
        let waiting = (0..self.lanes.len()).filter(|tenant| !self.lanes[*tenant].line.is_empty());
        waiting.min_by_key(|tenant| {
            let lane = &self.lanes[*tenant];
            match self.charge {
                Charge::Arrival => lane.line.front().map_or(0, |(id, ..)| *id as u64),
                Charge::Fixed | Charge::AsServed => lane.counter,
            }
        })
    }
}

impl Schedule for Plain {
    fn arrived(&mut self, id: usize, arrival: &Arrival, _: Time) {
        self.tenant_of.push(arrival.tenant);
        let waiting = self.lanes.iter().filter(|lane| !lane.line.is_empty());
        let floor = waiting
            .map(|lane| lane.counter)
            .min()
            .unwrap_or(self.last_left);
        let lane = &mut self.lanes[arrival.tenant];
        if lane.line.is_empty() {
            lane.counter = lane.counter.max(floor);
        }
        lane.line.push_back((id, arrival.prompt, expected(arrival)));
    }

    fn admit(&mut self) -> Vec<usize> {
        let mut go = Vec::new();
        while let Some(tenant) = self.next() {
            let lane = &mut self.lanes[tenant];
            let Some(&(id, prompt, blocks)) = lane.line.front() else {
                break;
            };
            if self.running > 0 && self.held + blocks > self.room {
                break;
            }
            lane.line.pop_front();
            self.held += blocks;
            self.running += 1;
            lane.counter += match self.charge {
                Charge::Arrival => 0,
                Charge::Fixed => prompt.get() + 2 * 128,
                Charge::AsServed => prompt.get(),
            };
            if lane.line.is_empty() {
                self.last_left = lane.counter;
            }
            go.push(id);
        }
        go
    }

    fn served(&mut self, served: &[(usize, Tokens, Tokens)], _: Time) {
        if self.charge == Charge::AsServed {
            for (id, _, output) in served {
                self.lanes[self.tenant_of[*id]].counter += 2 * output.get();
            }
        }
    }

    fn ended(&mut self, _: usize, arrival: &Arrival, _: Time) {
        self.held -= expected(arrival);
        self.running -= 1;
    }
}
