//! From raw rows to numbers: latencies from the intended send, tokens that arrived in the window.
//!
//! Only requests that were due inside the measured window count, and all of those do: one that got
//! no token before the run was over stands with the time it had waited.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_policy::units::{Micros, Time};
use tollgate_sim::stats::{Sorted, Window, by_window, queries_needed};

use crate::remedy::Lost;
use crate::rows::{Ending, Failure, Row};
use crate::run::IN_FLIGHT_MAX;
use crate::spec::Timing;

/// Width of the windows whose percentiles show growth.
pub(crate) const WINDOW: Micros = Micros::from_secs(10);

/// Reasons told apart for one tenant; the endpoint could send any number of them.
const REASONS_MAX: usize = 32;

/// Whether the numbers of a run mean anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Validity {
    /// They do.
    Valid,
    /// They do not, for these reasons.
    Invalid(Vec<String>),
}

/// How late requests were sent, in milliseconds after they were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slip {
    /// Half of them were less late.
    pub p50_ms: f64,
    /// 99 % of them were less late.
    pub p99_ms: f64,
    /// The latest.
    pub max_ms: f64,
}

/// Quantiles of one kind of latency, in milliseconds; `None` of no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// Sample size.
    pub n: usize,
    /// The median.
    pub p50_ms: Option<f64>,
    /// The 90th percentile.
    pub p90_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
    /// The largest.
    pub max_ms: Option<f64>,
    /// Whether the sample is large enough for any claim about a 99th percentile, with 99 %
    /// confidence (MLPerf early stopping).
    pub p99_supported: bool,
}

/// The 99th percentile of TTFT of the requests that were due in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowP99 {
    /// Start of the window, in seconds from the start of the run.
    pub start_s: u64,
    /// Requests in it that got a token or waited for one to the end.
    pub n: usize,
    /// Milliseconds; `None` of no request.
    pub p99_ms: Option<f64>,
}

/// What one tenant got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantSummary {
    /// The tenant.
    pub name: String,
    /// Requests that were due.
    pub due: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Those that failed, by kind.
    pub failed: BTreeMap<String, u64>,
    /// Those without an end when the run was over. Their wait so far counts as their TTFT where
    /// they had no token: the true one is larger.
    pub unfinished: u64,
    /// First non-empty token after the intended send.
    pub ttft: Latencies,
    /// Time per output token of each completed request with two or more.
    pub tpot: Latencies,
    /// Time from one delta with text to the next, of all completed requests together.
    pub itl: Latencies,
    /// Last byte after the intended send, of completed requests.
    pub e2e: Latencies,
    /// TTFT by windows of 10 s.
    pub ttft_windows: Vec<WindowP99>,
    /// Output tokens that arrived inside the window, a second.
    pub tokens_per_s: f64,
    /// Mean prompt tokens: asked for, and counted by the endpoint.
    pub prompt_tokens: [Option<f64>; 2],
    /// Mean output tokens of completed requests: asked for, and counted by the endpoint.
    pub output_tokens: [Option<f64>; 2],
}

/// All tenants together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Requests that were due.
    pub due: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those without an end when the run was over.
    pub unfinished: u64,
    /// Output tokens that arrived inside the window, a second.
    pub tokens_per_s: f64,
}

/// The rows of a run, and which of them count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured<'a> {
    pub(crate) rows: &'a [Row],
    pub(crate) timing: Timing,
}

