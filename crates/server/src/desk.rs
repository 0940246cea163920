//! The desk: where the policy meets the world.
//!
//! Handlers, engines and timers hand in facts; the desk gives each to the policy with the time, and
//! carries out what the policy orders, in order, under one lock. Everything done under it is short
//! and never waits: a push to a channel, a counter, a map. The desk itself decides nothing.

mod view;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, mpsc, watch};
use tollgate_engine::{Delta, Engine, Gauges as EngineGauges, Job, Output, Progress};
use tollgate_policy::gateway::{
    self, Config, Dispatch, Effect, Event, Gateway, Gauges, Quota, ReplicaConfig, Served,
};
use tollgate_policy::ids::{ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason};
use tollgate_policy::request::Arrival;
use tollgate_policy::route::Affinity;
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::{Service, Time};
use tollgate_policy::usage::Usage;

pub(crate) use self::view::QueueView;
use crate::books::Books;
use crate::clock::Clock;
use crate::inflight::{InFlight, Letter};
use crate::letters::{self, mailbox};
use crate::quick::QuickMap;

/// Letters that a request can get beside the pieces of its answer, and not have read: each try's
/// beginning and end, and its own.
const LETTERS_BESIDE_TEXT: usize = 16;

/// The policy, and the hands that carry out what it orders.
#[derive(Debug)]
pub(crate) struct Desk {
    clock: Clock,
    state: Mutex<State>,
    /// The number of the last request.
    last_id: AtomicU64,
    books: Books,
    /// The timer waits on it for an earlier wake.
    sooner: Notify,
    /// What is to be done with replicas, for whoever looks after them.
    tasks: mpsc::UnboundedSender<ReplicaTask>,
    drained: watch::Sender<bool>,
    ready: watch::Sender<bool>,
    /// As the policy says: each answer asks.
    draining: AtomicBool,
}

/// Something to do with a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaTask {
    /// Start it, or see whether it is back.
    Start(ReplicaId),
    /// Stop it, to make room for another.
    Stop(ReplicaId),
    /// Let go of it.
    Retire(ReplicaId),
}

#[derive(Debug)]
struct State {
    gateway: Gateway,
    requests: QuickMap<RequestId, Open>,
    engines: Vec<Option<Engine>>,
    /// What was last said of it.
    ready: bool,
    /// Replicas whose engine did not come back from a step.
    given_up: BTreeSet<ReplicaId>,
    /// When the timer is set to.
    armed: Option<Time>,
}

/// A request whose end has not been recorded.
#[derive(Debug)]
struct Open {
    letters: letters::Sender,
    work: Work,
    /// Which engine here has it now.
    replica: Option<ReplicaId>,
    /// What that computed of it, as told step by step.
    served: Usage,
}

impl Open {
    fn new(letters: letters::Sender, work: Work) -> Self {
        Self {
            letters,
            work,
            replica: None,
            served: Usage::default(),
        }
    }
}

/// What is to be done for a request.
#[derive(Debug)]
enum Work {
    /// An engine here gets this.
    Draft(Box<Draft>),
    /// An engine here has it.
    Given,
    /// Its handler asks an engine in another process.
    Elsewhere,
}

/// A job but for what only its dispatch can say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) prompts: Vec<Vec<tollgate_engine::Token>>,
    /// Answers to each prompt.
    pub(crate) choices: u32,
    pub(crate) sampling: tollgate_engine::Sampling,
    pub(crate) stop: tollgate_engine::Stop,
    /// Control tokens that are shown, and as what.
    pub(crate) spelled: Vec<(tollgate_engine::Token, String)>,
    pub(crate) echo: bool,
}

impl Draft {
    /// All answers.
    pub(crate) fn answers(&self) -> usize {
        let choices = usize::try_from(self.choices).unwrap_or(usize::MAX);
        self.prompts.len().saturating_mul(choices)
    }
}

