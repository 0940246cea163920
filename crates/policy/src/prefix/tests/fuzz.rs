//! The pool and the cache beside a model so simple that it is right: all observables are compared
//! after each operation.
//!
//! `TOLLGATE_FUZZ_SEQUENCES` runs more sequences than the few hundred of every test run.

use std::collections::{BTreeMap, BTreeSet};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::super::*;
use crate::kv::BlockTable;

const SEQUENCES: u64 = 600;
const OPERATIONS: u32 = 120;

/// One block of one space's tree: it is there when every prefix of it is.
type Key = (Space, Vec<Token>);

/// What the cache should hold: each prefix in whole blocks, with its last block and its last use.
#[derive(Default)]
struct Naive {
    cached: BTreeMap<Key, (BlockId, u64)>,
    uses: u64,
}

impl Naive {
    fn longest(&self, space: Space, tokens: &[Token]) -> usize {
        let whole = tokens.len() / SLOTS;
        (0..=whole)
            .rev()
            .find(|n| {
                *n == 0
                    || self
                        .cached
                        .contains_key(&(space, tokens[..n * SLOTS].to_vec()))
            })
            .unwrap_or(0)
    }

    fn best(&self, tenant: TenantId, tokens: &[Token]) -> (Space, usize) {
        let usable = &tokens[..tokens.len().saturating_sub(1)];
        let own = (
            Space::Tenant(tenant),
            self.longest(Space::Tenant(tenant), usable),
        );
        let published = (Space::Published, self.longest(Space::Published, usable));
        if own.1 > published.1 { own } else { published }
    }

    fn touch(&mut self, space: Space, tokens: &[Token], blocks: usize) {
        self.uses += 1;
        for n in 1..=blocks {
            let key = (space, tokens[..n * SLOTS].to_vec());
            self.cached.get_mut(&key).unwrap().1 = self.uses;
        }
    }

    fn is_leaf(&self, key: &Key) -> bool {
        !self.cached.keys().any(|(space, tokens)| {
            *space == key.0 && tokens.len() > key.1.len() && tokens.starts_with(&key.1)
        })
    }

    fn leaves(&self) -> Vec<(u64, Key)> {
        let leaves = self.cached.iter().filter(|(key, _)| self.is_leaf(key));
        let mut leaves: Vec<_> = leaves
            .map(|(key, (_, used))| (*used, key.clone()))
            .collect();
        leaves.sort();
        leaves
    }

    fn in_space(&self, space: Space) -> usize {
        self.cached.keys().filter(|(one, _)| *one == space).count()
    }
}

/// What was seen, over all sequences.
#[derive(Debug, Default)]
struct Reached {
    hit: u32,
    published_hit: u32,
    copied: u32,
    evicted: u32,
    evicted_for_quota: u32,
    evicted_for_id: u32,
    split: u32,
    exhausted: u32,
    preempted: u32,
    pinned: u32,
    buried: u32,
}

struct World {
    chance: Pcg64,
    pool: BlockPool,
    cache: PrefixCache,
    ops: Vec<KvOp>,
    owners: usize,
    quota: usize,
    naive: Naive,
    /// Sequences with their tokens, all computed, and their tables; and the same blocks again.
    live: Vec<(TenantId, Vec<Token>, BlockTable)>,
    copies: Vec<Vec<BlockId>>,
    /// Which tokens each sequence id has, by what the backend was told.
    backend: BTreeMap<SeqId, Vec<Token>>,
}

