//! The replicas of the pools: which come, which fail, what becomes of the requests that they had,
//! and which go.
//!
//! Who gets a request that has no replica is not decided here; it goes back into the queue, in the
//! place it had.

use super::event::Effect;
use super::standing::Count;
use super::{Drain, Gateway, Replica, ReplicaConfig, Stay, bounds};
use crate::failover::Tries;
use crate::health::{Company, Health, Sign};
use crate::ids::{ModelId, ReplicaId, RequestId, position};
use crate::outcome::{EngineEnding, Failure};
use crate::pace::Steps;
use crate::request::{Request, Running, Stage};
use crate::shelf::{self, Step};
use crate::tenant::Class;
use crate::units::{KvBlocks, Micros, Time};
use crate::window::{Bounds, Capacity, Window};

/// How long a request waits at least when it has to wait again, through no fault of its own.
const WAIT_AGAIN: Micros = Micros::from_secs(5);

impl Replica {
    /// A replica that is not up yet.
    pub(super) fn starting(config: ReplicaConfig, bounds: Bounds) -> Self {
        Self {
            model: config.model,
            only: config.only,
            stay: Stay::Serving,
            health: Health::starting(),
            window: Window::new(bounds),
            steps: Steps::default(),
            count: Count::default(),
        }
    }
}

impl Gateway {
    pub(super) fn replica_up(&mut self, id: ReplicaId, capacity: Capacity, now: Time) {
        let company = self.company(id);
        let replica = self.replica(id);
        let returns = replica.health.is_returning();
        replica.health.up(now);
        replica.window.resize(capacity);
        if returns && company == Company::Others {
            replica.window.warm_up();
        }
        let model = replica.model;
        if let Some(item) = &mut self.shelf[position(model.get())] {
            item.came(now);
        }
        self.pool(model).router.lost(id);
        self.fill(model, now);
    }

    pub(super) fn replica_down(&mut self, id: ReplicaId, now: Time) {
        self.replica(id).health.down(now);
        self.withdraw_all(id);
    }

    pub(super) fn noticed(&mut self, id: ReplicaId, sign: Sign, now: Time) {
        let company = self.company(id);
        if self.replica(id).health.note(sign, company, now) {
            self.withdraw_all(id);
        }
    }

    /// A replica has no room, and says for how long, if it says so.
    pub(super) fn replica_full(&mut self, id: ReplicaId, wait: Option<Micros>, now: Time) {
        self.replica(id).health.busy(wait, now);
    }

    pub(super) fn add_replica(&mut self, id: ReplicaId, config: ReplicaConfig) {
        let pool = &self.pools[position(config.model.get())];
        let replica = Replica::starting(config, bounds(pool.queue.policy(), &pool.model));
        match self.replicas.get_mut(position(id.get())) {
            Some(place) if place.stay == Stay::Retired => {
                let count = place.count;
                *place = Replica { count, ..replica };
            }
            Some(_) => unreachable!("{id:?} is taken"),
            None => self.replicas.push(replica),
        }
        self.touched.push(id);
        self.effects.push_back(Effect::Start { replica: id });
    }

    pub(super) fn leave(&mut self, id: ReplicaId) {
        let replica = self.replica(id);
        if replica.stay == Stay::Serving {
            replica.stay = Stay::Leaving;
        }
        self.retire_if_done(id);
    }

    /// Lets go of a replica that is leaving and has nothing left.
    pub(super) fn retire_if_done(&mut self, id: ReplicaId) {
        let replica = self.replica(id);
        if replica.stay == Stay::Leaving && replica.window.sequences() == 0 {
            replica.stay = Stay::Retired;
            let model = replica.model;
            self.pool(model).router.lost(id);
            self.effects.push_back(Effect::Retired { replica: id });
        }
    }

    /// Somebody asks for a model.
    pub(super) fn ask_for(&mut self, model: ModelId, now: Time) {
        if let Some(item) = &mut self.shelf[position(model.get())] {
            item.ask(now);
        }
    }

    /// How long it takes until a model is loaded, where it is not and that is known.
    pub(super) fn loads_in(&self, model: ModelId, now: Time) -> Option<Micros> {
        self.shelf[position(model.get())].and_then(|item| item.wait(now))
    }

