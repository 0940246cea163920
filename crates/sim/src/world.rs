//! A gateway in a world of numbers: requests come, replicas answer, clients leave, things go wrong,
//! and time jumps from each happening to the next.
//!
//! The world carries out what the gateway orders as the server does: in order, without choice. It
//! reads no clock, has no threads, and does the same for the same seed. What must hold whatever
//! happens is checked by oracles as it goes; they know the world and its gateway from outside only.

mod agenda;
mod carry;
mod flight;
mod log;
mod node;
mod oracle;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::iter::Peekable;

use rand_pcg::Pcg64;
use tollgate_policy::gateway::{Event, Fit};
use tollgate_policy::ids::{ReplicaId, RequestId, TenantId};
use tollgate_policy::pace::Haste;
use tollgate_policy::request;
use tollgate_policy::slo::Asked;
use tollgate_policy::units::{Micros, Service, Time, Tokens};

use self::agenda::{Agenda, Happening};
pub(crate) use self::flight::Flight;
use self::flight::{Ask, Flights};
pub use self::log::Log;
use self::node::Node;
use self::oracle::Oracles;
pub use self::oracle::{Oracle, Violation};
use crate::chance::{Purpose, mix, named, stream};
use crate::control::Control;
use crate::machine::{Job, Prompt, Reach, Said};
use crate::setup::{Caller, MODEL, Setup};
use crate::tally::Tally;
use crate::workload::{Arrival, Merged, Prefix, Turn, Turns};

/// How often the replicas' levels are looked at.
const SAMPLE_EVERY: Micros = Micros::from_millis(250);

/// Time that the last requests may take beyond the drain's bound before the run is given up: longer
/// than any fault lasts.
const PATIENCE: Micros = Micros::from_secs(3_600);

/// Times that a gateway may ask to be woken without the clock going on.
const WAKES_MAX: u32 = 10_000;

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// What was scored.
    pub tally: Tally,
    /// What did not hold; nothing in a good run.
    pub violations: Vec<Violation>,
    /// Facts handed in.
    pub facts: u64,
    /// When the last thing happened.
    pub ended: Time,
}

/// Runs `setup` with `control` as its gateway, and writes to `log` where one is given.
pub fn run<C: Control>(setup: &Setup, control: C, log: Option<Log<'_>>) -> Run {
    World::new(setup, control, log).run()
}

struct World<'s, 'l, C> {
    setup: &'s Setup,
    control: C,
    now: Time,
    /// How far the gateway's clock is ahead of the world's, in microseconds.
    skew: i64,
    agenda: Agenda,
    arrivals: Peekable<Merged>,
    callers: Vec<Chances>,
    /// The next request of each session, and what follows it.
    sessions: Vec<(Turn, Turns)>,
    nodes: Vec<Node>,
    flights: Flights,
    /// What replicas have said and nobody has heard yet.
    heard: VecDeque<(usize, Said)>,
    facts: VecDeque<Event>,
    /// Models that are being fitted.
    fits: VecDeque<Box<Fit>>,
    tally: Tally,
    oracles: Oracles,
    log: Option<Log<'l>>,
    counted: u64,
    /// Requests that others have sent past the gateway.
    others: u64,
    is_closed: bool,
    is_drained: bool,
    wakes: (Time, u32),
}

/// What is drawn for one tenant.
struct Chances {
    client: Pcg64,
    retry: Pcg64,
    /// Its requests so far.
    turn: u64,
}

impl<'s, 'l, C: Control> World<'s, 'l, C> {
    fn new(setup: &'s Setup, control: C, log: Option<Log<'l>>) -> Self {
        let chances = |caller: &Caller| Chances {
            client: stream(setup.seed, Purpose::Client, &caller.tenant.name),
            retry: stream(setup.seed, Purpose::Retry, &caller.tenant.name),
            turn: 0,
        };
        let mut agenda = Agenda::default();
        for n in 0..setup.fleet.len() {
            agenda.plan(Time::START, Happening::Started(n));
        }
        for fault in &setup.faults {
            agenda.plan(fault.at, Happening::Fault(fault.kind));
        }
        for (n, replica) in setup.fleet.iter().enumerate() {
            if let Some(others) = replica.others {
                agenda.plan(Time::START + others.every, Happening::Other(n));
            }
            let is_asked = replica.machine.reach() == Reach::Elsewhere;
            if is_asked && replica.report_every > Micros::ZERO {
                agenda.plan(Time::START + replica.report_every, Happening::Report(n));
            }
        }
        agenda.plan(Time::START + SAMPLE_EVERY, Happening::Sample);
        agenda.plan(setup.workload.until(), Happening::Close);
        Self {
            control,
            now: Time::START,
            skew: 0,
            agenda,
            arrivals: setup.workload.arrivals().peekable(),
            callers: setup.callers.iter().map(chances).collect(),
            sessions: Vec::new(),
            others: 0,
            nodes: setup.fleet.iter().cloned().map(Node::new).collect(),
            flights: Flights::default(),
            heard: VecDeque::new(),
            facts: VecDeque::new(),
            fits: VecDeque::new(),
            tally: Tally::new(setup),
            oracles: Oracles::new(setup),
            log,
            counted: 0,
            is_closed: false,
            is_drained: false,
            wakes: (Time::START, 0),
            setup,
        }
    }

