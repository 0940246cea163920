//! What a run is made of: who calls, for how much, what answers, and what goes wrong.

use std::collections::BTreeMap;

use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{self, ReplicaConfig};
use tollgate_policy::ids::ModelId;
use tollgate_policy::slo::Terms;
use tollgate_policy::tenant::{Class, Tenant, TenantTable};
use tollgate_policy::units::{KvBlocks, Micros, Time, Tokens};
use tollgate_policy::usage::Weights;

use crate::client::Manners;
use crate::fault::Fault;
use crate::machine::MachineConfig;
use crate::workload::Workload;

/// The one model of a simulation.
pub const MODEL: ModelId = ModelId::new(0);

/// One run, but for the gateway that is to be tried in it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Of everything that is drawn.
    pub seed: u64,
    /// When requests come; its n-th tenant is the n-th of `callers`.
    pub workload: Workload,
    /// The tenants; the n-th is `TenantId` n.
    pub callers: Vec<Caller>,
    /// The replicas; the n-th is `ReplicaId` n.
    pub fleet: Vec<ReplicaSetup>,
    /// The pool's bounds.
    pub model: gateway::Model,
    /// Who is next.
    pub fairness: Policy,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Requests sent before it are not scored.
    pub warmup: Time,
    /// How long what runs may take to finish once no more requests come.
    pub drain: Micros,
    /// How much of it is checked.
    pub checks: Checks,
    /// What answers must be like to count as good, whatever the gateway promises.
    pub score: Option<Terms>,
    /// When answers become longer, for good.
    pub longer: Option<Longer>,
}

/// A change of work: from some time on answers are longer, or shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longer {
    /// From when on.
    pub at: Time,
    /// Of a hundred of what they would have been; at least 1.
    pub percent: u64,
}

impl Longer {
    /// How long an answer comes to be.
    pub(crate) fn of(self, output: Tokens, now: Time) -> Tokens {
        if now < self.at {
            return output;
        }
        Tokens::new((output.get().saturating_mul(self.percent) / 100).max(1))
    }
}

/// How much of a run the oracles look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Everything, after every fact.
    #[default]
    All,
    /// What each request and each token comes to; not what may be compared between all tenants and
    /// all replicas, whose cost grows with both.
    PerRequest,
}

/// One tenant.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What it may have.
    pub tenant: Tenant,
    /// How its clients behave.
    pub manners: Manners,
    /// What its prompts begin with one after the other, in place of what the workload draws.
    pub texts: Option<Texts>,
    /// Whether its requests say how long their answers may be.
    pub says: Says,
}

/// What a request says of the length of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Says {
    /// Nothing.
    #[default]
    Nothing,
    /// The length that it comes to.
    Truth,
    /// This many tokens at most.
    AtMost(Tokens),
}

impl Says {
    /// What a request says whose answer comes to be `output` long.
    pub(crate) const fn of(self, output: Tokens) -> Option<Tokens> {
        match self {
            Self::Nothing => None,
            Self::Truth => Some(output),
            Self::AtMost(most) => Some(most),
        }
    }
}

/// Texts that a tenant's prompts begin with, each the next one: the n-th request has the n-th.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// Two tenants that name the same family have the same texts.
    pub family: String,
    /// Length of each; a shorter prompt is the first part of it.
    pub tokens: Tokens,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetup {
    /// The engine.
    pub machine: MachineConfig,
    /// The one class it takes, where it does not take all.
    pub only: Option<Class>,
    /// How often it says what it holds; at every step where it is zero.
    pub report_every: Micros,
    /// How long it takes to start again.
    pub starts_in: Micros,
    /// Who else sends it requests, past the gateway.
    pub others: Option<Others>,
}

/// Requests that a replica gets from somebody else, at even distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// From one to the next.
    pub every: Micros,
    /// Length of their prompts.
    pub prompt: Tokens,
    /// Length of their answers.
    pub output: Tokens,
}

impl Setup {
    /// The gateway's configuration for it.
    pub fn config(&self) -> gateway::Config {
        let tenants = self.callers.iter().map(|caller| caller.tenant.clone());
        let template = Tenant {
            name: String::new(),
            class: Class::BestEffort,
            weight: std::num::NonZeroU32::MIN,
            models: tollgate_policy::tenant::Allowed::All,
            limits: tollgate_policy::tenant::Limits::default(),
            by_model: Default::default(),
            floor: 0,
        };
        let replica = |setup: &ReplicaSetup| ReplicaConfig {
            model: MODEL,
            only: setup.only,
        };
        gateway::Config {
            tenants: TenantTable::new(tenants.collect(), template),
            models: vec![self.model.clone()],
            replicas: self.fleet.iter().map(replica).collect(),
            fairness: self.fairness,
            weights: Weights::default(),
            seed: self.seed,
        }
    }

    /// KV blocks of the whole fleet.
    pub fn kv(&self) -> KvBlocks {
        let each = self.fleet.iter().map(|one| one.machine.capacity().kv);
        each.fold(KvBlocks::ZERO, |sum, one| sum + one)
    }

    /// Names of the tenants, by number.
    pub fn names(&self) -> Vec<String> {
        let names = self.callers.iter().map(|caller| caller.tenant.name.clone());
        names.collect()
    }

    /// How many tenants there are of each class, for a report.
    pub fn classes(&self) -> BTreeMap<Class, usize> {
        let mut counts = BTreeMap::new();
        for caller in &self.callers {
            *counts.entry(caller.tenant.class).or_default() += 1;
        }
        counts
    }
}
