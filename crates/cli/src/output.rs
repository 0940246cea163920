//! Files that a command writes at its end: whether they can be written is known at its start, and
//! each is written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Sees that these files can be written later, so that no long run ends without its result.
pub(crate) fn can_write<'a>(
    paths: impl IntoIterator<Item = Option<&'a PathBuf>>,
) -> anyhow::Result<()> {
    for path in paths.into_iter().flatten() {
        if path.is_dir() {
            bail!("{} is a folder; name a file in it", path.display());
        }
        if is_device(path) {
            continue;
        }
        let part = beside(path);
        let made = OpenOptions::new().create(true).append(true).open(&part);
        drop(made.with_context(|| unwritable(path))?);
        remove(&part).with_context(|| unwritable(path))?;
    }
    Ok(())
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if is_device(path) {
        return fs::write(path, text).with_context(|| unwritable(path));
    }
    let part = beside(path);
    fs::write(&part, text).with_context(|| unwritable(path))?;
    fs::rename(&part, path).with_context(|| unwritable(path))
}

/// Whether it is there and no plain file, as `/dev/null` or a pipe: nothing may take its place.
fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file())
}

fn unwritable(path: &Path) -> String {
    let path = path.display();
    format!("can't write {path}; name a file in a folder that is there and may be written to")
}

/// Where a file is until it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut part = OsString::from(path);
    part.push(".part");
    part.into()
}

/// Another run may have taken it away meanwhile.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        can_write([Some(&file), None]).unwrap();
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            0,
            "and nothing is left"
        );
        let within = folder.path().to_owned();
        let error = can_write([Some(&within)]).unwrap_err().to_string();
        assert!(error.ends_with("is a folder; name a file in it"), "{error}");
        let nowhere = folder.path().join("none/report.json");
        let error = can_write([Some(&nowhere)]).unwrap_err().to_string();
        assert!(
            error.contains("name a file in a folder that is there"),
            "{error}"
        );
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        can_write([Some(&pipe)]).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write(&pipe, "{}\n").unwrap();
        assert_eq!(reader.join().unwrap(), "{}\n");
        assert!(is_device(&pipe));
    }

    #[test]
    fn a_file_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        write(&file, "{}\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
