//! Recounts everything that the journal says, and names what does not add up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::error::JournalError;
use super::reader::{Reader, Shelf};
use super::record::{Ended, INTERRUPTED, Record, RequestName, Used};
use super::writer::InFlight;

/// Faults that are named one by one; more are only counted.
const FAULTS_MAX: usize = 20;

/// What the journal of a data folder holds.
#[derive(Debug, Default)]
pub struct Account {
    /// Segments.
    pub segments: usize,
    /// Records of every kind.
    pub records: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Those of them whose process died first.
    pub interrupted: u64,
    /// Requests that began and have not ended.
    pub in_flight: u64,
    /// Records that a repair found lost.
    pub lost: u64,
    /// What was used, by tenant and model.
    pub totals: BTreeMap<(Arc<str>, Arc<str>), Used>,
    /// What does not add up, the first of it.
    pub faults: Vec<Fault>,
    /// How much does not.
    pub fault_count: u64,
    /// Where reading had to stop.
    pub stopped: Option<JournalError>,
}

/// Something that does not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A request was charged twice.
    #[error("{0} ended twice")]
    EndedTwice(RequestName),
    /// Of more prompt tokens than there were, some were reused.
    #[error("{0} reused more prompt tokens than it had")]
    ReusedTooMuch(RequestName),
}

impl Account {
    /// Whether everything adds up.
    pub fn is_right(&self) -> bool {
        self.fault_count == 0 && self.stopped.is_none()
    }

    fn find(&mut self, fault: Fault) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

/// Reads the journal of a data folder from end to end, also while it is written.
pub fn verify(data_dir: &Path) -> Account {
    let shelf = Shelf::of(data_dir);
    let mut count = Count::default();
    match shelf.headers() {
        Ok(headers) => {
            count.account.segments = headers.len();
            let mut reader = Reader::of(shelf);
            count.account.stopped = loop {
                match reader.next() {
                    Ok(Some(entry)) => count.take(&entry.record),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
        }
        Err(error) => count.account.stopped = Some(error),
    }
    count.account
}

#[derive(Debug, Default)]
struct Count {
    account: Account,
    in_flight: InFlight,
    /// Requests that have ended, a bit for each: by life, and by number without its last six bits.
    ended: BTreeMap<(u32, u64), u64>,
}

impl Count {
    fn take(&mut self, record: &Record) {
        self.account.records += 1;
        match record {
            Record::Ended(ended) => self.end(ended),
            Record::Lost(lost) => self.account.lost += lost.to.saturating_sub(lost.from),
            Record::Opened(_) | Record::Started(_) | Record::Carried(..) | Record::Mark(_) => {}
        }
        self.in_flight.note(record);
        self.account.in_flight = self.in_flight.len();
    }

    fn end(&mut self, ended: &Ended) {
        let RequestName { boot, number } = ended.request;
        let bits = self.ended.entry((boot, number >> 6)).or_default();
        let bit = 1 << (number & 63);
        if *bits & bit != 0 {
            return self.account.find(Fault::EndedTwice(ended.request));
        }
        *bits |= bit;
        self.account.ended += 1;
        if ended.outcome == INTERRUPTED {
            self.account.interrupted += 1;
        }
        let used = ended.used;
        if used.cached > used.prompt {
            self.account.find(Fault::ReusedTooMuch(ended.request));
        }
        let model = ended.model.clone();
        let model = model.unwrap_or_else(|| Arc::from(""));
        let totals = &mut self.account.totals;
        let total = totals.entry((ended.tenant.clone(), model)).or_default();
        *total = Used {
            prompt: total.prompt + used.prompt,
            cached: total.cached + used.cached,
            output: total.output + used.output,
            kv: total.kv + used.kv,
        };
    }
}
