//! A request at the door: contract, machine, then a place in the queue, all or nothing.

use super::end::{Ended, Stranger};
use super::event::{Books, Effect, Refusal};
use super::run::Turn;
use super::{Drain, Gateway, Pool, Stay};
use crate::admission::{self, Grant, Machine};
use crate::budget::Hold;
use crate::contract::Held;
use crate::failover::Tries;
use crate::fair::{Policy, Waiting};
use crate::ids::{ModelId, RequestId, TenantId, position};
use crate::outcome::{Outcome, Rejection};
use crate::quota::{Cost, Refused};
use crate::request::{Arrival, Request, Stage};
use crate::retry::RetryBudget;
use crate::route::Affinity;
use crate::slo::Judged;
use crate::tenant::Class;
use crate::units::{KvByteMicros, Micros, NanoUsd, Time, Tokens};
use crate::usage::Usage;
use crate::window::Blocked;

/// What a client is told to wait where nothing has been measured yet.
const WAIT_GUESS: Micros = Micros::from_secs(1);

/// The longest wait a client is told: past it, an estimate says nothing any more.
const WAIT_MAX: Micros = Micros::from_secs(60);

/// A request that is let in: what it may have, what it holds, and what it was promised.
struct Admitted {
    grant: Grant,
    held: (Held, Hold),
    judged: Option<Judged>,
}

impl Gateway {
    pub(super) fn arrive(&mut self, arrival: Arrival, affinity: Affinity, now: Time) {
        let Arrival {
            id,
            tenant,
            model,
            received,
            ..
        } = arrival;
        match self.try_admit(arrival, &affinity, now) {
            Ok(Admitted {
                grant,
                held,
                judged,
            }) => {
                self.ask_for(model, now);
                self.retries.admitted(arrival.retry, now);
                self.promise(id, model, judged);
                self.enqueue(arrival, grant, held, now);
                if !affinity.is_empty() {
                    self.affinities.insert(id, affinity);
                }
                self.fill(model, now);
            }
            Err(Refused { rejection, wait }) => {
                let outcome = Outcome::Rejected(rejection);
                self.refuse((id, tenant, model), outcome, wait, now);
                let (tenant, model) = (Some(tenant), Some(model));
                let stranger = Stranger {
                    tenant,
                    model,
                    received,
                };
                self.end(Ended::at_the_door(id, stranger, outcome), now);
            }
        }
    }

    /// Tells a client that it is not served, and when to come back where that may help.
    pub(super) fn refuse(
        &mut self,
        (id, tenant, model): (RequestId, TenantId, ModelId),
        outcome: Outcome,
        wait: Option<Micros>,
        now: Time,
    ) {
        let retry_after = outcome.row().retry_after.then(|| {
            let known = wait.filter(|wait| *wait > Micros::ZERO);
            self.jittered(known.unwrap_or(WAIT_GUESS).min(WAIT_MAX))
        });
        let quota = self.quota(tenant, Some(model), now);
        self.effects.push_back(Effect::Refuse(Refusal {
            id,
            outcome,
            retry_after,
            quota,
        }));
    }

