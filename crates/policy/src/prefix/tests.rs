//! The cache by examples. What it does under random operations, a naive model says in `fuzz`.

use super::*;
use crate::kv::BlockTable;

mod fuzz;

const ALICE: TenantId = TenantId::new(0);
const BOB: TenantId = TenantId::new(1);

/// A pool, a cache over it, and sequences that compute at once.
struct Bench {
    pool: BlockPool,
    cache: PrefixCache,
    owners: u32,
    ops: Vec<KvOp>,
}

impl Bench {
    fn new(blocks: u32, owners: u32, quota: u64) -> Self {
        let ids = (0..owners).map(|id| SeqId::new(1_000 + id));
        Self {
            pool: BlockPool::new(blocks),
            cache: PrefixCache::new(ids, KvBlocks::new(quota)),
            owners,
            ops: Vec::new(),
        }
    }

    /// A sequence computes `tokens`, with what is there, enters them and ends. How many it found.
    fn compute(&mut self, tenant: TenantId, tokens: &[Token]) -> u64 {
        let (table, found) = self.begin(tenant, tokens);
        self.enter(tenant, tokens, table);
        found
    }

    fn begin(&mut self, tenant: TenantId, tokens: &[Token]) -> (BlockTable, u64) {
        let mut table = BlockTable::default();
        if let Some(found) = self.cache.claim(tenant, tokens) {
            table.share(&mut self.pool, &found.blocks);
        }
        let found = table.len().slots();
        let all = Tokens::of_len(tokens);
        let missing = table.missing(&self.pool, found, all);
        self.cache.evict(missing, &mut self.pool, &mut self.ops);
        table.write(&mut self.pool, found, all).unwrap();
        (table, found.get())
    }

    fn enter(&mut self, tenant: TenantId, tokens: &[Token], mut table: BlockTable) {
        let computed = Computed {
            tokens,
            blocks: table.blocks(),
            seq: SeqId::new(0),
        };
        let space = Space::Tenant(tenant);
        self.cache
            .insert(space, computed, &mut self.pool, &mut self.ops);
        table.release(&mut self.pool);
        self.check([]);
    }

    fn check<const N: usize>(&self, tables: [&BlockTable; N]) {
        self.pool.invariants(tables, self.cache.cached());
        self.cache.invariants(usize::try_from(self.owners).unwrap());
    }

    fn matched(&self, tenant: TenantId, tokens: &[Token]) -> u64 {
        self.cache.matched(tenant, tokens).get()
    }
}

/// `count` tokens, of which those from each fork `(at, text)` on differ from those of other texts.
fn text(count: i32, forks: &[(i32, i32)]) -> Vec<Token> {
    let token = |at| {
        let fork = forks.iter().rev().find(|(from, _)| *from <= at);
        Token::new(at + fork.map_or(0, |(_, text)| text * 10_000))
    };
    (0..count).map(token).collect()
}

#[test]
fn a_prefix_is_found_in_whole_blocks_with_one_token_left_to_compute() {
    let mut bench = Bench::new(64, 8, 64);
    bench.compute(ALICE, &text(70, &[]));
    assert_eq!(bench.matched(ALICE, &text(70, &[])), 64);
    assert_eq!(bench.matched(ALICE, &text(65, &[])), 64);
    assert_eq!(bench.matched(ALICE, &text(64, &[])), 48);
    assert_eq!(bench.matched(ALICE, &text(70, &[(40, 1)])), 32);
    assert_eq!(bench.matched(ALICE, &text(16, &[])), 0);
    assert_eq!(bench.matched(ALICE, &[]), 0);
}

#[test]
fn nobody_finds_what_another_tenant_computed() {
    let mut bench = Bench::new(64, 8, 64);
    bench.compute(ALICE, &text(40, &[]));
    assert_eq!(bench.matched(BOB, &text(40, &[])), 0);
    assert_eq!(bench.compute(BOB, &text(40, &[])), 0);
    assert_eq!(bench.compute(ALICE, &text(40, &[])), 32);
    assert_eq!(bench.cache.blocks(), KvBlocks::new(4));
}