    /// Loads what is asked for, and unloads what is in its way.
    pub(super) fn tend_shelf(&mut self, now: Time) {
        if self.shelf.iter().all(Option::is_none) || self.drain != Drain::No {
            return;
        }
        let pools = &self.pools;
        let is_idle = |at: usize| {
            let pool = &pools[at];
            pool.running == 0 && pool.queue.is_empty()
        };
        while let Some(step) = shelf::next(&mut self.shelf, is_idle, now) {
            let at = match step {
                Step::Load(at) | Step::Unload(at) => at,
            };
            let mine = self.replicas.iter_mut().zip(0..);
            let mine = mine.filter(|(one, _)| position(one.model.get()) == at);
            for (one, n) in mine.filter(|(one, _)| one.stay == Stay::Serving) {
                let replica = ReplicaId::new(n);
                self.touched.push(replica);
                self.effects.push_back(match step {
                    Step::Load(_) => Effect::Start { replica },
                    Step::Unload(_) => {
                        // From now on it is one that may come, and not one that takes work.
                        one.health = Health::starting();
                        Effect::Stop { replica }
                    }
                });
            }
        }
    }

    /// A replica was stopped to make room. It is as if it had never been started.
    pub(super) fn replica_stopped(&mut self, id: ReplicaId) {
        let replica = self.replica(id);
        replica.health = Health::starting();
        replica.window.resize(Capacity {
            sequences: 0,
            kv: KvBlocks::ZERO,
        });
        let model = replica.model;
        self.pool(model).router.lost(id);
        if let Some(item) = &mut self.shelf[position(model.get())] {
            item.went();
        }
    }

    /// Tries those whose pause is over.
    pub(super) fn wake_replicas(&mut self, now: Time) {
        while let Some(&(at, id)) = self.alarms.first() {
            if at > now {
                return;
            }
            self.alarms.pop_first();
            let replica = self.replica(id);
            if replica.health.retry_at().is_some_and(|at| at <= now) {
                replica.health.retried();
                self.effects.push_back(Effect::Start { replica: id });
            } else if replica.health.rested(now) {
                let model = replica.model;
                self.fill(model, now);
            }
        }
    }

    /// What the end of a request tells of its replica's health.
    pub(super) fn note_ending(&mut self, id: RequestId, ending: EngineEnding, now: Time) {
        let Some(request) = self.requests.get(&id).copied() else {
            return;
        };
        let Stage::Running(running) = request.stage else {
            return;
        };
        let replica = running.replica;
        match ending {
            // A request that it does not take is not its fault.
            EngineEnding::Finished(_) | EngineEnding::Refused(_) => {
                self.replica(replica).window.answered();
                self.noticed(replica, Sign::Answered, now);
            }
            EngineEnding::Cancelled | EngineEnding::Failed(Failure::Sequence) => {}
            // A replica says that it is down when it has ended all it had. By then the first of
            // those would have made room for the next in line, which would go to its ruin.
            EngineEnding::Failed(Failure::Engine) => self.replica(replica).health.down(now),
            EngineEnding::Failed(Failure::Unreachable) => self.noticed(replica, Sign::Gone, now),
            EngineEnding::Failed(Failure::BadAnswer | Failure::BrokeOff | Failure::Silent) => {
                self.noticed(replica, Sign::Failed, now);
            }
            EngineEnding::Failed(Failure::Erred) => self.note_error(id, &request, replica, now),
            EngineEnding::Failed(Failure::Busy) => self.replica_full(replica, None, now),
        }
    }

    /// An engine answered with an error of its own. Where another one did too, the request is to
    /// blame and not the engines: one caller's poison must not take them all away.
    fn note_error(&mut self, id: RequestId, request: &Request, replica: ReplicaId, now: Time) {
        match request.tries.erred {
            Some(before) => self.replica(before).health.forgive(),
            None => self.noticed(replica, Sign::Failed, now),
        }
        if let Some(request) = self.requests.get_mut(&id) {
            request.tries.erred = Some(replica);
        }
    }

