//! The tables, and how a store of an older version becomes one of this.
//!
//! One text for both databases. A version is never changed once it has been released: what is new
//! goes into the next.

use super::StoreError;
use super::database::{Database, Failure, Value};

/// The version that this program writes.
pub(super) const VERSION: i64 = 2;

/// What each version adds to the one before, from the first.
const STEPS: [&str; 2] = [FIRST, MODEL_LIMITS];

/// Times are microseconds since the Unix epoch, money is nano-dollars, KV is in millionths of a
/// GiB-second. `usage` has the same amounts three times, by hour, day and month (`grain` 0, 1, 2),
/// so that a year is summed without reading its hours.
const FIRST: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE tenants (
    name TEXT PRIMARY KEY, class TEXT NOT NULL, weight BIGINT NOT NULL, models TEXT,
    limits TEXT NOT NULL, budget TEXT, created_us BIGINT NOT NULL, removed_us BIGINT
);
CREATE TABLE keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, hash {bytes} NOT NULL UNIQUE, label TEXT NOT NULL,
    models TEXT, endpoints TEXT, read_only BIGINT NOT NULL, budget TEXT,
    created_us BIGINT NOT NULL, expires_us BIGINT, revoked_us BIGINT
);
CREATE INDEX keys_by_tenant ON keys (tenant);
CREATE TABLE prices (
    model TEXT NOT NULL, from_us BIGINT NOT NULL, prompt BIGINT NOT NULL, cached BIGINT NOT NULL,
    output BIGINT NOT NULL, kv BIGINT NOT NULL, PRIMARY KEY (model, from_us)
){table};
CREATE TABLE journals (
    id TEXT PRIMARY KEY, folded BIGINT NOT NULL, segment BIGINT NOT NULL, position BIGINT NOT NULL
);
CREATE TABLE request_log (
    journal TEXT NOT NULL, request TEXT NOT NULL, tenant TEXT NOT NULL, key_id TEXT NOT NULL,
    model TEXT NOT NULL, outcome TEXT NOT NULL, prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, kv BIGINT NOT NULL,
    cost BIGINT NOT NULL, estimated BIGINT NOT NULL, received_us BIGINT NOT NULL,
    ended_us BIGINT NOT NULL, PRIMARY KEY (journal, request)
){table};
CREATE INDEX request_log_by_end ON request_log (ended_us);
CREATE TABLE usage (
    grain BIGINT NOT NULL, start_us BIGINT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL,
    requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL, kv BIGINT NOT NULL, cost BIGINT NOT NULL,
    PRIMARY KEY (grain, start_us, tenant, model)
){table};
CREATE TABLE spend (
    scope TEXT NOT NULL, quarter BIGINT NOT NULL, cost BIGINT NOT NULL,
    PRIMARY KEY (scope, quarter)
){table};
CREATE TABLE audit (
    at_us BIGINT NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at_us);
CREATE TABLE replays (
    tenant TEXT NOT NULL, name {bytes} NOT NULL, body_hash {bytes} NOT NULL, request TEXT NOT NULL,
    status BIGINT NOT NULL, headers TEXT NOT NULL, body {bytes} NOT NULL,
    finished_us BIGINT NOT NULL, PRIMARY KEY (tenant, name)
);
CREATE INDEX replays_by_time ON replays (finished_us);
INSERT INTO meta (name, value) VALUES ('generation', 0);
INSERT INTO meta (name, value) VALUES ('purged_us', 0);
";

/// A list as JSON; nothing where there are none.
const MODEL_LIMITS: &str = "ALTER TABLE tenants ADD COLUMN model_limits TEXT;";

/// The version of what is there, if it is ours to change. Changes nothing. `at` is the store's name
/// for messages.
pub(super) fn check(database: &mut dyn Database, at: &str) -> Result<i64, StoreError> {
    let found = version(database).map_err(|failure| StoreError::Unreadable {
        at: at.to_owned(),
        why: failure.why,
    })?;
    if found > VERSION {
        let at = at.to_owned();
        return Err(StoreError::Future { at, found });
    }
    Ok(found)
}

/// Makes the tables what this version expects.
pub(super) fn migrate(database: &mut dyn Database, at: &str) -> Result<(), StoreError> {
    let found = check(database, at)?;
    let unreadable = |failure: Failure| StoreError::Unreadable {
        at: at.to_owned(),
        why: failure.why,
    };
    database.prepare().map_err(unreadable)?;
    if found < VERSION {
        step_up(database).map_err(unreadable)?;
    }
    Ok(())
}

/// 0 where there are no tables yet. Changes nothing.
fn version(database: &mut dyn Database) -> Result<i64, Failure> {
    if !database.has_tables()? {
        return Ok(0);
    }
    let found = database.query("SELECT value FROM meta WHERE name = 'schema'", &[])?;
    let row = found
        .first()
        .ok_or_else(|| Failure::told("it has a table `meta` that is not ours"))?;
    row.int(0)
}

fn step_up(database: &mut dyn Database) -> Result<(), Failure> {
    database.begin()?;
    let stepped = steps(database);
    let end = if stepped.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    database.batch(end)?;
    stepped
}

fn steps(database: &mut dyn Database) -> Result<(), Failure> {
    database.lock_shape()?;
    // Another process may have been first.
    let found = version(database)?;
    let done = usize::try_from(found).unwrap_or(0);
    take(database, STEPS.get(done..).unwrap_or_default(), VERSION)
}

/// Takes steps that lead to a version.
fn take(database: &mut dyn Database, steps: &[&str], version: i64) -> Result<(), Failure> {
    let words = database.words();
    for step in steps {
        let sql = step
            .replace("{bytes}", words.bytes)
            .replace("{table}", words.table);
        database.batch(&sql)?;
    }
    database.execute(
        "INSERT INTO meta (name, value) VALUES ('schema', $1) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        &[Value::Int(version)],
    )?;
    Ok(())
}

/// Makes empty tables as the first version had them.
#[cfg(test)]
pub(super) fn first(database: &mut dyn Database) -> Result<(), Failure> {
    take(database, &[FIRST], 1)
}
