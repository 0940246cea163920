//! The one door: whatever becomes of a request, it leaves through [`Gateway::end`], once.
//!
//! Here the tenant's levels are settled, the place in queue or window is given back, and one record
//! is written that ledger, metrics and log all read.

use super::Gateway;
use super::event::{Effect, Record};
use crate::ids::{ModelId, RequestId, TenantId, position};
use crate::outcome::{Eviction, Outcome};
use crate::request::{Request, Running, Stage};
use crate::units::Time;
use crate::usage::{Counted, Usage};

/// A request that is over.
pub(super) struct Ended {
    id: RequestId,
    outcome: Outcome,
    usage: Usage,
    /// What is known of it where it was never admitted.
    stranger: Option<Stranger>,
    /// Whether its client is to be told here, since nobody has told it yet.
    untold: bool,
}

/// What is known of a request that was not let in.
pub(super) struct Stranger {
    pub(super) tenant: Option<TenantId>,
    pub(super) model: Option<ModelId>,
    pub(super) received: Time,
}

impl Ended {
    /// One that was not let in.
    pub(super) fn at_the_door(id: RequestId, stranger: Stranger, outcome: Outcome) -> Self {
        Self {
            id,
            outcome,
            usage: Usage::default(),
            stranger: Some(stranger),
            untold: false,
        }
    }

    /// One that was, and what it used.
    pub(super) fn inside(id: RequestId, outcome: Outcome, usage: Usage) -> Self {
        Self {
            id,
            outcome,
            usage,
            stranger: None,
            untold: false,
        }
    }

    /// One that was dropped from the queue, and whose client does not know.
    pub(super) fn evicted(id: RequestId, eviction: Eviction) -> Self {
        let ended = Self::inside(id, Outcome::Evicted(eviction), Usage::default());
        Self {
            untold: true,
            ..ended
        }
    }
}

impl Gateway {
    /// Ends a request.
    ///
    /// # Panics
    /// When it has ended before: each admitted request ends once.
    pub(super) fn end(&mut self, ended: Ended, now: Time) {
        let Ended {
            id,
            outcome,
            usage,
            stranger,
            untold,
        } = ended;
        let kv = self.tracks.ended(id, usage, now);
        let blank = |tenant, model, received| Record {
            id,
            tenant,
            key: None,
            model,
            replica: None,
            outcome,
            usage,
            counted: Counted::Exactly,
            kv,
            received,
            dispatched: None,
            first_token: None,
            ended: now,
        };
        let request = self.requests.remove(&id);
        self.affinities.remove(&id);
        let record = match (&request, stranger) {
            (None, Some(who)) => blank(who.tenant, who.model, who.received),
            (Some(request), None) => {
                let record = blank(Some(request.tenant), Some(request.model), request.received);
                let record = Record {
                    key: request.key,
                    ..record
                };
                match request.stage {
                    Stage::Queued => record,
                    Stage::Running(running) => Record {
                        replica: Some(running.replica),
                        dispatched: Some(running.dispatched),
                        first_token: running.first_token,
                        counted: running.counted,
                        ..record
                    },
                }
            }
            (Some(_), Some(_)) => unreachable!("{id:?} was refused and let in"),
            (None, None) => unreachable!("{id:?} ended twice"),
        };
        if let Some(request) = &request {
            self.settle(request, &record);
        }
        // Told after it was settled, its client sees the quota that was given back.
        if let (Some(request), true) = (&request, untold) {
            let wait = self.pool(request.model).time_for_queue();
            let whose = (id, request.tenant, request.model);
            self.refuse(whose, outcome, wait, now);
        }
        self.effects.push_back(Effect::Record(record));
        self.score(&record, now);
        if let (Some(model), Some(tpot), Outcome::Completed(_)) =
            (record.model, record.tpot(), outcome)
        {
            self.pool(model).tpot.record(tpot, now);
        }
        // Whoever drops a request from the queue for being late is just filling it.
        let by_fill = outcome == Outcome::Evicted(Eviction::Slo);
        if let (Some(request), false) = (request, by_fill) {
            self.fill(request.model, now);
        }
    }

    fn settle(&mut self, request: &Request, record: &Record) {
        let cost = self.purses.cost(request.model, record.usage, record.kv);
        let payers = (request.tenant, request.key);
        self.purses.settle(payers, request.hold, cost, record.ended);
        let Record {
            id,
            outcome,
            usage,
            ended: now,
            ..
        } = *record;
        let contract = &mut self.contracts[position(request.tenant.get())];
        match outcome {
            // Capacity refused it after all, so the contract is not spent.
            Outcome::Evicted(_) => contract.cancel(request.model, request.held),
            Outcome::Completed(_)
            | Outcome::ClientGone(_)
            | Outcome::Rejected(_)
            | Outcome::ReplicaFailed(_)
            | Outcome::ReplicaRefused(_)
            | Outcome::Fenced(_)
            | Outcome::Repeated
            | Outcome::Bug => {
                let rated = usage.rated(self.weights);
                contract.settle(request.model, request.held, rated);
            }
        }
        if matches!(outcome, Outcome::Completed(_)) {
            contract.learn(usage.output);
        }
        match request.stage {
            Stage::Queued => {
                self.pool(request.model).queue.remove(id, now);
            }
            Stage::Running(running) => self.vacate(id, request, running, now),
        }
    }

    /// Gives back all that a running request holds of its replica, its queue and its pool.
    pub(super) fn vacate(&mut self, id: RequestId, request: &Request, running: Running, now: Time) {
        self.fences.remove(&(running.fence, id));
        let window = &mut self.replica(running.replica).window;
        window.prefilled(running.prefill);
        window.release(request.class, request.kv);
        if window.sequences() == 0 {
            self.replica(running.replica).steps.pause();
            self.retire_if_done(running.replica);
        }
        let pool = self.pool(request.model);
        pool.queue.end(id, now);
        pool.running -= 1;
        if pool.running == 0 {
            pool.rate.idle();
        }
    }
}
