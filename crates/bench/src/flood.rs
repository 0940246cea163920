//! Tenants that flood an engine beside quiet ones, at endpoints side by side.
//!
//! Every number of fairness stands beside the tokens a second that it was had at: what refuses
//! most of the work is always fair to the rest.

mod table;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use tollgate_policy::units::Time;
use tollgate_sim::stats::{Sorted, by_window};
use tollgate_sim::workload::TenantLoad;
use tollgate_sim::{Arrivals, Lengths};

use crate::plot::{Frontier, Point, Series};
use crate::report::Report;
use crate::rows::{Ending, Row};
use crate::run::{BenchError, Progress, run_keeping_rows};
use crate::spec::{Source, Spec};
use crate::stop::Stop;
use crate::summary::{Latencies, WINDOW, WindowP99, ttft};

/// A mix of tenants. All arrivals are Poisson; prompts have 128 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// One tenant offers 32 requests a second of 128 output tokens, beside the quiet ones.
    Flood,
    /// Four tenants offer 9 requests a second of 128 output tokens each, beside the quiet one.
    Four,
    /// One tenant offers 9 requests a second of 512 output tokens, beside the quiet one.
    Long,
    /// One tenant offers 17 requests a second of 128 output tokens, and is alone.
    Lone,
    /// The quiet tenant alone: 1 request a second of 64 output tokens.
    Solo,
}

impl Scenario {
    /// Names of the tenants whose latency is at stake; that of the lone one in `lone`. `tenants`
    /// counts all of a flood.
    pub fn quiet(self, tenants: usize) -> Vec<String> {
        match self {
            Self::Flood if tenants > 2 => (1..tenants).map(|n| format!("quiet{n}")).collect(),
            Self::Flood | Self::Four | Self::Long | Self::Solo => vec!["quiet".to_owned()],
            Self::Lone => vec!["lone".to_owned()],
        }
    }

    /// What each tenant sends; the quiet ones are last. `tenants` counts all of a flood.
    pub fn loads(self, tenants: usize) -> Vec<TenantLoad> {
        let mut loads = match self {
            Self::Flood => vec![load("flooder", 32.0, 128)],
            Self::Four => ["one", "two", "three", "four"]
                .map(|name| load(name, 9.0, 128))
                .into(),
            Self::Long => vec![load("long", 9.0, 512)],
            Self::Lone => return vec![load("lone", 17.0, 128)],
            Self::Solo => Vec::new(),
        };
        let quiet = self.quiet(tenants);
        loads.extend(quiet.iter().map(|name| load(name, 1.0, 64)));
        loads
    }

    /// Whether there is anybody beside those whose latency is at stake.
    pub const fn has_others(self) -> bool {
        match self {
            Self::Flood | Self::Four | Self::Long => true,
            Self::Lone | Self::Solo => false,
        }
    }
}

fn load(name: &str, rate: f64, output: u64) -> TenantLoad {
    let (prompt, output) = (Lengths::Constant(128), Lengths::Constant(output));
    TenantLoad::new(name, Arrivals::Poisson { rate }, prompt, output)
}

/// Several runs of one scenario, to be compared.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is compared.
    pub arms: Vec<Arm>,
    /// The tenants whose latency is at stake.
    pub quiet: Vec<String>,
    /// How often each arm is run.
    pub rounds: u32,
}

/// One of the things that are compared.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Its run. The seed of each round is one higher.
    pub spec: Spec,
}

/// What came of all runs.
#[derive(Clone, Debug)]
pub struct FloodReport {
    /// By arm, in the order of the plan.
    pub arms: Vec<ArmSummary>,
    reports: Vec<Vec<Report>>,
}

/// What came of one arm, over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArmSummary {
    /// Its name.
    pub name: String,
    /// Why its numbers mean nothing; empty if they do.
    pub invalid: Vec<String>,
    /// Of the quiet tenants' requests, all together.
    pub quiet_ttft: Latencies,
    /// The quiet tenant with the highest p99 of TTFT, and that.
    pub worst: Option<(String, f64)>,
    /// By windows of 10 s, all quiet tenants and rounds together.
    pub quiet_windows: Vec<WindowP99>,
    /// Output tokens a second that arrived, of all tenants; the mean over rounds.
    pub tokens_per_s: f64,
    /// Requests of the quiet tenants, and those of them that were refused or failed.
    pub quiet_requests: [u64; 2],
    /// Likewise of the others.
    pub other_requests: [u64; 2],
}

/// Runs the plan: the arms take turns, and each round begins with another one, so that what the
/// machine does meanwhile falls on all of them.
///
/// # Errors
/// A run could not be had; there is no half a comparison.
pub fn run(
    plan: &Plan,
    stop: &Stop,
    mut on_progress: impl FnMut(&str, u32, &Progress),
) -> Result<FloodReport, BenchError> {
    let mut kept: Vec<Vec<(Report, Vec<Row>)>> = plan.arms.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        for turn in 0..plan.arms.len() {
            let shift = usize::try_from(round).unwrap_or_default();
            let place = (turn + shift) % plan.arms.len();
            let (Some(arm), Some(kept)) = (plan.arms.get(place), kept.get_mut(place)) else {
                continue;
            };
            let spec = arm.in_round(round);
            let ran = run_keeping_rows(&spec, stop, |progress| {
                on_progress(&arm.name, round + 1, progress);
            })?;
            kept.push(ran);
        }
    }
    let arms = plan.arms.iter().zip(&kept);
    Ok(FloodReport {
        arms: arms
            .map(|(arm, runs)| summary(arm, &plan.quiet, runs))
            .collect(),
        reports: kept
            .into_iter()
            .map(|runs| runs.into_iter().map(|(report, _)| report).collect())
            .collect(),
    })
}

