//! Servers that are killed while they serve: what a client saw the end of is charged once, with the
//! engine's own count, and nothing is charged twice or for more than was made.
//!
//! The engine is the fake one: told to ignore the end of a turn it makes as many tokens as it is
//! asked for, one a byte, and no more than one each millisecond. So a client knows by itself what
//! an answer costs that it saw whole, and what one can cost at most that it did not.
//! `KILL_CYCLES` asks for more than the few kills of a test run.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::deadline::{PATIENCE, eventually, now};
use crate::ledger::rows;
use crate::process::{Server, run, serve, tollgate};

const CONFIG: &str = "\
listen: 127.0.0.1:0
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    max_sequences: 64
    fake: { step: 1ms, per_sequence: 0us, prefill_tokens_per_second: 1000000 }
";

/// Clients at a time, of which each has one request in flight.
const CLIENTS: u64 = 10;

/// Kills in a test run.
const CYCLES: u64 = 3;

/// A request, and how its client saw it go.
#[derive(Clone, Debug)]
struct Seen {
    name: String,
    /// Tokens of output that it asked for, and gets unless something ends it.
    asked: u64,
    sent: Instant,
    /// When the end of its answer was read, if it was.
    whole: Option<Instant>,
    /// Bytes of answer that were read: each was a token.
    read: u64,
    /// What the answer says of itself, where it was not streamed.
    said: Option<u64>,
}

/// Numbers for what chance decides (Marsaglia: xorshift, JSS '03).
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Sends requests of all kinds, one after the other, until it is told to stop.
fn client(address: &str, mut chance: Chance, stop: &AtomicBool, log: &Mutex<Vec<Seen>>) {
    while !stop.load(Ordering::Relaxed) {
        let kind = chance.below(20);
        let asked = match kind {
            0..2 => 1_500 + chance.below(3_000),
            2..17 => 5 + chance.below(60),
            _ => 200 + chance.below(200),
        };
        let streamed = kind < 14;
        // Some clients leave in the middle.
        let patience = if kind < 11 {
            u64::MAX
        } else {
            1 + chance.below(100)
        };
        let retry = if kind == 13 {
            "x-stainless-retry-count: 1\r\n"
        } else {
            ""
        };
        let seen = ask(address, asked, (streamed, retry), patience);
        if let Some(seen) = seen {
            log.lock().unwrap().push(seen);
        }
    }
}

/// One request; `None` where nobody let it in. Reads no more than `patience` bytes of a streamed
/// answer.
fn ask(address: &str, asked: u64, (streamed, retry): (bool, &str), patience: u64) -> Option<Seen> {
    let body = format!(
        r#"{{"model":"m","stream":{streamed},"max_tokens":{asked},"ignore_eos":true,"messages":[{{"role":"user","content":"go"}}]}}"#
    );
    let sent = now();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\n{retry}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut got = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let size = stream.read(&mut piece).unwrap_or(0);
        got.extend_from_slice(&piece[..size]);
        let text = String::from_utf8_lossy(&got);
        let Some((head, answer)) = text.split_once("\r\n\r\n") else {
            if size == 0 {
                return None;
            }
            continue;
        };
        if !head.contains(" 200 ") {
            return None;
        }
        let name = head
            .lines()
            .find_map(|line| line.strip_prefix("x-request-id: "));
        let read = if streamed { content_bytes(answer) } else { 0 };
        let said = (!streamed).then(|| usage(answer)).flatten();
        let whole = if streamed {
            answer.contains("data: [DONE]")
        } else {
            said.is_some()
        };
        if whole || size == 0 || read >= patience {
            return Some(Seen {
                name: name?.trim().to_owned(),
                asked,
                sent,
                whole: whole.then(now),
                read,
                said,
            });
        }
    }
}

