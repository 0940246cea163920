//! How long the answers of a tenant are, as far as can be told from its last ones.
//!
//! Prompts say almost nothing of it (a rank correlation of 0.07 on Azure's conversations); who asks
//! says more. A tenant with few answers is taken for all of them together.

use std::collections::{BTreeMap, VecDeque};

use super::terms::Alpha;
use crate::ids::TenantId;
use crate::units::{Tokens, count};

/// The last answers of each tenant of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    pub(super) pool: Ring,
    tenants: BTreeMap<TenantId, Ring>,
}

impl Lengths {
    /// Tenants that have a ring of their own: some 2 MB.
    const TENANTS_MAX: usize = 1_024;

    /// Answers below which a tenant is taken for all.
    const MIN: usize = 16;

    /// An answer of `tenant` ended of itself, or at the bound that it asked for.
    pub fn learn(&mut self, tenant: TenantId, output: Tokens) {
        self.pool.push(output);
        if self.tenants.len() < Self::TENANTS_MAX || self.tenants.contains_key(&tenant) {
            self.tenants.entry(tenant).or_default().push(output);
        }
    }

    /// Half of a tenant's answers, and all but `alpha` of them, are no longer than this; at most
    /// `most`, which is also what is said where nothing is known.
    pub fn of(&self, tenant: TenantId, alpha: Alpha, most: Tokens) -> (Tokens, Tokens) {
        let own = self.tenants.get(&tenant);
        let ring = own.filter(|ring| ring.sorted.len() >= Self::MIN);
        let ring = ring.unwrap_or(&self.pool);
        let at = |kept: usize| ring.quantile(kept).unwrap_or(most).min(most);
        (at(500), at(1_000 - usize::from(alpha.get())))
    }
}

/// The last answers of somebody, and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ring {
    recent: VecDeque<Tokens>,
    /// invariant: those of `recent`, the shortest first.
    sorted: Vec<Tokens>,
}

impl Ring {
    /// Answers remembered: enough for a ninth decile, few enough to follow a change of work within
    /// a minute.
    const MEMORY: usize = 96;

    pub(super) fn push(&mut self, output: Tokens) {
        if self.recent.len() == Self::MEMORY
            && let Some(old) = self.recent.pop_front()
            && let Ok(at) = self.sorted.binary_search(&old)
        {
            self.sorted.remove(at);
        }
        self.recent.push_back(output);
        let at = self.sorted.partition_point(|other| *other < output);
        self.sorted.insert(at, output);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Tokens> + '_ {
        self.recent.iter().copied()
    }

    /// How many of a thousand are below `length`.
    pub(super) fn below(&self, length: Tokens) -> u64 {
        let below = self.sorted.partition_point(|other| *other < length);
        (count(below) * 1_000)
            .checked_div(count(self.sorted.len()))
            .unwrap_or(0)
    }

    /// The one in the middle; nothing of none.
    pub(super) fn median(&self) -> Tokens {
        self.quantile(500).unwrap_or(Tokens::ZERO)
    }

    /// The length that so many of a thousand do not exceed.
    fn quantile(&self, kept: usize) -> Option<Tokens> {
        let rank = ((self.sorted.len() + 1) * kept).div_ceil(1_000);
        let rank = rank.clamp(1, self.sorted.len().max(1));
        self.sorted.get(rank - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_taken_for_all_until_it_has_answers_of_its_own() {
        let (a, b) = (TenantId::new(0), TenantId::new(1));
        let most = Tokens::new(1_000);
        let mut lengths = Lengths::default();
        assert_eq!(lengths.of(a, Alpha::TENTH, most), (most, most));
        for n in 1..=90 {
            lengths.learn(a, Tokens::new(n));
        }
        let (median, tail) = lengths.of(b, Alpha::TENTH, most);
        assert_eq!((median.get(), tail.get()), (46, 82));
        for _ in 0..20 {
            lengths.learn(b, Tokens::new(700));
        }
        assert_eq!(lengths.of(b, Alpha::TENTH, most).0, Tokens::new(700));
        let short = Tokens::new(5);
        assert_eq!(lengths.of(b, Alpha::TENTH, short), (short, short));
        for _ in 0..100 {
            lengths.learn(a, Tokens::new(500));
        }
        assert_eq!(lengths.of(a, Alpha::TENTH, most).0, Tokens::new(500));
    }
}
