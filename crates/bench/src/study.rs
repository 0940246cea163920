//! A study: recorded runs of one question, put side by side by what was tried, at which load and
//! with which seed.
//!
//! It reads raw rows and nothing that somebody summed up before. What a reader may conclude is in
//! the parts below: scores, claims with their sample sizes, and what got worse.

mod claims;
mod gap;
mod page;
mod pictures;
mod read;
mod score;
mod sheet;
#[cfg(test)]
mod tests;
mod worse;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::read::ReadError;
pub use self::score::Peak;
use self::score::Score;
use crate::rows::Row;
use crate::slo::Slo;
use crate::spec::Timing;

/// What a record says of the cell of a ladder that its rows belong to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What was tried.
    pub series: String,
    /// Its place among what was tried; each is compared with the one before it.
    pub rank: usize,
    /// Requests offered per second.
    pub load_per_s: f64,
    /// The seed of all chance.
    pub seed: u64,
    /// What a good request keeps.
    pub slo: Slo,
    /// Sent for so long, in seconds.
    pub duration_s: f64,
    /// Left out at the start, in seconds.
    pub warm_up_s: f64,
    /// A digest of the program, or of the sources it was built from.
    pub source: String,
    /// How long the probe before the cell took, in milliseconds; none where the clock is virtual.
    #[serde(default)]
    pub canary_ms: Option<f64>,
    /// Why there are no rows.
    #[serde(default)]
    pub failed: Option<String>,
}

/// One recorded run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) series: String,
    pub(crate) rank: usize,
    /// Requests offered per second.
    pub(crate) load_per_s: f64,
    pub(crate) seed: u64,
    pub(crate) timing: Timing,
    pub(crate) tenants: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) facts: Facts,
    pub(crate) state: State,
}

/// Under which circumstances a run took place, as far as its record tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// The file of its rows.
    pub(crate) file: String,
    pub(crate) command: String,
    pub(crate) machine: String,
    pub(crate) source: String,
    pub(crate) canary_ms: Option<f64>,
    pub(crate) slo: Option<Slo>,
    /// Lines that were left out because they are not whole.
    pub(crate) torn: u64,
}

/// Whether a run has numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It has.
    Measured,
    /// It ran, and its numbers cannot be trusted.
    Invalid(String),
    /// It did not run.
    Failed(String),
}

/// Runs, in the order in which they are shown.
#[derive(Clone, Debug)]
pub struct Study {
    title: String,
    slo: Slo,
    baseline: Option<String>,
    runs: Vec<Run>,
    scores: Vec<Option<Score>>,
}

/// How runs are judged and shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What stands above all; a default where it is empty.
    pub title: String,
    /// What a good request keeps; without it what the first record says, or the default.
    pub slo: Option<Slo>,
    /// The series that every other is compared with; without it each is compared with the one
    /// before it.
    pub baseline: Option<String>,
}

/// The runs of one series at one load.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) series: &'a str,
    pub(crate) load_per_s: f64,
    /// One of each seed.
    pub(crate) scores: Vec<&'a Score>,
}

impl Study {
    /// Runs that were measured are the most that a page shows; more belong on several.
    pub const RUNS_MAX: usize = 2_000;

    /// Reads recorded runs: files of raw rows, or folders of them, each `NAME=PATH` or `PATH`.
    ///
    /// # Errors
    /// A file that cannot be read or holds no rows, or no run at all.
    pub fn read(inputs: &[String], options: Options) -> Result<Self, ReadError> {
        Self::of(read::all(inputs)?, options)
    }

    fn of(mut runs: Vec<Run>, options: Options) -> Result<Self, ReadError> {
        if runs.len() > Self::RUNS_MAX {
            return Err(ReadError::TooMany(runs.len()));
        }
        let mut order: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            let place = order.entry(run.series.clone()).or_insert((run.rank, index));
            place.0 = place.0.min(run.rank);
        }
        if let Some(unknown) = options
            .baseline
            .as_ref()
            .filter(|name| !order.contains_key(*name))
        {
            return Err(ReadError::Baseline(unknown.clone()));
        }
        let place = |run: &Run| order.get(&run.series).copied().unwrap_or_default();
        runs.sort_by(|one, other| {
            place(one)
                .cmp(&place(other))
                .then(one.load_per_s.total_cmp(&other.load_per_s))
                .then(one.seed.cmp(&other.seed))
        });
        let told = runs.iter().find_map(|run| run.facts.slo);
        let slo = options.slo.or(told).unwrap_or_default();
        let scores = runs.iter().map(|run| Score::of(run, &slo)).collect();
        let title = Some(options.title).filter(|title| !title.is_empty());
        Ok(Self {
            title: title.unwrap_or_else(|| "What was measured".to_owned()),
            slo,
            baseline: options.baseline,
            runs,
            scores,
        })
    }

    /// The page, as one HTML file that needs no other.
    pub fn to_html(&self) -> String {
        page::html(self)
    }

    /// The scores of each run as CSV, one line each; runs without numbers say why.
    pub fn to_csv(&self) -> String {
        sheet::cells(self)
    }

    /// The peak of each series as CSV.
    pub fn peaks_csv(&self) -> String {
        sheet::peaks(self)
    }

    /// The best goodput of each series over the loads, in the order of the series.
    pub fn peaks(&self) -> Vec<Peak> {
        score::peaks(self)
    }

    /// How many runs there are: with numbers, and without.
    pub fn counts(&self) -> (usize, usize) {
        let with = self.scores.iter().flatten().count();
        (with, self.runs.len() - with)
    }

    /// Names of the series, in order.
    pub(crate) fn series(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.runs.iter().map(|run| run.series.as_str()).collect();
        names.dedup();
        names
    }

    /// The measured runs of each series and load, in order.
    pub(crate) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (run, score) in self.runs.iter().zip(&self.scores) {
            let Some(score) = score else { continue };
            match groups.last_mut() {
                Some(last)
                    if last.series == run.series && same(last.load_per_s, run.load_per_s) =>
                {
                    last.scores.push(score);
                }
                Some(_) | None => groups.push(Group {
                    series: &run.series,
                    load_per_s: run.load_per_s,
                    scores: vec![score],
                }),
            }
        }
        groups
    }

    /// What each series is compared with: the baseline, or the one before it.
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        let names = self.series();
        match &self.baseline {
            Some(baseline) => {
                let others = names.into_iter().filter(|name| name != baseline);
                others.map(|name| (baseline.as_str(), name)).collect()
            }
            None => names
                .windows(2)
                .filter_map(|pair| Some((*pair.first()?, *pair.last()?)))
                .collect(),
        }
    }
}

/// Whether two offered loads are the same one.
pub(crate) fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6
}

/// Writes a file whole or not at all.
///
/// # Errors
/// What the system says.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // Err: it was never there; what failed before is what matters.
        let _ = std::fs::remove_file(&beside);
    }
    written
}
