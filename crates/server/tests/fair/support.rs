//! A server whose configuration is a file, and clients that ask one thing per connection.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_server::{ConfigFile, Server};

/// Past it, something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const TICK: Duration = Duration::from_millis(3);

/// One model, one request at a time, at about a token a millisecond.
pub(crate) const NARROW: &str = "
models:
  - name: m
    engine: fake
    max_sequences: 1
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

/// A server that follows its file.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) server: Server,
    folder: TempDir,
}

impl Rig {
    pub(crate) async fn start(yaml: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), yaml).await
    }

    /// The same in a folder in which another was before.
    pub(crate) async fn start_in(folder: TempDir, yaml: &str) -> Self {
        write(&folder, yaml);
        let file = ConfigFile::new(path(&folder), None, Some(folder.path().to_owned()));
        let server = Server::start(file.read().unwrap()).await.unwrap();
        server.follow(file);
        timeout(PATIENCE, server.ready()).await.unwrap();
        Self { server, folder }
    }

    /// Writes the file anew.
    pub(crate) fn write(&self, yaml: &str) {
        write(&self.folder, yaml);
    }

    /// Writes the file anew and has it read, until it is said what became of it.
    pub(crate) async fn reload(&self, yaml: &str) -> &'static str {
        let before = self.reloads().await;
        self.write(yaml);
        self.server.reload();
        self.until("the file is read", async || self.reloads().await != before)
            .await;
        let after = self.reloads().await;
        if after.0 > before.0 {
            "applied"
        } else {
            "refused"
        }
    }

    /// How often a changed file was applied, and refused.
    pub(crate) async fn reloads(&self) -> (u64, u64) {
        let page = self.metrics().await;
        let count = |result| {
            let name = format!("tollgate_config_reloads_total{{result=\"{result}\"}}");
            sample(&page, &name).map_or(0, |value| value.parse().unwrap())
        };
        (count("applied"), count("refused"))
    }

    pub(crate) async fn metrics(&self) -> String {
        Ask::get("/metrics").send(self.server.address()).await.body
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Reply {
        ask.send(self.server.address()).await
    }

    /// Sends a request and reads nothing of its answer; dropped, its client has gone.
    pub(crate) async fn hold(&self, ask: &Ask) -> TcpStream {
        ask.begin(self.server.address()).await
    }

    pub(crate) async fn queue(&self) -> Value {
        let address = self.server.admin_address().unwrap();
        let reply = Ask::get("/admin/v1/queue").send(address).await;
        assert_eq!(reply.status, 200);
        reply.json()
    }

    /// What the operator's listener says of admission.
    pub(crate) async fn admission(&self) -> Value {
        let address = self.server.admin_address().unwrap();
        let reply = Ask::get("/admin/v1/admission").send(address).await;
        assert_eq!(reply.status, 200);
        reply.json()
    }

    /// Ends the server, and leaves its folder.
    pub(crate) async fn end(self) -> TempDir {
        timeout(PATIENCE, self.server.drain()).await.unwrap();
        self.folder
    }

    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let polling = async {
            let mut tick = tokio::time::interval(TICK);
            while !holds().await {
                tick.tick().await;
            }
        };
        let in_time = timeout(PATIENCE, polling).await;
        assert!(in_time.is_ok(), "never: {what}");
    }
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("tollgate.yaml")
}

fn write(folder: &TempDir, yaml: &str) {
    std::fs::write(path(folder), format!("listen: 127.0.0.1:0\n{yaml}")).unwrap();
}

/// A tenant known by the key `sk-NAME`, and what else is said of it.
pub(crate) fn tenant(name: &str, rest: &str) -> String {
    let digest = Sha256::digest(format!("sk-{name}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("  - {{ name: {name}, keys: [{{ sha256: \"{hex}\" }}], {rest} }}\n")
}

/// The value of the metric whose name and labels are `name`.
pub(crate) fn sample<'p>(page: &'p str, name: &str) -> Option<&'p str> {
    let mut lines = page.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// Waits as long as an answer said.
pub(crate) async fn wait_as_told(reply: &Reply) {
    let told = Duration::from_millis(reply.number("retry-after-ms"));
    let waited = timeout(told, std::future::pending::<()>()).await;
    assert!(waited.is_err());
}

/// A request, not yet sent. It is one of HTTP/1.0, so the end of its answer is the end of the
/// connection.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    head: String,
    body: String,
}

impl Ask {
    pub(crate) fn get(path: &str) -> Self {
        let head = format!("GET {path} HTTP/1.0\r\nhost: tollgate\r\n");
        Self {
            head,
            body: String::new(),
        }
    }

    /// A completion of three prompt tokens by model `m`, with these members beside.
    pub(crate) fn complete(members: Value) -> Self {
        let mut body = json!({"model": "m", "prompt": [1, 2, 3]});
        let Value::Object(members) = members else {
            panic!("members are an object")
        };
        body.as_object_mut().unwrap().extend(members);
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.0\r\nhost: tollgate\r\ncontent-type: \
             application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        Self { head, body }
    }

    /// A short answer of known length.
    pub(crate) fn short() -> Self {
        Self::complete(json!({"ignore_eos": true, "max_tokens": 5}))
    }

    /// An answer that goes on until something else ends it.
    pub(crate) fn endless() -> Self {
        Self::complete(json!({"ignore_eos": true, "stream": true}))
    }

    /// The same as this tenant.
    pub(crate) fn of(self, tenant: &str) -> Self {
        self.header("authorization", &format!("Bearer sk-{tenant}"))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    async fn begin(&self, to: SocketAddr) -> TcpStream {
        let mut socket = TcpStream::connect(to).await.unwrap();
        let bytes = format!("{}\r\n{}", self.head, self.body);
        socket.write_all(bytes.as_bytes()).await.unwrap();
        socket
    }

    pub(crate) async fn send(&self, to: SocketAddr) -> Reply {
        let mut socket = self.begin(to).await;
        let mut bytes = Vec::new();
        let reading = timeout(PATIENCE, socket.read_to_end(&mut bytes)).await;
        reading.unwrap().unwrap();
        Reply::parse(&String::from_utf8(bytes).unwrap())
    }
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        Self {
            status: status.parse().unwrap(),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(header, _)| header == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// A header that must be there, as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name);
        let value = value.unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap()
    }

    /// Status, and the reason that errors have.
    pub(crate) fn outcome(&self) -> (u16, &str) {
        let reason = self.header("x-tollgate-reason").unwrap_or("none");
        (self.status, reason)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}
