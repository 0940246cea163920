//! The thread that reads the store: sees who may call, says what has been spent, and hands over
//! answers that are kept for repeats.
//!
//! No request waits for it. While the store is away, all goes on as it was known last, and what is
//! served meanwhile waits in the journal.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_policy::budget::{Allowance, Payer, Tariff};
use tollgate_policy::gateway::Event;
use tollgate_policy::price::Price;
use tollgate_policy::units::{Micros, NanoUsd, Time};

use crate::app::App;
use crate::desk::past;
use crate::journal::record::Ended;
use crate::members::membership::Budgeted;
use crate::store::{PriceRow, Replay, Scope, Store, StoreError};

/// How often the store is looked at: a key that was revoked elsewhere is refused well within a
/// second.
const TICK: Duration = Duration::from_millis(250);

/// How long the store is left alone after it could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// How often spending is read back, which is how gateways that share a store learn of each other's.
const SPENDING_EVERY: Micros = Micros::from_secs(5);

/// How long an answer to an idempotent request is kept: a day.
pub(crate) const REPLAY_US: u64 = 86_400_000_000;

/// What the clerk is told.
#[derive(Debug)]
enum Word {
    /// Tenants, keys, budgets or prices are others than before.
    Changed,
    /// An answer to be kept.
    Keep(Box<Replay>),
    /// All has been served.
    Stop,
}

/// The near end.
#[derive(Debug)]
pub(crate) struct Clerk {
    words: Sender<Word>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Where the clerk hears what it is told.
#[derive(Debug)]
pub(crate) struct Ear(Receiver<Word>);

impl Clerk {
    /// A clerk that has not begun.
    pub(crate) fn new() -> (Self, Ear) {
        let (words, ear) = channel();
        let thread = Mutex::new(None);
        (Self { words, thread }, Ear(ear))
    }

