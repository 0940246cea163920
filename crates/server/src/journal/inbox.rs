//! Where records wait for the disk: handed in by whoever has one, taken out by the writer, a batch
//! at a time.
//!
//! Handing in never waits for anything but the lock, and nothing slow happens under that. What
//! there is no room for goes to the log, whole, at error level: it is not lost, and nobody can
//! overlook it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::record::Record;

/// Records that may wait for the disk: some seconds of the busiest gateway, some 30 MB. While the
/// disk fails and new work is refused, only what is in flight can still come, and that is less.
const WAITING_MAX: usize = 65_536;

/// How often the writer looks whether its file is still there, while nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Records on their way to the disk.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<Waiting>,
    changed: Condvar,
    /// Ends that went to the log.
    spilled: AtomicU64,
    /// Batches that reached the disk.
    batches: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<Record>,
    /// Records that the writer has taken and not yet written.
    taken: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Writing,
    /// The disk takes nothing. Marks are not kept then: a later one, or the end, says more.
    Failing,
    Closed,
}

/// What the writer is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Write what it has been given.
    Write,
    /// Look whether its file is still there.
    Look,
    /// Write what it has been given, once more if need be, and end.
    End,
}

impl Inbox {
    /// Hands in a record.
    pub(super) fn append(&self, record: Record) {
        let mut waiting = self.lock();
        let full = waiting.records.len() + waiting.taken >= WAITING_MAX;
        let is_mark = matches!(record, Record::Mark(_));
        if is_mark && (full || waiting.stage != Stage::Writing) {
            return;
        }
        if full || waiting.stage == Stage::Closed {
            drop(waiting);
            return self.spill(&record, "too many records wait for the disk");
        }
        waiting.records.push(record);
        let first = waiting.records.len() == 1;
        drop(waiting);
        if first {
            self.changed.notify_one();
        }
    }

    /// Waits for records, and for more of them for as long as `gather`; then takes them all.
    pub(super) fn take(&self, into: &mut Vec<Record>, gather: Duration) -> Wanted {
        let mut waiting = self.lock();
        if waiting.stage == Stage::Writing {
            let nothing = |waiting: &mut Waiting| {
                waiting.records.is_empty() && waiting.stage != Stage::Closed
            };
            let waited = self
                .changed
                .wait_timeout_while(waiting, LOOK_EVERY, nothing);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
            if waiting.records.is_empty() && waiting.stage != Stage::Closed {
                return Wanted::Look;
            }
        }
        let open = |waiting: &mut Waiting| waiting.stage != Stage::Closed;
        let waited = self.changed.wait_timeout_while(waiting, gather, open);
        waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        into.append(&mut waiting.records);
        waiting.taken = into.len();
        if waiting.stage == Stage::Closed {
            Wanted::End
        } else {
            Wanted::Write
        }
    }

    /// All that was taken is on disk.
    pub(super) fn written(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.enter(Stage::Writing).taken = 0;
    }

    /// The disk took nothing of it.
    pub(super) fn failed(&self) {
        drop(self.enter(Stage::Failing));
    }

    /// No more is taken in.
    pub(super) fn close(&self) {
        self.lock().stage = Stage::Closed;
        self.changed.notify_all();
    }

    fn enter(&self, stage: Stage) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.lock();
        if waiting.stage != Stage::Closed {
            waiting.stage = stage;
        }
        waiting
    }

    /// Puts a record into the log.
    pub(super) fn spill(&self, record: &Record, why: &str) {
        let Record::Ended(ended) = record else {
            return;
        };
        self.spilled.fetch_add(1, Ordering::Relaxed);
        let line = serde_json::to_string(ended).unwrap_or_else(|_| format!("{ended:?}"));
        tracing::error!(target: "tollgate::ledger", why, line, "not in the ledger");
    }

    /// Ends that are in the log instead.
    pub(super) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Records that are not on disk yet.
    pub(super) fn waiting(&self) -> usize {
        let waiting = self.lock();
        waiting.records.len() + waiting.taken
    }

    /// Batches that have reached the disk.
    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
