//! The object of the fairness theorem (Sheng et al., OSDI 2024): how far the service of two tenants
//! drifts apart while both of them wait.

use std::collections::BTreeMap;

use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::Served;
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Weights;

use crate::setup::Setup;

/// Service is compared over weight; in these units, no division by a weight up to 16 is rounded.
const SCALE: i128 = 720_720;

#[derive(Debug)]
pub(super) struct Gap {
    weights: Vec<i128>,
    classes: Vec<Class>,
    served: Vec<i128>,
    costs: Weights,
    /// The least and the most of the difference of each pair since both began to wait.
    open: BTreeMap<(usize, usize), (i128, i128)>,
    /// Twice the bound's unit, scaled.
    bound: i128,
    is_over: bool,
}

impl Gap {
    /// Only the least counter keeps to the bound; the other policies have none, or another.
    pub(super) fn of(setup: &Setup) -> Option<Self> {
        match setup.fairness {
            Policy::Vtc => {}
            Policy::Fifo | Policy::Drr { .. } => return None,
        }
        let costs = Weights::default();
        let callers = &setup.callers;
        let batch = setup.kv().slots().get() * costs.output;
        let longest = setup.model.context.get() * costs.input;
        Some(Self {
            weights: callers
                .iter()
                .map(|caller| i128::from(caller.tenant.weight.get()))
                .collect(),
            classes: callers.iter().map(|caller| caller.tenant.class).collect(),
            served: vec![0; callers.len()],
            costs,
            open: BTreeMap::new(),
            bound: 2 * SCALE * i128::from(batch.max(longest)),
            is_over: false,
        })
    }

    pub(super) fn served(&mut self, tenant: usize, served: &Served) {
        let service = |tokens: Tokens, cost: u64| i128::from(tokens.weighted(cost).get());
        self.served[tenant] += service(served.prompt, self.costs.input);
        self.served[tenant] += service(served.output, self.costs.output);
    }

    /// Looks at every pair of one class that waits; says so, once, when one is too far apart.
    pub(super) fn observe(&mut self, waiting: &[u32]) -> Option<String> {
        for f in 0..waiting.len() {
            for g in f + 1..waiting.len() {
                if waiting[f] == 0 || waiting[g] == 0 || self.classes[f] != self.classes[g] {
                    self.open.remove(&(f, g));
                    continue;
                }
                let attained = |n: usize| SCALE * self.served[n] / self.weights[n];
                let apart = attained(f) - attained(g);
                let (least, most) = self.open.entry((f, g)).or_insert((apart, apart));
                (*least, *most) = ((*least).min(apart), (*most).max(apart));
                let gap = *most - *least;
                if gap > self.bound && !self.is_over {
                    self.is_over = true;
                    let (gap, bound) = (gap / SCALE, self.bound / SCALE);
                    return Some(format!(
                        "tenants {f} and {g} are {gap} apart; at most {bound}"
                    ));
                }
            }
        }
        None
    }
}
