//! The `tenants` and `default_tenant` sections: who pays, by which keys, for which promise.
//!
//! The tenants themselves are the policy's type. A key is hashed here and then forgotten; no
//! message shows one.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use tollgate_policy::bucket::Rate;
use tollgate_policy::ids::{ModelId, TenantId};
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant, TenantTable};
use tollgate_policy::units::{KvByteMicros, Tokens};

use super::decode::{Cursor, Fields};
use super::expand::{Env, is_variable};
use super::fairness::Fairness;
use super::identity::{Anonymous, Identity};
use super::key::KeyHash;
use super::models::{self, Models};
use super::store;
use crate::members::budget::Budget;

/// The name of the tenant that callers without a key are.
pub const ANONYMOUS: &str = "anonymous";

const NAME_CHARS_MAX: usize = 64;
const NAME_SIGNS: &str = "._-";

/// Requests a minute and at once that can be written; more is no limit.
const REQUESTS_MAX: u32 = 1_000_000;

/// KV over time that can be written: a rack of memory for a day; more is no limit.
const KV_GIB_SECONDS_MAX: u64 = 1_000_000_000;

/// Per cent of a pool that one tenant's floor may be: up to where `reserved` is dispatched by
/// default.
const FLOOR_MAX: u8 = 92;

/// The tenants and how they are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenants {
    /// Each at the place that its [`TenantId`] says.
    pub list: Vec<Tenant>,
    /// Whose key it is.
    pub keys: BTreeMap<KeyHash, TenantId>,
    /// What each of them may spend, where there is a bound on it.
    pub budgets: BTreeMap<TenantId, Budget>,
    /// What a tenant named only by a trusted header gets; its name is empty.
    pub template: Tenant,
    /// Who callers without a key are; `None` refuses them.
    pub anonymous: Option<TenantId>,
}

impl Tenants {
    /// Nobody but the callers without a key and those a header names, with the ordinary promise and
    /// no limits: there is nobody to whom they would have to give way.
    pub(super) fn anonymous_only() -> Self {
        let template = Tenant {
            class: Class::Standard,
            ..template()
        };
        let mut tenants = Self {
            list: vec![],
            keys: BTreeMap::new(),
            budgets: BTreeMap::new(),
            template,
            anonymous: None,
        };
        tenants.let_in(Anonymous::Allow);
        tenants
    }

    pub(super) fn read(
        root: &mut Fields<'_, '_>,
        models: &Models,
        identity: &Identity,
        env: Env<'_>,
    ) -> Self {
        let default = root.optional("default_tenant", |value| read_template(&value));
        let mut reader = Reader::new(models, env);
        let list = root.optional("tenants", |value| {
            value.list(|tenant| tenant.mapping(|fields| reader.tenant(fields)).flatten())
        });
        let by_header = identity.trust_tenant_header;
        // Keys may be in the store, which somebody who speaks of it knows.
        let by_store = root.find("store").is_some();
        if identity.anonymous == Anonymous::Deny && !by_header && !reader.any_key && !by_store {
            root.report(
                "identity",
                "lets nobody in; give a tenant keys, or set anonymous: allow or \
                 trust_tenant_header: true",
            );
        }
        let mut tenants = Self {
            list: list.unwrap_or_default(),
            keys: reader.keys,
            budgets: reader.budgets,
            template: default.unwrap_or_else(template),
            anonymous: None,
        };
        tenants.let_in(identity.anonymous);
        tenants
    }

    /// Reports floors that promise more of a model's pool than `fairness` lets them.
    pub(super) fn check_floors(&self, root: &Fields<'_, '_>, models: &Models, fairness: &Fairness) {
        for (model, id) in models.list().iter().zip(0..) {
            let permitted = |tenant: &&Tenant| tenant.models.permits(ModelId::new(id));
            let floors = self.list.iter().filter(permitted);
            let sum: u64 = floors.map(|tenant| u64::from(tenant.floor)).sum();
            let most = fairness.floors_max;
            if sum > u64::from(most) {
                root.report(
                    "tenants",
                    format!(
                        "have floors that add up to {sum}% of {}, more than fairness.floors_max \
                         {most}%; lower some, or raise it",
                        model.name
                    ),
                );
            }
        }
    }

    /// Settles who callers without a key are: the tenant of that name, or one like the default
    /// tenant.
    fn let_in(&mut self, anonymous: Anonymous) {
        self.anonymous = match anonymous {
            Anonymous::Deny => None,
            Anonymous::Allow => {
                let place = self.list.iter().position(|tenant| tenant.name == ANONYMOUS);
                let place = place.unwrap_or_else(|| {
                    let name = ANONYMOUS.to_owned();
                    self.list.push(Tenant {
                        name,
                        ..self.template.clone()
                    });
                    self.list.len() - 1
                });
                Some(id_at(place))
            }
        };
    }
}

/// A tenant of which nothing was said.
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

