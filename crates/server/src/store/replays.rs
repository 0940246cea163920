//! Answers to requests with an `Idempotency-Key`, kept so that a repeat gets the same bytes.

use super::database::Value;
use super::{Store, StoreError};

/// A digest.
pub type Digest = [u8; 32];

/// An answer that can be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Who asked.
    pub tenant: String,
    /// The SHA-256 of the idempotency key.
    pub name: Digest,
    /// The SHA-256 of the path and the body.
    pub body_hash: Digest,
    /// The request that was answered.
    pub request: String,
    /// The HTTP status.
    pub status: u16,
    /// Names and values, as JSON.
    pub headers: String,
    /// The body's pieces, each with its length before it.
    pub body: Vec<u8>,
    /// When it was whole, in microseconds since the Unix epoch.
    pub finished_us: u64,
}

impl Store {
    /// Keeps an answer; one of the same name that is there gives way.
    ///
    /// # Errors
    /// As the store's.
    pub fn keep_replay(&mut self, replay: &Replay) -> Result<(), StoreError> {
        let values = [
            Value::text(&replay.tenant),
            Value::Bytes(replay.name.to_vec()),
            Value::Bytes(replay.body_hash.to_vec()),
            Value::text(&replay.request),
            Value::Int(i64::from(replay.status)),
            Value::text(&replay.headers),
            Value::Bytes(replay.body.clone()),
            Value::count(replay.finished_us),
        ];
        self.with(|database| {
            database.execute(
                "INSERT INTO replays (tenant, name, body_hash, request, status, headers, body, \
                 finished_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
                 ON CONFLICT (tenant, name) DO UPDATE SET body_hash = excluded.body_hash, \
                 request = excluded.request, status = excluded.status, \
                 headers = excluded.headers, body = excluded.body, \
                 finished_us = excluded.finished_us",
                &values,
            )
        })?;
        Ok(())
    }

    /// The answer of this name, if it was whole after `since_us`.
    ///
    /// # Errors
    /// As the store's.
    pub fn replay(
        &mut self,
        tenant: &str,
        name: &Digest,
        since_us: u64,
    ) -> Result<Option<Replay>, StoreError> {
        let values = [
            Value::text(tenant),
            Value::Bytes(name.to_vec()),
            Value::count(since_us),
        ];
        self.with(|database| {
            let sql = "SELECT body_hash, request, status, headers, body, finished_us FROM replays \
                       WHERE tenant = $1 AND name = $2 AND finished_us >= $3";
            let rows = database.query(sql, &values)?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            Ok(Some(Replay {
                tenant: tenant.to_owned(),
                name: *name,
                body_hash: row.bytes(0)?.try_into().unwrap_or_default(),
                request: row.text(1)?,
                status: u16::try_from(row.int(2)?).unwrap_or_default(),
                headers: row.text(3)?,
                body: row.bytes(4)?,
                finished_us: row.count(5)?,
            }))
        })
    }

    /// Forgets answers that were whole before `before_us`, and the oldest ones past `bytes_max`.
    ///
    /// # Errors
    /// As the store's.
    pub fn purge_replays(&mut self, before_us: u64, bytes_max: u64) -> Result<(), StoreError> {
        self.transaction(|database| {
            let before = [Value::count(before_us)];
            database.execute("DELETE FROM replays WHERE finished_us < $1", &before)?;
            // The newest ones that fit stay.
            database.execute(
                "DELETE FROM replays WHERE finished_us <= (SELECT COALESCE(MAX(finished_us), -1) \
                 FROM (SELECT finished_us, SUM(LENGTH(body)) OVER (ORDER BY finished_us DESC) \
                 AS held FROM replays) AS held_by WHERE held > $1)",
                &[Value::count(bytes_max)],
            )?;
            Ok(())
        })
    }
}
