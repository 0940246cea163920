//! Who may call: the tenants of the configuration and those of the store, as one list.
//!
//! Either changes while the server runs, and with each change the whole list is made anew. A tenant
//! of the store that the configuration has too does not count: which of two promises holds must
//! never depend on who was last to write.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tollgate_policy::budget::Payer;
use tollgate_policy::gateway::{Event, Tenancy};
use tollgate_policy::ids::{KeyId, ModelId, TenantId};
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant};
use tollgate_policy::units::Micros;
use tollgate_policy::usage::Weights;

use crate::app::{App, Callers};
use crate::config::Config;
use crate::members::budget::Budget;
use crate::members::identity::{Caller, Identity, KeyRing, Keys, NamedKey};
use crate::server::plans::weights;
use crate::store::{Directory, KeyRow, PriceRow, TenantRow};
use tollgate_wire::RelayKind;

/// The list.
#[derive(Debug)]
pub(crate) struct Membership(Mutex<Sources>);

/// What the list is made of.
#[derive(Debug)]
struct Sources {
    config: Arc<Config>,
    /// What the store said last, once it has said anything.
    directory: Option<Arc<Directory>>,
}

/// A budget, and of whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budgeted {
    pub(crate) payer: Payer,
    /// The tenant's name, or the key's id.
    pub(crate) name: String,
    pub(crate) budget: Budget,
}

/// Names of keys by their numbers in the policy, for what is written down.
#[derive(Debug, Default)]
pub(crate) struct KeyNames(RwLock<Vec<Arc<str>>>);

impl KeyNames {
    /// The number of the key with this id: always the same.
    pub(crate) fn number(&self, id: &str) -> KeyId {
        let mut names = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let place = names
            .iter()
            .position(|name| **name == *id)
            .unwrap_or_else(|| {
                names.push(id.into());
                names.len() - 1
            });
        KeyId::new(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// The id of a key.
    pub(crate) fn name(&self, number: KeyId) -> Option<Arc<str>> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(usize::try_from(number.get()).ok()?).cloned()
    }
}

/// Tenants that both the configuration and the store have.
pub(crate) fn overlap<'d>(config: &Config, directory: &'d Directory) -> Vec<&'d str> {
    let configured: BTreeSet<_> = config
        .tenants
        .list
        .iter()
        .map(|tenant| &tenant.name)
        .collect();
    let stored = directory.tenants.iter().map(|tenant| &tenant.name);
    let both = stored.filter(|name| configured.contains(name));
    both.map(String::as_str).collect()
}

impl Membership {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        Self(Mutex::new(Sources {
            config,
            directory: None,
        }))
    }

    /// Takes on another configuration.
    pub(crate) fn configure(&self, app: &App, config: Config) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.config = Arc::new(config);
        sources.apply(app);
    }

    /// Takes on another state of the store; `None` while that is not known.
    pub(crate) fn enlist(&self, app: &App, directory: Option<Directory>) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.directory = directory.map(Arc::new);
        for name in sources.overlap() {
            tracing::error!(
                tenant = name,
                "is in the configuration and in the store; the one in the store and its keys do \
                 not count: rename it there, or remove it from one of them"
            );
        }
        sources.apply(app);
    }

    /// Whether the configuration has a tenant of this name.
    pub(crate) fn is_configured(&self, name: &str) -> bool {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tenants = sources.config.tenants.list.iter();
        tenants.any(|tenant| tenant.name == name)
    }

    /// Whether the store has ever said who may call.
    pub(crate) fn knows_the_store(&self) -> bool {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.directory.is_some()
    }

    /// How long single requests are kept.
    pub(crate) fn request_log(&self) -> Micros {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.config.store.request_log
    }

    /// What a token of service counts.
    pub(crate) fn weights(&self) -> Weights {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        weights(&sources.config.fairness)
    }

    /// Prices, and all budgets there are.
    pub(crate) fn money(&self, app: &App) -> (Vec<PriceRow>, Vec<Budgeted>) {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (sources.config.prices.clone(), sources.budgets(app))
    }
}

impl Sources {
    /// Tells the policy first: a key must not be known before its tenant is.
    fn apply(&self, app: &App) {
        let tenants = &self.config.tenants;
        let mut list = tenants.list.clone();
        list.extend(self.stored().map(|row| tenant(app, row)));
        let tenancy = Tenancy {
            tenants: list,
            template: tenants.template.clone(),
            weights: weights(&self.config.fairness),
        };
        app.desk.submit(Event::Reconfigured(Box::new(tenancy)));
        app.admit(Callers {
            identity: Identity::new(
                self.config.identity.clone(),
                self.keys(app),
                match &self.directory {
                    Some(_) => Keys::All,
                    None => Keys::Configured,
                },
            ),
            metrics_readers: self.config.metrics,
        });
    }

    fn overlap(&self) -> Vec<&str> {
        let directory = self.directory.as_deref();
        directory.map_or_else(Vec::new, |directory| overlap(&self.config, directory))
    }

    /// The tenants of the store that count.
    fn stored(&self) -> impl Iterator<Item = &TenantRow> {
        let overlap: BTreeSet<_> = self.overlap().into_iter().collect();
        let rows = self.directory.iter().flat_map(|all| &all.tenants);
        rows.filter(move |row| !overlap.contains(row.name.as_str()))
    }

