//! A tenant's levels over all that it uses, and over single models: a request is within both, or
//! takes nothing of either.
//!
//! Which limits hold is the tenant's to say; what is left of them outlives a change of them, and
//! levels of a model stay for as long as a request in flight holds some of them.

use std::collections::BTreeMap;

use crate::bucket::Level;
use crate::ids::ModelId;
use crate::quota::{Cost, Levels, Past, Refused, Reservation};
use crate::tenant::{Limits, Tenant};
use crate::units::{KvByteMicros, Time, Tokens};

/// One tenant's levels.
#[derive(Clone, Debug, Default)]
pub struct Contract {
    all: Levels,
    /// For the models that the tenant has limits of, and those that are held something of.
    by_model: BTreeMap<ModelId, Levels>,
}

/// What a request holds of a contract until it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    all: Reservation,
    /// Of its model's levels, where there were some when it came.
    of_model: Option<Reservation>,
}

impl Contract {
    /// Full levels.
    pub fn new(tenant: &Tenant, now: Time) -> Self {
        let mut contract = Self::default();
        contract.change(tenant, now);
        contract
    }

    /// Takes on new limits. What was used stays used.
    pub fn change(&mut self, tenant: &Tenant, now: Time) {
        self.all.change(&tenant.limits, now);
        let none = Limits::default();
        for (model, levels) in &mut self.by_model {
            levels.change(tenant.by_model.get(model).unwrap_or(&none), now);
        }
        let by_model = &tenant.by_model;
        self.by_model
            .retain(|model, levels| by_model.contains_key(model) || levels.in_flight() > 0);
        for (model, limits) in by_model {
            let fresh = || Levels::new(limits, now);
            self.by_model.entry(*model).or_insert_with(fresh);
        }
    }

    /// Levels from which this was taken, of one model or in all, before there was anybody to count.
    pub fn remember(&mut self, tenant: &Tenant, model: Option<ModelId>, past: &Past, now: Time) {
        let Some(model) = model else {
            return self.all.remember(&tenant.limits, past, now);
        };
        let limits = tenant.by_model.get(&model);
        if let (Some(levels), Some(limits)) = (self.by_model.get_mut(&model), limits) {
            levels.remember(limits, past, now);
        }
    }

    /// Reserves all that one request takes, or nothing.
    ///
    /// # Errors
    /// The first layer that has not enough: those over all models first.
    pub fn reserve(
        &mut self,
        tenant: &Tenant,
        model: ModelId,
        cost: Cost,
        now: Time,
    ) -> Result<Held, Refused> {
        let all = self.all.reserve(&tenant.limits, cost, now)?;
        let of_model = self.by_model.get_mut(&model).map(|levels| {
            let none = Limits::default();
            levels.reserve(tenant.by_model.get(&model).unwrap_or(&none), cost, now)
        });
        match of_model.transpose() {
            Ok(of_model) => Ok(Held { all, of_model }),
            Err(refused) => {
                self.all.cancel(all);
                Err(refused)
            }
        }
    }

    /// Replaces what was held by what came of it: `tokens` as they count against the rates.
    pub fn settle(&mut self, model: ModelId, held: Held, tokens: Tokens) {
        self.all.settle(held.all, tokens);
        self.of_model(model, held, |levels, held| levels.settle(held, tokens));
    }

    /// Undoes what was held for a request that capacity refused: nothing of the contract is spent.
    pub fn cancel(&mut self, model: ModelId, held: Held) {
        self.all.cancel(held.all);
        self.of_model(model, held, Levels::cancel);
    }

    /// Learns how long an answer was.
    pub fn learn(&mut self, output: Tokens) {
        self.all.learn(output);
    }

    /// The output to expect of a request that does not say, once there were others.
    pub const fn usual_output(&self) -> Option<Tokens> {
        self.all.usual_output()
    }

    /// Queued and running.
    pub const fn in_flight(&self) -> u32 {
        self.all.in_flight()
    }

    /// KV reserved by what is in flight.
    pub const fn kv(&self) -> KvByteMicros {
        self.all.kv()
    }

