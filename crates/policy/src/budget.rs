//! What may still be spent: of a tenant's budget, and of that of one of its keys.
//!
//! A budget is hard: what a request is expected to cost is held from the moment it is let in, and
//! replaced by what it cost when it ends. When a window of a budget ends is told from outside,
//! which knows time zones; that it has ended is seen here, to the microsecond, once.

use std::collections::BTreeMap;

use crate::ids::{KeyId, ModelId, TenantId, position};
use crate::outcome::Rejection;
use crate::price::Price;
use crate::units::{KvByteMicros, NanoUsd, Time};
use crate::usage::Usage;

/// Whose budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payer {
    /// All of a tenant's.
    Tenant(TenantId),
    /// That of one key.
    Key(KeyId),
}

/// What a payer may spend, and has spent, in the window that is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Whose it is.
    pub payer: Payer,
    /// The most that may be spent in a window.
    pub limit: NanoUsd,
    /// Which window: a number that grows from each to the next.
    pub window: u64,
    /// When it ends.
    pub ends: Time,
    /// What the ledger says has been spent in it.
    pub spent: NanoUsd,
}

/// Prices and budgets, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tariff {
    /// What usage costs now, by [`ModelId`]; free where there is none.
    pub prices: Vec<Price>,
    /// All budgets there are.
    pub allowances: Vec<Allowance>,
}

/// What a request holds of budgets until it is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    tenant: Option<NanoUsd>,
    key: Option<NanoUsd>,
}

/// All budgets, and what is left of them.
#[derive(Clone, Debug, Default)]
pub struct Purses {
    prices: Vec<Price>,
    purses: BTreeMap<Payer, Purse>,
}

/// One budget.
#[derive(Clone, Copy, Debug)]
struct Purse {
    limit: NanoUsd,
    window: u64,
    ends: Time,
    /// Whether `ends` has passed and was counted: what is spent belongs to the window after it.
    over: bool,
    spent: NanoUsd,
    /// What requests in flight are expected to cost.
    held: NanoUsd,
}

impl Purses {
    /// Takes on other prices and budgets. What was spent stays spent: where the ledger says less
    /// than was counted here, it has not caught up yet.
    pub fn change(&mut self, tariff: Tariff, now: Time) {
        self.prices = tariff.prices;
        let mut old = std::mem::take(&mut self.purses);
        for allowance in tariff.allowances {
            let purse = match old.remove(&allowance.payer) {
                Some(mut purse) => {
                    purse.roll(now);
                    purse.change(allowance);
                    purse
                }
                None => Purse::new(allowance),
            };
            self.purses.insert(allowance.payer, purse);
        }
    }

    /// What this usage costs at the prices that hold now.
    pub fn cost(&self, model: ModelId, usage: Usage, kv: KvByteMicros) -> NanoUsd {
        let price = self.prices.get(position(model.get()));
        price.copied().unwrap_or(Price::FREE).cost(usage, kv)
    }

    /// Holds `cost` of the budgets of a tenant and a key, or of neither.
    ///
    /// # Errors
    /// Why not: there is not so much left, or only while requests in flight hold what they do.
    pub fn reserve(
        &mut self,
        tenant: TenantId,
        key: Option<KeyId>,
        cost: NanoUsd,
        now: Time,
    ) -> Result<Hold, Rejection> {
        let payers = [Some(Payer::Tenant(tenant)), key.map(Payer::Key)];
        for payer in payers.into_iter().flatten() {
            if let Some(purse) = self.purses.get_mut(&payer) {
                purse.roll(now);
                purse.fits(cost)?;
            }
        }
        let mut hold = |payer: Payer| {
            let purse = self.purses.get_mut(&payer)?;
            purse.held += cost;
            Some(cost)
        };
        Ok(Hold {
            tenant: hold(Payer::Tenant(tenant)),
            key: key.and_then(|key| hold(Payer::Key(key))),
        })
    }