impl<'a> Measured<'a> {
    /// Rows that were due inside the window.
    pub(crate) fn due(&self) -> impl Iterator<Item = &'a Row> {
        let (from, until) = (self.from(), Time::START + self.timing.duration);
        self.rows
            .iter()
            .filter(move |row| from <= row.intended && row.intended < until)
    }

    fn from(&self) -> Time {
        Time::START + self.timing.warm_up
    }

    pub(crate) fn slip(&self) -> Slip {
        let late = self
            .due()
            .filter_map(|row| row.sent.map(|sent| millis(sent, row.intended)));
        let late = Sorted::new(late);
        Slip {
            p50_ms: late.quantile(0.5).unwrap_or(0.0),
            p99_ms: late.quantile(0.99).unwrap_or(0.0),
            max_ms: late.max().unwrap_or(0.0),
        }
    }

    pub(crate) fn validity(&self) -> Validity {
        let mut reasons = Vec::new();
        if self.due().next().is_none() {
            reasons
                .push("no request was due after the warm-up; run longer or offer more".to_owned());
        }
        let (slip, bound) = (
            self.slip().p99_ms,
            self.timing.slip_p99_max.get() as f64 / 1e3,
        );
        if slip > bound {
            reasons.push(format!(
                "requests were sent too late: p99 {slip:.1} ms after they were due, the bound is \
                 {bound:.1} ms; give the client more of the machine or offer less"
            ));
        }
        reasons.extend(self.nothing_served());
        let count = |ending: &Ending| self.rows.iter().filter(|row| row.ending == *ending).count();
        let not_sent = count(&Ending::NotSent);
        if not_sent > 0 {
            reasons.push(format!(
                "{not_sent} requests were due while {IN_FLIGHT_MAX} were open, and were not sent"
            ));
        }
        let starved = count(&Ending::Failed(Failure::ClientLimit));
        if starved > 0 {
            reasons.push(format!(
                "{starved} requests found no file or port on this machine; raise `ulimit -n`"
            ));
        }
        if reasons.is_empty() {
            Validity::Valid
        } else {
            Validity::Invalid(reasons)
        }
    }

    /// That every request was a mistake or failed, if so: there is nothing to report on. A load of
    /// which all is refused for want of room, or by a limit, is one: nothing good came of it.
    fn nothing_served(&self) -> Option<String> {
        let due: Vec<&Row> = self.due().collect();
        let is_mistake = |status: u16| (400..500).contains(&status) && status != 429;
        let is_lost = |row: &&Row| match &row.ending {
            Ending::Refused(_) => row.status.is_some_and(is_mistake),
            Ending::Failed(_) => row.first_token.is_none(),
            Ending::Completed | Ending::Unfinished | Ending::NotSent => false,
        };
        if due.is_empty() || !due.iter().all(is_lost) {
            return None;
        }
        let (refused, failed) = (reasons(&due, "refused"), reasons(&due, "failed"));
        let kinds = [("refused", &refused), ("failed", &failed)];
        let lost = kinds.map(|(kind, by_reason)| Lost { kind, by_reason });
        let counts: Vec<String> = lost.iter().filter_map(Lost::counts).collect();
        let told = format!("no request was served: {}", counts.join("; "));
        Some(match lost.iter().find_map(Lost::remedy) {
            Some(remedy) => format!("{told}; {remedy}"),
            None => told,
        })
    }

    pub(crate) fn tenant(&self, index: usize, name: &str) -> TenantSummary {
        let due: Vec<&Row> = self.due().filter(|row| row.tenant == index).collect();
        let completed: Vec<&Row> = due
            .iter()
            .copied()
            .filter(|row| row.ending == Ending::Completed)
            .collect();
        let count = |label: &str| due.iter().filter(|row| row.ending.label() == label).count();
        let waits = || {
            due.iter()
                .filter_map(|row| Some((row.intended, ttft(row)?)))
        };
        let windows = by_window(waits(), self.from(), WINDOW).into_iter();
        TenantSummary {
            name: name.to_owned(),
            due: due.len() as u64,
            completed: completed.len() as u64,
            refused: reasons(&due, "refused"),
            failed: reasons(&due, "failed"),
            unfinished: (count("unfinished") + count("not_sent")) as u64,
            ttft: Latencies::of(waits().map(|(_, wait)| wait)),
            tpot: Latencies::of(completed.iter().filter_map(|row| tpot(row))),
            itl: Latencies::of(completed.iter().flat_map(|row| gaps(row))),
            e2e: Latencies::of(completed.iter().map(|row| millis(row.end, row.intended))),
            ttft_windows: windows.map(|window| WindowP99::of(&window)).collect(),
            tokens_per_s: self.tokens_per_s(|row| row.tenant == index),
            prompt_tokens: means(&completed, |row| (row.prompt_asked, row.prompt_tokens)),
            output_tokens: means(&completed, |row| (row.output_asked, row.output_tokens)),
        }
    }

    pub(crate) fn totals(&self, tenants: &[TenantSummary]) -> Totals {
        let sum = |of: &dyn Fn(&TenantSummary) -> u64| tenants.iter().map(of).sum();
        Totals {
            due: sum(&|tenant| tenant.due),
            completed: sum(&|tenant| tenant.completed),
            refused: sum(&|tenant| tenant.refused.values().sum()),
            failed: sum(&|tenant| tenant.failed.values().sum()),
            unfinished: sum(&|tenant| tenant.unfinished),
            tokens_per_s: self.tokens_per_s(|_| true),
        }
    }

    /// Output tokens a second that arrived inside the window, whenever their request was due.
    ///
    /// A delta may carry more than one token: a request's tokens are spread evenly over its
    /// deltas, and one whose count never came has as many to a delta as the others had.
    pub(crate) fn tokens_per_s(&self, of: impl Fn(&Row) -> bool) -> f64 {
        let counted = self
            .rows
            .iter()
            .filter_map(|row| Some((row.output_tokens?, row.deltas)));
        let (tokens, deltas) = counted.fold((0, 0), |(tokens, deltas), (more, in_deltas)| {
            (tokens + more, deltas + in_deltas)
        });
        let usual = if deltas > 0 {
            tokens as f64 / deltas as f64
        } else {
            1.0
        };
        let in_window = |row: &Row| {
            let per_delta = match row.output_tokens {
                Some(tokens) if row.deltas > 0 => tokens as f64 / row.deltas as f64,
                Some(_) | None => usual,
            };
            row.deltas_in_window as f64 * per_delta
        };
        let arrived = self.rows.iter().filter(|row| of(row)).map(in_window);
        // Not a sum: that of nothing is minus zero.
        let arrived = arrived.fold(0.0, |all: f64, more| all + more);
        arrived / (self.timing.measured().get() as f64 / 1e6)
    }
}

