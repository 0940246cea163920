//! How fair a schedule is, on one engine with room for so many tokens: the real policy beside plain
//! ones.
//!
//! One clock, one cost model, one rule of what fits, for all of them; what differs is who goes
//! next. The score is the one of the theorem (Sheng et al., OSDI 2024): the widest gap in service
//! between two tenants while both wait.

mod compared;
mod ours;
mod plain;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tollgate_policy::fair::Policy;
use tollgate_policy::units::{KvBlocks, Micros, Service, Time, Tokens};

pub use self::compared::{Compared, ComparedError, HEADER, compared};
use self::ours::Ours;
use self::plain::{Charge, Plain};
use crate::workload::Arrival;

/// Who decides who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// First come, first served: an engine's own queue.
    Fcfs,
    /// The least counter, charged prompt plus a fixed 128 output tokens when it goes, and never
    /// corrected.
    FixedEstimate,
    /// The least counter, charged as served: the reference, written plainly.
    TrueVtc,
    /// Tollgate's gateway with this policy.
    Tollgate(Policy),
}

impl Scheduler {
    /// The name in a table.
    pub fn label(self) -> String {
        match self {
            Self::Fcfs => "fcfs".to_owned(),
            Self::FixedEstimate => "fixed estimate of 128".to_owned(),
            Self::TrueVtc => "true vtc".to_owned(),
            Self::Tollgate(policy) => format!("tollgate {}", policy.label()),
        }
    }
}

/// One engine: what it holds, and what its steps cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Tokens that the running batch may be expected to hold, prompt and output.
    pub room: Tokens,
    /// A step by itself.
    pub step: Micros,
    /// Each sequence in it.
    pub per_sequence: Micros,
    /// Each prefilled token, per thousand.
    pub per_thousand_prefilled: Micros,
}

impl Default for Engine {
    /// A batch of 10,000 tokens; a step of 10 ms, 0.15 ms per sequence, prefill at 12,000 tokens/s.
    fn default() -> Self {
        Self {
            room: Tokens::new(10_000),
            step: Micros::from_millis(10),
            per_sequence: Micros::new(150),
            per_thousand_prefilled: Micros::new(83_333),
        }
    }
}

/// What came of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// The widest gap in service (1 per prompt token, 2 per output token) of two tenants while both
    /// waited.
    pub gap: Service,
    /// Service given per second, in the same units.
    pub service_per_s: u64,
    /// Requests that finished.
    pub finished: usize,
}

/// What an engine's loop asks of a scheduler.
trait Schedule {
    /// A request has come.
    fn arrived(&mut self, id: usize, arrival: &Arrival, now: Time);
    /// The requests that go now, in order.
    fn admit(&mut self) -> Vec<usize>;
    /// A step served these: request, prompt tokens, output tokens.
    fn served(&mut self, served: &[(usize, Tokens, Tokens)], now: Time);
    /// A request has had all its output.
    fn ended(&mut self, id: usize, arrival: &Arrival, now: Time);
}

/// Runs `arrivals` to the end, or to `until`.
pub fn run(scheduler: Scheduler, arrivals: &[Arrival], engine: Engine, until: Time) -> Score {
    let tenants = arrivals
        .iter()
        .map(|arrival| arrival.tenant + 1)
        .max()
        .unwrap_or(0);
    let mut schedule: Box<dyn Schedule> = match scheduler {
        Scheduler::Fcfs => Box::new(Plain::new(Charge::Arrival, tenants, engine.room)),
        Scheduler::FixedEstimate => Box::new(Plain::new(Charge::Fixed, tenants, engine.room)),
        Scheduler::TrueVtc => Box::new(Plain::new(Charge::AsServed, tenants, engine.room)),
        Scheduler::Tollgate(policy) => Box::new(Ours::new(policy, tenants, engine.room)),
    };
    World::new(arrivals, engine, tenants).run(&mut *schedule, until)
}

/// What a request is expected to hold where nobody knows its output: the rule for every scheduler.
fn expected(arrival: &Arrival) -> KvBlocks {
    (arrival.prompt + OUTPUT_GUESS).blocks()
}