impl Desk {
    /// A desk, and where the replicas it wants started come out.
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        books: Books,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<ReplicaTask>) {
        let engines = config.replicas.iter().map(|_| None).collect();
        let (tasks, taken) = mpsc::unbounded_channel();
        let state = State {
            gateway: Gateway::new(config),
            requests: QuickMap::default(),
            engines,
            ready: false,
            given_up: BTreeSet::new(),
            armed: None,
        };
        let desk = Self {
            clock,
            state: Mutex::new(state),
            last_id: AtomicU64::new(0),
            books,
            sooner: Notify::new(),
            tasks,
            drained: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            draining: AtomicBool::new(false),
        };
        (Arc::new(desk), taken)
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    /// A name for a request that is just being received.
    pub(crate) fn next_id(&self) -> RequestId {
        RequestId::new(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Hands in a request, and returns its handler's end of it. The first letter says what becomes
    /// of it.
    pub(crate) fn arrive(self: &Arc<Self>, arrival: Arrival, draft: Draft) -> InFlight {
        let mut state = self.lock();
        let context = state.gateway.context(arrival.model).get();
        let each = usize::try_from(context).unwrap_or(usize::MAX >> 16) + 2;
        let bound = each.saturating_mul(draft.answers()).min(usize::MAX >> 8) + LETTERS_BESIDE_TEXT;
        let work = Work::Draft(Box::new(draft));
        let (letters, inbox) = mailbox(bound);
        state.requests.insert(arrival.id, Open::new(letters, work));
        self.run(&mut state, Event::Arrived(arrival));
        InFlight::new(arrival.id, Arc::clone(self), inbox)
    }

    /// Hands in a request for an engine in another process: its handler is told where to, and
    /// reports what that engine does with it.
    pub(crate) fn arrive_elsewhere(
        self: &Arc<Self>,
        arrival: Arrival,
        affinity: Affinity,
    ) -> InFlight {
        let mut state = self.lock();
        let (id, (letters, inbox)) = (arrival.id, mailbox(LETTERS_BESIDE_TEXT));
        let work = Work::Elsewhere;
        state.requests.insert(id, Open::new(letters, work));
        self.run(&mut state, Event::Sought(arrival, affinity));
        InFlight::new(id, Arc::clone(self), inbox).reporting_engine()
    }

    /// Hands in several facts, with nothing between them.
    pub(crate) fn submit_all(&self, events: impl IntoIterator<Item = Event>) {
        let mut state = self.lock();
        for event in events {
            self.feed(&mut state, event);
        }
        self.look_ahead(&mut state);
    }

    /// Hands in a fact.
    pub(crate) fn submit(&self, event: Event) {
        self.run(&mut self.lock(), event);
    }

    /// A replica is up: its engine takes jobs from now on.
    pub(crate) fn attach(
        &self,
        replica: ReplicaId,
        engine: Engine,
        capacity: tollgate_policy::window::Capacity,
    ) {
        let mut state = self.lock();
        let slot = slot(replica);
        state.engines[slot] = Some(engine);
        state.given_up.remove(&replica);
        self.run(&mut state, Event::ReplicaUp { replica, capacity });
    }

    /// Has a replica started for the first time; after that the policy says when.
    pub(crate) fn start_replica(&self, replica: ReplicaId) {
        self.order(ReplicaTask::Start(replica));
    }

    fn order(&self, task: ReplicaTask) {
        // Err: whoever looks after them is gone, and the process with it.
        let _ = self.tasks.send(task);
    }

    /// Takes in one more replica, under the id that this returns.
    pub(crate) fn add_replica(
        &self,
        config: ReplicaConfig,
        prepare: impl FnOnce(ReplicaId),
    ) -> ReplicaId {
        let mut state = self.lock();
        let replica = state.gateway.free_replica_id();
        let place = slot(replica);
        if place >= state.engines.len() {
            state.engines.push(None);
        }
        prepare(replica);
        self.run(&mut state, Event::ReplicaAdded { replica, config });
        replica
    }

    /// Takes an engine away, to be stopped.
    pub(crate) fn detach(&self, replica: ReplicaId) -> Option<Engine> {
        self.lock().engines[slot(replica)].take()
    }

    /// Keeps an engine that can't be replaced yet.
    pub(crate) fn put_back(&self, replica: ReplicaId, engine: Engine) {
        self.lock().engines[slot(replica)] = Some(engine);
    }

    /// How far the thread of an engine is; `None` where there is none.
    pub(crate) fn progress(&self, replica: ReplicaId) -> Option<Progress> {
        let state = self.lock();
        state.engines[slot(replica)].as_ref().map(Engine::progress)
    }

    /// Whether its engine did not come back from a step.
    pub(crate) fn was_given_up(&self, replica: ReplicaId) -> bool {
        self.lock().given_up.contains(&replica)
    }

    /// Ends all that an engine has, in its place: it is stuck in a step and says nothing more. What
    /// it made so far is charged.
    pub(crate) fn give_up(&self, replica: ReplicaId) {
        let mut state = self.lock();
        if let Some(engine) = &state.engines[slot(replica)] {
            engine.give_up();
        }
        state.given_up.insert(replica);
        let mut theirs: Vec<_> = state
            .requests
            .iter()
            .filter(|(_, open)| open.replica == Some(replica))
            .map(|(id, open)| (*id, open.served))
            .collect();
        theirs.sort_unstable_by_key(|(id, _)| *id);
        self.run(&mut state, Event::ReplicaDown { replica });
        for (id, usage) in theirs {
            let ending = EngineEnding::Failed(Failure::Engine);
            self.run(&mut state, Event::EngineEnded { id, ending, usage });
        }
    }

    pub(crate) fn tenant_named_by_header(&self, name: &str) -> TenantId {
        self.lock().gateway.tenant_named_by_header(name)
    }

    /// Looks at a tenant.
    pub(crate) fn with_tenant<T>(&self, id: TenantId, look: impl FnOnce(&Tenant) -> T) -> T {
        look(self.lock().gateway.tenant(id))
    }

    /// The service that a tenant has had, divided by its weight.
    pub(crate) fn served_by_weight(&self, id: TenantId) -> Service {
        self.lock().served_by_weight(id)
    }

    /// What this tenant has left over all models.
    pub(crate) fn quota(&self, id: TenantId) -> Quota {
        let now = self.clock.now();
        self.lock().gateway.quota(id, None, now)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().gateway.is_ready()
    }

    /// Whether what is served can be written down.
    pub(crate) fn books_are_open(&self) -> bool {
        self.lock().gateway.books() == gateway::Books::Open
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// What is where, now: by the policy, and by each engine that is up.
    pub(crate) fn gauges(&self) -> (Gauges, Vec<Option<EngineGauges>>) {
        let state = self.lock();
        let engines = state
            .engines
            .iter()
            .map(|engine| engine.as_ref().map(Engine::gauges));
        (state.gateway.gauges(), engines.collect())
    }

    /// Each tenant's name and the service it has had.
    pub(crate) fn attained(&self) -> Vec<(String, Service)> {
        let state = self.lock();
        let tenants = (0..state.gateway.tenant_count()).filter_map(|n| u32::try_from(n).ok());
        let each = tenants.map(TenantId::new).map(|id| {
            (
                state.gateway.tenant(id).name.clone(),
                state.gateway.attained(id),
            )
        });
        each.collect()
    }

    /// Resolves when the policy says that nothing is in flight and nothing will be.
    pub(crate) async fn drained(&self) {
        let mut drained = self.drained.subscribe();
        // An error would mean that the sender is gone, and the desk holds it.
        let _ = drained.wait_for(|drained| *drained).await;
    }

    /// Resolves once every model has a replica that takes work.
    pub(crate) async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Hands in each wake when it is due. Runs until it is dropped.
    pub(crate) async fn keep_time(&self) {
        loop {
            let at = {
                let mut state = self.lock();
                state.armed = state.gateway.next_wake();
                state.armed
            };
            let due = async {
                match at {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.submit(Event::Wake),
                () = self.sooner.notified() => {}
            }
        }
    }

    fn run(&self, state: &mut State, event: Event) {
        self.feed(state, event);
        self.look_ahead(state);
    }

    /// Gives the policy one fact, and carries out all it orders.
    fn feed(&self, state: &mut State, event: Event) {
        state.note(&event);
        let (mut first, mut facts) = (Some(event), VecDeque::new());
        while let Some(fact) = first.take().or_else(|| facts.pop_front()) {
            state.gateway.handle(fact, self.clock.now());
            while let Some(effect) = state.gateway.poll_effect() {
                if let Some(consequence) = self.carry_out(state, effect) {
                    facts.push_back(consequence);
                }
            }
        }
    }

    /// Sees what follows from how the policy is now: who is to be told, and when to wake it.
    fn look_ahead(&self, state: &mut State) {
        let ready = state.gateway.is_ready();
        if std::mem::replace(&mut state.ready, ready) != ready {
            self.ready.send_replace(ready);
        }
        self.draining
            .store(state.gateway.is_draining(), Ordering::Relaxed);
        let wake = state.gateway.next_wake();
        if wake.is_some_and(|at| state.armed.is_none_or(|armed| at < armed)) {
            self.sooner.notify_one();
        }
    }

    /// Carries out one order; what comes of it at once is a new fact.
    fn carry_out(&self, state: &mut State, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Dispatch(dispatch) => {
                self.note_start(state, &dispatch);
                return state.dispatch(dispatch);
            }
            Effect::Refuse(refusal) => state.tell(refusal.id, Letter::Refused(Box::new(refusal))),
            Effect::Cancel {
                id,
                replica,
                outcome,
            } => {
                state.tell(id, Letter::Stopped(outcome));
                if let Some(engine) = &state.engines[slot(replica)] {
                    engine.cancel(id);
                }
            }
            Effect::Failed { id, failure, usage } => {
                let ending = EngineEnding::Failed(failure);
                state.tell(id, Letter::Ended(ending, usage));
            }
            Effect::Withdraw { id, replica } => state.withdraw(id, replica),
            Effect::Start { replica } => self.order(ReplicaTask::Start(replica)),
            Effect::Stop { replica } => self.order(ReplicaTask::Stop(replica)),
            Effect::Retired { replica } => self.order(ReplicaTask::Retire(replica)),
            Effect::Mark(progress) => self.books.mark(progress, &self.clock),
            Effect::Record(record) => {
                state.requests.remove(&record.id);
                let tenant = record.tenant.map(|id| (id, state.gateway.tenant(id)));
                self.books.close(&record, tenant, &self.clock);
            }
            Effect::Weighed(weighed) => {
                let tenant = state.gateway.tenant(weighed.row.judged.tenant);
                self.books.weigh(&weighed, tenant, &self.clock);
            }
            Effect::Fit(fit) => self.books.promises().fit(fit),
            Effect::Drained => {
                self.drained.send_replace(true);
            }
        }
        None
    }

    fn note_start(&self, state: &State, dispatch: &Dispatch) {
        if let Some(received) = state.gateway.received(dispatch.id) {
            let tenant = state.gateway.tenant(dispatch.tenant);
            self.books.start(dispatch, received, tenant, &self.clock);
        }
    }

    /// A panic under the lock is a panic of the policy. There is no going on from it: what it knows
    /// of who holds what may be wrong, so the process ends, and says so.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| {
            tracing::error!(
                "the policy panicked; the process ends, since its books can't be trusted"
            );
            std::process::abort()
        })
    }
}

