//! The life of one request inside the policy: queued, then running, then gone.
//!
//! A running request has two parties, the engine that makes the answer and the client that takes
//! it. It is over when both are done with it, whichever is first; until then it holds its place in
//! the replica's window. So what is charged is what the engine says it made, also when the client
//! left long before.

use crate::budget::Hold;
use crate::contract::Held;
use crate::failover::Tries;
use crate::fair::Waiting;
use crate::ids::{KeyId, ModelId, ReplicaId, RequestId, TenantId};
use crate::outcome::{EngineEnding, Outcome, Phase};
use crate::slo::Asked;
use crate::tenant::Class;
use crate::units::{KvBlocks, Time, Tokens};
use crate::usage::{Counted, Usage};

/// A request, as it asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its name.
    pub id: RequestId,
    /// Who pays.
    pub tenant: TenantId,
    /// With which of the tenant's keys, where it has a name.
    pub key: Option<KeyId>,
    /// What it is for.
    pub model: ModelId,
    /// Its prompt, counted.
    pub prompt: Tokens,
    /// The most output it asks for, if it says; at least one token.
    pub output_max: Option<Tokens>,
    /// Whether it is another try: its client says so, or its idempotency key has been seen.
    pub retry: bool,
    /// How much faster than its class it asks to be answered.
    pub slo: Asked,
    /// When the gateway received it, before its body was read.
    pub received: Time,
}

/// How the client's part in a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnding {
    /// The last byte of the answer was handed over.
    Delivered,
    /// It left, or its connection was cut.
    Gone,
    /// Our own handler of it panicked.
    Panicked,
}

/// An admitted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) tenant: TenantId,
    pub(crate) key: Option<KeyId>,
    pub(crate) model: ModelId,
    pub(crate) received: Time,
    /// Output granted: what was asked for, cut to every limit.
    pub(crate) output_max: Tokens,
    pub(crate) class: Class,
    pub(crate) prompt: Tokens,
    /// What it is expected to hold of a replica's KV.
    pub(crate) kv: KvBlocks,
    /// What it holds of its tenant's levels.
    pub(crate) held: Held,
    /// Where it has been tried in vain.
    pub(crate) tries: Tries,
    /// What it holds of budgets.
    pub(crate) hold: Hold,
    pub(crate) stage: Stage,
}

/// Where an admitted request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// It waits; its queue knows until when.
    Queued,
    /// A replica has it.
    Running(Running),
}

/// A request that a replica has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) replica: ReplicaId,
    pub(crate) dispatched: Time,
    /// What of its prompt counts as prefill in flight: nothing once a token has answered it.
    pub(crate) prefill: Tokens,
    /// When its first token was written to the client.
    pub(crate) first_token: Option<Time>,
    /// When it is stopped at the latest.
    pub(crate) fence: Time,
    /// Its place in the queue, should it have to go back there.
    pub(crate) waiting: Waiting,
    /// Whether a part of the answer is on its way, token or not.
    pub(crate) begun: bool,
    /// It is to go to another replica, as soon as this one has let go of it.
    pub(crate) moving: bool,
    /// What it was told to end as, where that is not what the two parties make of it.
    pub(crate) stopped: Option<Outcome>,
    /// The engine's last word.
    pub(crate) engine: Option<(EngineEnding, Usage)>,
    /// The client's last word.
    pub(crate) client: Option<ClientEnding>,
    /// Who counted what it used.
    pub(crate) counted: Counted,
}

impl Running {
    /// A request that `replica` has just been given.
    pub(crate) const fn new(replica: ReplicaId, waiting: Waiting, fence: Time) -> Self {
        Self {
            replica,
            dispatched: Time::START,
            first_token: None,
            fence,
            prefill: waiting.prompt,
            waiting,
            begun: false,
            moving: false,
            stopped: None,
            engine: None,
            client: None,
            counted: Counted::Exactly,
        }
    }

    /// Notes the first thing that went wrong; what goes wrong after it is a consequence.
    pub(crate) fn stop(&mut self, outcome: Outcome) {
        self.stopped.get_or_insert(outcome);
    }

    /// Where the client leaves, when it leaves now.
    pub(crate) const fn phase(&self) -> Phase {
        match self.first_token {
            None => Phase::BeforeFirstToken,
            Some(_) => Phase::MidStream,
        }
    }

    /// Whether nobody has seen anything of an answer, so that another replica may make it.
    pub(crate) const fn is_unanswered(&self) -> bool {
        !self.begun && self.first_token.is_none()
    }

    /// The outcome and the usage, once both parties are done.
    pub(crate) fn over(&self) -> Option<(Outcome, Usage)> {
        let (ending, usage) = self.engine?;
        let client = self.client?;
        let outcome = match (self.stopped, ending, client) {
            (Some(outcome), _, _) => outcome,
            (None, EngineEnding::Finished(reason), ClientEnding::Delivered) => {
                Outcome::Completed(reason)
            }
            (None, EngineEnding::Failed(failure), _) => Outcome::ReplicaFailed(failure),
            (None, EngineEnding::Refused(status), _) => Outcome::ReplicaRefused(status),
            (None, _, ClientEnding::Panicked) => Outcome::Bug,
            (None, EngineEnding::Cancelled, _)
            | (None, EngineEnding::Finished(_), ClientEnding::Gone) => {
                Outcome::ClientGone(self.phase())
            }
        };
        Some((outcome, usage))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::outcome::{Failure, Fence, FinishReason};
    use crate::units::Service;

    fn running() -> Running {
        let waiting = Waiting {
            id: RequestId::new(1),
            tenant: TenantId::new(0),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            floor: 0,
            prompt: Tokens::new(1),
            work: Tokens::new(2),
            is_brief: true,
            kv: KvBlocks::new(1),
            prepay: Service::ZERO,
            deadline: Time::from_micros(1),
        };
        Running::new(ReplicaId::new(0), waiting, Time::from_micros(1))
    }

    #[test]
    fn it_is_over_only_when_both_parties_are_done() {
        let mut request = running();
        request.client = Some(ClientEnding::Delivered);
        assert_eq!(request.over(), None);
        request.engine = Some((EngineEnding::Finished(FinishReason::Stop), Usage::default()));
        assert_eq!(
            request.over().unwrap().0,
            Outcome::Completed(FinishReason::Stop)
        );
    }

    #[test]
    fn an_answer_that_was_made_but_not_taken_is_not_completed() {
        let mut request = running();
        request.engine = Some((EngineEnding::Finished(FinishReason::Stop), Usage::default()));
        request.client = Some(ClientEnding::Gone);
        assert_eq!(
            request.over().unwrap().0,
            Outcome::ClientGone(Phase::BeforeFirstToken)
        );
    }

    #[test]
    fn what_went_wrong_first_is_the_outcome() {
        let mut request = running();
        request.stop(Outcome::Fenced(Fence::MaxStream));
        request.stop(Outcome::ClientGone(Phase::MidStream));
        request.engine = Some((EngineEnding::Failed(Failure::Engine), Usage::default()));
        request.client = Some(ClientEnding::Gone);
        assert_eq!(request.over().unwrap().0, Outcome::Fenced(Fence::MaxStream));
    }
}