#[test]
fn everybody_finds_what_was_published() {
    let mut bench = Bench::new(64, 8, 64);
    let prompt = text(40, &[]);
    let (mut table, _) = bench.begin(ALICE, &prompt);
    let computed = Computed {
        tokens: &prompt[..32],
        blocks: table.blocks(),
        seq: SeqId::new(0),
    };
    let (pool, ops) = (&mut bench.pool, &mut bench.ops);
    bench.cache.insert(Space::Published, computed, pool, ops);
    table.release(&mut bench.pool);
    assert_eq!(bench.compute(BOB, &text(60, &[(36, 1)])), 32);
    // Both spaces hold the two blocks; they are idle, and come free only when both let go.
    assert_eq!(bench.cache.blocks(), KvBlocks::new(5));
    assert_eq!(bench.pool.idle(), KvBlocks::new(3));
    bench
        .cache
        .evict(KvBlocks::new(64), &mut bench.pool, &mut bench.ops);
    bench.check([]);
    assert_eq!(bench.pool.free(), bench.pool.total());
}

#[test]
fn texts_that_part_share_up_to_the_block_in_which_they_do() {
    let mut bench = Bench::new(64, 8, 64);
    bench.compute(ALICE, &text(64, &[]));
    assert_eq!(bench.compute(ALICE, &text(64, &[(33, 1)])), 32);
    assert_eq!(bench.compute(ALICE, &text(64, &[(33, 1), (50, 2)])), 48);
    assert_eq!(bench.cache.prefixes(), 3);
    assert_eq!(bench.cache.blocks(), KvBlocks::new(4 + 2 + 1));
    assert_eq!(bench.matched(ALICE, &text(65, &[(33, 1)])), 64);
}

#[test]
fn the_prefix_used_longest_ago_is_evicted_from_its_end() {
    let mut bench = Bench::new(8, 8, 8);
    bench.compute(ALICE, &text(64, &[]));
    bench.compute(ALICE, &text(64, &[(0, 1)]));
    // The first is used again, so the second is the older one now.
    bench.compute(ALICE, &text(33, &[]));
    bench.compute(ALICE, &text(32, &[(0, 2)]));
    assert_eq!(bench.matched(ALICE, &text(65, &[(0, 1)])), 64);
    assert_eq!(bench.matched(ALICE, &text(65, &[])), 32);
    bench.compute(ALICE, &text(32, &[(0, 3)]));
    assert_eq!(bench.matched(ALICE, &text(65, &[(0, 1)])), 32);
    assert_eq!(bench.matched(ALICE, &text(65, &[])), 32);
}

#[test]
fn a_probe_keeps_nothing_warm() {
    let mut bench = Bench::new(4, 8, 8);
    bench.compute(ALICE, &text(32, &[]));
    bench.compute(ALICE, &text(32, &[(0, 1)]));
    assert_eq!(bench.matched(ALICE, &text(33, &[])), 32);
    bench.compute(ALICE, &text(32, &[(0, 2)]));
    assert_eq!(bench.matched(ALICE, &text(33, &[])), 0);
    assert_eq!(bench.matched(ALICE, &text(33, &[(0, 1)])), 32);
}

#[test]
fn what_a_sequence_uses_is_not_evicted() {
    let mut bench = Bench::new(6, 8, 8);
    bench.compute(ALICE, &text(64, &[]));
    let (table, found) = bench.begin(ALICE, &text(40, &[]));
    assert_eq!(found, 32);
    bench
        .cache
        .evict(KvBlocks::new(6), &mut bench.pool, &mut bench.ops);
    assert_eq!(bench.matched(ALICE, &text(65, &[])), 32);
    bench.check([&table]);
    bench.enter(ALICE, &text(40, &[]), table);
}

#[test]
fn a_tenant_past_its_quota_evicts_its_own() {
    let mut bench = Bench::new(64, 16, 4);
    bench.compute(BOB, &text(64, &[]));
    for n in 0..5 {
        bench.compute(ALICE, &text(32, &[(0, n)]));
    }
    assert_eq!(bench.cache.blocks(), KvBlocks::new(8));
    assert_eq!(bench.matched(BOB, &text(65, &[])), 64);
    assert_eq!(bench.matched(ALICE, &text(33, &[(0, 4)])), 32);
    // A longer one is kept as far as the quota goes.
    bench.compute(ALICE, &text(160, &[(0, 9)]));
    assert_eq!(bench.matched(ALICE, &text(160, &[(0, 9)])), 64);
}

