//! Keys of tenants: drawn at random, shown once, kept as a hash.
//!
//! A key looks like `tg-4f2a90c81b3d-…`: its id, by which people name it, and its secret. No
//! message and no row but that of the key itself has more of it than the id.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::audit::{self, Actor};
use super::database::{Database, Failure, Row, Value};
use super::tenants::{self, from_json, json};
use super::{DirectoryError, Store, StoreError};
use crate::config::KeyHash;
use crate::members::budget::BudgetText;

/// The longest label, in characters.
const LABEL_MAX: usize = 64;

/// Paths that a key can be held to.
const ENDPOINTS: [&str; 3] = ["chat", "completions", "embeddings"];

/// What a key is good for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scopes {
    /// The models it may name, out of its tenant's; all of them where it says nothing.
    pub models: Option<Vec<String>>,
    /// `chat`, `completions` or `embeddings`; all where it says nothing.
    pub endpoints: Option<Vec<String>>,
    /// It may look at models and usage, and have nothing made.
    pub read_only: bool,
}

/// A key to be made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Whose.
    pub tenant: String,
    /// What people call it.
    #[serde(default)]
    pub label: String,
    /// What it is good for.
    #[serde(default)]
    pub scopes: Scopes,
    /// When it stops being good, in microseconds since the Unix epoch.
    #[serde(default)]
    pub expires_us: Option<u64>,
    /// What may be spent with it.
    #[serde(default)]
    pub budget: Option<BudgetText>,
}

/// A key that was just made. Nothing can show it again.
#[derive(Clone, PartialEq, Eq)]
pub struct FreshKey {
    /// How people name it.
    pub id: String,
    /// What callers send.
    pub secret: String,
}

impl fmt::Debug for FreshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreshKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A key as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyRow {
    /// How people name it.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// What people call it.
    pub label: String,
    /// What callers are compared with.
    #[serde(skip)]
    pub hash: KeyHash,
    /// What it is good for.
    pub scopes: Scopes,
    /// What may be spent with it.
    pub budget: Option<BudgetText>,
    /// When it was made, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// When it stops being good.
    pub expires_us: Option<u64>,
    /// When it was revoked.
    pub revoked_us: Option<u64>,
}

impl NewKey {
    /// One of which nothing was said but whose it is.
    pub fn of(tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            label: String::new(),
            scopes: Scopes::default(),
            expires_us: None,
            budget: None,
        }
    }

    fn check(&self, now_us: u64) -> Result<(), String> {
        if self.label.chars().count() > LABEL_MAX || self.label.chars().any(char::is_control) {
            return Err("a label has at most 64 characters, and no control characters".to_owned());
        }
        tenants::check_names(self.scopes.models.as_deref())?;
        let endpoints = self.scopes.endpoints.iter().flatten();
        if let Some(unknown) = endpoints
            .into_iter()
            .find(|name| !ENDPOINTS.contains(&name.as_str()))
        {
            return Err(format!(
                "there is no endpoint {unknown}; use {}",
                ENDPOINTS.join(", ")
            ));
        }
        if self.expires_us.is_some_and(|at| at <= now_us) {
            return Err("it would have expired already; let it expire in the future".to_owned());
        }
        self.budget
            .as_ref()
            .map_or(Ok(()), |budget| budget.read().map(drop))
    }
}

impl Store {
    /// Makes a key.
    ///
    /// # Errors
    /// [`DirectoryError`]; then there is none.
    pub fn create_key(&mut self, key: &NewKey, by: &Actor) -> Result<FreshKey, DirectoryError> {
        key.check(by.at_us).map_err(DirectoryError::Bad)?;
        let fresh = draw()?;
        let made = self.transaction(|database| {
            let there = tenants::exists(database, &key.tenant)?;
            if there {
                insert(database, &fresh, key, by)?;
                let detail = format!("tenant: {}", key.tenant);
                audit::note(database, by, "key.create", &fresh.id, &detail)?;
            }
            Ok(there)
        })?;
        made.then_some(fresh)
            .ok_or_else(|| DirectoryError::NoTenant(key.tenant.clone()))
    }