impl Arm {
    fn in_round(&self, round: u32) -> Spec {
        let mut spec = self.spec.clone();
        spec.seed += u64::from(round);
        if let Some(path) = &self.spec.rows {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let arm: String = self
                .name
                .chars()
                .map(|symbol| {
                    if symbol.is_alphanumeric() {
                        symbol
                    } else {
                        '-'
                    }
                })
                .collect();
            spec.rows = Some(path.with_file_name(format!("{stem}-{arm}-{}.csv", round + 1)));
        }
        spec
    }

    /// Names of its tenants, by their index.
    fn tenants(&self) -> Vec<String> {
        match &self.spec.source {
            Source::Drawn(tenants) => tenants.iter().map(|one| one.load.name.clone()).collect(),
            Source::Replayed { trace, .. } => trace.tenants.clone(),
        }
    }
}

fn summary(arm: &Arm, quiet: &[String], runs: &[(Report, Vec<Row>)]) -> ArmSummary {
    let names = arm.tenants();
    let is_quiet = |row: &Row| {
        names
            .get(row.tenant)
            .is_some_and(|name| quiet.contains(name))
    };
    let timing = arm.spec.timing;
    let (from, until) = (Time::START + timing.warm_up, Time::START + timing.duration);
    let due: Vec<&Row> = runs
        .iter()
        .flat_map(|(_, rows)| rows)
        .filter(|row| from <= row.intended && row.intended < until)
        .collect();
    let of = |wanted: bool| {
        due.iter()
            .copied()
            .filter(move |row| is_quiet(row) == wanted)
    };
    let waits = |name: Option<&String>| -> Vec<(Time, f64)> {
        of(true)
            .filter(|row| name.is_none() || names.get(row.tenant) == name)
            .filter_map(|row| Some((row.intended, ttft(row)?)))
            .collect()
    };
    let p99 = |name: &String| {
        let sorted = Sorted::new(waits(Some(name)).into_iter().map(|(_, wait)| wait));
        Some((name.clone(), sorted.quantile(0.99)?))
    };
    let counts = |wanted: bool| {
        let lost = |row: &&Row| matches!(row.ending, Ending::Refused(_) | Ending::Failed(_));
        [
            of(wanted).count() as u64,
            of(wanted).filter(lost).count() as u64,
        ]
    };
    let tokens = runs.iter().map(|(report, _)| report.totals.tokens_per_s);
    ArmSummary {
        name: arm.name.clone(),
        invalid: runs
            .iter()
            .flat_map(|(report, _)| report.reasons())
            .collect(),
        quiet_ttft: Latencies::of(waits(None).into_iter().map(|(_, wait)| wait)),
        worst: quiet
            .iter()
            .filter_map(p99)
            .max_by(|one, other| one.1.total_cmp(&other.1)),
        quiet_windows: by_window(waits(None), from, WINDOW)
            .iter()
            .map(WindowP99::of)
            .collect(),
        tokens_per_s: tokens.sum::<f64>() / (runs.len().max(1) as f64),
        quiet_requests: counts(true),
        other_requests: counts(false),
    }
}

impl FloodReport {
    /// What the process should exit with.
    pub fn exit_code(&self) -> u8 {
        if self.arms.iter().all(|arm| arm.invalid.is_empty()) {
            Report::EXIT_VALID
        } else {
            Report::EXIT_INVALID
        }
    }

    /// The arms that had anybody beside the quiet tenants, as points of tokens a second against p99
    /// TTFT. Arms named `SERIES:LABEL` are points of one series.
    pub fn frontier(&self, title: &str) -> Frontier {
        let mut series: Vec<Series> = Vec::new();
        let beside_others = |arm: &&ArmSummary| arm.other_requests[0] > 0 && arm.invalid.is_empty();
        for arm in self.arms.iter().filter(beside_others) {
            let (name, label) = arm.name.split_once(':').unwrap_or((&arm.name, ""));
            let point = Point {
                tokens_per_s: arm.tokens_per_s,
                p99_ms: arm.quiet_ttft.p99_ms.unwrap_or(f64::NAN),
                label: label.to_owned(),
            };
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.push(point),
                None => series.push(Series {
                    name: name.to_owned(),
                    points: vec![point],
                }),
            }
        }
        Frontier {
            title: title.to_owned(),
            series,
        }
    }

    /// As JSON: the comparison, and the report of every run.
    pub fn to_json(&self) -> Value {
        let runs: Vec<Vec<Value>> = self
            .reports
            .iter()
            .map(|reports| reports.iter().map(Report::to_json).collect())
            .collect();
        json!({ "arms": self.arms, "runs": runs })
    }
}

#[cfg(test)]
mod tests;
