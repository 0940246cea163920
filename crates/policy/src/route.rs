//! Which replica of a pool gets a request, and why that one.

use crate::ids::ReplicaId;
use crate::units::KvBlocks;

/// A replica that has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub replica: ReplicaId,
    /// KV blocks it holds, counted at dispatch.
    pub held: KvBlocks,
}

/// A replica, with the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub replica: ReplicaId,
    /// Why.
    pub because: Because,
}

/// Why a replica was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// No other had room.
    OnlyOne,
    /// It held the least of those that had room.
    LeastHeld,
}

impl Because {
    /// The reason as log and metrics spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::OnlyOne => "only_one",
            Self::LeastHeld => "least_held",
        }
    }
}

/// The candidate that holds the least; the first of equals.
pub fn choose(candidates: impl Iterator<Item = Candidate>) -> Option<Choice> {
    let mut best: Option<Candidate> = None;
    let mut because = Because::OnlyOne;
    for candidate in candidates {
        if best.is_some() {
            because = Because::LeastHeld;
        }
        if best.is_none_or(|best| candidate.held < best.held) {
            best = Some(candidate);
        }
    }
    best.map(|candidate| Choice {
        replica: candidate.replica,
        because,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(replica: u32, held: u64) -> Candidate {
        Candidate {
            replica: ReplicaId::new(replica),
            held: KvBlocks::new(held),
        }
    }

    #[test]
    fn the_emptiest_is_chosen_and_says_why() {
        let choice = choose([candidate(0, 7), candidate(1, 3)].into_iter()).unwrap();
        assert_eq!(
            (choice.replica.get(), choice.because),
            (1, Because::LeastHeld)
        );
        let choice = choose([candidate(2, 7)].into_iter()).unwrap();
        assert_eq!(
            (choice.replica.get(), choice.because),
            (2, Because::OnlyOne)
        );
        assert_eq!(choose(std::iter::empty()), None);
    }
}
