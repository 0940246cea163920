//! Questions about usage as people write them, and invoices.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Serialize;
use tollgate_policy::units::NanoUsd;

use super::usage::{Amounts, Dimension, Grain, Question, UsageError};
use super::{Store, StoreError};

/// A question in words; what is left out has a default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Out of `tenant`, `model`, and one of `hour`, `day`, `month`, with commas between them.
    pub by: Option<&'a str>,
    /// A month, a day or a moment; the start of this month.
    pub from: Option<&'a str>,
    /// The same, and not included; the end of this month.
    pub to: Option<&'a str>,
    /// One tenant alone.
    pub tenant: Option<&'a str>,
}

impl Asked<'_> {
    /// The question, asked at `now_us`.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn read(&self, now_us: u64) -> Result<Question, String> {
        let by = self.by.unwrap_or("tenant,model").split(',').map(str::trim);
        let by = by.filter(|name| !name.is_empty()).map(|name| {
            Dimension::named(name).ok_or_else(|| {
                format!("can't sum by {name}; use tenant, model, hour, day or month")
            })
        });
        let from_us = match self.from {
            Some(text) => moment(text)?,
            None => Grain::Month.start(now_us),
        };
        let to_us = match self.to {
            Some(text) => moment(text)?,
            None => next_month(now_us),
        };
        if from_us >= to_us {
            return Err("from is not before to; turn them round".to_owned());
        }
        Ok(Question {
            by: by.collect::<Result<_, _>>()?,
            from_us,
            to_us,
            tenant: self.tenant.map(str::to_owned),
        })
    }
}

impl Question {
    /// Its first moment and the one after its last, as people read them.
    pub fn span(&self) -> (String, String) {
        let shown = |at_us: u64| {
            let at = i64::try_from(at_us)
                .ok()
                .and_then(|at| Timestamp::from_microsecond(at).ok());
            at.map_or_else(|| at_us.to_string(), |at| at.to_string())
        };
        (shown(self.from_us), shown(self.to_us))
    }
}

/// The moment that `text` names, in microseconds since the Unix epoch.
///
/// # Errors
/// What to write.
pub fn moment(text: &str) -> Result<u64, String> {
    let day = |text: &str| {
        let date: Date = text.parse().ok()?;
        Some(date.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp())
    };
    let at = match text.len() {
        7 => day(&format!("{text}-01")),
        10 => day(text),
        _ => text.parse().ok(),
    };
    at.and_then(|at: Timestamp| u64::try_from(at.as_microsecond()).ok())
        .ok_or_else(|| {
            format!("{text} is no time; use 2026-07, 2026-07-01 or 2026-07-01T13:00:00Z")
        })
}

fn next_month(at_us: u64) -> u64 {
    const THIRTY_TWO_DAYS_US: u64 = 32 * 86_400_000_000;
    let start = Grain::Month.start(at_us);
    Grain::Month.start(start.saturating_add(THIRTY_TWO_DAYS_US))
}

/// What a tenant owes for a month of UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invoice {
    /// Who.
    pub tenant: String,
    /// For which month, as `2026-07`.
    pub month: String,
    /// Always dollars.
    pub currency: &'static str,
    /// For which models how much.
    pub lines: Vec<InvoiceLine>,
    /// All of it, in billionths of a dollar.
    pub total_nano_usd: u64,
    /// The same in dollars.
    pub total_usd: String,
}

/// One model on an invoice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InvoiceLine {
    /// Its name.
    pub model: String,
    /// What was used of it, and what that costs.
    #[serde(flatten)]
    pub amounts: Amounts,
    /// The cost in dollars.
    pub cost_usd: String,
}

/// Why there is no invoice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvoiceError {
    /// Not a month.
    #[error("{0}")]
    Month(String),
    /// Its usage can't be summed.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

impl Store {
    /// What a tenant owes for a month of UTC, as `2026-07`.
    ///
    /// # Errors
    /// [`InvoiceError`].
    pub fn invoice(&mut self, tenant: &str, month: &str) -> Result<Invoice, InvoiceError> {
        let start = moment(month)
            .ok()
            .filter(|_| month.len() == "2026-07".len());
        let wrong = || InvoiceError::Month(format!("{month} is no month; use one like 2026-07"));
        let from_us = start.ok_or_else(wrong)?;
        let rows = self.usage(&Question {
            by: vec![Dimension::Model],
            from_us,
            to_us: next_month(from_us),
            tenant: Some(tenant.to_owned()),
        })?;
        let line = |(model, amounts): (Option<String>, Amounts)| InvoiceLine {
            model: model.unwrap_or_default(),
            cost_usd: NanoUsd::new(amounts.cost_nano_usd).to_string(),
            amounts,
        };
        let lines: Vec<_> = rows
            .into_iter()
            .map(|row| line((row.model, row.amounts)))
            .collect();
        let costs = lines.iter().map(|line| line.amounts.cost_nano_usd);
        let total = costs.fold(0, u64::saturating_add);
        Ok(Invoice {
            tenant: tenant.to_owned(),
            month: month.to_owned(),
            currency: "USD",
            lines,
            total_nano_usd: total,
            total_usd: NanoUsd::new(total).to_string(),
        })
    }
}

impl From<StoreError> for InvoiceError {
    fn from(error: StoreError) -> Self {
        Self::Usage(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-29T01:00Z.
    const NOW: u64 = 1_774_746_000_000_000;

    fn read(asked: Asked<'_>) -> Result<(String, String), String> {
        asked.read(NOW).map(|question| question.span())
    }

    #[test]
    fn what_is_left_out_is_this_month() {
        let span = read(Asked::default()).unwrap();
        let month = ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z");
        assert_eq!((&*span.0, &*span.1), month);
    }

    #[test]
    fn a_time_is_a_month_a_day_or_a_moment() {
        for (text, at) in [
            ("2026-02", "2026-02-01T00:00:00Z"),
            ("2026-02-03", "2026-02-03T00:00:00Z"),
            ("2026-02-03T04:00:00+01:00", "2026-02-03T03:00:00Z"),
        ] {
            let from = Some(text);
            let span = read(Asked {
                from,
                ..Asked::default()
            })
            .unwrap();
            assert_eq!(span.0, at, "{text}");
        }
        for text in ["", "yesterday", "2026-13", "2026-02-30", "1969-12-31"] {
            let from = Some(text);
            assert!(
                read(Asked {
                    from,
                    ..Asked::default()
                })
                .is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_question_that_makes_no_sense_says_why() {
        let by = read(Asked {
            by: Some("tenant,colour"),
            ..Asked::default()
        });
        assert!(by.unwrap_err().contains("by colour; use tenant, model"));
        let turned = read(Asked {
            from: Some("2026-05"),
            to: Some("2026-04"),
            ..Asked::default()
        });
        assert!(turned.unwrap_err().contains("not before"));
    }
}
