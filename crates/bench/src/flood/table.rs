//! The comparison as text, for a terminal.

use std::fmt;

use super::{ArmSummary, FloodReport};
use crate::table::millis;

const HEADINGS: [&str; 8] = [
    "arm",
    "quiet TTFT p50",
    "p90",
    "p99",
    "worst tenant p99",
    "tok/s",
    "quiet lost",
    "others lost",
];

impl fmt::Display for FloodReport {
    /// A line for each arm, and their windows. An arm whose runs are invalid has its reasons, and
    /// no number to quote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<[String; 8]> = self.arms.iter().map(|arm| self.line(arm)).collect();
        let mut widths = HEADINGS.map(str::len);
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        let headings = HEADINGS.map(str::to_owned);
        for line in [&headings].into_iter().chain(&lines) {
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
        for arm in &self.arms {
            for reason in &arm.invalid {
                writeln!(f, "{}: INVALID: {reason}", arm.name)?;
            }
            if arm.invalid.is_empty() {
                let windows = arm.quiet_windows.iter().map(|window| millis(window.p99_ms));
                let windows: Vec<String> = windows.collect();
                writeln!(
                    f,
                    "{}: quiet TTFT p99 by 10 s: {}",
                    arm.name,
                    windows.join(" ")
                )?;
            }
        }
        writeln!(
            f,
            "Times in ms from the intended send, open loop. tok/s: of all tenants, beside plain \
             first in, first out where that ran. ?: of too few requests for a claim about the \
             99th percentile (459 needed)."
        )
    }
}

impl FloodReport {
    fn line(&self, arm: &ArmSummary) -> [String; 8] {
        if !arm.invalid.is_empty() {
            let none = || "-".to_owned();
            return [
                arm.name.clone(),
                "INVALID".to_owned(),
                none(),
                none(),
                none(),
                none(),
                none(),
                none(),
            ];
        }
        let lost = |[due, lost]: [u64; 2]| format!("{lost}/{due}");
        let mark = if arm.quiet_ttft.p99_supported {
            ""
        } else {
            "?"
        };
        let worst = arm.worst.as_ref().map_or_else(
            || "-".to_owned(),
            |(name, p99)| format!("{} {name}", millis(Some(*p99))),
        );
        [
            arm.name.clone(),
            millis(arm.quiet_ttft.p50_ms),
            millis(arm.quiet_ttft.p90_ms),
            format!("{}{mark}", millis(arm.quiet_ttft.p99_ms)),
            worst,
            self.tokens(arm),
            lost(arm.quiet_requests),
            lost(arm.other_requests),
        ]
    }

    /// Tokens a second, and which part of plain first in, first out that is.
    fn tokens(&self, arm: &ArmSummary) -> String {
        let tokens = arm.tokens_per_s;
        let fifo = self.arms.iter().find(|arm| arm.name == "fifo");
        match fifo.filter(|fifo| fifo.invalid.is_empty() && fifo.tokens_per_s > 0.0) {
            Some(fifo) if arm.other_requests != [0, 0] => {
                format!("{tokens:.0} ({:.3})", tokens / fifo.tokens_per_s)
            }
            Some(_) | None => format!("{tokens:.0}"),
        }
    }
}