/// The id of the tenant at `place` in the list.
fn id_at(place: usize) -> TenantId {
    // A configuration is bounded in bytes, so its tenants are far fewer.
    TenantId::new(u32::try_from(place).unwrap_or(u32::MAX))
}

fn read_template(section: &Cursor<'_>) -> Option<Tenant> {
    let default = template();
    section.mapping(|fields| Tenant {
        class: class(fields).unwrap_or(default.class),
        weight: weight(fields).unwrap_or(default.weight),
        limits: fields
            .optional("limits", |value| limits(&value))
            .unwrap_or_default(),
        ..default
    })
}

/// What tenants are checked against while they are read.
struct Reader<'r> {
    models: &'r Models,
    env: Env<'r>,
    /// Tenants begun so far.
    count: usize,
    /// Where each name was first given.
    names: BTreeMap<String, usize>,
    keys: BTreeMap<KeyHash, TenantId>,
    budgets: BTreeMap<TenantId, Budget>,
    /// Whether the file has a key at all, be it a good one or not.
    any_key: bool,
}

impl<'r> Reader<'r> {
    fn new(models: &'r Models, env: Env<'r>) -> Self {
        let (names, keys) = (BTreeMap::new(), BTreeMap::new());
        Self {
            models,
            env,
            count: 0,
            names,
            keys,
            budgets: BTreeMap::new(),
            any_key: false,
        }
    }

    fn tenant(&mut self, fields: &mut Fields<'_, '_>) -> Option<Tenant> {
        let place = self.count;
        self.count += 1;
        let name = fields.required("name", "give the tenant a name", |value| {
            self.claim(&value, place)
        });
        fields.optional("keys", |value| {
            value
                .secret()
                .list(|key| self.key(&key, name.as_deref(), id_at(place)))
        });
        let models = fields.optional("models", |value| self.allowed(&value));
        let by_model = fields.optional("model_limits", |value| self.by_model(&value));
        let class = class(fields).unwrap_or_default();
        let budget = fields.optional("budget", |value| store::budget(&value));
        self.budgets
            .extend(budget.map(|budget| (id_at(place), budget)));
        Some(Tenant {
            class,
            weight: weight(fields).unwrap_or(NonZeroU32::MIN),
            models: models.unwrap_or_default(),
            limits: fields
                .optional("limits", |value| limits(&value))
                .unwrap_or_default(),
            by_model: by_model.unwrap_or_default(),
            floor: floor(fields, class),
            name: name?,
        })
    }

    /// Reads a name and takes it for the tenant at `place`.
    fn claim(&mut self, value: &Cursor<'_>, place: usize) -> Option<String> {
        let name = value.name(NAME_SIGNS, NAME_CHARS_MAX)?;
        if name == TenantTable::OVERFLOW {
            value.report(format!(
                "is {name}, which tenants past a bound share; use another name"
            ));
            return None;
        }
        match self.names.get(name) {
            Some(first) => {
                value.report(format!(
                    "is {name}, as in tenants[{first}]; names are unique"
                ));
                None
            }
            None => {
                self.names.insert(name.to_owned(), place);
                Some(name.to_owned())
            }
        }
    }

    /// Reads a key of the tenant `id` and keeps its hash.
    fn key(&mut self, value: &Cursor<'_>, tenant: Option<&str>, id: TenantId) -> Option<()> {
        self.any_key = true;
        let hash = value.mapping(|fields| key_hash(fields, self.env))??;
        if tenant == Some(ANONYMOUS) {
            value.report("is a key for callers that have none; give this tenant no keys");
            return None;
        }
        match self.keys.insert(hash, id) {
            Some(first) if first == id => value.report("is the same key as one before"),
            Some(first) => value.report(format!(
                "is also a key of tenants[{first}]; a key belongs to one tenant"
            )),
            None => {}
        }
        Some(())
    }

    /// Reads limits of single models.
    fn by_model(&self, section: &Cursor<'_>) -> Option<BTreeMap<ModelId, Limits>> {
        let mut by_model = BTreeMap::new();
        section.list(|item| {
            item.mapping(|fields| {
                let model = fields.required("model", "name the model", |value| self.model(&value));
                let own =
                    fields.required("limits", "say what holds for it", |value| limits(&value));
                if by_model.insert(model?, own?).is_some() {
                    fields.report("model", "has its limits before; give each model once");
                }
                Some(())
            })
            .flatten()
        })?;
        Some(by_model)
    }

    fn model(&self, value: &Cursor<'_>) -> Option<ModelId> {
        let name = value.text("the name of a model")?;
        let found = self.models.find(name);
        if found.is_none() {
            value.report(format!("is {}, which names no model here", value.shown()));
        }
        found
    }

    fn allowed(&self, value: &Cursor<'_>) -> Option<Allowed> {
        if value.is_empty_list() {
            return value.refuse("a list of models, or leave it out to allow all");
        }
        let mut ids = value.list(|model| self.model(&model))?;
        ids.sort_unstable();
        ids.dedup();
        Some(Allowed::Only(ids))
    }
}

