//! Paged KV: which blocks are free, which sequence holds which, and nothing about what is in them.
//!
//! A block has room for [`KvBlocks::SLOTS`] tokens of one sequence. Several sequences may hold the
//! same block as long as none writes to it: who writes gets a block of its own first. The prefix
//! cache holds blocks too; one that it alone holds is idle, and there for whoever needs it. The
//! free list is a stack: the block given back last is the one still warm in memory. No token ids
//! here, and no memory: a backend may lay its KV out as it likes, as long as it has room for every
//! block.

use crate::ids::{SeqId, position};
use crate::units::{KvBlocks, Tokens};

/// One block of a [`BlockPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(u32);

/// There are not enough free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} KV blocks asked for, {free} free", asked = .asked.get(), free = .free.get())]
pub struct OutOfBlocks {
    /// How many were asked for.
    pub asked: KvBlocks,
    /// How many there are.
    pub free: KvBlocks,
}

/// What a backend is to do with the KV of its sequences. To be carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvOp {
    /// The tokens from `start` to before `end` of one sequence belong to another as well.
    Copy {
        /// Whose they are.
        from: SeqId,
        /// Who gets them; it has all before `start`, and none from there on.
        to: SeqId,
        /// The position of the first.
        start: Tokens,
        /// The position after the last.
        end: Tokens,
    },
    /// A sequence loses its tokens from a position on.
    Trim {
        /// Which one.
        seq: SeqId,
        /// The first position lost.
        from: Tokens,
    },
    /// A sequence is over: its KV and everything else about it goes.
    End {
        /// Which one.
        seq: SeqId,
    },
}

/// Who holds a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holders {
    tables: u32,
    cache: u32,
}

impl Holders {
    fn is_idle(self) -> bool {
        self.tables == 0 && self.cache > 0
    }

    fn is_free(self) -> bool {
        self.tables == 0 && self.cache == 0
    }
}

/// All blocks of one engine.
#[derive(Debug)]
pub struct BlockPool {
    /// By block id. invariant: free exactly for the blocks in `free`.
    holders: Vec<Holders>,
    /// A stack. invariant: no block twice.
    free: Vec<BlockId>,
    /// Blocks that the cache alone holds.
    idle: KvBlocks,
}

impl BlockPool {
    /// A pool of `total` blocks, all free.
    pub fn new(total: u32) -> Self {
        Self {
            holders: vec![Holders::default(); position(total)],
            free: (0..total).rev().map(BlockId).collect(),
            idle: KvBlocks::ZERO,
        }
    }

    /// How many blocks there are.
    pub fn total(&self) -> KvBlocks {
        count(self.holders.len())
    }

    /// How many nobody holds.
    pub fn free(&self) -> KvBlocks {
        count(self.free.len())
    }

    /// How many the prefix cache alone holds: they come free by eviction.
    pub fn idle(&self) -> KvBlocks {
        self.idle
    }

    /// How many sequences hold, each counted once.
    pub fn held(&self) -> KvBlocks {
        self.total() - self.free() - self.idle
    }

    /// Whether the prefix cache alone holds this block.
    pub fn is_idle(&self, block: BlockId) -> bool {
        self.holders[position(block.0)].is_idle()
    }

    /// The prefix cache holds a block, once more if it did already.
    pub(crate) fn cache(&mut self, block: BlockId) {
        self.change(block, |holders| holders.cache += 1);
    }

    /// The prefix cache lets go of a block, once.
    pub(crate) fn uncache(&mut self, block: BlockId) {
        self.change(block, |holders| {
            assert!(holders.cache > 0, "a block was evicted that was not cached");
            holders.cache -= 1;
        });
    }

    fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.holders[position(block.0)].tables = 1;
        Some(block)
    }

    fn share(&mut self, block: BlockId) {
        self.change(block, |holders| holders.tables += 1);
    }

    fn give_back(&mut self, block: BlockId) {
        self.change(block, |holders| {
            assert!(
                holders.tables > 0,
                "a block was given back that no sequence held"
            );
            holders.tables -= 1;
        });
    }

    fn change(&mut self, block: BlockId, change: impl FnOnce(&mut Holders)) {
        let holders = &mut self.holders[position(block.0)];
        assert!(!holders.is_free(), "a free block is held by taking it");
        let was_idle = holders.is_idle();
        change(holders);
        match (was_idle, holders.is_idle()) {
            (false, true) => self.idle += KvBlocks::new(1),
            (true, false) => self.idle -= KvBlocks::new(1),
            (true, true) | (false, false) => {}
        }
        if holders.is_free() {
            self.free.push(block);
        }
    }

    /// Whether a sequence that writes to this block must copy it first.
    fn is_shared(&self, block: BlockId) -> bool {
        let holders = self.holders[position(block.0)];
        holders.tables > 1 || holders.cache > 0
    }

    /// Panics unless `tables` and `cached` hold what is held, and each block is free exactly when
    /// nobody holds it.
    ///
    /// # Panics
    ///
    /// Only on a bug here.
    pub fn invariants<'a>(
        &self,
        tables: impl IntoIterator<Item = &'a BlockTable>,
        cached: impl IntoIterator<Item = BlockId>,
    ) {
        let mut holders = vec![Holders::default(); self.holders.len()];
        for block in tables.into_iter().flat_map(|table| &table.blocks) {
            holders[position(block.0)].tables += 1;
        }
        for block in cached {
            holders[position(block.0)].cache += 1;
        }
        assert_eq!(
            holders, self.holders,
            "blocks held are the blocks in tables and in the cache"
        );
        let mut free = vec![false; self.holders.len()];
        for block in &self.free {
            assert!(!free[position(block.0)], "a block is on the free list once");
            free[position(block.0)] = true;
        }
        for (held, free) in holders.iter().zip(free) {
            assert_eq!(
                held.is_free(),
                free,
                "a block is free exactly when nobody holds it"
            );
        }
        let idle = holders.iter().filter(|holders| holders.is_idle()).count();
        assert_eq!(count(idle), self.idle);
    }
}

/// The blocks of one sequence, in the order of its tokens.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// How many blocks it has.
    pub fn len(&self) -> KvBlocks {
        count(self.blocks.len())
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks, in the order of the tokens in them.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// How many blocks no other sequence holds: giving this table up makes them free or idle.
    pub fn sole(&self, pool: &BlockPool) -> KvBlocks {
        let sole = |block: &&BlockId| pool.holders[position(block.0)].tables == 1;
        count(self.blocks.iter().filter(sole).count())
    }

    /// Holds these blocks as well, after its own.
    pub fn share(&mut self, pool: &mut BlockPool, blocks: &[BlockId]) {
        for block in blocks {
            pool.share(*block);
        }
        self.blocks.extend_from_slice(blocks);
    }

    /// A table that holds the first `tokens` tokens of this one, a last block in part included.
    pub fn fork(&self, pool: &mut BlockPool, tokens: Tokens) -> Self {
        let wanted = usize::try_from(tokens.blocks().get()).unwrap_or(usize::MAX);
        let blocks = &self.blocks[..wanted.min(self.blocks.len())];
        let mut fork = Self::default();
        fork.share(pool, blocks);
        fork
    }

    /// How many free blocks [`Self::write`] takes.
    pub fn missing(&self, pool: &BlockPool, from: Tokens, to: Tokens) -> KvBlocks {
        let copies = self
            .written(from)
            .filter(|at| pool.is_shared(self.blocks[*at]));
        (to.blocks() - self.len()) + count(copies.count())
    }

    /// Makes room for the tokens from position `from` to before `to`, in blocks of this table's
    /// own: those written to that others hold as well are replaced by copies. Or changes nothing.
    /// The number of copies.
    ///
    /// # Errors
    ///
    /// [`OutOfBlocks`] when the pool has too few.
    pub fn write(
        &mut self,
        pool: &mut BlockPool,
        from: Tokens,
        to: Tokens,
    ) -> Result<KvBlocks, OutOfBlocks> {
        let missing = self.missing(pool, from, to);
        if missing > pool.free() {
            return Err(OutOfBlocks {
                asked: missing,
                free: pool.free(),
            });
        }
        let mut copied = KvBlocks::ZERO;
        for at in self.written(from) {
            let shared = self.blocks[at];
            if pool.is_shared(shared)
                && let Some(own) = pool.take()
            {
                self.blocks[at] = own;
                pool.give_back(shared);
                copied += KvBlocks::new(1);
            }
        }
        for _ in 0..(to.blocks() - self.len()).get() {
            self.blocks.extend(pool.take());
        }
        Ok(copied)
    }

    /// The places of the blocks at hand in which tokens from position `from` on are.
    fn written(&self, from: Tokens) -> std::ops::Range<usize> {
        let first = from.get() / KvBlocks::SLOTS.get();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        first.min(self.blocks.len())..self.blocks.len()
    }

    /// Gives every block back, the last one first, so that the next table gets them in this one's
    /// order.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.give_back(block);
        }
    }
}