const SEQ: SeqId = SeqId::new(0);

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Pcg64::seed_from_u64(seed);
        let mut below = |n: u64| chance.next_u64() % n;
        let (blocks, owners, quota) = (8 + below(40), 1 + below(8), 1 + below(24));
        let ids = (0..owners).map(|id| SeqId::new(100 + u32::try_from(id).unwrap()));
        Self {
            pool: BlockPool::new(u32::try_from(blocks).unwrap()),
            cache: PrefixCache::new(ids, KvBlocks::new(quota)),
            ops: Vec::new(),
            owners: usize::try_from(owners).unwrap(),
            quota: usize::try_from(quota).unwrap(),
            naive: Naive::default(),
            live: Vec::new(),
            copies: Vec::new(),
            backend: BTreeMap::new(),
            chance,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.chance.next_u64() % u64::try_from(n).unwrap()).unwrap()
    }

    /// One of few texts that part at block ends and inside blocks.
    fn text(&mut self) -> Vec<Token> {
        let length = 1 + self.below(100);
        let forks = [(0, self.below(2)), (20, self.below(2)), (48, self.below(3))];
        let forks = forks.map(|(at, text)| (at, i32::try_from(text).unwrap()));
        super::text(i32::try_from(length).unwrap(), &forks)
    }

    fn tenant(&mut self) -> TenantId {
        TenantId::new(u32::try_from(self.below(2)).unwrap())
    }

    /// Starts a sequence: probe, claim, pin, grow; as the engine does.
    fn allocate(&mut self, reached: &mut Reached) {
        let (tenant, tokens) = (self.tenant(), self.text());
        let (space, expected) = self.naive.best(tenant, &tokens);
        let probe = self.cache.probe(tenant, &tokens, &self.pool);
        assert_eq!(probe.matched, count(expected).slots());
        let mut table = BlockTable::default();
        let nodes = self.cache.nodes.len() - self.cache.vacant.len();
        if let Some(found) = self.cache.claim(tenant, &tokens) {
            assert_eq!(
                self.backend[&found.owner][..expected * SLOTS],
                tokens[..expected * SLOTS]
            );
            self.naive.touch(space, &tokens, expected);
            for (n, block) in found.blocks.iter().enumerate() {
                let key = (space, tokens[..(n + 1) * SLOTS].to_vec());
                assert_eq!(self.naive.cached[&key].0, *block);
            }
            table.share(&mut self.pool, &found.blocks);
            reached.hit += 1;
            reached.published_hit += u32::from(space == Space::Published);
        }
        let after = self.cache.nodes.len() - self.cache.vacant.len();
        reached.split += u32::from(after > nodes);
        self.grow(tenant, tokens, table, reached);
    }

    /// Room for all tokens, or what was shared is given back.
    fn grow(
        &mut self,
        tenant: TenantId,
        tokens: Vec<Token>,
        mut table: BlockTable,
        reached: &mut Reached,
    ) {
        let (from, to) = (table.len().slots(), Tokens::of_len(&tokens));
        let missing = table.missing(&self.pool, from, to);
        let possible = missing <= self.pool.free() + self.pool.idle();
        self.copies.push(table.blocks().to_vec());
        self.evict_both(missing, reached);
        self.copies.pop();
        match table.write(&mut self.pool, from, to) {
            Ok(_) => {
                assert!(possible);
                self.copies.push(table.blocks().to_vec());
                self.live.push((tenant, tokens, table));
            }
            Err(_) => {
                assert!(!possible, "what is idle can be evicted");
                table.release(&mut self.pool);
                reached.exhausted += 1;
            }
        }
    }

    fn evict_both(&mut self, free: KvBlocks, reached: &mut Reached) {
        let before = self.naive.cached.len();
        self.cache.evict(free, &mut self.pool, &mut self.ops);
        // The model evicts one block at a time, and counts who holds what from scratch.
        let mut model_free = self.model_free();
        while count(model_free) < free {
            let evictable = |(_, key): &(u64, Key)| !self.in_use(self.naive.cached[key].0);
            let leaves = self.naive.leaves();
            let (_, key) = match leaves.iter().find(|leaf| evictable(leaf)) {
                Some(leaf) => leaf,
                // Something idle is before what is in use.
                None if self
                    .naive
                    .cached
                    .values()
                    .any(|(block, _)| !self.in_use(*block)) =>
                {
                    reached.buried += 1;
                    &leaves[0]
                }
                None => break,
            };
            self.naive.cached.remove(key);
            model_free = self.model_free();
        }
        reached.evicted += u32::from(self.naive.cached.len() < before);
    }

    fn model_free(&self) -> usize {
        let used: BTreeSet<_> = self.used().into_iter().collect();
        usize::try_from(self.pool.total().get()).unwrap() - used.len()
    }

    fn used(&self) -> Vec<BlockId> {
        let cached = self.naive.cached.values().map(|(block, _)| *block);
        cached
            .chain(self.copies.iter().flatten().copied())
            .collect()
    }

    fn in_use(&self, block: BlockId) -> bool {
        self.copies.iter().flatten().any(|one| *one == block)
    }

    fn insert(&mut self, reached: &mut Reached) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        let published = self.below(6) == 0;
        let (tenant, tokens, table) = &self.live[at];
        let space = if published {
            Space::Published
        } else {
            Space::Tenant(*tenant)
        };
        let whole = tokens.len() / SLOTS;
        let (tokens, blocks) = (tokens[..whole * SLOTS].to_vec(), table.blocks().to_vec());
        self.backend.insert(SEQ, tokens.clone());
        let computed = Computed {
            tokens: &tokens,
            blocks: &blocks,
            seq: SEQ,
        };
        self.cache
            .insert(space, computed, &mut self.pool, &mut self.ops);
        self.insert_naively(space, &tokens, &blocks, reached);
        self.tell_backend();
    }

    fn insert_naively(
        &mut self,
        space: Space,
        tokens: &[Token],
        blocks: &[BlockId],
        reached: &mut Reached,
    ) {
        let whole = tokens.len() / SLOTS;
        if whole == 0 {
            return;
        }
        // The quota first: the space's own idle leaves, the oldest first.
        let new = whole - self.naive.longest(space, tokens);
        let mut over = (self.naive.in_space(space) + new).saturating_sub(self.quota);
        while over > 0 {
            let own =
                |(_, key): &(u64, Key)| key.0 == space && !self.in_use(self.naive.cached[key].0);
            let Some((_, key)) = self.naive.leaves().into_iter().find(own) else {
                break;
            };
            self.naive.cached.remove(&key);
            reached.evicted_for_quota += 1;
            over -= 1;
        }
        // Then a sequence id: the oldest leaves, until there is one or none is needed.
        loop {
            let there = self.naive.longest(space, tokens);
            let key = (space, tokens[..there * SLOTS].to_vec());
            let goes_on = there > 0 && self.naive.is_leaf(&key);
            let leaves = self.naive.leaves();
            if there == whole || goes_on || leaves.len() < self.owners {
                break;
            }
            self.naive.cached.remove(&leaves[0].1);
            reached.evicted_for_id += 1;
        }
        let there = self.naive.longest(space, tokens);
        let room = self.quota - self.naive.in_space(space);
        let end = whole.min(there + room);
        for n in there..end {
            let key = (space, tokens[..(n + 1) * SLOTS].to_vec());
            self.naive.cached.insert(key, (blocks[n], 0));
        }
        self.naive.touch(space, tokens, end);
    }

    fn fork(&mut self, reached: &mut Reached) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        let (tenant, tokens, table) = &self.live[at];
        let (tenant, mut tokens) = (*tenant, tokens.clone());
        let kept = Tokens::of_len(&tokens) - Tokens::new(1);
        let mut fork = table.fork(&mut self.pool, kept);
        tokens.pop();
        self.copies.push(fork.blocks().to_vec());
        tokens.push(Token::new(-7));
        let missing = fork.missing(&self.pool, kept, kept + Tokens::new(1));
        self.evict_both(missing, reached);
        self.copies.pop();
        match fork.write(&mut self.pool, kept, kept + Tokens::new(1)) {
            Ok(copies) => {
                reached.copied += u32::from(copies > KvBlocks::ZERO);
                self.copies.push(fork.blocks().to_vec());
                self.live.push((tenant, tokens, fork));
            }
            Err(_) => {
                reached.exhausted += 1;
                fork.release(&mut self.pool);
            }
        }
    }

    fn append(&mut self, reached: &mut Reached) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        let from = Tokens::of_len(&self.live[at].1);
        let to = from + Tokens::new(1);
        let missing = self.live[at].2.missing(&self.pool, from, to);
        self.evict_both(missing, reached);
        match self.live[at].2.write(&mut self.pool, from, to) {
            Ok(copies) => {
                reached.copied += u32::from(copies > KvBlocks::ZERO);
                let token = Token::new(i32::try_from(from.get()).unwrap());
                self.live[at].1.push(token);
                self.copies[at] = self.live[at].2.blocks().to_vec();
            }
            Err(_) => reached.exhausted += 1,
        }
    }

    /// A sequence ends, or is preempted: either way its blocks go.
    fn release(&mut self, reached: &mut Reached) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        let (_, _, mut table) = self.live.swap_remove(at);
        self.copies.swap_remove(at);
        table.release(&mut self.pool);
        reached.preempted += 1;
    }

    fn match_only(&mut self, reached: &mut Reached) {
        let (tenant, tokens) = (self.tenant(), self.text());
        let (_, expected) = self.naive.best(tenant, &tokens);
        let before = format!("{:?}", self.cache);
        assert_eq!(self.cache.matched(tenant, &tokens), count(expected).slots());
        assert_eq!(
            format!("{:?}", self.cache),
            before,
            "a probe changes nothing"
        );
        reached.pinned += u32::from(self.copies.iter().any(|blocks| {
            blocks
                .iter()
                .any(|block| self.naive.cached.values().any(|(one, _)| one == block))
        }));
    }

    /// What a backend does that is told all this.
    fn tell_backend(&mut self) {
        for op in self.ops.drain(..) {
            let at = |tokens: Tokens| usize::try_from(tokens.get()).unwrap();
            match op {
                KvOp::Copy {
                    from,
                    to,
                    start,
                    end,
                } => {
                    let source = self.backend[&from][at(start)..at(end)].to_vec();
                    let target = self.backend.entry(to).or_default();
                    assert_eq!(
                        target.len(),
                        at(start),
                        "a copy goes on where its target ends"
                    );
                    target.extend(source);
                }
                KvOp::Trim { seq, from } => {
                    self.backend.get_mut(&seq).unwrap().truncate(at(from));
                }
                KvOp::End { .. } => panic!("the cache ends no sequence"),
            }
        }
    }

    fn compare(&mut self) {
        self.tell_backend();
        let tables = self.live.iter().map(|(_, _, table)| table);
        self.pool.invariants(tables, self.cache.cached());
        self.cache.invariants(self.owners);
        assert_eq!(self.cache.blocks(), count(self.naive.cached.len()));
        assert_eq!(self.cache.prefixes(), self.naive.leaves().len());
        assert_eq!(self.pool.free(), count(self.model_free()));
        let in_use: BTreeSet<_> = self.copies.iter().flatten().collect();
        assert_eq!(self.pool.held(), count(in_use.len()));
        for (space, tokens) in self.naive.cached.keys() {
            let walk = self.cache.walk(*space, &whole_blocks(tokens)).unwrap();
            assert_eq!(walk.matched * SLOTS, tokens.len());
            let owner = self.cache.owner_below(walk.node).unwrap();
            assert_eq!(self.backend[&owner][..tokens.len()], *tokens);
        }
    }

    fn step(&mut self, reached: &mut Reached) {
        match self.below(12) {
            0..=2 => self.allocate(reached),
            3..=5 => self.insert(reached),
            6 => self.fork(reached),
            7 | 8 => self.append(reached),
            9 => self.release(reached),
            10 => self.match_only(reached),
            _ => {
                let free = count(self.below(8));
                self.evict_both(free, reached);
            }
        }
        self.compare();
    }
}

