//! Facts in, orders out: what the gateway hears and how its orders are carried out, as the server's
//! desk does it; and what clients, engines and faults do to a request.

use tollgate_policy::gateway::{Dispatch, Effect, Event, Learned, Record, Refusal, Report, Served};
use tollgate_policy::ids::{ReplicaId, RequestId};
use tollgate_policy::outcome::{EngineEnding, Failure, Outcome};
use tollgate_policy::request::ClientEnding;
use tollgate_policy::units::{Micros, Service, Tokens};
use tollgate_policy::usage::Usage;

use super::agenda::Happening;
use super::flight::{Ask, Flight, Party, Place};
use super::node::Order;
use super::{World, node_of, replica};
use crate::client::{Broken, Fate};
use crate::control::Control;
use crate::fault::FaultKind;
use crate::machine::{Job, Reach, Said};

/// How long it takes to fit a model, on a core that others want too.
const FIT_TAKES: Micros = Micros::from_millis(250);

impl<C: Control> World<'_, '_, C> {
    /// Hands the gateway a fact, and carries out all it orders.
    pub(super) fn submit(&mut self, fact: Event) {
        self.facts.push_back(fact);
        while let Some(fact) = self.facts.pop_front() {
            let at = self.gateway_time();
            self.counted += 1;
            if let Some(log) = &mut self.log {
                log.fact(&fact, self.now);
            }
            self.oracles.fact(&fact, at);
            self.control.handle(fact, at);
            while let Some(effect) = self.control.poll_effect() {
                if let Some(log) = &mut self.log {
                    log.effect(&effect, self.now);
                }
                self.oracles.effect(&effect, at);
                self.carry_out(effect);
            }
            self.oracles.settled(&self.control, at);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Dispatch(dispatch) => self.dispatch(&dispatch),
            Effect::Refuse(refusal) => self.refused(&refusal),
            Effect::Cancel { id, replica, .. } => self.cancelled(id, replica),
            Effect::Start { replica } => {
                let n = node_of(replica);
                let at = self.now + self.nodes[n].setup.starts_in;
                self.agenda.plan(at, Happening::Started(n));
            }
            Effect::Failed { id, .. } => self.failed(id),
            Effect::Withdraw { id, replica } => self.withdrawn(id, replica),
            // No replica here is loaded on demand or leaves for good.
            Effect::Stop { .. } | Effect::Retired { .. } => {}
            // Nothing here dies with its books open.
            Effect::Mark(_) => {}
            Effect::Record(record) => self.recorded(&record),
            Effect::Weighed(weighed) => self.tally.weighed(weighed.row),
            Effect::Fit(fit) => {
                self.fits.push_back(fit);
                self.agenda.plan(self.now + FIT_TAKES, Happening::Fitted);
            }
            Effect::Drained => self.is_drained = true,
        }
    }

    /// The model that was ordered first has been fitted.
    pub(super) fn fitted(&mut self) {
        let Some(fit) = self.fits.pop_front() else {
            return;
        };
        self.submit(Event::Recalled {
            model: fit.model,
            learned: Learned::Fitted(Box::new(fit.task.fit())),
        });
    }

    fn dispatch(&mut self, dispatch: &Dispatch) {
        let (id, n) = (dispatch.id, node_of(dispatch.replica));
        let caller = dispatch.tenant;
        let attained = self.control.attained(caller).get();
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        flight.place = Place::At(n);
        flight.dispatched.get_or_insert(self.now);
        (flight.prompt, flight.output) = (Tokens::ZERO, Tokens::ZERO);
        let tenant = &self.setup.callers[flight.ask.tenant].tenant;
        let job = Job {
            id,
            tenant: caller,
            prompt: flight.ask.prompt,
            output: flight.ask.output,
            output_max: dispatch.output_max,
            served: Service::new(attained / u64::from(tenant.weight.get())),
            haste: dispatch.haste,
        };
        if flight.ask.fate == Fate::LeavesAtDispatch {
            self.agenda.plan(self.now, Happening::Leaves(id));
        }
        match self.nodes[n].tell(Order::Start(job), self.now) {
            Ok(()) => self.attend(n),
            Err(_) => {
                flight_is_back(self.flights.get_mut(id));
                let failure = match self.nodes[n].reach() {
                    Reach::Here => Failure::Engine,
                    Reach::Elsewhere => Failure::Unreachable,
                };
                self.facts.push_back(Event::EngineEnded {
                    id,
                    ending: EngineEnding::Failed(failure),
                    usage: Usage::default(),
                });
            }
        }
    }