    /// Replaces what was held by what it came to.
    pub fn settle(
        &mut self,
        (tenant, key): (TenantId, Option<KeyId>),
        hold: Hold,
        cost: NanoUsd,
        now: Time,
    ) {
        let tenant = (Payer::Tenant(tenant), hold.tenant);
        let key = key.map(|key| (Payer::Key(key), hold.key));
        for (payer, held) in std::iter::once(tenant).chain(key) {
            if let Some(purse) = self.purses.get_mut(&payer) {
                purse.roll(now);
                purse.held -= held.unwrap_or(NanoUsd::ZERO);
                purse.spent += cost;
            }
        }
    }

    /// What a payer has spent in its window, and what its requests in flight hold.
    pub fn standing(&self, payer: Payer) -> Option<(NanoUsd, NanoUsd)> {
        let purse = self.purses.get(&payer)?;
        Some((purse.spent, purse.held))
    }
}

impl Purse {
    fn new(allowance: Allowance) -> Self {
        Self {
            limit: allowance.limit,
            window: allowance.window,
            ends: allowance.ends,
            over: false,
            spent: allowance.spent,
            held: NanoUsd::ZERO,
        }
    }

    /// Begins the next window where this one has ended. Once: until it is told of a later window,
    /// the end of this one counts no more, wherever a clock that was set back puts it.
    fn roll(&mut self, now: Time) {
        if !self.over && now >= self.ends {
            self.over = true;
            self.spent = NanoUsd::ZERO;
        }
    }

    fn change(&mut self, allowance: Allowance) {
        self.limit = allowance.limit;
        if allowance.window < self.window {
            // A clock was set back. The window that has begun goes on.
            return;
        }
        if allowance.window == self.window {
            self.ends = allowance.ends;
            if !self.over {
                self.spent = self.spent.max(allowance.spent);
            }
            return;
        }
        let counted = if self.over { self.spent } else { NanoUsd::ZERO };
        *self = Self {
            held: self.held,
            spent: counted.max(allowance.spent),
            ..Self::new(allowance)
        };
    }

