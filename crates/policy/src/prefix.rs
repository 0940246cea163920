//! The prefix cache: a radix tree of token sequences whose KV is there.
//!
//! One tree for each tenant, and one for what the operator published; nobody matches in another's.
//! Edges are whole blocks, and tokens are compared, never only hashes of them. What nobody uses
//! is evicted least recently used first, leaves before what they continue. Each leaf has a sequence
//! id of its own, under which a backend keeps all from the root to it. No clock: uses are counted.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{SeqId, TenantId};
use crate::kv::{BlockId, BlockPool, KvOp, count};
use crate::units::{KvBlocks, Tokens};

/// One token by its number in a model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(i32);

impl Token {
    /// The token with this number. One that the vocabulary does not have fails the request that
    /// holds it.
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> i32 {
        self.0
    }
}

/// Whose prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Everybody's: what the operator published.
    Published,
    /// One tenant's.
    Tenant(TenantId),
}

/// Tokens of one sequence whose KV is there.
#[derive(Clone, Copy, Debug)]
pub struct Computed<'a> {
    /// From the first on; a last block in part is left out.
    pub tokens: &'a [Token],
    /// The blocks that hold them.
    pub blocks: &'a [BlockId],
    /// The sequence in which the backend has them.
    pub seq: SeqId,
}

/// A prefix that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The blocks that hold it.
    pub blocks: Vec<BlockId>,
    /// A sequence in which the backend has it.
    pub owner: SeqId,
}

/// What a match would give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Tokens whose KV is there.
    pub matched: Tokens,
    /// Those of their blocks that the cache alone holds.
    pub idle: KvBlocks,
}

/// Tokens in a block.
const SLOTS: usize = 16;
const _: () = assert!(KvBlocks::SLOTS.get() == 16);

type Block = [Token; SLOTS];
type NodeId = usize;

#[derive(Debug)]
struct Node {
    space: Space,
    /// `None` for a root, which has no blocks.
    parent: Option<NodeId>,
    /// Blocks from the root to this node's first.
    start: usize,
    tokens: Vec<Block>,
    /// As many as `tokens`.
    blocks: Vec<BlockId>,
    /// By their first block. invariant: none of them begins alike.
    children: BTreeMap<Block, NodeId>,
    /// The count of uses at the last one of this node. invariant: at least that of any child.
    used: u64,
    /// invariant: there exactly for leaves that are no roots.
    owner: Option<SeqId>,
}

impl Node {
    fn root(space: Space) -> Self {
        Self {
            space,
            parent: None,
            start: 0,
            tokens: Vec::new(),
            blocks: Vec::new(),
            children: BTreeMap::new(),
            used: 0,
            owner: None,
        }
    }

    fn end(&self) -> usize {
        self.start + self.blocks.len()
    }
}

/// Where a walk along some tokens ended.
#[derive(Clone, Copy, Debug)]
struct Walk {
    node: NodeId,
    /// Blocks from the root.
    matched: usize,
}

/// The tree of one space.
#[derive(Clone, Copy, Debug)]
struct Tree {
    root: NodeId,
    /// Blocks in it.
    blocks: KvBlocks,
}

/// The prefix cache.
#[derive(Debug)]
pub struct PrefixCache {
    /// Blocks that one space may have.
    quota: KvBlocks,
    trees: BTreeMap<Space, Tree>,
    nodes: Vec<Node>,
    /// Places in `nodes` that nothing refers to.
    vacant: Vec<NodeId>,
    /// All leaves, the one used longest ago first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// The same by space.
    leaves_by_space: BTreeSet<(Space, u64, NodeId)>,
    /// Sequence ids that no leaf has.
    owners: Vec<SeqId>,
    uses: u64,
    /// Leaves looked at to evict one, since the start: how a test knows that not all are.
    #[cfg(test)]
    looked: std::cell::Cell<u64>,
}