    fn refused(&mut self, refusal: &Refusal) {
        if let Some(flight) = self.flights.get_mut(refusal.id) {
            flight.told = Some(refusal.retry_after);
            if flight.client == Party::There {
                flight.client = Party::Done;
            }
        }
    }

    fn cancelled(&mut self, id: RequestId, replica: ReplicaId) {
        let n = node_of(replica);
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        let at_engine = matches!(flight.place, Place::At(_));
        if flight.client == Party::There {
            // Whoever reads is told; from whoever does not, the connection is taken.
            let ending = match flight.ask.fate {
                Fate::StopsReading => ClientEnding::Gone,
                Fate::Stays
                | Fate::LeavesAfter(_)
                | Fate::LeavesAtDispatch
                | Fate::LeavesAt(_)
                | Fate::LeavesAtEnd
                | Fate::PanicsAt(_) => ClientEnding::Delivered,
            };
            flight.client = Party::Done;
            self.facts.push_back(Event::ClientEnded { id, ending });
        }
        if at_engine && self.nodes[n].tell(Order::Cancel(id), self.now).is_ok() {
            self.attend(n);
        }
    }

    /// A client is told that its request failed; one that does not read is not told.
    fn failed(&mut self, id: RequestId) {
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        if flight.client == Party::There && flight.ask.fate != Fate::StopsReading {
            flight.client = Party::Done;
            let ending = ClientEnding::Delivered;
            self.facts.push_back(Event::ClientEnded { id, ending });
        }
    }

    /// A request is taken back from a replica that has not answered it.
    fn withdrawn(&mut self, id: RequestId, replica: ReplicaId) {
        let n = node_of(replica);
        let is_there = |flight: &Flight| flight.place == Place::At(n);
        let unanswered = |flight: &Flight| flight.output == Tokens::ZERO;
        let flight = self.flights.get(id);
        let may = flight.is_some_and(|flight| is_there(flight) && unanswered(flight));
        if may && self.nodes[n].tell(Order::Cancel(id), self.now).is_ok() {
            self.attend(n);
        }
    }

    fn recorded(&mut self, record: &Record) {
        let Some(flight) = self.flights.close(record.id) else {
            return;
        };
        self.tally.ended(&flight, record, self.now);
        if let Outcome::Completed(_) = record.outcome {
            self.goes_on(&flight.ask);
        }
        let retries = self.setup.callers[flight.ask.tenant].manners.retries;
        let asks = flight.first_token.is_none() || retries.broken == Broken::AsksAgain;
        let stayed = flight.client == Party::Done && asks;
        let again = stayed && asks_again(record.outcome) && flight.ask.tried < retries.most;
        if !again || self.is_closed {
            self.tally.gave_up(&flight, record);
            return;
        }
        let rng = &mut self.callers[flight.ask.tenant].retry;
        let pause = retries.pause(flight.ask.tried, flight.told.flatten(), rng);
        let tried = flight.ask.tried + 1;
        let ask = Ask {
            tried,
            ..flight.ask
        };
        self.agenda.plan(self.now + pause, Happening::Again(ask));
    }

    /// Hears all that replicas have said.
    pub(super) fn listen(&mut self) {
        while let Some((n, said)) = self.heard.pop_front() {
            match said {
                Said::Stepped { served, report } => match self.nodes[n].reach() {
                    Reach::Here => self.stepped(n, served, report),
                    Reach::Elsewhere => self.streamed(n, &served, report),
                },
                Said::Ended { id, ending, usage } => self.engine_ends((n, id), ending, usage),
            }
        }
    }

    /// An engine in the gateway's own process has done a step.
    fn stepped(&mut self, n: usize, served: Vec<Served>, report: Report) {
        for one in &served {
            if let Some(flight) = self.flights.get_mut(one.id) {
                flight.prompt += one.prompt;
                flight.output += one.output;
            }
        }
        let told: Vec<_> = served.iter().map(|one| (one.id, one.output)).collect();
        self.submit(Event::Stepped {
            replica: replica(n),
            served,
            report,
        });
        for (id, output) in told {
            self.reads(id, output);
        }
    }

