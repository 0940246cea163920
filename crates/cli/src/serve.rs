//! `tollgate serve`.

use std::path::Path;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate_server::Server;
use tollgate_server::config::{Config, EngineConfig, ModelConfig};

use crate::{ServeArgs, banner, check, logging};

/// Where `make model` puts the default model.
const DEFAULT_MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The name it is served under.
const DEFAULT_NAME: &str = "smollm2";

pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    logging::start();
    let open = args.config.is_none();
    let config = match configure(args) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no runtime: {error}")),
    };
    match runtime.block_on(run(config, open)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}")),
    }
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
             configuration with keys (README.md has one), or listen on 127.0.0.1",
            config.listen
        )));
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
            "there is no {DEFAULT_MODEL}; run `make model` to fetch it, or give --model FILE.gguf"
        )));
    }
    let engine = EngineConfig::Embedded {
        path: path.to_owned(),
        threads: None,
    };
    Ok(ModelConfig::new(DEFAULT_NAME.to_owned(), engine))
}

async fn run(config: Config, open: bool) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let described = config.clone();
    let server = Server::start(config).await?;
    let announce = async {
        server.ready().await;
        banner::print(&server, &described, open);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = announce => {}
        () = signals.next() => {}
    }
    tokio::select! {
        () = server.drain() => Ok(()),
        () = signals.next() => anyhow::bail!("ended at once by a second signal"),
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
}

fn fail(why: &str) -> ExitCode {
    eprintln!("tollgate: {why}");
    ExitCode::FAILURE
}
