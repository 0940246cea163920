//! A trace of decisions, summed up by model and tenant.

use std::collections::BTreeMap;

use tollgate_server::promises::COLUMNS;

use crate::table::Table;

/// What the trace comes to.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// By model and tenant.
    tenants: BTreeMap<(String, String), Sum>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    decided: u64,
    refused: u64,
    dropped: u64,
    explored: u64,
    /// By TTFT, TPOT and E2E.
    due: [u64; 3],
    kept: [u64; 3],
    /// Bound on the first token over what came.
    widths: Vec<f64>,
}

impl Sums {
    /// Adds a line; one that is not whole, as the last one of a file may be, is left out.
    pub(super) fn add(&mut self, line: &str) {
        let cells = cells(line);
        let at = |name: &str| {
            let place = COLUMNS.split(',').position(|column| column == name)?;
            cells.get(place).map(String::as_str)
        };
        let (Some(model), Some(tenant), Some(_)) = (at("model"), at("tenant"), at("output")) else {
            return;
        };
        let whose = (model.to_owned(), tenant.to_owned());
        let sum = self.tenants.entry(whose).or_default();
        sum.decided += 1;
        sum.refused += u64::from(at("verdict") == Some("refuse"));
        sum.explored += u64::from(at("reason") == Some("explored"));
        sum.dropped += u64::from(at("outcome") == Some("slo_evicted"));
        let number = |name: String| at(&name)?.parse::<f64>().ok();
        for (n, metric) in ["ttft", "tpot", "e2e"].iter().enumerate() {
            let bound = number(format!("bound_{metric}_us"));
            let (Some(bound), Some(came)) = (bound, number(format!("{metric}_us"))) else {
                continue;
            };
            sum.due[n] += 1;
            sum.kept[n] += u64::from(came <= bound);
            if n == 0 {
                sum.widths.push(bound / came.max(1.0));
            }
        }
    }

    /// A table of all.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&[
            "model",
            "tenant",
            "judged",
            "refused",
            "dropped",
            "explored",
            "ttft kept",
            "tpot kept",
            "e2e kept",
            "bound/outcome",
        ]);
        for ((model, tenant), sum) in &self.tenants {
            let kept = |n: usize| match sum.due[n] {
                0 => "-".to_owned(),
                due => format!("{:.3}", sum.kept[n] as f64 / due as f64),
            };
            let mut widths = sum.widths.clone();
            widths.sort_by(f64::total_cmp);
            let width = widths.get(widths.len() / 2);
            table.row(vec![
                model.clone(),
                tenant.clone(),
                sum.decided.to_string(),
                sum.refused.to_string(),
                sum.dropped.to_string(),
                sum.explored.to_string(),
                kept(0),
                kept(1),
                kept(2),
                width.map_or_else(|| "-".to_owned(), |width| format!("{width:.2}")),
            ]);
        }
        table.text()
    }
}

/// The cells of a line of CSV.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match (c, is_quoted) {
            // Two quotes inside quotes are one: the second begins where the first ended.
            ('"', _) => {
                is_quoted = !is_quoted;
                if is_quoted && !cell.is_empty() {
                    cell.push('"');
                }
            }
            (',', false) => cells.push(std::mem::take(&mut cell)),
            (c, _) => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pairs: &[(&str, &str)]) -> String {
        let cell = |column: &str| {
            let found = pairs.iter().find(|(name, _)| *name == column);
            found.map_or("", |(_, value)| *value).to_owned()
        };
        COLUMNS.split(',').map(cell).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn a_trace_is_summed_up_by_model_and_tenant() {
        let mut sums = Sums::default();
        let kept = [
            ("model", "m"),
            ("tenant", "\"a, \"\"b\"\"\""),
            ("verdict", "admit"),
        ];
        for came in ["50", "200"] {
            let more = [("bound_ttft_us", "100"), ("ttft_us", came), ("output", "1")];
            sums.add(&line(&[&kept[..], &more[..]].concat()));
        }
        sums.add(&line(&[
            ("model", "m"),
            ("tenant", "c"),
            ("verdict", "refuse"),
            ("output", "0"),
        ]));
        sums.add("half a li");
        insta::assert_snapshot!(sums.text(), @r#"
        model  tenant  judged  refused  dropped  explored  ttft kept  tpot kept  e2e kept  bound/outcome
        m      a, "b"       2        0        0         0  0.500      -          -         2.00
        m      c            1        1        0         0  -          -          -         -
        "#);
    }
}
