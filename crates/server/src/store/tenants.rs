//! Tenants that are kept in the store, beside those of the configuration file.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};
use tollgate_policy::bucket::Rate;
use tollgate_policy::tenant::{Class, Limits, TenantTable};
use tollgate_policy::units::{KvByteMicros, Tokens};

use super::audit::{self, Actor};
use super::database::{Database, Failure, Row, Value};
use super::{DirectoryError, Store};
use crate::config::{ANONYMOUS, thousandths};
use crate::members::budget::BudgetText;

/// The longest name, in bytes.
const NAME_MAX: usize = 64;

/// A tenant of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantRow {
    /// Its name, unique.
    pub name: String,
    /// Its promise, as the configuration spells it.
    #[serde(default = "standard")]
    pub class: String,
    /// Its share against others.
    #[serde(default = "one")]
    pub weight: u32,
    /// The models it may name; all where it says nothing.
    #[serde(default)]
    pub models: Option<Vec<String>>,
    /// What it may use.
    #[serde(default)]
    pub limits: StoredLimits,
    /// What it may use of single models, beside that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_limits: Vec<ModelLimits>,
    /// What it may spend.
    #[serde(default)]
    pub budget: Option<BudgetText>,
}

/// Limits of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLimits {
    /// Its name, or an alias of it.
    pub model: String,
    /// What may be used of it.
    pub limits: StoredLimits,
}

fn standard() -> String {
    Class::Standard.label().to_owned()
}

const fn one() -> u32 {
    1
}

/// Limits, as the configuration names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoredLimits {
    /// Requests per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm: Option<NonZeroU64>,
    /// Requests that may come at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<NonZeroU64>,
    /// Tokens per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<NonZeroU64>,
    /// KV over time in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_gib_seconds: Option<serde_json::Number>,
    /// Requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<NonZeroU32>,
    /// Tokens of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_context: Option<NonZeroU64>,
    /// Output tokens of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<NonZeroU64>,
}

impl StoredLimits {
    /// The limits that it says.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn read(&self) -> Result<Limits, String> {
        if self.burst.is_some() && self.rpm.is_none() {
            return Err("limits.burst needs limits.rpm beside it".to_owned());
        }
        let kv = self.kv_gib_seconds.as_ref().map(|number| {
            let thousandths = thousandths(&number.to_string()).filter(|amount| *amount > 0);
            let amount = thousandths.ok_or_else(|| {
                format!("limits.kv_gib_seconds is {number}; use 0.001 or more, in thousandths")
            })?;
            Ok::<_, String>(KvByteMicros::new(
                KvByteMicros::from_gib_secs(amount).get() / 1_000,
            ))
        });
        let rate = |per_minute: NonZeroU64, burst: Option<NonZeroU64>| Rate {
            per_minute,
            burst: burst.unwrap_or(per_minute),
        };
        let tokens = |count: NonZeroU64| Tokens::new(count.get());
        Ok(Limits {
            requests: self.rpm.map(|rpm| rate(rpm, self.burst)),
            tokens: self.tpm.map(|tpm| rate(tpm, None)),
            kv: kv.transpose()?,
            concurrency: self.concurrency,
            max_context: self.max_context.map(tokens),
            max_output: self.max_output.map(tokens),
        })
    }
}

impl TenantRow {
    /// One of which nothing was said but its name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            class: standard(),
            weight: one(),
            models: None,
            limits: StoredLimits::default(),
            model_limits: Vec::new(),
            budget: None,
        }
    }

    /// Its promise.
    ///
    /// # Errors
    /// What it may be.
    pub fn class(&self) -> Result<Class, String> {
        let mut all = Class::ALL.into_iter();
        all.find(|class| class.label() == self.class)
            .ok_or_else(|| {
                format!(
                    "class is {}; use reserved, standard or best_effort",
                    self.class
                )
            })
    }

    /// Whether it can be a tenant.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
            let want = "use 1 to 64 characters out of A-Z a-z 0-9 ._-";
            return Err(format!("the name of a tenant can't be {name:?}; {want}"));
        }
        if name == TenantTable::OVERFLOW || name == ANONYMOUS {
            return Err(format!(
                "the name {name} has a meaning of its own; use another"
            ));
        }
        if !(1..=1_000).contains(&self.weight) {
            return Err(format!("weight is {}; use 1..=1000", self.weight));
        }
        self.class()?;
        self.limits.read()?;
        self.check_models()?;
        self.budget
            .as_ref()
            .map_or(Ok(()), |budget| budget.read().map(drop))
    }

    fn check_models(&self) -> Result<(), String> {
        check_names(self.models.as_deref())?;
        let mut seen = BTreeSet::new();
        for own in &self.model_limits {
            let model = &own.model;
            own.limits
                .read()
                .map_err(|why| format!("model_limits of {model}: {why}"))?;
            if model.is_empty() || !seen.insert(model) {
                return Err(format!(
                    "model_limits name the model {model:?} twice, or not at all; give each once"
                ));
            }
        }
        Ok(())
    }
}

/// Models that somebody may name. None of them is a mistake mostly, and nobody's wish.
pub(super) fn check_names(models: Option<&[String]>) -> Result<(), String> {
    match models.is_some_and(|names| names.iter().any(|name| name.trim().is_empty())) {
        true => Err("models has an empty name; leave it out where all may be named".to_owned()),
        false => Ok(()),
    }
}

