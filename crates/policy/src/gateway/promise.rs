//! Where SLO admission meets the gateway: what it is told of a request, and what follows from its
//! word.
//!
//! A pool that promises nothing has none of it, and pays for none. To look up what a replica may
//! have cached changes nothing of what is remembered of it, so those that are refused leave no
//! trace.

use super::event::{Effect, Fit, Learned, Record, Weighed};
use super::{Gateway, Pool};
use crate::admission::{Grant, Machine};
use crate::fair::Waiting;
use crate::ids::{ModelId, ReplicaId, RequestId, position};
use crate::outcome::{Eviction, Outcome, Rejection};
use crate::quota::Refused;
use crate::request::{Arrival, Request};
use crate::route::{Affinity, Candidate, Choice};
use crate::slo::{self, Door, Facts, Judged, PoolFacts, Row, Seen, Slo, Verdict};
use crate::tenant::Class;
use crate::units::{KvBlocks, Time, Tokens, count};

/// Replicas that are looked at: of more, the first few say what the others do.
const LOOKED_AT: usize = 32;

/// Admission for a pool that promises something.
pub(super) fn admission(slo: &Slo) -> Option<Box<slo::Admission>> {
    (!slo.is_off()).then(|| Box::new(slo::Admission::new(*slo)))
}

impl Gateway {
    /// What a request that the machine has room for is promised; nothing where nothing is.
    ///
    /// # Errors
    /// It would be later than promised, at others' cost.
    pub(super) fn weigh(
        &mut self,
        arrival: &Arrival,
        (grant, machine): (Grant, Machine),
        affinity: &Affinity,
        now: Time,
    ) -> Result<Option<Judged>, Refused> {
        if self.pools[position(arrival.model.get())].slo.is_none() {
            return Ok(None);
        }
        let door = self.door(arrival, (grant, machine), affinity, now);
        let pool = self.pool(arrival.model);
        let Some(admission) = &mut pool.slo else {
            return Ok(None);
        };
        let judged = admission.judge(door, now);
        match judged.verdict {
            Verdict::Admit(_) => Ok(Some(judged)),
            Verdict::Refuse(metric) => {
                admission.refused(metric);
                let row = refused(arrival.id, judged);
                self.weighed(arrival.model, row);
                Err(Refused {
                    rejection: Rejection::Slo,
                    wait: slo::Admission::wait(&judged),
                })
            }
        }
    }

    /// A request was let in with this promise.
    pub(super) fn promise(&mut self, id: RequestId, model: ModelId, judged: Option<Judged>) {
        if let (Some(admission), Some(judged)) = (&mut self.pool(model).slo, judged) {
            admission.let_in(id, judged);
        }
    }

    /// Drops the request that is next where it can no longer be in time: what it would take, those
    /// behind it get. True where it did.
    pub(super) fn drop_if_late(
        &mut self,
        next: &Waiting,
        candidates: &[Candidate],
        now: Time,
    ) -> bool {
        let Some(request) = self.requests.get(&next.id) else {
            return false;
        };
        let (model, is_first) = (request.model, request.tries.is_first());
        let pool = &self.pools[position(model.get())];
        // One that a replica failed has lost its time through no fault of its own.
        let Some(admission) = pool.slo.as_ref().filter(|_| is_first) else {
            return false;
        };
        let none = Affinity::default();
        let affinity = self.affinities.get(&next.id).unwrap_or(&none);
        let before = |one: &Candidate| {
            let cached = pool.router.holders().matched(one.replica, &affinity.prefix);
            one.load.prefill + (next.prompt - cached)
        };
        let computed = candidates.iter().map(before).min();
        let computed = computed.unwrap_or(next.prompt);
        let others_wait = pool.queue.len() > 1;
        let Some(metric) = admission.recheck(next.id, computed, others_wait, now) else {
            return false;
        };
        if let Some(admission) = &mut self.pool(model).slo {
            admission.dropped(next.id, metric, computed, now);
        }
        self.end(super::Ended::evicted(next.id, Eviction::Slo), now);
        true
    }

    /// A request was sent to a replica, which holds so much prefill and so many sequences with it.
    pub(super) fn note_sent(
        &mut self,
        request: &Request,
        (id, choice): (RequestId, Choice),
        (prefill, sequences): (Tokens, u32),
        now: Time,
    ) {
        let own = request.prompt - choice.cached;
        if let Some(admission) = &mut self.pool(request.model).slo {
            admission.sent(id, prefill.max(own), sequences, now);
        }
    }

    /// An engine in this process made a token of a request; only the first one says anything.
    pub(super) fn note_made(&mut self, id: RequestId, now: Time) {
        let unbegun = self.running(id).is_some_and(|running| !running.begun);
        let request = self.requests.get(&id).filter(|_| unbegun);
        let Some(model) = request.map(|request| request.model) else {
            return;
        };
        if let Some(admission) = &mut self.pool(model).slo {
            admission.made(id, now);
        }
    }

    pub(super) fn note_first_token(&mut self, id: RequestId, now: Time) {
        let Some(model) = self.requests.get(&id).map(|request| request.model) else {
            return;
        };
        let Some(admission) = &mut self.pool(model).slo else {
            return;
        };
        admission.first_token(id, now);
        if let Some(task) = admission.task(now) {
            let fit = Fit { model, task };
            self.effects.push_back(Effect::Fit(Box::new(fit)));
        }
    }