    fn fits(&self, cost: NanoUsd) -> Result<(), Rejection> {
        if self.spent >= self.limit || self.spent + cost > self.limit {
            return Err(Rejection::InsufficientQuota);
        }
        if self.spent + self.held + cost > self.limit {
            return Err(Rejection::BudgetInFlight);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Micros;

    const TENANT: TenantId = TenantId::new(0);
    const KEY: KeyId = KeyId::new(0);

    fn at(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    fn usd(nano: u64) -> NanoUsd {
        NanoUsd::new(nano)
    }

    /// A window of 100 seconds, by its number.
    fn allowance(payer: Payer, limit: u64, window: u64, spent: u64) -> Allowance {
        Allowance {
            payer,
            limit: usd(limit),
            window,
            ends: at((window + 1) * 100),
            spent: usd(spent),
        }
    }

    fn purses(allowances: &[Allowance]) -> Purses {
        let mut purses = Purses::default();
        purses.change(tariff(allowances), Time::START);
        purses
    }

    fn tariff(allowances: &[Allowance]) -> Tariff {
        Tariff {
            prices: Vec::new(),
            allowances: allowances.to_vec(),
        }
    }

    fn spent(purses: &Purses) -> u64 {
        purses.standing(Payer::Tenant(TENANT)).unwrap().0.get()
    }

    #[test]
    fn what_is_spent_and_what_only_is_held_are_refused_apart() {
        let mut purses = purses(&[allowance(Payer::Tenant(TENANT), 100, 0, 0)]);
        let first = purses.reserve(TENANT, None, usd(60), at(0)).unwrap();
        let refused = purses.reserve(TENANT, None, usd(60), at(0));
        assert_eq!(refused, Err(Rejection::BudgetInFlight));
        purses.settle((TENANT, None), first, usd(50), at(1));
        let refused = purses.reserve(TENANT, None, usd(60), at(1));
        assert_eq!(refused, Err(Rejection::InsufficientQuota));
        assert!(purses.reserve(TENANT, None, usd(50), at(1)).is_ok());
    }

    #[test]
    fn an_exhausted_budget_lets_in_nothing_that_is_free_either() {
        let mut purses = purses(&[allowance(Payer::Tenant(TENANT), 100, 0, 100)]);
        let refused = purses.reserve(TENANT, None, NanoUsd::ZERO, at(0));
        assert_eq!(refused, Err(Rejection::InsufficientQuota));
    }

    #[test]
    fn a_refusal_by_the_key_holds_nothing_of_the_tenant() {
        let key = allowance(Payer::Key(KEY), 10, 0, 0);
        let mut purses = purses(&[allowance(Payer::Tenant(TENANT), 100, 0, 0), key]);
        assert!(purses.reserve(TENANT, Some(KEY), usd(11), at(0)).is_err());
        let standing = purses.standing(Payer::Tenant(TENANT));
        assert_eq!(standing, Some((NanoUsd::ZERO, NanoUsd::ZERO)));
        assert!(purses.reserve(TENANT, None, usd(11), at(0)).is_ok());
    }

    #[test]
    fn a_window_ends_at_its_microsecond_and_once_though_the_clock_is_set_back() {
        let mut purses = purses(&[allowance(Payer::Tenant(TENANT), 100, 0, 100)]);
        let before = Time::from_micros(at(100).as_micros() - 1);
        assert!(purses.reserve(TENANT, None, usd(1), before).is_err());
        let hold = purses.reserve(TENANT, None, usd(70), at(100)).unwrap();
        purses.settle((TENANT, None), hold, usd(70), at(110));
        // The same window, said to end later: nothing is given back a second time.
        let mut again = allowance(Payer::Tenant(TENANT), 100, 0, 100);
        again.ends = at(150);
        purses.change(tariff(&[again]), at(120));
        assert!(purses.reserve(TENANT, None, usd(40), at(151)).is_err());
        assert_eq!(spent(&purses), 70);
        // Then the one that has begun, and after it a step back to the one before.
        purses.change(
            tariff(&[allowance(Payer::Tenant(TENANT), 100, 1, 20)]),
            at(160),
        );
        assert_eq!(spent(&purses), 70);
        purses.change(
            tariff(&[allowance(Payer::Tenant(TENANT), 100, 0, 100)]),
            at(170),
        );
        assert_eq!(spent(&purses), 70);
    }

    #[test]
    fn the_ledger_wins_where_it_says_more_and_not_where_it_lags() {
        let mut purses = purses(&[allowance(Payer::Tenant(TENANT), 100, 0, 30)]);
        purses.change(
            tariff(&[allowance(Payer::Tenant(TENANT), 100, 0, 10)]),
            at(1),
        );
        assert_eq!(spent(&purses), 30);
        purses.change(
            tariff(&[allowance(Payer::Tenant(TENANT), 100, 0, 90)]),
            at(2),
        );
        assert_eq!(spent(&purses), 90);
    }

    proptest! {
        /// However requests are let in and end, what is spent and held never passes the limit while
        /// nothing costs more than was expected, and when all is over nothing is held.
        #[test]
        fn a_budget_is_never_passed_and_holds_return(
            steps in prop::collection::vec((1_u64..40, 0_u64..=100, any::<bool>()), 1..200),
        ) {
            let mut purses = purses(&[
                allowance(Payer::Tenant(TENANT), 100, 0, 0),
                allowance(Payer::Key(KEY), 60, 0, 0),
            ]);
            let mut open = Vec::new();
            let mut real = 0;
            for (cost, percent, ends) in steps {
                if ends && let Some((hold, cost)) = open.pop() {
                    let actual = cost * percent / 100;
                    real += actual;
                    purses.settle((TENANT, Some(KEY)), hold, usd(actual), at(1));
                } else if let Ok(hold) = purses.reserve(TENANT, Some(KEY), usd(cost), at(1)) {
                    open.push((hold, cost));
                }
                let (spent, held) = purses.standing(Payer::Key(KEY)).unwrap();
                prop_assert!(spent + held <= usd(60));
            }
            for (hold, _) in open {
                purses.settle((TENANT, Some(KEY)), hold, NanoUsd::ZERO, at(1));
            }
            for payer in [Payer::Tenant(TENANT), Payer::Key(KEY)] {
                prop_assert_eq!(purses.standing(payer), Some((usd(real), NanoUsd::ZERO)));
            }
        }
    }
}
