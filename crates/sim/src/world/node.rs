//! A replica with what can go wrong around it: it dies, it is slow or stuck, its line is cut, what
//! it says of itself is old.
//!
//! An engine keeps its own time, which passes more slowly while it is slow. So every engine can be
//! slowed, and none needs to know of it.

use std::collections::VecDeque;

use tollgate_policy::gateway::Report;
use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{KvBlocks, Micros, Time};

use crate::machine::{Job, Machine, Made, Reach, Said};
use crate::setup::ReplicaSetup;

/// Requests with greater numbers are somebody else's.
pub(super) const OTHERS: u64 = 1 << 62;

/// One replica in the world.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) setup: ReplicaSetup,
    machine: Option<Machine>,
    pace: Pace,
    stuck_until: Time,
    line: Line,
    /// What it said last of itself, and when.
    reported: Option<(Time, Report)>,
    pub(super) report_every: Micros,
    /// How many of the next starts fail.
    pub(super) starts_in_vain: u32,
    /// When the entry in the agenda that counts is due.
    pub(super) awaited: Option<Time>,
    /// What the machines before this one made.
    made: Made,
}

/// How an engine's time runs beside the world's.
#[derive(Clone, Copy, Debug)]
struct Pace {
    since: Time,
    local: Time,
    per_mille: u64,
}

/// The line between gateway and replica.
#[derive(Debug)]
enum Line {
    Up,
    Cut {
        down: Vec<Order>,
        up: VecDeque<Said>,
    },
}

/// What the gateway tells a replica.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Start(Job),
    Cancel(RequestId),
}

/// A replica that is down takes no orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down;

impl Node {
    pub(super) fn new(setup: ReplicaSetup) -> Self {
        Self {
            machine: None,
            pace: Pace {
                since: Time::START,
                local: Time::START,
                per_mille: 1_000,
            },
            stuck_until: Time::START,
            line: Line::Up,
            reported: None,
            report_every: setup.report_every,
            starts_in_vain: 0,
            awaited: None,
            made: Made::default(),
            setup,
        }
    }

    pub(super) fn start(&mut self) {
        self.machine = Some(self.setup.machine.start());
        self.reported = None;
    }

    pub(super) fn reach(&self) -> Reach {
        self.setup.machine.reach()
    }

    pub(super) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// It dies. What was on the line is lost.
    pub(super) fn crash(&mut self) {
        self.made = self.made();
        self.machine = None;
        self.awaited = None;
        if let Line::Cut { down, up } = &mut self.line {
            down.clear();
            up.clear();
        }
    }

    /// Hands on an order, now or when the line is back.
    pub(super) fn tell(&mut self, order: Order, now: Time) -> Result<(), Down> {
        let local = self.pace.local(now);
        let machine = self.machine.as_mut().ok_or(Down)?;
        match &mut self.line {
            Line::Cut { down, .. } => down.push(order),
            Line::Up => obey(machine, order, local),
        }
        Ok(())
    }

    /// When its step under way ends, by the world's time.
    pub(super) fn next(&self) -> Option<Time> {
        let local = self.machine.as_ref()?.next()?;
        Some(self.pace.world(local).max(self.stuck_until))
    }

    /// Ends the step under way.
    pub(super) fn advance(&mut self, now: Time) {
        let local = self.pace.local(now);
        if let Some(machine) = &mut self.machine {
            let due = machine.next().unwrap_or(local);
            machine.advance(local.max(due));
        }
    }

    /// What has come from it, in order.
    pub(super) fn poll(&mut self, now: Time) -> Option<Said> {
        let machine = self.machine.as_mut()?;
        let said = match &mut self.line {
            Line::Cut { up, .. } => {
                up.extend(std::iter::from_fn(|| ours(machine)));
                None
            }
            Line::Up => ours(machine),
        }?;
        Some(self.dated(said, now))
    }

    /// What it says of itself with a step is what it said last, until it is time to say it again.
    /// One in another process says nothing with a step.
    fn dated(&mut self, said: Said, now: Time) -> Said {
        match said {
            Said::Stepped { .. } if self.reach() == Reach::Elsewhere => said,
            Said::Stepped { served, report } => {
                let due = |(at, _): &(Time, Report)| now.since(*at) >= self.report_every;
                let (_, report) = match self.reported {
                    Some(last) if !due(&last) => last,
                    Some(_) | None => *self.reported.insert((now, report)),
                };
                Said::Stepped { served, report }
            }
            Said::Ended { .. } => said,
        }
    }

