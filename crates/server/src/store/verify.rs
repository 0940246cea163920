//! Recounts: the journal against the log of requests, the log against usage, and usage against its
//! own sums. It changes nothing.

use std::collections::BTreeMap;

use super::database::{Database, Failure, Row, Value};
use super::fold::Charge;
use super::usage::{Amounts, Grain, SUMS};
use super::{Store, StoreError};

/// Something that the store has otherwise than it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A request of the journal that the store does not know.
    Missing {
        /// Which.
        request: String,
    },
    /// A request with other amounts.
    Request {
        /// Which.
        request: String,
        /// By the journal: prompt, cached and output tokens, and KV.
        journal: [u64; 4],
        /// By the store.
        store: [u64; 4],
    },
    /// A request that is put down as another's, or for something else.
    Words {
        /// Which.
        request: String,
        /// What of it: `tenant`, `key`, `model` or `outcome`.
        what: &'static str,
        /// By the journal.
        journal: String,
        /// By the store.
        store: String,
    },
    /// Usage that is not the sum of what it is made of.
    Usage {
        /// Of which rows.
        grain: Grain,
        /// Whose, what for, and since when.
        of: (String, String, u64),
        /// What it should be.
        counted: Amounts,
        /// What it is.
        store: Amounts,
    },
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing { request } => write!(f, "{request}: not in the store"),
            Self::Request {
                request,
                journal: [a, b, c, d],
                store: [e, g, h, i],
            } => write!(
                f,
                "{request}: prompt {a}, cached {b}, output {c}, kv {d} in the journal; prompt {e}, \
                 cached {g}, output {h}, kv {i} in the store"
            ),
            Self::Words {
                request,
                what,
                journal,
                store,
            } => write!(
                f,
                "{request}: the {what} is {journal:?} in the journal and {store:?} in the store"
            ),
            Self::Usage {
                grain,
                of: (tenant, model, start),
                counted,
                store,
            } => write!(
                f,
                "{grain:?} of {tenant} and {model} from {start}: {counted:?} counted; {store:?} in \
                 the store"
            ),
        }
    }
}

type Sums = BTreeMap<(String, String, u64), Amounts>;

impl Store {
    /// Where the log of requests differs from what `charges` of `journal` say. Records that are
    /// still to be folded, and those of requests that the log has forgotten by age, are left out.
    ///
    /// # Errors
    /// As the store's.
    pub fn verify_journal(
        &mut self,
        journal: &str,
        charges: &[Charge],
    ) -> Result<Vec<Difference>, StoreError> {
        self.with(|database| {
            let folded = super::fold::watermark(database, journal)?.number;
            let purged = purged(database)?;
            let mut found = Vec::new();
            let due = charges
                .iter()
                .filter(|one| one.number < folded && one.ended_us >= purged);
            for one in due {
                found.extend(compare(database, journal, one)?);
            }
            Ok(found)
        })
    }

    /// Where usage differs from the requests in the log, and days and months from their hours.
    ///
    /// # Errors
    /// As the store's.
    pub fn verify_usage(&mut self) -> Result<Vec<Difference>, StoreError> {
        self.transaction(|database| {
            let hours = sums(database, Grain::Hour)?;
            let mut found = compare_log(database, &hours)?;
            for grain in [Grain::Day, Grain::Month] {
                let mut counted = Sums::new();
                for ((tenant, model, start), amounts) in &hours {
                    let of = (tenant.clone(), model.clone(), grain.start(*start));
                    counted.entry(of).or_default().plus(*amounts);
                }
                let store = sums(database, grain)?;
                found.extend(differences(grain, &counted, &store));
            }
            Ok(found)
        })
    }
}

fn purged(database: &mut dyn Database) -> Result<u64, Failure> {
    let rows = database.query("SELECT value FROM meta WHERE name = 'purged_us'", &[])?;
    rows.first().map_or(Ok(0), |row| row.count(0))
}

