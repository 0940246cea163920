//! A gateway before unruly engines, with what a test asks of it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_server::{ConfigFile, Server};

use crate::support::http::{Answer, Connection, Request};
use crate::support::wait::{eventually, secs, soon};
use crate::unruly::{Mood, Unruly};

/// A gateway, and where its configuration is.
pub(crate) struct Gateway {
    server: Server,
    file: PathBuf,
    _folder: TempDir,
}

/// So many engines that are well.
pub(crate) async fn engines(count: usize) -> Vec<Unruly> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Unruly::start(Mood::Well).await);
    }
    all
}

/// The operator's key, and what the configuration has of it.
const OPERATOR: &str = "sk-operator";
const OPERATOR_HASH: &str = "848423556c17125c3e0dd9a4681c41a81f6848624ce97f8f5301871a16cc7a96";

/// A configuration with these engines, and more keys of their model.
pub(crate) fn yaml(engines: &[SocketAddr], keys: &str) -> String {
    let mut urls = String::new();
    for at in engines {
        let _ = write!(urls, "{{ url: \"http://{at}\" }}, ");
    }
    format!(
        "listen: 127.0.0.1:0
admin: {{ listen: 127.0.0.1:0, keys: [{{ sha256: {OPERATOR_HASH} }}] }}
identity: {{ anonymous: allow, trust_tenant_header: true }}
models:
  - name: m
    engine: openai
    health: {{ interval: 100ms, timeout: 1s }}
    replicas: [{urls}]
{keys}"
    )
}

pub(crate) fn addresses(engines: &[Unruly]) -> Vec<SocketAddr> {
    engines.iter().map(|one| one.address).collect()
}

impl Gateway {
    /// A gateway before these engines, all of which are up, with more keys of their model, each
    /// line indented as in the file.
    pub(crate) async fn before(engines: &[Unruly], keys: &str) -> Self {
        let gateway = Self::starting(&yaml(&addresses(engines), keys)).await;
        gateway.until_healthy(engines.len()).await;
        gateway
    }

    pub(crate) async fn starting(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, yaml).unwrap();
        let data = folder.path().join("data");
        let followed = ConfigFile::new(file.clone(), None, Some(data));
        let server = Server::start(followed.read().unwrap()).await.unwrap();
        server.follow(followed);
        Self {
            server,
            file,
            _folder: folder,
        }
    }

    pub(crate) async fn send(&self, request: &Request) -> Reply {
        let request = request.clone().header("connection", "close");
        let mut connection = Connection::open(self.server.address()).await;
        connection.send(&request.bytes()).await;
        Reply(String::from_utf8(connection.rest().await).unwrap())
    }

    /// Sends a short request for a stream.
    pub(crate) async fn ask(&self) -> Reply {
        self.send(&chat("hi")).await
    }

    /// What the operator is shown of the replicas.
    pub(crate) async fn replicas(&self) -> Vec<Value> {
        let shown = self.operator(&Request::get("/admin/v1/replicas")).await;
        assert_eq!(shown.status(), 200);
        shown.json()["replicas"].as_array().unwrap().clone()
    }

    pub(crate) async fn operator(&self, request: &Request) -> Answer {
        let admin = self.server.admin_address().unwrap();
        let request = request.clone().header("x-api-key", OPERATOR);
        request.send(admin).await
    }

    /// Has a replica go.
    pub(crate) async fn remove(&self, id: u64) -> Answer {
        let path = format!("/admin/v1/replicas/{id}");
        let request =
            format!("DELETE {path} HTTP/1.1\r\nhost: tollgate\r\nx-api-key: {OPERATOR}\r\n\r\n");
        let admin = self.server.admin_address().unwrap();
        let mut connection = Connection::open(admin).await;
        connection.send(request.as_bytes()).await;
        connection.answer().await
    }

    /// The state of the replica before this engine.
    pub(crate) async fn state(&self, engine: &Unruly) -> String {
        let url = format!("http://{}", engine.address);
        let all = self.replicas().await;
        let found = all.iter().find(|one| one["url"] == url.as_str());
        found
            .map_or("none", |one| one["state"].as_str().unwrap())
            .to_owned()
    }

    pub(crate) async fn until_state(&self, engine: &Unruly, state: &str) {
        let what = format!("the replica is {state}");
        eventually(secs(60), &what, async || self.state(engine).await == state).await;
    }

    pub(crate) async fn until_healthy(&self, count: usize) {
        eventually(secs(60), "the replicas are up", async || {
            let all = self.replicas().await;
            all.iter().filter(|one| one["state"] == "healthy").count() == count
        })
        .await;
    }

    /// Waits until no replica holds anything.
    pub(crate) async fn until_idle(&self) {
        eventually(secs(60), "everything is given back", async || {
            self.replicas()
                .await
                .iter()
                .all(|one| one["sequences"] == 0)
        })
        .await;
    }

    /// Writes another configuration, and has it taken on.
    pub(crate) async fn reload(&self, yaml: &str) {
        std::fs::write(&self.file, yaml).unwrap();
        self.server.reload();
    }

    pub(crate) async fn drain(self) {
        soon("draining", self.server.drain()).await;
    }
}

/// A request for a stream.
pub(crate) fn chat(text: &str) -> Request {
    let body = json!({
        "model": "m",
        "stream": true,
        "messages": [{ "role": "user", "content": text }],
    });
    Request::post("/v1/chat/completions", body.to_string())
}

/// All that came back, as it came, cut off or not.
#[derive(Clone, Debug)]
pub(crate) struct Reply(String);

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        let status = self.0.split(' ').nth(1);
        status.expect("an answer").parse().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.0.split_once("\r\n\r\n")?;
        head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Which replica answered.
    pub(crate) fn replica(&self) -> usize {
        self.header("x-tollgate-replica").unwrap().parse().unwrap()
    }

    pub(crate) fn why_there(&self) -> &str {
        self.header("x-tollgate-route-reason").unwrap()
    }

    pub(crate) fn reason(&self) -> &str {
        self.header("x-tollgate-reason").unwrap()
    }
}

/// Whether a stream came whole.
pub(crate) fn is_whole(reply: &Reply) -> bool {
    let text = reply.text();
    reply.status() == 200 && text.contains("data: [DONE]") && text.ends_with("0\r\n\r\n")
}
