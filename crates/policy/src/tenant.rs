//! Who pays, and what they may have: immutable values, made by parsing a configuration.
//!
//! A tenant's levels (what is left in its buckets, how much it has in flight) are not here: they
//! belong to the gateway and outlive a change of these values.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::bucket::Rate;
use crate::ids::{ModelId, TenantId, position};
use crate::units::{KvByteMicros, Micros, Tokens};

/// Which promise a tenant bought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Has capacity set aside.
    Reserved,
    /// The ordinary promise.
    #[default]
    Standard,
    /// Takes what is left.
    BestEffort,
}

impl Class {
    /// All classes, the strongest promise first.
    pub const ALL: [Self; 3] = [Self::Reserved, Self::Standard, Self::BestEffort];

    /// Where the class stands in [`Class::ALL`].
    pub(crate) const fn place(self) -> usize {
        match self {
            Self::Reserved => 0,
            Self::Standard => 1,
            Self::BestEffort => 2,
        }
    }

    /// The class as configuration, metrics and logs spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Standard => "standard",
            Self::BestEffort => "best_effort",
        }
    }

    /// How long a request of this class waits in the queue where its model's configuration names no
    /// time.
    pub const fn max_wait(self) -> Micros {
        match self {
            Self::Reserved | Self::Standard => Micros::from_secs(30),
            Self::BestEffort => Micros::from_secs(10),
        }
    }
}

/// What a tenant may use; `None` is no limit of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests per minute.
    pub requests: Option<Rate>,
    /// Tokens per minute, prompt and output.
    pub tokens: Option<Rate>,
    /// KV over time that what is in flight may be expected to occupy.
    pub kv: Option<KvByteMicros>,
    /// Requests queued or running at once.
    pub concurrency: Option<NonZeroU32>,
    /// Prompt and output tokens of one request together.
    pub max_context: Option<Tokens>,
    /// Output tokens of one request.
    pub max_output: Option<Tokens>,
}

/// Which models a tenant may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Every model there is.
    #[default]
    All,
    /// These, in ascending order.
    Only(Vec<ModelId>),
}

impl Allowed {
    /// Whether `model` is among them.
    pub fn permits(&self, model: ModelId) -> bool {
        match self {
            Self::All => true,
            Self::Only(models) => models.contains(&model),
        }
    }
}

/// One who pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name, unique.
    pub name: String,
    /// Its promise.
    pub class: Class,
    /// Its share against others; twice the weight, twice the service.
    pub weight: NonZeroU32,
    /// The models it may name.
    pub models: Allowed,
    /// What it may use.
    pub limits: Limits,
    /// What it may use of single models, beside that.
    pub by_model: BTreeMap<ModelId, Limits>,
    /// Per cent of a pool's KV that is set aside for it; for [`Class::Reserved`] alone.
    pub floor: u8,
}

impl Tenant {
    /// What bounds one request for `model`: the tenant's own limits, with the shorter of two bounds
    /// on its length.
    pub fn limits_for(&self, model: ModelId) -> Limits {
        let mut limits = self.limits.clone();
        if let Some(own) = self.by_model.get(&model) {
            limits.max_context = shorter(limits.max_context, own.max_context);
            limits.max_output = shorter(limits.max_output, own.max_output);
        }
        limits
    }
}

fn shorter(one: Option<Tokens>, other: Option<Tokens>) -> Option<Tokens> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (bound, None) | (None, bound) => bound,
    }
}

/// The tenants by number: those of the configuration first, then those that a trusted header has
/// named.
///
/// A name that is new costs an entry for the life of the process, so only `unnamed_max` of them get
/// one; all later ones share a single tenant, [`TenantTable::OVERFLOW`]. Otherwise whoever invents
/// a name is given a fresh budget.
#[derive(Clone, Debug)]
pub struct TenantTable {
    tenants: Vec<Tenant>,
    by_name: BTreeMap<String, TenantId>,
    template: Tenant,
    header_named: usize,
}

