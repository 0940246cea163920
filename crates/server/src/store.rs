//! What has been served and who may call, in a database: SQLite in the data folder, or a
//! PostgreSQL that several gateways share.
//!
//! Everything here blocks, so it runs on threads of its own (`clerk.rs`, `counting.rs`); no request
//! waits for it. What was served comes in by [`Store::fold`] from the journal, at least once, and
//! counts exactly once. The store itself reads no clock: times are arguments, in microseconds since
//! the Unix epoch.

mod ask;
mod audit;
pub(crate) mod clerk;
pub(crate) mod counting;
mod database;
mod directory;
mod fold;
pub(crate) mod folding;
mod keys;
mod postgres;
mod prices;
mod replays;
mod schema;
mod sqlite;
mod tenants;
#[cfg(test)]
mod tests;
mod tls;
mod usage;
mod verify;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

pub use self::ask::{Asked, Invoice, InvoiceError, InvoiceLine, moment};
pub use self::audit::{Actor, AuditRow};
use self::database::{Database, Failure, Row, Value};
pub use self::directory::{Directory, DirectoryError};
pub use self::fold::{Charge, Folded, Place, Scope};
pub use self::keys::{FreshKey, KeyRow, NewKey, Scopes};
use self::postgres::Postgres;
pub use self::prices::PriceRow;
pub use self::replays::{Digest, Replay};
use self::sqlite::Sqlite;
pub use self::tenants::{ModelLimits, StoredLimits, TenantRow};
pub(crate) use self::tls::ServerAddress;
pub use self::usage::{Amounts, Dimension, Grain, Question, UsageError, UsageRow};
pub use self::verify::Difference;

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// An SQLite file.
    File(PathBuf),
    /// A PostgreSQL, as `postgres://user:password@host/database` or in libpq's words.
    Server(String),
}

impl Location {
    /// How messages name it: without the password that its URL may have.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Server(_) => "the PostgreSQL of store.url".to_owned(),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// What is there is no store, or a broken one.
    #[error(
        "{at} can't be used as a store: {why}; nothing was changed; let this user read \
         and write there, or restore it, or move it away"
    )]
    Unreadable {
        /// Where.
        at: String,
        /// In the database's words.
        why: String,
    },
    /// A newer Tollgate wrote it.
    #[error(
        "{at} has schema {found}, and this version knows up to {}; nothing was changed; use a \
         newer Tollgate",
        schema::VERSION
    )]
    Future {
        /// Where.
        at: String,
        /// Its version.
        found: i64,
    },
    /// It can't be reached now.
    #[error("{at} can't be reached: {why}")]
    Down {
        /// Where.
        at: String,
        /// In the database's words.
        why: String,
    },
    /// It refused.
    #[error("{at}: {why}")]
    Refused {
        /// Where.
        at: String,
        /// In the database's words.
        why: String,
    },
}

impl StoreError {
    /// Whether it stays so until somebody mends the store.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Future { .. } => true,
            Self::Down { .. } | Self::Refused { .. } => false,
        }
    }
}

/// One connection to the store, made when it is first needed and again after it was lost.
#[derive(Debug)]
pub struct Store {
    location: Location,
    connection: Option<Box<dyn Database>>,
}

impl Store {
    /// The store at `location`, which is not looked at yet.
    pub fn at(location: Location) -> Self {
        Self {
            location,
            connection: None,
        }
    }

    /// Opens the store, and makes its tables what this version expects.
    ///
    /// # Errors
    /// [`StoreError::Down`] where a server can't be reached; the lasting ones where a file can't be
    /// opened or a store is not ours to change, and then nothing was changed.
    pub fn open(location: Location) -> Result<Self, StoreError> {
        let mut store = Self::at(location);
        store.connect()?;
        Ok(store)
    }

    /// Sees whether a file that is there is a store of ours, and changes nothing.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) fn look(location: &Location) -> Result<(), StoreError> {
        match location {
            Location::File(path) if path.exists() => {
                let mut database = Self::at(location.clone()).dial()?;
                schema::check(&mut *database, &location.name()).map(drop)
            }
            Location::File(_) | Location::Server(_) => Ok(()),
        }
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    fn connect(&mut self) -> Result<&mut Box<dyn Database>, StoreError> {
        if self.connection.is_none() {
            let mut fresh = self.dial()?;
            schema::migrate(&mut *fresh, &self.location.name())?;
            self.connection = Some(fresh);
        }
        self.connection.as_mut().ok_or_else(|| StoreError::Down {
            at: self.location.name(),
            why: "no connection".to_owned(),
        })
    }

