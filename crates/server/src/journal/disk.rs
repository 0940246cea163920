//! The file system, as far as the journal needs it: one folder of files, read and written at
//! places that the caller names.
//!
//! Behind a trait, since what matters most about it, how it fails, can't be asked of a real one.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// A folder.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Makes the folder if it is missing.
    fn make(&self) -> io::Result<()>;
    /// The names in it, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens a file to read and write it.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Makes a file, or empties the one there.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name; one that had it is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until the names are on disk.
    fn sync(&self) -> io::Result<()>;
    /// Whether the file of this name is the one that was opened.
    fn holds(&self, name: &str, file: &dyn DiskFile) -> io::Result<bool>;
}

/// A file.
pub(crate) trait DiskFile: Debug + Send {
    /// Reads some of what is at `at`; nothing at the end.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes some of `bytes` at `at`.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize>;
    /// Waits until its bytes are on disk.
    fn sync(&mut self) -> io::Result<()>;
    /// What tells it from every other file: device and number.
    fn identity(&self) -> io::Result<(u64, u64)>;
}

/// Writes all of `bytes`, however little the file takes at a time.
pub(crate) fn write_all(file: &mut dyn DiskFile, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let taken = match file.write_at(bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        bytes = &bytes[taken..];
        at += u64::try_from(taken).unwrap_or(u64::MAX);
    }
    Ok(())
}

/// A folder of the operating system.
#[derive(Debug)]
pub(crate) struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }
}

impl Disk for RealDisk {
    fn make(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        // Its own name must be on disk too.
        match self.folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            Some(_) | None => Ok(()),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            // A name that is no text is not one of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.folder.join(name);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            // Whoever only reads may be somebody else.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path)?,
            opened => opened?,
        };
        Ok(Box::new(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(true);
        Ok(Box::new(how.open(self.folder.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn holds(&self, name: &str, file: &dyn DiskFile) -> io::Result<bool> {
        match std::fs::metadata(self.folder.join(name)) {
            Ok(found) => Ok((found.dev(), found.ino()) == file.identity()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl DiskFile for File {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match std::os::unix::fs::FileExt::read_at(self, into, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        let about = self.metadata()?;
        Ok((about.dev(), about.ino()))
    }
}
