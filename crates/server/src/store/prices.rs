//! Prices by model, each from a moment on.

use std::collections::BTreeMap;

use tollgate_policy::price::Price;
use tollgate_policy::units::NanoUsd;

use super::database::{Database, Failure, Value};
use super::{Store, StoreError, insert_many};

/// A price and since when it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceRow {
    /// Of which model.
    pub model: String,
    /// Since when, in microseconds since the Unix epoch.
    pub from_us: u64,
    /// What its usage costs.
    pub price: Price,
}

impl Store {
    /// These prices hold for `models` from now on, and no others: of other models, another gateway
    /// that shares the store may have some. What has been counted keeps its cost.
    ///
    /// # Errors
    /// As the store's.
    pub fn set_prices(&mut self, models: &[String], prices: &[PriceRow]) -> Result<(), StoreError> {
        let rows: Vec<_> = prices
            .iter()
            .map(|row| {
                vec![
                    Value::text(&row.model),
                    Value::count(row.from_us),
                    Value::count(row.price.prompt.get()),
                    Value::count(row.price.cached.get()),
                    Value::count(row.price.output.get()),
                    Value::count(row.price.kv.get()),
                ]
            })
            .collect();
        self.transaction(|database| {
            for model in models {
                let sql = "DELETE FROM prices WHERE model = $1";
                database.execute(sql, &[Value::text(model)])?;
            }
            let insert = "INSERT INTO prices (model, from_us, prompt, cached, output, kv)";
            insert_many(database, insert, "", &rows)?;
            Ok(())
        })
    }

    /// All prices, by model and moment.
    ///
    /// # Errors
    /// As the store's.
    pub fn prices(&mut self) -> Result<Vec<PriceRow>, StoreError> {
        self.with(load)
    }
}

/// Which price held when.
#[derive(Debug, Default)]
pub(super) struct PriceTable(BTreeMap<String, BTreeMap<u64, Price>>);

impl PriceTable {
    pub(super) fn load(database: &mut dyn Database) -> Result<Self, Failure> {
        Ok(Self::of(load(database)?))
    }

    pub(super) fn of(rows: impl IntoIterator<Item = PriceRow>) -> Self {
        let mut table = Self::default();
        for row in rows {
            let of_model = table.0.entry(row.model).or_default();
            of_model.insert(row.from_us, row.price);
        }
        table
    }

    /// The price of `model` at a moment; `None` where none holds yet.
    pub(super) fn at(&self, model: &str, at_us: u64) -> Option<Price> {
        let (_, price) = self.0.get(model)?.range(..=at_us).next_back()?;
        Some(*price)
    }
}

fn load(database: &mut dyn Database) -> Result<Vec<PriceRow>, Failure> {
    let sql = "SELECT model, from_us, prompt, cached, output, kv FROM prices \
               ORDER BY model, from_us";
    let rows = database.query(sql, &[])?;
    let row = |row: &super::Row| {
        let money = |column| row.count(column).map(NanoUsd::new);
        Ok(PriceRow {
            model: row.text(0)?,
            from_us: row.count(1)?,
            price: Price {
                prompt: money(2)?,
                cached: money(3)?,
                output: money(4)?,
                kv: money(5)?,
            },
        })
    };
    rows.iter().map(row).collect()
}
