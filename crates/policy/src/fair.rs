//! The queue of one model: who is next, across tenants.
//!
//! One type, whatever the policy: it is told of arrivals, of dispatches, of service as it is given
//! and of ends, and answers who is next. Within a tenant the earliest deadline goes first. It holds
//! only live requests: what leaves is gone from every index at once. Every operation takes O(log n)
//! of requests and tenants.

mod lane;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use self::lane::Lane;
pub use self::order::Policy;
use self::order::{Clock, Orders};
use crate::ids::{RequestId, TenantId, position};
use crate::tenant::Class;
use crate::units::{KvBlocks, Micros, Service, Time, Tokens, count};
use crate::usage::{Usage, Weights};

/// How long a tenant counts as active after its last request has ended: its share is kept for it
/// that long.
const ACTIVE_FOR: Micros = Micros::from_secs(60);

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Its tenant's promise.
    pub class: Class,
    /// Its tenant's share.
    pub weight: NonZeroU32,
    /// Per cent of a replica's KV that is set aside for its tenant.
    pub floor: u8,
    /// Its prompt.
    pub prompt: Tokens,
    /// What it is expected to cost: prompt and estimated output.
    pub work: Tokens,
    /// Whether it is expected to be over soon once it runs.
    pub is_brief: bool,
    /// What it is expected to hold of a replica's KV.
    pub kv: KvBlocks,
    /// Service that is charged when it is dispatched, and given back as far as it is not served.
    pub prepay: Service,
    /// When it gives up.
    pub deadline: Time,
}

/// The queue is at its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What a tenant has running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Requests.
    pub running: u32,
    /// KV that they are expected to hold.
    pub kv: KvBlocks,
}

/// Whether a candidate may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Go,
    /// Its tenant has its share already; others may pass it.
    OverShare,
    /// There is no room for it now, and will be soon: nobody of its class passes it.
    Wait,
    /// There is no room for it, and it needs so much that others may pass it, but not for ever.
    Large,
}

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The request.
    pub next: Waiting,
    /// The first that was passed by for want of room.
    pub passed: Option<Waiting>,
}

/// Requests that wait for a replica of one model, and what their tenants have had.
#[derive(Clone, Debug)]
pub struct FairQueue {
    policy: Policy,
    /// Most requests that may wait.
    max: usize,
    /// Counts up with each arrival; the order of arrival.
    next_ticket: u64,
    /// By ticket. invariant: `waiting`, `tickets`, `deadlines` and the lanes' lines hold the same
    /// requests.
    waiting: BTreeMap<u64, Waiting>,
    tickets: BTreeMap<RequestId, u64>,
    deadlines: BTreeSet<(Time, RequestId)>,
    /// invariant: the sum of `work` over `waiting`.
    work: Tokens,
    /// By `TenantId`; shorter than the table of tenants while later ones have not called.
    lanes: Vec<Lane>,
    orders: Orders,
    clock: Clock,
    running: BTreeMap<RequestId, Running>,
    /// invariant: the lanes that have something running.
    holders: BTreeSet<TenantId>,
    /// invariant: the sum of the weights of the lanes that count as active.
    active_weight: u64,
    /// invariant: how many of those are modest.
    modest: usize,
    /// When lanes with nothing waiting or running stop counting as active.
    expiring: BTreeSet<(Time, TenantId)>,
}

/// A request that was dispatched.
#[derive(Clone, Copy, Debug)]
struct Running {
    tenant: TenantId,
    kv: KvBlocks,
    /// Charged and not yet served.
    prepaid: Service,
}

impl FairQueue {
    /// An empty queue for at most `max` requests.
    pub fn new(policy: Policy, max: usize) -> Self {
        Self {
            policy,
            max,
            next_ticket: 0,
            waiting: BTreeMap::new(),
            tickets: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            work: Tokens::ZERO,
            lanes: Vec::new(),
            orders: Orders::default(),
            clock: Clock::default(),
            running: BTreeMap::new(),
            holders: BTreeSet::new(),
            active_weight: 0,
            modest: 0,
            expiring: BTreeSet::new(),
        }
    }

