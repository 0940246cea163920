//! The keys of a model whose engines run in other processes: where they are, what is told them, and
//! how long they may take.

use std::fmt;
use std::path::PathBuf;

use tollgate_policy::units::{KvBytes, Micros};

use super::decode::{Cursor, Fields};
use super::server;
use crate::upstream::tokenizer::Tokenizer;

/// What runs in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    /// vLLM's own server.
    Vllm,
    /// SGLang's own server.
    Sglang,
    /// llama.cpp's own server.
    LlamaServer,
    /// Anything that speaks OpenAI's API.
    OpenAi,
}

/// Which HTTP an engine is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1: a connection carries one request at a time.
    Http1,
    /// HTTP/2: one connection carries them all.
    Http2,
}

/// What is told to the replicas of a model, and how long they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// What they are.
    pub kind: RemoteKind,
    /// The model's name there; `None` is the name here.
    pub model: Option<String>,
    /// Which HTTP they are spoken to in.
    pub speaks: Speaks,
    /// The key that is sent to them.
    pub key: Option<Secret>,
    /// How long a connection may take to be there.
    pub connect: Micros,
    /// How long the first byte of a stream may take.
    pub first_byte: Micros,
    /// How long a stream may stand still.
    pub idle: Micros,
    /// Whether each tenant has prefixes of its own.
    pub cache_salt: bool,
    /// Whether the engine is told who is next.
    pub priority: bool,
    /// Bytes of one event of a stream.
    pub max_event: usize,
    /// Certificates that are trusted beside this computer's own.
    pub ca: Option<PathBuf>,
    /// What a token takes of the engine's memory: nobody there says it.
    pub kv_per_token: KvBytes,
    /// What its prompts are counted by, where that is here too.
    pub tokenizer: Option<Tokenizer>,
}

/// A key. It prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What it is, to be sent.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where a replica listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// How it is reached.
    pub(crate) reach: Reach,
    /// What is before `/v1` in its paths; empty, or begun by a slash and not ended by one.
    pub(crate) base: String,
}

/// How a replica is reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// By TCP.
    Tcp { host: String, port: u16 },
    /// By TLS over TCP.
    Tls { host: String, port: u16 },
    /// By a socket of this computer.
    Unix { path: String },
}

impl Address {
    /// Reads `http://HOST[:PORT][/BASE]`, `https://…` or `unix:/PATH`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return path.starts_with('/').then(|| Self {
                reach: Reach::Unix {
                    path: path.to_owned(),
                },
                base: String::new(),
            });
        }
        let (scheme, rest) = text.split_once("://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        // Clients are told to end a base URL with /v1; both forms mean the same here.
        let base = path.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let clean = |c: char| c.is_ascii_graphic() && !"@?#\"<>\\^`{|}".contains(c);
        if authority.is_empty() || !authority.chars().all(clean) || !base.chars().all(clean) {
            return None;
        }
        let (host, port) = split_port(authority)?;
        let host = host.to_owned();
        let reach = match scheme {
            "http" => Reach::Tcp {
                host,
                port: port.unwrap_or(80),
            },
            "https" => Reach::Tls {
                host,
                port: port.unwrap_or(443),
            },
            _ => return None,
        };
        Some(Self {
            reach,
            base: base.to_owned(),
        })
    }

    /// Whether it is reached by TLS.
    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self.reach, Reach::Tls { .. })
    }

    /// What a request says that it is for.
    pub(crate) fn host_header(&self) -> String {
        let with_port = |host: &str, port: u16, default: u16| {
            let brackets = host.contains(':');
            let host = if brackets {
                format!("[{host}]")
            } else {
                host.to_owned()
            };
            match port == default {
                true => host,
                false => format!("{host}:{port}"),
            }
        };
        match &self.reach {
            Reach::Tcp { host, port } => with_port(host, *port, 80),
            Reach::Tls { host, port } => with_port(host, *port, 443),
            Reach::Unix { .. } => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reach {
            Reach::Tcp { .. } => write!(f, "http://{}{}", self.host_header(), self.base),
            Reach::Tls { .. } => write!(f, "https://{}{}", self.host_header(), self.base),
            Reach::Unix { path } => write!(f, "unix:{path}"),
        }
    }
}

/// A host, and the port after it, if there is one.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, tail) = rest.split_once(']')?;
        let port = match tail.strip_prefix(':') {
            Some(port) => Some(port.parse().ok()?),
            None if tail.is_empty() => None,
            None => return None,
        };
        return host
            .parse::<std::net::Ipv6Addr>()
            .ok()
            .map(|_| (host, port));
    }
    match authority.split_once(':') {
        Some(("", _)) => None,
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((authority, None)),
    }
}

impl RemoteKind {
    /// Requests that one engine in another process is given at once, at most.
    pub(super) const SEQUENCES_MAX: u32 = 4096;

    /// Requests that one is taken to run at once where nobody says how many.
    pub(super) const SEQUENCES_GUESS: u32 = 256;

    /// How far a window grows by itself where nobody says how many requests fit. One that says
    /// itself knows better, and of one that tells of no queue nobody learns when it is full.
    pub(super) fn reach(self, told: Option<u32>) -> u32 {
        match self {
            Self::Vllm | Self::Sglang if told.is_none() => Self::SEQUENCES_MAX,
            Self::Vllm | Self::Sglang | Self::LlamaServer | Self::OpenAi => 0,
        }
    }

