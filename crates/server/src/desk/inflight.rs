//! A request that has arrived, as its handler holds it.

use std::sync::Arc;

use tollgate_engine::Delta;
use tollgate_policy::gateway::{Dispatch, Event, Refusal, Served};
use tollgate_policy::ids::{ReplicaId, RequestId};
use tollgate_policy::outcome::{EngineEnding, FinishReason, Outcome};
use tollgate_policy::request::ClientEnding;
use tollgate_policy::units::{Micros, Tokens};
use tollgate_policy::usage::{Counted, Usage};

use crate::desk::Desk;
use crate::desk::letters::Inbox;

/// What a handler is told of its request, in order.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A replica has it.
    Dispatched(Box<Dispatch>),
    /// It is not served. The last letter.
    Refused(Box<Refusal>),
    /// A piece of its answer.
    Delta(Delta),
    /// The vector of one of its prompts.
    Vector(u32, Vec<f32>),
    /// One of its choices is over.
    Finished(u32, FinishReason),
    /// The engine is done with it. The last letter.
    Ended(EngineEnding, Usage),
    /// The replica that has it is to let go of it: another will get it.
    Withdrawn,
    /// It was stopped. Nothing after it is for the client.
    Stopped(Outcome),
}

/// A request in flight: exactly one [`Event::ClientEnded`] reaches the policy for it.
///
/// `delivered` consumes it, so not twice; dropping it covers every path that lets go of it (a
/// dropped body, a cancelled future, a panic), so not zero times.
#[must_use = "dropping a request in flight ends it as a client that has gone"]
#[derive(Debug)]
pub(crate) struct InFlight {
    id: RequestId,
    desk: Arc<Desk>,
    letters: Inbox,
    ended: bool,
    engine: EnginePart,
}

/// Who reports what the engine does with a request.
#[derive(Clone, Copy, Debug)]
enum EnginePart {
    /// The engine itself, which is in this process.
    ItsOwn,
    /// Whoever holds the request, since its engine is in another process; so far it has been given
    /// this, of which so much output has been reported.
    Ours { usage: Usage, reported: Tokens },
    /// It has been reported.
    Ended,
}

impl InFlight {
    pub(crate) fn new(id: RequestId, desk: Arc<Desk>, letters: Inbox) -> Self {
        Self {
            id,
            desk,
            letters,
            ended: false,
            engine: EnginePart::ItsOwn,
        }
    }

    /// The same for a request whose engine is in another process: for it exactly one
    /// [`Event::EngineEnded`] is reported too, before or with the client's end.
    pub(crate) fn reporting_engine(mut self) -> Self {
        let (usage, reported) = (Usage::default(), Tokens::ZERO);
        self.engine = EnginePart::Ours { usage, reported };
        self
    }

    /// An engine in another process has been given it, the first or another one.
    pub(crate) fn given(&mut self) {
        if let EnginePart::Ended = self.engine {
            let (usage, reported) = (Usage::default(), Tokens::ZERO);
            self.engine = EnginePart::Ours { usage, reported };
        }
    }

    /// A part of the answer of an engine in another process is on its way to the client.
    pub(crate) fn begun(&mut self) {
        self.desk.submit(Event::Begun { id: self.id });
    }

    /// An engine in another process is full, and says until when.
    pub(crate) fn full(&mut self, replica: ReplicaId, wait: Option<Micros>) {
        self.desk.submit(Event::ReplicaFull { replica, wait });
    }

    /// Notes what an engine in another process has given so far.
    pub(crate) fn note(&mut self, so_far: Usage) {
        if let EnginePart::Ours { usage, .. } = &mut self.engine {
            *usage = so_far;
        }
    }

    /// Reports the output that was noted and has not been reported.
    pub(crate) fn report(&mut self) {
        if let EnginePart::Ours { usage, reported } = &mut self.engine {
            let output = usage.output - *reported;
            *reported = usage.output;
            let (id, prompt) = (self.id, Tokens::ZERO);
            self.desk
                .submit(Event::Streamed(Served { id, prompt, output }));
        }
    }

    /// An engine in another process is done with it.
    pub(crate) fn engine_ended(&mut self, ending: EngineEnding, usage: Usage, counted: Counted) {
        let EnginePart::Ours { reported, .. } = self.engine else {
            return;
        };
        self.engine = EnginePart::Ended;
        let id = self.id;
        let served = Served {
            id,
            prompt: usage.prompt - usage.cached,
            output: usage.output - reported,
        };
        let reckoned = (counted == Counted::Roughly).then_some(Event::Reckoned { id });
        let events = [Some(Event::Streamed(served)), reckoned];
        let ended = Event::EngineEnded { id, ending, usage };
        self.desk
            .submit_all(events.into_iter().flatten().chain([ended]));
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    pub(crate) fn letters(&self) -> &Inbox {
        &self.letters
    }

    /// All that the client gets has been handed over, whether an answer or an error; `first` where
    /// its first token went with the last.
    pub(crate) fn delivered(mut self, first: Option<RequestId>) {
        self.end(ClientEnding::Delivered, first);
    }

    fn end(&mut self, ending: ClientEnding, first: Option<RequestId>) {
        if !self.ended {
            self.ended = true;
            let ended = Event::ClientEnded {
                id: self.id,
                ending,
            };
            let first = first.map(|id| Event::FirstToken { id });
            self.desk.submit_all(first.into_iter().chain([ended]));
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let EnginePart::Ours { usage, .. } = self.engine {
            self.engine_ended(EngineEnding::Cancelled, usage, Counted::Roughly);
        }
        let panicked = std::thread::panicking();
        let ending = if panicked {
            ClientEnding::Panicked
        } else {
            ClientEnding::Gone
        };
        self.end(ending, None);
    }
}
