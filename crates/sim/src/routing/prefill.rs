//! Replicas that compute prompts, one after the other, and keep what they computed for as long as
//! there is room. What a rule can get wrong: the cache it does not use, and the queue it makes.

use std::collections::BTreeMap;

use tollgate_policy::ids::ReplicaId;
use tollgate_policy::route::{Affinity, Block, Candidate, Load};
use tollgate_policy::units::{KvBlocks, Micros, Time, Tokens};

use super::{Prefixed, Reports, Routers, Rule};
use crate::chance::{Purpose, stream};
use crate::stats::Sorted;

/// A fleet that prefills.
#[derive(Clone, Copy, Debug)]
pub struct PrefillWorld {
    /// Replicas, all alike.
    pub replicas: u32,
    /// Tokens that each keeps.
    pub cache: Tokens,
    /// Tokens that each computes per second.
    pub tokens_per_s: f64,
    /// What is known of them.
    pub reports: Reports,
}

impl PrefillWorld {
    /// A fleet that is busy for three quarters of the time when 38 per cent of the tokens are found
    /// in its caches.
    pub fn for_load(requests: &[Prefixed], replicas: u32, cache: Tokens, reports: Reports) -> Self {
        let all: u64 = requests.iter().map(|request| request.prompt.get()).sum();
        let span = requests
            .last()
            .map_or(Micros::ZERO, |last| last.at.since(Time::START));
        let seconds = (span.get() as f64 / 1e6).max(1.0);
        Self {
            replicas,
            cache,
            tokens_per_s: all as f64 * 0.62 / (f64::from(replicas) * 0.75 * seconds),
            reports,
        }
    }
}

/// What came of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillScore {
    /// Share of the prompt tokens that were found in a cache.
    pub hits: f64,
    /// Tokens computed by the replica that computed most, over the mean.
    pub imbalance: f64,
    /// TTFT, the median and the 99th percentile, in seconds.
    pub ttft_s: (f64, f64),
}

/// Runs `requests` by `rule`; the same for the same seed.
pub fn prefill(rule: Rule, requests: &[Prefixed], world: PrefillWorld, seed: u64) -> PrefillScore {
    let mut fleet: Vec<Replica> = (0..world.replicas)
        .map(|_| Replica::new(world.reports.routers))
        .collect();
    let chance = stream(seed, Purpose::Arrivals, "routers");
    let mut routers = Routers::new(rule, world.reports.routers, chance);
    let mut ttft = Vec::with_capacity(requests.len());
    let (mut found, mut all, mut next_report) = (0, 0, Time::START);
    for request in requests {
        while next_report <= request.at {
            for replica in &mut fleet {
                replica.report(next_report, world.tokens_per_s);
            }
            next_report = next_report + world.reports.every;
        }
        let router = routers.draw();
        let affinity = Affinity {
            session: None,
            prefix: request.blocks.clone(),
        };
        let candidates: Vec<_> = fleet
            .iter()
            .zip(0..)
            .map(|(replica, n)| replica.candidate(n, router, rule))
            .collect();
        let chosen = routers.choose(
            router,
            (request.prompt, &affinity),
            &candidates,
            world.cache,
        );
        let Some(choice) = chosen else { continue };
        let Some(replica) = fleet.get_mut(usize::try_from(choice.replica.get()).unwrap_or(0))
        else {
            continue;
        };
        if let Some(sent) = replica.sent.get_mut(router) {
            *sent += request.prompt - choice.cached;
        }
        let (cached, done) = replica.serve(request, &world);
        ttft.push(done.since(request.at).get() as f64 / 1e6);
        found += cached.get();
        all += request.prompt.get();
    }
    let computed: Vec<f64> = fleet
        .iter()
        .map(|replica| replica.computed.get() as f64)
        .collect();
    let (most, sum) = (
        computed.iter().copied().fold(0.0, f64::max),
        computed.iter().sum::<f64>(),
    );
    let ttft = Sorted::new(ttft);
    PrefillScore {
        hits: found as f64 / all.max(1) as f64,
        imbalance: most * computed.len() as f64 / sum.max(1.0),
        ttft_s: (
            ttft.quantile(0.5).unwrap_or(0.0),
            ttft.quantile(0.99).unwrap_or(0.0),
        ),
    }
}