impl WindowP99 {
    pub(crate) fn of(window: &Window) -> Self {
        Self {
            start_s: window.start.as_micros() / 1_000_000,
            n: window.sample.len(),
            p99_ms: window.sample.quantile(0.99),
        }
    }
}

impl Latencies {
    pub(crate) fn of(sample: impl Iterator<Item = f64>) -> Self {
        let sorted = Sorted::new(sample);
        let enough = queries_needed(0.99, 0.99, 0);
        Self {
            n: sorted.len(),
            p50_ms: sorted.quantile(0.5),
            p90_ms: sorted.quantile(0.9),
            p99_ms: sorted.quantile(0.99),
            max_ms: sorted.max(),
            p99_supported: enough.is_some_and(|enough| sorted.len() as u64 >= enough),
        }
    }
}

/// TTFT in milliseconds, or the wait of a request that the end of the run cut before its first
/// token; `None` of a request that was refused or failed without one.
pub(crate) fn ttft(row: &Row) -> Option<f64> {
    match (&row.first_token, &row.ending) {
        (Some(first), _) => Some(millis(*first, row.intended)),
        (None, Ending::Unfinished) => Some(millis(row.end, row.intended)),
        (None, Ending::Completed | Ending::Refused(_) | Ending::Failed(_) | Ending::NotSent) => {
            None
        }
    }
}