    /// Makes a key that is good for the same as `id`, which is good until `until_us` at most.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn rotate_key(
        &mut self,
        id: &str,
        until_us: u64,
        by: &Actor,
    ) -> Result<FreshKey, DirectoryError> {
        let fresh = draw()?;
        let made = self.transaction(|database| {
            let Some(old) = find(database, id)? else {
                return Ok(false);
            };
            let key = NewKey {
                tenant: old.tenant,
                label: old.label,
                scopes: old.scopes,
                expires_us: None,
                budget: old.budget,
            };
            insert(database, &fresh, &key, by)?;
            let until = old.expires_us.unwrap_or(until_us).min(until_us);
            let until = Value::count(until.max(by.at_us));
            database.execute(
                "UPDATE keys SET expires_us = $2 WHERE id = $1",
                &[Value::text(id), until],
            )?;
            let detail = format!("replaced by {}", fresh.id);
            audit::note(database, by, "key.rotate", id, &detail)?;
            Ok(true)
        })?;
        made.then_some(fresh)
            .ok_or_else(|| DirectoryError::NoKey(id.to_owned()))
    }

    /// Lets a key be good until `at_us` only.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn expire_key(&mut self, id: &str, at_us: u64, by: &Actor) -> Result<(), DirectoryError> {
        let sql = "UPDATE keys SET expires_us = $2 WHERE id = $1 AND revoked_us IS NULL";
        self.change_key(sql, (id, at_us), by, "key.expire")
    }

    /// Revokes a key: it is good for nothing any more.
    ///
    /// # Errors
    /// [`DirectoryError`]; then nothing was changed.
    pub fn revoke_key(&mut self, id: &str, by: &Actor) -> Result<(), DirectoryError> {
        let sql = "UPDATE keys SET revoked_us = $2 WHERE id = $1 AND revoked_us IS NULL";
        self.change_key(sql, (id, by.at_us), by, "key.revoke")
    }

    fn change_key(
        &mut self,
        sql: &str,
        (id, at_us): (&str, u64),
        by: &Actor,
        action: &str,
    ) -> Result<(), DirectoryError> {
        let changed = self.transaction(|database| {
            let changed = database.execute(sql, &[Value::text(id), Value::count(at_us)])?;
            if changed > 0 {
                audit::note(database, by, action, id, "")?;
            }
            Ok(changed > 0)
        })?;
        changed
            .then_some(())
            .ok_or_else(|| DirectoryError::NoKey(id.to_owned()))
    }

    /// All keys, revoked ones included, by tenant and age.
    ///
    /// # Errors
    /// As the store's.
    pub fn keys(&mut self) -> Result<Vec<KeyRow>, StoreError> {
        self.with(|database| load(database, ""))
    }
}

/// A key that nobody has had.
fn draw() -> Result<FreshKey, DirectoryError> {
    let mut bytes = [0; 30];
    let no_chance =
        |error| DirectoryError::Bad(format!("the system gives no random numbers: {error}"));
    getrandom::fill(&mut bytes).map_err(no_chance)?;
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let (id, secret) = bytes.split_at(6);
    let id = hex(id);
    let secret = format!("tg-{id}-{}", hex(secret));
    Ok(FreshKey { id, secret })
}

fn insert(
    database: &mut dyn Database,
    fresh: &FreshKey,
    key: &NewKey,
    by: &Actor,
) -> Result<(), Failure> {
    let hash = KeyHash::of(fresh.secret.as_bytes());
    let values = [
        Value::text(&fresh.id),
        Value::text(&key.tenant),
        Value::Bytes(hash.bytes().to_vec()),
        Value::text(&key.label),
        json(key.scopes.models.as_ref())?,
        json(key.scopes.endpoints.as_ref())?,
        Value::Int(i64::from(key.scopes.read_only)),
        json(key.budget.as_ref())?,
        Value::count(by.at_us),
        Value::optional(key.expires_us, Value::count),
    ];
    database.execute(
        "INSERT INTO keys (id, tenant, hash, label, models, endpoints, read_only, budget, \
         created_us, expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &values,
    )?;
    Ok(())
}

fn find(database: &mut dyn Database, id: &str) -> Result<Option<KeyRow>, Failure> {
    let found = load(database, "WHERE revoked_us IS NULL")?;
    Ok(found.into_iter().find(|key| key.id == id))
}

pub(super) fn load(database: &mut dyn Database, filter: &str) -> Result<Vec<KeyRow>, Failure> {
    let sql = format!(
        "SELECT id, tenant, hash, label, models, endpoints, read_only, budget, created_us, \
         expires_us, revoked_us FROM keys {filter}"
    );
    let rows = database.query(&sql, &[])?;
    let mut keys = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    keys.sort_by(|a, b| (&a.tenant, a.created_us, &a.id).cmp(&(&b.tenant, b.created_us, &b.id)));
    Ok(keys)
}

fn read(row: &Row) -> Result<KeyRow, Failure> {
    let hash = row.bytes(2)?;
    let hash = hash
        .try_into()
        .map_err(|_| Failure::told("the hash of a key is no SHA-256"))?;
    let moment = |column| {
        let at = row.optional_int(column)?;
        Ok::<_, Failure>(at.map(|at| u64::try_from(at).unwrap_or(0)))
    };
    Ok(KeyRow {
        id: row.text(0)?,
        tenant: row.text(1)?,
        hash: KeyHash::from_bytes(hash),
        label: row.text(3)?,
        scopes: Scopes {
            models: from_json(row, 4)?,
            endpoints: from_json(row, 5)?,
            read_only: row.int(6)? != 0,
        },
        budget: from_json(row, 7)?,
        created_us: row.count(8)?,
        expires_us: moment(9)?,
        revoked_us: moment(10)?,
    })
}
