//! The handle of a running engine. It only passes on: nothing here waits for a step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tollgate_policy::engine::{self, Config, ConfigError};
use tollgate_policy::ids::RequestId;

use crate::backend::{Open, OpenError};
use crate::job::{Job, Observer, Token};
use crate::worker::Worker;

/// What an engine is made of, besides its backend.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The name of its thread.
    pub name: String,
    /// What bounds it.
    pub limits: Config,
    /// Where the seeds of requests come from that name none.
    pub seed: u64,
    /// Prefixes that all tenants may share.
    pub published: Vec<Vec<Token>>,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its bounds leave nothing to run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gave no thread.
    #[error("no thread for the engine: {0}")]
    Thread(#[from] std::io::Error),
    /// The backend could not be built.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Building the backend panicked.
    #[error("building the backend panicked: {0}")]
    Panicked(String),
}

/// The levels of an engine, as of its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// What the scheduler holds.
    pub held: engine::Gauges,
    /// Steps taken since the start.
    pub steps: u64,
}

/// How far the thread is: what may be in its hands never longer than a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rounds begun: what was told taken in, and a step made.
    pub begun: u64,
    /// Rounds ended; all that were begun while it waits to be told something.
    pub ended: u64,
}

impl Progress {
    /// Whether it is inside a round.
    pub const fn is_busy(self) -> bool {
        self.begun > self.ended
    }
}

/// The same, as two threads share it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Pulse {
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Progress {
        // The later one first: a round that ends between the two looks ended.
        let begun = self.begun.load(Ordering::Relaxed);
        Progress {
            ended: self.ended.load(Ordering::Relaxed).min(begun),
            begun,
        }
    }
}

/// What the thread is told.
pub(crate) enum Command {
    Start(Box<Job>),
    Cancel(RequestId),
    Stop,
}

/// A running engine. Dropping it ends its requests and its thread; [`Self::stop`] waits for that
/// too.
#[derive(Debug)]
pub struct Engine {
    gate: Arc<Gate>,
    gauges: Arc<Mutex<Gauges>>,
    pulse: Arc<Pulse>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the engine's one thread, has it build the backend, and waits until that is done or
    /// failed.
    ///
    /// # Errors
    ///
    /// [`StartError`]; `observer` was not called then.
    pub fn start(
        spec: Spec,
        backend: Box<dyn Open>,
        observer: Box<dyn Observer>,
    ) -> Result<Self, StartError> {
        let mut scheduler = engine::Engine::new(spec.limits)?;
        for prefix in spec.published {
            scheduler.publish(prefix);
        }
        let (sender, inbox) = mpsc::channel();
        let gate = Arc::new(Gate(Mutex::new(Some(sender))));
        let gauges = Arc::new(Mutex::new(Gauges::default()));
        let pulse = Arc::new(Pulse::default());
        let shared = (Arc::clone(&gauges), Arc::clone(&pulse));
        let worker = Worker::new(scheduler, observer, shared, spec.seed);
        let (ready, is_ready) = mpsc::sync_channel(1);
        let closing = Arc::clone(&gate);
        let run = move || run(worker, &closing, &inbox, backend, &ready);
        let thread = thread::Builder::new().name(spec.name).spawn(run)?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Self {
                gate,
                gauges,
                pulse,
                thread: Mutex::new(Some(thread)),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StartError::Panicked("the thread ended".into())),
        }
    }

    /// Hands over a request; its output learns the rest.
    ///
    /// # Errors
    ///
    /// Gives the job back when the engine is gone. Its output was not called then.
    pub fn submit(&self, job: Job) -> Result<(), Box<Job>> {
        match self.gate.send(Command::Start(Box::new(job))) {
            Ok(()) | Err(Command::Cancel(_) | Command::Stop) => Ok(()),
            Err(Command::Start(job)) => Err(job),
        }
    }

    /// Ends a request before the next step, wherever it is. One that ended already is left alone.
    pub fn cancel(&self, id: RequestId) {
        // Err: the engine is gone, and with it the request.
        let _ = self.gate.send(Command::Cancel(id));
    }

    /// The levels as of the last step. Those of a request that ended were let go before its output
    /// learned the end.
    pub fn gauges(&self) -> Gauges {
        *lock(&self.gauges)
    }

    /// How far its thread is.
    pub fn progress(&self) -> Progress {
        self.pulse.read()
    }

    /// Tells the engine to end once it comes back from the step it is in, without waiting for that.
    pub fn give_up(&self) {
        let _ = self.gate.send(Command::Stop);
        self.gate.close();
    }

    /// Whether its thread has ended.
    pub fn is_over(&self) -> bool {
        let thread = lock(&self.thread);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the engine and waits for its thread. Requests that still run end as failed. Not for the
    /// engine's own thread, that is, not from within an output or an observer.
    pub fn stop(&self) {
        let _ = self.gate.send(Command::Stop);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // Err: it panicked past every guard, and has said so on stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.gate.send(Command::Stop);
    }
}

/// The way to the thread, which the thread can close: after that no command is lost on the way.
#[derive(Debug)]
struct Gate(Mutex<Option<Sender<Command>>>);

impl Gate {
    fn send(&self, command: Command) -> Result<(), Command> {
        // Unbounded, yet bounded: a start for each request that the gateway's window lets out, and
        // a cancel for each.
        match lock(&self.0).as_ref() {
            Some(sender) => sender.send(command).map_err(|error| error.0),
            None => Err(command),
        }
    }

    fn close(&self) {
        lock(&self.0).take();
    }
}

/// The thread, from its start to its end.
fn run(
    mut worker: Worker,
    gate: &Gate,
    inbox: &Receiver<Command>,
    backend: Box<dyn Open>,
    ready: &SyncSender<Result<(), StartError>>,
) {
    let mut ran = None;
    let opened = guarded(|| {
        backend.open(&mut |backend| {
            // Err: whoever started this thread is gone; then the inbox is closed as well.
            let _ = ready.send(Ok(()));
            ran = Some(guarded(|| worker.run(backend, inbox)));
        })
    });
    let why = match (ran, opened) {
        (None, Err(panic)) => {
            let _ = ready.send(Err(StartError::Panicked(panic)));
            return;
        }
        (None, Ok(Err(error))) => {
            let _ = ready.send(Err(error.into()));
            return;
        }
        (None, Ok(Ok(()))) => return,
        (Some(Err(panic)), _) => Some(format!("the engine panicked: {panic}")),
        (Some(Ok(Err(fatal))), _) => Some(fatal.to_string()),
        // A backend that fails or panics while it is taken down has served its requests.
        (Some(Ok(Ok(()))), _) => None,
    };
    gate.close();
    worker.end_all(inbox.try_iter());
    if let Some(why) = why {
        worker.died(why);
    }
}

/// What `work` returns, or what it said when it panicked.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|panic| {
        match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(said), _) => said.clone(),
            (None, Some(said)) => (*said).to_owned(),
            (None, None) => "without a message".to_owned(),
        }
    })
}

/// Locks what is whole after every statement that changes it, so a panic elsewhere is no reason to
/// stop.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
