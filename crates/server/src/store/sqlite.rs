//! SQLite: the store that needs nothing beside a file.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, params_from_iter};

use super::database::{Database, Failure, Row, Value, Words};

/// How long a statement waits for another process to end its transaction.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// Statements that stay compiled; the store has few more.
const STATEMENTS_MAX: usize = 64;

/// A connection to a database file.
#[derive(Debug)]
pub(super) struct Sqlite(Connection);

impl Sqlite {
    /// Opens the file at `path`, and makes one where there is none; an existing one is not changed.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_MAX)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(Self(connection))
    }
}

impl Database for Sqlite {
    fn words(&self) -> Words {
        Words {
            bytes: "BLOB",
            table: " WITHOUT ROWID",
            rows: 1,
        }
    }

    fn has_tables(&mut self) -> Result<bool, Failure> {
        let found = self.query(
            "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'meta'",
            &[],
        )?;
        found.first().map_or(Ok(false), |row| Ok(row.int(0)? > 0))
    }

    /// Readers go on while one writes; and a power cut loses no more than what the journal has,
    /// which is folded again.
    fn prepare(&mut self) -> Result<(), Failure> {
        self.0.pragma_update(None, "journal_mode", "WAL")?;
        self.0.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        // At once: a transaction that turns from reading to writing can't wait for its turn.
        self.batch("BEGIN IMMEDIATE")
    }

    fn lock_shape(&mut self) -> Result<(), Failure> {
        // A transaction that writes has the file to itself.
        Ok(())
    }

    fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        Ok(self.0.execute_batch(sql)?)
    }

    fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        let mut statement = self.0.prepare_cached(&numbered(sql))?;
        let changed = statement.execute(params_from_iter(values))?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        let mut statement = self.0.prepare_cached(&numbered(sql))?;
        let columns = statement.column_count();
        let mut found = statement.query(params_from_iter(values))?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            let each = (0..columns).map(|column| value(row.get_ref(column)?));
            rows.push(Row(each.collect::<Result<_, Failure>>()?));
        }
        Ok(rows)
    }
}

/// SQLite counts `?1`, PostgreSQL `$1`; no statement has a dollar sign for anything else.
fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

fn value(found: ValueRef<'_>) -> Result<Value, Failure> {
    Ok(match found {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Text(text) => Value::text(String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        ValueRef::Real(_) => return Err(Failure::told("a number that is not whole")),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl From<rusqlite::Error> for Failure {
    /// The message of SQLite alone: the statement and its values stay out of it.
    fn from(error: rusqlite::Error) -> Self {
        let why = if let rusqlite::Error::SqliteFailure(code, Some(text)) = &error {
            format!("{text} ({code})")
        } else {
            error.to_string()
        };
        // A file can be opened again, which finds out whether it is there.
        Self { why, lost: true }
    }
}
