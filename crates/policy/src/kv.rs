//! Paged KV: which blocks are free, which sequence holds which, and nothing about what is in them.
//!
//! A block has room for [`KvBlocks::SLOTS`] tokens of one sequence. Blocks carry a reference count,
//! so that sequences can hold the same one, and the free list is a stack: the block given back last
//! is the one still warm in memory. No token ids here, and no memory: a backend may lay its KV out
//! as it likes, as long as it has room for every block.

use crate::ids::position;
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

/// All blocks of one engine.
#[derive(Debug)]
pub struct BlockPool {
    /// How many tables hold each block, by block id. invariant: zero exactly for the blocks in
    /// `free`.
    holders: Vec<u32>,
    /// A stack. invariant: no block twice.
    free: Vec<BlockId>,
}

impl BlockPool {
    /// A pool of `total` blocks, all free.
    pub fn new(total: u32) -> Self {
        Self {
            holders: vec![0; position(total)],
            free: (0..total).rev().map(BlockId).collect(),
        }
    }

    /// How many blocks there are.
    pub fn total(&self) -> KvBlocks {
        count(self.holders.len())
    }

    /// How many are free.
    pub fn free(&self) -> KvBlocks {
        count(self.free.len())
    }

    /// How many are held.
    pub fn held(&self) -> KvBlocks {
        self.total() - self.free()
    }

    fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.holders[position(block.0)] = 1;
        Some(block)
    }

    fn give_back(&mut self, block: BlockId) {
        let holders = &mut self.holders[position(block.0)];
        assert!(*holders > 0, "a block was given back that nobody held");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Panics unless each block is free or held, never both and never neither, and `tables` hold
    /// what is held.
    ///
    /// # Panics
    ///
    /// Only on a bug here.
    pub fn invariants<'a>(&self, tables: impl IntoIterator<Item = &'a BlockTable>) {
        let mut holders = vec![0_u32; self.holders.len()];
        for block in tables.into_iter().flat_map(|table| &table.blocks) {
            holders[position(block.0)] += 1;
        }
        assert_eq!(
            holders, self.holders,
            "blocks held are the blocks in tables"
        );
        let mut free = vec![false; self.holders.len()];
        for block in &self.free {
            assert!(!free[position(block.0)], "a block is on the free list once");
            free[position(block.0)] = true;
        }
        for (held, free) in self.holders.iter().zip(free) {
            assert_eq!(
                *held == 0,
                free,
                "a block is free exactly when nobody holds it"
            );
        }
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

    /// Makes room for `tokens` tokens in all, or changes nothing.
    ///
    /// # Errors
    ///
    /// [`OutOfBlocks`] when the pool has too few.
    pub fn grow(&mut self, pool: &mut BlockPool, tokens: Tokens) -> Result<(), OutOfBlocks> {
        let missing = tokens.blocks() - self.len();
        if missing > pool.free() {
            return Err(OutOfBlocks {
                asked: missing,
                free: pool.free(),
            });
        }
        for _ in 0..missing.get() {
            self.blocks.extend(pool.take());
        }
        Ok(())
    }

    /// Gives every block back, the last one first, so that the next table gets them in this one's
    /// order.
    pub fn release(&mut self, pool: &mut BlockPool) {
        for block in self.blocks.drain(..).rev() {
            pool.give_back(block);
        }
    }
}

fn count(len: usize) -> KvBlocks {
    KvBlocks::new(u64::try_from(len).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_grows_by_whole_blocks_and_only_when_it_must() {
        let mut pool = BlockPool::new(4);
        let mut table = BlockTable::default();
        table.grow(&mut pool, Tokens::new(1)).unwrap();
        table.grow(&mut pool, Tokens::new(16)).unwrap();
        assert_eq!(table.len(), KvBlocks::new(1));
        table.grow(&mut pool, Tokens::new(17)).unwrap();
        assert_eq!(table.len(), KvBlocks::new(2));
        assert_eq!(pool.free(), KvBlocks::new(2));
        pool.invariants([&table]);
    }

    #[test]
    fn growth_that_does_not_fit_takes_nothing() {
        let mut pool = BlockPool::new(2);
        let mut table = BlockTable::default();
        let refused = table.grow(&mut pool, Tokens::new(33));
        assert_eq!(
            refused,
            Err(OutOfBlocks {
                asked: KvBlocks::new(3),
                free: KvBlocks::new(2)
            })
        );
        assert!(table.is_empty());
        pool.invariants([&table]);
    }

    #[test]
    fn the_block_given_back_last_is_taken_first() {
        let mut pool = BlockPool::new(3);
        let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
        first.grow(&mut pool, Tokens::new(32)).unwrap();
        let blocks = first.blocks.clone();
        first.release(&mut pool);
        second.grow(&mut pool, Tokens::new(32)).unwrap();
        assert_eq!(second.blocks, blocks);
        pool.invariants([&first, &second]);
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
                    match tables[table].grow(&mut pool, Tokens::new(tokens)) {
                        Ok(()) => prop_assert_eq!(tables[table].len(), before.max(wanted)),
                        Err(_) => prop_assert_eq!(tables[table].len(), before),
                    }
                }
                pool.invariants(&tables);
            }
            for table in &mut tables {
                table.release(&mut pool);
            }
            prop_assert_eq!(pool.held(), KvBlocks::ZERO);
            pool.invariants(&tables);
        }
    }
}