impl State {
    /// Gives a request to its replica. Where the replica is gone, the request has failed there,
    /// which is a fact.
    fn dispatch(&mut self, dispatch: Dispatch) -> Option<Event> {
        let id = dispatch.id;
        let failed = Event::EngineEnded {
            id,
            ending: EngineEnding::Failed(Failure::Engine),
            usage: Usage::default(),
        };
        self.tell(id, Letter::Dispatched(Box::new(dispatch)));
        let served = self.served_by_weight(dispatch.tenant);
        let Some(open) = self.requests.get_mut(&id) else {
            return Some(failed);
        };
        if matches!(open.work, Work::Elsewhere) {
            return None;
        }
        // Where there is another replica, it may get the same once more.
        let spare = match &open.work {
            Work::Draft(draft) if self.engines.len() > 1 => Work::Draft(draft.clone()),
            Work::Draft(_) | Work::Given | Work::Elsewhere => Work::Given,
        };
        let Work::Draft(draft) = std::mem::replace(&mut open.work, spare) else {
            return Some(failed);
        };
        (open.replica, open.served) = (Some(dispatch.replica), Usage::default());
        let job = Job {
            id,
            tenant: dispatch.tenant,
            served,
            haste: dispatch.haste,
            prompts: draft.prompts,
            choices: draft.choices,
            max_output: dispatch.output_max,
            sampling: draft.sampling,
            stop: draft.stop,
            spelled: draft.spelled,
            echo: draft.echo,
            output: Box::new(Pen(open.letters.clone())),
        };
        let engine = self.engines[slot(dispatch.replica)].as_ref();
        let Some(Ok(())) = engine.map(|engine| engine.submit(job)) else {
            return Some(failed);
        };
        None
    }