    /// Whether a request whose engine has let go of it is given to another replica.
    pub(super) fn goes_elsewhere(&mut self, id: RequestId, ending: EngineEnding) -> bool {
        let Some(request) = self.requests.get(&id).copied() else {
            return false;
        };
        let Stage::Running(running) = request.stage else {
            return false;
        };
        let is_free = running.is_unanswered() && running.client.is_none();
        let may = is_free && running.stopped.is_none() && request.tries.may_again();
        if !may || matches!(self.drain, Drain::Stopped | Drain::Done) {
            return false;
        }
        if self.pools[position(request.model.get())].queue.is_full() {
            return false;
        }
        let mut tries = request.tries;
        tries.note(running.replica);
        let elsewhere = self.has_fresh(request.model, request.class, &tries);
        match ending {
            EngineEnding::Finished(_) | EngineEnding::Refused(_) => false,
            // Withdrawn, or ended with an engine that went: it is no retry, and as often as
            // replicas go.
            _ if running.moving => elsewhere,
            EngineEnding::Cancelled => false,
            // No budget: what is full is left alone, so it does not get worse.
            EngineEnding::Failed(Failure::Busy) => elsewhere,
            EngineEnding::Failed(failure) => {
                let may = elsewhere && failure.may_go_elsewhere();
                may && self.pool(request.model).failovers.take()
            }
        }
    }

    /// Puts a request back into the queue, in the place that it had, and sees who takes it.
    pub(super) fn fail_over(&mut self, id: RequestId, ending: EngineEnding, now: Time) {
        let Some(request) = self.requests.get(&id).copied() else {
            return;
        };
        let Stage::Running(running) = request.stage else {
            return;
        };
        self.vacate(id, &request, running, now);
        let (mut tries, mut waiting) = (request.tries, running.waiting);
        // One that was full has not failed it, and may be asked again while the request may wait.
        if !matches!(ending, EngineEnding::Failed(Failure::Busy)) {
            tries.note(running.replica);
            waiting.deadline = waiting.deadline.max(now + WAIT_AGAIN);
        }
        let queued = Request {
            tries,
            stage: Stage::Queued,
            ..request
        };
        self.requests.insert(id, queued);
        let pushed = self.pool(request.model).queue.push(waiting);
        debug_assert!(pushed.is_ok(), "a full queue takes nobody back");
        self.fill(request.model, now);
    }

    /// Takes back what a replica that failed has not answered, where another may answer it.
    fn withdraw_all(&mut self, replica: ReplicaId) {
        let mut taken = Vec::new();
        for (id, request) in &self.requests {
            let Stage::Running(running) = request.stage else {
                continue;
            };
            if running.replica != replica || !can_move(request, &running) {
                continue;
            }
            let mut tries = request.tries;
            tries.note(replica);
            if self.has_fresh(request.model, request.class, &tries) {
                taken.push(*id);
            }
        }
        for id in taken {
            if let Some(running) = self.running(id) {
                running.moving = true;
            }
            self.effects.push_back(Effect::Withdraw { id, replica });
        }
    }

    /// Whether some replica takes work of this class that a request has not been tried on.
    pub(super) fn has_fresh(&self, model: ModelId, class: Class, tries: &Tries) -> bool {
        let mut each = self.replicas.iter().zip(0..);
        each.any(|(one, n)| one.takes(model, class) && !tries.includes(ReplicaId::new(n)))
    }

    /// Whether the pool of a replica has another that works.
    fn company(&self, id: ReplicaId) -> Company {
        let model = self.replicas[position(id.get())].model;
        let mut each = self.replicas.iter().zip(0..);
        let other = each.any(|(one, n)| {
            let works = one.stay == Stay::Serving && one.health.is_healthy();
            one.model == model && works && ReplicaId::new(n) != id
        });
        if other {
            Company::Others
        } else {
            Company::Alone
        }
    }
}

fn can_move(request: &Request, running: &Running) -> bool {
    let unanswered = running.is_unanswered() && running.engine.is_none();
    let wanted = running.client.is_none() && running.stopped.is_none();
    unanswered && wanted && !running.moving && request.tries.may_again()
}
