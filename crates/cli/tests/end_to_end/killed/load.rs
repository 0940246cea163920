//! Clients of all kinds, and how they saw their requests go.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use crate::client::Answer;
use crate::deadline::{PATIENCE, now};

/// A request, and how its client saw it go.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) ask: Ask,
    pub(super) sent: Instant,
    /// When the end of its answer was read, if it was.
    pub(super) whole: Option<Instant>,
    /// The answer, where it may be asked for again.
    pub(super) body: String,
    /// Bytes of answer that were read, of a stream.
    pub(super) read: u64,
    /// What the answer says of itself, where it was not streamed.
    pub(super) said: Option<u64>,
    /// How a request with an idempotency key came by its answer.
    pub(super) how: Option<String>,
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// The key of its tenant.
    pub(super) key: String,
    /// Tokens of output, which it gets unless something ends it.
    pub(super) tokens: u64,
    pub(super) streamed: bool,
    /// Whether it says that it is another try.
    pub(super) retry: bool,
    pub(super) idempotency: Option<String>,
    /// After so many bytes of a stream it leaves.
    pub(super) patience: u64,
}

impl Ask {
    /// A whole answer of so many tokens.
    pub(super) fn plain(key: &str, tokens: u64) -> Self {
        Self {
            key: key.to_owned(),
            tokens,
            streamed: false,
            retry: false,
            idempotency: None,
            patience: u64::MAX,
        }
    }

    /// Sends it. Err: the status and the reason of a refusal, or neither where nobody answered.
    pub(super) fn send(&self, address: &str) -> Result<Seen, Option<(u16, String)>> {
        let sent = now();
        let mut stream = TcpStream::connect(address).map_err(|_| None)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|_| None)?;
        stream.write_all(&self.bytes(address)).map_err(|_| None)?;
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let size = stream.read(&mut piece).unwrap_or(0);
            got.extend_from_slice(&piece[..size]);
            let stays = self.patience == u64::MAX || content(&got) < self.patience;
            if size == 0 || !stays {
                return self.seen(&got, sent);
            }
        }
    }

    /// What has come until it left, or the connection ended.
    fn seen(&self, got: &[u8], sent: Instant) -> Result<Seen, Option<(u16, String)>> {
        if !got.windows(4).any(|four| four == b"\r\n\r\n") {
            return Err(None);
        }
        let answer = Answer::parse(got);
        if answer.status != 200 {
            let reason = answer.header("x-tollgate-reason").unwrap_or_default();
            return Err(Some((answer.status, reason.to_owned())));
        }
        let said = (!self.streamed).then(|| usage(&answer.body)).flatten();
        let whole = if self.streamed {
            answer.body.contains("data: [DONE]")
        } else {
            said.is_some()
        };
        Ok(Seen {
            name: answer.header("x-request-id").ok_or(None)?.to_owned(),
            ask: self.clone(),
            sent,
            whole: whole.then(now),
            body: if self.idempotency.is_some() {
                answer.body.clone()
            } else {
                String::new()
            },
            read: if self.streamed { content(got) } else { 0 },
            said,
            how: answer.header("x-tollgate-idempotency").map(str::to_owned),
        })
    }

    fn bytes(&self, address: &str) -> Vec<u8> {
        let Self {
            key,
            tokens,
            streamed,
            ..
        } = self;
        let body = format!(
            r#"{{"model":"m","stream":{streamed},"max_tokens":{tokens},"ignore_eos":true,"messages":[{{"role":"user","content":"go"}}]}}"#
        );
        let mut head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\nauthorization: Bearer {key}\r\n\
             content-length: {}\r\n",
            body.len()
        );
        if self.retry {
            head.push_str("x-stainless-retry-count: 1\r\n");
        }
        if let Some(key) = &self.idempotency {
            head.push_str(&format!("idempotency-key: {key}\r\n"));
        }
        format!("{head}\r\n{body}").into_bytes()
    }
}

/// Numbers for what chance decides (Marsaglia: xorshift, JSS '03).
#[derive(Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A request of some kind: long and short, streamed and whole, of clients that stay, leave in
    /// the middle, try again, and have an idempotency key.
    fn ask(&mut self, keys: &[&str]) -> Ask {
        let kind = self.below(20);
        let tokens = match kind {
            0..2 => 1_500 + self.below(3_000),
            2..17 => 5 + self.below(60),
            _ => 200 + self.below(200),
        };
        let key = usize::try_from(self.below(u64::try_from(keys.len()).unwrap())).unwrap();
        let stays = !(11..14).contains(&kind);
        Ask {
            key: keys[key].to_owned(),
            tokens,
            streamed: kind < 14,
            retry: kind == 13,
            idempotency: (self.below(5) == 0).then(|| format!("key-{}", self.0)),
            patience: if stays { u64::MAX } else { 1 + self.below(100) },
        }
    }
}

/// Sends requests of all kinds, one after the other, until it is told to stop.
pub(super) fn client(
    address: &str,
    keys: &[&str],
    mut chance: Chance,
    stop: &AtomicBool,
    log: &Mutex<Vec<Seen>>,
) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(seen) = chance.ask(keys).send(address) {
            log.lock().unwrap().push(seen);
        }
    }
}

/// Bytes of text in the whole events of a stream. What stands for a character that was cut off at
/// the end is one: its token was one byte of it.
fn content(answer: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(answer);
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let bytes = events.filter_map(|event| {
        let text = event["choices"][0]["delta"]["content"].as_str()?;
        u64::try_from(text.replace('\u{fffd}', "?").len()).ok()
    });
    bytes.sum()
}

fn usage(answer: &str) -> Option<u64> {
    let answer: Value = serde_json::from_str(answer.trim()).ok()?;
    answer["usage"]["completion_tokens"].as_u64()
}
