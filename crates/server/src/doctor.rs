//! Looks at everything that a configuration relies on, and says what is wrong and what to do.
//!
//! It asks engines, files and ports, and changes none of them; one short request for a stream is
//! all that it costs an engine. That a configuration can be read at all was seen to before.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::process::Command;

use crate::config::{Config, EngineConfig, ModelConfig, RemoteConfig, RemoteKind};
use crate::replicas::roster::{Maker, Member};
use crate::upstream::engines;
use crate::upstream::exchange::{Failed, get, post};
use crate::upstream::{Names, RemoteModel, Upstream};

/// How long an engine may take to answer each question.
const PATIENCE: Duration = Duration::from_secs(10);

/// How good or bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// It works, and could be better.
    Doubtful,
    /// It does not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub about: String,
    /// How good it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do about it, where something is to be done.
    pub remedy: Option<String>,
}

/// What was found so far about one thing.
struct Findings<'a> {
    about: String,
    all: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    fn note(&mut self, grade: Grade, found: impl Into<String>, remedy: Option<String>) {
        self.all.push(Finding {
            about: self.about.clone(),
            grade,
            found: found.into(),
            remedy,
        });
    }

    fn good(&mut self, found: impl Into<String>) {
        self.note(Grade::Good, found, None);
    }

    fn doubtful(&mut self, found: impl Into<String>, remedy: impl Into<String>) {
        self.note(Grade::Doubtful, found, Some(remedy.into()));
    }

    fn bad(&mut self, found: impl Into<String>, remedy: impl Into<String>) {
        self.note(Grade::Bad, found, Some(remedy.into()));
    }
}

/// Looks at everything that `config` relies on.
pub async fn examine(config: &Config) -> Vec<Finding> {
    let mut all = Vec::new();
    ports(config, &mut all);
    folder(&config.data_dir, &mut all);
    devices(&mut all).await;
    for model in config.models.list() {
        match &model.engine {
            EngineConfig::Embedded { path, .. } => file(model, path, &mut all),
            EngineConfig::Fake(_) => {
                let mut findings = about(&mut all, format!("model {}", model.name));
                findings.doubtful(
                    "its answers are made up",
                    "use another engine for real ones",
                );
            }
            EngineConfig::Remote(remote) => engines_of(config, model, remote, &mut all).await,
        }
    }
    all
}

fn about(all: &mut Vec<Finding>, about: String) -> Findings<'_> {
    Findings { about, all }
}

fn ports(config: &Config, all: &mut Vec<Finding>) {
    let wanted = [
        ("listen", Some(config.listen)),
        (
            "admin.listen",
            config.admin.as_ref().map(|admin| admin.listen),
        ),
    ];
    for (key, address) in wanted {
        let Some(address) = address else { continue };
        let mut findings = about(all, key.to_owned());
        match TcpListener::bind(address) {
            Ok(_) => findings.good(format!("{address} is free")),
            Err(error) => findings.doubtful(
                format!("{address} can't be listened on: {error}"),
                format!("if Tollgate runs there already all is well; else change {key}"),
            ),
        }
    }
}

fn folder(path: &Path, all: &mut Vec<Finding>) {
    let mut findings = about(all, format!("data_dir {}", path.display()));
    let probe = path.join(".doctor");
    let tried = std::fs::create_dir_all(path).and_then(|()| std::fs::write(&probe, b""));
    match tried {
        Ok(()) => {
            // Err: it was removed by somebody else.
            let _ = std::fs::remove_file(&probe);
            findings.good("can be written to");
        }
        Err(error) => {
            let remedy = "let this user write there, or name another data_dir";
            findings.bad(format!("can't be written to: {error}"), remedy);
        }
    }
}

fn file(model: &ModelConfig, path: &Path, all: &mut Vec<Finding>) {
    let mut findings = about(all, format!("model {}", model.name));
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let mib = found.len() >> 20;
            findings.good(format!("{} has {mib} MiB", path.display()));
        }
        Ok(_) => findings.bad(
            format!("{} is no file", path.display()),
            "name a GGUF file in models[].path",
        ),
        Err(error) => findings.bad(
            format!("{}: {error}", path.display()),
            "run `make model`, or name a GGUF file in models[].path",
        ),
    }
}