    fn dial(&self) -> Result<Box<dyn Database>, StoreError> {
        let at = self.location.name();
        match &self.location {
            // A file that can't be opened does not come back of itself, as a server does.
            Location::File(path) => match Sqlite::open(path) {
                Ok(opened) => Ok(Box::new(opened)),
                Err(Failure { why, .. }) => Err(StoreError::Unreadable { at, why }),
            },
            Location::Server(url) => match Postgres::open(url) {
                Ok(opened) => Ok(Box::new(opened)),
                Err(Failure { why, .. }) => Err(StoreError::Down { at, why }),
            },
        }
    }

    /// Runs `work` on a connection; one that was lost is not used again.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Database) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let at = self.location.name();
        let done = work(&mut **self.connect()?);
        done.map_err(|Failure { why, lost }| {
            if lost {
                self.connection = None;
                StoreError::Down { at, why }
            } else {
                StoreError::Refused { at, why }
            }
        })
    }

    /// Runs `work` in a transaction: all of it happens, or nothing.
    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Database) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.with(|database| {
            database.begin()?;
            match work(database).and_then(|done| database.batch("COMMIT").map(|()| done)) {
                Ok(done) => Ok(done),
                Err(failure) => {
                    // Err: the connection is gone, and with it the transaction.
                    let _ = database.batch("ROLLBACK");
                    Err(failure)
                }
            }
        })
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, StoreError> {
        self.with(|database| database.query(sql, values))
    }
}

/// Puts `rows` in. `insert` ends before the values, and `rest` comes after them.
fn insert_many(
    database: &mut dyn Database,
    insert: &str,
    rest: &str,
    rows: &[Vec<Value>],
) -> Result<(), Failure> {
    insert_each(
        database,
        (insert, rest),
        rows,
        |database, sql, _, values| database.execute(sql, values).map(drop),
    )
}

/// The same for rows of which some may be there already, which `rest` leaves as they are; of each,
/// whether it was not. `key` names the column that tells them apart, and where it is in a row.
fn insert_new(
    database: &mut dyn Database,
    (insert, rest): (&str, &str),
    (name, place): (&str, usize),
    rows: &[Vec<Value>],
) -> Result<Vec<bool>, Failure> {
    let mut new = Vec::with_capacity(rows.len());
    let alone = database.words().rows == 1;
    let returning = format!("{rest} RETURNING {name}");
    let rest = if alone { rest } else { &returning };
    insert_each(
        database,
        (insert, rest),
        rows,
        |database, sql, now, values| {
            if alone {
                // To have it returned would take a table of its own there.
                new.push(database.execute(sql, values)? > 0);
                return Ok(());
            }
            let returned = database.query(sql, values)?;
            let put: HashSet<_> = returned.iter().filter_map(|row| row.0.first()).collect();
            let is_new = |row: &Vec<Value>| row.get(place).is_some_and(|key| put.contains(key));
            new.extend(now.iter().map(is_new));
            Ok(())
        },
    )?;
    Ok(new)
}

/// Hands over statements that put in some of `rows` each, with those rows and their values.
fn insert_each(
    database: &mut dyn Database,
    (insert, rest): (&str, &str),
    rows: &[Vec<Value>],
    mut run: impl FnMut(&mut dyn Database, &str, &[Vec<Value>], &[Value]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let most = database.words().rows;
    let (mut left, mut sql, mut filled) = (rows, String::new(), 0);
    while let Some(row) = left.first() {
        // A statement stays compiled, so there is to be one for few numbers of rows only.
        let count = power_of_two(left.len().min(most));
        let (now, later) = left.split_at(count);
        left = later;
        if filled != count {
            (sql, filled) = (insertion(insert, (count, row.len()), rest), count);
        }
        match now {
            [row] => run(database, &sql, now, row)?,
            many => run(database, &sql, now, &many.concat())?,
        }
    }
    Ok(())
}

/// The greatest power of two that is not more than this.
fn power_of_two(count: usize) -> usize {
    count.checked_ilog2().map_or(1, |log| 1 << log)
}

/// A statement that puts in so many rows of so many columns.
fn insertion(insert: &str, (rows, columns): (usize, usize), rest: &str) -> String {
    let mut sql = insert.to_owned();
    for number in 0..rows * columns {
        sql.push_str(match (number, number % columns) {
            (0, _) => " VALUES ($",
            (_, 0) => "), ($",
            _ => ", $",
        });
        sql.push_str(&(number + 1).to_string());
    }
    sql.push(')');
    sql.push_str(rest);
    sql
}
