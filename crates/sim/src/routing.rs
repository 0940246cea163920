//! Rules of routing beside each other, on a fleet made of numbers.
//!
//! Two worlds, each with the one thing that a rule can get wrong in it: replicas that only prefill
//! and have caches (`prefill`), and replicas that only hold KV (`decode`). What a router knows of a
//! replica is its last report and what it sent it since; how old a report may be is the world's.
//! The rules are the very code that the server runs, but for one that is here to be bad.

mod decode;
mod load;
mod prefill;
#[cfg(test)]
mod tests;

use rand_core::Rng as _;
use rand_pcg::Pcg64;
use tollgate_policy::ids::{ReplicaId, TenantId};
use tollgate_policy::route::{Affinity, Because, Candidate, Choice, Policy, Router, Seek};
use tollgate_policy::units::{Micros, Tokens};

pub use self::decode::{DecodeScore, DecodeWorld, decode};
pub use self::load::{Prefixed, conversations, infinite_cache, mooncake};
pub use self::prefill::{PrefillScore, PrefillWorld, prefill};

/// How a replica is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// By the server's own router.
    Tollgate(Policy),
    /// The one whose last report was the lowest, with nothing added that was sent since: what not
    /// to do.
    LowestReport,
    /// The one that holds the most of the prompt, whatever it has to do: what not to do either.
    LongestPrefix,
}

impl Rule {
    /// Its name in a table.
    pub fn label(self) -> &'static str {
        match self {
            Self::Tollgate(policy) => {
                let named = Policy::ALL.iter().find(|(_, one)| *one == policy);
                named.map_or("", |(name, _)| name)
            }
            Self::LowestReport => "lowest report",
            Self::LongestPrefix => "longest prefix",
        }
    }
}

/// How what is known of a fleet reaches its routers.
#[derive(Clone, Copy, Debug)]
pub struct Reports {
    /// Time between two reports of a replica.
    pub every: Micros,
    /// Gateways that route to the same replicas and know nothing of each other.
    pub routers: usize,
}

/// The routers of a run, of which each request comes to one at random.
struct Routers {
    rule: Rule,
    routers: Vec<Router>,
    chance: Pcg64,
}

impl Routers {
    fn new(rule: Rule, count: usize, chance: Pcg64) -> Self {
        let policy = match rule {
            Rule::Tollgate(policy) => policy,
            Rule::LowestReport => Policy::LeastLoad,
            Rule::LongestPrefix => Policy::Prefix,
        };
        let router = |n| Router::new(policy, u64::try_from(n).unwrap_or(0));
        Self {
            rule,
            routers: (0..count).map(router).collect(),
            chance,
        }
    }

    /// The router that a request comes to.
    fn draw(&mut self) -> usize {
        let count = u128::try_from(self.routers.len()).unwrap_or(1);
        usize::try_from((u128::from(self.chance.next_u64()) * count) >> 64).unwrap_or(0)
    }

    /// The replica for a request; `room` is what its cache holds.
    fn choose(
        &mut self,
        router: usize,
        (prompt, affinity): (Tokens, &Affinity),
        candidates: &[Candidate],
        room: Tokens,
    ) -> Option<Choice> {
        let router = self.routers.get_mut(router)?;
        let choice = match self.rule {
            Rule::Tollgate(_) | Rule::LowestReport => {
                let pool: Vec<ReplicaId> = candidates.iter().map(|one| one.replica).collect();
                let seek = Seek {
                    tenant: TenantId::new(0),
                    prompt,
                    affinity,
                };
                router.choose(seek, candidates, &pool)?
            }
            Rule::LongestPrefix => {
                let (cached, who) = router.holders().longest(&affinity.prefix, |_| true);
                Choice {
                    replica: *who.first().unwrap_or(&candidates.first()?.replica),
                    because: Because::Prefix,
                    cached,
                }
            }
        };
        router.sent(choice, affinity, room);
        Some(choice)
    }
}