    fn run(mut self) -> Run {
        let last = self.setup.workload.until() + self.setup.drain + PATIENCE;
        while !self.is_over() {
            let Some((at, due)) = self.next_due() else {
                break;
            };
            if at > last || !self.oracles.keeps_going() {
                break;
            }
            self.now = self.now.max(at);
            match due {
                Due::Arrival => self.arrive(),
                Due::Agenda => self.happen(),
                Due::Wake => self.wake(),
            }
            self.listen();
        }
        self.finish()
    }

    /// Nothing is left: no more requests come, none is under way, and the gateway has said so.
    fn is_over(&self) -> bool {
        self.is_drained && self.flights.is_empty() && self.arrivals_are_over()
    }

    fn arrivals_are_over(&self) -> bool {
        self.is_closed
    }

    fn next_due(&mut self) -> Option<(Time, Due)> {
        let arrival = self
            .arrivals
            .peek()
            .map(|arrival| (arrival.at, Due::Arrival));
        let agenda = self.agenda.next().map(|at| (at, Due::Agenda));
        let wake = self.control.next_wake();
        let wake = wake.map(|at| (self.world_time(at).max(self.now), Due::Wake));
        [agenda, arrival, wake].into_iter().flatten().min()
    }

    /// The gateway's clock.
    fn gateway_time(&self) -> Time {
        Time::from_micros(self.now.as_micros().saturating_add_signed(self.skew))
    }

    fn world_time(&self, gateway: Time) -> Time {
        let back = self.skew.checked_neg().unwrap_or(i64::MAX);
        Time::from_micros(gateway.as_micros().saturating_add_signed(back))
    }

    fn wake(&mut self) {
        if self.wakes.0 != self.now {
            self.wakes = (self.now, 0);
        }
        self.wakes.1 += 1;
        if self.wakes.1 > WAKES_MAX {
            self.oracles.never_sleeps(self.now);
            return;
        }
        self.submit(Event::Wake);
    }

    fn arrive(&mut self) {
        let Some(arrival) = self.arrivals.next() else {
            return;
        };
        let mut ask = self.ask(&arrival);
        ask.session = self.session(&arrival);
        self.tally.came(arrival.tenant, self.now);
        self.send(ask);
    }

    fn ask(&mut self, arrival: &Arrival) -> Ask {
        let caller = &self.setup.callers[arrival.tenant];
        let chances = &mut self.callers[arrival.tenant];
        let shared = match &caller.texts {
            None => arrival.prefix,
            Some(texts) => Some(Prefix {
                id: mix(named(self.setup.seed, &texts.family) ^ chances.turn),
                tokens: texts.tokens.min(arrival.prompt),
            }),
        };
        chances.turn += 1;
        let output = match self.setup.longer {
            None => arrival.output,
            Some(longer) => longer.of(arrival.output, self.now),
        };
        let prompt = Prompt {
            tokens: arrival.prompt,
            shared,
        };
        Ask {
            tenant: arrival.tenant,
            prompt,
            output,
            output_max: caller.says.of(output),
            fate: caller.manners.fate(output, &mut chances.client),
            sent: self.now,
            tried: 0,
            session: None,
        }
    }

    /// What follows the answer to this request, where its tenant has sessions.
    fn session(&mut self, arrival: &Arrival) -> Option<usize> {
        let mut turns = self.setup.workload.turns(arrival);
        let next = turns.next()?;
        self.sessions.push((next, turns));
        Some(self.sessions.len() - 1)
    }

    /// The next request of a session, if its last answer was not the last.
    fn goes_on(&mut self, ask: &Ask) {
        let Some(session) = ask.session else {
            return;
        };
        let Some((turn, rest)) = self.sessions.get_mut(session) else {
            return;
        };
        let (turn, next) = (*turn, rest.next());
        let at = self.now + turn.think;
        let chances = &mut self.callers[ask.tenant];
        let caller = &self.setup.callers[ask.tenant];
        let following = Ask {
            prompt: Prompt {
                tokens: turn.prompt,
                shared: turn.prefix,
            },
            output: turn.output,
            output_max: caller.says.of(turn.output),
            fate: caller.manners.fate(turn.output, &mut chances.client),
            sent: at,
            tried: 0,
            session: next.is_some().then_some(session),
            ..*ask
        };
        if let Some(next) = next {
            self.sessions[session].0 = next;
        }
        if at < self.setup.workload.until() {
            self.agenda.plan(at, Happening::Again(following));
        }
    }

    /// Sends one try.
    fn send(&mut self, ask: Ask) {
        let id = self.flights.open(Flight::new(ask));
        if let flight::Leaving::After(span) = flight::leaving(&ask) {
            self.agenda.plan(self.now + span, Happening::Leaves(id));
        }
        self.submit(Event::Arrived(request::Arrival {
            id,
            tenant: TenantId::new(u32::try_from(ask.tenant).unwrap_or(u32::MAX)),
            key: None,
            model: MODEL,
            prompt: ask.prompt.tokens,
            output_max: ask.output_max,
            retry: ask.tried > 0,
            slo: Asked::default(),
            received: self.gateway_time(),
        }));
    }

