//! A server with a folder of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_engine::fake::Faults;
use tollgate_server::journal::Reader;
use tollgate_server::journal::record::Record;
use tollgate_server::{Server, config};

use super::chat::{keyed, short};
use super::http::{Answer, Request};
use super::scrape::Scrape;
use super::wait::{eventually, secs, soon};

/// Every caller is let in, and one model `m` answers at about a token a millisecond.
pub(crate) const OPEN: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    prefix_cache: on
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

/// The same without any pace.
pub(crate) const FAST: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    prefix_cache: on
    fake: { step: 0us, per_sequence: 0us, prefill_tokens_per_second: 1000000000 }
";

/// One request at a time, at about a token a millisecond.
pub(crate) const NARROW: &str = "
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    prefix_cache: on
    max_sequences: 1
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

/// A running server, and where it keeps its files.
#[derive(Debug)]
pub(crate) struct Rig {
    server: Server,
    folder: TempDir,
}

/// A server that has gone; its files are still there.
#[derive(Debug)]
pub(crate) struct Remains {
    folder: TempDir,
}

impl Rig {
    /// A server that is ready. The key of a tenant with `{ env: NAME }` is [`key`] of that name.
    pub(crate) async fn start(yaml: &str) -> Self {
        Self::start_with(yaml, Faults::default()).await
    }

    /// The same with faults planted in its engines.
    pub(crate) async fn start_with(yaml: &str, faults: Faults) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), yaml, faults).await
    }

    pub(crate) async fn start_in(folder: TempDir, yaml: &str, faults: Faults) -> Self {
        let place = folder.path().display();
        let yaml = format!("listen: 127.0.0.1:0\ndata_dir: {place}\n{yaml}");
        let config = config::parse(&yaml, &|name| Some(key(name))).unwrap();
        let server = Server::start_with_faults(config, faults).await.unwrap();
        soon("starting", server.ready()).await;
        Self { server, folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The operator's listener, which must be configured.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.server.admin_address().unwrap()
    }

    pub(crate) async fn send(&self, request: &Request) -> Answer {
        request.send(self.address()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(&Request::get(path)).await
    }

    pub(crate) async fn scrape(&self) -> Scrape {
        scrape(self.address()).await
    }

    /// Waits until this holds of a scrape.
    pub(crate) async fn until(
        &self,
        within: Duration,
        what: &str,
        holds: impl Fn(&Scrape) -> bool,
    ) {
        eventually(within, what, async || holds(&self.scrape().await)).await;
    }

    /// Waits until requests, places and memory are all given back.
    pub(crate) async fn until_idle(&self, within: Duration) {
        let mut held = Vec::new();
        let idle = async || {
            held = self.scrape().await.held();
            held.is_empty()
        };
        eventually(within, "everything is given back", idle).await;
    }

    /// Checks that nothing is held, and that a request is served at once.
    pub(crate) async fn assert_unharmed(&self) {
        self.assert_serves(&short()).await;
    }

    /// The same, for the caller with this key.
    pub(crate) async fn assert_unharmed_as(&self, key: &str) {
        self.assert_serves(&keyed(short(), key)).await;
    }

    async fn assert_serves(&self, request: &Request) {
        self.until_idle(secs(2)).await;
        let served = tokio::time::timeout(secs(1), self.send(request)).await;
        let served = served.expect("a request after it is served at once");
        assert_eq!(served.status(), 200, "{}", served.text());
    }

    /// Drains the server.
    pub(crate) async fn drain(self) -> Remains {
        soon("draining", self.server.drain()).await;
        Remains {
            folder: self.folder,
        }
    }

    /// The server and its folder apart, to drain it in a task.
    pub(crate) fn into_parts(self) -> (Server, Remains) {
        let remains = Remains {
            folder: self.folder,
        };
        (self.server, remains)
    }

    /// Where it keeps its files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output tokens of the last mark of this request on disk.
    pub(crate) fn last_mark(&self, request: &str) -> Option<u64> {
        let mut reader = Reader::open(self.folder.path());
        let mut last = None;
        while let Some(entry) = reader.next().unwrap() {
            match entry.record {
                Record::Mark(mark) if mark.request.to_string() == request => {
                    last = Some(mark.used.output.get());
                }
                Record::Mark(_)
                | Record::Opened(_)
                | Record::Started(_)
                | Record::Carried(..)
                | Record::Ended(_)
                | Record::Lost(_) => {}
            }
        }
        last
    }

    /// The rows of the ledger so far; all that ended a while ago are there.
    pub(crate) fn ledger(&self) -> Vec<Value> {
        read_ledger(self.folder.path())
    }

    /// Waits for the row of this request.
    pub(crate) async fn ledger_row(&self, request: &str) -> Value {
        self.ledger_find(|row| row["request"] == request).await
    }

    /// Waits for the row of the request that ended first.
    pub(crate) async fn ledger_first(&self) -> Value {
        self.ledger_find(|_| true).await
    }

    async fn ledger_find(&self, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        let is_there = async || {
            found = self.ledger().into_iter().find(&is_it);
            found.is_some()
        };
        eventually(secs(5), "the request is in the ledger", is_there).await;
        found.unwrap()
    }
}

impl Remains {
    /// The folder, for the next server.
    pub(crate) fn into_folder(self) -> TempDir {
        self.folder
    }

    /// All rows of the ledger.
    pub(crate) fn ledger(&self) -> Vec<Value> {
        read_ledger(self.folder.path())
    }
}

/// The key that a variable of this name holds.
pub(crate) fn key(name: &str) -> String {
    format!("sk-{}", name.to_ascii_lowercase())
}

pub(crate) async fn scrape(address: SocketAddr) -> Scrape {
    let answer = Request::get("/metrics").send(address).await;
    assert_eq!(answer.status(), 200);
    Scrape::parse(answer.text())
}

fn read_ledger(folder: &Path) -> Vec<Value> {
    let mut reader = Reader::open(folder);
    let mut rows = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Record::Ended(ended) = entry.record {
            let row = serde_json::to_string(&ended).unwrap();
            rows.push(serde_json::from_str(&row).unwrap());
        }
    }
    rows
}
