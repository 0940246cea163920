//! What happens to a request that was let in: dispatch, service, the two endings, and the bounds on
//! its time.

use super::end::Ended;
use super::event::{Dispatch, Effect, Served};
use super::{Drain, Gateway};
use crate::ids::{ModelId, ReplicaId, RequestId, position};
use crate::outcome::{EngineEnding, Eviction, Failure, Fence, Outcome, Phase};
use crate::request::{ClientEnding, Running, Stage};
use crate::route::{self, Candidate, Choice};
use crate::units::{KvBlocks, Micros, Time, Tokens};
use crate::usage::Usage;
use crate::window::Capacity;

impl Gateway {
    /// Dispatches as long as the request that is next fits a replica: no room is left idle while it
    /// could be used.
    pub(super) fn fill(&mut self, model: ModelId, now: Time) {
        if matches!(self.drain, Drain::Stopped | Drain::Done) {
            return;
        }
        while let Some(next) = self.pools[position(model.get())].queue.head() {
            let kv = next.work.blocks();
            let Some(choice) = self.choose_replica(model, kv) else {
                return;
            };
            self.pool(model).queue.remove(next.id);
            self.dispatch(next.id, choice, now);
        }
    }

    /// The replica that would take a request which holds `kv`, if one has room.
    pub(super) fn choose_replica(&self, model: ModelId, kv: KvBlocks) -> Option<Choice> {
        let open = self.replicas.iter().zip(0..).filter(|(replica, _)| {
            replica.model == model
                && replica.health.is_healthy()
                && replica.window.room_for(kv).is_ok()
        });
        route::choose(open.map(|(replica, n)| Candidate {
            replica: ReplicaId::new(n),
            held: replica.window.kv(),
        }))
    }

    /// How long a refused request should stay away: until the queue has gone, or a replica is back.
    pub(super) fn wait_hint(&self, model: ModelId, now: Time) -> Option<Micros> {
        let pool = &self.pools[position(model.get())];
        let own = self
            .replicas
            .iter()
            .filter(|replica| replica.model == model);
        let back = own
            .filter_map(|replica| Some(replica.health.retry_at()?.since(now)))
            .min();
        pool.rate.time_for(pool.queue.work()).max(back)
    }

    pub(super) fn first_token(&mut self, id: RequestId, now: Time) {
        if let Some(running) = self.running(id) {
            running.first_token.get_or_insert(now);
        }
    }

    /// Charges service as it is given, and measures how fast it is given.
    pub(super) fn stepped(&mut self, replica: ReplicaId, served: &[Served], now: Time) {
        let (model, weights) = (self.replica(replica).model, self.weights);
        let mut tokens = Tokens::ZERO;
        for one in served {
            let Some(request) = self.requests.get(&one.id) else {
                continue;
            };
            let (tenant, made) = (request.tenant, one.usage());
            self.pool(model).queue.charge(tenant, made.service(weights));
            tokens += one.prompt + one.output;
        }
        self.pool(model).rate.served(tokens, now);
    }

    pub(super) fn engine_ended(
        &mut self,
        id: RequestId,
        ending: EngineEnding,
        usage: Usage,
        now: Time,
    ) {
        let Some(running) = self.running(id) else {
            return;
        };
        running.engine.get_or_insert((ending, usage));
        let replica = running.replica;
        // A replica says that it is down when it has ended all it had. By then the first of those
        // would have made room for the next in line, which would go to its ruin.
        if ending == EngineEnding::Failed(Failure::Engine) {
            self.replica(replica).health.down(now);
        }
        self.end_if_over(id, now);
    }

