//! What is kept of promises beside the metrics: the trace of decisions, and what was learned, on a
//! thread of its own, so that no request waits for the disk; and on another the models that are
//! fitted.
//!
//! It writes down and decides nothing. Lines for which there is no room in memory are counted and
//! lost: a trace is worth less than an answer.

mod fitter;
mod line;
mod state;
mod trace;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_policy::gateway::{Event, Fit, Learned};
use tollgate_policy::ids::ModelId;
use tollgate_policy::slo::Learner;
use tollgate_policy::units::{Micros, Time};

use self::fitter::Fitter;
pub use self::line::COLUMNS;
pub(crate) use self::line::Line;
pub use self::state::{Provenance, StateError};
use self::trace::Trace;
use crate::config::{Config, ModelConfig};
use crate::desk::Desk;

/// Lines that wait for the disk.
const LINES_MAX: usize = 8_192;

/// How often what was learned is written down.
const EVERY: Micros = Micros::from_secs(60);

/// How long a line waits in memory while no others come.
const FLUSH: Duration = Duration::from_secs(1);

/// The folder in a data folder.
const FOLDER: &str = "admission";

/// The files of a data folder's decision trace, the oldest first.
///
/// # Errors
/// What the system says of the folder.
pub fn trace_files(data_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    trace::files(&data_dir.join(FOLDER))
}

/// The way to the thread that writes.
#[derive(Debug)]
pub(crate) struct Promises {
    words: SyncSender<Word>,
    ear: Mutex<Option<Receiver<Word>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lost: AtomicU64,
    fitter: Fitter,
}

/// What the thread is told.
#[derive(Debug)]
enum Word {
    Line(Box<Line>),
    Stop,
}

impl Promises {
    pub(crate) fn new() -> Self {
        let (words, ear) = sync_channel(LINES_MAX);
        Self {
            words,
            ear: Mutex::new(Some(ear)),
            thread: Mutex::new(None),
            lost: AtomicU64::new(0),
            fitter: Fitter::new(),
        }
    }

    /// Has a line written, if there is room for it.
    pub(crate) fn write(&self, line: Line) {
        match self.words.try_send(Word::Line(Box::new(line))) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Has a model fitted.
    pub(crate) fn fit(&self, fit: Box<Fit>) {
        self.fitter.order(fit);
    }

    /// Lines that were lost for want of room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes on what was learned before, and begins to write.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn begin(&self, desk: &Arc<Desk>, config: &Config) -> std::io::Result<()> {
        let Some(ear) = held(&self.ear).take() else {
            return Ok(());
        };
        let folder = config.data_dir.join(FOLDER);
        let promising: Vec<_> = (0..)
            .map(ModelId::new)
            .zip(config.models.list())
            .filter(|(_, model)| !model.target.slo.is_off())
            .map(|(id, model)| (id, model.clone()))
            .collect();
        if promising.is_empty() {
            return Ok(());
        }
        if config.admission.state {
            for (id, model) in &promising {
                recall(desk, (*id, model), &folder);
            }
        }
        let learns = |model: &ModelConfig| model.target.slo.learner() == Learner::Learned;
        if promising.iter().any(|(_, model)| learns(model)) {
            self.fitter.begin(desk)?;
        }
        let mut scribe = Scribe {
            desk: Arc::downgrade(desk),
            trace: config.admission.trace.map(|most| Trace::new(&folder, most)),
            models: promising,
            keeps_state: config.admission.state,
            folder,
            written: Time::START,
        };
        let thread = std::thread::Builder::new().name("admission".to_owned());
        let thread = thread.spawn(move || scribe.run(&ear))?;
        *held(&self.thread) = Some(thread);
        Ok(())
    }

    /// Writes what is left, and ends. Blocks until it has.
    pub(crate) fn stop(&self) {
        self.fitter.stop();
        let Some(thread) = held(&self.thread).take() else {
            return;
        };
        // Err: it has ended.
        let _ = self.words.send(Word::Stop);
        if thread.join().is_err() {
            tracing::error!("the thread that writes decisions panicked");
        }
    }
}

/// The thread that writes.
struct Scribe {
    desk: Weak<Desk>,
    trace: Option<Trace>,
    /// Those that promise something.
    models: Vec<(ModelId, ModelConfig)>,
    keeps_state: bool,
    folder: PathBuf,
    /// When what was learned was last written down.
    written: Time,
}

impl Scribe {
    fn run(&mut self, ear: &Receiver<Word>) {
        loop {
            match ear.recv_timeout(FLUSH) {
                Ok(Word::Line(line)) => self.write(&line),
                Err(RecvTimeoutError::Timeout) => self.flush(),
                Ok(Word::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.learn(EVERY);
        }
        self.flush();
        self.learn(Micros::ZERO);
    }

    fn write(&mut self, line: &Line) {
        if let Some(trace) = &mut self.trace {
            let failed = trace.write(line).err();
            self.give_up(failed);
        }
    }

    fn flush(&mut self) {
        let failed = self.trace.as_mut().and_then(|trace| trace.flush().err());
        self.give_up(failed);
    }

    /// A trace that can't be written is given up, once and aloud.
    fn give_up(&mut self, failed: Option<std::io::Error>) {
        if let Some(error) = failed {
            let folder = self.folder.display();
            tracing::warn!(%error, "decisions are no longer written to {folder}");
            self.trace = None;
        }
    }

    /// Writes down what was learned, if it is as long ago.
    fn learn(&mut self, every: Micros) {
        let Some(desk) = self.desk.upgrade().filter(|_| self.keeps_state) else {
            return;
        };
        let now = desk.clock().now();
        if now.since(self.written) < every {
            return;
        }
        self.written = now;
        for (id, model) in &self.models {
            let Some(state) = desk.learned(*id) else {
                continue;
            };
            let at = desk.clock().unix_micros(now) / 1_000_000;
            let provenance = Provenance::of(model, at);
            if let Err(error) = state::write(&self.folder, &provenance, &state) {
                let name = &model.name;
                tracing::warn!(%error, "what was learned of {name}'s latency is not written down");
            }
        }
    }
}

/// Takes on what another gateway learned of a model, where it is of the same engine and machine.
fn recall(desk: &Desk, (id, model): (ModelId, &ModelConfig), folder: &Path) {
    let now = desk.clock().unix_micros(desk.clock().now()) / 1_000_000;
    let name = &model.name;
    match state::read(folder, &Provenance::of(model, now)) {
        Ok(Some(state)) => {
            let learned = Learned::State(Box::new(state));
            desk.submit(Event::Recalled { model: id, learned });
            tracing::info!("what was learned of {name}'s latency is taken on");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(
                %error,
                "what was learned of {name}'s latency is not taken on; bounds are wide at first"
            );
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
