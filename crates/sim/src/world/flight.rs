//! A request between its client and its engine, as the world knows it.

use std::collections::BTreeMap;

use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{Micros, Time, Tokens};

use crate::client::Fate;
use crate::machine::Prompt;

/// What a client asks for, at its first try and at each further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Index of the tenant.
    pub(crate) tenant: usize,
    pub(crate) prompt: Prompt,
    /// How long the answer comes to be.
    pub(crate) output: Tokens,
    /// What the request says of that.
    pub(crate) output_max: Option<Tokens>,
    pub(crate) fate: Fate,
    /// When the first try was sent.
    pub(crate) sent: Time,
    /// Tries before this one.
    pub(crate) tried: u32,
    /// What follows its answer.
    pub(crate) session: Option<usize>,
}

/// One try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) ask: Ask,
    pub(crate) place: Place,
    /// Whether the client has been told of an end, or has left.
    pub(crate) client: Party,
    /// What was served of it, as the gateway heard it.
    pub(crate) prompt: Tokens,
    pub(crate) output: Tokens,
    pub(crate) dispatched: Option<Time>,
    pub(crate) first_token: Option<Time>,
    /// What a refusal said of coming back.
    pub(crate) told: Option<Option<Micros>>,
}

/// Where a try is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It waits, or was refused.
    Door,
    /// A replica has it.
    At(usize),
    /// The replica is done with it.
    Back,
}

/// Whether somebody still takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    There,
    /// It was told of its end, or took its answer.
    Done,
    /// It left.
    Gone,
}

impl Flight {
    pub(crate) const fn new(ask: Ask) -> Self {
        Self {
            ask,
            place: Place::Door,
            client: Party::There,
            prompt: Tokens::ZERO,
            output: Tokens::ZERO,
            dispatched: None,
            first_token: None,
            told: None,
        }
    }
}

/// The tries that are under way, by the request's number.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    open: BTreeMap<RequestId, Flight>,
    issued: u64,
}

impl Flights {
    pub(crate) fn open(&mut self, flight: Flight) -> RequestId {
        self.issued += 1;
        let id = RequestId::new(self.issued);
        self.open.insert(id, flight);
        id
    }

    pub(crate) fn close(&mut self, id: RequestId) -> Option<Flight> {
        self.open.remove(&id)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Flight> {
        self.open.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Flight> {
        self.open.get_mut(&id)
    }

    /// The tries under way, in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &Flight)> {
        self.open.iter().map(|(id, flight)| (*id, flight))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}

/// What makes a client leave of itself, without regard to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Nothing.
    Never,
    /// Time.
    After(Micros),
}

pub(crate) const fn leaving(ask: &Ask) -> Leaving {
    match ask.fate {
        Fate::LeavesAfter(span) => Leaving::After(span),
        Fate::Stays
        | Fate::LeavesAtDispatch
        | Fate::LeavesAt(_)
        | Fate::LeavesAtEnd
        | Fate::PanicsAt(_)
        | Fate::StopsReading => Leaving::Never,
    }
}
