//! Who changed what: a line for each change by an operator. Neither keys nor hashes are in it.

use serde::Serialize;

use super::database::{Database, Failure, Value};
use super::{Store, StoreError};

/// The most lines that are read at once.
const ROWS_MAX: i64 = 1_000;

/// Who makes a change, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The name of an admin key, or of an account of the system.
    pub name: String,
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// When, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// Who.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// To which tenant or key.
    pub subject: String,
    /// How.
    pub detail: String,
}

impl Store {
    /// The newest changes, the last first.
    ///
    /// # Errors
    /// As the store's.
    pub fn audit(&mut self) -> Result<Vec<AuditRow>, StoreError> {
        let sql = format!(
            "SELECT at_us, actor, action, subject, detail FROM audit \
             ORDER BY at_us DESC LIMIT {ROWS_MAX}"
        );
        self.with(|database| {
            let rows = database.query(&sql, &[])?;
            let row = |row: &super::Row| {
                Ok(AuditRow {
                    at_us: row.count(0)?,
                    actor: row.text(1)?,
                    action: row.text(2)?,
                    subject: row.text(3)?,
                    detail: row.text(4)?,
                })
            };
            rows.iter().map(row).collect()
        })
    }
}

/// Notes a change, and tells every gateway that there is one.
pub(super) fn note(
    database: &mut dyn Database,
    actor: &Actor,
    action: &str,
    subject: &str,
    detail: &str,
) -> Result<(), Failure> {
    database.execute(
        "INSERT INTO audit (at_us, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5)",
        &[
            Value::count(actor.at_us),
            Value::text(&actor.name),
            Value::text(action),
            Value::text(subject),
            Value::text(detail),
        ],
    )?;
    database.execute(
        "UPDATE meta SET value = value + 1 WHERE name = 'generation'",
        &[],
    )?;
    Ok(())
}
