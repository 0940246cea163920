//! Which replicas hold the KV of which prompts, as far as can be told from what they were sent.
//!
//! A replica forgets what it has not used for longest, and so does this: each has as much room here
//! as it has tokens of KV, and a bound on blocks besides. A block is used whenever one after it is,
//! and counts as used later; so whoever holds a block holds all before it, and the longest match is
//! found by halving.

use std::collections::BTreeMap;

use super::affinity::Block;
use crate::ids::{ReplicaId, position};
use crate::units::Tokens;

/// Blocks remembered of one replica: some 2 MB.
const BLOCKS_MAX: usize = 16_384;

/// What is held where.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Where in `slots` a block of a replica is.
    places: BTreeMap<(u64, ReplicaId), usize>,
    slots: Vec<Slot>,
    /// Slots that are empty.
    free: Vec<usize>,
    /// By `ReplicaId`; shorter while later ones were sent nothing.
    replicas: Vec<Held>,
}

/// One block of one replica, between the next older and the next newer of that replica.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    tokens: Tokens,
    older: Option<usize>,
    newer: Option<usize>,
}

/// What one replica holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    oldest: Option<usize>,
    newest: Option<usize>,
    blocks: usize,
    tokens: Tokens,
}

impl Holders {
    /// A replica was sent a prompt that begins with `prefix`, and has room for `room` tokens.
    pub fn sent(&mut self, replica: ReplicaId, prefix: &[Block], room: Tokens) {
        while self.replicas.len() <= position(replica.get()) {
            self.replicas.push(Held::default());
        }
        // From the end, so that each block is newer than what comes after it.
        for (at, block) in prefix.iter().enumerate().rev() {
            let before = at.checked_sub(1).map_or(Tokens::ZERO, |at| prefix[at].end);
            self.touch(replica, block.hash, block.end - before);
        }
        while self.is_over(replica, room) {
            self.forget_oldest(replica);
        }
    }

    /// A replica lost all it held: it was started again.
    pub fn lost(&mut self, replica: ReplicaId) {
        while self
            .replicas
            .get(position(replica.get()))
            .is_some_and(|held| held.oldest.is_some())
        {
            self.forget_oldest(replica);
        }
    }

    /// Tokens of `prefix` that a replica holds.
    pub fn matched(&self, replica: ReplicaId, prefix: &[Block]) -> Tokens {
        let held = |block: &Block| self.places.contains_key(&(block.hash, replica));
        let blocks = prefix.partition_point(held);
        blocks
            .checked_sub(1)
            .map_or(Tokens::ZERO, |last| prefix[last].end)
    }

    /// The longest part of `prefix` that anyone holds whom `may` lets through, and who holds it.
    pub fn longest(
        &self,
        prefix: &[Block],
        may: impl Fn(ReplicaId) -> bool,
    ) -> (Tokens, Vec<ReplicaId>) {
        let holds = |block: &Block| self.of_block(block.hash).any(&may);
        let Some(last) = prefix.partition_point(holds).checked_sub(1) else {
            return (Tokens::ZERO, Vec::new());
        };
        let who = self.of_block(prefix[last].hash).filter(|one| may(*one));
        (prefix[last].end, who.collect())
    }

    /// Blocks remembered, of all replicas.
    pub fn blocks(&self) -> usize {
        self.places.len()
    }

    fn of_block(&self, hash: u64) -> impl Iterator<Item = ReplicaId> {
        let ends = (hash, ReplicaId::new(0))..=(hash, ReplicaId::new(u32::MAX));
        self.places.range(ends).map(|((_, replica), _)| *replica)
    }

    fn is_over(&self, replica: ReplicaId, room: Tokens) -> bool {
        let held = &self.replicas[position(replica.get())];
        held.blocks > BLOCKS_MAX || (held.tokens > room && held.blocks > 0)
    }

    fn touch(&mut self, replica: ReplicaId, hash: u64, tokens: Tokens) {
        let place = self.places.get(&(hash, replica)).copied();
        let place = place.unwrap_or_else(|| self.add(replica, hash, tokens));
        self.unlink(replica, place);
        self.link_newest(replica, place);
    }