    /// Takes a request back from the replica that has it.
    fn withdraw(&self, id: RequestId, replica: ReplicaId) {
        let here = self.engines.get(slot(replica)).and_then(Option::as_ref);
        match (self.requests.get(&id).map(|open| &open.work), here) {
            (Some(Work::Elsewhere), _) => self.tell(id, Letter::Withdrawn),
            (Some(Work::Draft(_) | Work::Given), Some(engine)) => engine.cancel(id),
            (Some(Work::Draft(_) | Work::Given), None) | (None, _) => {}
        }
    }

    fn served_by_weight(&self, id: TenantId) -> Service {
        self.gateway.attained_by_weight(id)
    }

    /// Keeps what is needed of a fact where an engine is given up later.
    fn note(&mut self, event: &Event) {
        if let Event::Stepped { served, .. } = event {
            self.note_served(served);
        }
        if let Event::EngineEnded { id, .. } = event
            && let Some(open) = self.requests.get_mut(id)
        {
            open.replica = None;
        }
    }

    fn note_served(&mut self, served: &[Served]) {
        for one in served {
            if let Some(open) = self.requests.get_mut(&one.id) {
                open.served.prompt += one.prompt;
                open.served.output += one.output;
            }
        }
    }

    fn tell(&self, id: RequestId, letter: Letter) {
        if let Some(open) = self.requests.get(&id) {
            // Err: the handler is gone, and has said so; or full, which the bound rules out.
            let _ = open.letters.send(letter);
        }
    }
}

/// Writes an engine's output into the letters of its request.
struct Pen(letters::Sender);

impl Output for Pen {
    fn delta(&mut self, delta: Delta) {
        // Err: the client is gone, and the cancel on its way.
        let _ = self.0.send(Letter::Delta(delta));
    }

    fn vector(&mut self, choice: u32, vector: Vec<f32>) {
        let _ = self.0.send(Letter::Vector(choice, vector));
    }

    fn finished(&mut self, choice: u32, reason: FinishReason) {
        let _ = self.0.send(Letter::Finished(choice, reason));
    }

    fn end(&mut self, ending: EngineEnding, usage: Usage) {
        // Of a failure the client learns when no other replica will try.
        if !matches!(ending, EngineEnding::Failed(_)) {
            let _ = self.0.send(Letter::Ended(ending, usage));
        }
    }
}

fn slot(replica: ReplicaId) -> usize {
    usize::try_from(replica.get()).unwrap_or(usize::MAX)
}