#[test]
fn without_a_sequence_id_to_have_the_oldest_prefix_gives_its_own() {
    let mut bench = Bench::new(64, 2, 64);
    bench.compute(ALICE, &text(48, &[]));
    bench.compute(ALICE, &text(48, &[(20, 1)]));
    bench.compute(ALICE, &text(48, &[(20, 2)]));
    assert_eq!(bench.cache.prefixes(), 2);
    assert_eq!(bench.matched(ALICE, &text(49, &[])), 16);
    assert_eq!(bench.matched(ALICE, &text(49, &[(20, 2)])), 48);
    // A longer text goes on under the id that is there.
    bench.compute(ALICE, &text(80, &[(20, 2)]));
    assert_eq!(bench.cache.prefixes(), 2);
}

#[test]
fn the_backend_is_told_what_each_owner_has() {
    let mut bench = Bench::new(64, 8, 64);
    bench.compute(ALICE, &text(64, &[]));
    bench.compute(ALICE, &text(64, &[(33, 1)]));
    let copy = |from, to, start, end| KvOp::Copy {
        from: SeqId::new(from),
        to: SeqId::new(to),
        start: Tokens::new(start),
        end: Tokens::new(end),
    };
    let expected = [
        copy(0, 1_007, 0, 64),
        copy(1_007, 1_006, 0, 32),
        copy(0, 1_006, 32, 64),
    ];
    assert_eq!(bench.ops, expected);
}

#[test]
fn ten_thousand_prefixes_come_and_go_and_leave_nothing() {
    let mut bench = Bench::new(20_000, 10_000, 20_000);
    for n in 0..12_000 {
        bench.cache_one(n);
    }
    assert_eq!(bench.cache.prefixes(), 10_000);
    bench.check([]);
    let nodes = bench.cache.nodes.len();
    for n in 12_000..24_000 {
        bench.cache_one(n);
    }
    assert_eq!(bench.cache.nodes.len(), nodes, "places are used again");
    bench
        .cache
        .evict(KvBlocks::new(20_000), &mut bench.pool, &mut bench.ops);
    bench.check([]);
    assert_eq!(
        (bench.cache.prefixes(), bench.pool.held()),
        (0, KvBlocks::ZERO)
    );
}

#[test]
fn to_evict_one_of_ten_thousand_only_those_in_use_are_looked_at_beside_it() {
    let mut bench = Bench::new(20_100, 10_000, 20_100);
    for n in 0..10_000 {
        bench.cache_one(n);
    }
    // The oldest are in use, and none is older than those.
    let more = |n| [one_of_many(n), text(1, &[])].concat();
    let used: Vec<_> = (0..64).map(|n| bench.begin(ALICE, &more(n)).0).collect();
    for n in 64..10_000 {
        assert!(bench.cache.claim(ALICE, &more(n)).is_some());
    }
    let before = bench.cache.looked.get();
    let free = bench.pool.free();
    for n in 1..=100 {
        let wanted = free + KvBlocks::new(n);
        bench.cache.evict(wanted, &mut bench.pool, &mut bench.ops);
        assert_eq!(bench.pool.free(), wanted);
    }
    let looked = bench.cache.looked.get() - before;
    assert!((100..=100 * 65).contains(&looked), "{looked}");
    for mut table in used {
        table.release(&mut bench.pool);
    }
}

/// Two blocks, of which ten texts share the first.
fn one_of_many(n: i32) -> Vec<Token> {
    text(32, &[(0, n / 10), (16, 30_000 + n)])
}

impl Bench {
    /// A prefix of two blocks, one of them shared with nine others; unchecked, for speed.
    fn cache_one(&mut self, n: i32) {
        let tokens = one_of_many(n);
        let (mut table, _) = self.begin(ALICE, &tokens);
        let computed = Computed {
            tokens: &tokens,
            blocks: table.blocks(),
            seq: SeqId::new(0),
        };
        let (pool, ops) = (&mut self.pool, &mut self.ops);
        self.cache.insert(Space::Tenant(ALICE), computed, pool, ops);
        table.release(&mut self.pool);
    }
}