    pub(super) fn client_ended(&mut self, id: RequestId, ending: ClientEnding, now: Time) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        match &mut request.stage {
            Stage::Queued => {
                let outcome = match ending {
                    ClientEnding::Panicked => Outcome::Bug,
                    ClientEnding::Delivered | ClientEnding::Gone => {
                        Outcome::ClientGone(Phase::Queued)
                    }
                };
                self.end(Ended::inside(id, outcome, Usage::default()), now);
            }
            Stage::Running(running) => {
                running.client.get_or_insert(ending);
                let outcome = match ending {
                    ClientEnding::Delivered => None,
                    ClientEnding::Gone => Some(Outcome::ClientGone(running.phase())),
                    ClientEnding::Panicked => Some(Outcome::Bug),
                };
                if let (Some(outcome), None) = (outcome, running.engine) {
                    self.cancel(id, outcome);
                }
                self.end_if_over(id, now);
            }
        }
    }

    pub(super) fn replica_up(&mut self, id: ReplicaId, capacity: Capacity, now: Time) {
        let replica = self.replica(id);
        replica.health.up(now);
        replica.window.resize(capacity);
        let model = replica.model;
        self.fill(model, now);
    }

    pub(super) fn replica_down(&mut self, id: ReplicaId, now: Time) {
        self.replica(id).health.down(now);
    }

    pub(super) fn begin_drain(&mut self, bound: Micros, now: Time) {
        if self.drain == Drain::No {
            self.drain = Drain::Until { bound: now + bound };
        }
    }

    /// Carries out what time alone brings about.
    pub(super) fn expire(&mut self, now: Time) {
        self.evict_expired(now);
        while let Some(&(at, id)) = self.fences.first() {
            if at > now {
                break;
            }
            self.cancel(id, Outcome::Fenced(Fence::MaxStream));
        }
        for n in 0..self.replicas.len() {
            let due = self.replicas[n]
                .health
                .retry_at()
                .is_some_and(|at| at <= now);
            if due {
                self.replicas[n].health.retried();
                let replica = ReplicaId::new(u32::try_from(n).unwrap_or(u32::MAX));
                self.effects.push_back(Effect::Start { replica });
            }
        }
        if matches!(self.drain, Drain::Until { bound } if bound <= now) {
            self.drain = Drain::Stopped;
            self.stop_everything(now);
        }
    }

    pub(super) fn report_drained(&mut self) {
        let leaving = matches!(self.drain, Drain::Until { .. } | Drain::Stopped);
        if leaving && self.requests.is_empty() {
            self.drain = Drain::Done;
            self.effects.push_back(Effect::Drained);
        }
    }

    fn dispatch(&mut self, id: RequestId, choice: Choice, now: Time) {
        let Some(request) = self.requests.get(&id).copied() else {
            return;
        };
        let pool = self.pool(request.model);
        let fence = now + pool.model.max_stream;
        pool.running += 1;
        pool.rate.busy(now);
        self.replica(choice.replica).window.hold(request.kv);
        self.fences.insert((fence, id));
        let stage = Stage::Running(Running::new(choice.replica, now, fence));
        self.requests
            .insert(id, crate::request::Request { stage, ..request });
        let quota = self.quota(request.tenant, now);
        self.effects.push_back(Effect::Dispatch(Dispatch {
            id,
            tenant: request.tenant,
            replica: choice.replica,
            because: choice.because,
            output_max: request.output_max,
            queued: now.since(request.received),
            fence,
            quota,
        }));
    }

    /// Makes the engine stop and the client learn why; the request ends when both have answered.
    fn cancel(&mut self, id: RequestId, outcome: Outcome) {
        let Some(running) = self.running(id) else {
            return;
        };
        let (replica, fence) = (running.replica, running.fence);
        let first = running.stopped.is_none();
        running.stop(outcome);
        self.fences.remove(&(fence, id));
        if !first {
            return;
        }
        self.effects.push_back(Effect::Cancel {
            id,
            replica,
            outcome,
        });
    }

    fn end_if_over(&mut self, id: RequestId, now: Time) {
        let over = self.running(id).and_then(|running| running.over());
        if let Some((outcome, usage)) = over {
            self.end(Ended::inside(id, outcome, usage), now);
        }
    }

    fn evict_expired(&mut self, now: Time) {
        for n in 0..self.pools.len() {
            while let Some((at, id)) = self.pools[n].queue.first_deadline() {
                if at > now {
                    break;
                }
                self.end(Ended::evicted(id, Eviction::QueueTime), now);
            }
        }
    }

    fn stop_everything(&mut self, now: Time) {
        let ids: Vec<_> = self
            .requests
            .iter()
            .map(|(id, request)| (*id, request.stage))
            .collect();
        for (id, stage) in ids {
            match stage {
                Stage::Queued => self.end(Ended::evicted(id, Eviction::Draining), now),
                Stage::Running(_) => self.cancel(id, Outcome::Fenced(Fence::Drain)),
            }
        }
    }

    fn running(&mut self, id: RequestId) -> Option<&mut Running> {
        match &mut self.requests.get_mut(&id)?.stage {
            Stage::Running(running) => Some(running),
            Stage::Queued => None,
        }
    }
}

impl Served {
    fn usage(self) -> Usage {
        Usage {
            prompt: self.prompt,
            cached: Tokens::ZERO,
            output: self.output,
        }
    }
}
