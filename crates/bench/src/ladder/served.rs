//! A cell on a real engine: a server of its own, a probe while nothing else is there, the load.
//!
//! The rung is in the configuration that is written for the cell. The probe is of a tenant of the
//! highest class without limits, sent to an idle engine: nothing decides about it but the engine,
//! so it tells whether the machine is what it was for the cells before.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_policy::slo::{Metric, Terms};
use tollgate_policy::units::{Micros, Time};

use super::record::{Ran, Records};
use super::{Fell, Ladder, Place};
use crate::clock::Clock;
use crate::run::{BenchError, run as offer};
use crate::spec::{Cycle, Identity, Reply, Source, Spec, TenantSpec, Tokenizer};
use crate::stop::Stop;

/// What serves each cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The `tollgate` program.
    pub program: PathBuf,
    /// What it serves.
    pub engine: Engine,
}

/// What a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A model.
    Embedded {
        /// Its file.
        model: PathBuf,
        /// Threads that compute; the server's own choice without.
        threads: Option<usize>,
    },
    /// Made-up text, with steps that take as long as the machine's cost.
    Fake,
}

/// How long a model may take to load.
const STARTS_WITHIN: Micros = Micros::from_secs(120);

/// How long one answer to a probe may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Between two looks whether the server is ready.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bytes that are read of an answer to a probe.
const ANSWER_MAX: u64 = 1024 * 1024;

/// The model's name in each cell.
const MODEL: &str = "ladder";

pub(super) fn run(
    ladder: &Ladder,
    server: &Server,
    (place, records): (&Place, &Records),
    stop: &Stop,
) -> Result<Ran, Fell> {
    let address = free_address().map_err(|error| failed("no port is free", error))?;
    let [config, log, data] = ["yaml", "log", "data"].map(|ending| records.beside(place, ending));
    let text = configuration(ladder, server, place, address, &data.display().to_string());
    fs::write(&config, text).map_err(|error| failed("cannot write the configuration", error))?;
    let running = Running::start(server, &config, &log).map_err(Fell::Failed)?;
    running.wait_until_ready(address, stop)?;
    // The first one pages the model in; the second is the measure.
    canary(address).map_err(Fell::Failed)?;
    let canary_ms = canary(address).map_err(Fell::Failed)?;
    let report = offer(&spec(ladder, place, records, address), stop, |_| {});
    drop(running);
    for leftover in [&config, &log] {
        // Err: then they stay, and are in nobody's way.
        let _ = fs::remove_file(leftover);
    }
    let _ = fs::remove_dir_all(&data);
    match report {
        Ok(report) => Ok(Ran {
            record: report.to_json(),
            canary_ms: Some(canary_ms),
        }),
        Err(BenchError::Stopped { .. }) => Err(Fell::Stopped),
        Err(error) => Err(Fell::Failed(error.to_string())),
    }
}

fn failed(what: &str, error: io::Error) -> Fell {
    Fell::Failed(format!("{what}: {error}"))
}

fn spec(ladder: &Ladder, place: &Place, records: &Records, address: SocketAddr) -> Spec {
    let tenant = TenantSpec {
        load: ladder.tenant(place.load_per_s),
        identity: Identity::TenantHeader,
    };
    Spec {
        endpoint: crate::spec::Endpoint::at(address),
        model: MODEL.to_owned(),
        source: Source::Drawn(vec![tenant]),
        cycle: Cycle::Open,
        reply: Reply::Streamed,
        tokenizer: Tokenizer::Learned,
        timing: ladder.timing,
        seed: place.seed,
        threads: 1,
        rows: Some(records.rows_under_way(place)),
        command: ladder.command.clone(),
    }
}

