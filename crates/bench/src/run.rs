//! A run from its specification to its report.
//!
//! Three parts that never wait for one another: the pacer's thread hands requests on when they are
//! due, the runtime's threads send them and read the answers, the caller's thread collects rows.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate_policy::units::{Micros, Time};
use tollgate_sim::workload::{Arrival, Workload, WorkloadError};

use crate::clock::{Clock, unix_secs};
use crate::connections::Connections;
use crate::exchange::{Asker, Session, client, headers, whole_session};
use crate::pace::pace;
use crate::prompts::{PROBE_BYTES, Prompts, probe};
use crate::reply::Window;
use crate::report::Report;
use crate::rows::{Ending, Row, RowFile};
use crate::secure::Secure;
use crate::spec::{Cycle, Demand, Endpoint, Identity, Source, Spec};
use crate::stop::Stop;

/// As many requests may be open at once. Far above what any engine serves: it guards the machine
/// that sends, and a run that meets it is invalid.
pub(crate) const IN_FLIGHT_MAX: usize = 16_384;

/// More threads than this send no faster.
const THREADS_MAX: usize = 256;

/// The span whose requests a closed loop draws from.
const CLOSED_WORKLOAD: Micros = Micros::from_secs(100_000_000);

/// How often the one who waits hears how far it is.
const PROGRESS_EVERY: Micros = Micros::from_secs(1);

/// How long an endpoint may take to accept the first connection, and to answer a probe.
const PROBE_WAIT: Duration = Duration::from_secs(30);

/// The number of a request that is no part of a load: at the other end than those.
const TRIAL: u64 = u64::MAX - 8;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time since its start.
    pub at: Time,
    /// Requests open now.
    pub open: usize,
    /// Requests completed so far.
    pub completed: u64,
    /// Requests refused so far.
    pub refused: u64,
    /// Requests that failed so far.
    pub failed: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            open,
            completed,
            refused,
            failed,
        } = self;
        let secs = at.as_micros() / 1_000_000;
        write!(
            f,
            "{secs} s: {open} open, {completed} completed, {refused} refused, {failed} failed"
        )
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The warm-up leaves nothing to measure.
    #[error("the warm-up is as long as the run; make it shorter than the duration")]
    NothingMeasured,
    /// The workload cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A key or a tenant's name has characters that no header takes.
    #[error("the key or the name of tenant `{0}` cannot stand in an HTTP header")]
    Header(String),
    /// Nothing answers there.
    #[error("nothing answers at {endpoint}: {error}; is it running?")]
    Down {
        /// The endpoint.
        endpoint: String,
        /// What the system said.
        error: io::Error,
    },
    /// What a text costs could not be learned.
    #[error("cannot learn from {endpoint} what a prompt costs: {why}")]
    Probe {
        /// The endpoint.
        endpoint: String,
        /// What it answered.
        why: String,
    },
    /// The endpoint does not serve one request such as those to come.
    #[error("{endpoint} does not serve a prompt of {prompt} tokens with {output} of answer: {why}")]
    Unserved {
        /// The endpoint.
        endpoint: String,
        /// Prompt tokens of the request.
        prompt: u64,
        /// Output tokens that it asked for.
        output: u64,
        /// What it answered, and what to do about it.
        why: String,
    },
    /// The raw rows cannot be written. Those before are kept.
    #[error("cannot write raw rows to {}: {error}; the run was stopped", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Somebody stopped it. The rows so far are kept.
    #[error("stopped after {} s, so there is no report; {kept}", at.as_micros() / 1_000_000)]
    Stopped {
        /// Time since its start.
        at: Time,
        /// What is left of it, for a person.
        kept: String,
    },
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Runs the load and reports; blocks until it is over. `on_progress` is called about every second.
///
/// # Errors
/// The load cannot be offered at all, or the raw rows cannot be kept. A run whose numbers cannot
/// be trusted is no error: its report is invalid and says why.
pub fn run(
    spec: &Spec,
    stop: &Stop,
    on_progress: impl FnMut(&Progress),
) -> Result<Report, BenchError> {
    run_on(spec, stop, Clock::start, on_progress).map(|(report, _)| report)
}

/// As [`run`], and the rows that the report was made of.
pub(crate) fn run_keeping_rows(
    spec: &Spec,
    stop: &Stop,
    on_progress: impl FnMut(&Progress),
) -> Result<(Report, Vec<Row>), BenchError> {
    run_on(spec, stop, Clock::start, on_progress)
}

