//! `tollgate serve`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate_server::config::{Config, EngineConfig, ModelConfig};
use tollgate_server::{ConfigFile, Server, StartError, widen};

use crate::{ServeArgs, banner, check, ledger, logging, model_file, terminal};

/// Where `make model` puts the default model.
const DEFAULT_MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Signals that come so soon after the first are the same wish: supervisors send to a process and
/// to its group, or one of each kind.
const SAME_WISH: Duration = Duration::from_secs(1);

/// A copy of it with larger weights, which computes faster; made once.
const FASTER_MODEL: &str = "SmolLM2-135M-Instruct.Q8_0.gguf";

/// The name it is served under.
const DEFAULT_NAME: &str = "smollm2";

pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    let _logging = logging::start();
    let file = args
        .config
        .clone()
        .map(|path| ConfigFile::new(path, args.listen, args.data_dir.clone()));
    let config = match configure(args) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads(&config))
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no runtime: {error}")),
    };
    let code = match runtime.block_on(run(config, file)) {
        Ok(code) => code,
        Err(error) => {
            fail(&told(&error));
            exit_code(&error)
        }
    };
    // What still runs now was told to end at once.
    runtime.shutdown_background();
    code
}

/// Cores to a thread that carries requests, where engines compute on those cores: for each token
/// one such thread is woken, and a second one to look for more to do, at the engine's cost.
const CORES_OF_ENGINES: usize = 4;

/// Threads that carry requests.
fn threads(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut models = config.models.list().iter();
    let here = |model: &ModelConfig| matches!(model.engine, EngineConfig::Embedded { .. });
    let few = models.all(here).then(|| cores.div_ceil(CORES_OF_ENGINES));
    let wanted = config.server.threads.map(NonZeroUsize::get);
    wanted.or(few).unwrap_or(cores)
}

/// The file's configuration, or the one that holds without a file; flags win over both.
fn configure(args: ServeArgs) -> Result<Config, ExitCode> {
    let mut config = match &args.config {
        Some(path) => check::read(path)?,
        None => Config::for_laptop(default_model(args.model.as_deref())?),
    };
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    if let Some(folder) = args.data_dir {
        config.data_dir = folder;
    }
    if args.config.is_none() && !config.listen.ip().is_loopback() {
        return Err(fail(&format!(
            "without --config any caller is let in, so {} must stay on loopback; write a \
             configuration with keys (docs/tollgate.example.yaml is one) and give --config, or \
             listen on 127.0.0.1",
            config.listen
        )));
    }
    for model in config.models.list() {
        if let EngineConfig::Embedded { path, .. } = &model.engine {
            model_file::look_at(path).map_err(|why| fail(&why))?;
        }
    }
    Ok(config)
}

fn default_model(chosen: Option<&Path>) -> Result<ModelConfig, ExitCode> {
    if let Some(path) = chosen {
        return Ok(ModelConfig::from_file(path));
    }
    let path = Path::new(DEFAULT_MODEL);
    if !path.exists() {
        return Err(fail(&format!(
            "there is no {DEFAULT_MODEL} here; run `make model` in Tollgate's folder to fetch it \
             and start there, or give --model FILE.gguf"
        )));
    }
    let engine = EngineConfig::Embedded {
        path: faster(path),
        threads: None,
        pooling: None,
    };
    Ok(ModelConfig::new(DEFAULT_NAME.to_owned(), engine))
}

/// The faster copy of the default model, where there is one or one can be made.
fn faster(path: &Path) -> PathBuf {
    let copy = path.with_file_name(FASTER_MODEL);
    if copy.exists() {
        return copy;
    }
    let (from, to) = (path.display(), copy.display());
    match widen(path, &copy) {
        Ok(()) => {
            tracing::info!("made {to} of {from}, once: its weights take 145 MB and compute faster");
            copy
        }
        Err(error) => {
            tracing::warn!(%error, "no faster copy of {from} beside it; serving that");
            path.to_owned()
        }
    }
}

async fn run(config: Config, file: Option<ConfigFile>) -> anyhow::Result<ExitCode> {
    let (described, open) = (config.clone(), file.is_none());
    let server = Server::start(config).await?;
    // Not before: loading a model blocks for long, and until there are requests to finish, the
    // system's own way with a signal, to end the process, is right.
    let mut signals = Signals::new().context("can't wait for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("can't wait for signals")?;
    if let Some(file) = file {
        server.follow(file);
    }
    let reload = async {
        while hangup.recv().await.is_some() {
            server.reload();
        }
        std::future::pending::<()>().await;
    };
    let announce = async {
        server.ready().await;
        banner::print(&server, &described, open);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = announce => {}
        () = reload => {}
        () = signals.next() => {}
    }
    tokio::select! {
        () = server.drain() => Ok(ExitCode::SUCCESS),
        () = signals.next_apart() => {
            tracing::warn!("ended at once by a second signal; running answers were cut");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self {
            terminate,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The next one that is a wish of its own, after one that has just come.
    async fn next_apart(&mut self) {
        let same = async {
            loop {
                self.next().await;
            }
        };
        // Err, always: the time is over.
        let _: Result<(), _> = tokio::time::timeout(SAME_WISH, same).await;
        self.next().await;
    }
}

/// An error and what caused it, without causes that the error has told already.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// 2 where somebody must decide something first.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(StartError::Ledger(error)) => ledger::exit_code(error),
        Some(StartError::Store(error)) if error.is_lasting() => ExitCode::from(check::MISTAKES),
        Some(StartError::Overlap(_)) => ExitCode::from(check::MISTAKES),
        Some(
            StartError::Model { .. }
            | StartError::Nothing { .. }
            | StartError::Port { .. }
            | StartError::Trust { .. }
            | StartError::Salt { .. }
            | StartError::Store(_)
            | StartError::Listen { .. }
            | StartError::Admin { .. },
        )
        | None => ExitCode::FAILURE,
    }
}

fn fail(why: &str) -> ExitCode {
    terminal::complain(&format!("tollgate: {why}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::io::Error::other("the disk is gone");
        let error = anyhow::Error::new(cause).context("can't write a: the disk is gone");
        assert_eq!(told(&error), "can't write a: the disk is gone");
        let error = error.context("no ledger");
        assert_eq!(told(&error), "no ledger: can't write a: the disk is gone");
    }
}