    fn stored_keys(&self) -> impl Iterator<Item = &KeyRow> {
        self.directory.iter().flat_map(|all| &all.keys)
    }

    /// All keys, by the numbers that the policy has for their tenants.
    fn keys(&self, app: &App) -> KeyRing {
        let mut ring = KeyRing::default();
        let tenants = &self.config.tenants;
        let number = |name: &str| app.desk.tenant_named_by_header(name);
        let ids: Vec<_> = tenants
            .list
            .iter()
            .map(|tenant| number(&tenant.name))
            .collect();
        for (hash, place) in &tenants.keys {
            let place = usize::try_from(place.get()).unwrap_or(usize::MAX);
            if let Some(id) = ids.get(place) {
                ring.add(*hash, Caller::tenant(*id));
            }
        }
        let stored: BTreeMap<_, _> = self
            .stored()
            .map(|row| (row.name.as_str(), number(&row.name)))
            .collect();
        for row in self.stored_keys() {
            if let Some(tenant) = stored.get(row.tenant.as_str()) {
                ring.add(row.hash, caller(app, *tenant, row));
            }
        }
        ring
    }

    fn budgets(&self, app: &App) -> Vec<Budgeted> {
        let number = |name: &str| Payer::Tenant(app.desk.tenant_named_by_header(name));
        let tenants = &self.config.tenants;
        let mut budgets = Vec::new();
        for (place, budget) in &tenants.budgets {
            let place = usize::try_from(place.get()).unwrap_or(usize::MAX);
            if let Some(tenant) = tenants.list.get(place) {
                budgets.push(Budgeted {
                    payer: number(&tenant.name),
                    name: tenant.name.clone(),
                    budget: budget.clone(),
                });
            }
        }
        for row in self.stored() {
            if let Some(Ok(budget)) = row
                .budget
                .as_ref()
                .map(crate::members::budget::BudgetText::read)
            {
                budgets.push(Budgeted {
                    payer: number(&row.name),
                    name: row.name.clone(),
                    budget,
                });
            }
        }
        for row in self.stored_keys() {
            if let Some(Ok(budget)) = row
                .budget
                .as_ref()
                .map(crate::members::budget::BudgetText::read)
            {
                budgets.push(Budgeted {
                    payer: Payer::Key(app.desk.books().keys().number(&row.id)),
                    name: row.id.clone(),
                    budget,
                });
            }
        }
        budgets
    }
}

/// A tenant of the store as the policy has it. What the store took was checked; should it be wrong
/// all the same, the tenant gets less than it says, not more.
fn tenant(app: &App, row: &TenantRow) -> Tenant {
    let template = Tenant {
        name: row.name.clone(),
        class: Class::BestEffort,
        weight: NonZeroU32::new(row.weight).unwrap_or(NonZeroU32::MIN),
        models: allowed(app, row.models.as_deref()),
        limits: Limits::default(),
        by_model: BTreeMap::new(),
        floor: 0,
    };
    let limits = row.limits.read();
    let limits = limits.and_then(|limits| Ok((limits, by_model(app, row)?)));
    match (row.class(), limits) {
        (Ok(class), Ok((limits, by_model))) => Tenant {
            class,
            limits,
            by_model,
            ..template
        },
        (Err(why), _) | (_, Err(why)) => {
            tracing::error!(
                tenant = row.name,
                why,
                "a tenant of the store makes no sense"
            );
            Tenant {
                models: Allowed::Only(Vec::new()),
                ..template
            }
        }
    }
}

/// Limits of single models, but for those that this gateway does not serve. A model that is there
/// under two names is held to the first.
fn by_model(app: &App, row: &TenantRow) -> Result<BTreeMap<ModelId, Limits>, String> {
    let mut by_model = BTreeMap::new();
    for own in &row.model_limits {
        let limits = own.limits.read()?;
        if let Some(model) = app.by_name.get(&own.model) {
            by_model.entry(*model).or_insert(limits);
        }
    }
    Ok(by_model)
}

/// Names that this gateway does not serve are left out: another that shares the store may.
fn allowed(app: &App, models: Option<&[String]>) -> Allowed {
    let Some(models) = models else {
        return Allowed::All;
    };
    let ids: BTreeSet<_> = models
        .iter()
        .filter_map(|name| app.by_name.get(name))
        .collect();
    Allowed::Only(ids.into_iter().copied().collect())
}

fn caller(app: &App, tenant: TenantId, row: &KeyRow) -> Caller {
    let endpoint = |name: &String| match name.as_str() {
        "chat" => Some(RelayKind::Chat),
        "completions" => Some(RelayKind::Text),
        "embeddings" => Some(RelayKind::Embeddings),
        _ => None,
    };
    let endpoints = row.scopes.endpoints.as_ref();
    let key = NamedKey {
        id: app.desk.books().keys().number(&row.id),
        models: allowed(app, row.scopes.models.as_deref()),
        endpoints: endpoints.map(|names| names.iter().filter_map(endpoint).collect()),
        read_only: row.scopes.read_only,
        expires_us: row.expires_us,
    };
    Caller {
        tenant,
        key: Some(Arc::new(key)),
    }
}