/// What the driver says of the devices, where there is one to ask.
async fn devices(all: &mut Vec<Finding>) {
    let mut asking = Command::new("nvidia-smi");
    asking.args([
        "--query-gpu=name,driver_version,memory.total,memory.used",
        "--format=csv,noheader",
    ]);
    asking.kill_on_drop(true);
    let Ok(asked) = tokio::time::timeout(PATIENCE, asking.output()).await else {
        let mut findings = about(all, "devices".to_owned());
        findings.bad(
            "nvidia-smi does not answer",
            "look at the driver: `dmesg | grep -i nvrm`",
        );
        return;
    };
    // Err: no such program, so no such devices.
    let Ok(output) = asked else { return };
    let mut findings = about(all, "devices".to_owned());
    if output.status.success() {
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            findings.good(line.trim());
        }
    } else {
        let said = String::from_utf8_lossy(&output.stdout);
        findings.bad(
            said.trim(),
            "install the driver that fits the kernel, or restart",
        );
    }
}

/// The engines of one model that run in other processes.
async fn engines_of(
    config: &Config,
    model: &ModelConfig,
    remote: &RemoteConfig,
    all: &mut Vec<Finding>,
) {
    let names = Names {
        here: model.name.clone(),
        there: remote.model.clone().unwrap_or_else(|| model.name.clone()),
    };
    let routing = model.routing.clone();
    let as_remote = RemoteModel::new(remote.clone(), names, model.context, routing, [0; 32]);
    let maker = Maker::new(&config.data_dir);
    counts(model, remote, all);
    for replica in &model.replicas {
        if let Some(command) = &replica.command {
            let mut findings = about(all, format!("model {}", model.name));
            program(
                command.words.first().map_or("", String::as_str),
                &mut findings,
            );
        }
    }
    let member = match Member::new(model, as_remote, &maker, 0) {
        Ok(member) => member,
        Err(error) => {
            let mut findings = about(all, format!("model {}", model.name));
            findings.bad(
                format!("no port for its engines: {error}"),
                "free some ports",
            );
            return;
        }
    };
    for upstream in member.model.replicas() {
        if upstream.hosting.is_none() {
            let address = upstream.pool.address().to_string();
            let findings = about(all, format!("model {}, {address}", model.name));
            one(config, model, &member.model, &upstream, findings).await;
        }
    }
}

/// What prompts are counted by before the engine has.
fn counts(model: &ModelConfig, remote: &RemoteConfig, all: &mut Vec<Finding>) {
    let mut findings = about(all, format!("model {}", model.name));
    match &remote.tokenizer {
        Some(tokenizer) => {
            let (path, tokens) = (tokenizer.path().display(), tokenizer.vocabulary());
            findings.good(format!("prompts are counted by {path}, of {tokens} tokens"));
        }
        None => findings.good("prompts are reckoned by their length until the engine has counted"),
    }
}

fn program(name: &str, findings: &mut Findings<'_>) {
    let is_there = if name.contains('/') {
        Path::new(name).exists()
    } else {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(name).exists())
    };
    if is_there {
        findings.good(format!("{name} is there to start its engine"));
    } else {
        findings.bad(
            format!("there is no program {name}"),
            "install it, or give its whole path in replicas[].command",
        );
    }
}

/// One engine.
async fn one(
    config: &Config,
    model: &ModelConfig,
    remote: &Arc<RemoteModel>,
    upstream: &Upstream,
    mut findings: Findings<'_>,
) {
    let kind = remote.config.kind;
    let ask = async |path: &str| get(upstream, head(remote, upstream, path), PATIENCE).await;
    match ask(engines::health_path(kind)).await {
        Ok((status, _)) if status.is_success() => findings.good("is there and well"),
        Ok((status, _)) if kind == RemoteKind::OpenAi && !status.is_server_error() => {
            findings.good(format!("is there; it answers {status} to /v1/models"));
        }
        Ok((status, _)) => findings.bad(
            format!("its health is {status}"),
            "look into the engine's own log; 503 may pass while it loads",
        ),
        Err(failed) => {
            let remedy = "start the engine there, or correct replicas[].url";
            findings.bad(failed.why, remedy);
            return;
        }
    }
    if kind == RemoteKind::Vllm
        && let Ok((_, body)) = ask("/version").await
        && let Some(version) = text(&body, "/version")
    {
        findings.good(format!("is vLLM {version}"));
    }
    names(
        &ask("/v1/models").await,
        (config, model, remote),
        &mut findings,
    );
    if let Some(path) = engines::gauges_path(kind) {
        gauges(ask(path).await, model, kind, &mut findings);
    }
    stream(remote, upstream, &mut findings).await;
}

