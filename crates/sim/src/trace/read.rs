//! The formats of the traces, line by line.

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _};

use serde::Deserialize;
use tollgate_policy::units::{Micros, Time, Tokens};

use super::{Fault, ONLY_TENANT, Trace, TraceRow, Wrong};
use crate::lengths::Lengths;

const AZURE_COLUMNS: &str = "TIMESTAMP,service,ContextTokens,GeneratedTokens";
const LMSYS_COLUMNS: &str = "arrival_s,tenant,prompt_tokens,output_tokens";

/// Mooncake's times are multiples of about this much.
const MOONCAKE_TICK: Micros = Micros::from_secs(3);

/// Rows of one service of the two that share the file.
pub(super) fn azure(lines: impl BufRead, service: &str) -> Result<Trace, Fault> {
    let mut rows = Rows::default();
    csv(lines, AZURE_COLUMNS, |[timestamp, of, prompt, output]| {
        if of != "conv" && of != "code" {
            return Err(field("service", of, "conv or code"));
        }
        if of != service {
            return Ok(());
        }
        let at = utc_micros(timestamp).ok_or_else(|| {
            field(
                "TIMESTAMP",
                timestamp,
                "a UTC time such as 2023-11-16 18:15:46.68",
            )
        })?;
        let prompt = tokens("ContextTokens", prompt)?;
        let output = tokens("GeneratedTokens", output)?;
        rows.push(at, ONLY_TENANT, prompt, output)
    })?;
    rows.into_trace(None)
}

/// Rows of the arena's 27 tenants.
pub(super) fn lmsys(lines: impl BufRead) -> Result<Trace, Fault> {
    let mut rows = Rows::default();
    csv(lines, LMSYS_COLUMNS, |[arrival, tenant, prompt, output]| {
        let at = seconds(arrival)
            .ok_or_else(|| field("arrival_s", arrival, "seconds, 0 to 31536000"))?;
        if tenant.is_empty() || tenant.len() > 64 {
            return Err(field("tenant", tenant, "a name of 1 to 64 bytes"));
        }
        let prompt = tokens("prompt_tokens", prompt)?;
        rows.push(at, tenant, prompt, tokens("output_tokens", output)?)
    })?;
    rows.into_trace(None)
}

/// A line of Mooncake's trace. Its prefix blocks are read over: nothing here shares prefixes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MooncakeLine {
    /// Milliseconds.
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    #[serde(rename = "hash_ids")]
    _hash_ids: serde::de::IgnoredAny,
}

/// Rows of Mooncake's conversations.
pub(super) fn mooncake(lines: impl BufRead) -> Result<Trace, Fault> {
    let mut rows = Rows::default();
    each_line(lines, |text| {
        let line: MooncakeLine =
            serde_json::from_str(text).map_err(|error| Wrong::Json(error.to_string()))?;
        let at = Micros::from_millis(line.timestamp).get();
        let prompt = checked_tokens("input_length", line.input_length)?;
        let output = checked_tokens("output_length", line.output_length)?;
        rows.push(at, ONLY_TENANT, prompt, output)
    })?;
    rows.into_trace(Some(MOONCAKE_TICK))
}

/// The rows so far.
#[derive(Default)]
struct Rows {
    rows: Vec<TraceRow>,
    tenants: Vec<String>,
    indices: BTreeMap<String, usize>,
    /// The first time and the last one, in microseconds of the trace's own clock.
    ends: Option<(u64, u64)>,
}

impl Rows {
    /// Adds a row, its time in microseconds of the trace's own clock.
    fn push(&mut self, at: u64, tenant: &str, prompt: Tokens, output: Tokens) -> Result<(), Wrong> {
        if self.rows.len() == Trace::ROWS_MAX {
            return Err(Wrong::TooMany {
                limit: Trace::ROWS_MAX,
                what: "rows",
            });
        }
        let (first, last) = self.ends.unwrap_or((at, at));
        if at < last {
            return Err(Wrong::Order);
        }
        self.ends = Some((first, at));
        let tenant = self.index_of(tenant)?;
        self.rows.push(TraceRow {
            at: Time::from_micros(at - first),
            tenant,
            prompt,
            output,
        });
        Ok(())
    }