    /// A slot for a new block, counted and not yet linked.
    fn add(&mut self, replica: ReplicaId, hash: u64, tokens: Tokens) -> usize {
        let slot = Slot {
            hash,
            tokens,
            older: None,
            newer: None,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.places.insert((hash, replica), place);
        let held = &mut self.replicas[position(replica.get())];
        held.blocks += 1;
        held.tokens += tokens;
        place
    }

    fn unlink(&mut self, replica: ReplicaId, place: usize) {
        let Slot { older, newer, .. } = self.slots[place];
        let held = &mut self.replicas[position(replica.get())];
        match older {
            Some(older) => self.slots[older].newer = newer,
            None if held.oldest == Some(place) => held.oldest = newer,
            None => {}
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None if held.newest == Some(place) => held.newest = older,
            None => {}
        }
    }

    fn link_newest(&mut self, replica: ReplicaId, place: usize) {
        let held = &mut self.replicas[position(replica.get())];
        let before = held.newest.replace(place);
        match before {
            Some(before) => self.slots[before].newer = Some(place),
            None => held.oldest = Some(place),
        }
        let slot = &mut self.slots[place];
        (slot.older, slot.newer) = (before, None);
    }

    fn forget_oldest(&mut self, replica: ReplicaId) {
        let Some(place) = self.replicas[position(replica.get())].oldest else {
            return;
        };
        self.unlink(replica, place);
        let Slot { hash, tokens, .. } = self.slots[place];
        self.places.remove(&(hash, replica));
        self.free.push(place);
        let held = &mut self.replicas[position(replica.get())];
        held.blocks -= 1;
        held.tokens = held.tokens - tokens;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const R: [ReplicaId; 2] = [ReplicaId::new(0), ReplicaId::new(1)];
    const ROOM: Tokens = Tokens::new(1_000);

    /// A prompt as the names of its blocks of 100 tokens.
    fn prefix(names: &[u64]) -> Vec<Block> {
        let block = |(name, at): (&u64, u64)| Block {
            hash: *name,
            end: Tokens::new(100 * at),
        };
        names.iter().zip(1..).map(block).collect()
    }

    #[test]
    fn the_longest_match_says_who_holds_it() {
        let mut holders = Holders::default();
        holders.sent(R[0], &prefix(&[1, 2, 3]), ROOM);
        holders.sent(R[1], &prefix(&[1, 2]), ROOM);
        let asked = prefix(&[1, 2, 3, 9]);
        assert_eq!(
            holders.longest(&asked, |_| true),
            (Tokens::new(300), vec![R[0]])
        );
        assert_eq!(
            holders.longest(&asked, |one| one != R[0]),
            (Tokens::new(200), vec![R[1]])
        );
        let shared = prefix(&[1, 2, 8]);
        assert_eq!(
            holders.longest(&shared, |_| true),
            (Tokens::new(200), R.to_vec())
        );
        assert_eq!(
            holders.longest(&prefix(&[7]), |_| true),
            (Tokens::ZERO, vec![])
        );
        assert_eq!(holders.matched(R[1], &asked), Tokens::new(200));
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten_from_its_end() {
        let mut holders = Holders::default();
        let room = Tokens::new(400);
        holders.sent(R[0], &prefix(&[1, 2, 3]), room);
        holders.sent(R[0], &prefix(&[1, 5, 6]), room);
        assert_eq!(holders.matched(R[0], &prefix(&[1, 2, 3])), Tokens::new(200));
        holders.sent(R[0], &prefix(&[1, 7]), room);
        assert_eq!(holders.matched(R[0], &prefix(&[1, 2, 3])), Tokens::new(100));
        assert_eq!(holders.matched(R[0], &prefix(&[1, 5, 6])), Tokens::new(300));
    }

    #[test]
    fn a_replica_that_was_started_again_holds_nothing() {
        let mut holders = Holders::default();
        holders.sent(R[0], &prefix(&[1, 2]), ROOM);
        holders.sent(R[1], &prefix(&[1]), ROOM);
        holders.lost(R[0]);
        assert_eq!(holders.matched(R[0], &prefix(&[1, 2])), Tokens::ZERO);
        assert_eq!(holders.blocks(), 1);
        holders.lost(ReplicaId::new(9));
    }

    #[test]
    fn prompts_that_are_all_different_never_make_it_larger_than_its_bound() {
        let mut holders = Holders::default();
        for n in 0..40_000 {
            holders.sent(R[0], &prefix(&[2 * n, 2 * n + 1]), Tokens::new(u64::MAX));
        }
        assert_eq!(holders.blocks(), BLOCKS_MAX);
        assert!(holders.slots.len() <= BLOCKS_MAX + 2);
    }

    /// The same, told by looking at everything: each replica's blocks, the newest first.
    #[derive(Default)]
    struct Plain([Vec<Vec<u64>>; 2]);

    impl Plain {
        /// A block is named by all the prompt up to it.
        fn sent(&mut self, replica: usize, names: &[u64], room: usize) {
            let held = &mut self.0[replica];
            for end in (1..=names.len()).rev() {
                held.retain(|block| block != &names[..end]);
                held.insert(0, names[..end].to_vec());
            }
            held.truncate(room);
        }

        fn matched(&self, replica: usize, names: &[u64]) -> usize {
            let held = |end: &usize| self.0[replica].iter().any(|block| *block == names[..*end]);
            (1..=names.len()).take_while(held).count()
        }
    }

    /// Hashes that stand for all of a prompt up to each block.
    fn chained(names: &[u64]) -> Vec<Block> {
        let sum = |at: usize| {
            names[..at]
                .iter()
                .fold(7, |sum: u64, one| sum * 31 + one + 1)
        };
        let hashes: Vec<_> = (1..=names.len()).map(sum).collect();
        prefix(&hashes)
    }

    proptest! {
        #[test]
        fn it_remembers_what_a_plain_list_would(
            prompts in vec((0..2_usize, vec(0..3_u64, 1..6)), 1..60),
        ) {
            let (mut holders, mut plain) = (Holders::default(), Plain::default());
            for (replica, names) in prompts {
                holders.sent(R[replica], &chained(&names), Tokens::new(800));
                plain.sent(replica, &names, 8);
                for (one, id) in R.into_iter().enumerate() {
                    let expected = 100 * u64::try_from(plain.matched(one, &names)).unwrap();
                    prop_assert_eq!(holders.matched(id, &chained(&names)), Tokens::new(expected));
                }
            }
        }
    }
}
