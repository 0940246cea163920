//! Which replica of a pool gets a request, and why that one.
//!
//! Load is what a replica last said plus what it was sent since, so an old report does no harm; and
//! no rule but the plain ones looks at all replicas, so that several gateways with the same old
//! report don't all choose the same one (Mitzenmacher, "How useful is old information?", 2000).
//! Which replicas have room at all is not decided here.

mod affinity;
mod holders;

use std::cmp::Reverse;

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

pub use self::affinity::{Affinity, Block};
pub use self::holders::Holders;
use crate::ids::{ReplicaId, TenantId};
use crate::units::{KvBlocks, Tokens, count};

/// By which rule a replica is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Of the one that holds most of the prompt and two drawn at random, the one with the least to
    /// do before the first token.
    #[default]
    Prefix,
    /// The less loaded of two that are drawn at random.
    PowerOfTwo,
    /// The least loaded.
    LeastLoad,
    /// Each in turn.
    RoundRobin,
    /// The one that the session, or else the prompt's beginning or the tenant, hashes to.
    Hash,
}

impl Policy {
    /// Every rule, by the name that the configuration has for it.
    pub const ALL: [(&'static str, Self); 5] = [
        ("prefix", Self::Prefix),
        ("power_of_two", Self::PowerOfTwo),
        ("least_load", Self::LeastLoad),
        ("round_robin", Self::RoundRobin),
        ("hash", Self::Hash),
    ];
}

/// A replica that has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub replica: ReplicaId,
    /// What it has to do.
    pub load: Load,
}

/// What a replica has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// KV it holds: what it last said and what it was sent since.
    pub kv: KvBlocks,
    /// KV it can hold; zero where nobody knows.
    pub total: KvBlocks,
    /// Requests it has.
    pub sequences: u32,
    /// Prompt tokens it was sent, not found in its cache, and has not answered with a first token.
    pub prefill: Tokens,
}

impl Load {
    /// Tokens of KV that weigh as much as one token to be prefilled: a sequence that decodes slows
    /// a newcomer down by its part of each step, a prefill by all of its own.
    const KV_PER_PREFILL: u64 = 8;

    /// Comparable among replicas of different size: parts of a million of its KV, and then its
    /// requests.
    fn share(self) -> (u64, u32) {
        let part = u128::from(self.kv.get()) * 1_000_000;
        let part = part.checked_div(u128::from(self.total.get())).unwrap_or(0);
        (u64::try_from(part).unwrap_or(u64::MAX), self.sequences)
    }

    /// Tokens to prefill before a newcomer's first token, where `missing` are its own.
    fn before_first_token(self, missing: Tokens) -> (Tokens, u32) {
        let decode = Tokens::new(self.kv.slots().get() / Self::KV_PER_PREFILL);
        (self.prefill + missing + decode, self.sequences)
    }
}

/// What a request brings to the choice.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    /// Whose it is.
    pub tenant: TenantId,
    /// How long its prompt is.
    pub prompt: Tokens,
    /// What it says of where it is best served.
    pub affinity: &'a Affinity,
}

/// A replica, with the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub replica: ReplicaId,
    /// Why.
    pub because: Because,
    /// Tokens of the prompt that it is expected to find in its cache.
    pub cached: Tokens,
}

/// Why a replica was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// No other had room.
    OnlyOne,
    /// It had the least to do of those that had room.
    LeastLoad,
    /// It had less to do than another that was drawn with it.
    TwoChoices,
    /// It holds the most of the prompt.
    Prefix,
    /// Another holds more of the prompt, and has so much to do that this one is sooner done.
    PrefixBusy,
    /// It was its turn.
    Turn,
    /// It is where the session belongs.
    Session,
    /// Where the session belongs there is no room, or nobody.
    SessionMoved,
    /// It is where the request hashes to.
    Hash,
    /// Where the request hashes to there is no room, or nobody.
    HashMoved,
}

impl Because {
    /// The reason as header, log and metrics spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::OnlyOne => "only_one",
            Self::LeastLoad => "least_load",
            Self::TwoChoices => "two_choices",
            Self::Prefix => "prefix",
            Self::PrefixBusy => "prefix_busy",
            Self::Turn => "turn",
            Self::Session => "session",
            Self::SessionMoved => "session_moved",
            Self::Hash => "hash",
            Self::HashMoved => "hash_moved",
        }
    }
}

/// How much of a pool a choice is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A few replicas that have room, drawn at random.
    Some,
    /// Each of them.
    All,
}

/// Chooses among the replicas of one pool.
#[derive(Clone, Debug)]
pub struct Router {
    policy: Policy,
    chance: Pcg64,
    /// Whose turn it was last.
    turn: Option<ReplicaId>,
    holders: Holders,
}

