//! Random mixes of requests on the real model: however they are batched, cut up, shared, preempted
//! or given room, each says what it says alone, up to ties between tokens that are as likely. With
//! a prefix cache each mix is asked twice: the second time finds what the first has left, as bytes.
//!
//! Some tens of mixes are part of every test run; `make mixes` runs hundreds.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tollgate_policy::batch::Order;
use tollgate_policy::engine::{CacheConfig, Config, Reservation};
use tollgate_policy::ids::TenantId;
use tollgate_policy::units::{KvBlocks, Tokens};

use crate::conformance::rig::{self, CONFIG, Lab, Rig};
use crate::handle::lock;
use crate::llama::PUT_BACK;
use crate::seed::mix;
use crate::{Job, Token};

/// Mixes in a test run, unless `TOLLGATE_MIXES` says how many, or which: `100..200`.
const MIXES: u64 = 32;

/// Between the numbers of a mix's requests and those of the same when they are asked again. Even,
/// so that each is of the same tenant.
const ROUND: u64 = 100;

/// What prompts begin with, and what they end with: short, so that a mix takes a fraction of a
/// second.
const BEGINNINGS: [&str; 3] = [
    "",
    "You keep the toll gate on a long road, and every cart must stop and pay. ",
    "The report of the year says, in order, what was built, what was paid, and what was lost: ",
];
const ENDS: [&str; 8] = [
    "The capital of France is",
    "1, 2, 3, 4,",
    "A B C D E",
    "def add(a, b):\n",
    "Roses are red, violets are",
    "The three primary colours are red,",
    "Once upon a time",
    "2 + 2 =",
];

/// A request, by what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    beginning: usize,
    end: usize,
    output: u64,
}

impl Ask {
    fn text(self) -> String {
        format!("{}{}", BEGINNINGS[self.beginning], ENDS[self.end])
    }

    fn job(self, rig: &Rig, id: u64, tenant: u32) -> Job {
        let mut job = rig.job(id, &self.text(), self.output);
        job.tenant = TenantId::new(tenant);
        job
    }
}

/// A stream of numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % bound
    }

    fn size(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).unwrap()
    }
}

/// An engine in which something is shared, cut up or short.
fn limits(chance: &mut Chance, tight: bool) -> Config {
    let cached = chance.below(2) == 0;
    let contiguous = chance.below(4) == 0;
    let sequences = u32::try_from(2 + chance.below(5)).unwrap();
    // With a block less than all could need, there is one KV for all.
    let roomy = if chance.below(2) == 0 {
        64
    } else {
        sequences * 4 - 1
    };
    Config {
        sequences,
        guests: u32::try_from(chance.below(3)).unwrap(),
        blocks: if tight { 5 } else { roomy },
        step_tokens: Tokens::new(8 + chance.below(57)),
        chunk: Tokens::new(4 + chance.below(61)),
        order: if chance.below(2) == 0 {
            Order::DecodeFirst
        } else {
            Order::PrefillFirst
        },
        context: Tokens::new(64),
        reservation: if contiguous {
            Reservation::Contiguous
        } else {
            Reservation::Paged
        },
        cache: if cached {
            CacheConfig {
                prefixes: u32::try_from(1 + chance.below(6)).unwrap(),
                tenant_blocks: KvBlocks::new(2 + chance.below(12)),
            }
        } else {
            CacheConfig::OFF
        },
        ..CONFIG
    }
}

/// What all mixes together came to.
#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    tokens: u64,
    parted: u64,
    preempted: u64,
    copies: u64,
    cached_mixes: u64,
    /// Mixes that were asked once more, when what they had left was kept as bytes, and pieces of KV
    /// that were made of bytes again.
    again: u64,
    put_back: u64,
    contiguous_mixes: u64,
    /// Mixes in which each sequence had a KV of its own.
    lane_mixes: u64,
    widest_gap: f32,
}

struct Alone<'a> {
    lab: &'a Lab,
    rig: Rig,
    said: BTreeMap<Ask, Vec<Token>>,
}