    /// What a request pays when it is dispatched. Under `vtc` its prompt, which is certain; under
    /// `drr` all that is expected of it (Shreedhar and Varghese know the cost; we estimate it).
    /// What is not served is given back.
    pub fn prepay(&self, prompt: Tokens, output: Tokens, weights: Weights) -> Service {
        let output = match self.policy {
            Policy::Fifo | Policy::Vtc => Tokens::ZERO,
            Policy::Drr { .. } => output,
        };
        Usage {
            prompt,
            cached: Tokens::ZERO,
            output,
        }
        .service(weights)
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`Full`] at the bound; nothing changes then.
    pub fn push(&mut self, waiting: Waiting) -> Result<(), Full> {
        if self.is_full() {
            return Err(Full);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, waiting);
        self.tickets.insert(waiting.id, ticket);
        self.deadlines.insert((waiting.deadline, waiting.id));
        self.work += waiting.work;
        let was_modest = self.is_modest(waiting.tenant);
        self.activate(&waiting);
        let lane = &mut self.lanes[position(waiting.tenant.get())];
        if lane.line.is_empty() {
            let floor = self.orders.least();
            self.clock.returns(lane, floor);
        }
        lane.line.insert((waiting.deadline, ticket));
        lane.work += waiting.work;
        self.count_modest(waiting.tenant, was_modest);
        self.reposition(waiting.tenant);
        self.invariants();
        Ok(())
    }

    /// The first in order that may go, where `open` says which classes may at all, by
    /// [`Class::ALL`].
    ///
    /// Those that may not are passed by where their verdict lets others pass; `patient` is one that
    /// nobody passes any more, whatever its verdict.
    pub fn pick(
        &self,
        mut open: [bool; 3],
        patient: Option<RequestId>,
        mut may: impl FnMut(&Waiting, Holding) -> Verdict,
    ) -> Option<Pick> {
        let mut passed = None;
        let mut looks = self.policy.scan_max();
        for tenant in self.orders.in_order(open) {
            let lane = &self.lanes[position(tenant.get())];
            let class = lane.class.place();
            if !open[class] {
                continue;
            }
            let (_, ticket) = lane.line.first()?;
            let next = *self.waiting.get(ticket)?;
            match may(&next, lane.holding) {
                Verdict::Go => return Some(Pick { next, passed }),
                Verdict::OverShare => {}
                Verdict::Large if patient == Some(next.id) => return None,
                Verdict::Large => passed = passed.or(Some(next)),
                Verdict::Wait => open[class] = false,
            }
            looks -= 1;
            if looks == 0 {
                return None;
            }
        }
        None
    }

    /// A request that waits has been dispatched: it leaves the line, and its tenant pays ahead.
    pub fn start(&mut self, id: RequestId) -> Option<Waiting> {
        let waiting = self.unqueue(id)?;
        let lane = &mut self.lanes[position(waiting.tenant.get())];
        self.clock.starts(lane, self.policy);
        self.holders.insert(waiting.tenant);
        lane.holding.running += 1;
        lane.holding.kv += waiting.kv;
        lane.debit(self.policy, waiting.prepay);
        let (tenant, kv, prepaid) = (waiting.tenant, waiting.kv, waiting.prepay);
        self.running.insert(
            id,
            Running {
                tenant,
                kv,
                prepaid,
            },
        );
        self.reposition(tenant);
        self.invariants();
        Some(waiting)
    }

    /// A request that waits has left: its client went, or its time was up.
    pub fn remove(&mut self, id: RequestId, now: Time) -> Option<Waiting> {
        let waiting = self.unqueue(id)?;
        self.reposition(waiting.tenant);
        self.rest(waiting.tenant, now);
        self.invariants();
        Some(waiting)
    }