impl PrefixCache {
    /// An empty cache. Without `owners` it stays empty.
    pub fn new(owners: impl IntoIterator<Item = SeqId>, quota: KvBlocks) -> Self {
        Self {
            quota,
            trees: BTreeMap::new(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            leaves: BTreeSet::new(),
            leaves_by_space: BTreeSet::new(),
            owners: owners.into_iter().collect(),
            uses: 0,
            #[cfg(test)]
            looked: std::cell::Cell::default(),
        }
    }

    /// How many of `tokens` a request of this tenant would not compute: whole blocks, and never the
    /// last token, after which the next is sampled. Changes nothing.
    pub fn matched(&self, tenant: TenantId, tokens: &[Token]) -> Tokens {
        let best = self.best(tenant, &usable(tokens));
        best.map_or(Tokens::ZERO, |walk| count(walk.matched).slots())
    }

    /// What [`Self::claim`] would give. Changes nothing.
    pub fn probe(&self, tenant: TenantId, tokens: &[Token], pool: &BlockPool) -> Probe {
        let Some(walk) = self.best(tenant, &usable(tokens)) else {
            return Probe::default();
        };
        let blocks = self.blocks_to(walk);
        let idle = blocks.iter().filter(|block| pool.is_idle(**block));
        Probe {
            matched: count(walk.matched).slots(),
            idle: count(idle.count()),
        }
    }

    /// Uses the longest prefix of `tokens` that is there for this tenant. It is only safe from
    /// eviction once the caller holds its blocks.
    pub fn claim(&mut self, tenant: TenantId, tokens: &[Token]) -> Option<Match> {
        let walk = self.best(tenant, &usable(tokens))?;
        let walk = self.touch(walk);
        Some(Match {
            blocks: self.blocks_to(walk),
            owner: self.owner_below(walk.node)?,
        })
    }

    /// Enters what was computed, as far as the space's quota goes. How many blocks are new in it.
    pub fn insert(
        &mut self,
        space: Space,
        computed: Computed<'_>,
        pool: &mut BlockPool,
        ops: &mut Vec<KvOp>,
    ) -> KvBlocks {
        let tokens = whole_blocks(computed.tokens);
        let tokens = &tokens[..tokens.len().min(computed.blocks.len())];
        if self.quota == KvBlocks::ZERO {
            return KvBlocks::ZERO;
        }
        let Some(walk) = self.make_way(space, tokens, pool, ops) else {
            return KvBlocks::ZERO;
        };
        let room = self.quota - self.tree(space).map_or(KvBlocks::ZERO, |tree| tree.blocks);
        let room = usize::try_from(room.get()).unwrap_or(usize::MAX);
        let end = tokens.len().min(walk.matched.saturating_add(room));
        let new = walk.matched..end;
        let walk = self.touch(walk);
        if new.is_empty() {
            return KvBlocks::ZERO;
        }
        let leaf = self.leaf_at(walk, tokens[new.start], ops);
        for block in &computed.blocks[new.clone()] {
            pool.cache(*block);
        }
        let node = &mut self.nodes[leaf];
        node.tokens.extend_from_slice(&tokens[new.clone()]);
        node.blocks.extend_from_slice(&computed.blocks[new.clone()]);
        ops.extend(node.owner.map(|owner| KvOp::Copy {
            from: computed.seq,
            to: owner,
            start: count(new.start).slots(),
            end: count(new.end).slots(),
        }));
        if let Some(tree) = self.trees.get_mut(&space) {
            tree.blocks += count(new.len());
        }
        count(new.len())
    }

    /// Evicts until `free` blocks are free, or nothing can be evicted any more.
    pub fn evict(&mut self, free: KvBlocks, pool: &mut BlockPool, ops: &mut Vec<KvOp>) {
        while pool.free() < free && pool.idle() > KvBlocks::ZERO {
            let evictable = |(_, leaf): &&(u64, NodeId)| self.is_evictable(*leaf, pool);
            // Those in between are in use: no more than sequences run.
            if let Some(&(_, leaf)) = self.leaves.iter().find(evictable) {
                let most = free - pool.free();
                self.trim(leaf, most, pool, ops);
            } else if let Some(&(_, leaf)) = self.leaves.first() {
                // Idle blocks before one in use, of a sequence that has copies of its own of those.
                let kept = self.nodes[leaf].blocks.len() - 1;
                self.cut(leaf, kept, pool, ops);
            }
        }
    }

    /// Blocks in it, counted once for each space they are in.
    pub fn blocks(&self) -> KvBlocks {
        let each = self.trees.values().map(|tree| tree.blocks);
        each.fold(KvBlocks::ZERO, |sum, one| sum + one)
    }

    /// Prefixes in it that none continues.
    pub fn prefixes(&self) -> usize {
        self.leaves.len()
    }

    fn tree(&self, space: Space) -> Option<&Tree> {
        self.trees.get(&space)
    }

    /// The longest match of a tenant's own and the published ones.
    fn best(&self, tenant: TenantId, tokens: &[Block]) -> Option<Walk> {
        let own = self.walk(Space::Tenant(tenant), tokens);
        let published = self.walk(Space::Published, tokens);
        let walks = own.into_iter().chain(published);
        walks
            .filter(|walk| walk.matched > 0)
            .max_by_key(|walk| walk.matched)
    }

    fn walk(&self, space: Space, tokens: &[Block]) -> Option<Walk> {
        let mut walk = Walk {
            node: self.tree(space)?.root,
            matched: 0,
        };
        while let Some(next) = tokens.get(walk.matched)
            && walk.matched == self.nodes[walk.node].end()
            && let Some(child) = self.nodes[walk.node].children.get(next)
        {
            let edge = self.nodes[*child].tokens.iter();
            let same = edge
                .zip(&tokens[walk.matched..])
                .take_while(|(a, b)| a == b);
            walk = Walk {
                node: *child,
                matched: walk.matched + same.count(),
            };
        }
        Some(walk)
    }

    fn blocks_to(&self, walk: Walk) -> Vec<BlockId> {
        let mut pieces = Vec::new();
        let mut at = Some(walk.node);
        while let Some(id) = at {
            let node = &self.nodes[id];
            let there = walk.matched.min(node.end()) - node.start;
            pieces.push(&node.blocks[..there]);
            at = node.parent;
        }
        pieces.into_iter().rev().flatten().copied().collect()
    }

    /// A sequence that has all from the root to this node.
    fn owner_below(&self, mut id: NodeId) -> Option<SeqId> {
        while let Some(child) = self.nodes[id].children.values().next() {
            id = *child;
        }
        self.nodes[id].owner
    }

    /// Counts a use of all up to where a walk ended, which is the end of a node then.
    fn touch(&mut self, walk: Walk) -> Walk {
        let walk = self.split(walk);
        self.uses += 1;
        let mut at = Some(walk.node);
        while let Some(id) = at {
            self.unlist(id);
            self.nodes[id].used = self.uses;
            self.list(id);
            at = self.nodes[id].parent;
        }
        walk
    }

    /// Makes the end of a walk the end of a node.
    fn split(&mut self, walk: Walk) -> Walk {
        let lower = walk.node;
        let node = &mut self.nodes[lower];
        let at = walk.matched - node.start;
        let (Some(parent), true) = (node.parent, at < node.blocks.len()) else {
            return walk;
        };
        let (tokens, blocks) = (node.tokens.split_off(at), node.blocks.split_off(at));
        let (first, start) = (tokens[0], node.start);
        let upper = Node {
            parent: Some(parent),
            start,
            tokens: std::mem::replace(&mut node.tokens, tokens),
            blocks: std::mem::replace(&mut node.blocks, blocks),
            children: BTreeMap::from([(first, lower)]),
            used: node.used,
            ..Node::root(node.space)
        };
        node.start += at;
        let key = upper.tokens[0];
        let upper = self.place(upper);
        self.nodes[lower].parent = Some(upper);
        self.nodes[parent].children.insert(key, upper);
        Walk {
            node: upper,
            ..walk
        }
    }

    /// Sees to the quota and to a sequence id for a new leaf, then says where `tokens` go on. What
    /// is evicted for that may be of their own path. `None` where there is no sequence id to have.
    fn make_way(
        &mut self,
        space: Space,
        tokens: &[Block],
        pool: &mut BlockPool,
        ops: &mut Vec<KvOp>,
    ) -> Option<Walk> {
        if let (Some(tree), Some(walk)) = (self.tree(space), self.walk(space, tokens)) {
            let after = tree.blocks + count(tokens.len() - walk.matched);
            self.evict_in(space, after - self.quota, pool, ops);
        }
        loop {
            let walk = self.walk(space, tokens);
            let there =
                walk.is_some_and(|walk| walk.matched == tokens.len() || self.is_leaf_end(walk));
            if there {
                return walk;
            }
            if tokens.is_empty() {
                return None;
            }
            if !self.owners.is_empty() {
                return Some(walk.unwrap_or_else(|| self.plant(space)));
            }
            let (_, leaf) = *self.leaves.first()?;
            // Where the oldest leaf is the one to branch off from, its end alone goes.
            let kept = walk.filter(|walk| walk.node == leaf);
            let kept = kept.map_or(0, |walk| walk.matched - self.nodes[leaf].start);
            self.cut(leaf, kept, pool, ops);
        }
    }

    /// Whether what follows can simply be added to the leaf there.
    fn is_leaf_end(&self, walk: Walk) -> bool {
        let node = &self.nodes[walk.node];
        node.owner.is_some() && walk.matched == node.end()
    }

    fn plant(&mut self, space: Space) -> Walk {
        let root = self.place(Node::root(space));
        let blocks = KvBlocks::ZERO;
        self.trees.insert(space, Tree { root, blocks });
        Walk {
            node: root,
            matched: 0,
        }
    }

    /// The leaf to add to, whose next block will be `first`: the one there, or a new one.
    fn leaf_at(&mut self, walk: Walk, first: Block, ops: &mut Vec<KvOp>) -> NodeId {
        if self.is_leaf_end(walk) {
            return walk.node;
        }
        let owner = self.owners.pop();
        if let (Some(from), Some(to)) = (self.owner_below(walk.node), owner)
            && walk.matched > 0
        {
            let (start, end) = (Tokens::ZERO, count(walk.matched).slots());
            ops.push(KvOp::Copy {
                from,
                to,
                start,
                end,
            });
        }
        let leaf = Node {
            parent: Some(walk.node),
            start: walk.matched,
            used: self.uses,
            owner,
            ..Node::root(self.nodes[walk.node].space)
        };
        let leaf = self.place(leaf);
        self.nodes[walk.node].children.insert(first, leaf);
        self.list(leaf);
        leaf
    }

    /// Evicts `blocks` of one space, where that many can be.
    fn evict_in(
        &mut self,
        space: Space,
        mut blocks: KvBlocks,
        pool: &mut BlockPool,
        ops: &mut Vec<KvOp>,
    ) {
        while blocks > KvBlocks::ZERO {
            let mut leaves = self
                .leaves_by_space
                .range((space, 0, 0)..=(space, u64::MAX, usize::MAX));
            let evictable = leaves.find(|(_, _, leaf)| self.is_evictable(*leaf, pool));
            let Some(&(_, _, leaf)) = evictable else {
                return;
            };
            blocks -= self.trim(leaf, blocks, pool, ops);
        }
    }

    fn is_evictable(&self, leaf: NodeId, pool: &BlockPool) -> bool {
        #[cfg(test)]
        self.looked.set(self.looked.get() + 1);
        let last = self.nodes[leaf].blocks.last();
        last.is_some_and(|block| pool.is_idle(*block))
    }

    /// Cuts up to `most` idle blocks off the end of a leaf; how many.
    fn trim(
        &mut self,
        leaf: NodeId,
        most: KvBlocks,
        pool: &mut BlockPool,
        ops: &mut Vec<KvOp>,
    ) -> KvBlocks {
        let mut cut = KvBlocks::ZERO;
        while cut < most
            && let Some(&block) = self.nodes[leaf].blocks.last()
            && pool.is_idle(block)
        {
            pool.uncache(block);
            let node = &mut self.nodes[leaf];
            node.blocks.pop();
            if !node.blocks.is_empty() {
                node.tokens.pop();
            }
            cut += KvBlocks::new(1);
        }
        self.shrunk(leaf, cut, ops);
        cut
    }

    /// Drops all but the first `kept` blocks of a leaf, whoever uses them.
    fn cut(&mut self, leaf: NodeId, kept: usize, pool: &mut BlockPool, ops: &mut Vec<KvOp>) {
        let node = &mut self.nodes[leaf];
        node.tokens.truncate(kept.max(1));
        let blocks = node.blocks.split_off(kept);
        for block in blocks.iter().rev() {
            pool.uncache(*block);
        }
        self.shrunk(leaf, count(blocks.len()), ops);
    }

    /// A leaf lost blocks off its end; one that lost all still knows its first by its tokens.
    fn shrunk(&mut self, leaf: NodeId, cut: KvBlocks, ops: &mut Vec<KvOp>) {
        let node = &self.nodes[leaf];
        if let Some(tree) = self.trees.get_mut(&node.space) {
            tree.blocks -= cut;
        }
        if !node.blocks.is_empty() {
            let from = count(node.end()).slots();
            ops.extend(node.owner.map(|seq| KvOp::Trim { seq, from }));
            return;
        }
        self.remove(leaf, ops);
    }

    /// Takes a leaf without blocks out of the tree. What it continued keeps its sequence id, or the
    /// id is free.
    fn remove(&mut self, leaf: NodeId, ops: &mut Vec<KvOp>) {
        self.unlist(leaf);
        let space = self.nodes[leaf].space;
        let node = std::mem::replace(&mut self.nodes[leaf], Node::root(space));
        self.vacant.push(leaf);
        let (Some(parent), Some(owner)) = (node.parent, node.owner) else {
            return;
        };
        if let Some(first) = node.tokens.first() {
            self.nodes[parent].children.remove(first);
        }
        let bare = self.nodes[parent].children.is_empty();
        let is_root = self.nodes[parent].parent.is_none();
        let from = if bare { node.start } else { 0 };
        let from = count(from).slots();
        ops.push(KvOp::Trim { seq: owner, from });
        if bare && !is_root {
            self.nodes[parent].owner = Some(owner);
            self.list(parent);
            return;
        }
        self.owners.push(owner);
        if bare {
            self.trees.remove(&space);
            self.vacant.push(parent);
        }
    }

    fn place(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    fn list(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        if node.owner.is_some() {
            self.leaves.insert((node.used, id));
            self.leaves_by_space.insert((node.space, node.used, id));
        }
    }

    fn unlist(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        self.leaves.remove(&(node.used, id));
        self.leaves_by_space.remove(&(node.space, node.used, id));
    }

    /// All blocks in it, once for each space they are in, for [`BlockPool::invariants`].
    pub fn cached(&self) -> impl Iterator<Item = BlockId> {
        self.nodes
            .iter()
            .flat_map(|node| node.blocks.iter().copied())
    }

    /// Panics unless the trees are trees, and lists, counts and sequence ids agree with them.
    /// `owners` is how many ids there are.
    ///
    /// # Panics
    ///
    /// Only on a bug here.
    pub fn invariants(&self, owners: usize) {
        let mut leaves = 0;
        let mut reached = self.vacant.len();
        for (space, tree) in &self.trees {
            let mut blocks = 0;
            let mut open = vec![tree.root];
            while let Some(id) = open.pop() {
                reached += 1;
                let node = &self.nodes[id];
                assert_eq!((node.space, node.tokens.len()), (*space, node.blocks.len()));
                assert_eq!(node.parent.is_none(), node.blocks.is_empty());
                assert_eq!(node.owner.is_some(), node.children.is_empty());
                blocks += node.blocks.len();
                for (first, child) in &node.children {
                    let child_node = &self.nodes[*child];
                    assert_eq!(child_node.parent, Some(id));
                    assert_eq!(
                        (child_node.start, child_node.tokens[0]),
                        (node.end(), *first)
                    );
                    assert!(
                        child_node.used <= node.used,
                        "a prefix is used with what continues it"
                    );
                    open.push(*child);
                }
                if node.owner.is_some() {
                    leaves += 1;
                    assert!(self.leaves.contains(&(node.used, id)));
                    assert!(self.leaves_by_space.contains(&(*space, node.used, id)));
                }
            }
            assert_eq!(count(blocks), tree.blocks);
            assert!(tree.blocks <= self.quota, "a space stays within its quota");
        }
        assert_eq!(reached, self.nodes.len(), "no node is lost");
        assert_eq!(
            (self.leaves.len(), self.leaves_by_space.len()),
            (leaves, leaves)
        );
        let mut ids = self.owners.clone();
        ids.extend(self.nodes.iter().filter_map(|node| node.owner));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(
            ids.len(),
            owners,
            "no sequence id is lost or has two leaves"
        );
    }
}

/// The whole blocks of some tokens.
fn whole_blocks(tokens: &[Token]) -> Vec<Block> {
    let blocks = tokens.chunks_exact(SLOTS);
    blocks
        .filter_map(|block| Block::try_from(block).ok())
        .collect()
}

/// The whole blocks that may be reused: at least one token is left to compute.
fn usable(tokens: &[Token]) -> Vec<Block> {
    whole_blocks(tokens.split_last().map_or(&[], |(_, rest)| rest))
}

#[cfg(test)]
mod tests;