    fn try_admit(
        &mut self,
        arrival: Arrival,
        affinity: &Affinity,
        now: Time,
    ) -> Result<Admitted, Refused> {
        let usual = self.contract(arrival.tenant, now).usual_output();
        let tenant = self.tenants.tenant(arrival.tenant);
        let (class, limits) = (tenant.class, tenant.limits_for(arrival.model));
        let pool = &self.pools[position(arrival.model.get())];
        let (prompt, asked) = (arrival.prompt, arrival.output_max);
        let grant = admission::fit(prompt, asked, usual, pool.model.context, &limits).map_err(
            |rejection| Refused {
                rejection,
                wait: None,
            },
        )?;
        let cost = pool.cost(prompt, grant, now);
        let hold = self.hold(&arrival, cost, now)?;
        let reserved = self.reserve(&arrival, cost, now);
        let held = reserved.inspect_err(|_| self.let_go(&arrival, hold, now))?;
        let verdict = self.within_retries(&arrival, class, now).and_then(|()| {
            let machine = self.machine(&arrival, grant, now);
            let rejected = machine.admit(self.max_wait(&arrival));
            rejected.map_err(|rejection| Refused {
                rejection,
                wait: self.wait_hint(&arrival, now),
            })?;
            self.weigh(&arrival, (grant, machine), affinity, now)
        });
        match verdict {
            Ok(judged) => Ok(Admitted {
                grant,
                held: (held, hold),
                judged,
            }),
            Err(refused) => {
                self.let_go(&arrival, hold, now);
                self.contract(arrival.tenant, now)
                    .cancel(arrival.model, held);
                Err(refused)
            }
        }
    }

    /// Reserves what the request takes of its tenant's levels.
    fn reserve(&mut self, arrival: &Arrival, cost: Cost, now: Time) -> Result<Held, Refused> {
        self.contract(arrival.tenant, now);
        let tenant = self.tenants.tenant(arrival.tenant);
        let contract = &mut self.contracts[position(arrival.tenant.get())];
        contract.reserve(tenant, arrival.model, cost, now)
    }

    /// Holds what the request is expected to cost of the budgets it is paid from.
    fn hold(&mut self, arrival: &Arrival, cost: Cost, now: Time) -> Result<Hold, Refused> {
        let usage = Usage {
            prompt: cost.prompt,
            cached: Tokens::ZERO,
            output: cost.output,
        };
        let money = self.purses.cost(arrival.model, usage, cost.kv);
        let held = self.purses.reserve(arrival.tenant, arrival.key, money, now);
        held.map_err(|rejection| Refused {
            rejection,
            wait: None,
        })
    }

    /// Gives a hold back: nothing was spent.
    fn let_go(&mut self, arrival: &Arrival, hold: Hold, now: Time) {
        let payers = (arrival.tenant, arrival.key);
        self.purses.settle(payers, hold, NanoUsd::ZERO, now);
    }

    fn within_retries(&self, arrival: &Arrival, class: Class, now: Time) -> Result<(), Refused> {
        if !arrival.retry || class == Class::Reserved || self.retries.allows(now) {
            return Ok(());
        }
        Err(Refused {
            rejection: Rejection::RetryBudget,
            wait: Some(RetryBudget::WAIT),
        })
    }

    fn machine(&self, arrival: &Arrival, grant: Grant, now: Time) -> Machine {
        let pool = &self.pools[position(arrival.model.get())];
        let waiting = self.waiting(arrival, grant, Time::START);
        if self.drain != Drain::No {
            Machine::Draining
        } else if self.books == Books::Closed {
            Machine::NoBooks
        } else if !self.has_replica(arrival.model, |health| health.retry_at().is_none()) {
            Machine::NoReplica
        } else if pool.queue.is_full() {
            Machine::Full
        } else if self.would_go(pool, &waiting) {
            Machine::Room
        } else if pool.queue.is_full_for(arrival.tenant, waiting.weight) {
            Machine::Full
        } else {
            let ahead = pool.queue.ahead_of(arrival.tenant, waiting.weight);
            // By what it does when there is as much to do as now, or else it may wait and see: a
            // pool that served one answer a minute ago is not one that serves one at a time.
            let ahead = pool.rate.time_when_full(ahead);
            // Where nothing but prefill is in the way, it waits for prompts and not for answers.
            let ahead = ahead.filter(|_| !self.waits_for_prefill(pool, &waiting));
            Machine::Busy {
                ahead: ahead.max(self.loads_in(arrival.model, now)),
            }
        }
    }