/// Whether the engine knows the model, and how much fits it.
fn names(
    listed: &Result<(axum::http::StatusCode, Bytes), Failed>,
    (config, model, remote): (&Config, &ModelConfig, &RemoteModel),
    findings: &mut Findings<'_>,
) {
    let listing = match listed {
        Ok((status, body)) if status.is_success() => serde_json::from_slice::<Value>(body).ok(),
        Ok(_) | Err(_) => None,
    };
    let Some(models) = listing.as_ref().and_then(|list| list["data"].as_array()) else {
        findings.doubtful(
            "does not list its models",
            "none, where it is known to have the model",
        );
        return;
    };
    let ids: Vec<&str> = models.iter().filter_map(|one| one["id"].as_str()).collect();
    let Some(own) = models.iter().find(|one| one["id"] == remote.name.as_str()) else {
        findings.bad(
            format!("has no model {}; it has {}", remote.name, ids.join(", ")),
            "name one of them in models[].upstream.model",
        );
        return;
    };
    findings.good(format!("has the model {}", remote.name));
    let Some(context) = own["max_model_len"].as_u64() else {
        return;
    };
    if let Some(more) = model.context.filter(|own| own.get() > context) {
        findings.doubtful(
            format!("its context is {context} tokens, and models[].context {more}"),
            "lower models[].context, or start the engine with a larger --max-model-len",
        );
    }
    for tenant in &config.tenants.list {
        let limits = &tenant.limits;
        for (key, limit) in [
            ("max_context", limits.max_context),
            ("max_output", limits.max_output),
        ] {
            if let Some(limit) = limit.filter(|limit| limit.get() > context) {
                findings.doubtful(
                    format!(
                        "its context is {context} tokens, and {}'s {key} {limit}",
                        tenant.name
                    ),
                    "lower the limit: the engine refuses what is longer",
                );
            }
        }
    }
}

/// Whether the engine says how busy it is.
fn gauges(
    page: Result<(axum::http::StatusCode, Bytes), Failed>,
    model: &ModelConfig,
    kind: RemoteKind,
    findings: &mut Findings<'_>,
) {
    let page = match page {
        Ok((status, body)) if status.is_success() => body,
        Ok(_) | Err(_) => Bytes::new(),
    };
    let gauges = engines::read_gauges(kind, &String::from_utf8_lossy(&page));
    if gauges.waiting.is_none() {
        let remedy = match kind {
            RemoteKind::LlamaServer => "start llama-server with --metrics",
            RemoteKind::Sglang => "start SGLang with --enable-metrics",
            RemoteKind::Vllm | RemoteKind::OpenAi => "let Tollgate reach its /metrics",
        };
        findings.doubtful(
            "does not say how busy it is, so its window can't be found",
            remedy,
        );
        return;
    }
    findings.good("says how busy it is");
    if let Some(most) = gauges.sequences.filter(|most| *most < model.max_sequences) {
        findings.doubtful(
            format!(
                "runs {most} requests at once, and max_sequences is {}",
                model.max_sequences
            ),
            format!("set max_sequences to {most}: the rest waits there without its turn"),
        );
    }
}

/// Whether a stream comes as a stream, tells its usage, and leaves the connection open.
async fn stream(remote: &RemoteModel, upstream: &Upstream, findings: &mut Findings<'_>) {
    let body = serde_json::json!({
        "model": remote.name,
        "messages": [{ "role": "user", "content": "hi" }],
        "max_tokens": 1,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
    .to_string();
    let mut head = remote.head(upstream, "POST", "/v1/chat/completions");
    let length = body.len();
    head.extend_from_slice(
        format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n").as_bytes(),
    );
    let answer = match post(upstream, head, body, PATIENCE).await {
        Ok(answer) => answer,
        Err(failed) => {
            let remedy = "look into the engine's own log";
            findings.bad(format!("does not stream: {}", failed.why), remedy);
            return;
        }
    };
    if !answer.status.is_success() {
        let said: String = String::from_utf8_lossy(&answer.body)
            .chars()
            .take(200)
            .collect();
        findings.bad(
            format!(
                "answers a short request for a stream with {}: {said}",
                answer.status
            ),
            "401 and 403 ask for models[].upstream.key; else see the engine's own log",
        );
        return;
    }
    let text = String::from_utf8_lossy(&answer.body);
    if !text.contains("data:") {
        findings.bad(
            "answers a stream in one piece",
            "turn off what gathers its answers",
        );
        return;
    }
    if text.contains("\"prompt_tokens\"") {
        findings.good("streams, and tells the usage");
    } else {
        findings.doubtful(
            "streams without usage, so what is charged is estimated",
            "use a version that knows stream_options.include_usage",
        );
    }
    if answer.keeps {
        findings.good("keeps connections");
    } else {
        findings.doubtful(
            "closes each connection, which costs every request a new one",
            "let it speak HTTP/1.1 with keep-alive",
        );
    }
}

fn head(remote: &RemoteModel, upstream: &Upstream, path: &str) -> Vec<u8> {
    let mut head = remote.head(upstream, "GET", path);
    head.extend_from_slice(b"\r\n");
    head
}

fn text(body: &Bytes, pointer: &str) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    Some(value.pointer(pointer)?.as_str()?.to_owned())
}
