//! A request that has arrived, as its handler holds it.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;
use tollgate_engine::Delta;
use tollgate_policy::gateway::{Dispatch, Event, Refusal};
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::{EngineEnding, FinishReason, Outcome};
use tollgate_policy::request::ClientEnding;
use tollgate_policy::usage::Usage;

use crate::desk::Desk;

/// What a handler is told of its request, in order.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A replica has it.
    Dispatched(Dispatch),
    /// It is not served. The last letter.
    Refused(Refusal),
    /// A piece of its answer.
    Delta(Delta),
    /// One of its choices is over.
    Finished(u32, FinishReason),
    /// The engine is done with it. The last letter.
    Ended(EngineEnding, Usage),
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
    letters: Receiver<Letter>,
    ended: bool,
}

impl InFlight {
    pub(crate) fn new(id: RequestId, desk: Arc<Desk>, letters: Receiver<Letter>) -> Self {
        Self {
            id,
            desk,
            letters,
            ended: false,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    pub(crate) fn letters(&mut self) -> &mut Receiver<Letter> {
        &mut self.letters
    }

    /// All that the client gets has been handed over, whether an answer or an error.
    pub(crate) fn delivered(mut self) {
        self.end(ClientEnding::Delivered);
    }

    fn end(&mut self, ending: ClientEnding) {
        if !self.ended {
            self.ended = true;
            self.desk.submit(Event::ClientEnded {
                id: self.id,
                ending,
            });
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let panicked = std::thread::panicking();
        self.end(if panicked {
            ClientEnding::Panicked
        } else {
            ClientEnding::Gone
        });
    }
}
