//! The ledger's journal: what was served, written once, in segments of checksummed records.
//!
//! A record is handed in and reaches the disk within a bound, by a thread of its own: no request
//! waits for it. [`record`] says what is written, [`Reader`] reads it back, also while it is
//! written; [`verify`] recounts it and [`repair`] saves what damage left. Nothing here decides what
//! is charged.

mod disk;
mod error;
mod inbox;
mod lock;
mod reader;
pub mod record;
mod recovery;
mod removal;
mod repair;
mod segment;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

pub use self::error::JournalError;
use self::inbox::{Inbox, Wanted};
use self::lock::Lock;
use self::reader::Shelf;
pub use self::reader::{Entry, Reader};
use self::record::{Record, UnixMicros};
pub(crate) use self::recovery::Left;
use self::recovery::{Wish, recover};
pub use self::removal::remove_counted;
pub use self::repair::{Repaired, RepairedSegment, repair};
pub use self::segment::{BadHeader, JournalId, Position};
pub use self::verify::{Account, Fault, verify};
use self::writer::Writer;
use crate::clock::Clock;

/// How long after the disk refused a batch it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How a journal is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Within which time a record is on disk, while the disk does what disks do.
    pub(crate) sync: Duration,
    /// Bytes after which a segment is followed by the next.
    pub(crate) segment_max: u64,
}

/// Whether the disk takes what is handed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// It does.
    #[default]
    Writing,
    /// It does not, and says this.
    Failing(String),
}

/// The journal's near end.
#[derive(Debug)]
pub(crate) struct Journal {
    inbox: Arc<Inbox>,
    boot: u32,
    health: watch::Receiver<Health>,
    synced: watch::Receiver<Position>,
    /// Until it is closed.
    writing: Mutex<Option<(JoinHandle<()>, Lock)>>,
}

impl Journal {
    /// Opens the journal of a data folder, which is made if it is missing, and says what lives of
    /// the gateway before this one have left.
    ///
    /// # Errors
    /// [`JournalError`]; nothing was changed then.
    pub(crate) fn open(
        data_dir: &Path,
        settings: Settings,
        clock: Clock,
    ) -> Result<(Self, Left), JournalError> {
        let lock = Lock::take(data_dir)?;
        Self::open_on(Shelf::of(data_dir), lock, settings, clock)
    }

    fn open_on(
        shelf: Shelf,
        lock: Lock,
        settings: Settings,
        clock: Clock,
    ) -> Result<(Self, Left), JournalError> {
        let recovered = recover(
            shelf.clone(),
            Wish {
                // Seconds since the epoch, so that names sort by process as well as within one.
                boot: u32::try_from(clock.unix_secs()).unwrap_or(u32::MAX),
                now: UnixMicros::new(clock.unix_micros(clock.now())),
                segment_max: settings.segment_max,
            },
        )?;
        let inbox = Arc::new(Inbox::default());
        let (health, healthy) = watch::channel(Health::default());
        let (synced, on_disk) = watch::channel(recovered.writer.synced());
        let mut loop_of = Loop {
            inbox: Arc::clone(&inbox),
            writer: recovered.writer,
            // The other half is the disk's.
            gather: settings.sync / 2,
            health,
            synced,
            clock,
        };
        let thread = std::thread::Builder::new().name("ledger".to_owned());
        let thread = thread
            .spawn(move || loop_of.run())
            .map_err(|error| shelf.io("write", error))?;
        let journal = Self {
            inbox,
            boot: recovered.boot,
            health: healthy,
            synced: on_disk,
            writing: Mutex::new(Some((thread, lock))),
        };
        Ok((journal, recovered.left))
    }

    /// The number of this life of the gateway, greater than that of every one before.
    pub(crate) fn boot(&self) -> u32 {
        self.boot
    }

    /// Hands in a record; never waits for the disk.
    pub(crate) fn append(&self, record: Record) {
        self.inbox.append(record);
    }

    /// Whether the disk takes what is handed in.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Up to where everything is on disk: what is read up to there will always be there.
    pub(crate) fn synced(&self) -> watch::Receiver<Position> {
        self.synced.clone()
    }

    /// Ends that went to the log, since they could not be kept.
    pub(crate) fn spilled(&self) -> u64 {
        self.inbox.spilled()
    }

    /// Records that are not on disk yet.
    pub(crate) fn waiting(&self) -> usize {
        self.inbox.waiting()
    }

    /// Batches that have reached the disk.
    pub(crate) fn batches(&self) -> u64 {
        self.inbox.batches()
    }

    /// Writes what waits, and ends. Ends that come after it go to the log.
    pub(crate) fn close(&self) {
        self.inbox.close();
        let writing = self
            .writing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((thread, _lock)) = writing
            && thread.join().is_err()
        {
            tracing::error!("the ledger's thread panicked");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

/// The writer's thread.
struct Loop {
    inbox: Arc<Inbox>,
    writer: Writer,
    gather: Duration,
    health: watch::Sender<Health>,
    synced: watch::Sender<Position>,
    clock: Clock,
}

impl Loop {
    fn run(&mut self) {
        let mut batch = Vec::new();
        let mut gather = self.gather;
        loop {
            let wanted = self.inbox.take(&mut batch, gather);
            let done = match wanted {
                Wanted::Look => self.writer.look(),
                Wanted::Write | Wanted::End => {
                    let now = self.clock.unix_micros(self.clock.now());
                    self.writer.commit(&batch, UnixMicros::new(now))
                }
            };
            match done {
                Ok(()) => {
                    batch.clear();
                    gather = self.gather;
                    self.well();
                }
                Err(error) => {
                    gather = ASK_AGAIN;
                    self.ill(&error.to_string());
                }
            }
            if wanted == Wanted::End {
                for record in &batch {
                    self.inbox.spill(record, "the disk took nothing to the end");
                }
                return;
            }
        }
    }

    fn well(&self) {
        self.inbox.written();
        self.synced.send_if_modified(|synced| {
            let now = self.writer.synced();
            std::mem::replace(synced, now) != now
        });
        if *self.health.borrow() != Health::Writing {
            tracing::info!(target: "tollgate::ledger", "the disk takes records again");
            self.health.send_replace(Health::Writing);
        }
    }

    fn ill(&self, error: &str) {
        self.inbox.failed();
        if *self.health.borrow() == Health::Writing {
            tracing::error!(
                target: "tollgate::ledger",
                error,
                waiting = self.inbox.waiting(),
                "the disk takes no records; they are kept in memory and written when it does"
            );
            self.health.send_replace(Health::Failing(error.to_owned()));
        }
    }
}
