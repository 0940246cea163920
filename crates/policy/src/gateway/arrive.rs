//! A request at the door: contract, machine, then a place in the queue, all or nothing.

use super::end::{Ended, Stranger};
use super::event::{Effect, Refusal};
use super::{Drain, Gateway, Levels};
use crate::admission::{self, Grant, Machine};
use crate::fair::Waiting;
use crate::ids::{RequestId, TenantId, position};
use crate::outcome::{Outcome, Rejection};
use crate::request::{Arrival, Request, Stage};
use crate::tenant::Limits;
use crate::units::{Micros, Time};

/// What a client is told to wait where nothing has been measured yet.
const WAIT_GUESS: Micros = Micros::from_secs(1);

/// The longest wait a client is told: past it, an estimate says nothing any more.
const WAIT_MAX: Micros = Micros::from_secs(60);

/// A rejection, and how long until another try could go better.
struct Rejected {
    rejection: Rejection,
    wait: Option<Micros>,
}

impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        Self {
            rejection,
            wait: None,
        }
    }
}

impl Gateway {
    pub(super) fn arrive(&mut self, arrival: Arrival, now: Time) {
        let Arrival {
            id,
            tenant,
            model,
            received,
            ..
        } = arrival;
        match self.try_admit(arrival, now) {
            Ok(grant) => {
                self.enqueue(arrival, grant, now);
                self.fill(model, now);
            }
            Err(Rejected { rejection, wait }) => {
                let outcome = Outcome::Rejected(rejection);
                self.refuse((id, tenant), outcome, wait, now);
                let (tenant, model) = (Some(tenant), Some(model));
                self.end(
                    Ended::at_the_door(
                        id,
                        Stranger {
                            tenant,
                            model,
                            received,
                        },
                        outcome,
                    ),
                    now,
                );
            }
        }
    }

    /// Tells a client that it is not served, and when to come back where that may help.
    pub(super) fn refuse(
        &mut self,
        (id, tenant): (RequestId, TenantId),
        outcome: Outcome,
        wait: Option<Micros>,
        now: Time,
    ) {
        let retry_after = outcome.row().retry_after.then(|| {
            let known = wait.filter(|wait| *wait > Micros::ZERO);
            self.jittered(known.unwrap_or(WAIT_GUESS).min(WAIT_MAX))
        });
        let quota = self.quota(tenant, now);
        self.effects.push_back(Effect::Refuse(Refusal {
            id,
            outcome,
            retry_after,
            quota,
        }));
    }

    fn try_admit(&mut self, arrival: Arrival, now: Time) -> Result<Grant, Rejected> {
        let context = self.pool(arrival.model).model.context;
        let limits = self.tenants.tenant(arrival.tenant).limits.clone();
        let grant = admission::fit(arrival.prompt, arrival.output_max, context, &limits)?;
        let machine = self.machine(&arrival, grant);
        let (wait, max_wait) = (self.wait_hint(arrival.model, now), self.max_wait(&arrival));
        let levels = self.levels(arrival.tenant, now);
        levels.take(&limits, now)?;
        if let Err(rejection) = machine.admit(max_wait) {
            levels.give_back();
            return Err(Rejected { rejection, wait });
        }
        Ok(grant)
    }

    fn machine(&self, arrival: &Arrival, grant: Grant) -> Machine {
        let pool = &self.pools[position(arrival.model.get())];
        let kv = grant.expected.blocks();
        if self.drain != Drain::No {
            Machine::Draining
        } else if !self.has_replica(arrival.model, |health| health.retry_at().is_none()) {
            Machine::NoReplica
        } else if pool.queue.is_empty() && self.choose_replica(arrival.model, kv).is_some() {
            Machine::Room
        } else if pool.queue.is_full() {
            Machine::Full
        } else {
            Machine::Busy {
                ahead: pool.rate.time_for(pool.queue.work()),
            }
        }
    }

    fn enqueue(&mut self, arrival: Arrival, grant: Grant, now: Time) {
        let waiting = Waiting {
            id: arrival.id,
            tenant: arrival.tenant,
            work: grant.expected,
            deadline: now + self.max_wait(&arrival),
        };
        let pushed = self.pool(arrival.model).queue.push(waiting);
        debug_assert!(
            pushed.is_ok(),
            "the door let in what the queue has no place for"
        );
        let request = Request {
            tenant: arrival.tenant,
            model: arrival.model,
            received: arrival.received,
            output_max: grant.output_max,
            kv: grant.expected.blocks(),
            stage: Stage::Queued,
        };
        self.requests.insert(arrival.id, request);
    }

    fn max_wait(&self, arrival: &Arrival) -> Micros {
        let own = self.pools[position(arrival.model.get())].model.max_wait;
        own.unwrap_or_else(|| self.tenants.tenant(arrival.tenant).class.max_wait())
    }
}

impl Levels {
    /// Takes all that one request takes of its tenant's limits, or nothing.
    fn take(&mut self, limits: &Limits, now: Time) -> Result<(), Rejected> {
        if limits
            .concurrency
            .is_some_and(|most| self.in_flight >= most.get())
        {
            return Err(Rejection::Concurrency.into());
        }
        if let Some(bucket) = &mut self.requests {
            bucket.take(now).map_err(|wait| Rejected {
                rejection: Rejection::RequestRate,
                wait: Some(wait),
            })?;
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Undoes [`Levels::take`] for a request that capacity refused.
    pub(super) fn give_back(&mut self) {
        self.in_flight -= 1;
        if let Some(bucket) = &mut self.requests {
            bucket.give_back();
        }
    }
}
