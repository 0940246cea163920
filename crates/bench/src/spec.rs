//! What a run is: whom it asks, who asks, for how long, and what makes it invalid.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate_policy::units::Micros;
use tollgate_sim::trace::Trace;
use tollgate_sim::workload::TenantLoad;

/// One run of load against one endpoint.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Whom it asks.
    pub endpoint: Endpoint,
    /// The model name in every request.
    pub model: String,
    /// Who asks, when and for how much.
    pub source: Source,
    /// Whether requests wait for answers.
    pub cycle: Cycle,
    /// Whether answers are streamed.
    pub reply: Reply,
    /// How a number of tokens becomes a text.
    pub tokenizer: Tokenizer,
    /// Its spans of time.
    pub timing: Timing,
    /// Decides every arrival, length and text.
    pub seed: u64,
    /// Threads that send and read, besides the one that paces; taken into 1..=256.
    pub threads: usize,
    /// Where raw rows are written as they come, if anywhere.
    pub rows: Option<PathBuf>,
    /// The command line, for the record; without secrets.
    pub command: String,
}

/// Who asks, when and for how much.
#[derive(Clone, Debug)]
pub enum Source {
    /// Requests drawn at random.
    Drawn(Vec<TenantSpec>),
    /// The requests of a trace.
    Replayed {
        /// How the endpoint knows its tenants.
        identity: Identity,
        /// The name of the trace, for the record.
        name: String,
        /// The trace.
        trace: Trace,
        /// Times as fast as recorded.
        speed: f64,
    },
}

/// Whether requests wait for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    /// Each goes out when it is due, whatever became of those before it.
    Open,
    /// So many clients, each of which sends its next when its last has ended. An endpoint that is
    /// slow is then asked for less: what this measures is no latency under a load.
    Closed(NonZeroUsize),
}

/// A tenant that asks.
#[derive(Clone, Debug)]
pub struct TenantSpec {
    /// Its arrivals and lengths.
    pub load: TenantLoad,
    /// How the endpoint knows it.
    pub identity: Identity,
}

/// How the endpoint knows a tenant.
#[derive(Clone, Debug)]
pub enum Identity {
    /// By a key, sent as `Authorization: Bearer`.
    Key(Key),
    /// By its name, sent as `X-Tenant-ID`.
    TenantHeader,
}

/// A secret that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Whether answers are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// As server-sent events.
    Streamed,
    /// As one body; its first token is its end.
    Buffered,
}

/// How a number of tokens becomes a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// Every byte is a token, and the chat template adds so many.
    Bytes {
        /// Tokens of the template around one user message.
        template: u64,
    },
    /// Two requests before the run tell, by their usage, what a byte and the template cost.
    Learned,
}

/// Spans of time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Requests are sent for so long.
    pub duration: Micros,
    /// Requests whose intended send lies before this are left out of every number; less than
    /// `duration`.
    pub warm_up: Micros,
    /// How long after the last send answers are awaited; then what is open counts as unfinished.
    pub drain: Micros,
    /// The run is invalid if the 99th percentile of its send slip is larger.
    pub slip_p99_max: Micros,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Micros::from_secs(40),
            warm_up: Micros::from_secs(5),
            drain: Micros::from_secs(60),
            slip_p99_max: Micros::from_millis(10),
        }
    }
}

impl Timing {
    /// The span that the numbers are about: from the end of the warm-up to the last send.
    pub fn measured(&self) -> Micros {
        Micros::new(self.duration.get().saturating_sub(self.warm_up.get()))
    }
}

/// What one request demands of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens of the prompt, the template's included.
    pub(crate) prompt: u64,
    /// Tokens of the output; the end of the turn is ignored, so that all of them come.
    pub(crate) output: u64,
}

/// An OpenAI-compatible endpoint, over HTTP/1.1 without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is by TLS.
    secure: bool,
    authority: String,
    prefix: String,
}

/// A URL that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no endpoint; use http://HOST:PORT or https://HOST/v1")]
pub struct EndpointError(String);

impl Endpoint {
    /// What listens at this address.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            secure: false,
            authority: address.to_string(),
            prefix: String::new(),
        }
    }

    /// The host of one that is by TLS: the name that it must show.
    pub(crate) fn secured(&self) -> Option<&str> {
        let (host, _) = self.authority.rsplit_once(':')?;
        self.secure.then_some(host)
    }

    /// Host and port, to connect to.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path of chat completions.
    pub fn chat_path(&self) -> String {
        format!("{}/v1/chat/completions", self.prefix)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError(url.to_owned());
        let (secure, rest) = match url.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("http://").ok_or_else(wrong)?),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let odd = |text: &str| text.contains([' ', '?', '#', '@', '\r', '\n']);
        let port = if secure { "443" } else { "80" };
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, port));
        if host.is_empty() || port.parse::<u16>().is_err() || odd(rest) {
            return Err(wrong());
        }
        let path = path.trim_end_matches('/');
        let path = path
            .strip_suffix("v1")
            .filter(|before| before.is_empty() || before.ends_with('/'))
            .unwrap_or(path)
            .trim_end_matches('/');
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("/{path}")
        };
        Ok(Self {
            secure,
            authority: format!("{host}:{port}"),
            prefix,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}/v1", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_the_same_with_and_without_its_version() {
        for url in [
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8080/v1/",
        ] {
            let endpoint: Endpoint = url.parse().unwrap();
            assert_eq!(endpoint.authority(), "127.0.0.1:8080");
            assert_eq!(endpoint.chat_path(), "/v1/chat/completions");
        }
        let behind: Endpoint = "http://host/a/v1".parse().unwrap();
        assert_eq!(behind.to_string(), "http://host:80/a/v1");
        let secured: Endpoint = "https://host/v1".parse().unwrap();
        assert_eq!(secured.to_string(), "https://host:443/v1");
        assert_eq!((behind.secured(), secured.secured()), (None, Some("host")));
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for url in [
            "ftp://host",
            "https://",
            "host:80",
            "http://",
            "http://h:x",
            "http://u:p@h:80",
            "http://h:80/?a",
        ] {
            assert!(url.parse::<Endpoint>().is_err(), "{url}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let identity = Identity::Key(Key::new("sk-secret"));
        assert!(!format!("{identity:?}").contains("secret"));
    }
}