/// The output expected of every request, right or wrong.
const OUTPUT_GUESS: Tokens = Tokens::new(256);

struct World<'a> {
    arrivals: &'a [Arrival],
    engine: Engine,
    now: Time,
    come: usize,
    /// Output so far of each that runs.
    running: BTreeMap<usize, Tokens>,
    waiting: Vec<usize>,
    attained: Vec<i128>,
    gaps: BTreeMap<(usize, usize), (i128, i128)>,
    widest: i128,
    service: Service,
    finished: usize,
}

impl<'a> World<'a> {
    fn new(arrivals: &'a [Arrival], engine: Engine, tenants: usize) -> Self {
        Self {
            arrivals,
            engine,
            now: Time::START,
            come: 0,
            running: BTreeMap::new(),
            waiting: vec![0; tenants],
            attained: vec![0; tenants],
            gaps: BTreeMap::new(),
            widest: 0,
            service: Service::ZERO,
            finished: 0,
        }
    }

    fn run(mut self, schedule: &mut dyn Schedule, until: Time) -> Score {
        while self.now < until {
            self.let_come(schedule);
            for id in schedule.admit() {
                self.waiting[self.arrivals[id].tenant] -= 1;
                self.running.insert(id, Tokens::ZERO);
            }
            if self.running.is_empty() {
                let Some(next) = self.arrivals.get(self.come) else {
                    break;
                };
                self.now = next.at;
                continue;
            }
            self.observe();
            self.step(schedule);
        }
        let millis = self.now.since(Time::START).get() / 1_000;
        Score {
            gap: Service::new(u64::try_from(self.widest).unwrap_or(u64::MAX)),
            service_per_s: self.service.get() * 1_000 / millis.max(1),
            finished: self.finished,
        }
    }

    fn let_come(&mut self, schedule: &mut dyn Schedule) {
        while let Some(arrival) = self
            .arrivals
            .get(self.come)
            .filter(|next| next.at <= self.now)
        {
            self.waiting[arrival.tenant] += 1;
            schedule.arrived(self.come, arrival, self.now);
            self.come += 1;
        }
    }

    fn step(&mut self, schedule: &mut dyn Schedule) {
        let mut prefilled = Tokens::ZERO;
        let served: Vec<_> = self
            .running
            .iter()
            .map(|(id, given)| {
                let first = *given == Tokens::ZERO;
                let prompt = if first {
                    self.arrivals[*id].prompt
                } else {
                    Tokens::ZERO
                };
                prefilled += prompt;
                (*id, prompt, Tokens::new(1))
            })
            .collect();
        let sequences = Tokens::of_len(&served).get();
        let prefill = self.engine.per_thousand_prefilled.get() * prefilled.get() / 1_000;
        let each = self.engine.per_sequence.get() * sequences;
        self.now = self.now + self.engine.step + Micros::new(prefill + each);
        for (id, prompt, output) in &served {
            let tenant = self.arrivals[*id].tenant;
            let service = prompt.weighted(1) + output.weighted(2);
            self.attained[tenant] += i128::from(service.get());
            self.service += service;
            self.running
                .entry(*id)
                .and_modify(|given| *given += *output);
        }
        schedule.served(&served, self.now);
        for (id, _, _) in served {
            if self
                .running
                .get(&id)
                .is_some_and(|given| *given >= self.arrivals[id].output)
            {
                self.running.remove(&id);
                self.finished += 1;
                schedule.ended(id, &self.arrivals[id], self.now);
            }
        }
    }

    fn observe(&mut self) {
        for f in 0..self.waiting.len() {
            for g in f + 1..self.waiting.len() {
                if self.waiting[f] == 0 || self.waiting[g] == 0 {
                    self.gaps.remove(&(f, g));
                    continue;
                }
                let gap = self.attained[f] - self.attained[g];
                let (least, most) = self.gaps.entry((f, g)).or_insert((gap, gap));
                (*least, *most) = ((*least).min(gap), (*most).max(gap));
                self.widest = self.widest.max(*most - *least);
            }
        }
    }
}