    /// A running request was served: what was not paid ahead is charged, now.
    pub fn served(&mut self, id: RequestId, service: Service) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        let ahead = service.min(running.prepaid);
        running.prepaid = running.prepaid - ahead;
        let tenant = running.tenant;
        let lane = &mut self.lanes[position(tenant.get())];
        lane.attained += service;
        lane.debit(self.policy, service - ahead);
        self.reposition(tenant);
    }

    /// A running request has ended: what was paid ahead and not served is given back.
    pub fn end(&mut self, id: RequestId, now: Time) {
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let lane = &mut self.lanes[position(running.tenant.get())];
        lane.holding.running -= 1;
        if lane.holding.running == 0 {
            self.holders.remove(&running.tenant);
        }
        lane.holding.kv -= running.kv;
        lane.credit(self.policy, running.prepaid);
        self.reposition(running.tenant);
        self.rest(running.tenant, now);
        self.invariants();
    }

    /// By which rule the next one is chosen.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// What a tenant has running.
    pub fn holding(&self, tenant: TenantId) -> Holding {
        self.lane(tenant)
            .map_or_else(Holding::default, |lane| lane.holding)
    }

    /// Whether this tenant may add no more: the queue is at its bound, or the tenant has its share
    /// of it. The share is counted as if one more tenant were active, so that a newcomer finds room
    /// beside those that fill theirs.
    pub fn is_full_for(&self, tenant: TenantId, weight: NonZeroU32) -> bool {
        let lane = self.lane(tenant);
        let own = u64::from(weight.get());
        let active = lane.is_some_and(|lane| lane.is_active());
        let all = self.active_weight + if active { 1 } else { own + 1 };
        let share = (count(self.max) * own).div_ceil(all);
        let waiting = lane.map_or(0, |lane| count(lane.line.len()));
        self.is_full() || (self.policy != Policy::Fifo && waiting >= share.max(1))
    }

    /// The work that is served before a newcomer of this tenant: all of it under first in, first
    /// out; under a fair policy its own, and as much for each other that waits, by weight.
    pub fn ahead_of(&self, tenant: TenantId, weight: NonZeroU32) -> Tokens {
        if self.policy == Policy::Fifo {
            return self.work;
        }
        let own = self.lane(tenant).map_or(Tokens::ZERO, |lane| lane.work);
        let active = self.active_weight.max(u64::from(weight.get()));
        let times = active.div_ceil(u64::from(weight.get()));
        Tokens::new(own.get().saturating_mul(times)).min(self.work)
    }

    /// How many requests are served before a newcomer of this tenant, in the same order.
    pub fn count_ahead_of(&self, tenant: TenantId, weight: NonZeroU32) -> u64 {
        let all = count(self.waiting.len());
        if self.policy == Policy::Fifo {
            return all;
        }
        let own = self.lane(tenant).map_or(0, |lane| count(lane.line.len()));
        let active = self.active_weight.max(u64::from(weight.get()));
        let times = active.div_ceil(u64::from(weight.get()));
        own.saturating_mul(times).min(all)
    }

    /// The same for a request that waits already, at this place among its tenant's own, from 1: of
    /// its tenant's work that waits, an equal part for each that is before it.
    pub fn ahead_of_waiting(&self, waiting: &Waiting, place: u32) -> Tokens {
        let all = self.ahead_of(waiting.tenant, waiting.weight).get();
        let own = self
            .lane(waiting.tenant)
            .map_or(1, |lane| count(lane.line.len()))
            .max(1);
        Tokens::new(all.saturating_mul(u64::from(place.saturating_sub(1))) / own)
    }

    /// How many of `slots` are this tenant's share among those that are active; at least one.
    pub fn share(&self, tenant: TenantId, weight: NonZeroU32, slots: u32) -> u32 {
        let active = self.lane(tenant).is_some_and(|lane| lane.is_active());
        let own = u64::from(weight.get());
        let all = if active {
            self.active_weight
        } else {
            self.active_weight + own
        };
        let share = (u64::from(slots) * own).div_ceil(all.max(1));
        u32::try_from(share).unwrap_or(slots).clamp(1, slots.max(1))
    }

    /// Whether a tenant counts as active and has no more than one request waiting: what is kept for
    /// tenants below their share is for such. One with a longer line contends for all there is,
    /// where the order decides and not how many places it has.
    pub fn is_modest(&self, tenant: TenantId) -> bool {
        self.lane(tenant).is_some_and(Lane::is_modest)
    }

    /// Whether there is another tenant that is modest.
    pub fn has_modest_beside(&self, tenant: TenantId) -> bool {
        self.modest > usize::from(self.is_modest(tenant))
    }

    /// The tenants that have something running, and how many each.
    pub fn holders(&self) -> impl Iterator<Item = (TenantId, u32)> + '_ {
        let each = self.holders.iter();
        each.map(|tenant| (*tenant, self.holding(*tenant).running))
    }

    /// Lets go of tenants that have not been active for long enough.
    pub fn expire(&mut self, now: Time) {
        while let Some(&(at, tenant)) = self.expiring.first() {
            if at > now {
                return;
            }
            self.expiring.pop_first();
            let was_modest = self.is_modest(tenant);
            let lane = &mut self.lanes[position(tenant.get())];
            self.active_weight -= lane.deactivate();
            self.count_modest(tenant, was_modest);
        }
    }

    /// The request whose deadline is first.
    pub fn first_deadline(&self) -> Option<(Time, RequestId)> {
        self.deadlines.first().copied()
    }

    /// Service that `tenant` has had here since the start, before division by its weight.
    pub fn attained(&self, tenant: TenantId) -> Service {
        self.lane(tenant)
            .map_or(Service::ZERO, |lane| lane.attained)
    }

    /// Whether this tenant has a request that waits.
    pub fn waits(&self, tenant: TenantId) -> bool {
        self.lane(tenant).is_some_and(|lane| !lane.line.is_empty())
    }

    /// The requests that wait, in the order of their arrival.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> + '_ {
        self.waiting.values()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one more would be too many.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.max
    }

    /// The work that waits: prompts and estimated outputs.
    pub fn work(&self) -> Tokens {
        self.work
    }

    fn lane(&self, tenant: TenantId) -> Option<&Lane> {
        self.lanes.get(position(tenant.get()))
    }

    /// Takes a request out of the line. Its lane is to be repositioned by the caller.
    fn unqueue(&mut self, id: RequestId) -> Option<Waiting> {
        let ticket = self.tickets.remove(&id)?;
        let waiting = self.waiting.remove(&ticket)?;
        self.deadlines.remove(&(waiting.deadline, id));
        self.work = self.work - waiting.work;
        let was_modest = self.is_modest(waiting.tenant);
        let lane = &mut self.lanes[position(waiting.tenant.get())];
        lane.line.remove(&(waiting.deadline, ticket));
        lane.work = lane.work - waiting.work;
        if lane.line.is_empty() {
            self.clock.leaves(lane);
        }
        self.count_modest(waiting.tenant, was_modest);
        Some(waiting)
    }

    /// The tenant of `waiting` counts as active from now on, with its present weight and class.
    fn activate(&mut self, waiting: &Waiting) {
        let place = position(waiting.tenant.get());
        while self.lanes.len() <= place {
            self.lanes.push(Lane::default());
        }
        let lane = &mut self.lanes[place];
        if let Some(until) = lane.expires() {
            self.expiring.remove(&(until, waiting.tenant));
        }
        self.active_weight -= lane.deactivate();
        self.active_weight += lane.activate(waiting.weight);
        lane.class = waiting.class;
    }

    /// Keeps the count of those that are modest, where one may have become so or no longer is.
    fn count_modest(&mut self, tenant: TenantId, was: bool) {
        self.modest -= usize::from(was);
        self.modest += usize::from(self.is_modest(tenant));
    }

    /// A tenant with nothing waiting and nothing running keeps its share for a while.
    fn rest(&mut self, tenant: TenantId, now: Time) {
        let lane = &mut self.lanes[position(tenant.get())];
        if lane.line.is_empty() && lane.holding.running == 0 {
            let until = now + ACTIVE_FOR;
            lane.rest(until);
            self.expiring.insert((until, tenant));
        }
    }

    /// Puts a lane where it now belongs in the order, or nowhere while it has nothing waiting.
    fn reposition(&mut self, tenant: TenantId) {
        let lane = &mut self.lanes[position(tenant.get())];
        let wanted = lane
            .line
            .first()
            .map(|(_, ticket)| lane.place(self.policy, *ticket));
        self.orders.move_to(tenant, &mut lane.placed, wanted);
    }

    fn invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let count = self.waiting.len();
        assert_eq!((self.tickets.len(), self.deadlines.len()), (count, count));
        assert!(count <= self.max);
        assert!(count > 0 || self.work == Tokens::ZERO);
        assert!(
            count > 0 || self.orders.is_empty(),
            "a place in order for nobody"
        );
        assert_eq!(
            self.orders.is_empty(),
            count == 0,
            "somebody waits without a place in order"
        );
        if self.lanes.len() < 64 {
            let modest = self.lanes.iter().filter(|lane| lane.is_modest());
            assert_eq!(self.modest, modest.count());
            let holds = |lane: &&Lane| lane.holding.running > 0;
            assert_eq!(self.holders.len(), self.lanes.iter().filter(holds).count());
        }
    }
}