/// Bytes of text in the whole events of a stream. What stands for a character that was cut off at
/// the end is one: its token was one byte of it.
fn content_bytes(answer: &str) -> u64 {
    let events = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
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

/// What one server lived through.
struct Life {
    seen: Vec<Seen>,
    /// How many of them had been seen when two more batches were awaited.
    settled: usize,
    killed: Instant,
}

/// Serves a load of all kinds for a while, and is killed.
fn live_and_die(folder: &Path, seed: u64) -> Life {
    let server = Server::start(serve(folder, CONFIG));
    let (log, stop) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicBool::new(false)),
    );
    let mut chance = Chance(seed);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
            let (address, chance) = (server.address.clone(), Chance(seed * 1_000 + n + 1));
            std::thread::spawn(move || client(&address, chance, &stop, &log))
        })
        .collect();
    let requests = 40 + usize::try_from(chance.below(120)).unwrap();
    for some in (0..=requests).step_by(10) {
        eventually("more was served", || {
            (log.lock().unwrap().len() >= some).then_some(())
        });
    }
    let settled = log.lock().unwrap().len();
    let batches = batches(&server);
    eventually("two more batches are on disk", || {
        (self::batches(&server) >= batches + 3.0).then_some(())
    });
    let killed = now();
    assert_eq!(server.running.kill().code, None);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    let seen = std::mem::take(&mut *log.lock().unwrap());
    Life {
        seen,
        settled,
        killed,
    }
}

/// Batches of the ledger that have reached the disk.
fn batches(server: &Server) -> f64 {
    let scrape = server.get("/metrics").body;
    let value = scrape
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_ledger_batches "));
    value.unwrap().trim().parse().unwrap()
}

/// Counts of what the kills did, to see that they did something.
#[derive(Debug, Default)]
struct Tally {
    whole: u64,
    interrupted: u64,
    interrupted_tokens: u64,
    left: u64,
    /// Seen whole more than 50 ms before a kill, and not charged in full.
    late: u64,
}

fn check(life: &Life, charged: &BTreeMap<String, Value>, tally: &mut Tally) {
    for (n, seen) in life.seen.iter().enumerate() {
        let row = charged.get(&seen.name);
        let output = row.and_then(|row| row["output_tokens"].as_u64());
        let outcome = row.and_then(|row| row["outcome"].as_str());
        if let Some(end) = seen.whole {
            assert!(seen.said.is_none_or(|said| said == seen.asked), "{seen:?}");
            let exact = output == Some(seen.asked) && outcome == Some("completed");
            assert!(exact || n >= life.settled, "{seen:?} is charged {row:?}");
            tally.whole += u64::from(exact);
            let early = life.killed.saturating_duration_since(end) > Duration::from_millis(50);
            tally.late += u64::from(early && !exact);
        }
        let Some(output) = output else { continue };
        assert!(output <= seen.asked, "{seen:?} is charged {row:?}");
        let steps = life.killed.saturating_duration_since(seen.sent).as_millis() + 1;
        match outcome {
            Some("interrupted") => {
                // No engine makes more than a token a step, and no step is shorter than 1 ms.
                assert!(u128::from(output) <= steps, "{seen:?} is charged {row:?}");
                tally.interrupted += 1;
                tally.interrupted_tokens += output;
            }
            Some(gone) if gone.starts_with("client_gone") => {
                assert!(output >= seen.read, "{seen:?} is charged {row:?}");
                tally.left += 1;
            }
            _ => {}
        }
    }
}

/// The rows by request, of which none may have two.
fn charged(folder: &Path) -> BTreeMap<String, Value> {
    let mut charged = BTreeMap::new();
    for row in rows(folder) {
        let name = row["request"].as_str().unwrap().to_owned();
        let twice = charged.insert(name, row);
        assert!(twice.is_none(), "charged twice: {twice:?}");
    }
    charged
}

#[test]
fn whatever_dies_each_request_is_charged_once_and_for_no_more_than_was_made() {
    let cycles = std::env::var("KILL_CYCLES").ok();
    let cycles = cycles.map_or(CYCLES, |cycles| cycles.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut tally = Tally::default();
    let mut lives = Vec::new();
    for seed in 1..=cycles {
        lives.push(live_and_die(folder.path(), seed));
    }
    drop(Server::start(serve(folder.path(), CONFIG)));
    let charged = charged(folder.path());
    let names: usize = lives.iter().map(|life| life.seen.len()).sum();
    for life in &lives {
        check(life, &charged, &mut tally);
    }
    println!(
        "{cycles} kills, {names} requests seen, {} charged: {tally:?}",
        charged.len()
    );
    assert!(tally.whole >= 20 * cycles, "{tally:?}");
    assert!(tally.interrupted > 0 && tally.left > 0, "{tally:?}");
    let verified = run(tollgate(folder.path(), &["ledger", "verify"]));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
}
