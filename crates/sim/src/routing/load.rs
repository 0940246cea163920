//! Requests whose prompts begin alike: from a trace that says so, or made up like it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tollgate_policy::route::Block;
use tollgate_policy::units::{Micros, Time, Tokens};

use crate::chance::{Purpose, stream, unit};
use crate::trace::{Trace, TraceName};

/// One request, and the blocks that its prompt is made of.
#[derive(Clone, Debug)]
pub struct Prefixed {
    /// When it comes.
    pub at: Time,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Its prompt's blocks, of which each stands for all before it too.
    pub blocks: Arc<[Block]>,
}

/// Tokens of a block in the trace, and in what is made up.
const BLOCK: u64 = 512;

/// The trace's times are multiples of about this much.
const TICK: Micros = Micros::from_secs(3);

#[derive(Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: u64,
    input_length: u64,
    hash_ids: Vec<u64>,
}

/// Mooncake's conversations (FAST 2025) from the folder of the traces, the requests of a tick
/// spread over it.
///
/// # Errors
/// The file can't be read, or a line of it is no request.
pub fn mooncake(dir: &Path, seed: u64) -> io::Result<Vec<Prefixed>> {
    let file = File::open(dir.join(TraceName::MooncakeConversations.file_name()))?;
    let longest = u64::try_from(Trace::LINE_MAX * Trace::ROWS_MAX).unwrap_or(u64::MAX);
    let mut rng = stream(seed, Purpose::Tick, "mooncake");
    let mut requests = Vec::new();
    for line in BufReader::new(file.take(longest)).lines() {
        let line: Line = serde_json::from_str(&line?)?;
        let spread = (unit(&mut rng) * TICK.get() as f64) as u64;
        requests.push(Prefixed {
            at: Time::from_micros(line.timestamp * 1_000 + spread),
            prompt: Tokens::new(line.input_length),
            blocks: blocks(&line.hash_ids, line.input_length),
        });
    }
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

fn blocks(hashes: &[u64], prompt: u64) -> Arc<[Block]> {
    let block = |(hash, at): (&u64, u64)| Block {
        hash: *hash,
        end: Tokens::new((at * BLOCK).min(prompt)),
    };
    hashes.iter().zip(1..).map(block).collect()
}

/// Conversations made up to be like the trace's: one first block that all share, openings of 8,000
/// tokens in the mean, turns that go on from all that was said with 3,000 more, a minute apart, and
/// as many turns as chance has it. About 3.4 requests per second.
pub fn conversations(span: Micros, seed: u64) -> Vec<Prefixed> {
    let mut rng = stream(seed, Purpose::Prompt, "conversations");
    let mut exponential = |mean: f64| -mean * (1.0 - unit(&mut rng)).ln();
    let (mut requests, mut next_hash, mut start) = (Vec::new(), 1, 0.0);
    let end = span.get() as f64 / 1e6;
    while start < end {
        start += exponential(1.0 / OPENINGS_PER_S);
        let (mut at, mut length, mut hashes) = (start, 0.0, vec![0]);
        let mut grows = exponential(8_000.0);
        while at < end {
            length += grows + 1.0;
            while hashes.len() as f64 * (BLOCK as f64) < length {
                hashes.push(next_hash);
                next_hash += 1;
            }
            let prompt = length as u64;
            requests.push(Prefixed {
                at: Time::from_micros((at * 1e6) as u64),
                prompt: Tokens::new(prompt),
                blocks: blocks(&hashes, prompt),
            });
            // The last block was not whole, so the next turn's is another.
            hashes.pop();
            next_hash += 1;
            if exponential(1.0) > TURNS_GO_ON {
                break;
            }
            at += exponential(60.0);
            grows = exponential(3_000.0);
        }
    }
    requests.sort_by_key(|request| request.at);
    requests
}

const OPENINGS_PER_S: f64 = 1.7;

/// One in two conversations has another turn.
const TURNS_GO_ON: f64 = std::f64::consts::LN_2;

/// The share of prompt tokens that a single cache without end would have held: the most that any
/// rule can find.
pub fn infinite_cache(requests: &[Prefixed]) -> f64 {
    let mut seen = BTreeSet::new();
    let (mut found, mut all) = (0, 0);
    for request in requests {
        let known = request
            .blocks
            .partition_point(|block| seen.contains(&block.hash));
        found += known
            .checked_sub(1)
            .map_or(0, |last| request.blocks[last].end.get());
        all += request.prompt.get();
        seen.extend(request.blocks.iter().map(|block| block.hash));
    }
    found as f64 / all.max(1) as f64
}
