//! An emulated engine behind the OpenAI API: what a load test or a gateway asks when there is no
//! model.
//!
//! It is the simulator's engine in real time, or one that answers at once, or one that follows a
//! script of bytes, waits and resets. It reports itself as vLLM does, and says what it saw. It has
//! no tenants and checks no keys.

mod answer;
mod ask;
mod connection;
mod http;
mod machine;
mod metrics;
mod routes;
mod script;
mod seen;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tollgate_policy::units::Tokens;
use tollgate_sim::emulated::{Config, ConfigError};

use crate::clock::{Clock, unix_secs};

use self::machine::Machine;
use self::seen::SeenLog;

pub use self::script::{Requests, Rule, Script, ScriptError, Step, Wait};

/// Connections at once: above what any gateway opens, below what a process may have by default
/// where that was raised at all. One more waits.
const CONNECTIONS_MAX: usize = 16_384;

/// Connections that may wait to be accepted, unless the system allows fewer: a gateway opens
/// hundreds at once, and one that is dropped comes a second late.
const WAITING_MAX: u32 = 4_096;

/// What an emulated engine is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on; port 0 is any free one.
    pub listen: SocketAddr,
    /// The models it has; the first one names its metrics. A request for another is a 404.
    pub models: Vec<String>,
    /// How long answers take.
    pub pace: Pace,
    /// Answers that go another way.
    pub script: Script,
    /// Requests that are kept for `/seen`, the last ones.
    pub seen: usize,
    /// Output tokens of a request that does not say how many.
    pub output_default: u64,
    /// Threads that serve.
    pub threads: usize,
}

/// How long answers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As long as an engine of these numbers would take.
    Emulated(Config),
    /// No time: whole answers and whole streams at once, with this context.
    Instant(Tokens),
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A number of the engine is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A script that cannot be followed.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// No model.
    #[error("no model; name at least one")]
    NoModel,
    /// A model twice.
    #[error("the model `{0}` is named twice; name each once")]
    ModelTwice(String),
    /// The address is taken, or not ours.
    #[error(
        "cannot listen on {address}: {error}; {} use --listen",
        taken_or_forbidden(error)
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// What may be the matter with an address.
fn taken_or_forbidden(error: &io::Error) -> &'static str {
    match error.kind() == io::ErrorKind::PermissionDenied {
        true => "ports below 1024 take a privilege;",
        false => "is another server there?",
    }
}

/// What an engine has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were read to their end.
    pub requests: u64,
    /// Requests whose client left before their answer was over.
    pub gone: u64,
}

/// An engine that listens; it is gone when this is dropped.
#[derive(Debug)]
pub struct EngineServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    clock: Clock,
    started_unix: u64,
    /// `None` where answers take no time.
    machine: Option<Machine>,
    seen: SeenLog,
    requests: AtomicU64,
    gone: AtomicU64,
}

impl Shared {
    /// The longest prompt and output together.
    fn context(&self) -> u64 {
        match self.settings.pace {
            Pace::Emulated(config) => config.context.get(),
            Pace::Instant(context) => context.get(),
        }
    }
}

impl EngineServer {
    /// Listens, and serves until it is dropped.
    ///
    /// # Errors
    /// A setting is out of range, or the system does not let it.
    pub fn start(settings: Settings) -> Result<Self, EngineError> {
        if settings.models.is_empty() {
            return Err(EngineError::NoModel);
        }
        for (n, model) in settings.models.iter().enumerate() {
            if settings.models[..n].contains(model) {
                return Err(EngineError::ModelTwice(model.clone()));
            }
        }
        settings.script.check()?;
        let clock = Clock::start();
        let machine = match settings.pace {
            Pace::Emulated(config) => Some(Machine::start(config, clock)?),
            Pace::Instant(_) => None,
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(settings.threads.clamp(1, 256))
            .enable_all()
            .build()
            .map_err(EngineError::Thread)?;
        let listen = settings.listen;
        let refused = |error| EngineError::Listen {
            address: listen,
            error,
        };
        let listener = runtime.block_on(async { bind(listen) }).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let shared = Arc::new(Shared {
            seen: SeenLog::new(settings.seen),
            settings,
            clock,
            started_unix: unix_secs(),
            machine,
            requests: AtomicU64::new(0),
            gone: AtomicU64::new(0),
        });
        let accepting = accept(listener, Arc::clone(&shared), runtime.handle().clone());
        drop(runtime.spawn(accepting));
        Ok(Self {
            address,
            shared,
            runtime: Some(runtime),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen so far.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.shared.requests.load(Ordering::Relaxed),
            gone: self.shared.gone.load(Ordering::Relaxed),
        }
    }
}

impl Drop for EngineServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING_MAX)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, handle: Handle) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    for number in 1.. {
        // Err: nobody closes it.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                // Out of files, or the client is gone already: neither lasts.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        };
        let shared = Arc::clone(&shared);
        drop(handle.spawn(async move {
            connection::serve(stream, number, &shared).await;
            drop(place);
        }));
    }
}
