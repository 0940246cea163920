//! Budgets as people set them: so much money a day or a month of a time zone.
//!
//! Here a moment becomes the window that it is in. Whether a request still fits is the policy's to
//! say. It reads no clock.

use std::fmt;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tollgate_policy::units::NanoUsd;

/// The most that a budget can be: a billion dollars; more is no budget.
pub(crate) const LIMIT_MAX: NanoUsd = NanoUsd::new(1_000_000_000_000_000_000);

/// How long a budget lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// A calendar day.
    Day,
    /// A calendar month.
    Month,
}

/// So much money per day or month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The money.
    pub limit: NanoUsd,
    /// Per what.
    pub per: Period,
    /// Whose days and months.
    pub zone: Zone,
}

/// The day or month that a moment is in, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first moment.
    pub starts_us: u64,
    /// The first moment after it.
    pub ends_us: u64,
}

/// A time zone of the IANA database.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// UTC.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// The zone of this name, as `Europe/Berlin`.
    pub fn named(name: &str) -> Option<Self> {
        TimeZone::get(name).ok().map(Self)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Budget {
    /// The window that `at_us` is in. A day begins with its first moment, also where a change of
    /// the clocks skips midnight.
    pub fn window(&self, at_us: u64) -> Window {
        let window = self.local_window(at_us);
        // Only for times that no calendar reaches.
        window.unwrap_or(Window {
            starts_us: 0,
            ends_us: u64::MAX,
        })
    }

    fn local_window(&self, at_us: u64) -> Option<Window> {
        let at = Timestamp::from_microsecond(i64::try_from(at_us).ok()?).ok()?;
        let date = at.to_zoned_datetime(self.zone.0.clone()).date();
        let (first, next) = match self.per {
            Period::Day => (date, date.tomorrow().ok()?),
            Period::Month => (date.first_of_month(), date.last_of_month().tomorrow().ok()?),
        };
        let moment = |date: jiff::civil::Date| {
            let start = date
                .to_zoned_datetime(self.zone.0.clone())
                .ok()?
                .start_of_day()
                .ok()?;
            u64::try_from(start.timestamp().as_microsecond()).ok()
        };
        Some(Window {
            starts_us: moment(first)?,
            ends_us: moment(next)?,
        })
    }
}

/// A budget as JSON has it: `{"usd": "12.50", "per": "day", "zone": "Europe/Berlin"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetText {
    /// Dollars, with up to nine decimals.
    pub usd: String,
    /// Per what.
    pub per: Period,
    /// Of which time zone; UTC unless given.
    #[serde(default = "utc")]
    pub zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

impl BudgetText {
    /// The budget that it says.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn read(&self) -> Result<Budget, String> {
        let limit = dollars(&self.usd).filter(|limit| *limit <= LIMIT_MAX);
        let limit = limit.ok_or_else(|| {
            format!(
                "usd is {}; use dollars with up to nine decimals, like 12.50, at most 1000000000",
                self.usd
            )
        })?;
        let zone = Zone::named(&self.zone).ok_or_else(|| {
            format!(
                "zone is {}, which is no time zone; use one like Europe/Berlin",
                self.zone
            )
        })?;
        Ok(Budget {
            limit,
            per: self.per,
            zone,
        })
    }
}

impl From<&Budget> for BudgetText {
    fn from(budget: &Budget) -> Self {
        Self {
            usd: budget.limit.to_string(),
            per: budget.per,
            zone: budget.zone.name().to_owned(),
        }
    }
}

/// The money that `text` says in dollars, with up to nine decimals and no sign.
pub fn dollars(text: &str) -> Option<NanoUsd> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !number(whole) || !number(decimals) || decimals.len() > 9 {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    let nano = whole.checked_mul(1_000_000_000)?.checked_add(decimals)?;
    Some(NanoUsd::new(nano))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(per: Period, zone: &str) -> Budget {
        Budget {
            limit: NanoUsd::new(1),
            per,
            zone: Zone::named(zone).unwrap(),
        }
    }

    fn us(text: &str) -> u64 {
        let at: Timestamp = text.parse().unwrap();
        u64::try_from(at.as_microsecond()).unwrap()
    }

    fn hours(window: Window) -> u64 {
        (window.ends_us - window.starts_us) / 3_600_000_000
    }

    #[test]
    fn a_day_begins_at_local_midnight_and_has_23_or_25_hours_where_the_clocks_change() {
        let tokyo = budget(Period::Day, "Asia/Tokyo").window(us("2026-03-08T16:00:00Z"));
        assert_eq!(tokyo.starts_us, us("2026-03-08T15:00:00Z"));
        let cases = [
            ("2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", 23),
            ("2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", 25),
            ("2026-11-02T12:00:00Z", "2026-11-02T05:00:00Z", 24),
        ];
        for (at, starts, long) in cases {
            let window = budget(Period::Day, "America/New_York").window(us(at));
            assert_eq!(
                (window.starts_us, hours(window)),
                (us(starts), long),
                "{at}"
            );
        }
    }

    #[test]
    fn a_day_whose_midnight_is_skipped_begins_when_it_does() {
        // Clocks in São Paulo went from 23:59:59 to 01:00 on 2018-11-04.
        let window = budget(Period::Day, "America/Sao_Paulo").window(us("2018-11-04T12:00:00Z"));
        assert_eq!(window.starts_us, us("2018-11-04T03:00:00Z"));
        assert_eq!(hours(window), 23);
    }

    #[test]
    fn a_month_ends_where_the_next_begins_leap_years_included() {
        let cases = [
            ("2026-01-31T23:30:00Z", "2026-01-31T23:00:00Z", 28 * 24),
            ("2026-02-28T22:59:59Z", "2026-01-31T23:00:00Z", 28 * 24),
            ("2028-02-10T00:00:00Z", "2028-01-31T23:00:00Z", 29 * 24),
            ("2026-03-10T00:00:00Z", "2026-02-28T23:00:00Z", 31 * 24 - 1),
        ];
        for (at, starts, long) in cases {
            let window = budget(Period::Month, "Europe/Berlin").window(us(at));
            assert_eq!(
                (window.starts_us, hours(window)),
                (us(starts), long),
                "{at}"
            );
        }
    }

    #[test]
    fn money_is_read_to_the_last_decimal_or_not_at_all() {
        assert_eq!(dollars("12.5"), Some(NanoUsd::new(12_500_000_000)));
        assert_eq!(dollars("0.000000001"), Some(NanoUsd::new(1)));
        for text in [
            "",
            "-1",
            "+1",
            "1.",
            ".5",
            "1e3",
            "0.0000000001",
            "99999999999999999999",
        ] {
            assert_eq!(dollars(text), None, "{text}");
        }
    }

    proptest! {
        /// Windows lie end to end, each moment is in its own, and each begins on a whole quarter of
        /// an hour, which is how spending is kept.
        #[test]
        fn windows_lie_end_to_end(
            at in 946_684_800_u64..2_208_988_800,
            zone in prop::sample::select(vec![
                "UTC", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns",
                "Pacific/Apia", "Europe/Berlin", "America/New_York", "Africa/Casablanca",
            ]),
            monthly in any::<bool>(),
        ) {
            let budget = budget(if monthly { Period::Month } else { Period::Day }, zone);
            let at = at * 1_000_000;
            let window = budget.window(at);
            prop_assert!(window.starts_us <= at && at < window.ends_us);
            prop_assert_eq!(budget.window(window.ends_us).starts_us, window.ends_us);
            prop_assert_eq!(budget.window(window.starts_us), window);
            prop_assert_eq!(window.starts_us % 900_000_000, 0);
        }
    }
}
