//! The KV of an emulated engine: blocks that sequences hold, and blocks that the prefix cache
//! keeps.
//!
//! What no sequence holds is free: the cache gives it up, the longest unused first. Which blocks a
//! sequence needs is not decided here.

use std::collections::BTreeMap;

use tollgate_policy::units::KvBlocks;

/// All blocks of one engine.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    total: u64,
    /// Blocks of one sequence alone.
    own: u64,
    /// Blocks of prompts by name.
    shared: BTreeMap<u64, Shared>,
    /// Names of shared blocks that no sequence holds, by when they were let go.
    /// invariant: as many as blocks without a holder
    idle: BTreeMap<u64, u64>,
    /// Counts the times that a block was let go.
    let_go: u64,
}

#[derive(Clone, Copy, Debug)]
struct Shared {
    holders: u64,
    /// The key in `idle` while `holders` is 0.
    since: u64,
}

impl Memory {
    pub(super) fn new(total: KvBlocks) -> Self {
        Self {
            total: total.get(),
            own: 0,
            shared: BTreeMap::new(),
            idle: BTreeMap::new(),
            let_go: 0,
        }
    }

    pub(super) fn total(&self) -> KvBlocks {
        KvBlocks::new(self.total)
    }

    /// Blocks that sequences hold.
    pub(super) fn used(&self) -> KvBlocks {
        KvBlocks::new(self.own + self.kept() - self.unheld())
    }

    /// Takes `count` blocks for one sequence, all or none.
    pub(super) fn take(&mut self, count: u64) -> bool {
        let unused = self.total - self.own - self.kept();
        if count > unused + self.unheld() {
            return false;
        }
        for _ in unused..count {
            if let Some((_, name)) = self.idle.pop_first() {
                self.shared.remove(&name);
            }
        }
        self.own += count;
        true
    }

    /// Gives back blocks of one sequence.
    pub(super) fn give_back(&mut self, count: u64) {
        self.own -= count;
    }

    /// Holds a shared block, if it is here.
    pub(super) fn hold(&mut self, name: u64) -> bool {
        let Some(block) = self.shared.get_mut(&name) else {
            return false;
        };
        if block.holders == 0 {
            self.idle.remove(&block.since);
        }
        block.holders += 1;
        true
    }

    /// Lets a shared block go; it stays until its room is needed.
    pub(super) fn let_go(&mut self, name: u64) {
        if let Some(block) = self.shared.get_mut(&name) {
            block.holders -= 1;
            if block.holders == 0 {
                self.let_go += 1;
                block.since = self.let_go;
                self.idle.insert(self.let_go, name);
            }
        }
    }

    /// Makes a sequence's own block one that others find, still held by it; not if one of that
    /// name is here already.
    pub(super) fn share(&mut self, name: u64) -> bool {
        if self.shared.contains_key(&name) {
            return false;
        }
        self.own -= 1;
        let block = Shared {
            holders: 1,
            since: 0,
        };
        self.shared.insert(name, block);
        true
    }

    /// # Panics
    /// The sums are not right: a bug of this module, or of its caller.
    pub(super) fn invariants(&self, held: KvBlocks) {
        assert!(
            self.own + self.kept() <= self.total,
            "more KV than there is"
        );
        let unheld = self.shared.values().filter(|block| block.holders == 0);
        assert_eq!(unheld.count(), self.idle.len());
        let holds: u64 = self.shared.values().map(|block| block.holders).sum();
        assert_eq!(self.own + holds, held.get(), "blocks are lost or double");
    }

    fn kept(&self) -> u64 {
        u64::try_from(self.shared.len()).unwrap_or(u64::MAX)
    }

    fn unheld(&self) -> u64 {
        u64::try_from(self.idle.len()).unwrap_or(u64::MAX)
    }
}
