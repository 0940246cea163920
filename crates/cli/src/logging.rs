//! Logs go to stderr: one JSON object a line for a machine, coloured lines for a person.
//!
//! A thread of its own writes them, so that whoever reads stderr too slowly, or no more, holds up
//! no request. Lines past a bound are dropped, and their number is logged as soon as there is room.

use std::io::{self, IsTerminal as _, Write};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

/// Names the variable that chooses what is logged, as in `info,tollgate::request=warn`.
const VARIABLE: &str = "TOLLGATE_LOG";

/// Ours in full; of llama.cpp, which tells all it knows of a model, what went wrong.
const DEFAULT: &str = "info,llama.cpp=error,ggml=error,llama-cpp-2=error,llama_cpp_2=error";

/// Lines that may wait for stderr: seconds of the busiest gateway, some 3 MB.
const WAITING_MAX: usize = 8192;

/// How long an ending process waits for stderr to take what waits.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Logging, for as long as it is kept; dropping it waits for what is not yet written.
#[derive(Debug)]
#[must_use = "dropping it is what writes the last lines"]
pub(crate) struct Logging(Sink);

/// Starts logging, panics included.
pub(crate) fn start() -> Logging {
    let (filter, mistake) = filter(std::env::var(VARIABLE).ok().as_deref());
    let (sink, waiting) = Sink::new(WAITING_MAX);
    let dropped = Arc::clone(&sink.dropped);
    // Not joined: it ends with the process. Where there is no thread, the lines are dropped.
    let writer = std::thread::Builder::new().name("log".to_owned());
    let _ = writer.spawn(move || write_all(&waiting, &dropped, &mut io::stderr()));
    let lines = sink.clone();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || lines.clone());
    if io::stderr().is_terminal() {
        log.init();
    } else {
        log.with_ansi(false).json().flatten_event(true).init();
    }
    if let Some(mistake) = mistake {
        tracing::warn!("{VARIABLE} is not used, info is logged: {mistake}");
    }
    let last = sink.clone();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        last.flush();
    }));
    Logging(sink)
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// What to log, and what is wrong with the wish where it can't be followed. None and an empty one
/// are the same: whoever starts containers has the one where the other is meant.
fn filter(wish: Option<&str>) -> (EnvFilter, Option<String>) {
    let standard = || EnvFilter::new(DEFAULT);
    let Some(wish) = wish.map(str::trim).filter(|wish| !wish.is_empty()) else {
        return (standard(), None);
    };
    let unknown = wish
        .split(',')
        .map(str::trim)
        .find(|part| is_no_level(part));
    match (unknown, EnvFilter::try_new(wish)) {
        (None, Ok(filter)) => (filter, None),
        (wrong, _) => {
            let wrong = wrong.unwrap_or(wish);
            let mistake = format!(
                "`{wrong}` says nothing; use error, warn, info, debug or trace, alone or as in \
                 info,tollgate::request=warn"
            );
            (standard(), Some(mistake))
        }
    }
}

/// Whether it is a word that is no level. It would be taken for a part of the program to log, and
/// nothing else would be logged.
fn is_no_level(part: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = || LEVELS.iter().any(|level| level.eq_ignore_ascii_case(part));
    !part.contains(['=', '[']) && !is_level()
}

/// Says where a panic was. Its message is told only where it is a literal: one that is put together
/// can hold a piece of a prompt, as that of a string cut inside a character does.
fn report(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let message = panic.payload().downcast_ref::<&'static str>();
    let current = std::thread::current();
    tracing::error!(place, message, thread = current.name(), "panicked");
}

/// The near end of stderr: takes an event at a time, and never waits.
#[derive(Clone, Debug)]
struct Sink {
    items: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// Answered once all before it is written.
    Flush(Sender<()>),
}

impl Sink {
    fn new(bound: usize) -> (Self, Receiver<Item>) {
        let (items, waiting) = sync_channel(bound);
        let dropped = Arc::default();
        (Self { items, dropped }, waiting)
    }

    /// Waits until all is written, within a bound: nobody may be reading.
    fn flush(&self) {
        let (written, answer) = channel();
        if self.items.try_send(Item::Flush(written)).is_ok() {
            // Err: what nobody reads is left unwritten.
            let _ = answer.recv_timeout(FLUSH_TIME);
        }
    }
}

impl Write for Sink {
    /// Takes one event: the subscriber writes each whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if self.items.try_send(Item::Line(event.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(waiting: &Receiver<Item>, dropped: &AtomicU64, out: &mut impl Write) {
    while let Ok(item) = waiting.recv() {
        match item {
            Item::Line(line) => {
                // Err: stderr is closed, and there is nowhere left to say so.
                let _ = out.write_all(&line);
            }
            Item::Flush(written) => {
                let _ = written.send(());
            }
        }
        let lines = dropped.swap(0, Ordering::Relaxed);
        if lines > 0 {
            tracing::warn!(lines, "log lines were dropped: stderr was read too slowly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_past_the_bound_are_dropped_and_counted_and_nobody_waits() {
        let (mut sink, waiting) = Sink::new(2);
        for line in ["a\n", "b\n", "c\n", "d\n"] {
            sink.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 2);
        let (dropped, mut out) = (Arc::clone(&sink.dropped), Vec::new());
        drop(sink);
        write_all(&waiting, &dropped, &mut out);
        assert_eq!(out, b"a\nb\n");
        assert_eq!(
            dropped.load(Ordering::Relaxed),
            0,
            "told of, so not told again"
        );
    }

    #[test]
    fn a_flush_returns_once_what_was_logged_before_it_is_written() {
        let (mut sink, waiting) = Sink::new(8);
        sink.write_all(b"before\n").unwrap();
        let writer = std::thread::spawn(move || {
            let mut out = Vec::new();
            write_all(&waiting, &AtomicU64::new(0), &mut out);
            out
        });
        Sink::flush(&sink);
        drop(sink);
        assert_eq!(writer.join().unwrap(), b"before\n");
    }

    #[test]
    fn a_wish_that_can_not_be_read_is_told_and_the_default_holds() {
        assert!(filter(Some("info,tollgate::request=warn")).1.is_none());
        assert!(filter(None).1.is_none());
        let (used, mistake) = filter(Some("tollgate=loud"));
        assert_eq!(used.to_string(), EnvFilter::new(DEFAULT).to_string());
        assert!(
            mistake
                .unwrap()
                .contains("`tollgate=loud` says nothing; use error")
        );
        let (used, mistake) = filter(Some("inf"));
        assert_eq!(used.to_string(), EnvFilter::new(DEFAULT).to_string());
        assert!(
            mistake.unwrap().contains("`inf` says nothing"),
            "a slip of `info`"
        );
        assert!(filter(Some("WARN")).1.is_none());
    }

    #[test]
    fn an_empty_wish_is_none() {
        let (used, mistake) = filter(Some(" "));
        assert_eq!(used.to_string(), EnvFilter::new(DEFAULT).to_string());
        assert_eq!(mistake, None);
    }
}
