//! Reads the journal and folds it into the store, a batch at a time.
//!
//! A batch that the store did not take is handed in again, as it was. Nothing is lost when this
//! stops anywhere: where to go on is in the store, in the same transaction as what was counted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_policy::usage::Usage;

use crate::journal::record::{Counted, Ended, Record, UnixMicros};
use crate::journal::{JournalError, Position, Reader, remove_counted};
use crate::store::{Charge, Place, Store, StoreError};

/// Records that are looked at before the store is handed what was found: some milliseconds of work,
/// for which nobody else can write to it.
const BATCH: usize = 2_000;

/// Why nothing was folded.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// The journal can't be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A journal on its way into a store.
#[derive(Debug)]
pub struct Folding {
    data_dir: PathBuf,
    reader: Reader,
    /// How far may be read.
    until: Option<Position>,
    /// The journal's name, once it is known that there is one.
    journal: Option<String>,
    /// What was read and is not known to be in the store.
    batch: Option<Batch>,
}

#[derive(Debug)]
struct Batch {
    charges: Vec<Charge>,
    upto: Place,
}

impl Folding {
    /// The journal of a data folder, which need not be there yet.
    pub fn of(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            reader: Reader::open(data_dir),
            until: None,
            journal: None,
            batch: None,
        }
    }

    /// Folds no further than to here from now on: what is not on disk yet can be taken back by a
    /// power cut, and the store must not have gone past it then.
    pub(crate) fn until(&mut self, on_disk: Position) {
        self.until = Some(on_disk);
    }

    /// Folds all there is now; how many requests were counted.
    ///
    /// # Errors
    /// [`FoldError`]; another try goes on where this one stopped.
    pub fn catch_up(&mut self, store: &mut Store) -> Result<usize, FoldError> {
        let mut counted = 0;
        while let Some(more) = self.step(store)? {
            counted += more;
        }
        Ok(counted)
    }

    /// Folds a batch; how many of its requests were counted. `None`: there was nothing left.
    ///
    /// # Errors
    /// [`FoldError`]; another try goes on where this one stopped.
    fn step(&mut self, store: &mut Store) -> Result<Option<usize>, FoldError> {
        let Some(journal) = self.begin(store)? else {
            return Ok(None);
        };
        if self.batch.is_none() {
            self.batch = self.read()?;
        }
        let Some(batch) = &self.batch else {
            return Ok(None);
        };
        let folded = store.fold(&journal, &batch.charges, batch.upto)?;
        self.batch = None;
        Ok(Some(folded.counted))
    }

    /// Removes what has been counted and ended before a time.
    ///
    /// # Errors
    /// [`FoldError`].
    pub(crate) fn remove_counted(
        &self,
        store: &mut Store,
        before: UnixMicros,
    ) -> Result<(), FoldError> {
        let Some(journal) = &self.journal else {
            return Ok(());
        };
        let place = store.folded(journal)?;
        let counted = Position {
            segment: place.segment,
            offset: place.offset,
        };
        remove_counted(&self.data_dir, counted, before)?;
        Ok(())
    }

    /// The journal's name; goes to where its folding stopped when it is first seen.
    fn begin(&mut self, store: &mut Store) -> Result<Option<String>, FoldError> {
        if let Some(journal) = &self.journal {
            return Ok(Some(journal.clone()));
        }
        let mut reader = Reader::open(&self.data_dir);
        if reader.next()?.is_none() {
            return Ok(None);
        }
        let Some(journal) = reader.journal().map(|id| id.to_string()) else {
            return Ok(None);
        };
        let place = store.folded(&journal)?;
        let known = Position {
            segment: place.segment,
            offset: place.offset,
        };
        // A segment that has been removed since held nothing new; the store knows by the numbers.
        self.reader = match reader.seek(known) {
            Ok(()) => reader,
            Err(JournalError::Gone { .. }) => Reader::open(&self.data_dir),
            Err(error) => return Err(error.into()),
        };
        self.journal = Some(journal.clone());
        Ok(Some(journal))
    }

    fn read(&mut self) -> Result<Option<Batch>, FoldError> {
        if let Some(limit) = self.until {
            self.reader.until(limit);
        }
        let mut batch: Option<Batch> = None;
        for _ in 0..BATCH {
            let Some(entry) = self.reader.next()? else {
                break;
            };
            let batch = batch.get_or_insert_with(|| Batch {
                charges: Vec::new(),
                upto: Place::default(),
            });
            batch.upto = Place {
                number: entry.sequence + 1,
                segment: entry.next.segment,
                offset: entry.next.offset,
            };
            if let Record::Ended(ended) = entry.record {
                batch.charges.push(charge(entry.sequence, ended));
            }
        }
        Ok(batch)
    }
}

/// All requests that a journal says have ended: for a recount.
///
/// # Errors
/// As the journal's.
pub fn charges(data_dir: &Path) -> Result<(Option<String>, Vec<Charge>), JournalError> {
    let mut reader = Reader::open(data_dir);
    let mut charges = Vec::new();
    while let Some(entry) = reader.next()? {
        if let Record::Ended(ended) = entry.record {
            charges.push(charge(entry.sequence, ended));
        }
    }
    Ok((reader.journal().map(|id| id.to_string()), charges))
}

fn charge(number: u64, ended: Ended) -> Charge {
    let ended_us = ended.ended().get();
    Charge {
        number,
        request: ended.request.to_string(),
        tenant: ended.tenant,
        key: ended.key,
        model: ended.model.unwrap_or_else(|| Arc::from("")),
        outcome: ended.outcome,
        usage: Usage {
            prompt: ended.used.prompt,
            cached: ended.used.cached,
            output: ended.used.output,
        },
        kv: ended.used.kv,
        estimated: ended.counted != Counted::Engine,
        received_us: ended.received.get(),
        ended_us,
    }
}
