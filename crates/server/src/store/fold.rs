//! From the journal into the store: at least once in, exactly once counted.
//!
//! A record counts when its request is new to the log of requests, and only if it lies behind what
//! has been folded of its journal before. So a batch that was cut off by a crash is folded again as
//! a whole, and a replay of what was folded long ago, and is in the log no more, changes nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_policy::price::Price;
use tollgate_policy::units::{KvByteMicros, NanoUsd, Tokens};
use tollgate_policy::usage::Usage;

use super::database::{Database, Failure, Value};
use super::prices::{PriceRow, PriceTable};
use super::usage::{Amounts, Grain};
use super::{Store, StoreError, insert_many, insert_new};

/// Microseconds of a quarter of an hour: every time zone in use differs from UTC by whole quarters,
/// so a day or a month of any of them is a whole number of these.
pub(super) const QUARTER_US: u64 = 900_000_000;

/// What the store keeps of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Its place in the journal, from 0 up.
    pub number: u64,
    /// Its name, unique in its journal.
    pub request: String,
    /// Who pays.
    pub tenant: Arc<str>,
    /// With which of the tenant's keys, where that has a name.
    pub key: Option<Arc<str>>,
    /// What for.
    pub model: Arc<str>,
    /// The reason of its outcome.
    pub outcome: Cow<'static, str>,
    /// Tokens.
    pub usage: Usage,
    /// KV memory over time.
    pub kv: KvByteMicros,
    /// Whether the engine did not count the tokens itself.
    pub estimated: bool,
    /// When it was received.
    pub received_us: u64,
    /// When it ended, which is when it counts.
    pub ended_us: u64,
}

/// A place in a journal: all before it have been looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the record that comes next.
    pub number: u64,
    /// The segment that it is in, or the one before that.
    pub segment: u64,
    /// Where it begins there.
    pub offset: u64,
}

/// What a fold came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Requests that were counted.
    pub counted: usize,
    /// Requests that had been counted before.
    pub known: usize,
}

impl Store {
    /// How far a journal has been folded.
    ///
    /// # Errors
    /// As the store's.
    pub fn folded(&mut self, journal: &str) -> Result<Place, StoreError> {
        self.with(|database| watermark(database, journal))
    }

    /// Counts what of `charges` has not been counted, and notes that all records of the journal
    /// before `upto` have been looked at.
    ///
    /// # Errors
    /// As the store's; then nothing was counted.
    pub fn fold(
        &mut self,
        journal: &str,
        charges: &[Charge],
        upto: Place,
    ) -> Result<Folded, StoreError> {
        self.transaction(|database| {
            let from = watermark(database, journal)?;
            let behind = |one: &&Charge| one.number >= from.number;
            let prices = PriceTable::load(database)?;
            let ahead: Vec<_> = charges.iter().filter(behind).collect();
            let fresh = log(database, journal, &ahead, &prices)?;
            count(database, &fresh, &prices)?;
            let moved = upto.max(from);
            database.execute(
                "INSERT INTO journals (id, folded, segment, position) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (id) DO UPDATE SET folded = excluded.folded, \
                 segment = excluded.segment, position = excluded.position",
                &[
                    Value::text(journal),
                    Value::count(moved.number),
                    Value::count(moved.segment),
                    Value::count(moved.offset),
                ],
            )?;
            Ok(Folded {
                counted: fresh.len(),
                known: charges.len() - fresh.len(),
            })
        })
    }

    /// Forgets requests that ended before `before_us`; their usage stays. What budgets no longer
    /// need goes too.
    ///
    /// # Errors
    /// As the store's.
    pub fn purge_requests(&mut self, before_us: u64) -> Result<u64, StoreError> {
        /// The longest window of a budget is a month of 31 days.
        const SPEND_KEPT_US: u64 = 40 * 86_400_000_000;
        let before = Value::count(before_us);
        self.transaction(|database| {
            let spent = before_us.saturating_sub(SPEND_KEPT_US) / QUARTER_US;
            database.execute(
                "DELETE FROM spend WHERE quarter < $1",
                &[Value::count(spent)],
            )?;
            database.execute(
                "UPDATE meta SET value = $1 WHERE name = 'purged_us' AND value < $1",
                std::slice::from_ref(&before),
            )?;
            database.execute(
                "DELETE FROM request_log WHERE ended_us < $1",
                std::slice::from_ref(&before),
            )
        })
    }

    /// What a tenant, or one of its keys, has spent since `since_us`, in nano-dollars.
    ///
    /// # Errors
    /// As the store's.
    pub fn spent(&mut self, scope: &Scope<'_>, since_us: u64) -> Result<u64, StoreError> {
        let values = [
            Value::text(scope.name()),
            Value::count(since_us / QUARTER_US),
        ];
        self.with(|database| {
            let sql = "SELECT CAST(COALESCE(SUM(cost), 0) AS BIGINT) FROM spend \
                       WHERE scope = $1 AND quarter >= $2";
            let rows = database.query(sql, &values)?;
            rows.first().map_or(Ok(0), |row| row.count(0))
        })
    }
}

/// Whose spending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All of a tenant's.
    Tenant(&'a str),
    /// That of one key, by its id.
    Key(&'a str),
}

impl Scope<'_> {
    fn name(&self) -> String {
        match self {
            Self::Tenant(name) => format!("tenant:{name}"),
            Self::Key(id) => format!("key:{id}"),
        }
    }
}

pub(super) fn watermark(database: &mut dyn Database, journal: &str) -> Result<Place, Failure> {
    let sql = "SELECT folded, segment, position FROM journals WHERE id = $1";
    let rows = database.query(sql, &[Value::text(journal)])?;
    let Some(row) = rows.first() else {
        return Ok(Place::default());
    };
    Ok(Place {
        number: row.count(0)?,
        segment: row.count(1)?,
        offset: row.count(2)?,
    })
}

