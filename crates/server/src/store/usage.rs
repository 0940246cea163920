//! Usage, summed: by tenant, model and time, over any span.

use std::cmp::Ordering;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use tollgate_policy::units::NanoUsd;

use super::database::{Failure, Row, Value};
use super::fold::Charge;
use super::{Store, StoreError};

/// Over how long usage is kept as one row, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grain {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A calendar month.
    Month,
}

impl Grain {
    /// Microseconds of an hour.
    pub(super) const HOUR_US: u64 = 3_600_000_000;

    /// All of them, the finest first.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Hour => 0,
            Self::Day => 1,
            Self::Month => 2,
        }
    }

    /// When the one began that `at_us` is in.
    pub fn start(self, at_us: u64) -> u64 {
        match self {
            Self::Hour => at_us - at_us % Self::HOUR_US,
            Self::Day => at_us - at_us % (24 * Self::HOUR_US),
            Self::Month => month_start(at_us),
        }
    }

    /// How the one that begins at `start_us` is written.
    fn label(self, start_us: u64) -> String {
        let Some(at) = timestamp(start_us) else {
            return start_us.to_string();
        };
        let at = at.to_zoned_datetime(TimeZone::UTC);
        let format = match self {
            Self::Hour => "%Y-%m-%dT%H:00Z",
            Self::Day => "%Y-%m-%d",
            Self::Month => "%Y-%m",
        };
        at.strftime(format).to_string()
    }
}

fn timestamp(at_us: u64) -> Option<Timestamp> {
    Timestamp::from_microsecond(i64::try_from(at_us).ok()?).ok()
}

fn month_start(at_us: u64) -> u64 {
    let start = timestamp(at_us)
        .map(|at| at.to_zoned_datetime(TimeZone::UTC))
        .and_then(|at| at.first_of_month().ok()?.start_of_day().ok())
        .map(|start| start.timestamp().as_microsecond());
    // A time past the year 9999 is in the only month that it can be in.
    start
        .and_then(|start| u64::try_from(start).ok())
        .unwrap_or(0)
}

/// What is summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Who pays.
    Tenant,
    /// What for.
    Model,
    /// When.
    Time(Grain),
}

impl Dimension {
    /// The dimension that a person calls by this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "tenant" => Some(Self::Tenant),
            "model" => Some(Self::Model),
            "hour" => Some(Self::Time(Grain::Hour)),
            "day" => Some(Self::Time(Grain::Day)),
            "month" => Some(Self::Time(Grain::Month)),
            _ => None,
        }
    }
}

/// What to sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// By what; each at most once, and one time at most.
    pub by: Vec<Dimension>,
    /// From when, a whole hour.
    pub from_us: u64,
    /// Up to before when, a whole hour.
    pub to_us: u64,
    /// Of one tenant alone.
    pub tenant: Option<String>,
}

/// Why usage can't be summed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The hours are the finest there is.
    #[error("usage is kept by the hour, in UTC; let from and to be whole hours")]
    NotWholeHours,
    /// A sum by the day over part of a day would be told as the whole.
    #[error("from and to cut a {0} in two; use whole ones, or sum by hour")]
    CutsGrain(&'static str),
    /// A dimension is there twice, or two times are.
    #[error("each of tenant, model and one of hour, day and month can be given once")]
    Twice,
    /// The store can't tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Amounts that add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// Requests, whatever became of them.
    pub requests: u64,
    /// Prompt tokens, reused ones included.
    pub prompt_tokens: u64,
    /// Those of them that were reused.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// KV memory over time, in millionths of a GiB-second.
    pub kv_micro_gib_seconds: u64,
    /// What it cost, in billionths of a dollar.
    pub cost_nano_usd: u64,
}

impl Amounts {
    pub(super) fn add(&mut self, charge: &Charge, cost: NanoUsd) {
        self.plus(Self {
            requests: 1,
            prompt_tokens: charge.usage.prompt.get(),
            cached_tokens: charge.usage.cached.get(),
            output_tokens: charge.usage.output.get(),
            kv_micro_gib_seconds: charge.kv.micro_gib_secs(),
            cost_nano_usd: cost.get(),
        });
    }

    /// What it cost, in dollars.
    pub fn cost_usd(&self) -> String {
        NanoUsd::new(self.cost_nano_usd).to_string()
    }

    /// Adds others.
    pub fn plus(&mut self, other: Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.requests, other.requests);
        add(&mut self.prompt_tokens, other.prompt_tokens);
        add(&mut self.cached_tokens, other.cached_tokens);
        add(&mut self.output_tokens, other.output_tokens);
        add(&mut self.kv_micro_gib_seconds, other.kv_micro_gib_seconds);
        add(&mut self.cost_nano_usd, other.cost_nano_usd);
    }

    /// In the order of the columns.
    pub(super) fn values(&self) -> [Value; 6] {
        [
            self.requests,
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            self.kv_micro_gib_seconds,
            self.cost_nano_usd,
        ]
        .map(Value::count)
    }

    pub(super) fn read(row: &Row, column: usize) -> Result<Self, Failure> {
        Ok(Self {
            requests: row.count(column)?,
            prompt_tokens: row.count(column + 1)?,
            cached_tokens: row.count(column + 2)?,
            output_tokens: row.count(column + 3)?,
            kv_micro_gib_seconds: row.count(column + 4)?,
            cost_nano_usd: row.count(column + 5)?,
        })
    }
}