    pub(super) fn notice_overdue(&mut self, now: Time) {
        for pool in &mut self.pools {
            if let Some(admission) = &mut pool.slo {
                admission.notice_overdue(now);
            }
        }
    }

    /// Scores what a request was promised against what its record says.
    pub(super) fn score(&mut self, record: &Record, now: Time) {
        let Some(model) = record.model else {
            return;
        };
        let Some(admission) = &mut self.pool(model).slo else {
            return;
        };
        let seen = Seen {
            outcome: record.outcome,
            ttft: record.ttft(),
            tpot: record.tpot(),
            e2e: Some(record.total()),
            output: record.usage.output,
        };
        if let Some(row) = admission.ended(record.id, seen, now) {
            self.weighed(model, row);
        }
    }

    pub(super) fn recall(&mut self, model: ModelId, learned: Learned) {
        let Some(admission) = &mut self.pool(model).slo else {
            return;
        };
        match learned {
            Learned::State(state) => admission.recall(*state),
            Learned::Fitted(fitted) => admission.fitted(*fitted),
        }
    }

    /// How a model's promises stand; `None` where it makes none.
    pub fn promises(&self, model: ModelId, now: Time) -> Option<slo::View> {
        let pool = &self.pools[position(model.get())];
        let admission = pool.slo.as_ref()?;
        let facts = self.pool_facts(pool, Class::Standard, Tokens::ZERO);
        Some(admission.view(facts, now))
    }

    /// What has been learned of a model's latency, to be written down.
    pub fn learned(&self, model: ModelId) -> Option<slo::State> {
        let admission = self.pools[position(model.get())].slo.as_ref()?;
        Some(admission.state())
    }

    fn weighed(&mut self, model: ModelId, row: Row) {
        let weighed = Weighed { model, row };
        self.effects.push_back(Effect::Weighed(Box::new(weighed)));
    }

    /// A request at the door, with what is known of it.
    fn door(
        &self,
        arrival: &Arrival,
        (grant, machine): (Grant, Machine),
        affinity: &Affinity,
        now: Time,
    ) -> Door {
        let pool = &self.pools[position(arrival.model.get())];
        let tenant = self.tenants.tenant(arrival.tenant);
        let (class, weight) = (tenant.class, tenant.weight);
        let slots = pool.standing[class.place()].slots;
        let (prefill_ahead, cached) = self.nearest(pool, class, affinity);
        let facts = Facts {
            class,
            prompt: arrival.prompt,
            cached: cached.min(arrival.prompt),
            output_max: grant.output_max,
            output_median: grant.output_max,
            output_most: grant.output_max,
            waited: now.since(arrival.received),
            ahead: pool.queue.count_ahead_of(arrival.tenant, weight),
            work_ahead: pool.queue.ahead_of(arrival.tenant, weight),
            at_once: machine == Machine::Room,
            pool: self.pool_facts(pool, class, prefill_ahead),
        };
        let share = pool.queue.share(arrival.tenant, weight, slots);
        let active = pool.queue.holding(arrival.tenant).running;
        Door {
            id: arrival.id,
            tenant: arrival.tenant,
            weight: weight.get(),
            below_share: active < share && share < slots,
            asked: arrival.slo,
            received: arrival.received,
            facts,
        }
    }

    fn pool_facts(&self, pool: &Pool, class: Class, prefill_ahead: Tokens) -> PoolFacts {
        let standing = &pool.standing[class.place()];
        let kv = |id: &ReplicaId| {
            let window = &self.replicas[position(id.get())].window;
            (window.occupancy(), window.capacity().kv)
        };
        let (held, total) = standing.up.iter().take(LOOKED_AT).map(kv).fold(
            (KvBlocks::ZERO, KvBlocks::ZERO),
            |(held, total), (more, room)| (held + more, total + room),
        );
        let free = (total - held).get().saturating_mul(100);
        let free = free.checked_div(total.get()).unwrap_or(0);
        PoolFacts {
            running: pool.running,
            slots: standing.slots,
            replicas: u32::try_from(standing.up.len()).unwrap_or(u32::MAX),
            waiting: count(pool.queue.len()),
            kv_free: u8::try_from(free).unwrap_or(100),
            prefill_ahead,
            ..PoolFacts::default()
        }
    }

    /// Prefill in flight on the replica where a request would soonest be answered, and what of its
    /// prompt is cached there.
    fn nearest(&self, pool: &Pool, class: Class, affinity: &Affinity) -> (Tokens, Tokens) {
        let standing = &pool.standing[class.place()];
        let open = if standing.open.is_empty() {
            &standing.up
        } else {
            &standing.open
        };
        let each = open.iter().take(LOOKED_AT).map(|id| {
            let replica = &self.replicas[position(id.get())];
            let cached = pool.router.holders().matched(*id, &affinity.prefix);
            (replica.window.prefill(), cached)
        });
        let sooner = |(ahead, cached): &(Tokens, Tokens)| *ahead + (Tokens::new(1 << 32) - *cached);
        each.min_by_key(sooner).unwrap_or_default()
    }
}

/// The row of a request that was refused.
fn refused(id: RequestId, judged: Judged) -> Row {
    let seen = Seen {
        outcome: Outcome::Rejected(Rejection::Slo),
        ttft: None,
        tpot: None,
        e2e: None,
        output: Tokens::ZERO,
    };
    Row { id, judged, seen }
}