    /// Tokens of an engine in another process pass by. What its prompts cost it tells at the end.
    fn streamed(&mut self, n: usize, served: &[Served], report: Report) {
        for one in served.iter().filter(|one| one.output > Tokens::ZERO) {
            let Some(flight) = self.flights.get_mut(one.id) else {
                continue;
            };
            let begins = flight.output == Tokens::ZERO;
            flight.output += one.output;
            if begins {
                self.submit(Event::Begun { id: one.id });
            }
            self.submit(Event::Streamed(Served {
                prompt: Tokens::ZERO,
                ..*one
            }));
            self.reads(one.id, one.output);
        }
        if self.nodes[n].report_every == Micros::ZERO {
            let replica = replica(n);
            self.submit(Event::Reported { replica, report });
        }
    }

    /// A client gets tokens.
    fn reads(&mut self, id: RequestId, output: Tokens) {
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        if output == Tokens::ZERO || flight.client != Party::There {
            return;
        }
        let fate = flight.ask.fate;
        if flight.first_token.is_none() {
            if fate == Fate::LeavesAtDispatch {
                return;
            }
            flight.first_token = Some(self.now);
            self.submit(Event::FirstToken { id });
        }
        let so_far = self.flights.get(id).map(|flight| flight.output);
        match fate {
            Fate::LeavesAt(token) if so_far >= Some(token) => {
                self.client_ends(id, ClientEnding::Gone);
            }
            Fate::PanicsAt(token) if so_far >= Some(token) => {
                self.client_ends(id, ClientEnding::Panicked);
            }
            Fate::Stays
            | Fate::LeavesAfter(_)
            | Fate::LeavesAtDispatch
            | Fate::LeavesAt(_)
            | Fate::LeavesAtEnd
            | Fate::PanicsAt(_)
            | Fate::StopsReading => {}
        }
    }

    fn engine_ends(&mut self, (n, id): (usize, RequestId), ending: EngineEnding, usage: Usage) {
        flight_is_back(self.flights.get_mut(id));
        self.account(n, id, usage);
        self.submit(Event::EngineEnded { id, ending, usage });
        self.hands_over(id, ending);
    }

    /// What an engine in another process says at the end that it computed, and nobody saw.
    fn account(&mut self, n: usize, id: RequestId, usage: Usage) {
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        if self.nodes[n].reach() == Reach::Here {
            return;
        }
        let served = Served {
            id,
            prompt: usage.prompt - usage.cached,
            output: usage.output - flight.output,
        };
        (flight.prompt, flight.output) = (served.prompt, usage.output);
        self.submit(Event::Streamed(served));
    }

    /// The engine is done with a request and nobody else has it: its client gets the rest.
    fn hands_over(&mut self, id: RequestId, ending: EngineEnding) {
        let Some(flight) = self.flights.get(id) else {
            return;
        };
        if flight.place != Place::Back || flight.client != Party::There {
            return;
        }
        let takes = self.setup.callers[flight.ask.tenant].manners.takes;
        match (ending, flight.ask.fate) {
            // Whoever is to be told is told by the gateway's orders.
            (EngineEnding::Failed(_) | EngineEnding::Refused(_) | EngineEnding::Cancelled, _) => {}
            (EngineEnding::Finished(_), Fate::LeavesAtEnd | Fate::LeavesAtDispatch) => {
                self.client_ends(id, ClientEnding::Gone);
            }
            // It is the connection's deadline that ends this one.
            (EngineEnding::Finished(_), Fate::StopsReading) => {}
            (
                EngineEnding::Finished(_),
                Fate::Stays | Fate::LeavesAfter(_) | Fate::LeavesAt(_) | Fate::PanicsAt(_),
            ) => {
                self.agenda.plan(self.now + takes, Happening::Taken(id));
            }
        }
    }

    pub(super) fn leaves(&mut self, id: RequestId) {
        self.client_ends(id, ClientEnding::Gone);
    }

    /// A client's part is over, if it was not before.
    pub(super) fn client_ends(&mut self, id: RequestId, ending: ClientEnding) {
        let Some(flight) = self.flights.get_mut(id) else {
            return;
        };
        if flight.client != Party::There {
            return;
        }
        flight.client = match ending {
            ClientEnding::Delivered | ClientEnding::Panicked => Party::Done,
            ClientEnding::Gone => Party::Gone,
        };
        self.submit(Event::ClientEnded { id, ending });
    }

