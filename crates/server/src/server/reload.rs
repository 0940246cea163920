//! Takes on a changed configuration while the server runs: all of it, or nothing.
//!
//! Who may call and what they may have changes live; what the process is built from does not. What
//! was used of a limit is the policy's to keep.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::app::App;
use crate::config::{Config, Problem, parse};

/// How often the file is looked at.
const POLL: Duration = Duration::from_secs(1);

/// Problems of one file that are logged at most.
const LOGGED_MAX: usize = 100;

/// A configuration file that may change, and what is said beside it on the command line.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    listen: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    seen: Option<Stamp>,
}

/// Why a file gives no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It can't be read at all.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// There are mistakes in it, in the order of the file; at least one.
    #[error("{} mistakes; the first: {}", .0.len(), .0[0])]
    Mistakes(Vec<Problem>),
}

/// What changes of a file when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    written: SystemTime,
    bytes: u64,
}

impl ConfigFile {
    /// The file at `path` as it is now; `listen` and `data_dir` win over what it says. To be called
    /// before it is first read, so that no change in between is missed.
    pub fn new(path: PathBuf, listen: Option<SocketAddr>, data_dir: Option<PathBuf>) -> Self {
        let seen = Stamp::of(&path);
        Self {
            path,
            listen,
            data_dir,
            seen,
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`Unreadable`], with everything that is wrong.
    pub fn read(&self) -> Result<Config, Unreadable> {
        let text = std::fs::read_to_string(&self.path)?;
        let env = |variable: &str| std::env::var(variable).ok();
        let mut config = parse(&text, &env).map_err(Unreadable::Mistakes)?;
        config.listen = self.listen.unwrap_or(config.listen);
        if let Some(folder) = &self.data_dir {
            config.data_dir.clone_from(folder);
        }
        Ok(config)
    }
}

impl Stamp {
    /// Nothing where there is no file: one that is being replaced is back soon.
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            written: found.modified().ok()?,
            bytes: found.len(),
        })
    }
}

/// Tells a change that is over from one that is going on: a file that is half written may well be
/// without a mistake.
#[derive(Debug)]
struct Changes {
    taken: Option<Stamp>,
    last: Option<Stamp>,
}

impl Changes {
    fn since(taken: Option<Stamp>) -> Self {
        Self { taken, last: taken }
    }

    /// Whether there is a change, and it has stood still since the file was last looked at.
    fn is_over(&mut self, now: Option<Stamp>) -> bool {
        let still = std::mem::replace(&mut self.last, now) == now;
        let over = still && now.is_some() && now != self.taken;
        if over {
            self.taken = now;
        }
        over
    }

    /// The file is read as it is now.
    fn take(&mut self, now: Option<Stamp>) {
        (self.taken, self.last) = (now, now);
    }
}

/// Takes on each change of `file`, and the file as it is whenever `asked`. `running` is the
/// configuration that the server was started with.
pub(crate) async fn follow(
    file: ConfigFile,
    running: Arc<Config>,
    app: Arc<App>,
    asked: Arc<Notify>,
) {
    let mut changes = Changes::since(file.seen);
    let file = Arc::new(file);
    let mut tick = tokio::time::interval(POLL);
    loop {
        tokio::select! {
            _ = tick.tick() => {
                if !changes.is_over(stamp(&file).await) {
                    continue;
                }
            }
            () = asked.notified() => changes.take(stamp(&file).await),
        }
        let read = {
            let file = Arc::clone(&file);
            tokio::task::spawn_blocking(move || file.read()).await
        };
        if let Ok(read) = read {
            reload(&file.path, read, &running, &app);
        }
    }
}

async fn stamp(file: &Arc<ConfigFile>) -> Option<Stamp> {
    let file = Arc::clone(file);
    let looked = tokio::task::spawn_blocking(move || Stamp::of(&file.path)).await;
    looked.unwrap_or_default()
}

