//! The emulated engine in real time: a thread that wakes it when it is due and passes on what it
//! has to tell.
//!
//! A thread of its own, since its steps are shorter than what a runtime's timers can tell apart.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use tollgate_policy::ids::RequestId;
use tollgate_policy::units::{Micros, Time};
use tollgate_sim::emulated::{
    Config, Counters, Effect, Emulated, Event, Gauges, Refused, Request, Used,
};

use crate::clock::Clock;

use super::EngineError;
use super::seen::Made;

/// What a connection hears of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// One more token.
    Token,
    /// That was the last one.
    Ended(Used),
    /// It was not let in.
    Refused(Refused),
}

/// Who hears of a request, and where its tokens are counted.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) letters: UnboundedSender<Letter>,
    pub(super) made: Made,
}

enum Order {
    Ask(Request, Reader),
    Leave(RequestId),
    Cost(u64),
}

/// The thread, and what it last told of itself.
#[derive(Debug)]
pub(super) struct Machine {
    orders: Sender<Order>,
    shown: Arc<Mutex<(Gauges, Counters)>>,
}

impl Machine {
    /// Starts the thread; it ends when this is dropped.
    pub(super) fn start(config: Config, clock: Clock) -> Result<Self, EngineError> {
        let engine = Emulated::new(config)?;
        let (orders, received) = channel();
        let shown = Arc::new(Mutex::new((engine.gauges(), *engine.counters())));
        let worker = Worker {
            engine,
            clock,
            last: Time::START,
            received,
            readers: BTreeMap::new(),
            shown: Arc::clone(&shown),
        };
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || worker.run())
            .map_err(EngineError::Thread)?;
        Ok(Self { orders, shown })
    }

    /// Asks; what becomes of it comes as letters.
    pub(super) fn ask(&self, request: Request, reader: Reader) {
        self.send(Order::Ask(request, reader));
    }

    /// Says that the client of this request has gone.
    pub(super) fn leave(&self, id: RequestId) {
        self.send(Order::Leave(id));
    }

    /// Makes steps cost so many per cent of what they do by themselves.
    pub(super) fn change_cost(&self, percent: u64) {
        self.send(Order::Cost(percent));
    }

    /// What it holds and has done.
    pub(super) fn shown(&self) -> (Gauges, Counters) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, order: Order) {
        // Err: the thread is gone, which only a bug in the engine does; its letters end too.
        let _ = self.orders.send(order);
    }
}

/// How late a step may be noticed and still count as ended when it was due. Past it the machine
/// stood still, and so did the engine.
const LATE_MAX: Micros = Micros::from_millis(20);

struct Worker {
    engine: Emulated,
    clock: Clock,
    /// Of the event before: time never goes back.
    last: Time,
    received: Receiver<Order>,
    readers: BTreeMap<RequestId, Reader>,
    shown: Arc<Mutex<(Gauges, Counters)>>,
}

impl Worker {
    fn run(mut self) {
        loop {
            // A step that is due goes first, or those who ask could keep it from ending.
            let order = match self.engine.next_wake().map(|at| self.clock.until(at)) {
                Some(wait) if wait.is_zero() => Err(RecvTimeoutError::Timeout),
                Some(wait) => self.received.recv_timeout(wait),
                None => self
                    .received
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            let event = match order {
                Ok(Order::Ask(request, reader)) => {
                    self.readers.insert(request.id, reader);
                    Event::Arrived(request)
                }
                Ok(Order::Leave(id)) => Event::Cancelled(id),
                Ok(Order::Cost(percent)) => Event::CostChanged { percent },
                Err(RecvTimeoutError::Timeout) => Event::Wake,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.last = self.time_of(&event);
            self.engine.handle(event, self.last);
            while let Some(effect) = self.engine.poll_effect() {
                self.deliver(effect);
            }
            let shown = (self.engine.gauges(), *self.engine.counters());
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        }
    }

    /// When an event counts as having come. A step ends when it is due, although it is noticed some
    /// time after that: or all those times would add up, and the engine be slower than it says.
    fn time_of(&self, event: &Event) -> Time {
        let now = self.clock.now();
        let due = match event {
            Event::Wake => self.engine.next_wake(),
            Event::Arrived(_) | Event::Cancelled(_) | Event::CostChanged { .. } => None,
        };
        let due = due.filter(|due| now.since(*due) <= LATE_MAX);
        due.unwrap_or(now).max(self.last)
    }

    // Err of a letter: the connection is gone, and says so by an order of its own.
    fn deliver(&mut self, effect: Effect) {
        match effect {
            Effect::Stepped { served } => {
                for one in served.iter().filter(|one| one.output.get() > 0) {
                    if let Some(reader) = self.readers.get(&one.id) {
                        reader.made.add(one.output.get());
                        let _ = reader.letters.send(Letter::Token);
                    }
                }
            }
            Effect::Ended { id, used } => {
                if let Some(reader) = self.readers.remove(&id) {
                    let _ = reader.letters.send(Letter::Ended(used));
                }
            }
            Effect::Refused { id, why } => {
                if let Some(reader) = self.readers.remove(&id) {
                    let _ = reader.letters.send(Letter::Refused(why));
                }
            }
            Effect::Cancelled { id, .. } => {
                self.readers.remove(&id);
            }
            Effect::Started { .. } | Effect::Preempted { .. } => {}
        }
    }
}
