//! One process for each data folder: two that write one journal would make it nobody's.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use super::error::JournalError;

/// The file whose lock is held.
const NAME: &str = "lock";

/// The right to write in a data folder, for as long as it lives. The system takes it back from a
/// process that dies, however it dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; makes the folder if it is missing.
    pub(crate) fn take(data_dir: &Path) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Io {
            what: "lock",
            folder: data_dir.to_owned(),
            source,
        };
        std::fs::create_dir_all(data_dir).map_err(failed)?;
        let path = data_dir.join(NAME);
        let mut how = OpenOptions::new();
        let mut file = how
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                note_owner(&mut file).map_err(failed)?;
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse {
                folder: data_dir.to_owned(),
                process: owner(&mut file),
            }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

/// For the message that another process prints.
fn note_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_told_who_has_the_folder_and_may_have_it_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::take(folder.path()).unwrap();
        let error = Lock::take(folder.path()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(&std::process::id().to_string()), "{said}");
        assert!(error.needs_a_decision());
        drop(first);
        assert!(Lock::take(folder.path()).is_ok());
    }
}