fn compare(
    database: &mut dyn Database,
    journal: &str,
    one: &Charge,
) -> Result<Option<Difference>, Failure> {
    let sql = "SELECT prompt_tokens, cached_tokens, output_tokens, kv, tenant, key_id, model, \
               outcome FROM request_log WHERE journal = $1 AND request = $2";
    let rows = database.query(sql, &[Value::text(journal), Value::text(&one.request)])?;
    let request = one.request.clone();
    let Some(row) = rows.first() else {
        return Ok(Some(Difference::Missing { request }));
    };
    let store = [row.count(0)?, row.count(1)?, row.count(2)?, row.count(3)?];
    let journal = [
        one.usage.prompt.get(),
        one.usage.cached.get(),
        one.usage.output.get(),
        one.kv.micro_gib_secs(),
    ];
    if store != journal {
        return Ok(Some(Difference::Request {
            request,
            journal,
            store,
        }));
    }
    other_words(row, one)
}

/// Where a request is somebody else's, or for something else, than the journal has it.
fn other_words(row: &Row, one: &Charge) -> Result<Option<Difference>, Failure> {
    let words = [
        ("tenant", &*one.tenant),
        ("key", one.key.as_deref().unwrap_or_default()),
        ("model", &*one.model),
        ("outcome", &*one.outcome),
    ];
    for (place, (what, journal)) in words.into_iter().enumerate() {
        let store = row.text(4 + place)?;
        if store != journal {
            return Ok(Some(Difference::Words {
                request: one.request.clone(),
                what,
                journal: journal.to_owned(),
                store,
            }));
        }
    }
    Ok(None)
}

/// Compares the hours of which the log still has all requests.
fn compare_log(database: &mut dyn Database, hours: &Sums) -> Result<Vec<Difference>, Failure> {
    let purged = purged(database)?;
    let since = Grain::Hour.start(purged.saturating_add(Grain::HOUR_US - 1));
    let sql = "SELECT tenant, model, ended_us - ended_us % 3600000000 AS start_us, COUNT(*), \
               CAST(SUM(prompt_tokens) AS BIGINT), CAST(SUM(cached_tokens) AS BIGINT), \
               CAST(SUM(output_tokens) AS BIGINT), CAST(SUM(kv) AS BIGINT), \
               CAST(SUM(cost) AS BIGINT) FROM request_log WHERE ended_us >= $1 \
               GROUP BY 1, 2, 3";
    let counted = collect(&database.query(sql, &[Value::count(since)])?)?;
    let due = hours.iter().filter(|((_, _, start), _)| *start >= since);
    let store: Sums = due.map(|(of, amounts)| (of.clone(), *amounts)).collect();
    Ok(differences(Grain::Hour, &counted, &store))
}

fn sums(database: &mut dyn Database, grain: Grain) -> Result<Sums, Failure> {
    let sql = format!(
        "SELECT tenant, model, start_us, {SUMS} FROM usage WHERE grain = $1 GROUP BY 1, 2, 3"
    );
    collect(&database.query(&sql, &[Value::Int(grain.number())])?)
}

fn collect(rows: &[Row]) -> Result<Sums, Failure> {
    let each = rows.iter().map(|row| {
        let of = (row.text(0)?, row.text(1)?, row.count(2)?);
        Ok((of, Amounts::read(row, 3)?))
    });
    each.collect()
}

fn differences(grain: Grain, counted: &Sums, store: &Sums) -> Vec<Difference> {
    let names: std::collections::BTreeSet<_> = counted.keys().chain(store.keys()).collect();
    let amounts = |sums: &Sums, of| sums.get(of).copied().unwrap_or_default();
    let each = names.into_iter().filter_map(|of| {
        let (counted, store) = (amounts(counted, of), amounts(store, of));
        (counted != store).then(|| Difference::Usage {
            grain,
            of: of.clone(),
            counted,
            store,
        })
    });
    each.collect()
}