/// Asks for one such request before any load, so that a mistake is told before a long run.
pub(crate) fn try_one(spec: &Spec, demand: Demand, stop: &Stop) -> Result<(), BenchError> {
    let Ready {
        runtime,
        asker,
        prompts,
        ..
    } = ready(spec)?;
    let text = prompts.text(TRIAL, demand.prompt, None);
    let asked = async {
        let patience = Duration::from_micros(spec.timing.drain.get());
        tokio::select! {
            answer = tokio::time::timeout(patience, asker.ask_whole(&text, demand.output)) => {
                answer.unwrap_or_else(|_| Err(format!("no answer in {} s", patience.as_secs())))
            }
            () = stop.pulled() => Err("stopped".to_owned()),
        }
    };
    let answer = runtime.block_on(asked);
    runtime.shutdown_background();
    if stop.is_pulled() {
        let (at, kept) = (Time::START, "nothing was measured yet".to_owned());
        return Err(BenchError::Stopped { at, kept });
    }
    answer.map(drop).map_err(|why| BenchError::Unserved {
        endpoint: spec.endpoint.to_string(),
        prompt: demand.prompt,
        output: demand.output,
        why,
    })
}

/// All that a run needs before it sends anything.
struct Ready {
    runtime: Runtime,
    workload: Workload,
    asker: Asker,
    prompts: Prompts,
}

/// Looks at everything that can be wrong before a run.
fn ready(spec: &Spec) -> Result<Ready, BenchError> {
    if spec.timing.measured() == Micros::ZERO {
        return Err(BenchError::NothingMeasured);
    }
    let workload = workload(spec)?;
    let address = resolve(&spec.endpoint)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(spec.threads.clamp(1, THREADS_MAX))
        .enable_all()
        .build()
        .map_err(BenchError::Thread)?;
    let asker = asker(spec, &workload, address, runtime.handle())?;
    let prompts = runtime.block_on(prepare(spec, &asker))?;
    Ok(Ready {
        runtime,
        workload,
        asker,
        prompts,
    })
}

/// As [`run`], on a clock that is started when the load begins.
fn run_on(
    spec: &Spec,
    stop: &Stop,
    start: impl FnOnce() -> Clock,
    on_progress: impl FnMut(&Progress),
) -> Result<(Report, Vec<Row>), BenchError> {
    let Ready {
        runtime,
        workload,
        asker,
        prompts,
    } = ready(spec)?;
    let mut sink = Sink {
        file: create_rows(spec, workload.tenants())?,
        path: spec.rows.clone().unwrap_or_default(),
        on_progress,
    };
    let started_unix = unix_secs();
    let timing = spec.timing;
    let window = Window {
        from: Time::START + timing.warm_up,
        until: Time::START + timing.duration,
    };
    let session = Session {
        asker,
        clock: start(),
        prompts,
        window,
        over: CancellationToken::new(),
    };
    let load = Load {
        session: Arc::new(session),
        tasks: TaskTracker::new(),
        cycle: spec.cycle,
        stop: stop.clone(),
        broken: AtomicBool::new(false),
    };
    let rows = load.offer(&runtime, &workload, timing.drain, &mut sink)?;
    // Connections may still be open; none of them is waited for.
    runtime.shutdown_background();
    if stop.is_pulled() {
        return Err(stopped(spec, load.session.clock.now(), rows.len()));
    }
    let report = Report::new(spec, workload.tenants(), &rows, started_unix);
    Ok((report, rows))
}

/// A run under way.
#[derive(Debug)]
struct Load {
    session: Arc<Session>,
    tasks: TaskTracker,
    cycle: Cycle,
    stop: Stop,
    /// Rows cannot be kept any more, so no more are made.
    broken: AtomicBool,
}