impl Store {
    /// Adds a tenant.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn create_tenant(&mut self, tenant: &TenantRow, by: &Actor) -> Result<(), DirectoryError> {
        tenant.check().map_err(DirectoryError::Bad)?;
        let created = self.transaction(|database| {
            let mut values = values(tenant)?;
            values.push(Value::count(by.at_us));
            // One that was removed may come back.
            let changed = database.execute(
                "INSERT INTO tenants (name, class, weight, models, limits, budget, model_limits, \
                 created_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (name) DO UPDATE \
                 SET class = excluded.class, weight = excluded.weight, models = excluded.models, \
                 limits = excluded.limits, budget = excluded.budget, \
                 model_limits = excluded.model_limits, removed_us = NULL \
                 WHERE tenants.removed_us IS NOT NULL",
                &values,
            )?;
            if changed > 0 {
                audit::note(
                    database,
                    by,
                    "tenant.create",
                    &tenant.name,
                    &summary(tenant)?,
                )?;
            }
            Ok(changed > 0)
        })?;
        created
            .then_some(())
            .ok_or_else(|| DirectoryError::TenantExists(tenant.name.clone()))
    }

    /// Gives a tenant other limits, another class, weight or budget.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn change_tenant(&mut self, tenant: &TenantRow, by: &Actor) -> Result<(), DirectoryError> {
        tenant.check().map_err(DirectoryError::Bad)?;
        let changed = self.transaction(|database| {
            let changed = database.execute(
                "UPDATE tenants SET class = $2, weight = $3, models = $4, limits = $5, \
                 budget = $6, model_limits = $7 WHERE name = $1 AND removed_us IS NULL",
                &values(tenant)?,
            )?;
            if changed > 0 {
                audit::note(
                    database,
                    by,
                    "tenant.change",
                    &tenant.name,
                    &summary(tenant)?,
                )?;
            }
            Ok(changed > 0)
        })?;
        changed
            .then_some(())
            .ok_or_else(|| DirectoryError::NoTenant(tenant.name.clone()))
    }

    /// Removes a tenant and revokes its keys; its usage stays.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn remove_tenant(&mut self, name: &str, by: &Actor) -> Result<(), DirectoryError> {
        let removed = self.transaction(|database| {
            let values = [Value::text(name), Value::count(by.at_us)];
            let changed = database.execute(
                "UPDATE tenants SET removed_us = $2 WHERE name = $1 AND removed_us IS NULL",
                &values,
            )?;
            if changed > 0 {
                let keys = database.execute(
                    "UPDATE keys SET revoked_us = $2 WHERE tenant = $1 AND revoked_us IS NULL",
                    &values,
                )?;
                let detail = format!("revoked keys: {keys}");
                audit::note(database, by, "tenant.remove", name, &detail)?;
            }
            Ok(changed > 0)
        })?;
        removed
            .then_some(())
            .ok_or_else(|| DirectoryError::NoTenant(name.to_owned()))
    }

    /// All tenants that were not removed, by name.
    ///
    /// # Errors
    /// As the store's.
    pub fn tenants(&mut self) -> Result<Vec<TenantRow>, super::StoreError> {
        self.with(load)
    }
}

/// In the order `$1` to `$7` of the statements above.
fn values(tenant: &TenantRow) -> Result<Vec<Value>, Failure> {
    let some = !tenant.model_limits.is_empty();
    Ok(vec![
        Value::text(&tenant.name),
        Value::text(&tenant.class),
        Value::Int(i64::from(tenant.weight)),
        json(tenant.models.as_ref())?,
        Value::text(to_json(&tenant.limits)?),
        json(tenant.budget.as_ref())?,
        json(some.then_some(&tenant.model_limits))?,
    ])
}

/// What the audit says of a tenant.
fn summary(tenant: &TenantRow) -> Result<String, Failure> {
    to_json(tenant)
}

pub(super) fn load(database: &mut dyn Database) -> Result<Vec<TenantRow>, Failure> {
    let sql = "SELECT name, class, weight, models, limits, budget, model_limits FROM tenants \
               WHERE removed_us IS NULL";
    let rows = database.query(sql, &[])?;
    let mut tenants = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tenants)
}

/// Whether there is a tenant of this name.
pub(super) fn exists(database: &mut dyn Database, name: &str) -> Result<bool, Failure> {
    let sql = "SELECT COUNT(*) FROM tenants WHERE name = $1 AND removed_us IS NULL";
    let rows = database.query(sql, &[Value::text(name)])?;
    rows.first().map_or(Ok(false), |row| Ok(row.int(0)? > 0))
}

fn read(row: &Row) -> Result<TenantRow, Failure> {
    let weight = u32::try_from(row.int(2)?).map_err(|_| Failure::told("a weight out of range"))?;
    Ok(TenantRow {
        name: row.text(0)?,
        class: row.text(1)?,
        weight,
        models: from_json(row, 3)?,
        limits: from_json(row, 4)?.unwrap_or_default(),
        budget: from_json(row, 5)?,
        model_limits: from_json(row, 6)?.unwrap_or_default(),
    })
}

/// A column that holds JSON, or nothing.
pub(super) fn json<T: Serialize>(value: Option<&T>) -> Result<Value, Failure> {
    value.map_or(Ok(Value::Null), |value| to_json(value).map(Value::text))
}

fn to_json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::told(error.to_string()))
}

/// The same, read.
pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    row: &Row,
    column: usize,
) -> Result<Option<T>, Failure> {
    let text = row.optional_text(column)?;
    let read = text.map(|text| serde_json::from_str(&text)).transpose();
    read.map_err(|error| Failure::told(format!("column {column}: {error}")))
}
