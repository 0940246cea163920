//! An HTTP endpoint on a port of its own that answers each request as a function says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// What a request is answered with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Nothing, ever.
    Silence,
    /// A whole stream, once so many requests have come.
    WhenAsked(u64),
    /// A whole stream of so many tokens.
    Tokens(u64),
    /// One body.
    Whole,
    /// One body whose usage counts the prompt so.
    Counted {
        template: usize,
        bytes_a_token: usize,
    },
    /// A status with `x-tollgate-reason`.
    Refusal(u16, &'static str),
    /// Two tokens, then a proper end of the body.
    HalfStream,
    /// A token, an error event, and `[DONE]`.
    ErrorEvent,
    /// `[DONE]` without anything before it.
    DoneAtOnce,
    /// A connection reset instead of an answer.
    Reset,
    /// Two tokens, then a connection reset.
    ResetMidStream,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Asked {
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn prompt(&self) -> String {
        self.json()["messages"][0]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

type Choose = dyn Fn(u64, &Asked) -> Answer + Send + Sync;

struct Shared {
    choose: Box<Choose>,
    asked: Mutex<Vec<Asked>>,
    count: watch::Sender<u64>,
    connections: AtomicU64,
}

/// The endpoint; it is gone when this is dropped.
pub(super) struct TestEndpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl TestEndpoint {
    /// Listens; `choose` gets the number of each request and the request.
    pub(super) fn start(choose: impl Fn(u64, &Asked) -> Answer + Send + Sync + 'static) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (choose, asked) = (Box::new(choose), Mutex::default());
        let (count, connections) = (watch::Sender::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared {
            choose,
            asked,
            count,
            connections,
        });
        let (handle, accepting) = (runtime.handle().clone(), Arc::clone(&shared));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                handle.spawn(serve(stream, Arc::clone(&accepting)));
            }
        });
        Self {
            address,
            shared,
            _runtime: runtime,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Connections over which a request came.
    pub(super) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).unwrap();
    let mut is_first = true;
    let mut unread = Vec::new();
    while let Some(asked) = read_request(&mut stream, &mut unread).await {
        if std::mem::take(&mut is_first) {
            shared.connections.fetch_add(1, Ordering::SeqCst);
        }
        let number = {
            let mut all = shared.asked.lock().unwrap();
            all.push(asked.clone());
            all.len() as u64
        };
        shared.count.send_replace(number);
        let chosen = (shared.choose)(number, &asked);
        if let Answer::WhenAsked(all) = chosen {
            shared
                .count
                .subscribe()
                .wait_for(|count| *count >= all)
                .await
                .unwrap();
        }
        if !answer(&mut stream, chosen, &asked).await {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Asked> {
    loop {
        let end = unread.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8(unread[..end + 4].to_vec()).unwrap();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap().parse().unwrap();
            if unread.len() >= end + 4 + length {
                let body = unread[end + 4..end + 4 + length].to_vec();
                unread.drain(..end + 4 + length);
                return Some(Asked { head, body });
            }
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
}

const TOKEN: &str =
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// Answers; whether the connection goes on.
async fn answer(stream: &mut TcpStream, answer: Answer, asked: &Asked) -> bool {
    match answer {
        Answer::Silence => std::future::pending().await,
        Answer::Tokens(count) | Answer::WhenAsked(count) => {
            let count = count.min(4);
            let usage = format!(
                "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":128,\
                 \"completion_tokens\":{count}}}}}\n\n"
            );
            let mut events = vec![TOKEN; usize::try_from(count).unwrap()];
            events.extend([FINISH, &usage, DONE]);
            stream_events(stream, &events, true).await
        }
        Answer::Whole => whole(stream, 200, "", &body(7)).await,
        Answer::Counted {
            template,
            bytes_a_token,
        } => {
            let tokens = template + asked.prompt().len() / bytes_a_token;
            whole(stream, 200, "", &body(tokens)).await
        }
        Answer::Refusal(status, reason) => {
            let header = format!("x-tollgate-reason: {reason}\r\n");
            whole(stream, status, &header, "{\"error\":{}}").await
        }
        Answer::HalfStream => stream_events(stream, &[TOKEN, TOKEN], true).await,
        Answer::ErrorEvent => {
            let error = "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n";
            stream_events(stream, &[TOKEN, error, DONE], true).await
        }
        Answer::DoneAtOnce => stream_events(stream, &[DONE], true).await,
        Answer::Reset => {
            stream.set_zero_linger().unwrap();
            false
        }
        Answer::ResetMidStream => {
            stream_events(stream, &[TOKEN, TOKEN], false).await;
            stream.set_zero_linger().unwrap();
            false
        }
    }
}

fn body(prompt_tokens: usize) -> String {
    format!(
        "{{\"choices\":[{{\"message\":{{\"content\":\"aaaa\"}},\"finish_reason\":\"length\"}}],\
         \"usage\":{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":4}}}}"
    )
}

async fn whole(stream: &mut TcpStream, status: u16, header: &str, body: &str) -> bool {
    let length = body.len();
    let text = format!("HTTP/1.1 {status} x\r\n{header}content-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.is_ok()
}

/// Each event in a chunk of its own, and the last chunk if the body is to end.
async fn stream_events(stream: &mut TcpStream, events: &[&str], ends: bool) -> bool {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let mut written = stream.write_all(head.as_bytes()).await.is_ok();
    for event in events {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        written &= stream.write_all(chunk.as_bytes()).await.is_ok();
    }
    if ends {
        written &= stream.write_all(b"0\r\n\r\n").await.is_ok();
    }
    written
}
