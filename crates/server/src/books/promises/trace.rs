//! The decision trace on disk: files of CSV, each with its heading, the oldest deleted as new ones
//! are begun, so that all of them together stay within a bound.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::line::{COLUMNS, Line};

/// Files that the whole is cut into: what is lost when the oldest goes is an eighth of it.
const FILES: usize = 8;

/// Bytes that are written at once.
const CHUNK: usize = 64 << 10;

const PREFIX: &str = "decisions-";
const SUFFIX: &str = ".csv";

/// A trace that is being written.
#[derive(Debug)]
pub(super) struct Trace {
    folder: PathBuf,
    each_max: u64,
    /// Whole files, the oldest first.
    files: VecDeque<PathBuf>,
    open: Option<(File, u64)>,
    /// Lines that are not in the file yet.
    text: String,
    next: u64,
}

/// The files of a trace, the oldest first.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(number) = number(&path) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(PREFIX)?
        .strip_suffix(SUFFIX)?
        .parse()
        .ok()
}

impl Trace {
    /// A trace in this folder, of so many bytes at most, going on after what is there.
    pub(super) fn new(folder: &Path, most: u64) -> Self {
        let files: VecDeque<_> = files(folder).unwrap_or_default().into();
        let last = files.back().and_then(|path| number(path));
        Self {
            folder: folder.to_owned(),
            each_max: most / FILES as u64,
            files,
            open: None,
            text: String::new(),
            next: last.map_or(1, |last| last + 1),
        }
    }

    /// Adds a line; what is added is on disk after the next flush at the latest.
    pub(super) fn write(&mut self, line: &Line) -> io::Result<()> {
        line.add_to(&mut self.text);
        if self.text.len() >= CHUNK {
            return self.flush();
        }
        Ok(())
    }

    /// Writes what was added.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        let (mut file, size) = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        file.write_all(self.text.as_bytes())?;
        let size = size + self.text.len() as u64;
        self.text.clear();
        // Another chunk might be too much.
        if size + CHUNK as u64 <= self.each_max {
            self.open = Some((file, size));
        }
        Ok(())
    }

    fn begin(&mut self) -> io::Result<(File, u64)> {
        fs::create_dir_all(&self.folder)?;
        while self.files.len() >= FILES {
            if let Some(oldest) = self.files.pop_front() {
                fs::remove_file(oldest)?;
            }
        }
        let path = self
            .folder
            .join(format!("{PREFIX}{:08}{SUFFIX}", self.next));
        self.next += 1;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)?;
        self.files.push_back(path);
        writeln!(file, "{COLUMNS}")?;
        Ok((file, COLUMNS.len() as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use tollgate_policy::outcome::{Outcome, Rejection};
    use tollgate_policy::slo::{self, Asked, Door, Facts, PoolFacts, Seen, Slo};
    use tollgate_policy::tenant::Class;
    use tollgate_policy::units::{Micros, Time, Tokens};

    use super::*;

    fn line(request: u64) -> Line {
        let facts = Facts {
            class: Class::Standard,
            prompt: Tokens::new(100),
            cached: Tokens::ZERO,
            output_max: Tokens::new(50),
            output_median: Tokens::new(50),
            output_most: Tokens::new(50),
            waited: Micros::ZERO,
            ahead: 0,
            work_ahead: Tokens::ZERO,
            at_once: true,
            pool: PoolFacts::default(),
        };
        let door = Door {
            id: tollgate_policy::ids::RequestId::new(request),
            tenant: tollgate_policy::ids::TenantId::new(0),
            weight: 1,
            below_share: false,
            asked: Asked::default(),
            received: Time::START,
            facts,
        };
        let judged = slo::Admission::new(Slo::default()).judge(door, Time::START);
        let seen = Seen {
            outcome: Outcome::Rejected(Rejection::Slo),
            ttft: None,
            tpot: None,
            e2e: None,
            output: Tokens::ZERO,
        };
        Line {
            received_unix_us: 1,
            request,
            model: "m".to_owned(),
            tenant: "a, \"b\"".to_owned(),
            row: slo::Row {
                id: door.id,
                judged,
                seen,
            },
        }
    }

    #[test]
    fn a_line_has_as_many_cells_as_there_are_columns() {
        let mut text = String::new();
        line(1).add_to(&mut text);
        let plain = text.replace("\"a, \"\"b\"\"\"", "a");
        assert_eq!(
            plain.split(',').count(),
            COLUMNS.split(',').count(),
            "{text}"
        );
    }

    #[test]
    fn a_trace_stays_within_its_bound_however_much_is_decided() {
        let folder = tempfile::tempdir().unwrap();
        let most = 8 * (256 << 10);
        let mut trace = Trace::new(folder.path(), most);
        for n in 0..40_000 {
            trace.write(&line(n)).unwrap();
        }
        trace.flush().unwrap();
        let written = files(folder.path()).unwrap();
        let sizes = written.iter().map(|path| fs::metadata(path).unwrap().len());
        let all: u64 = sizes.sum();
        assert!(written.len() <= FILES && all <= most, "{all} of {most}");
        assert!(all > most / 2);
        let newest = fs::read_to_string(written.last().unwrap()).unwrap();
        assert!(newest.starts_with(COLUMNS));
        assert!(newest.contains(",39999,"));
        let mut later = Trace::new(folder.path(), most);
        later.write(&line(50_000)).unwrap();
        later.flush().unwrap();
        assert!(
            files(folder.path()).unwrap().len() <= FILES,
            "it goes on where the last one ended"
        );
    }
}
