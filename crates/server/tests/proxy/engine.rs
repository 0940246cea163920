//! An engine that a test plays: it sends any bytes at any time, and keeps what it was sent.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::rig::Rig;
use crate::support::wait::{eventually, secs, soon};

/// The head of a good stream in chunks.
pub(crate) const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// The end of a body in chunks.
pub(crate) const END: &str = "0\r\n\r\n";

pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// The event that ends an answer.
pub(crate) const FIN: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\
    \"created\":7,\"model\":\"qwen\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

/// An event with some text.
pub(crate) fn delta(text: &str) -> String {
    let text = Value::from(text);
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\
         \"qwen\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}},\"finish_reason\":\
         null}}]}}\n\n"
    )
}

/// An event with usage and nothing else.
pub(crate) fn usage(prompt: u64, output: u64) -> String {
    let total = prompt + output;
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\
         \"qwen\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\
         \"completion_tokens\":{output},\
         \"total_tokens\":{total}}}}}\n\n"
    )
}

/// One chunk of a body.
pub(crate) fn chunk(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
    chunk.extend_from_slice(data);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// An answer in one piece.
pub(crate) fn json(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A good answer in one piece.
pub(crate) fn whole(text: &str, prompt: u64, output: u64) -> String {
    let text = Value::from(text);
    let body = format!(
        "{{\"id\":\"c1\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"qwen\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":{text}}},\
         \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":{prompt},\
         \"completion_tokens\":{output}}}}}"
    );
    json("200 OK", &body)
}

/// A request that the engine was sent.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A connection to the gateway.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Wire {
    /// Sends these bytes, in one write. That the gateway has gone is no mistake of the engine's.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.socket.write_all(bytes.as_ref()).await;
    }

    /// Sends each in a chunk of its own.
    pub(crate) async fn send_chunks(&mut self, all: &[&str]) {
        for one in all {
            self.send(chunk(one)).await;
        }
    }

    /// Sends a good stream with these events, whole.
    pub(crate) async fn send_stream(&mut self, events: &[&str]) {
        self.send(STREAM).await;
        self.send_chunks(events).await;
        self.send(END).await;
    }

    /// Waits until the gateway closes the connection.
    pub(crate) async fn closed(&mut self) {
        let mut bytes = [0; 1024];
        let closing = async { while self.socket.read(&mut bytes).await.is_ok_and(|n| n > 0) {} };
        soon("the gateway closes its connection", closing).await;
    }

    /// Whether the gateway still reads; as far as is known without waiting.
    pub(crate) async fn is_open(&mut self) -> bool {
        tokio::task::yield_now().await;
        let read = self.socket.try_read(&mut [0; 16]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    async fn request(&mut self) -> Option<Seen> {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|at| at == b"\r\n\r\n") {
                break at + 4;
            }
            self.read().await?;
        };
        let head = String::from_utf8(self.unread.drain(..end).collect()).unwrap();
        let mut seen = Seen {
            head,
            body: Vec::new(),
        };
        let length = seen
            .header("content-length")
            .map_or(0, |value| value.parse().unwrap());
        while self.unread.len() < length {
            self.read().await?;
        }
        seen.body = self.unread.drain(..length).collect();
        Some(seen)
    }

    async fn read(&mut self) -> Option<()> {
        let read = self.socket.read_buf(&mut self.unread).await;
        read.is_ok_and(|count| count > 0).then_some(())
    }
}

/// What happened at an engine.
#[derive(Debug, Default)]
struct Log {
    seen: Vec<Seen>,
    connections: usize,
    page: String,
}

/// An engine, and what it has seen.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Log>>,
    _tasks: JoinSet<()>,
}

impl Engine {
    /// An engine that plays `script` for each request for an answer: with the wire given back, the
    /// connection goes on, and without it is closed. Probes are answered well.
    pub(crate) async fn start<F, T>(script: F) -> Self
    where
        F: Fn(Seen, Wire) -> T + Send + Sync + 'static,
        T: Future<Output = Option<Wire>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let (script, seen) = (Arc::new(script), Arc::clone(&log));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                let wire = Wire {
                    socket,
                    unread: Vec::new(),
                };
                connections.spawn(serve(wire, Arc::clone(&script), Arc::clone(&seen)));
            }
        });
        Self {
            address,
            log,
            _tasks: tasks,
        }
    }

    /// An engine that sends these events as a good stream to whoever asks.
    pub(crate) async fn streaming(events: Vec<String>) -> Self {
        Self::start(move |_, mut wire| {
            let events = events.clone();
            async move {
                let events: Vec<&str> = events.iter().map(String::as_str).collect();
                wire.send_stream(&events).await;
                Some(wire)
            }
        })
        .await
    }

    /// An engine that answers whoever asks with these bytes, and closes.
    pub(crate) async fn saying(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |_, mut wire| {
            let bytes = bytes.clone();
            async move {
                wire.send(bytes).await;
                None
            }
        })
        .await
    }

    /// What it was asked for, without probes.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().seen.clone()
    }

    /// The one request that it was sent.
    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// Connections on which it was asked for an answer.
    pub(crate) fn connections(&self) -> usize {
        self.log.lock().unwrap().connections
    }

    /// What `/metrics` says from now on.
    pub(crate) fn says_of_itself(&self, page: &str) {
        page.clone_into(&mut self.log.lock().unwrap().page);
    }

    /// A gateway before it, which lets every caller in. `keys` are those of its model, as lines
    /// with six spaces less than they have in a file.
    pub(crate) async fn rig(&self, keys: &str) -> Rig {
        rig(&[self.address], "vllm", keys).await
    }

    pub(crate) async fn until_seen(&self, count: usize) {
        eventually(secs(60), "the engine is asked", async || {
            self.seen().len() >= count
        })
        .await;
    }
}

/// A gateway before engines of this kind.
pub(crate) async fn rig(engines: &[SocketAddr], kind: &str, keys: &str) -> Rig {
    Rig::start(&config(engines, kind, keys)).await
}

/// The configuration of such a gateway.
pub(crate) fn config(engines: &[SocketAddr], kind: &str, keys: &str) -> String {
    let urls = engines
        .iter()
        .map(|at| format!("{{ url: \"http://{at}\" }}"));
    let urls: Vec<_> = urls.collect();
    let keys = if keys.is_empty() {
        "upstream: { model: qwen }"
    } else {
        keys
    };
    let keys: String = keys
        .lines()
        .map(|line| format!("    {}\n", line.trim_end()))
        .collect();
    format!(
        "identity: {{ anonymous: allow }}\nmodels:\n  - name: m\n    aliases: [fast]\n    engine: \
         {kind}\n    replicas: [{}]\n{keys}",
        urls.join(", ")
    )
}

async fn serve<F, T>(mut wire: Wire, script: Arc<F>, log: Arc<Mutex<Log>>)
where
    F: Fn(Seen, Wire) -> T,
    T: Future<Output = Option<Wire>>,
{
    let mut asked = false;
    while let Some(seen) = wire.request().await {
        if seen.head.starts_with("GET ") {
            let page = log.lock().unwrap().page.clone();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}",
                page.len()
            );
            wire.send(answer).await;
            continue;
        }
        {
            let mut log = log.lock().unwrap();
            log.seen.push(seen.clone());
            log.connections += usize::from(!asked);
            asked = true;
        }
        match script(seen, wire).await {
            Some(back) => wire = back,
            None => return,
        }
    }
}