    /// As the configuration spells it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaServer => "llama-server",
            Self::OpenAi => "openai",
        }
    }

    /// Whether its prefixes can be kept apart by a member of the request.
    const fn has_salt(self) -> bool {
        match self {
            Self::Vllm | Self::Sglang => true,
            Self::LlamaServer | Self::OpenAi => false,
        }
    }
}

impl RemoteConfig {
    /// One of this kind with everything as it is by default.
    pub(crate) fn new(kind: RemoteKind) -> Self {
        Self {
            kind,
            model: None,
            speaks: Speaks::Http1,
            key: None,
            connect: Micros::from_secs(5),
            first_byte: Micros::from_secs(120),
            idle: Micros::from_secs(60),
            cache_salt: kind.has_salt(),
            priority: false,
            max_event: 8 << 20,
            ca: None,
            // A model of 8 billion parameters with grouped queries, at 16 bits.
            kv_per_token: KvBytes::new(128 << 10),
            tokenizer: None,
        }
    }

    /// Reads the section `upstream`, and `tokenizer` beside it; `stream.idle` is read with its
    /// neighbours.
    pub(super) fn read(
        kind: RemoteKind,
        section: Option<Cursor<'_>>,
        tokenizer: Option<Cursor<'_>>,
        idle: Option<Micros>,
    ) -> Self {
        let default = Self::new(kind);
        let read = section.and_then(|section| {
            section.mapping(|fields| Self::read_fields(&default, kind, fields))
        });
        let config = read.unwrap_or_else(|| default.clone());
        Self {
            idle: idle.unwrap_or(default.idle),
            tokenizer: tokenizer.and_then(|value| tokenizer_file(&value)),
            ..config
        }
    }

    fn read_fields(default: &Self, kind: RemoteKind, fields: &mut Fields<'_, '_>) -> Self {
        let span = |low, high| Micros::from_millis(low)..=Micros::from_millis(high);
        let on_off = [("on", true), ("off", false)];
        let cache_salt = fields.optional("cache_salt", |value| value.choice(&on_off));
        let priority = fields.optional("priority", |value| value.choice(&on_off));
        if cache_salt == Some(true) && !kind.has_salt() {
            let message = format!(
                "is for vllm and sglang; {} has no such member",
                kind.label()
            );
            fields.report("cache_salt", message);
        }
        if priority == Some(true) && !kind.has_salt() {
            let message = format!(
                "is for vllm and sglang; {} has no such member",
                kind.label()
            );
            fields.report("priority", message);
        }
        Self {
            kind,
            model: fields.optional("model", |value| text(&value, 256)),
            speaks: fields
                .optional("http2", |value| {
                    value.choice(&[("on", Speaks::Http2), ("off", Speaks::Http1)])
                })
                .unwrap_or(default.speaks),
            key: fields
                .optional("key", |value| text(&value.secret(), 4096))
                .map(Secret),
            connect: fields
                .optional("connect", |value| value.duration(span(10, 60_000)))
                .unwrap_or(default.connect),
            first_byte: fields
                .optional("first_byte", |value| value.duration(span(100, 3_600_000)))
                .unwrap_or(default.first_byte),
            idle: default.idle,
            cache_salt: cache_salt.unwrap_or(default.cache_salt) && kind.has_salt(),
            priority: priority.unwrap_or(default.priority),
            max_event: fields
                .optional("max_event", |value| value.size(64 << 10..=256 << 20))
                .and_then(|size| usize::try_from(size).ok())
                .unwrap_or(default.max_event),
            ca: fields.optional("ca", |value| server::path(&value)),
            kv_per_token: fields
                .optional("kv_per_token", |value| value.size(64..=64 << 20))
                .map_or(default.kv_per_token, KvBytes::new),
            tokenizer: None,
        }
    }
}

/// Reads the file that a model makes tokens by: one that can't be used is told with all else that
/// is wrong.
fn tokenizer_file(value: &Cursor<'_>) -> Option<Tokenizer> {
    let loaded = Tokenizer::load(&server::path(value)?);
    loaded
        .map_err(|why| value.report(format!("can't be used: {why}")))
        .ok()
}

/// Reads a replica's address.
pub(super) fn address(value: &Cursor<'_>) -> Option<Address> {
    let want = "an address like http://127.0.0.1:8000, https://host or unix:/path";
    let text = value.text(want)?;
    match Address::parse(text) {
        Some(address) => Some(address),
        None => value.refuse(want),
    }
}

fn text(value: &Cursor<'_>, most: usize) -> Option<String> {
    let want = format!("a text of 1 to {most} printable characters");
    let text = value.text(&want)?;
    let printable = text.chars().all(|c| c.is_ascii_graphic());
    match printable && (1..=most).contains(&text.len()) {
        true => Some(text.to_owned()),
        false => value.refuse(want),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        Address::parse(text).map(|address| address.to_string())
    }

    #[test]
    fn an_address_is_read_in_each_of_its_forms() {
        for (text, expected) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://gpu-1:8000/v1/", "http://gpu-1:8000"),
            (
                "https://api.example.com/openai/v1",
                "https://api.example.com/openai",
            ),
            ("http://[::1]:80", "http://[::1]"),
            ("unix:/run/engine.sock", "unix:/run/engine.sock"),
            ("unix:///run/engine.sock", "unix:/run/engine.sock"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "127.0.0.1:8000",
            "http://",
            "http://host:port",
            "http://user:pw@host",
            "http://a b",
            "ftp://host",
            "http://host?x=1",
            "http://[fe80]:1",
            "unix:relative",
            "http://host/a\r\nx: y",
        ] {
            assert_eq!(shown(text), None, "{text}");
        }
    }
}
