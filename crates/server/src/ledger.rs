//! What was served, one line of JSON per admitted request, appended to `usage.jsonl` in the data
//! directory.
//!
//! A thread of its own writes and syncs, a batch at a time, so no request waits for the disk. What
//! the disk does not take in goes to the log instead, line by line, at error level: it is not lost,
//! and nobody can overlook it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;

/// Lines that may wait for the disk: some seconds of the busiest gateway, some 20 MB.
const WAITING_MAX: usize = 65_536;

/// One admitted request, as it ended.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Its name, as in `x-request-id`.
    pub(crate) request: String,
    /// Who pays.
    pub(crate) tenant: String,
    /// What for.
    pub(crate) model: Option<String>,
    /// Who served it, if anyone did.
    pub(crate) replica: Option<u32>,
    /// The reason of its outcome, as in metrics and log.
    pub(crate) outcome: &'static str,
    /// Why generation stopped, where it stopped of itself.
    pub(crate) finish_reason: Option<&'static str>,
    /// Prompt tokens.
    pub(crate) prompt_tokens: u64,
    /// Those of them that were reused.
    pub(crate) cached_tokens: u64,
    /// Tokens generated.
    pub(crate) output_tokens: u64,
    /// Whether the tokens are reckoned from the text, since the engine told none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) estimated: bool,
    /// When it was received, in microseconds since the Unix epoch.
    pub(crate) received_unix_us: u64,
    /// Microseconds in the queue.
    pub(crate) queue_us: u64,
    /// Microseconds to the first token.
    pub(crate) ttft_us: Option<u64>,
    /// Microseconds in all.
    pub(crate) total_us: u64,
}

/// The ledger's near end.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// `None` once it is closed.
    lines: Mutex<Option<SyncSender<String>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    spilled: Arc<AtomicU64>,
}

/// Why there is no ledger.
#[derive(Debug, thiserror::Error)]
#[error("can't write the ledger at {path}: {source}; check the folder and its permissions")]
pub struct LedgerError {
    path: PathBuf,
    source: io::Error,
}

impl Ledger {
    /// Opens the ledger in `folder`, which is made if it is missing.
    ///
    /// # Errors
    /// When the folder or the file can't be written.
    pub(crate) fn open(folder: &Path) -> Result<Self, LedgerError> {
        let path = folder.join("usage.jsonl");
        let failed = |source| LedgerError {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .map_err(failed)?;
        end_torn_line(&mut file).map_err(failed)?;
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let spilled = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&spilled);
        let writer = std::thread::Builder::new().name("ledger".to_owned());
        let writer = writer
            .spawn(move || write_all(&waiting, file, &counter))
            .map_err(failed)?;
        Ok(Self {
            lines: Mutex::new(Some(lines)),
            writer: Mutex::new(Some(writer)),
            spilled,
        })
    }

    /// Hands over a line; never waits.
    pub(crate) fn write(&self, entry: Entry) {
        let line = match serde_json::to_string(&entry) {
            Ok(line) => line,
            Err(error) => format!("{entry:?}: {error}"),
        };
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match lines.as_ref() {
            Some(lines) => lines.try_send(line).err().map(|error| match error {
                std::sync::mpsc::TrySendError::Full(line)
                | std::sync::mpsc::TrySendError::Disconnected(line) => line,
            }),
            None => Some(line),
        };
        if let Some(line) = refused {
            spill(&line, "the ledger can't keep up", &self.spilled);
        }
    }

    /// Lines that went to the log because too many waited for the disk, or it refused them.
    pub(crate) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Writes what waits, and ends. Lines after it go to the log.
    pub(crate) fn close(&self) {
        drop(
            self.lines
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the ledger's thread panicked");
        }
    }
}

/// Ends a line that a power cut tore, so that it does not spoil the one after it.
fn end_torn_line(file: &mut File) -> io::Result<()> {
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes lines until there are no more senders: all that wait, then one sync for all of them.
fn write_all(waiting: &Receiver<String>, file: File, spilled: &AtomicU64) {
    let mut out = BufWriter::new(file);
    while let Ok(first) = waiting.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter()).collect();
        if let Err(error) = write_batch(&mut out, &batch) {
            for line in &batch {
                spill(line, &error.to_string(), spilled);
            }
            // What the disk refused is in the log now; kept, it would be written a second time.
            out = BufWriter::new(out.into_parts().0);
        }
    }
}

fn write_batch(out: &mut BufWriter<File>, batch: &[String]) -> io::Result<()> {
    for line in batch {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    out.get_ref().sync_data()
}

fn spill(line: &str, why: &str, spilled: &AtomicU64) {
    spilled.fetch_add(1, Ordering::Relaxed);
    tracing::error!(target: "tollgate::ledger", why, line, "not in the ledger file");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(request: &str) -> Entry {
        Entry {
            request: request.to_owned(),
            tenant: "t".to_owned(),
            model: Some("m".to_owned()),
            replica: Some(0),
            outcome: "completed",
            finish_reason: Some("stop"),
            prompt_tokens: 3,
            cached_tokens: 0,
            output_tokens: 2,
            estimated: false,
            received_unix_us: 1,
            queue_us: 2,
            ttft_us: Some(3),
            total_us: 4,
        }
    }

    #[test]
    fn lines_are_in_the_file_when_it_is_closed_and_kept_by_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..2 {
            let ledger = Ledger::open(folder.path()).unwrap();
            for n in 0..100 {
                ledger.write(entry(&format!("r{round}-{n}")));
            }
            ledger.close();
            assert_eq!(ledger.spilled(), 0);
        }
        let text = std::fs::read_to_string(folder.path().join("usage.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 200);
        insta::assert_snapshot!(text.lines().next().unwrap(), @r#"{"request":"r0-0","tenant":"t","model":"m","replica":0,"outcome":"completed","finish_reason":"stop","prompt_tokens":3,"cached_tokens":0,"output_tokens":2,"received_unix_us":1,"queue_us":2,"ttft_us":3,"total_us":4}"#);
    }

    #[test]
    fn lines_that_the_disk_refuses_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let full = folder.path().join("usage.jsonl");
        std::os::unix::fs::symlink("/dev/full", full).unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        for n in 0..3 {
            ledger.write(entry(&format!("r{n}")));
        }
        ledger.close();
        assert_eq!(ledger.spilled(), 3);
        ledger.write(entry("too late"));
        assert_eq!(ledger.spilled(), 4);
    }

    #[test]
    fn a_folder_that_can_not_be_written_is_said_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Ledger::open(&file.path().join("inside"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("usage.jsonl"), "{error}");
    }
}