/// Takes on what was read, or says why not.
fn reload(path: &Path, read: Result<Config, Unreadable>, running: &Config, app: &App) {
    let file = path.display();
    let applied = match read {
        Err(Unreadable::File(error)) => {
            tracing::error!(%file, %error, "the configuration can't be read; the old one stays");
            false
        }
        Err(Unreadable::Mistakes(problems)) => {
            for problem in problems.iter().take(LOGGED_MAX) {
                tracing::error!(%file, %problem, "a mistake in the changed configuration");
            }
            let count = problems.len();
            tracing::error!(%file, count, "the changed configuration is refused");
            false
        }
        Ok(config) => {
            let sections = needs_restart(running, &config);
            if sections.is_empty() {
                apply(config, app);
                tracing::info!(%file, "the changed configuration holds from now on");
                true
            } else {
                let sections = sections.join(", ");
                tracing::error!(
                    %file,
                    "the changed configuration is refused and the old one stays; needs a restart: \
                     {sections}"
                );
                false
            }
        }
    };
    let result = if applied { "applied" } else { "refused" };
    app.desk.books().metrics().reloaded(result);
}

/// The sections that differ and can't change while the server runs.
fn needs_restart(running: &Config, new: &Config) -> Vec<&'static str> {
    let Config {
        listen,
        data_dir,
        admin,
        ledger,
        admission,
        server,
        metrics: _,
        identity: _,
        models,
        tenants: _,
        store,
        prices: _,
        fairness,
    } = new;
    let same = [
        ("listen", *listen == running.listen),
        ("data_dir", *data_dir == running.data_dir),
        ("admin", *admin == running.admin),
        ("ledger", *ledger == running.ledger),
        ("admission", *admission == running.admission),
        ("server", *server == running.server),
        ("store", *store == running.store),
        ("models", models.differ_in_replicas_alone(&running.models)),
        (
            "fairness.policy",
            fairness.policy == running.fairness.policy,
        ),
    ];
    let differ = same.iter().filter(|(_, same)| !same);
    differ.map(|(section, _)| *section).collect()
}

/// Takes on a configuration that differs only in what may.
fn apply(config: Config, app: &App) {
    app.roster.take_on(config.models.list());
    app.membership.configure(app, config);
    app.clerk.changed();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(millis: u64, bytes: u64) -> Option<Stamp> {
        let written = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        Some(Stamp { written, bytes })
    }

    #[test]
    fn a_change_is_taken_on_once_and_only_when_it_is_over() {
        let (old, half, new) = (stamp(1, 90), stamp(2, 40), stamp(3, 80));
        let mut changes = Changes::since(old);
        let seen = [old, half, new, new, new, new];
        let over = seen.map(|stamp| changes.is_over(stamp));
        assert_eq!(over, [false, false, false, true, false, false]);
    }

    #[test]
    fn a_file_that_is_gone_for_a_while_has_not_changed() {
        let (old, new) = (stamp(1, 90), stamp(2, 90));
        let mut changes = Changes::since(old);
        let seen = [None, None, None, old, old, None, new, new];
        let over = seen.map(|stamp| changes.is_over(stamp));
        assert_eq!(
            over,
            [false, false, false, false, false, false, false, true]
        );
    }

    #[test]
    fn what_was_read_when_asked_is_not_read_again() {
        let new = stamp(2, 90);
        let mut changes = Changes::since(stamp(1, 90));
        changes.take(new);
        assert!(!changes.is_over(new) && !changes.is_over(new));
    }

    fn config(text: &str) -> Config {
        parse(
            &format!("identity: {{ anonymous: allow }}\n{text}"),
            &|_| None,
        )
        .unwrap()
    }

    #[test]
    fn a_section_that_can_not_change_live_is_named() {
        let running = config("models: [{ name: m, engine: fake }]");
        let live = "\
models: [{ name: m, engine: fake }]
metrics: { expose: any }
tenants: [{ name: t, weight: 3, limits: { rpm: 5 } }]
default_tenant: { class: standard }
fairness: { input_weight: 2, cached_weight: 10%, floors_max: 80% }
";
        assert_eq!(needs_restart(&running, &config(live)), [""; 0]);
        let other = "\
listen: 127.0.0.1:1
data_dir: elsewhere
admin: { listen: 127.0.0.1:2 }
server: { drain: 2s }
store: { request_log: 1h }
models: [{ name: m, engine: fake, max_sequences: 3 }]
fairness: { policy: drr }
";
        let sections = needs_restart(&running, &config(other)).join(" ");
        assert_eq!(
            sections,
            "listen data_dir admin server store models fairness.policy"
        );
    }
}