    /// Whether a newcomer would be dispatched at once. Those that wait could not be, or would have
    /// been; so under a fair policy it passes them, and under first in, first out it does not.
    fn would_go(&self, pool: &Pool, waiting: &Waiting) -> bool {
        let first = pool.queue.is_empty() || pool.queue.policy() != Policy::Fifo;
        let holding = pool.queue.holding(waiting.tenant);
        let standing = (holding, Turn::First);
        first && pool.patient().is_none() && self.room(pool, waiting, standing).is_ok()
    }

    /// Whether there are places for a newcomer and all that wait, once their prompts can go.
    fn waits_for_prefill(&self, pool: &Pool, waiting: &Waiting) -> bool {
        let holding = pool.queue.holding(waiting.tenant);
        let free = pool.standing[waiting.class.place()]
            .slots
            .saturating_sub(pool.running);
        let places = usize::try_from(free).unwrap_or(usize::MAX);
        let room = self.room(pool, waiting, (holding, Turn::First));
        pool.queue.len() < places && room == Err(Blocked::Prefill)
    }

    fn enqueue(&mut self, arrival: Arrival, grant: Grant, (held, hold): (Held, Hold), now: Time) {
        let deadline = now + self.max_wait(&arrival);
        let waiting = self.waiting(&arrival, grant, deadline);
        let pushed = self.pool(arrival.model).queue.push(waiting);
        debug_assert!(
            pushed.is_ok(),
            "the door let in what the queue has no place for"
        );
        let request = Request {
            tenant: arrival.tenant,
            key: arrival.key,
            model: arrival.model,
            received: arrival.received,
            output_max: grant.output_max,
            class: waiting.class,
            prompt: arrival.prompt,
            kv: waiting.kv,
            held,
            tries: Tries::default(),
            hold,
            stage: Stage::Queued,
        };
        self.requests.insert(arrival.id, request);
    }

    pub(super) fn waiting(&self, arrival: &Arrival, grant: Grant, deadline: Time) -> Waiting {
        let tenant = self.tenants.tenant(arrival.tenant);
        let queue = &self.pools[position(arrival.model.get())].queue;
        Waiting {
            id: arrival.id,
            tenant: arrival.tenant,
            class: tenant.class,
            weight: tenant.weight,
            floor: tenant.floor,
            prompt: arrival.prompt,
            work: grant.expected,
            is_brief: grant.is_brief,
            kv: grant.expected.blocks(),
            prepay: queue.prepay(
                arrival.prompt,
                grant.expected - arrival.prompt,
                self.weights,
            ),
            deadline,
        }
    }

    fn max_wait(&self, arrival: &Arrival) -> Micros {
        let own = self.pools[position(arrival.model.get())].model.max_wait;
        own.unwrap_or_else(|| self.tenants.tenant(arrival.tenant).class.max_wait())
    }

    /// How long a refused request should stay away: until what is ahead of it has gone, or a
    /// replica is back.
    pub(super) fn wait_hint(&self, arrival: &Arrival, now: Time) -> Option<Micros> {
        let pool = &self.pools[position(arrival.model.get())];
        let own = self
            .replicas
            .iter()
            .filter(|replica| replica.model == arrival.model && replica.stay == Stay::Serving);
        let back = own
            .filter_map(|replica| Some(replica.health.retry_at()?.since(now)))
            .min();
        let weight = self.tenants.tenant(arrival.tenant).weight;
        let ahead = pool.queue.ahead_of(arrival.tenant, weight);
        let loads = self.loads_in(arrival.model, now);
        pool.rate.time_for(ahead).max(back).max(loads)
    }
}

impl Pool {
    /// What a request costs its tenant's levels, at the pace that was measured.
    fn cost(&self, prompt: Tokens, grant: Grant, now: Time) -> Cost {
        let output = grant.expected - prompt;
        let bytes = self
            .model
            .kv_per_token
            .times((prompt + output.half()).get());
        let span = self
            .tpot
            .estimate(self.model.target, now)
            .times(output.get());
        Cost {
            prompt,
            output,
            kv: KvByteMicros::of(bytes, span),
        }
    }
}
