//! The ledger's journal: what was served, written once, in segments of checksummed records.
//!
//! [`record`] says what is written, `segment` how it is put into files, [`Reader`] reads it back,
//! also while it is written. Nothing here decides what is charged, and no request waits for it.

mod disk;
mod error;
mod reader;
pub mod record;
mod segment;

pub use self::error::JournalError;
pub use self::reader::{Entry, Reader};
pub use self::segment::{BadHeader, JournalId, Position};
