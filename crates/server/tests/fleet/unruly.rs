//! An engine that does its work or does not, as the test says while it runs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// What an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It answers.
    Well,
    /// It takes everything and sends nothing, until its mood changes.
    Frozen,
    /// It answers, ten times as slowly.
    Slow,
    /// It answers, but resets every third connection before it has.
    Resets,
    /// It answers each request with this status.
    Says(u16),
    /// It says that it is full, and that it will be for so many seconds.
    Full(u32),
    /// It sends a token, and breaks off.
    BreaksOff,
    /// It sends its head and a chunk without a token, and breaks off.
    Begins,
    /// It answers when its mood changes.
    Waits,
    /// It answers requests, and lets two of three probes go without an answer.
    Deaf,
}

/// What it has seen.
#[derive(Debug, Default)]
struct Counts {
    asked: AtomicUsize,
    probes: AtomicUsize,
    now: AtomicUsize,
    connections: AtomicUsize,
}

/// An engine.
#[derive(Debug)]
pub(crate) struct Unruly {
    pub(crate) address: SocketAddr,
    mood: watch::Sender<Mood>,
    counts: Arc<Counts>,
    listening: Mutex<Option<AbortHandle>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Unruly {
    pub(crate) async fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let engine = Self {
            address: listener.local_addr().unwrap(),
            mood: watch::Sender::new(mood),
            counts: Arc::default(),
            listening: Mutex::default(),
            tasks: Mutex::default(),
        };
        engine.listen(listener);
        engine
    }

    fn listen(&self, listener: TcpListener) {
        let (mood, counts) = (self.mood.subscribe(), Arc::clone(&self.counts));
        let serving = async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, mood.clone(), Arc::clone(&counts)));
            }
        };
        let handle = self.tasks.lock().unwrap().spawn(serving);
        *self.listening.lock().unwrap() = Some(handle);
    }

    /// Changes what it does.
    pub(crate) fn is(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// Ends it, with all its connections, as if it had been killed.
    pub(crate) async fn kill(&self) {
        if let Some(handle) = self.listening.lock().unwrap().take() {
            handle.abort();
        }
        let ended = self.tasks.lock().unwrap().try_join_next();
        drop(ended);
        crate::support::wait::eventually(
            crate::support::wait::secs(30),
            "it is gone",
            async || TcpStream::connect(self.address).await.is_err(),
        )
        .await;
    }

    /// Starts it again, where it was.
    pub(crate) async fn revive(&self) {
        self.is(Mood::Well);
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.listen(listener);
    }

    /// Requests for an answer that it was sent.
    pub(crate) fn asked(&self) -> usize {
        self.counts.asked.load(Ordering::Relaxed)
    }

    /// Those of them that it has now.
    pub(crate) fn now(&self) -> usize {
        self.counts.now.load(Ordering::Relaxed)
    }
}

/// Counts a request for as long as it is there.
struct Having(Arc<Counts>);

impl Having {
    fn one(counts: &Arc<Counts>) -> Self {
        counts.asked.fetch_add(1, Ordering::Relaxed);
        counts.now.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Having {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(mut socket: TcpStream, mut mood: watch::Receiver<Mood>, counts: Arc<Counts>) {
    let _ = socket.set_nodelay(true);
    let number = counts.connections.fetch_add(1, Ordering::Relaxed);
    let mut unread = Vec::new();
    while let Some((head, body)) = request(&mut socket, &mut unread).await {
        let now = *mood.borrow();
        if now == Mood::Frozen {
            until_it_changes(&mut mood, now).await;
        }
        if head.starts_with("GET ") {
            let probe = counts.probes.fetch_add(1, Ordering::Relaxed);
            if now == Mood::Deaf && !probe.is_multiple_of(3) {
                until_it_changes(&mut mood, now).await;
            }
            let well = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            let _ = socket.write_all(well.as_bytes()).await;
            continue;
        }
        let _having = Having::one(&counts);
        if now == Mood::Resets && number.is_multiple_of(3) {
            return;
        }
        let streams = serde_json::from_slice::<Value>(&body).unwrap()["stream"] == true;
        if answer(&mut socket, &mut mood, now, streams).await.is_none() {
            return;
        }
    }
}

/// Answers a request; nothing where the connection is of no more use.
async fn answer(
    socket: &mut TcpStream,
    mood: &mut watch::Receiver<Mood>,
    now: Mood,
    streams: bool,
) -> Option<()> {
    let pace = match now {
        Mood::Says(status) => return refuse(socket, status, "").await,
        Mood::Full(secs) => {
            return refuse(socket, 503, &format!("retry-after: {secs}\r\n")).await;
        }
        Mood::Waits => {
            until_it_changes(mood, now).await;
            Duration::from_millis(2)
        }
        Mood::Slow => Duration::from_millis(20),
        Mood::Well | Mood::Frozen | Mood::Resets | Mood::BreaksOff | Mood::Begins | Mood::Deaf => {
            Duration::from_millis(2)
        }
    };
    if !streams {
        let body = r#"{"id":"c","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2}}"#;
        let length = body.len();
        let whole = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        return socket.write_all(whole.as_bytes()).await.ok();
    }
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await.ok()?;
    if now == Mood::Begins {
        send(socket, r#"{"role":"assistant"}"#).await?;
        return None;
    }
    let mut tick = tokio::time::interval(pace);
    for n in 0..5 {
        tick.tick().await;
        let is = *mood.borrow();
        if is == Mood::Frozen {
            until_it_changes(mood, is).await;
        }
        send(socket, &format!(r#"{{"content":"{n} "}}"#)).await?;
        if now == Mood::BreaksOff {
            return None;
        }
    }
    let end = concat!(
        r#"{"id":"c","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "\n\ndata: ",
        r#"{"id":"c","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"completion_tokens":5}}"#,
    );
    event(socket, end).await?;
    event(socket, "[DONE]").await?;
    socket.write_all(b"0\r\n\r\n").await.ok()
}

async fn send(socket: &mut TcpStream, delta: &str) -> Option<()> {
    let chunk = format!(
        r#"{{"id":"c","object":"chat.completion.chunk","created":7,"model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#
    );
    event(socket, &chunk).await
}

async fn event(socket: &mut TcpStream, data: &str) -> Option<()> {
    let event = format!("data: {data}\n\n");
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    socket.write_all(chunk.as_bytes()).await.ok()
}

async fn refuse(socket: &mut TcpStream, status: u16, headers: &str) -> Option<()> {
    let body = format!(r#"{{"error":{{"message":"no","type":"t","code":{status}}}}}"#);
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} No\r\n{headers}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await.ok()
}

/// Waits until the mood is another one.
async fn until_it_changes(mood: &mut watch::Receiver<Mood>, now: Mood) {
    // Err: the engine is gone, and this with it.
    let _ = mood.wait_for(|mood| *mood != now).await;
}

/// The next request: its head and its body.
async fn request(socket: &mut TcpStream, unread: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = unread.windows(4).position(|at| at == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(unread.drain(..end).collect()).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_it = name.eq_ignore_ascii_case("content-length");
        is_it.then(|| value.trim().parse::<usize>().unwrap())
    });
    while unread.len() < length.unwrap_or(0) {
        if socket.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, unread.drain(..length.unwrap_or(0)).collect()))
}