impl Router {
    /// A router that has sent nothing yet.
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self {
            policy,
            chance: Pcg64::seed_from_u64(seed),
            turn: None,
            holders: Holders::default(),
        }
    }

    /// What it must be shown to choose for a request.
    pub fn sight(&self, affinity: &Affinity) -> Sight {
        if affinity.session.is_some() {
            return Sight::All;
        }
        match self.policy {
            Policy::PowerOfTwo => Sight::Some,
            Policy::Prefix if affinity.prefix.is_empty() => Sight::Some,
            Policy::Prefix | Policy::LeastLoad | Policy::RoundRobin | Policy::Hash => Sight::All,
        }
    }

    /// The replica for a request, of those that have room; `pool` are all that are up, room or not,
    /// where it must see them all.
    pub fn choose(
        &mut self,
        seek: Seek<'_>,
        candidates: &[Candidate],
        pool: &[ReplicaId],
    ) -> Option<Choice> {
        let first = candidates.first()?;
        let (candidate, because) = if let Some(session) = seek.affinity.session {
            let homes = (Because::Session, Because::SessionMoved);
            at_home(session, candidates, pool, homes)?
        } else if candidates.len() == 1 {
            (*first, Because::OnlyOne)
        } else {
            self.by_policy(seek, candidates, pool)?
        };
        let cached = self
            .holders
            .matched(candidate.replica, &seek.affinity.prefix);
        Some(Choice {
            replica: candidate.replica,
            because,
            cached: cached.min(seek.prompt),
        })
    }

    /// A request went where it was chosen to go; `room` is what the replica's cache has room for.
    pub fn sent(&mut self, choice: Choice, affinity: &Affinity, room: Tokens) {
        self.turn = Some(choice.replica);
        if self.policy == Policy::Prefix {
            self.holders.sent(choice.replica, &affinity.prefix, room);
        }
    }

    /// A replica lost what it held.
    pub fn lost(&mut self, replica: ReplicaId) {
        self.holders.lost(replica);
    }

    /// What is remembered to be held where.
    pub const fn holders(&self) -> &Holders {
        &self.holders
    }

    fn by_policy(
        &mut self,
        seek: Seek<'_>,
        candidates: &[Candidate],
        pool: &[ReplicaId],
    ) -> Option<(Candidate, Because)> {
        match self.policy {
            Policy::Prefix => self.by_prefix(seek, candidates),
            Policy::PowerOfTwo => {
                let [one, other] = self.two_of(candidates)?;
                let less = if other.load.share() < one.load.share() {
                    other
                } else {
                    one
                };
                Some((less, Because::TwoChoices))
            }
            Policy::LeastLoad => {
                // From a place drawn at random: of equals, not always the first.
                let start = self.below(candidates.len());
                let turned = candidates.iter().cycle().skip(start).take(candidates.len());
                let least = turned.min_by_key(|one| one.load.share())?;
                Some((*least, Because::LeastLoad))
            }
            Policy::RoundRobin => {
                let after = candidates.iter().find(|one| Some(one.replica) > self.turn);
                let next = after.or_else(|| candidates.first())?;
                Some((*next, Because::Turn))
            }
            Policy::Hash => {
                let begins = seek.affinity.prefix.first().map(|block| block.hash);
                let key = begins.unwrap_or_else(|| mixed(u64::from(seek.tenant.get())));
                at_home(key, candidates, pool, (Because::Hash, Because::HashMoved))
            }
        }
    }

    fn by_prefix(
        &mut self,
        seek: Seek<'_>,
        candidates: &[Candidate],
    ) -> Option<(Candidate, Because)> {
        let prefix = &seek.affinity.prefix;
        let place = |replica: ReplicaId| {
            let found = candidates.binary_search_by_key(&replica, |one| one.replica);
            found.ok().and_then(|at| candidates.get(at)).copied()
        };
        let (longest, holding) = self
            .holders
            .longest(prefix, |replica| place(replica).is_some());
        let mut drawn: Vec<Candidate> = self.two_of(candidates)?.to_vec();
        if longest > Tokens::ZERO {
            let holding: Vec<_> = holding.into_iter().filter_map(place).collect();
            match self.two_of(&holding) {
                // Two of them: a prefix that everybody has is no reason to go to the same one.
                Some(two) => drawn.extend(two),
                None => drawn.extend(holding),
            }
        }
        let cost = |one: &Candidate| {
            let missing = seek.prompt - self.holders.matched(one.replica, prefix);
            one.load.before_first_token(missing)
        };
        let best = drawn.into_iter().min_by_key(cost)?;
        let because = if longest == Tokens::ZERO {
            Because::TwoChoices
        } else if self.holders.matched(best.replica, prefix) == longest {
            Because::Prefix
        } else {
            Because::PrefixBusy
        };
        Some((best, because))
    }

    /// Two different ones, drawn at random; nothing of fewer than two.
    fn two_of(&mut self, of: &[Candidate]) -> Option<[Candidate; 2]> {
        let one = self.below(of.len());
        let other = self.below(of.len().saturating_sub(1));
        let other = if other < one { other } else { other + 1 };
        Some([*of.get(one)?, *of.get(other)?])
    }

    /// A number below `bound`, each as likely; zero below zero.
    fn below(&mut self, bound: usize) -> usize {
        let drawn = (u128::from(self.chance.next_u64()) * u128::from(count(bound))) >> 64;
        usize::try_from(drawn).unwrap_or(0)
    }
}

/// Where `key` belongs: each replica has a score of its own for each key, and the highest has it
/// (rendezvous hashing: Thaler and Ravishankar, 1998). So when a replica goes, only what was there
/// moves, and when it is back, only that returns.
fn at_home(
    key: u64,
    candidates: &[Candidate],
    pool: &[ReplicaId],
    (home, moved): (Because, Because),
) -> Option<(Candidate, Because)> {
    let score = |replica: ReplicaId| mixed(key ^ mixed(u64::from(replica.get())));
    let best = candidates
        .iter()
        .max_by_key(|one| (score(one.replica), Reverse(one.replica)))?;
    let belongs = pool.iter().max_by_key(|one| (score(**one), Reverse(**one)));
    let because = if belongs == Some(&best.replica) {
        home
    } else {
        moved
    };
    Some((*best, because))
}

/// A bijection under which close numbers end up far apart (the finalizer of SplitMix64: Steele et
/// al., OOPSLA 2014).
pub(crate) const fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
