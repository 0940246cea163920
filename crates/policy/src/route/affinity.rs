//! What a request says of where it is best served: its session, and the blocks its prompt begins
//! with.
//!
//! Blocks are hashes in a chain: a block's hash stands for all of the prompt up to its end, and for
//! the tenant, so that equal prompts of two tenants have nothing in common. They only steer; a
//! replica compares for itself, so a collision costs a detour and nothing else.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

use crate::ids::TenantId;
use crate::units::{Tokens, count};

/// One block of a prompt, and all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Stands for the prompt up to [`Block::end`].
    pub hash: u64,
    /// Tokens of the prompt up to where the block ends, or a guess at them.
    pub end: Tokens,
}

/// Where a request would best be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// Requests with the same session belong on one replica.
    pub session: Option<u64>,
    /// What its prompt begins with, block by block. invariant: `end` rises.
    pub prefix: Arc<[Block]>,
}

/// Bytes of the first blocks.
const BLOCK_BYTES: usize = 512;

/// Blocks after which they are twice as long: a long prompt has few blocks, and what is lost at the
/// end of a shared part is a small share of it.
const DOUBLED_AFTER: usize = 16;

/// Blocks of one prompt that are looked at; with their sizes doubling, 4 MiB.
const BLOCKS_MAX: usize = 8 * DOUBLED_AFTER + DOUBLED_AFTER;

impl Affinity {
    /// Of a prompt's bytes, of which about `bytes_per_token` make a token; `seed` is the
    /// gateway's own, so that nobody outside can tell which prompts collide.
    ///
    /// Only whole blocks count: the end of a prompt is what the next one differs in.
    pub fn of_prompt(seed: u64, tenant: TenantId, prompt: &[u8], bytes_per_token: u64) -> Self {
        let mut chain = DefaultHasher::new();
        chain.write_u64(seed);
        chain.write_u32(tenant.get());
        let mut blocks = Vec::new();
        let (mut rest, mut passed) = (prompt, 0);
        while blocks.len() < BLOCKS_MAX {
            let doubled = u32::try_from(blocks.len() / DOUBLED_AFTER).unwrap_or(u32::MAX);
            let length = BLOCK_BYTES.saturating_mul(2_usize.saturating_pow(doubled));
            let Some((block, after)) = rest.split_at_checked(length) else {
                break;
            };
            chain.write(block);
            passed += length;
            rest = after;
            blocks.push(Block {
                hash: chain.finish(),
                end: Tokens::new(count(passed) / bytes_per_token.max(1)),
            });
        }
        Self {
            session: None,
            prefix: blocks.into(),
        }
    }

    /// The same, in a session that its client named.
    pub fn in_session(self, seed: u64, tenant: TenantId, name: &[u8]) -> Self {
        let mut hash = DefaultHasher::new();
        hash.write_u64(seed);
        hash.write_u32(tenant.get());
        hash.write(name);
        Self {
            session: Some(hash.finish()),
            ..self
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.session.is_none() && self.prefix.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId::new(0);
    const B: TenantId = TenantId::new(1);

    #[test]
    fn prompts_that_begin_alike_share_blocks_up_to_where_they_differ() {
        let one = vec![b'x'; 4_000];
        let mut other = one.clone();
        other[1_600] = b'y';
        let [one, other] = [one, other].map(|bytes| Affinity::of_prompt(1, A, &bytes, 4));
        assert_eq!(one.prefix.len(), 7, "the eighth is not whole");
        assert_eq!(one.prefix[..3], other.prefix[..3]);
        assert!(
            one.prefix
                .iter()
                .zip(&*other.prefix)
                .skip(3)
                .all(|(a, b)| a.hash != b.hash)
        );
        assert_eq!(one.prefix[2].end, Tokens::new(384));
    }

    #[test]
    fn equal_prompts_of_two_tenants_or_two_gateways_have_nothing_in_common() {
        let bytes = vec![b'x'; 2_000];
        let own = Affinity::of_prompt(1, A, &bytes, 4);
        for other in [
            Affinity::of_prompt(1, B, &bytes, 4),
            Affinity::of_prompt(2, A, &bytes, 4),
        ] {
            assert!(
                own.prefix
                    .iter()
                    .zip(&*other.prefix)
                    .all(|(a, b)| a.hash != b.hash)
            );
        }
        let session = |tenant| Affinity::default().in_session(1, tenant, b"s1").session;
        assert_ne!(session(A), session(B));
        assert_eq!(session(A), session(A));
    }

    #[test]
    fn a_prompt_of_a_megabyte_is_a_hundred_blocks_and_not_two_thousand() {
        let long = Affinity::of_prompt(1, A, &vec![b'x'; 1 << 20], 4);
        assert!(
            (100..130).contains(&long.prefix.len()),
            "{}",
            long.prefix.len()
        );
        assert!(long.prefix.windows(2).all(|pair| pair[0].end < pair[1].end));
        let endless = Affinity::of_prompt(1, A, &vec![b'x'; 16 << 20], 4);
        assert_eq!(endless.prefix.len(), BLOCKS_MAX);
    }
}