#[test]
fn pool_and_cache_do_what_the_naive_model_does() {
    let asked = std::env::var("TOLLGATE_FUZZ_SEQUENCES").ok();
    let sequences = asked.map_or(SEQUENCES, |asked| asked.parse().unwrap());
    let mut reached = Reached::default();
    for seed in 0..sequences {
        let run = || {
            let mut world = World::new(seed);
            let mut reached = Reached::default();
            for _ in 0..OPERATIONS {
                world.step(&mut reached);
            }
            reached
        };
        let Ok(one) = std::panic::catch_unwind(run) else {
            panic!("seed {seed} of {sequences} fails");
        };
        reached.add(&one);
    }
    println!("{sequences} sequences of {OPERATIONS} operations: {reached:?}");
    assert!(reached.all(), "a state was never reached: {reached:?}");
}

impl Reached {
    fn counts(&mut self) -> [&mut u32; 11] {
        let Self {
            hit,
            published_hit,
            copied,
            evicted,
            evicted_for_quota,
            evicted_for_id,
            split,
            exhausted,
            preempted,
            pinned,
            buried,
        } = self;
        [
            hit,
            published_hit,
            copied,
            evicted,
            evicted_for_quota,
            evicted_for_id,
            split,
            exhausted,
            preempted,
            pinned,
            buried,
        ]
    }

    fn add(&mut self, other: &Self) {
        let mut other = Self { ..*other };
        for (sum, one) in self.counts().into_iter().zip(other.counts()) {
            *sum += *one;
        }
    }

    fn all(&mut self) -> bool {
        self.counts().iter().all(|count| **count > 0)
    }
}