/// One line of an answer; what was not asked for is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageRow {
    /// When, as `2026-03`, `2026-03-29` or `2026-03-29T13:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Who pays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much.
    #[serde(flatten)]
    pub amounts: Amounts,
}

/// The sums of the six amounts: cast, since PostgreSQL sums whole numbers into another type.
pub(super) const SUMS: &str = "CAST(SUM(requests) AS BIGINT), CAST(SUM(prompt_tokens) AS BIGINT), \
                    CAST(SUM(cached_tokens) AS BIGINT), CAST(SUM(output_tokens) AS BIGINT), \
                    CAST(SUM(kv) AS BIGINT), CAST(SUM(cost) AS BIGINT)";

impl Question {
    /// The coarsest rows that can answer it exactly.
    fn grain(&self) -> Result<Grain, UsageError> {
        let whole = |grain: Grain| {
            [self.from_us, self.to_us]
                .iter()
                .all(|at| grain.start(*at) == *at)
        };
        if !whole(Grain::Hour) {
            return Err(UsageError::NotWholeHours);
        }
        let mut coarsest = Grain::Month;
        for dimension in &self.by {
            if let Dimension::Time(grain) = dimension {
                if !whole(*grain) {
                    let name = if *grain == Grain::Day { "day" } else { "month" };
                    return Err(UsageError::CutsGrain(name));
                }
                coarsest = coarsest.min(*grain);
            }
        }
        let fits = Grain::ALL.into_iter().rev();
        let mut fits = fits.filter(|grain| *grain <= coarsest && whole(*grain));
        Ok(fits.next().unwrap_or(Grain::Hour))
    }

    fn compare(&self, a: &UsageRow, b: &UsageRow) -> Ordering {
        let each = self.by.iter().map(|dimension| match dimension {
            Dimension::Tenant => a.tenant.cmp(&b.tenant),
            Dimension::Model => a.model.cmp(&b.model),
            Dimension::Time(_) => a.time.cmp(&b.time),
        });
        each.fold(Ordering::Equal, Ordering::then)
    }

    fn check(&self) -> Result<(), UsageError> {
        let times = |dimension: &&Dimension| matches!(dimension, Dimension::Time(_));
        let once = |wanted: Dimension| self.by.iter().filter(|one| **one == wanted).count() <= 1;
        let fine = once(Dimension::Tenant)
            && once(Dimension::Model)
            && self.by.iter().filter(times).count() <= 1;
        fine.then_some(()).ok_or(UsageError::Twice)
    }
}

impl Store {
    /// Sums usage; lines in the order of the dimensions asked for.
    ///
    /// # Errors
    /// [`UsageError`].
    pub fn usage(&mut self, question: &Question) -> Result<Vec<UsageRow>, UsageError> {
        question.check()?;
        let grain = question.grain()?;
        let column = |dimension: &Dimension| match dimension {
            Dimension::Tenant => "tenant",
            Dimension::Model => "model",
            Dimension::Time(_) => "start_us",
        };
        let columns: Vec<_> = question.by.iter().map(column).collect();
        let mut sql = format!(
            "SELECT {}{SUMS} FROM usage WHERE grain = $1 AND start_us >= $2 AND start_us < $3",
            columns
                .iter()
                .map(|name| format!("{name}, "))
                .collect::<String>()
        );
        let mut values = vec![
            Value::Int(grain.number()),
            Value::count(question.from_us),
            Value::count(question.to_us),
        ];
        if let Some(tenant) = &question.tenant {
            sql.push_str(" AND tenant = $4");
            values.push(Value::text(tenant));
        }
        if !columns.is_empty() {
            sql.push_str(&format!(" GROUP BY {}", columns.join(", ")));
        }
        let mut lines = self.with(|database| {
            let rows = database.query(&sql, &values)?;
            // A sum over nothing is one row without amounts.
            let some = rows.iter().filter(|row| row.0.last() != Some(&Value::Null));
            let lines = some.map(|row| read(row, &question.by));
            lines.collect::<Result<Vec<_>, _>>()
        })?;
        // Here, since databases differ in how they order text.
        lines.sort_by(|a, b| question.compare(a, b));
        Ok(lines)
    }
}

fn read(row: &Row, by: &[Dimension]) -> Result<UsageRow, Failure> {
    let mut line = UsageRow::default();
    for (column, dimension) in by.iter().enumerate() {
        match dimension {
            Dimension::Tenant => line.tenant = Some(row.text(column)?),
            Dimension::Model => line.model = Some(row.text(column)?),
            Dimension::Time(grain) => line.time = Some(grain.label(row.count(column)?)),
        }
    }
    line.amounts = Amounts::read(row, by.len())?;
    Ok(line)
}