/// Writes requests into the log; those that it did not have yet.
fn log<'c>(
    database: &mut dyn Database,
    journal: &str,
    charges: &[&'c Charge],
    prices: &PriceTable,
) -> Result<Vec<&'c Charge>, Failure> {
    const INSERT: &str = "INSERT INTO request_log (journal, request, tenant, key_id, model, \
                          outcome, prompt_tokens, cached_tokens, output_tokens, kv, cost, \
                          estimated, received_us, ended_us)";
    const REST: &str = " ON CONFLICT (journal, request) DO NOTHING";
    /// In the order of the columns.
    const REQUEST: (&str, usize) = ("request", 1);
    let journal = Value::text(journal);
    // Once in a statement: a second one of the same name would be an error there.
    let by_name: BTreeMap<_, _> = charges.iter().map(|one| (&one.request, *one)).collect();
    let rows: Vec<_> = by_name
        .values()
        .map(|one| {
            vec![
                journal.clone(),
                Value::text(&*one.request),
                Value::Text(Arc::clone(&one.tenant)),
                Value::text(one.key.as_deref().unwrap_or_default()),
                Value::Text(Arc::clone(&one.model)),
                Value::text(&*one.outcome),
                Value::count(one.usage.prompt.get()),
                Value::count(one.usage.cached.get()),
                Value::count(one.usage.output.get()),
                Value::count(one.kv.micro_gib_secs()),
                Value::count(one.cost(prices).get()),
                Value::Int(i64::from(one.estimated)),
                Value::count(one.received_us),
                Value::count(one.ended_us),
            ]
        })
        .collect();
    let new = insert_new(database, (INSERT, REST), REQUEST, &rows)?;
    let each = by_name.into_values().zip(new);
    Ok(each
        .filter_map(|(one, is_new)| is_new.then_some(one))
        .collect())
}

/// Adds requests that are new to usage and spending. In the order of the keys, so that two gateways
/// never wait for each other's rows crosswise.
fn count(
    database: &mut dyn Database,
    fresh: &[&Charge],
    prices: &PriceTable,
) -> Result<(), Failure> {
    let mut usage: BTreeMap<(Grain, u64, &str, &str), Amounts> = BTreeMap::new();
    let mut spend: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for one in fresh {
        let cost = one.cost(prices);
        for grain in Grain::ALL {
            let key = (grain, grain.start(one.ended_us), &*one.tenant, &*one.model);
            usage.entry(key).or_default().add(one, cost);
        }
        let quarter = one.ended_us / QUARTER_US;
        let key = one.key.as_deref().map(Scope::Key);
        for scope in [Some(Scope::Tenant(&one.tenant)), key]
            .into_iter()
            .flatten()
        {
            let sum = spend.entry((scope.name(), quarter)).or_default();
            *sum = sum.saturating_add(cost.get());
        }
    }
    let rows: Vec<_> = usage
        .iter()
        .map(|((grain, start, tenant, model), amounts)| {
            let mut row = vec![
                Value::Int(grain.number()),
                Value::count(*start),
                Value::text(*tenant),
                Value::text(*model),
            ];
            row.extend(amounts.values());
            row
        })
        .collect();
    insert_many(database, USAGE, USAGE_ADDED, &rows)?;
    let rows: Vec<_> = spend
        .into_iter()
        .filter(|(_, cost)| *cost > 0)
        .map(|((scope, quarter), cost)| {
            vec![
                Value::text(scope),
                Value::count(quarter),
                Value::count(cost),
            ]
        })
        .collect();
    insert_many(
        database,
        "INSERT INTO spend (scope, quarter, cost)",
        " ON CONFLICT (scope, quarter) DO UPDATE SET cost = spend.cost + excluded.cost",
        &rows,
    )?;
    Ok(())
}

const USAGE: &str = "INSERT INTO usage (grain, start_us, tenant, model, requests, prompt_tokens, \
                     cached_tokens, output_tokens, kv, cost)";

const USAGE_ADDED: &str = " ON CONFLICT (grain, start_us, tenant, model) DO UPDATE SET \
    requests = usage.requests + excluded.requests, \
    prompt_tokens = usage.prompt_tokens + excluded.prompt_tokens, \
    cached_tokens = usage.cached_tokens + excluded.cached_tokens, \
    output_tokens = usage.output_tokens + excluded.output_tokens, \
    kv = usage.kv + excluded.kv, cost = usage.cost + excluded.cost";

impl Charge {
    /// By the price that held when it ended.
    pub(super) fn cost(&self, prices: &PriceTable) -> NanoUsd {
        let price = prices.at(&self.model, self.ended_us);
        // Of KV what is written down: a sum over rows then equals the sum over requests.
        let kv = KvByteMicros::from_micro_gib_secs(self.kv.micro_gib_secs());
        price.unwrap_or(Price::FREE).cost(self.usage, kv)
    }

    /// What it cost, by these prices.
    pub(crate) fn cost_at(&self, prices: &[PriceRow]) -> NanoUsd {
        self.cost(&PriceTable::of(prices.iter().cloned()))
    }

    /// A request of no use, to start a test or an example from.
    pub fn blank(number: u64, tenant: &str, model: &str, ended_us: u64) -> Self {
        Self {
            number,
            request: format!("req-{number:x}"),
            tenant: tenant.into(),
            key: None,
            model: model.into(),
            outcome: "completed".into(),
            usage: Usage {
                prompt: Tokens::ZERO,
                cached: Tokens::ZERO,
                output: Tokens::ZERO,
            },
            kv: KvByteMicros::ZERO,
            estimated: false,
            received_us: ended_us,
            ended_us,
        }
    }
}
