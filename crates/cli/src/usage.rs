//! `tollgate usage` and `tollgate invoice`: what was used, and what that costs.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tollgate_bench::args::value;
use tollgate_server::store::{Amounts, Asked, InvoiceError, UsageError, UsageRow};
use tollgate_server::unix_micros;

use crate::place::{PlaceArgs, refuse, store_failed};
use crate::table::Table;
use crate::terminal;

#[derive(Args, Debug)]
pub(crate) struct UsageArgs {
    /// What to sum by: out of tenant, model, and one of hour, day, month, with commas between.
    #[arg(long, value_name = "NAMES", default_value = "tenant,model")]
    by: String,
    /// From when, in UTC: 2026-07, 2026-07-01 or 2026-07-01T13:00:00Z; this month unless given.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Up to when, itself not included; the end of this month unless given.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Of one tenant alone.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    tenant: Option<String>,
    /// How to write it.
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InvoiceArgs {
    /// Whose.
    #[arg(value_parser = value::name)]
    tenant: String,
    /// For which month of UTC, as 2026-07.
    #[arg(long, value_name = "MONTH")]
    month: String,
    /// How to write it.
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    place: PlaceArgs,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns, for people.
    Table,
    /// Comma-separated values.
    Csv,
    /// One document.
    Json,
}

pub(crate) fn usage(args: &UsageArgs) -> ExitCode {
    sums(args).err().unwrap_or(ExitCode::SUCCESS)
}

fn sums(args: &UsageArgs) -> Result<(), ExitCode> {
    let asked = Asked {
        by: Some(&args.by),
        from: args.from.as_deref(),
        to: args.to.as_deref(),
        tenant: args.tenant.as_deref(),
    };
    let question = asked.read(unix_micros()).map_err(|why| refuse(&why))?;
    let mut place = args.place.open()?;
    place.catch_up()?;
    args.tenant.iter().try_for_each(|name| place.sees(name))?;
    let rows = place
        .store
        .usage(&question)
        .map_err(|error| failed(&error))?;
    if args.format == Format::Json {
        return json(&rows);
    }
    let names: Vec<_> = args
        .by
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let mut table = Table::new(&[&names[..], &AMOUNTS].concat());
    for row in &rows {
        let mut cells: Vec<_> = names.iter().map(|name| dimension(row, name)).collect();
        cells.extend(amounts(row.amounts));
        table.row(cells);
    }
    write(&table, args.format);
    Ok(())
}

pub(crate) fn invoice(args: &InvoiceArgs) -> ExitCode {
    bill(args).err().unwrap_or(ExitCode::SUCCESS)
}

fn bill(args: &InvoiceArgs) -> Result<(), ExitCode> {
    let mut place = args.place.open()?;
    place.catch_up()?;
    place.sees(&args.tenant)?;
    let invoice = place
        .store
        .invoice(&args.tenant, &args.month)
        .map_err(|error| match &error {
            InvoiceError::Month(why) => refuse(why),
            InvoiceError::Usage(error) => failed(error),
        })?;
    if args.format == Format::Json {
        return json(&invoice);
    }
    let mut table = Table::new(&[&["model"][..], &AMOUNTS].concat());
    let mut all = Amounts::default();
    for line in &invoice.lines {
        let mut cells = vec![line.model.clone()];
        cells.extend(amounts(line.amounts));
        table.row(cells);
        all.plus(line.amounts);
    }
    let mut cells = vec!["total".to_owned()];
    cells.extend(amounts(all));
    table.row(cells);
    write(&table, args.format);
    Ok(())
}

const AMOUNTS: [&str; 6] = [
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "kv_gib_seconds",
    "cost_usd",
];

fn amounts(amounts: Amounts) -> [String; 6] {
    let kv = amounts.kv_micro_gib_seconds;
    [
        amounts.requests.to_string(),
        amounts.prompt_tokens.to_string(),
        amounts.cached_tokens.to_string(),
        amounts.output_tokens.to_string(),
        format!("{}.{:06}", kv / 1_000_000, kv % 1_000_000),
        amounts.cost_usd(),
    ]
}

fn dimension(row: &UsageRow, name: &str) -> String {
    let value = match name {
        "tenant" => &row.tenant,
        "model" => &row.model,
        _ => &row.time,
    };
    value.clone().unwrap_or_default()
}

fn write(table: &Table, format: Format) {
    let text = if format == Format::Csv {
        table.csv()
    } else {
        table.text()
    };
    terminal::answer(&text);
}

fn json(content: &impl serde::Serialize) -> Result<(), ExitCode> {
    let text = serde_json::to_string_pretty(content);
    let text = text.map_err(|error| refuse(&format!("can't write it as JSON: {error}")))?;
    terminal::answer(&text);
    Ok(())
}

fn failed(error: &UsageError) -> ExitCode {
    match error {
        UsageError::Store(error) => store_failed(error),
        UsageError::NotWholeHours | UsageError::CutsGrain(_) | UsageError::Twice => {
            refuse(&error.to_string())
        }
    }
}