/// Reads the entries of one key: `env` or `sha256`.
pub(super) fn key_hash(fields: &mut Fields<'_, '_>, env: Env<'_>) -> Option<KeyHash> {
    let (variable, sha256) = (fields.find("env"), fields.find("sha256"));
    match (variable, sha256) {
        (Some(name), None) => hash_of_variable(&name, env),
        (None, Some(hex)) => {
            let want = "the key's SHA-256, 64 hexadecimal digits";
            KeyHash::from_hex(hex.text(want)?).or_else(|| hex.refuse(want))
        }
        (Some(_), Some(_)) => {
            fields.report("sha256", "stands beside env; use one of them");
            None
        }
        (None, None) => {
            fields.report("env", "is missing; use { env: NAME } or { sha256: … }");
            None
        }
    }
}

fn hash_of_variable(value: &Cursor<'_>, env: Env<'_>) -> Option<KeyHash> {
    let want = "the name of an environment variable, like QUIET_KEY";
    let name = value.text(want)?;
    if !is_variable(name) {
        return value.refuse(want);
    }
    let key = env(name).unwrap_or_default();
    if key.is_empty() {
        value.report(format!(
            "is {name}, which is not set or empty; set it to the key"
        ));
        return None;
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        value.report(format!(
            "is {name}, whose value no caller can send: it has spaces or is not ASCII"
        ));
        return None;
    }
    Some(KeyHash::of(key.as_bytes()))
}

fn class(fields: &mut Fields<'_, '_>) -> Option<Class> {
    let choices = Class::ALL.map(|class| (class.label(), class));
    fields.optional("class", |value| value.choice(&choices))
}

fn weight(fields: &mut Fields<'_, '_>) -> Option<NonZeroU32> {
    fields.optional("weight", |value| count(&value, 1000))
}

/// Reads what is set aside for a tenant, which only a reserved one has.
fn floor(fields: &mut Fields<'_, '_>, class: Class) -> u8 {
    let floor = fields
        .optional("floor", |value| value.percent(0..=FLOOR_MAX))
        .unwrap_or(0);
    if floor > 0 && class != Class::Reserved {
        let message = format!("is for class: reserved; this class is {}", class.label());
        fields.report("floor", message);
    }
    floor
}

fn limits(section: &Cursor<'_>) -> Option<Limits> {
    section.mapping(|fields| {
        let rpm_given = fields.find("rpm").is_some();
        let rpm = fields.optional("rpm", |value| count(&value, REQUESTS_MAX));
        let burst = fields.optional("burst", |value| count(&value, REQUESTS_MAX));
        if fields.find("burst").is_some() && !rpm_given {
            fields.report("burst", "needs rpm beside it");
        }
        let tokens = |value: Cursor<'_>| models::tokens(&value, 1, models::CONTEXT_MAX);
        let limits = Limits {
            requests: rpm.map(|per_minute: NonZeroU32| Rate {
                per_minute: per_minute.into(),
                burst: burst.unwrap_or(per_minute).into(),
            }),
            tokens: fields.optional("tpm", |value| token_rate(&value)),
            kv: fields.optional("kv_gib_seconds", |value| kv_in_flight(&value)),
            concurrency: fields.optional("concurrency", |value| count(&value, REQUESTS_MAX)),
            max_context: fields.optional("max_context", tokens),
            max_output: fields.optional("max_output", tokens),
        };
        check_output(&limits, fields);
        limits
    })
}

/// Reads tokens a minute; as many may come at once.
fn token_rate(value: &Cursor<'_>) -> Option<Rate> {
    let per_minute = value.integer(1..=Rate::MAX).and_then(NonZeroU64::new)?;
    Some(Rate {
        per_minute,
        burst: per_minute,
    })
}

/// Reads an amount of KV over time, in GiB-seconds.
fn kv_in_flight(value: &Cursor<'_>) -> Option<KvByteMicros> {
    /// Byte-microseconds in a thousandth of a GiB-second.
    const THOUSANDTH: u128 = 1_000 << 30;
    let thousandths = value.thousandths(1..=KV_GIB_SECONDS_MAX * 1_000)?;
    Some(KvByteMicros::new(u128::from(thousandths) * THOUSANDTH))
}

/// Reports an output bound that the context bound makes meaningless.
fn check_output(limits: &Limits, fields: &Fields<'_, '_>) {
    let context: Option<Tokens> = limits.max_context;
    if let (Some(output), Some(context)) = (limits.max_output, context)
        && output > context
    {
        fields.report(
            "max_output",
            format!("is {output}, more than max_context {context} allows"),
        );
    }
}

/// Reads a count from 1 to `most`.
fn count(value: &Cursor<'_>, most: u32) -> Option<NonZeroU32> {
    value.integer(1..=most).and_then(NonZeroU32::new)
}