    /// What is left of the requests per minute: of all, or of a model's where that is less.
    pub fn requests(&mut self, model: Option<ModelId>, now: Time) -> Option<Level> {
        let of_model = self.levels_of(model).and_then(|one| one.requests(now));
        scarcer(self.all.requests(now), of_model)
    }

    /// The same of the tokens per minute.
    pub fn tokens(&mut self, model: Option<ModelId>, now: Time) -> Option<Level> {
        let of_model = self.levels_of(model).and_then(|one| one.tokens(now));
        scarcer(self.all.tokens(now), of_model)
    }

    /// Requests that hold something of a model's own levels, summed over models.
    #[cfg(test)]
    pub(crate) fn held_of_models(&self) -> u32 {
        self.by_model.values().map(Levels::in_flight).sum()
    }

    fn levels_of(&mut self, model: Option<ModelId>) -> Option<&mut Levels> {
        self.by_model.get_mut(&model?)
    }

    fn of_model(&mut self, model: ModelId, held: Held, end: impl FnOnce(&mut Levels, Reservation)) {
        if let (Some(levels), Some(held)) = (self.by_model.get_mut(&model), held.of_model) {
            end(levels, held);
        }
    }
}

/// The level with less left of it.
fn scarcer(all: Option<Level>, of_model: Option<Level>) -> Option<Level> {
    match (all, of_model) {
        (Some(all), Some(one)) if one.remaining < all.remaining => Some(one),
        (Some(level), _) | (None, Some(level)) => Some(level),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use proptest::prelude::*;

    use super::*;
    use crate::bucket::Rate;
    use crate::outcome::Rejection;
    use crate::tenant::{Allowed, Class};

    const A: ModelId = ModelId::new(0);
    const B: ModelId = ModelId::new(1);

    fn tokens(per_minute: u64) -> Limits {
        let n = NonZeroU64::new(per_minute).unwrap();
        Limits {
            tokens: Some(Rate {
                per_minute: n,
                burst: n,
            }),
            ..Limits::default()
        }
    }

    fn tenant(limits: Limits, of_a: Limits) -> Tenant {
        Tenant {
            name: "t".to_owned(),
            class: Class::Standard,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits,
            by_model: BTreeMap::from([(A, of_a)]),
            floor: 0,
        }
    }

    fn cost(tokens: u64) -> Cost {
        Cost {
            prompt: Tokens::new(tokens),
            output: Tokens::ZERO,
            kv: KvByteMicros::new(u128::from(tokens)),
        }
    }

    fn left(contract: &mut Contract, model: Option<ModelId>) -> u64 {
        contract.tokens(model, Time::START).unwrap().remaining
    }

    #[test]
    fn a_models_limit_holds_for_that_model_alone() {
        let tenant = tenant(tokens(1_000), tokens(100));
        let mut contract = Contract::new(&tenant, Time::START);
        contract.reserve(&tenant, A, cost(80), Time::START).unwrap();
        let refused = contract.reserve(&tenant, A, cost(80), Time::START);
        assert_eq!(refused.unwrap_err().rejection, Rejection::TokenRate);
        contract.reserve(&tenant, B, cost(80), Time::START).unwrap();
        assert_eq!(left(&mut contract, Some(A)), 20);
        assert_eq!(left(&mut contract, Some(B)), 840);
        assert_eq!(left(&mut contract, None), 840);
    }

    #[test]
    fn a_refusal_by_a_models_limit_spends_nothing_of_the_tenants() {
        let limits = Limits {
            requests: tokens(10).tokens,
            ..tokens(1_000)
        };
        let tenant = tenant(limits, tokens(100));
        let mut contract = Contract::new(&tenant, Time::START);
        contract.reserve(&tenant, A, cost(90), Time::START).unwrap();
        for _ in 0..50 {
            assert!(contract.reserve(&tenant, A, cost(90), Time::START).is_err());
        }
        assert_eq!(left(&mut contract, None), 910);
        let requests = contract.requests(Some(A), Time::START).unwrap();
        assert_eq!((requests.remaining, contract.in_flight()), (9, 1));
    }

    #[test]
    fn what_was_used_settles_at_both_and_what_is_cancelled_at_neither() {
        let tenant = tenant(tokens(1_000), tokens(100));
        let mut contract = Contract::new(&tenant, Time::START);
        let held = contract.reserve(&tenant, A, cost(50), Time::START).unwrap();
        contract.settle(A, held, Tokens::new(300));
        assert_eq!(left(&mut contract, Some(B)), 700);
        assert_eq!(left(&mut contract, Some(A)), 0, "a debt");
        let refused = contract.reserve(&tenant, A, cost(1), Time::START);
        let wait = refused.unwrap_err().wait.unwrap();
        assert_eq!(wait, crate::units::Micros::new(120_600_000));
        let held = contract.reserve(&tenant, B, cost(50), Time::START).unwrap();
        contract.cancel(B, held);
        assert_eq!(left(&mut contract, None), 700);
    }

    #[test]
    fn limits_of_a_model_come_and_go_while_requests_run() {
        let with = tenant(tokens(1_000), tokens(100));
        let without = Tenant {
            by_model: BTreeMap::new(),
            ..with.clone()
        };
        let mut contract = Contract::new(&without, Time::START);
        let before = contract
            .reserve(&without, A, cost(10), Time::START)
            .unwrap();
        contract.change(&with, Time::START);
        let during = contract.reserve(&with, A, cost(60), Time::START).unwrap();
        contract.change(&without, Time::START);
        let after = contract
            .reserve(&without, A, cost(500), Time::START)
            .unwrap();
        contract.settle(A, before, Tokens::new(10));
        contract.settle(A, during, Tokens::new(60));
        contract.settle(A, after, Tokens::new(500));
        assert_eq!((contract.in_flight(), contract.held_of_models()), (0, 0));
        contract.change(&with, Time::START);
        assert_eq!(left(&mut contract, Some(A)), 100, "nothing of it was held");
    }

    #[test]
    fn a_debt_to_one_model_is_remembered_as_one() {
        let tenant = tenant(tokens(1_000), tokens(100));
        let mut contract = Contract::new(&tenant, Time::START);
        let past = Past {
            tokens: vec![(crate::units::Micros::from_secs(6), 150)],
            ..Past::default()
        };
        contract.remember(&tenant, Some(A), &past, Time::START);
        contract.remember(&tenant, Some(B), &past, Time::START);
        assert!(contract.reserve(&tenant, A, cost(1), Time::START).is_err());
        assert!(contract.reserve(&tenant, B, cost(1), Time::START).is_ok());
    }

    proptest! {
        /// Whatever is reserved, settled, cancelled and reconfigured, in any order: all returns to
        /// zero, at the tenant's levels and at each model's.
        #[test]
        fn a_contract_returns_to_zero(
            steps in prop::collection::vec((0_u8..2, 1_u64..200, 0_u64..400, 0_u8..5), 1..100),
        ) {
            let tenants = [
                tenant(tokens(1_000), tokens(100)),
                tenant(tokens(2_000), Limits::default()),
                Tenant { by_model: BTreeMap::new(), ..tenant(tokens(1_000), tokens(1)) },
            ];
            let mut at = 0;
            let mut contract = Contract::new(&tenants[at], Time::START);
            let mut held = Vec::new();
            for (model, prompt, actual, what) in steps {
                let model = ModelId::new(u32::from(model));
                match (what, held.pop()) {
                    (0, Some((of, one))) => contract.settle(of, one, Tokens::new(actual)),
                    (1, Some((of, one))) => contract.cancel(of, one),
                    (2, popped) => {
                        held.extend(popped);
                        at = (at + 1) % tenants.len();
                        contract.change(&tenants[at], Time::START);
                    }
                    (_, popped) => {
                        held.extend(popped);
                        let got = contract.reserve(&tenants[at], model, cost(prompt), Time::START);
                        held.extend(got.ok().map(|one| (model, one)));
                    }
                }
                prop_assert_eq!(Ok(held.len()), usize::try_from(contract.in_flight()));
            }
            for (of, one) in held {
                contract.settle(of, one, Tokens::ZERO);
            }
            prop_assert_eq!((contract.in_flight(), contract.kv()), (0, KvByteMicros::ZERO));
            prop_assert_eq!(contract.held_of_models(), 0);
        }
    }
}