/// A replica that prefills what it is sent in the order in which it comes.
struct Replica {
    /// When it has done all it has.
    done: Time,
    cache: Cache,
    computed: Tokens,
    /// Tokens that it had still to compute, as it last said.
    reported: Tokens,
    /// What each router sent it since.
    sent: Vec<Tokens>,
}

impl Replica {
    fn new(routers: usize) -> Self {
        Self {
            done: Time::START,
            cache: Cache::default(),
            computed: Tokens::ZERO,
            reported: Tokens::ZERO,
            sent: vec![Tokens::ZERO; routers],
        }
    }

    fn report(&mut self, now: Time, tokens_per_s: f64) {
        let left = self.done.since(now).get() as f64 / 1e6 * tokens_per_s;
        self.reported = Tokens::new(left as u64);
        self.sent.fill(Tokens::ZERO);
    }

    /// What `router` knows of it.
    fn candidate(&self, n: u32, router: usize, rule: Rule) -> Candidate {
        let sent = self.sent.get(router).copied().unwrap_or_default();
        let load = match rule {
            Rule::Tollgate(_) | Rule::LongestPrefix => Load {
                kv: KvBlocks::ZERO,
                total: KvBlocks::ZERO,
                sequences: 0,
                prefill: self.reported + sent,
            },
            Rule::LowestReport => Load::default(),
        };
        // The plain rules look at KV, and here there is nothing else to look at than the queue.
        let kv = match rule {
            Rule::LowestReport => self.reported.blocks(),
            Rule::Tollgate(tollgate_policy::route::Policy::Prefix) | Rule::LongestPrefix => {
                KvBlocks::ZERO
            }
            Rule::Tollgate(_) => (self.reported + sent).blocks(),
        };
        let total = KvBlocks::new(1 << 30);
        Candidate {
            replica: ReplicaId::new(n),
            load: Load { kv, total, ..load },
        }
    }

    /// What is found of a prompt, and when it is computed.
    fn serve(&mut self, request: &Prefixed, world: &PrefillWorld) -> (Tokens, Time) {
        let cached = self.cache.take(&request.blocks, world.cache);
        let missing = request.prompt - cached;
        self.computed += missing;
        let takes = missing.get() as f64 / world.tokens_per_s * 1e6;
        self.done = self.done.max(request.at) + Micros::new(takes as u64);
        (cached, self.done)
    }
}

/// What a replica keeps: the blocks that were used last, and of those of one prompt the first.
#[derive(Default)]
struct Cache {
    blocks: BTreeMap<u64, (u64, Tokens)>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    held: Tokens,
}

impl Cache {
    /// The tokens that are found of a prompt, all of which is there afterwards.
    fn take(&mut self, blocks: &[Block], room: Tokens) -> Tokens {
        let known = blocks
            .iter()
            .take_while(|block| self.blocks.contains_key(&block.hash))
            .count();
        let found = known
            .checked_sub(1)
            .map_or(Tokens::ZERO, |last| blocks[last].end);
        for (at, block) in blocks.iter().enumerate().rev() {
            let before = at.checked_sub(1).map_or(Tokens::ZERO, |at| blocks[at].end);
            self.uses += 1;
            let entry = (self.uses, block.end - before);
            match self.blocks.insert(block.hash, entry) {
                Some((used, _)) => {
                    self.by_use.remove(&used);
                }
                None => self.held += entry.1,
            }
            self.by_use.insert(self.uses, block.hash);
        }
        while self.held > room {
            let Some((_, hash)) = self.by_use.pop_first() else {
                break;
            };
            if let Some((_, tokens)) = self.blocks.remove(&hash) {
                self.held = self.held - tokens;
            }
        }
        found
    }
}