/// TPOT in milliseconds; `None` of fewer than two tokens, or of one delta that carried them all.
pub(crate) fn tpot(row: &Row) -> Option<f64> {
    let tokens = row.output_tokens.unwrap_or(row.deltas);
    let (first, last) = (row.first_token?, row.last_token?);
    (tokens > 1 && row.deltas > 1).then(|| millis(last, first) / (tokens - 1) as f64)
}

/// Times between deltas in milliseconds.
fn gaps(row: &Row) -> impl Iterator<Item = f64> {
    row.gaps.iter().map(|gap| gap.get() as f64 / 1e3)
}

pub(crate) fn millis(later: Time, earlier: Time) -> f64 {
    later.since(earlier).get() as f64 / 1e3
}

fn reasons(due: &[&Row], label: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for row in due.iter().filter(|row| row.ending.label() == label) {
        let reason = row.ending.reason();
        let known = counts.contains_key(&reason) || counts.len() < REASONS_MAX;
        *counts
            .entry(if known { reason } else { "other".to_owned() })
            .or_default() += 1;
    }
    counts
}

/// Means of what was asked for and of what was counted.
fn means(rows: &[&Row], of: impl Fn(&Row) -> (u64, Option<u64>)) -> [Option<f64>; 2] {
    let asked = Sorted::new(rows.iter().map(|row| of(row).0 as f64));
    let counted = Sorted::new(
        rows.iter()
            .filter_map(|row| of(row).1)
            .map(|count| count as f64),
    );
    [asked.mean(), counted.mean()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::completed;

    fn timing() -> Timing {
        Timing {
            duration: Micros::from_secs(40),
            warm_up: Micros::from_secs(5),
            ..Timing::default()
        }
    }

    fn measured(rows: &[Row]) -> Measured<'_> {
        Measured {
            rows,
            timing: timing(),
        }
    }

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn latencies_count_from_the_intended_send() {
        let late = Row {
            sent: Some(secs(10) + Micros::from_millis(45)),
            ..completed()
        };
        let rows = [late];
        let summary = measured(&rows).tenant(0, "quiet");
        assert_eq!(summary.ttft.p50_ms, Some(50.0));
        assert_eq!(summary.e2e.p50_ms, Some(700.0));
        assert_eq!(summary.tpot.p50_ms, Some(10.0));
        assert_eq!(measured(&rows).slip().p99_ms, 45.0);
    }

    #[test]
    fn the_warm_up_is_left_out_of_everything_but_the_tokens_that_arrive_after_it() {
        let early = Row {
            intended: secs(4),
            deltas_in_window: 32,
            ..completed()
        };
        let rows = [early, completed()];
        let summary = measured(&rows).tenant(0, "quiet");
        assert_eq!((summary.due, summary.completed, summary.ttft.n), (1, 1, 1));
        assert!((summary.tokens_per_s - 96.0 / 35.0).abs() < 1e-9);
    }

    #[test]
    fn a_request_that_waits_to_the_end_stands_with_its_wait() {
        let waiting = Row {
            first_token: None,
            end: secs(100),
            ending: Ending::Unfinished,
            output_tokens: None,
            deltas: 0,
            deltas_in_window: 0,
            ..completed()
        };
        let rows = [waiting, completed()];
        let summary = measured(&rows).tenant(0, "quiet");
        assert_eq!((summary.unfinished, summary.ttft.n), (1, 2));
        assert_eq!(summary.ttft.p99_ms, Some(90_000.0));
        assert_eq!(summary.e2e.n, 1);
    }

    #[test]
    fn refusals_are_counted_by_reason_and_have_no_latency() {
        let refused = |reason: &str| Row {
            first_token: None,
            ending: Ending::Refused(reason.to_owned()),
            ..completed()
        };
        let failed = Row {
            ending: Ending::Failed(Failure::CutOff),
            ..completed()
        };
        let rows = [
            refused("requests"),
            refused("requests"),
            refused("capacity"),
            failed,
        ];
        let summary = measured(&rows).tenant(0, "quiet");
        let expected = [("capacity".to_owned(), 1), ("requests".to_owned(), 2)];
        assert_eq!(summary.refused, BTreeMap::from(expected));
        assert_eq!(summary.failed, BTreeMap::from([("cut_off".to_owned(), 1)]));
        assert_eq!(
            (summary.completed, summary.ttft.n, summary.e2e.n),
            (0, 1, 0)
        );
        let totals = measured(&rows).totals(&[summary]);
        assert_eq!((totals.due, totals.refused, totals.failed), (4, 3, 1));
    }

    #[test]
    fn tokens_are_spread_over_the_deltas_that_carried_them() {
        let half = Row {
            output_tokens: Some(128),
            deltas_in_window: 32,
            ..completed()
        };
        let uncounted = Row {
            output_tokens: None,
            deltas: 10,
            deltas_in_window: 10,
            ..completed()
        };
        // 64 of 128 tokens, and ten deltas of two tokens each, as the first one had.
        let rows = [half, uncounted];
        let per_s = measured(&rows).tenant(0, "quiet").tokens_per_s;
        assert!((per_s - 84.0 / 35.0).abs() < 1e-9, "{per_s}");
    }

    #[test]
    fn windows_show_growth() {
        let due = |at: u64, wait_ms| Row {
            intended: secs(at),
            first_token: Some(secs(at) + Micros::from_millis(wait_ms)),
            ..completed()
        };
        let rows = [due(6, 10), due(14, 20), due(15, 300), due(39, 9_000)];
        let summary = measured(&rows).tenant(0, "quiet");
        let shown: Vec<_> = summary
            .ttft_windows
            .iter()
            .map(|window| (window.start_s, window.p99_ms))
            .collect();
        let expected = [
            (5, Some(20.0)),
            (15, Some(300.0)),
            (25, None),
            (35, Some(9_000.0)),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn each_way_not_to_trust_a_run_is_a_reason() {
        let reasons = |rows: &[Row]| match measured(rows).validity() {
            Validity::Valid => Vec::new(),
            Validity::Invalid(reasons) => reasons,
        };
        assert!(reasons(&[completed()]).is_empty());
        assert!(reasons(&[])[0].starts_with("no request was due"));
        let late = Row {
            sent: Some(secs(10) + Micros::from_millis(11)),
            ..completed()
        };
        assert!(reasons(&[late])[0].starts_with("requests were sent too late: p99 11.0 ms"));
        let not_sent = Row {
            sent: None,
            ending: Ending::NotSent,
            ..completed()
        };
        assert!(reasons(&[not_sent])[0].starts_with("1 requests were due while 16384 were open"));
        let starved = Row {
            ending: Ending::Failed(Failure::ClientLimit),
            ..completed()
        };
        assert!(
            reasons(&[starved])
                .iter()
                .any(|reason| reason.contains("ulimit"))
        );
        let refused = Row {
            first_token: None,
            status: Some(404),
            ending: Ending::Refused("http_404".to_owned()),
            ..completed()
        };
        let told = &reasons(&[refused.clone(), refused.clone()])[0];
        assert!(
            told.starts_with("no request was served: refused: http_404 2; "),
            "{told}"
        );
        assert!(told.contains("--model"), "{told}");
        let some = [refused.clone(), completed()];
        assert!(reasons(&some).is_empty(), "some were served");
        let no_room = Row {
            status: Some(503),
            ..refused
        };
        assert!(reasons(&[no_room]).is_empty(), "too much was offered");
    }

    #[test]
    fn a_99th_percentile_of_few_requests_is_marked_as_no_claim() {
        let rows = vec![completed(); 459];
        assert!(measured(&rows).tenant(0, "quiet").ttft.p99_supported);
        assert!(!measured(&rows[..458]).tenant(0, "quiet").ttft.p99_supported);
    }
}