impl Load {
    /// Offers the workload; gives all rows once every request has ended.
    fn offer<F: FnMut(&Progress)>(
        &self,
        runtime: &Runtime,
        workload: &Workload,
        drain: Micros,
        sink: &mut Sink<F>,
    ) -> Result<Vec<Row>, BenchError> {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("pacer".to_owned())
                .spawn_scoped(scope, move || {
                    match self.cycle {
                        Cycle::Open => self.send_all(runtime, workload, &sender),
                        Cycle::Closed(clients) => {
                            self.send_in_turn(runtime, workload, clients.get(), &sender);
                        }
                    }
                    self.tasks.close();
                    drop(sender);
                    self.drain(runtime, Duration::from_micros(drain.get()));
                })
                .map_err(BenchError::Thread)?;
            sink.collect(self, &receiver).map_err(|error| {
                let path = sink.path.clone();
                BenchError::Rows { path, error }
            })
        })
    }

    fn send_all(&self, runtime: &Runtime, workload: &Workload, rows: &Sender<Row>) {
        pace(
            &self.session.clock,
            &self.stop,
            workload.arrivals(),
            |arrival, number| {
                if self.broken.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                if self.tasks.len() >= IN_FLIGHT_MAX {
                    // Err: see `broken`.
                    let _ = rows.send(not_sent(arrival, self.session.clock.now()));
                    return ControlFlow::Continue(());
                }
                let session = Arc::clone(&self.session);
                let rest = (workload.turns(&arrival), rows.clone());
                let task = whole_session(session, arrival, number, rest);
                drop(runtime.spawn(self.tasks.track_future(task)));
                ControlFlow::Continue(())
            },
        );
    }

    /// Starts the clients of a closed loop, and waits until they are to stop.
    fn send_in_turn(
        &self,
        runtime: &Runtime,
        workload: &Workload,
        clients: usize,
        rows: &Sender<Row>,
    ) {
        let arrivals = Arc::new(Mutex::new((0..).zip(workload.arrivals())));
        for _ in 0..clients {
            let session = Arc::clone(&self.session);
            let task = client(session, Arc::clone(&arrivals), rows.clone());
            drop(runtime.spawn(self.tasks.track_future(task)));
        }
        let until = self.session.window.until;
        while !self.is_cut_short() && !self.session.clock.until(until).is_zero() {
            let wait = self.session.clock.until(until);
            self.stop.sleep(wait.min(Duration::from_millis(100)));
        }
    }

    /// Whether no more is to be sent, and nothing open to be awaited.
    fn is_cut_short(&self) -> bool {
        self.broken.load(Ordering::Relaxed) || self.stop.is_pulled()
    }

    /// Waits for open requests, and ends those that take longer than `at_most`.
    fn drain(&self, runtime: &Runtime, at_most: Duration) {
        let at_most = if self.is_cut_short() {
            Duration::ZERO
        } else {
            at_most
        };
        runtime.block_on(async {
            tokio::select! {
                // Err: it took longer, so the rest is cut.
                _ = tokio::time::timeout(at_most, self.tasks.wait()) => {}
                () = self.stop.pulled() => {}
            }
            self.session.over.cancel();
            self.tasks.wait().await;
        });
    }
}

/// Where rows go, and who hears how far the run is.
struct Sink<F> {
    file: Option<RowFile>,
    /// Of the file; empty if there is none.
    path: PathBuf,
    on_progress: F,
}