    fn index_of(&mut self, tenant: &str) -> Result<usize, Wrong> {
        if let Some(index) = self.indices.get(tenant) {
            return Ok(*index);
        }
        let index = self.tenants.len();
        if index == Trace::TENANTS_MAX {
            return Err(Wrong::TooMany {
                limit: Trace::TENANTS_MAX,
                what: "tenants",
            });
        }
        self.tenants.push(tenant.to_owned());
        self.indices.insert(tenant.to_owned(), index);
        Ok(index)
    }

    fn into_trace(self, tick: Option<Micros>) -> Result<Trace, Fault> {
        if self.rows.is_empty() {
            return Err(Fault::Line {
                line: 1,
                what: Wrong::Empty,
            });
        }
        Ok(Trace {
            tenants: self.tenants,
            rows: self.rows,
            tick,
        })
    }
}

/// Calls `row` with the fields of every line after the header, which must be `columns`.
fn csv<const N: usize>(
    lines: impl BufRead,
    columns: &'static str,
    mut row: impl FnMut([&str; N]) -> Result<(), Wrong>,
) -> Result<(), Fault> {
    let mut header = Some(columns);
    each_line(lines, |line| {
        if let Some(expected) = header.take() {
            // Some tools write a byte order mark.
            let found = line.trim_start_matches('\u{feff}');
            let equal = found == expected;
            return if equal {
                Ok(())
            } else {
                Err(Wrong::Columns {
                    found: cut(found),
                    expected,
                })
            };
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let found = fields.len();
        let fields =
            <[&str; N]>::try_from(fields).map_err(|_| Wrong::Fields { found, expected: N })?;
        row(fields)
    })
}

/// Calls `read` with every line that is not blank, and adds the line's number to what it finds.
fn each_line(
    mut lines: impl BufRead,
    mut read: impl FnMut(&str) -> Result<(), Wrong>,
) -> Result<(), Fault> {
    let mut bytes = Vec::new();
    for line in 1.. {
        let fault = |what| Fault::Line { line, what };
        bytes.clear();
        let room = u64::try_from(Trace::LINE_MAX)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        if lines.by_ref().take(room).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.len() > Trace::LINE_MAX {
            return Err(fault(Wrong::TooMany {
                limit: Trace::LINE_MAX,
                what: "bytes in one line",
            }));
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            read(text).map_err(fault)?;
        }
    }
    Ok(())
}

fn tokens(column: &'static str, text: &str) -> Result<Tokens, Wrong> {
    let count = text
        .parse()
        .map_err(|_| field(column, text, "a number of tokens"))?;
    checked_tokens(column, count)
}

fn checked_tokens(column: &'static str, count: u64) -> Result<Tokens, Wrong> {
    if count > Lengths::LONGEST {
        return Err(field(column, &count.to_string(), "at most 10000000 tokens"));
    }
    Ok(Tokens::new(count))
}

fn field(column: &'static str, found: &str, expected: &'static str) -> Wrong {
    Wrong::Field {
        column,
        found: cut(found),
        expected,
    }
}

/// The first 200 characters: a message must not carry a line of a megabyte.
fn cut(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Seconds as microseconds, at most a year of them.
fn seconds(text: &str) -> Option<u64> {
    let seconds: f64 = text.parse().ok()?;
    (0.0..=31_536_000.0)
        .contains(&seconds)
        .then(|| (seconds * 1e6).round() as u64)
}

/// Microseconds from the Unix epoch to a time written `2023-11-16 18:15:46.6805900`.
fn utc_micros(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let [hour, minute, second] = numbers(clock, ':')?;
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && digits;
    if !in_range {
        return None;
    }
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

/// Three numbers of digits alone.
fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let parts: Vec<u64> = text
        .split(separator)
        .map(|part| part.parse().ok().filter(|_| !part.starts_with('+')))
        .collect::<Option<_>>()?;
    parts.try_into().ok()
}

/// Days from 1970-01-01 in the Gregorian calendar, for years from 1970 on. A year is counted from
/// March, so that the leap day is its last.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days_before_month = (153 * month + 2) / 5;
    // 719468 days lie between 0000-03-01 and 1970-01-01.
    365 * year + leap_days + days_before_month + day - 1 - 719_468
}