/// A port that was free a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The rung as a configuration. Where it is the engine that is measured, the window is as wide as
/// the engine and the order is that of arrival; where requests are admitted by latency, they wait
/// before the engine, as they do unless somebody says otherwise.
fn configuration(
    ladder: &Ladder,
    server: &Server,
    place: &Place,
    address: SocketAddr,
    data: &str,
) -> String {
    let machine = ladder.machine;
    let mut model = json!({
        "name": MODEL,
        "max_sequences": machine.sequences,
        "step_tokens": machine.step_tokens,
        "context": machine.context,
        "kv_tokens": machine.kv_tokens,
        "scheduler": place.rung.scheduler_label(),
        "prefix_cache": if place.rung.shares_prefixes() { "on" } else { "off" },
        "queue": { "max_requests": 100_000, "max_wait": "10m" },
    });
    let (order, class) = match place.rung.terms(ladder.slo.terms()) {
        None => {
            let most = machine.sequences;
            model["window"] = json!({ "concurrency": most, "headroom": 0, "prefill": 1_000_000 });
            ("fifo", "reserved")
        }
        Some(terms) => {
            model["slo"] = promise(&terms);
            ("vtc", "standard")
        }
    };
    match &server.engine {
        Engine::Embedded {
            model: path,
            threads,
        } => {
            model["engine"] = json!("embedded");
            model["path"] = json!(path);
            if let Some(threads) = threads {
                model["threads"] = json!(threads);
            }
        }
        Engine::Fake => {
            model["engine"] = json!("fake");
            model["fake"] = json!({
                "step": format!("{}us", machine.cost.step.get()),
                "per_sequence": format!("{}us", machine.cost.per_sequence.get()),
                "prefill_tokens_per_second": machine.cost.prefill_tokens_per_s,
            });
        }
    }
    // JSON is YAML.
    let config = json!({
        "listen": address.to_string(),
        "data_dir": data,
        "identity": { "anonymous": "allow", "trust_tenant_header": true },
        "fairness": { "policy": order },
        "models": [model],
        "tenants": [
            { "name": "canary", "class": "reserved" },
            { "name": "all", "class": class },
        ],
    });
    format!("{config:#}\n")
}

/// A model's `slo`. The probe's class is promised nothing, so nothing is decided about it.
fn promise(terms: &Terms) -> Value {
    let mut slo = json!({
        "alpha": f64::from(terms.alpha.get()) / 1e3,
        "mode": terms.mode.label(),
        "classes": [{ "class": "reserved", "mode": "off" }],
    });
    for metric in Metric::ALL {
        if let Some(limit) = terms.of(metric) {
            slo[metric.label()] = json!(format!("{}us", limit.get()));
        }
    }
    slo
}

/// A server that ends with this value.
struct Running(Child);

impl Running {
    fn start(server: &Server, config: &PathBuf, log: &PathBuf) -> Result<Self, String> {
        let program = server.program.display();
        let start = || {
            let log = File::create(log)?;
            Command::new(&server.program)
                .arg("serve")
                .arg("--config")
                .arg(config)
                .stdin(Stdio::null())
                .stdout(Stdio::from(log.try_clone()?))
                .stderr(Stdio::from(log))
                .spawn()
        };
        let child =
            start().map_err(|error: io::Error| format!("cannot start {program}: {error}"))?;
        Ok(Self(child))
    }

    fn wait_until_ready(&self, address: SocketAddr, stop: &Stop) -> Result<(), Fell> {
        let clock = Clock::start();
        while clock.now().since(Time::START) < STARTS_WITHIN {
            let request =
                format!("GET /ready HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            if ask(address, &request).is_ok_and(|answer| is_success(&answer)) {
                return Ok(());
            }
            if stop.is_pulled() {
                return Err(Fell::Stopped);
            }
            stop.sleep(LOOK_EVERY);
        }
        let secs = STARTS_WITHIN.secs_up();
        Err(Fell::Failed(format!(
            "the server was not ready after {secs} s; its log is beside the cell"
        )))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Err: it has ended by itself, which the rows show.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const CANARY: &str = "The toll gate stands on a long road. ";

/// How long one small request takes, in milliseconds.
fn canary(address: SocketAddr) -> Result<f64, String> {
    let body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": CANARY.repeat(16) }],
        "max_tokens": 16,
        "ignore_eos": true,
        "temperature": 0,
    });
    let body = body.to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nx-tenant-id: canary\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let clock = Clock::start();
    let answer = ask(address, &request).map_err(|error| format!("the probe failed: {error}"))?;
    if !is_success(&answer) {
        let shown: String = answer.chars().take(300).collect();
        return Err(format!("the probe was answered with {shown}"));
    }
    Ok(clock.now().since(Time::START).get() as f64 / 1e3)
}

fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn is_success(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200")
}
