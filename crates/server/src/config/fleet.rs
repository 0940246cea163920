//! The keys of a model's replicas: how one is chosen, when one counts as well, and how those are
//! started that the gateway starts itself.

use tollgate_policy::route::Policy;
use tollgate_policy::shelf::Loading;
use tollgate_policy::units::{KvBytes, Micros};

use super::decode::{Cursor, Fields};
use super::remote::RemoteKind;

/// Words that a command may have.
const WORDS_MAX: usize = 256;

/// Where a command's port goes.
pub(crate) const PORT: &str = "{port}";

/// How a replica is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingConfig {
    /// By which rule.
    pub policy: Policy,
    /// The header that names a session, whose requests stay together; lower case.
    pub session_header: String,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            session_header: "x-session-id".to_owned(),
        }
    }
}

impl RoutingConfig {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let default = Self::default();
        section.mapping(|fields| Self {
            policy: fields
                .optional("policy", |value| value.choice(&Policy::ALL))
                .unwrap_or(default.policy),
            session_header: fields
                .optional("session_header", |value| {
                    let name = value.name("-_", 64)?;
                    Some(name.to_ascii_lowercase())
                })
                .unwrap_or(default.session_header),
        })
    }
}

/// How the replicas in other processes are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Time between two probes of one replica, 100 ms to 1 h.
    pub interval: Micros,
    /// How long a probe may take, 10 ms to 60 s.
    pub timeout: Micros,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            interval: Micros::from_secs(1),
            timeout: Micros::from_secs(1),
        }
    }
}

impl HealthConfig {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let span = |low, high| Micros::from_millis(low)..=Micros::from_millis(high);
        let default = Self::default();
        section.mapping(|fields| Self {
            interval: fields
                .optional("interval", |value| value.duration(span(100, 3_600_000)))
                .unwrap_or(default.interval),
            timeout: fields
                .optional("timeout", |value| value.duration(span(10, 60_000)))
                .unwrap_or(default.timeout),
        })
    }
}

/// An engine that the gateway starts itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandConfig {
    /// The program and its arguments, in which `{port}` stands for the port it is to listen on.
    pub words: Vec<String>,
    /// The device it is loaded on; those on one are loaded one after the other.
    pub device: u32,
    /// How long it may take to be up, 1 s to 6 h.
    pub start_timeout: Micros,
}

impl CommandConfig {
    /// Reads `command`, `device` and `start_timeout` of a replica.
    pub(super) fn read(fields: &mut Fields<'_, '_>, kind: RemoteKind) -> Option<Self> {
        let span = Micros::from_secs(1)..=Micros::from_secs(6 * 3_600);
        let device = fields.optional("device", |value| value.integer(0..=1_023));
        let start = fields.optional("start_timeout", |value| value.duration(span));
        let words = fields.optional("command", |value| words(&value, kind))?;
        Some(Self {
            words,
            device: device.unwrap_or(0),
            start_timeout: start.unwrap_or(Micros::from_secs(900)),
        })
    }
}

/// Reads a command, and sees to it that its engine listens where only this computer can reach it.
fn words(value: &Cursor<'_>, kind: RemoteKind) -> Option<Vec<String>> {
    let want = "a list of words, like [vllm, serve, MODEL]";
    let mut words = value.list(|word| word.text(want).map(str::to_owned))?;
    if words.is_empty() || words.len() > WORDS_MAX {
        return value.refuse(want);
    }
    let given = |words: &[String], flag: &str| {
        let at = words.iter().position(|word| word == flag);
        let beside = words
            .iter()
            .find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        beside
            .or_else(|| words.get(at? + 1).map(String::as_str))
            .map(str::to_owned)
    };
    match (given(&words, "--host"), kind) {
        (Some(host), _) if host != "127.0.0.1" && host != "localhost" => {
            value.report(format!(
                "has --host {host}; the engine knows no keys and no tenants, so use 127.0.0.1"
            ));
            return None;
        }
        // What a program of one's own is told is one's own to know.
        (Some(_), _) | (None, RemoteKind::OpenAi) => {}
        (None, RemoteKind::Vllm | RemoteKind::Sglang | RemoteKind::LlamaServer) => {
            words.extend(["--host".to_owned(), "127.0.0.1".to_owned()]);
        }
    }
    if !words.iter().any(|word| word.contains(PORT)) {
        if given(&words, "--port").is_some() || kind == RemoteKind::OpenAi {
            value.report(format!(
                "names no free port; write {PORT} where the port goes"
            ));
            return None;
        }
        words.extend(["--port".to_owned(), PORT.to_owned()]);
    }
    Some(words)
}

/// Reads `load`: what it takes to have a model loaded.
pub(super) fn loading(section: &Cursor<'_>) -> Option<Loading> {
    let need = "say how much, like 20GiB";
    let most = 1 << 50;
    let read = section.mapping(|fields| {
        let size = |value: Cursor<'_>| value.size(1..=most).map(KvBytes::new);
        let memory = fields.required("memory", need, size);
        let room = fields.required("budget", need, size);
        let device = fields.optional("device", |value| value.integer(0..=1_023));
        let (memory, room) = (memory?, room?);
        if memory > room {
            fields.report("memory", "is more than the budget of its device");
            return None;
        }
        let device = device.unwrap_or(0);
        Some(Loading {
            device,
            memory,
            room,
        })
    });
    read.flatten()
}
