//! The `store` and `prices` sections: where usage is kept, and what it costs.

use std::fmt;
use std::path::Path;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use tollgate_policy::price::Price;
use tollgate_policy::units::{Micros, NanoUsd};

use super::decode::{Cursor, Fields};
use super::models::Models;
use crate::members::budget::{Budget, LIMIT_MAX, Period, Zone, dollars};
use crate::store::{Location, PriceRow, ServerAddress};

/// The name of the SQLite file in the data folder.
const FILE: &str = "tollgate.db";

/// How long single requests are kept unless something else is said: thirty days.
const REQUEST_LOG: Micros = Micros::from_secs(30 * 86_400);

/// The most that anything may cost: a thousand dollars for a million tokens.
const PRICE_MAX: NanoUsd = NanoUsd::new(1_000_000_000_000);

/// Where usage is kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// A PostgreSQL; an SQLite file in the data folder where there is none.
    pub server: Option<ServerUrl>,
    /// How long single requests are kept, 1 h to 10 years. Usage is kept for ever.
    pub request_log: Micros,
}

/// The URL of a PostgreSQL, which may have a password in it. It prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl(String);

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            server: None,
            request_log: REQUEST_LOG,
        }
    }
}

impl StoreConfig {
    /// Where the store of a gateway with this data folder is.
    pub fn location(&self, data_dir: &Path) -> Location {
        match &self.server {
            Some(ServerUrl(url)) => Location::Server(url.clone()),
            None => Location::File(data_dir.join(FILE)),
        }
    }

    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        section.mapping(|fields| {
            let hours = |hours: u64| Micros::from_secs(hours * 3_600);
            Self {
                server: fields.optional("url", |value| server(&value.secret())),
                request_log: fields
                    .optional("request_log", |value| {
                        value.duration(hours(1)..=hours(87_600))
                    })
                    .unwrap_or(REQUEST_LOG),
            }
        })
    }
}

fn server(value: &Cursor<'_>) -> Option<ServerUrl> {
    const WANT: &str = "a URL like postgres://user:password@host/database";
    let text = value.text(WANT)?;
    let known = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    let libpq = text.contains("host=");
    let address = match ServerAddress::read(text) {
        Ok(address) => address,
        Err(why) => {
            value.report(format!("has an {why}"));
            return None;
        }
    };
    if (known || libpq) && address.url.parse::<postgres::Config>().is_ok() {
        return Some(ServerUrl(text.to_owned()));
    }
    value.refuse(WANT)
}

/// Reads the list of prices.
pub(super) fn prices(section: &Cursor<'_>, models: &Models) -> Option<Vec<PriceRow>> {
    let mut seen: Vec<(String, u64)> = Vec::new();
    section.list(|item| {
        item.mapping(|fields| {
            let model = fields.required("model", "name the model", |value| model(&value, models));
            let from = match fields.find("from") {
                Some(value) => date(&value),
                None => Some(0),
            };
            let price = price(fields);
            let row = PriceRow {
                model: model?,
                from_us: from?,
                price,
            };
            let of = (row.model.clone(), row.from_us);
            if seen.contains(&of) {
                fields.report(
                    "from",
                    "is that of an earlier price of the model; use another date",
                );
                return None;
            }
            seen.push(of);
            Some(row)
        })
        .flatten()
    })
}

fn price(fields: &mut Fields<'_, '_>) -> Price {
    let mut amount = |key| {
        let read = fields.optional(key, |value| money(&value, PRICE_MAX));
        read.unwrap_or_default()
    };
    let (prompt, output) = (amount("prompt"), amount("output"));
    let kv = amount("kv_gib_second");
    let cached = fields.optional("cached", |value| money(&value, PRICE_MAX));
    Price {
        prompt,
        cached: cached.unwrap_or(prompt),
        output,
        kv,
    }
}

/// Usage is kept under the name of a model, so an alias is turned into it.
fn model(value: &Cursor<'_>, models: &Models) -> Option<String> {
    let want = "the name of a model in models";
    let text = value.text(want)?;
    let id = models.find(text).or_else(|| value.refuse(want))?;
    let place = usize::try_from(id.get()).unwrap_or(usize::MAX);
    models.list().get(place).map(|model| model.name.clone())
}

/// Reads a day, which begins at midnight UTC.
fn date(value: &Cursor<'_>) -> Option<u64> {
    const WANT: &str = "a date like 2026-07-01";
    let text = value.text(WANT)?;
    let start = text
        .parse::<Date>()
        .ok()
        .filter(|_| text.len() == "2026-07-01".len())
        .and_then(|date| date.to_zoned_datetime(TimeZone::UTC).ok())
        .and_then(|start| u64::try_from(start.timestamp().as_microsecond()).ok());
    start.or_else(|| value.refuse(WANT))
}

fn money(value: &Cursor<'_>, most: NanoUsd) -> Option<NanoUsd> {
    let want = format!("dollars with at most nine decimals, 0 to {most}");
    match dollars(value.text(&want)?) {
        Some(amount) if amount <= most => Some(amount),
        Some(_) | None => value.refuse(want),
    }
}

/// Reads a budget.
pub(super) fn budget(section: &Cursor<'_>) -> Option<Budget> {
    section
        .mapping(|fields| {
            let limit = fields.required("usd", "say how much", |value| money(&value, LIMIT_MAX));
            let periods = [("day", Period::Day), ("month", Period::Month)];
            let per = fields.required("per", "use day or month", |value| value.choice(&periods));
            let zone = match fields.find("zone") {
                Some(value) => zone(&value),
                None => Some(Zone::UTC),
            };
            Some(Budget {
                limit: limit?,
                per: per?,
                zone: zone?,
            })
        })
        .flatten()
}

fn zone(value: &Cursor<'_>) -> Option<Zone> {
    const WANT: &str = "the name of a time zone, like Europe/Berlin or UTC";
    Zone::named(value.text(WANT)?).or_else(|| value.refuse(WANT))
}
