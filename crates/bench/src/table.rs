//! The report as text, for a terminal.

use std::fmt;

use crate::remedy::Lost;
use crate::report::Report;
use crate::spec::Cycle;
use crate::summary::{Latencies, TenantSummary, Validity};

const HEADINGS: [&str; 13] = [
    "tenant", "due", "done", "refused", "failed", "open", "TTFT p50", "p90", "p99", "TPOT p50",
    "p99", "E2E p99", "tok/s",
];

impl fmt::Display for Report {
    /// The whole table of a valid run; of another one the reasons, and no number to quote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.header;
        writeln!(
            f,
            "{} ({}), seed {}: {} of {} s, the first {} s left out; {} cores: {}",
            header.endpoint,
            header.model,
            header.seed,
            match header.cycle {
                Cycle::Open => "open loop".to_owned(),
                Cycle::Closed(clients) => format!("CLOSED loop of {clients} clients"),
            },
            header.duration_s,
            header.warm_up_s,
            header.machine.cores,
            header.machine.cpu,
        )?;
        match header.cycle {
            Cycle::Open => {}
            Cycle::Closed(_) => writeln!(
                f,
                "Each client waits for its answer, so a slow endpoint is asked for less: these are \
                 no latencies under a load."
            )?,
        }
        if let Validity::Invalid(reasons) = &self.validity {
            writeln!(f, "INVALID, no numbers to report:")?;
            return reasons
                .iter()
                .try_for_each(|reason| writeln!(f, "  {reason}"));
        }
        let lines: Vec<[String; 13]> = self
            .tenants
            .iter()
            .map(line)
            .chain([self.totals_line()])
            .collect();
        aligned(f, &lines)?;
        self.tenants
            .iter()
            .try_for_each(|tenant| notes(f, tenant))?;
        writeln!(
            f,
            "send slip p50 {:.2}, p99 {:.2}, max {:.2} ms. Times in ms from the intended send; \
             tok/s arrived inside the window.",
            self.slip.p50_ms, self.slip.p99_ms, self.slip.max_ms,
        )?;
        if self.tenants.iter().any(|tenant| !tenant.ttft.p99_supported) {
            writeln!(
                f,
                "?: of too few requests for a claim about the 99th percentile (459 needed)."
            )?;
        }
        Ok(())
    }
}

impl Report {
    fn totals_line(&self) -> [String; 13] {
        let totals = &self.totals;
        let counts = [
            totals.due,
            totals.completed,
            totals.refused,
            totals.failed,
            totals.unfinished,
        ];
        let [due, done, refused, failed, open] = counts.map(|count| count.to_string());
        let none = String::new;
        let tokens = format!("{:.0}", totals.tokens_per_s);
        let name = "all".to_owned();
        [
            name,
            due,
            done,
            refused,
            failed,
            open,
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            tokens,
        ]
    }
}

fn line(tenant: &TenantSummary) -> [String; 13] {
    let refused: u64 = tenant.refused.values().sum();
    let failed: u64 = tenant.failed.values().sum();
    let counts = [
        tenant.due,
        tenant.completed,
        refused,
        failed,
        tenant.unfinished,
    ];
    let [due, done, refused, failed, open] = counts.map(|count| count.to_string());
    [
        tenant.name.clone(),
        due,
        done,
        refused,
        failed,
        open,
        millis(tenant.ttft.p50_ms),
        millis(tenant.ttft.p90_ms),
        marked(&tenant.ttft),
        millis(tenant.tpot.p50_ms),
        marked(&tenant.tpot),
        marked(&tenant.e2e),
        format!("{:.0}", tenant.tokens_per_s),
    ]
}

/// Columns as wide as their widest cell; names to the left, numbers to the right.
fn aligned(f: &mut fmt::Formatter<'_>, lines: &[[String; 13]]) -> fmt::Result {
    let headings = HEADINGS.map(str::to_owned);
    let mut widths = [0; 13];
    for line in lines.iter().chain([&headings]) {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    for line in [&headings].into_iter().chain(lines) {
        let mut text = String::new();
        for (index, (cell, width)) in line.iter().zip(widths).enumerate() {
            text += &if index == 0 {
                format!("{cell:<width$}")
            } else {
                format!("  {cell:>width$}")
            };
        }
        writeln!(f, "{}", text.trim_end())?;
    }
    Ok(())
}

/// What the table has no column for.
fn notes(f: &mut fmt::Formatter<'_>, tenant: &TenantSummary) -> fmt::Result {
    let windows = tenant
        .ttft_windows
        .iter()
        .map(|window| millis(window.p99_ms));
    let windows: Vec<String> = windows.collect();
    writeln!(
        f,
        "{}: TTFT p99 by 10 s: {}",
        tenant.name,
        windows.join(" ")
    )?;
    for (kind, by_reason) in [("refused", &tenant.refused), ("failed", &tenant.failed)] {
        let lost = Lost { kind, by_reason };
        if let Some(counts) = lost.counts() {
            writeln!(f, "{}: {counts}", tenant.name)?;
        }
        if let Some(remedy) = lost.remedy() {
            writeln!(f, "  -> {remedy}")?;
        }
    }
    for (what, means) in [
        ("prompt", tenant.prompt_tokens),
        ("output", tenant.output_tokens),
    ] {
        if let [Some(asked), Some(counted)] = means
            && (asked - counted).abs() > 0.02 * asked
        {
            let name = &tenant.name;
            writeln!(
                f,
                "{name}: {what} tokens: {asked:.1} asked for, {counted:.1} counted"
            )?;
        }
    }
    if tenant.unfinished > 0 {
        let (name, count) = (&tenant.name, tenant.unfinished);
        writeln!(
            f,
            "{name}: {count} had not ended when the run was over; their wait so far counts"
        )?;
    }
    Ok(())
}

pub(crate) fn millis(millis: Option<f64>) -> String {
    millis.map_or_else(
        || "-".to_owned(),
        |millis| {
            if millis < 1_000.0 {
                format!("{millis:.1}")
            } else {
                format!("{millis:.0}")
            }
        },
    )
}

/// A 99th percentile, with a mark if its sample is too small to claim anything.
fn marked(latencies: &Latencies) -> String {
    let mark = if latencies.p99_supported || latencies.n == 0 {
        ""
    } else {
        "?"
    };
    format!("{}{mark}", millis(latencies.p99_ms))
}