impl Alone<'_> {
    /// What a request says alone: the longest answer of it is cut to the length asked for.
    fn says(&mut self, ask: Ask) -> Vec<Token> {
        let output = if ask.output > 8 { 33 } else { 8 };
        let longest = Ask { output, ..ask };
        let next = u64::try_from(self.said.len()).unwrap();
        let said = self.said.entry(longest).or_insert_with(|| {
            self.rig.run(vec![longest.job(&self.rig, next, 0)]);
            self.rig.generated().remove(&next).unwrap()
        });
        said.iter()
            .copied()
            .take(usize::try_from(ask.output).unwrap())
            .collect()
    }

    /// Checks one answer against it; where they part, it must be at a tie.
    fn check(&mut self, seed: u64, ask: Ask, said: &[Token], tally: &mut Tally) {
        let alone = self.says(ask);
        let same = alone.iter().zip(said).take_while(|(a, b)| a == b).count();
        tally.requests += 1;
        tally.tokens += ask.output;
        if same == alone.len() && same == said.len() {
            return;
        }
        assert!(
            same < alone.len() && same < said.len(),
            "mix {seed}: {ask:?} has another length"
        );
        let mut tokens = self.lab.model.tokenize(&ask.text()).unwrap();
        tokens.extend(&alone[..same]);
        let (gap, noise) = self.lab.gap_and_noise(&tokens);
        tally.parted += 1;
        tally.widest_gap = tally.widest_gap.max(gap);
        assert!(
            gap <= noise,
            "mix {seed}: {ask:?} parts at {same}: gap {gap}, noise {noise}"
        );
    }
}

fn run(lab: &Lab, seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    let before = PUT_BACK.load(Ordering::Relaxed);
    let mut alone = Alone {
        lab,
        rig: lab.start(CONFIG),
        said: BTreeMap::new(),
    };
    for seed in seeds {
        let mut chance = Chance(mix(seed));
        // Half of them short of room: texts that begin with one block grow to three.
        let tight = chance.below(2) == 0;
        let limits = limits(&mut chance, tight);
        let asked: Vec<_> = (0..2 + chance.below(4))
            .map(|_| Ask {
                beginning: if tight { 0 } else { chance.size(3) },
                end: chance.size(8),
                output: if tight { 28 } else { 3 } + chance.below(6),
            })
            .collect();
        let rig = lab.start(limits);
        let mut rounds = vec![0];
        if limits.cache != CacheConfig::OFF {
            rounds.push(ROUND);
            tally.again += 1;
        }
        for first in rounds {
            if first > 0 {
                // A step of somebody else's: before it, what nobody has is taken out of the KV.
                rig.run(vec![rig.job(first - 1, "Meanwhile,", 2)]);
            }
            let jobs = (first..).zip(&asked).map(|(id, ask)| {
                let tenant = u32::try_from(id % 2).unwrap();
                ask.job(&rig, id, tenant)
            });
            rig.run(jobs.collect());
            let generated = rig.generated();
            for (id, ask) in (first..).zip(&asked) {
                alone.check(seed, *ask, &generated[&id], &mut tally);
            }
        }
        {
            let log = lock(&rig.log);
            tally.preempted += log.preempted;
            tally.copies += log.copies;
        }
        tally.cached_mixes += u64::from(limits.cache != CacheConfig::OFF);
        tally.lane_mixes += u64::from(lab.has_lanes(&limits));
        tally.contiguous_mixes += u64::from(limits.reservation == Reservation::Contiguous);
        rig.assert_empty();
    }
    alone.rig.assert_empty();
    tally.put_back = PUT_BACK.load(Ordering::Relaxed) - before;
    tally
}

#[test]
fn random_mixes_on_the_model_say_what_each_request_says_alone() {
    let Some(lab) = rig::llama() else { return };
    let chosen = std::env::var("TOLLGATE_MIXES").unwrap_or_else(|_| MIXES.to_string());
    let (first, end) = chosen.split_once("..").unwrap_or(("0", &chosen));
    let mixes = first.parse().unwrap()..end.parse().unwrap();
    let tally = run(&lab, mixes.clone());
    println!("mixes {mixes:?}: {tally:?}");
    assert!(tally.copies > 0 && tally.cached_mixes > 0 && tally.contiguous_mixes > 0);
    assert!(tally.lane_mixes > 0, "some have a KV for each sequence");
    assert!(tally.preempted > 0, "some mixes are short of room");
    assert!(tally.put_back > 0, "some find what was taken out of the KV");
    // Each was held against what rounding alone does there; that they are few is the rest of it.
    assert!(tally.parted * 50 <= tally.tokens, "{tally:?}");
}
