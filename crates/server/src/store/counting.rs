//! The thread that counts what was served: the journal into the store, a batch at a time.
//!
//! Nobody waits for it, so it steps back behind the threads that serve where there is not enough of
//! a processor for all. A thread of its own, so that what is due at once, a key that was revoked
//! say, never waits for an hour's records.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_policy::units::{Micros, Time};

use crate::app::App;
use crate::journal::record::UnixMicros;
use crate::store::clerk::REPLAY_US;
use crate::store::folding::{FoldError, Folding};
use crate::store::{PriceRow, Store, StoreError};

/// How often it is looked whether there is more to count.
const TICK: Duration = Duration::from_millis(500);

/// How long the store is left alone after it could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// How often old rows are removed.
const PURGE_EVERY: Micros = Micros::from_secs(3_600);

/// Bytes of answers that are kept for repeats.
const REPLAY_BYTES_MAX: u64 = 1 << 30;

/// How long segments of the journal stay that have been counted: a week, for recounts.
const JOURNAL_KEPT_US: u64 = 7 * 86_400_000_000;

/// How far it steps back: with a processor that is wanted by others, some thirtieth of it is left.
const NICE: i32 = 15;

/// The near end.
#[derive(Debug)]
pub(crate) struct Counting {
    /// Dropped to stop it.
    going: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Counting {
    /// One that has not begun.
    pub(crate) fn new() -> Self {
        Self {
            going: Mutex::default(),
            thread: Mutex::default(),
        }
    }

    /// Begins.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub(crate) fn begin(
        &self,
        store: Store,
        folding: Folding,
        app: &Arc<App>,
    ) -> std::io::Result<()> {
        let (going, stopped) = channel();
        let mut work = Work {
            app: Arc::downgrade(app),
            store,
            folding,
            keep: app.membership.request_log(),
            prices: None,
            purged: None,
            failing: false,
        };
        let thread = std::thread::Builder::new().name("count".to_owned());
        let thread = thread.spawn(move || {
            // Err: the system does not let it, and then it is as important as the others.
            let _ = rustix::process::setpriority_process(None, NICE);
            work.run(&stopped);
        })?;
        *lock(&self.going) = Some(going);
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Counts what is left, and ends. Blocks until it has.
    pub(crate) fn stop(&self) {
        drop(lock(&self.going).take());
        let thread = lock(&self.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that counts panicked");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Work {
    app: Weak<App>,
    store: Store,
    folding: Folding,
    /// How long single requests are kept.
    keep: Micros,
    /// The prices that the store has of us.
    prices: Option<Vec<PriceRow>>,
    purged: Option<Time>,
    /// Whether something could not be done, and the log says so.
    failing: bool,
}

impl Work {
    fn run(&mut self, stopped: &Receiver<()>) {
        loop {
            let pause = if self.failing { PAUSE } else { TICK };
            let stop = match stopped.recv_timeout(pause) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            let Some(app) = self.app.upgrade() else {
                return;
            };
            let done = self.tend(&app);
            self.report(done);
            if stop {
                return;
            }
        }
    }

    fn tend(&mut self, app: &App) -> Result<(), FoldError> {
        self.price(app)?;
        self.count(app)?;
        self.purge(app)
    }

    /// Has the store know our prices, before anything is counted by them.
    fn price(&mut self, app: &App) -> Result<(), StoreError> {
        let (prices, _) = app.membership.money(app);
        if self.prices.as_ref() != Some(&prices) {
            let models: Vec<_> = app.models.iter().map(|model| model.name.clone()).collect();
            self.store.set_prices(&models, &prices)?;
            self.prices = Some(prices);
        }
        Ok(())
    }

    fn count(&mut self, app: &App) -> Result<(), FoldError> {
        let on_disk = *app.desk.books().journal().synced().borrow();
        self.folding.until(on_disk);
        self.folding.catch_up(&mut self.store)?;
        Ok(())
    }

    fn purge(&mut self, app: &App) -> Result<(), FoldError> {
        let clock = app.desk.clock();
        let now = clock.now();
        let due = |last: Time| now.since(last) >= PURGE_EVERY;
        if !self.purged.is_none_or(due) {
            return Ok(());
        }
        let now_us = clock.unix_micros(now);
        self.store
            .purge_requests(now_us.saturating_sub(self.keep.get()))?;
        let replays = now_us.saturating_sub(REPLAY_US);
        self.store.purge_replays(replays, REPLAY_BYTES_MAX)?;
        let before = UnixMicros::new(now_us.saturating_sub(JOURNAL_KEPT_US));
        self.folding.remove_counted(&mut self.store, before)?;
        self.purged = Some(now);
        Ok(())
    }

    /// Says once that nothing can be counted, and once that it can again.
    fn report(&mut self, done: Result<(), FoldError>) {
        match done {
            Ok(()) if self.failing => {
                tracing::info!("what was served is counted again");
                self.failing = false;
            }
            Err(error) if !self.failing => {
                tracing::error!(
                    %error,
                    "what is served can't be counted; it waits in the journal"
                );
                self.failing = true;
            }
            Ok(()) | Err(_) => {}
        }
    }
}
