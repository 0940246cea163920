//! Who may call, as the store has it: all tenants and keys at one moment.

use super::keys::{self, KeyRow};
use super::tenants::{self, TenantRow};
use super::{Store, StoreError};

/// Tenants and keys at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Grows with every change.
    pub generation: i64,
    /// By name; without those that were removed.
    pub tenants: Vec<TenantRow>,
    /// By id; without those that were revoked. Expired ones are there.
    pub keys: Vec<KeyRow>,
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// There is no such tenant in the store.
    #[error(
        "the store has no tenant {0}; `tollgate tenants list` shows those it has, and `tollgate \
         tenants create {0}` adds it (tenants of the configuration file are changed there)"
    )]
    NoTenant(String),
    /// There is one already.
    #[error("the store has a tenant {0} already")]
    TenantExists(String),
    /// There is no such key, or it was revoked.
    #[error("the store has no key {0} that is not revoked; `tollgate keys list` shows them")]
    NoKey(String),
    /// Something given can't be.
    #[error("{0}")]
    Bad(String),
    /// The store can't do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Grows with every change of tenants or keys.
    ///
    /// # Errors
    /// As the store's.
    pub fn generation(&mut self) -> Result<i64, StoreError> {
        let rows = self.query("SELECT value FROM meta WHERE name = 'generation'", &[])?;
        self.with(|_| rows.first().map_or(Ok(0), |row| row.int(0)))
    }

    /// All tenants and keys that count, at one moment.
    ///
    /// # Errors
    /// As the store's.
    pub fn directory(&mut self) -> Result<Directory, StoreError> {
        self.transaction(|database| {
            let rows = database.query("SELECT value FROM meta WHERE name = 'generation'", &[])?;
            let generation = rows.first().map_or(Ok(0), |row| row.int(0))?;
            Ok(Directory {
                generation,
                tenants: tenants::load(database)?,
                keys: keys::load(database, "WHERE revoked_us IS NULL")?,
            })
        })
    }
}