impl<F: FnMut(&Progress)> Sink<F> {
    /// Takes rows until the last sender is gone.
    fn collect(&mut self, load: &Load, rows: &Receiver<Row>) -> io::Result<Vec<Row>> {
        let (mut kept, mut progress) = (Vec::new(), Progress::default());
        let mut result = Ok(());
        loop {
            match rows.recv_timeout(Duration::from_millis(100)) {
                Ok(row) => {
                    progress.count(&row.ending);
                    if let (Some(file), Ok(())) = (&mut self.file, &result) {
                        result = file.write(&row);
                    }
                    kept.push(row);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = load.session.clock.now();
            if now.since(progress.at) >= PROGRESS_EVERY {
                (progress.at, progress.open) = (now, load.tasks.len());
                (self.on_progress)(&progress);
                if let (Some(file), Ok(())) = (&mut self.file, &result) {
                    result = file.flush();
                }
            }
            load.broken.store(result.is_err(), Ordering::Relaxed);
        }
        result?;
        if let Some(file) = &mut self.file {
            file.flush()?;
        }
        Ok(kept)
    }
}

impl Progress {
    fn count(&mut self, ending: &Ending) {
        match ending {
            Ending::Completed => self.completed += 1,
            Ending::Refused(_) => self.refused += 1,
            Ending::Failed(_) => self.failed += 1,
            Ending::Unfinished | Ending::NotSent => {}
        }
    }
}

fn stopped(spec: &Spec, at: Time, count: usize) -> BenchError {
    let kept = match &spec.rows {
        Some(path) => format!("{count} rows are in {}", path.display()),
        None => format!("{count} rows are lost, as no --rows FILE was named"),
    };
    BenchError::Stopped { at, kept }
}

fn workload(spec: &Spec) -> Result<Workload, BenchError> {
    let until = match spec.cycle {
        Cycle::Open => Time::START + spec.timing.duration,
        // What is due when does not matter: there must only be enough of it.
        Cycle::Closed(_) => Time::START + CLOSED_WORKLOAD,
    };
    Ok(match &spec.source {
        Source::Drawn(tenants) => {
            let loads = tenants.iter().map(|tenant| tenant.load.clone()).collect();
            Workload::drawn(loads, until, spec.seed)?
        }
        Source::Replayed { trace, speed, .. } => {
            Workload::replayed(trace, *speed, until, spec.seed)?
        }
    })
}

fn asker(
    spec: &Spec,
    workload: &Workload,
    address: SocketAddr,
    runtime: &Handle,
) -> Result<Asker, BenchError> {
    let secure = spec.endpoint.secured().map(Secure::by_system).transpose();
    let secure = secure.map_err(|error| down(&spec.endpoint, error))?;
    Ok(Asker {
        connections: Connections::new(address, secure, runtime.clone()),
        path: spec.endpoint.chat_path(),
        model: spec.model.clone(),
        reply: spec.reply,
        headers: all_headers(spec, workload)?,
    })
}

fn all_headers(spec: &Spec, workload: &Workload) -> Result<Vec<HeaderMap>, BenchError> {
    let identity = |index: usize| match &spec.source {
        Source::Drawn(tenants) => tenants.get(index).map(|tenant| &tenant.identity),
        Source::Replayed { identity, .. } => Some(identity),
    };
    let names = workload.tenants().iter().enumerate();
    names
        .map(|(index, name)| {
            let identity = identity(index).unwrap_or(&Identity::TenantHeader);
            headers(&spec.endpoint, identity, name).ok_or_else(|| BenchError::Header(name.clone()))
        })
        .collect()
}

fn resolve(endpoint: &Endpoint) -> Result<SocketAddr, BenchError> {
    let found = endpoint
        .authority()
        .to_socket_addrs()
        .and_then(|mut found| {
            found
                .next()
                .ok_or_else(|| io::Error::other("the name has no address"))
        });
    found.map_err(|error| down(endpoint, error))
}

fn down(endpoint: &Endpoint, error: io::Error) -> BenchError {
    BenchError::Down {
        endpoint: endpoint.to_string(),
        error,
    }
}

/// Sees that the endpoint is there, and learns what a prompt costs where that is not told.
async fn prepare(spec: &Spec, asker: &Asker) -> Result<Prompts, BenchError> {
    let endpoint = || spec.endpoint.to_string();
    let in_time = tokio::time::timeout(PROBE_WAIT, asker.connections.open()).await;
    let opened = in_time.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    asker
        .connections
        .keep(opened.map_err(|error| down(&spec.endpoint, error))?);
    if let Some(told) = Prompts::told(spec.tokenizer, spec.seed) {
        return Ok(told);
    }
    let failed = |why: String| BenchError::Probe {
        endpoint: endpoint(),
        why,
    };
    let mut counts = [0; 2];
    for (count, (number, bytes)) in counts.iter_mut().zip((0..).zip(PROBE_BYTES)) {
        // Numbers of the other end than the run's own: no text is asked for twice.
        let text = probe(spec.seed, u64::MAX - number, bytes);
        let counted = tokio::time::timeout(PROBE_WAIT, asker.ask_whole(&text, 1)).await;
        *count = counted
            .map_err(|_| failed("no answer".to_owned()))?
            .map_err(failed)?;
    }
    let [short, long] = counts;
    Prompts::learned(counts, spec.seed).ok_or_else(|| {
        failed(format!(
            "{short} tokens for a short text, {long} for one ten times as long"
        ))
    })
}

fn create_rows(spec: &Spec, tenants: &[String]) -> Result<Option<RowFile>, BenchError> {
    let create = |path: &PathBuf| {
        RowFile::create(path, tenants).map_err(|error| BenchError::Rows {
            path: path.clone(),
            error,
        })
    };
    spec.rows.as_ref().map(create).transpose()
}

fn not_sent(arrival: Arrival, now: Time) -> Row {
    Row {
        tenant: arrival.tenant,
        intended: arrival.at,
        sent: None,
        first_token: None,
        last_token: None,
        end: now,
        status: None,
        ending: Ending::NotSent,
        prompt_asked: arrival.prompt.get(),
        output_asked: arrival.output.get(),
        prompt_tokens: None,
        output_tokens: None,
        deltas: 0,
        deltas_in_window: 0,
        request_id: String::new(),
        gaps: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