    /// It is asked what it holds; nothing where it is down or cannot be reached, or was asked less
    /// long ago than it is to be.
    pub(super) fn asked(&mut self, now: Time) -> Option<Report> {
        let recent = |(at, _): &(Time, Report)| now.since(*at) < self.report_every;
        if self.reported.as_ref().is_some_and(recent) || !matches!(self.line, Line::Up) {
            return None;
        }
        let report = self.machine.as_ref()?.report();
        self.reported = Some((now, report));
        Some(report)
    }

    pub(super) fn cut(&mut self) {
        if matches!(self.line, Line::Up) {
            self.line = Line::Cut {
                down: Vec::new(),
                up: VecDeque::new(),
            };
        }
    }

    /// The line is back: orders arrive, and what was said while it was cut is returned.
    pub(super) fn mend(&mut self, now: Time) -> Vec<Said> {
        let local = self.pace.local(now);
        let Line::Cut { down, mut up } = std::mem::replace(&mut self.line, Line::Up) else {
            return Vec::new();
        };
        if let Some(machine) = &mut self.machine {
            up.extend(std::iter::from_fn(|| ours(machine)));
            for order in down {
                obey(machine, order, local);
            }
        }
        let said = up.into_iter();
        said.map(|one| self.dated(one, now)).collect()
    }

    pub(super) fn slow(&mut self, per_mille: u64, now: Time) {
        let local = self.pace.local(now);
        self.pace = Pace {
            since: now,
            local,
            per_mille: per_mille.max(1),
        };
    }

    pub(super) fn stick(&mut self, until: Time) {
        self.stuck_until = self.stuck_until.max(until);
    }

    pub(super) fn kv(&self) -> KvBlocks {
        self.machine.as_ref().map_or(KvBlocks::ZERO, Machine::kv)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.machine.as_ref().is_none_or(Machine::is_empty)
    }

    /// What all the machines in its place have made.
    pub(super) fn made(&self) -> Made {
        let now = self.machine.as_ref().map(Machine::made).unwrap_or_default();
        Made {
            prompt: self.made.prompt + now.prompt,
            cached: self.made.cached + now.cached,
            output: self.made.output + now.output,
            preemptions: self.made.preemptions + now.preemptions,
        }
    }
}

/// What it says of our requests; of somebody else's it tells them.
fn ours(machine: &mut Machine) -> Option<Said> {
    loop {
        match machine.poll()? {
            Said::Ended { id, .. } if id.get() > OTHERS => {}
            Said::Stepped { mut served, report } => {
                served.retain(|one| one.id.get() <= OTHERS);
                return Some(Said::Stepped { served, report });
            }
            said @ Said::Ended { .. } => return Some(said),
        }
    }
}

fn obey(machine: &mut Machine, order: Order, local: Time) {
    match order {
        Order::Start(job) => machine.submit(job, local),
        Order::Cancel(id) => machine.cancel(id, local),
    }
}

impl Pace {
    fn local(&self, world: Time) -> Time {
        let passed = world.since(self.since).get();
        self.local + Micros::new(passed.saturating_mul(1_000) / self.per_mille)
    }

    /// Rounded up: at the time it names, the engine's own clock has come as far.
    fn world(&self, local: Time) -> Time {
        let ahead = local.since(self.local).get();
        self.since + Micros::new(ahead.saturating_mul(self.per_mille).div_ceil(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_time_is_never_early() {
        for per_mille in [333, 1_000, 1_001, 4_000, 7_777] {
            let pace = Pace {
                since: Time::from_micros(17),
                local: Time::from_micros(5),
                per_mille,
            };
            for local in [5, 6, 7, 1_000, 123_457].map(Time::from_micros) {
                let world = pace.world(local);
                assert!(pace.local(world) >= local, "{per_mille}: {local:?}");
                assert!(pace.local(world).since(local) <= Micros::new(3));
            }
        }
    }
}
