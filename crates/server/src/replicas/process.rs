//! An engine that the gateway has started: a child process, its log, and its end.
//!
//! When it is started, and started again, others say. It is kept by a [`super::keeper`], so that it
//! ends with the gateway whatever becomes of that.

use std::ffi::OsString;
use std::fs::{File, create_dir_all, rename};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, ChildStdin, Command};

/// The verb under which this program is a keeper.
pub const KEEPER_VERB: &str = "keep-engine";

/// Bytes of a log that are looked at for its last lines.
const TAIL_BYTES: u64 = 8 * 1024;

/// Lines of an engine's log that are shown when it ends.
const TAIL_LINES: usize = 20;

/// How long an engine that was told to end may take, its keeper's patience included.
const STOP_TIME: Duration = Duration::from_secs(15);

/// How an engine is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Where what it says is written.
    pub(crate) log: PathBuf,
}

/// An engine that was started and has not been seen to end.
#[derive(Debug)]
pub(crate) struct Process {
    keeper: Child,
    /// Closed, it tells the keeper to end the engine.
    leash: Option<ChildStdin>,
    log: PathBuf,
}

impl Process {
    /// Starts an engine. What the one before it said is kept beside its log.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn start(recipe: &Recipe) -> io::Result<Self> {
        if let Some(folder) = recipe.log.parent() {
            create_dir_all(folder)?;
        }
        // Err: there was none.
        let _ = rename(&recipe.log, recipe.log.with_extension("log.1"));
        let log = File::create(&recipe.log)?;
        let mut keeper = Command::new(std::env::current_exe()?)
            .arg(KEEPER_VERB)
            .arg("--")
            .args(recipe.command.iter().map(OsString::from))
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the gateway, which lets go of the engine when it has no more use for
            // it.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            leash: keeper.stdin.take(),
            keeper,
            log: recipe.log.clone(),
        })
    }

    /// Resolves when the engine has ended, with what is to be said of that.
    ///
    /// # Cancel safety
    /// It may be called again.
    pub(crate) async fn ended(&mut self) -> String {
        let how = match self.keeper.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => format!("nobody knows how: {error}"),
        };
        format!("it ended ({how}); {}", self.last_words())
    }

    /// The last lines of its log.
    pub(crate) fn last_words(&self) -> String {
        format!("the last of {}:\n{}", self.log.display(), tail(&self.log))
    }

    /// Ends the engine, and waits until it and all that it started are gone.
    pub(crate) async fn stop(mut self) {
        drop(self.leash.take());
        if tokio::time::timeout(STOP_TIME, self.keeper.wait())
            .await
            .is_err()
        {
            tracing::error!(log = %self.log.display(), "an engine does not end");
        }
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|error| format!("(it can't be read: {error})"));
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    lines[first..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_lines_of_a_log_are_shown_however_long_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("engine.log");
        let mut file = File::create(&log).unwrap();
        for n in 0..10_000 {
            writeln!(file, "line {n}").unwrap();
        }
        let shown = tail(&log);
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(
            shown.starts_with("line 9980") && shown.ends_with("line 9999"),
            "{shown}"
        );
        assert!(tail(&folder.path().join("none.log")).contains("can't be read"));
    }
}
