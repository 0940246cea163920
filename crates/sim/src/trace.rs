//! Recorded traces: when requests came and how long they were, read from files that others made.
//!
//! A reader checks the columns, counts lines for its messages and holds a bounded number of rows.
//! How fast a trace is replayed, and against what, is not decided here.

mod read;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tollgate_policy::units::{Micros, Time, Tokens};

/// Tenant of every row of a trace that names none.
const ONLY_TENANT: &str = "all";

/// A trace that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceName {
    /// Azure LLM inference 2023, the conversation service.
    AzureConversations,
    /// Azure LLM inference 2023, the code service.
    AzureCode,
    /// Mooncake's conversations (FAST 2025).
    MooncakeConversations,
    /// 27 tenants of the LMSYS arena, as replayed by VTC (OSDI 2024).
    Lmsys27,
}

impl TraceName {
    /// Every name.
    pub const ALL: [Self; 4] = [
        Self::AzureConversations,
        Self::AzureCode,
        Self::MooncakeConversations,
        Self::Lmsys27,
    ];

    /// The name to ask by.
    pub const fn label(self) -> &'static str {
        match self {
            Self::AzureConversations => "azure-conversations",
            Self::AzureCode => "azure-code",
            Self::MooncakeConversations => "mooncake-conversations",
            Self::Lmsys27 => "lmsys-27",
        }
    }

    /// The file it is read from.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::AzureConversations | Self::AzureCode => "azure_llm_2023.csv",
            Self::MooncakeConversations => "mooncake_conversation_trace.jsonl",
            Self::Lmsys27 => "vtc_lmsys_27tenants.csv",
        }
    }
}

/// No trace has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no trace is called `{0}`; \
     use azure-conversations, azure-code, mooncake-conversations or lmsys-27"
)]
pub struct UnknownTrace(String);

impl FromStr for TraceName {
    type Err = UnknownTrace;

    fn from_str(name: &str) -> Result<Self, UnknownTrace> {
        let found = Self::ALL.into_iter().find(|known| known.label() == name);
        found.ok_or_else(|| UnknownTrace(name.to_owned()))
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// When it came, counted from the first row of the trace.
    pub at: Time,
    /// Index into [`Trace::tenants`].
    pub tenant: usize,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Length of its output.
    pub output: Tokens,
}

/// A recorded trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Names, in the order in which they first appear; one for all where the trace names none.
    pub tenants: Vec<String>,
    /// The requests, in the order of time.
    pub rows: Vec<TraceRow>,
    /// What the recorded times are multiples of, where that is coarse: a replay spreads the rows of
    /// one tick over it, or it would replay bursts that never were.
    pub tick: Option<Micros>,
}

impl Trace {
    /// The most rows that are read.
    pub const ROWS_MAX: usize = 10_000_000;
    /// The longest line that is read, in bytes.
    pub const LINE_MAX: usize = 1024 * 1024;
    /// The most tenants that a trace may name.
    pub const TENANTS_MAX: usize = 100_000;

    /// Reads the trace called `name` from its file in `dir`.
    ///
    /// # Errors
    /// The file is missing or unreadable, lacks a column, or has a row that is no request.
    pub fn open(name: TraceName, dir: &Path) -> Result<Self, TraceError> {
        let path = dir.join(name.file_name());
        let file = File::open(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return TraceError::Missing {
                    name: name.label(),
                    path: path.clone(),
                };
            }
            TraceError::Read {
                path: path.clone(),
                error,
            }
        })?;
        Self::read(name, BufReader::new(file)).map_err(|fault| fault.in_file(path))
    }

    /// Reads the trace called `name` from `lines`.
    ///
    /// # Errors
    /// As [`Trace::open`], without the file.
    pub fn read(name: TraceName, lines: impl BufRead) -> Result<Self, Fault> {
        match name {
            TraceName::AzureConversations => read::azure(lines, "conv"),
            TraceName::AzureCode => read::azure(lines, "code"),
            TraceName::MooncakeConversations => read::mooncake(lines),
            TraceName::Lmsys27 => read::lmsys(lines),
        }
    }

    /// From the first request to the last.
    pub fn duration(&self) -> Micros {
        self.rows
            .last()
            .map_or(Micros::ZERO, |last| last.at.since(Time::START))
    }
}

/// Why a trace cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Its file is not there.
    #[error(
        "the trace `{name}` is not here: {} does not exist; name the folder that has it",
        path.display()
    )]
    Missing {
        /// The name asked for.
        name: &'static str,
        /// Where its file was looked for.
        path: PathBuf,
    },
    /// Its file cannot be read.
    #[error("cannot read {}: {error}; name the folder that has it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A line is not what the trace is made of.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        what: Wrong,
    },
}

/// What is wrong, and in which line, before it is known in which file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The lines cannot be read.
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    /// A line is not what the trace is made of.
    #[error("line {line}: {what}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        what: Wrong,
    },
}

impl Fault {
    fn in_file(self, path: PathBuf) -> TraceError {
        match self {
            Self::Read(error) => TraceError::Read { path, error },
            Self::Line { line, what } => TraceError::Line { path, line, what },
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The header names other columns.
    #[error("the columns are `{found}`; they must be `{expected}`")]
    Columns {
        /// The header, cut to 200 characters.
        found: String,
        /// The header that the trace has.
        expected: &'static str,
    },
    /// A row has more or fewer fields than the header.
    #[error("{found} fields; the header has {expected}")]
    Fields {
        /// Fields of the row.
        found: usize,
        /// Columns of the header.
        expected: usize,
    },
    /// A field is not what its column holds.
    #[error("{column} is `{found}`; it must be {expected}")]
    Field {
        /// The column.
        column: &'static str,
        /// The field, cut to 200 characters.
        found: String,
        /// What the column holds.
        expected: &'static str,
    },
    /// A line is no JSON object with the members of the trace.
    #[error("{0}")]
    Json(String),
    /// A row is earlier than the one before it.
    #[error("the time goes back; sort the rows by time")]
    Order,
    /// Something is larger than the reader's bound.
    #[error("more than {limit} {what}; cut the trace")]
    TooMany {
        /// The bound.
        limit: usize,
        /// What there is too much of.
        what: &'static str,
    },
    /// There is no row.
    #[error("no request in the whole trace")]
    Empty,
}