    /// Begins. `recent` is what ended lately before this process began.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub(crate) fn begin(
        &self,
        ear: Ear,
        store: Store,
        recent: Vec<Ended>,
        app: &Arc<App>,
    ) -> std::io::Result<()> {
        let mut work = Work {
            app: Arc::downgrade(app),
            store,
            recent,
            generation: None,
            replays: Waiting::default(),
            priced: None,
            away: false,
        };
        let thread = std::thread::Builder::new().name("store".to_owned());
        let thread = thread.spawn(move || work.run(&ear.0))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Has the store looked at now.
    pub(crate) fn changed(&self) {
        // Err: it has stopped.
        let _ = self.words.send(Word::Changed);
    }

    /// Has an answer kept.
    pub(crate) fn keep(&self, replay: Replay) {
        let _ = self.words.send(Word::Keep(Box::new(replay)));
    }

    /// Hands over what is left, and ends. Blocks until it has.
    pub(crate) fn stop(&self) {
        let _ = self.words.send(Word::Stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread panicked");
        }
    }
}

/// What the clerk knows.
struct Work {
    app: Weak<App>,
    store: Store,
    /// What ended lately before this process began, until it is known whose limits it bears on.
    recent: Vec<Ended>,
    generation: Option<i64>,
    /// Answers that the store does not have yet.
    replays: Waiting,
    /// When spending was last read back.
    priced: Option<Time>,
    /// Whether the store could not be reached, and the log says so.
    away: bool,
}

impl Work {
    fn run(&mut self, ear: &Receiver<Word>) {
        loop {
            let pause = if self.away { PAUSE } else { TICK };
            let mut stop = false;
            match ear.recv_timeout(pause) {
                Ok(word) => {
                    for word in std::iter::once(word).chain(ear.try_iter()) {
                        stop |= self.hear(word);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let Some(app) = self.app.upgrade() else {
                return;
            };
            let tended = self.look(&app).and_then(|()| self.keep_replays());
            self.report(tended, &app);
            if stop {
                return;
            }
        }
    }

    /// Whether it is to stop.
    fn hear(&mut self, word: Word) -> bool {
        match word {
            Word::Changed => {
                self.generation = None;
                self.priced = None;
                false
            }
            Word::Keep(replay) => {
                self.replays.push(*replay);
                false
            }
            Word::Stop => true,
        }
    }

    fn keep_replays(&mut self) -> Result<(), StoreError> {
        while let Some(replay) = self.replays.first() {
            match self.store.keep_replay(replay) {
                Ok(()) => {}
                // It would say no again; a repeat is made anew then.
                Err(error @ StoreError::Refused { .. }) => {
                    tracing::error!(%error, "an answer is not kept for repeats");
                }
                Err(error) => return Err(error),
            }
            self.replays.done();
        }
        Ok(())
    }

    /// Sees who may call, and what has been spent.
    fn look(&mut self, app: &App) -> Result<(), StoreError> {
        let generation = self.store.generation()?;
        if self.generation != Some(generation) {
            let directory = self.store.directory()?;
            let first = !app.membership.knows_the_store();
            app.membership.enlist(app, Some(directory));
            if first {
                let is_new = |ended: &Ended| !app.membership.is_configured(&ended.tenant);
                self.recent.retain(is_new);
                past::remember(&app.desk, &self.recent, app.membership.weights());
            }
            self.recent = Vec::new();
            self.generation = Some(generation);
            self.priced = None;
        }
        let now = app.desk.clock().now();
        let due = |last: Time| now.since(last) >= SPENDING_EVERY;
        if self.priced.is_none_or(due) {
            let tariff = tariff(app, |scope, since| self.store.spent(scope, since))?;
            app.desk.submit(Event::Priced(Box::new(tariff)));
            self.priced = Some(now);
        }
        Ok(())
    }

    /// Says once that the store is away, and once that it is back.
    fn report(&mut self, tended: Result<(), StoreError>, app: &App) {
        let metrics = app.desk.books().metrics().ledger();
        match tended {
            Ok(()) => {
                metrics.store_tended(self.replays.bytes);
                if self.away {
                    tracing::info!("the store is back");
                    self.away = false;
                }
            }
            Err(error) => {
                metrics.store_failed(self.replays.bytes);
                if !self.away {
                    tracing::error!(
                        %error,
                        "the store can't be read; requests go on, by what was known last"
                    );
                    self.away = true;
                }
            }
        }
    }
}

/// Answers that wait for a store that is away; past a bound the oldest go.
#[derive(Debug, Default)]
struct Waiting {
    replays: VecDeque<Replay>,
    bytes: usize,
}

impl Waiting {
    /// Bytes of answers that wait at most.
    const BYTES_MAX: usize = 64 << 20;

    fn push(&mut self, replay: Replay) {
        self.bytes += replay.body.len();
        self.replays.push_back(replay);
        while self.bytes > Self::BYTES_MAX {
            self.done();
        }
    }

    fn first(&self) -> Option<&Replay> {
        self.replays.front()
    }

    fn done(&mut self) {
        if let Some(replay) = self.replays.pop_front() {
            self.bytes -= replay.body.len();
        }
    }
}

/// Prices and budgets as of now. `spent` says what the ledger says was spent since a moment.
pub(crate) fn tariff<E>(
    app: &App,
    mut spent: impl FnMut(&Scope<'_>, u64) -> Result<u64, E>,
) -> Result<Tariff, E> {
    let clock = app.desk.clock();
    let now_us = clock.unix_micros(clock.now());
    let (prices, budgets) = app.membership.money(app);
    let of_model = |name: &str| price_at(&prices, name, now_us);
    let mut allowances = Vec::new();
    for budgeted in &budgets {
        allowances.push(allowance(&mut spent, app, budgeted, now_us)?);
    }
    Ok(Tariff {
        prices: app
            .models
            .iter()
            .map(|model| of_model(&model.name))
            .collect(),
        allowances,
    })
}

fn allowance<E>(
    spent: &mut impl FnMut(&Scope<'_>, u64) -> Result<u64, E>,
    app: &App,
    budgeted: &Budgeted,
    now_us: u64,
) -> Result<Allowance, E> {
    let window = budgeted.budget.window(now_us);
    let scope = match budgeted.payer {
        Payer::Tenant(_) => Scope::Tenant(&budgeted.name),
        Payer::Key(_) => Scope::Key(&budgeted.name),
    };
    Ok(Allowance {
        payer: budgeted.payer,
        limit: budgeted.budget.limit,
        window: window.starts_us,
        ends: app.desk.clock().at_unix(window.ends_us),
        spent: NanoUsd::new(spent(&scope, window.starts_us)?),
    })
}

fn price_at(prices: &[PriceRow], model: &str, at_us: u64) -> Price {
    let holds = prices
        .iter()
        .filter(|row| row.model == model && row.from_us <= at_us);
    let last = holds.max_by_key(|row| row.from_us);
    last.map_or(Price::FREE, |row| row.price)
}

/// A connection to the store for handlers, which wait for it off the threads that serve.
#[derive(Clone, Debug)]
pub(crate) struct SharedStore {
    store: Arc<Mutex<Store>>,
    /// How many wait for it, or have it.
    waiting: Arc<AtomicUsize>,
}

/// Threads that may wait for one connection: a store that hangs must not take all there are.
const WAITING_MAX: usize = 64;

impl SharedStore {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store: Arc::new(Mutex::new(store)),
            waiting: Arc::default(),
        }
    }

    /// Does `work` with the store, if not too many wait for it already.
    pub(crate) async fn ask_unless_busy<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Option<T> {
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return None;
        }
        Some(self.ask(work).await)
    }

    /// Does `work` with the store.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> T {
        let (store, waiting) = (Arc::clone(&self.store), Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::Relaxed);
        let asked = tokio::task::spawn_blocking(move || {
            let done = work(&mut store.lock().unwrap_or_else(PoisonError::into_inner));
            waiting.fetch_sub(1, Ordering::Relaxed);
            done
        });
        match asked.await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
