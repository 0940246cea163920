//! What can be wrong with a journal, and what to do about it.

use std::io;
use std::path::PathBuf;

use super::segment::{BadHeader, Position};

/// Why a journal can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refuses.
    #[error("can't {what} the ledger in {folder}: {source}; check the folder and its permissions")]
    Io {
        /// Doing what.
        what: &'static str,
        /// Where.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process writes it.
    #[error(
        "{folder} belongs to another Tollgate that is running{}; stop it, or use another data_dir",
        .process.map_or(String::new(), |process| format!(" (process {process})"))
    )]
    InUse {
        /// The data folder.
        folder: PathBuf,
        /// Which process, where it said so.
        process: Option<u32>,
    },
    /// A segment is not one of this format.
    #[error("{path}: {why}; {}", next_step(*.why))]
    Header {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: BadHeader,
    },
    /// A segment that must be there is not.
    #[error(
        "{path} is missing, and segments after it are there; put it back, or run `tollgate ledger \
         repair`, which writes down what is lost and goes on without it"
    )]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// A segment comes from the folder of another Tollgate.
    #[error("{path} belongs to another journal; move it out of this folder")]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// What was on disk once is not as it was written.
    #[error(
        "the ledger in {folder} is damaged at {at}; nothing was changed; run `tollgate ledger \
         repair`, which keeps a copy, writes down what is lost and goes on after it"
    )]
    Damaged {
        /// Where its files are.
        folder: PathBuf,
        /// From where on it can't be read.
        at: Position,
    },
    /// A position that no segment has any more.
    #[error("{at} is gone: the oldest segment in {folder} is {oldest}")]
    Gone {
        /// Where the segments are.
        folder: PathBuf,
        /// The position.
        at: Position,
        /// The oldest segment that is kept.
        oldest: u64,
    },
}

impl JournalError {
    /// Whether somebody must decide something before it can go on: trying again won't help.
    pub const fn needs_a_decision(&self) -> bool {
        match self {
            Self::InUse { .. }
            | Self::Header { .. }
            | Self::Missing { .. }
            | Self::Foreign { .. }
            | Self::Damaged { .. }
            | Self::Gone { .. } => true,
            Self::Io { .. } => false,
        }
    }
}

const fn next_step(why: BadHeader) -> &'static str {
    match why {
        BadHeader::Foreign => "move it out of this folder",
        BadHeader::Version { .. } => {
            "use the Tollgate that wrote it, or move the folder away and begin a new one; nothing \
             was changed"
        }
        BadHeader::Damaged => {
            "nothing was changed; run `tollgate ledger repair`, which keeps a copy, writes down \
             what is lost and goes on after it"
        }
    }
}