impl TenantTable {
    /// The name shared by the tenants past the bound.
    pub const OVERFLOW: &'static str = "other";

    /// The most tenants that a trusted header may name into being: some tens of MB of levels at
    /// worst.
    pub const HEADER_NAMED_MAX: usize = 10_000;

    /// The tenants of a configuration; `template` is what a tenant named by a trusted header gets,
    /// under its name.
    pub fn new(tenants: Vec<Tenant>, template: Tenant) -> Self {
        let mut table = Self {
            tenants: Vec::with_capacity(tenants.len() + 1),
            by_name: BTreeMap::new(),
            template,
            header_named: 0,
        };
        for tenant in tenants {
            table.add(tenant);
        }
        table
    }

    /// The tenant of this name, if the configuration or an earlier request named it.
    pub fn find(&self, name: &str) -> Option<TenantId> {
        self.by_name.get(name).copied()
    }

    /// The tenant that a trusted header names, made from the template if it is new.
    pub fn named_by_header(&mut self, name: &str) -> TenantId {
        if let Some(id) = self.find(name) {
            return id;
        }
        if self.header_named < Self::HEADER_NAMED_MAX {
            self.header_named += 1;
            return self.add(Tenant {
                name: name.to_owned(),
                ..self.template.clone()
            });
        }
        match self.find(Self::OVERFLOW) {
            Some(id) => id,
            None => {
                let name = Self::OVERFLOW.to_owned();
                self.add(Tenant {
                    name,
                    ..self.template.clone()
                })
            }
        }
    }

    /// The tenant that this table issued `id` for.
    pub fn tenant(&self, id: TenantId) -> &Tenant {
        &self.tenants[position(id.get())]
    }

    /// How many tenants there are.
    pub fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Takes on another configuration's tenants. Who was there keeps the number; who is gone keeps
    /// it too, with nothing but the template's rights, since requests of theirs may still run.
    pub fn replace(&mut self, tenants: Vec<Tenant>, template: Tenant) {
        for tenant in &mut self.tenants {
            *tenant = Tenant {
                name: std::mem::take(&mut tenant.name),
                ..template.clone()
            };
        }
        self.template = template;
        for tenant in tenants {
            match self.find(&tenant.name) {
                Some(id) => self.tenants[position(id.get())] = tenant,
                None => {
                    self.add(tenant);
                }
            }
        }
    }

    fn add(&mut self, tenant: Tenant) -> TenantId {
        let id = TenantId::new(u32::try_from(self.tenants.len()).unwrap_or(u32::MAX));
        self.by_name.insert(tenant.name.clone(), id);
        self.tenants.push(tenant);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Tenant {
        Tenant {
            name: String::new(),
            class: Class::BestEffort,
            weight: NonZeroU32::MIN,
            models: Allowed::All,
            limits: Limits::default(),
            by_model: BTreeMap::new(),
            floor: 0,
        }
    }

    #[test]
    fn a_header_names_the_same_tenant_each_time() {
        let mut table = TenantTable::new(vec![], template());
        let a = table.named_by_header("a");
        let b = table.named_by_header("b");
        assert_ne!(a, b);
        assert_eq!(table.named_by_header("a"), a);
        assert_eq!(table.tenant(b).name, "b");
    }

    #[test]
    fn names_past_the_bound_share_one_tenant() {
        let mut table = TenantTable::new(vec![], template());
        for n in 0..TenantTable::HEADER_NAMED_MAX {
            table.named_by_header(&format!("t{n}"));
        }
        let over = table.named_by_header("one too many");
        assert_eq!(table.named_by_header("two too many"), over);
        assert_eq!(table.tenant(over).name, TenantTable::OVERFLOW);
        assert_eq!(table.len(), TenantTable::HEADER_NAMED_MAX + 1);
    }
}