    pub(super) fn fault(&mut self, kind: FaultKind) {
        if let Some(log) = &mut self.log {
            log.fault(kind.label(), kind, self.now);
        }
        if let Some(lasting) = kind.lasting() {
            self.agenda.plan(self.now + lasting, Happening::Over(kind));
        }
        match kind {
            FaultKind::Crash {
                replica,
                starts_in_vain,
            } => {
                self.nodes[replica].starts_in_vain = starts_in_vain;
                self.crash(replica);
            }
            FaultKind::Slow {
                replica, per_mille, ..
            } => self.slow(replica, per_mille),
            FaultKind::Stuck { replica, lasting } => {
                self.nodes[replica].stick(self.now + lasting);
                self.attend(replica);
            }
            FaultKind::Stale { replica, every, .. } => self.nodes[replica].report_every = every,
            FaultKind::Cut { replica, .. } => self.nodes[replica].cut(),
            FaultKind::ClockAhead(by) => self.turn_clock(i64::try_from(by.get())),
            FaultKind::ClockBack(by) => {
                self.turn_clock(i64::try_from(by.get()).map(|by| -by));
            }
            FaultKind::Exodus { percent } => self.exodus(percent),
        }
    }

    pub(super) fn fault_over(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Slow { replica, .. } => self.slow(replica, 1_000),
            FaultKind::Stale { replica, .. } => {
                let node = &mut self.nodes[replica];
                node.report_every = node.setup.report_every;
            }
            FaultKind::Cut { replica, .. } => {
                let said = self.nodes[replica].mend(self.now);
                self.heard
                    .extend(said.into_iter().map(|one| (replica, one)));
                self.attend(replica);
            }
            FaultKind::Stuck { replica, .. } => self.attend(replica),
            FaultKind::Crash { .. }
            | FaultKind::ClockAhead(_)
            | FaultKind::ClockBack(_)
            | FaultKind::Exodus { .. } => {}
        }
    }

    fn slow(&mut self, n: usize, per_mille: u64) {
        self.nodes[n].slow(per_mille, self.now);
        self.attend(n);
    }

    fn turn_clock(&mut self, by: Result<i64, std::num::TryFromIntError>) {
        let by = by.unwrap_or(i64::MAX / 4);
        self.skew = self.skew.saturating_add(by);
        self.oracles.clock_turned(by);
    }

    /// A replica dies: each request that it had fails there, then it is down, then clients hear.
    fn crash(&mut self, n: usize) {
        if !self.nodes[n].is_up() {
            return;
        }
        self.nodes[n].crash();
        let held = |flight: &Flight| flight.place == Place::At(n);
        let lost: Vec<RequestId> = self
            .flights
            .iter()
            .filter(|(_, flight)| held(flight))
            .map(|(id, _)| id)
            .collect();
        let failure = match self.nodes[n].reach() {
            Reach::Here => Failure::Engine,
            Reach::Elsewhere => Failure::BrokeOff,
        };
        let ending = EngineEnding::Failed(failure);
        for id in lost {
            let Some(flight) = self.flights.get(id) else {
                continue;
            };
            let begun = flight.output > Tokens::ZERO;
            let prompt = match self.nodes[n].reach() {
                Reach::Elsewhere if begun => flight.ask.prompt.tokens,
                Reach::Elsewhere | Reach::Here => flight.prompt,
            };
            let usage = Usage {
                prompt,
                cached: Tokens::ZERO,
                output: flight.output,
            };
            self.engine_ends((n, id), ending, usage);
        }
        self.submit(Event::ReplicaDown {
            replica: replica(n),
        });
    }

    fn exodus(&mut self, percent: u64) {
        let there = |flight: &Flight| flight.client == Party::There;
        let all: Vec<RequestId> = self
            .flights
            .iter()
            .filter(|(_, flight)| there(flight))
            .map(|(id, _)| id)
            .collect();
        let leaving = all.len() as u64 * percent.min(100) / 100;
        for id in all.into_iter().take(leaving as usize) {
            self.leaves(id);
        }
    }
}

fn flight_is_back(flight: Option<&mut Flight>) {
    if let Some(flight) = flight {
        flight.place = Place::Back;
    }
}

/// What SDKs try again: what is busy or broken, before anything was answered.
fn asks_again(outcome: Outcome) -> bool {
    let status = outcome.row().status;
    matches!(status, 408 | 409 | 429) || (500..=599).contains(&status)
}