pub(crate) fn count(len: usize) -> KvBlocks {
    KvBlocks::new(u64::try_from(len).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grow(
        table: &mut BlockTable,
        pool: &mut BlockPool,
        tokens: u64,
    ) -> Result<KvBlocks, OutOfBlocks> {
        table.write(pool, Tokens::new(tokens), Tokens::new(tokens))
    }

    #[test]
    fn a_table_grows_by_whole_blocks_and_only_when_it_must() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        grow(&mut table, &mut pool, 1).unwrap();
        grow(&mut table, &mut pool, 16).unwrap();
        assert_eq!(table.len(), KvBlocks::new(1));
        grow(&mut table, &mut pool, 17).unwrap();
        assert_eq!(table.len(), KvBlocks::new(2));
        assert_eq!(pool.free(), KvBlocks::new(2));
        pool.invariants([&table], []);
    }

    #[test]
    fn growth_that_does_not_fit_takes_nothing() {
        let mut pool = BlockPool::new(2);
        let mut table = BlockTable::default();
        let refused = grow(&mut table, &mut pool, 33);
        assert_eq!(
            refused,
            Err(OutOfBlocks {
                asked: KvBlocks::new(3),
                free: KvBlocks::new(2)
            })
        );
        assert!(table.is_empty());
        pool.invariants([&table], []);
    }

    #[test]
    fn the_block_given_back_last_is_taken_first() {
        let mut pool = BlockPool::new(3);
        let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
        grow(&mut first, &mut pool, 32).unwrap();
        let blocks = first.blocks.clone();
        first.release(&mut pool);
        grow(&mut second, &mut pool, 32).unwrap();
        assert_eq!(second.blocks, blocks);
        pool.invariants([&first, &second], []);
    }

    #[test]
    fn a_block_shared_in_part_is_copied_by_whoever_writes_first() {
        let mut pool = BlockPool::new(4);
        let mut elder = BlockTable::default();
        grow(&mut elder, &mut pool, 20).unwrap();
        let mut younger = elder.fork(&mut pool, Tokens::new(19));
        assert_eq!(younger.blocks, elder.blocks);
        assert_eq!(elder.sole(&pool), KvBlocks::ZERO);
        let (from, to) = (Tokens::new(19), Tokens::new(20));
        assert_eq!(younger.write(&mut pool, from, to), Ok(KvBlocks::new(1)));
        assert_eq!(younger.blocks[0], elder.blocks[0]);
        assert_ne!(younger.blocks[1], elder.blocks[1]);
        // Now it is the elder's alone.
        let (from, to) = (Tokens::new(20), Tokens::new(21));
        assert_eq!(elder.write(&mut pool, from, to), Ok(KvBlocks::ZERO));
        pool.invariants([&elder, &younger], []);
    }

    #[test]
    fn a_block_that_only_the_cache_holds_is_idle_and_not_free() {
        let mut pool = BlockPool::new(2);
        let mut table = BlockTable::default();
        grow(&mut table, &mut pool, 16).unwrap();
        let block = table.blocks[0];
        pool.cache(block);
        assert_eq!(
            (pool.held(), pool.idle()),
            (KvBlocks::new(1), KvBlocks::ZERO)
        );
        table.release(&mut pool);
        assert_eq!(
            (pool.held(), pool.idle()),
            (KvBlocks::ZERO, KvBlocks::new(1))
        );
        assert_eq!(pool.free(), KvBlocks::new(1));
        table.share(&mut pool, &[block]);
        assert!(!pool.is_idle(block));
        pool.invariants([&table], [block]);
        table.release(&mut pool);
        pool.uncache(block);
        assert_eq!(pool.free(), KvBlocks::new(2));
    }

    proptest! {
        #[test]
        fn blocks_are_conserved_whatever_tables_do(
            operations in prop::collection::vec((0_usize..4, 0_u64..200), 0..200)
        ) {
            let mut pool = BlockPool::new(16);
            let mut tables: Vec<_> = (0..4).map(|_| BlockTable::default()).collect();
            for (table, tokens) in operations {
                if tokens < 40 {
                    tables[table].release(&mut pool);
                } else {
                    let before = tables[table].len();
                    let wanted = Tokens::new(tokens).blocks();
                    match grow(&mut tables[table], &mut pool, tokens) {
                        Ok(_) => prop_assert_eq!(tables[table].len(), before.max(wanted)),
                        Err(_) => prop_assert_eq!(tables[table].len(), before),
                    }
                }
                pool.invariants(&tables, []);
            }
            for table in &mut tables {
                table.release(&mut pool);
            }
            prop_assert_eq!(pool.held(), KvBlocks::ZERO);
            pool.invariants(&tables, []);
        }
    }
}
