//! Removes segments that are not needed any more: what they say has been counted elsewhere, and
//! they are old.

use std::path::Path;

use super::error::JournalError;
use super::reader::Shelf;
use super::record::UnixMicros;
use super::segment::{Position, file_name};

/// Segments that are always kept: the last one is written, and recovery reads the one before it.
const KEPT: usize = 2;

/// Removes each segment of a data folder's journal that lies before `counted` as a whole and was
/// ended before `ended_before`, the oldest first; says how many.
///
/// # Errors
/// [`JournalError`]; segments that were removed before it stay so.
pub fn remove_counted(
    data_dir: &Path,
    counted: Position,
    ended_before: UnixMicros,
) -> Result<usize, JournalError> {
    let shelf = Shelf::of(data_dir);
    let headers = shelf.headers()?;
    let most = headers.len().saturating_sub(KEPT);
    // A segment ends when the next one begins.
    let old = headers
        .windows(2)
        .take(most)
        .take_while(|pair| pair[0].number < counted.segment && pair[1].created < ended_before);
    let mut removed = 0;
    for pair in old {
        let gone = shelf.disk.remove(&file_name(pair[0].number));
        gone.map_err(|error| shelf.io("write", error))?;
        removed += 1;
    }
    if removed > 0 {
        let synced = shelf.disk.sync();
        synced.map_err(|error| shelf.io("write", error))?;
    }
    Ok(removed)
}
