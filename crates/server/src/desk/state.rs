//! What the desk keeps under its lock: the policy, who is told what becomes of each request, and
//! the engines of this process. Handing a request to one of them, and taking it back, is done here.

use std::collections::BTreeSet;

use tollgate_engine::{Delta, Engine, Job, Output};
use tollgate_policy::gateway::{Dispatch, Event, Gateway, Served};
use tollgate_policy::ids::{ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason};
use tollgate_policy::units::{Service, Time};
use tollgate_policy::usage::Usage;

use super::Draft;
use super::inflight::Letter;
use super::letters;
use super::quick::QuickMap;

#[derive(Debug)]
pub(super) struct State {
    pub(super) gateway: Gateway,
    pub(super) requests: QuickMap<RequestId, Open>,
    pub(super) engines: Vec<Option<Engine>>,
    /// What was last said of it.
    pub(super) ready: bool,
    /// Replicas whose engine did not come back from a step.
    pub(super) given_up: BTreeSet<ReplicaId>,
    /// When the timer is set to.
    pub(super) armed: Option<Time>,
}

/// A request whose end has not been recorded.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) letters: letters::Sender,
    pub(super) work: Work,
    /// Which engine here has it now.
    pub(super) replica: Option<ReplicaId>,
    /// What that computed of it, as told step by step.
    pub(super) served: Usage,
}

impl Open {
    pub(super) fn new(letters: letters::Sender, work: Work) -> Self {
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
pub(super) enum Work {
    /// An engine here gets this.
    Draft(Box<Draft>),
    /// An engine here has it.
    Given,
    /// Its handler asks an engine in another process.
    Elsewhere,
}

impl State {
    /// Gives a request to its replica. Where the replica is gone, the request has failed there,
    /// which is a fact.
    pub(super) fn dispatch(&mut self, dispatch: Dispatch) -> Option<Event> {
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
    pub(super) fn withdraw(&self, id: RequestId, replica: ReplicaId) {
        let here = self.engines.get(slot(replica)).and_then(Option::as_ref);
        match (self.requests.get(&id).map(|open| &open.work), here) {
            (Some(Work::Elsewhere), _) => self.tell(id, Letter::Withdrawn),
            (Some(Work::Draft(_) | Work::Given), Some(engine)) => engine.cancel(id),
            (Some(Work::Draft(_) | Work::Given), None) | (None, _) => {}
        }
    }

    pub(super) fn served_by_weight(&self, id: TenantId) -> Service {
        self.gateway.attained_by_weight(id)
    }

    /// Keeps what is needed of a fact where an engine is given up later.
    pub(super) fn note(&mut self, event: &Event) {
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

    pub(super) fn tell(&self, id: RequestId, letter: Letter) {
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

/// Where a replica stands among all.
pub(super) fn slot(replica: ReplicaId) -> usize {
    usize::try_from(replica.get()).unwrap_or(usize::MAX)
}