    fn happen(&mut self) {
        let Some((at, what)) = self.agenda.pop() else {
            return;
        };
        match what {
            Happening::Again(ask) if ask.tried > 0 => {
                self.tally.came_again(self.now);
                self.send(ask);
            }
            Happening::Again(ask) => {
                self.tally.came(ask.tenant, self.now);
                self.send(ask);
            }
            Happening::Other(n) => self.other(n),
            Happening::Report(n) => self.report(n),
            Happening::Step(n) => self.step(n, at),
            Happening::Started(n) => self.started(n),
            Happening::Leaves(id) => self.leaves(id),
            Happening::Taken(id) => self.client_ends(id, request::ClientEnding::Delivered),
            Happening::Fault(kind) => self.fault(kind),
            Happening::Over(kind) => self.fault_over(kind),
            Happening::Sample => self.sample(),
            Happening::Fitted => self.fitted(),
            Happening::Close => {
                self.is_closed = true;
                let bound = self.setup.drain;
                self.submit(Event::Drain { bound });
            }
        }
    }

    fn step(&mut self, n: usize, at: Time) {
        if self.nodes[n].awaited != Some(at) {
            return;
        }
        self.nodes[n].awaited = None;
        // Stuck since this was planned.
        if self.nodes[n].next().is_none_or(|next| next <= self.now) {
            self.nodes[n].advance(self.now);
        }
        self.attend(n);
    }

    /// Takes what a replica has to say, and plans the end of its next step.
    fn attend(&mut self, n: usize) {
        while let Some(said) = self.nodes[n].poll(self.now) {
            self.heard.push_back((n, said));
        }
        let next = self.nodes[n].next().map(|at| at.max(self.now));
        if let Some(at) = next
            && self.nodes[n].awaited != Some(at)
        {
            self.nodes[n].awaited = Some(at);
            self.agenda.plan(at, Happening::Step(n));
        }
    }

    /// Asks a replica what it holds, as a scraper does.
    fn report(&mut self, n: usize) {
        if let Some(report) = self.nodes[n].asked(self.now) {
            let replica = replica(n);
            self.submit(Event::Reported { replica, report });
        }
        if !self.is_over() {
            let every = self.nodes[n].setup.report_every;
            self.agenda.plan(self.now + every, Happening::Report(n));
        }
    }

    fn started(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.is_up() {
            return;
        }
        let replica = replica(n);
        if node.starts_in_vain > 0 {
            node.starts_in_vain -= 1;
            self.submit(Event::ReplicaDown { replica });
            return;
        }
        node.start();
        let capacity = node.setup.machine.capacity();
        self.submit(Event::ReplicaUp { replica, capacity });
    }

    /// Somebody else sends a replica a request.
    fn other(&mut self, n: usize) {
        let Some(others) = self.nodes[n].setup.others else {
            return;
        };
        self.others += 1;
        let job = Job {
            id: RequestId::new(node::OTHERS + self.others),
            tenant: TenantId::new(u32::MAX),
            prompt: Prompt {
                tokens: others.prompt,
                shared: None,
            },
            output: others.output,
            output_max: others.output,
            served: Service::ZERO,
            haste: Haste::AtOnce,
        };
        // Where it is down, it is down for everybody.
        if self.nodes[n]
            .tell(node::Order::Start(job), self.now)
            .is_ok()
        {
            self.attend(n);
        }
        if !self.is_closed {
            self.agenda
                .plan(self.now + others.every, Happening::Other(n));
        }
    }

    fn sample(&mut self) {
        let held = self.nodes.iter().map(|node| {
            let total = node.setup.machine.capacity().kv;
            (node.kv(), total)
        });
        self.tally.sampled(held, self.now);
        if !self.is_closed {
            self.agenda.plan(self.now + SAMPLE_EVERY, Happening::Sample);
        }
    }

    fn finish(mut self) -> Run {
        let ours = |node: &&Node| node.setup.others.is_none();
        let is_idle = self.nodes.iter().filter(ours).all(Node::is_empty);
        let made = self.nodes.iter().map(Node::made);
        self.tally.close(made.clone(), self.control.reserved());
        let end = oracle::End {
            made: made.fold(Tokens::ZERO, |sum, one| sum + one.output),
            is_idle,
            is_drained: self.is_drained,
            under_way: self.flights.len(),
        };
        self.oracles.finish(&self.control, end, self.now);
        Run {
            tally: self.tally,
            violations: self.oracles.into_violations(),
            facts: self.counted,
            ended: self.now,
        }
    }
}

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Agenda,
    Arrival,
    Wake,
}

fn replica(n: usize) -> ReplicaId {
    ReplicaId::new(u32::try_from(n).unwrap_or(u32::MAX))
}

fn node_of(replica: ReplicaId) -> usize {
    usize::try_from(replica.get()).unwrap_or(usize::MAX)
}
