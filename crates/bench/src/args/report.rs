//! The command line of the report.

use std::path::PathBuf;

use clap::Args;

use crate::slo::Slo;
use crate::study::Options;

/// Which runs, and how they are judged.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Files of raw rows, or folders that have some. `NAME=PATH` says what a run is called; without
    /// it the record beside the rows does, or the name of the file up to its seed, as in
    /// fair-s2.csv.
    #[arg(required = true, value_name = "PATH")]
    pub inputs: Vec<String>,
    /// Where the page goes.
    #[arg(long, short, value_name = "FILE.html", default_value = "report.html")]
    pub out: PathBuf,
    /// What a good request keeps, as ttft=2s,tpot=100ms,e2e=30s; without it what the first record
    /// says, or a TTFT of 2 s and a TPOT of 100 ms.
    #[arg(long, value_name = "LIMITS")]
    pub slo: Option<Slo>,
    /// Compare every series with this one; without it each with the one before it.
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,
    /// What stands above the page.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub title: String,
    /// Write the scores of each run to this file too.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Write the peak of each series to this file too.
    #[arg(long, value_name = "FILE.csv")]
    pub peaks: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tollgate report runs/ --out report.html
  tollgate report fifo=fifo.csv fair=fair-s1.csv fair=fair-s2.csv --baseline fifo
  tollgate report ladder/ --slo ttft=1s,tpot=80ms --csv scores.csv";

impl ReportArgs {
    /// How runs are judged and shown.
    pub fn options(&self) -> Options {
        Options {
            title: self.title.clone(),
            slo: self.slo,
            baseline: self.baseline.clone(),
        }
    }
}
