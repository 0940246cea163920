//! A ladder: every rung at every load with every seed, so that what each step up gives can be seen.
//!
//! Rate by rate, the rungs in another order each time, so that a machine that slows down slows all
//! of them. Each cell starts from nothing, keeps its raw rows and its record, and one that fails is
//! kept as failed. A ladder goes on where it was left.

mod planned;
mod record;
mod served;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_policy::units::{KvBlocks, Micros, Time};
use tollgate_sim::rungs::{Machine, Rung};
use tollgate_sim::workload::{SharedPrefix, TenantLoad, Workload, WorkloadError};
use tollgate_sim::{Arrivals, Lengths};

use self::record::Records;
use crate::clock::Clock;
use crate::slo::Slo;
use crate::spec::Timing;
use crate::stop::Stop;
use crate::study::{Cell, Options, ReadError, Study, write_whole};

pub use self::served::{Engine, Server};

/// A ladder to climb.
#[derive(Clone, Debug)]
pub struct Ladder {
    /// What is compared, the lowest first.
    pub rungs: Vec<Rung>,
    /// Requests offered per second.
    pub loads: Vec<f64>,
    /// Each cell is run once with each of 1, 2, and so on up to this.
    pub seeds: u64,
    /// What a good request keeps.
    pub slo: Slo,
    /// Spans of each cell.
    pub timing: Timing,
    /// What is sent; its rate is the load's.
    pub traffic: Traffic,
    /// The engine.
    pub machine: Machine,
    /// Where it runs.
    pub ground: Ground,
    /// Where cells and reports go.
    pub out: PathBuf,
    /// No cell begins later than this after the start; none without.
    pub budget: Option<Micros>,
    /// The command line, for the record.
    pub command: String,
}

/// What requests are like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// How long prompts are, what they share included.
    pub prompt: Lengths,
    /// How long outputs are.
    pub output: Lengths,
    /// What prompts begin with alike.
    pub shared: Option<SharedPrefix>,
    /// Spread of the gaps over their mean; 1 is Poisson. Less makes short cells alike in what they
    /// are offered.
    pub cv: f64,
}

/// Where a ladder runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// On a virtual clock, with steps that cost what the machine says.
    Virtual,
    /// In a server that is started anew for each cell.
    Served(Server),
}

/// How far a ladder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This cell begins; so many are done of so many.
    Begins(String, [usize; 2]),
    /// This cell has no numbers, for this reason.
    Failed(String, String),
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Climbed {
    /// Cells with a record.
    pub done: usize,
    /// Cells in all.
    pub of: usize,
    /// Cells that have numbers.
    pub with_numbers: usize,
    /// The peak of each rung so far.
    pub peaks: Vec<crate::study::Peak>,
    /// The page.
    pub page: PathBuf,
}

/// Why a ladder cannot be climbed. A cell that fails is none of these.
#[derive(Debug, thiserror::Error)]
pub enum LadderError {
    /// Nothing to climb.
    #[error("a ladder of {rungs} rungs, {loads} loads and {seeds} seeds; use 1 or more of each")]
    Empty {
        /// Rungs asked for.
        rungs: usize,
        /// Loads asked for.
        loads: usize,
        /// Seeds asked for.
        seeds: u64,
    },
    /// The same cells twice.
    #[error("`{0}` stands twice; name each rung and each load once")]
    Twice(String),
    /// Too much to climb.
    #[error("{0} cells; use at most {max}", max = Study::RUNS_MAX)]
    TooMany(usize),
    /// The warm-up leaves nothing to measure.
    #[error("the warm-up is as long as a cell; make it shorter than the duration")]
    NothingMeasured,
    /// KV that is no whole number of blocks.
    #[error("{0} tokens of KV; use a multiple of {slots}", slots = KvBlocks::SLOTS.get())]
    Blocks(u32),
    /// The KV has no room for one request.
    #[error("{kv} tokens of KV cannot hold one context of {context}; use more KV or a shorter one")]
    Kv {
        /// Tokens of KV.
        kv: u32,
        /// Tokens of one request.
        context: u64,
    },
    /// Some prompts would always be refused.
    #[error("prompts of up to {prompt} tokens do not fit a context of {context}; use a longer one")]
    Context {
        /// Tokens of the longest prompt.
        prompt: u64,
        /// Tokens of one request.
        context: u64,
    },
    /// The requests cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The folder holds something else.
    #[error("{} holds another ladder; use another folder, or the same arguments", .0.display())]
    Another(PathBuf),
    /// A file cannot be read or written.
    #[error("{}: {error}; name another folder with --out", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The cells cannot be read back.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl LadderError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |error| Self::File { path, error }
    }
}

/// Why a cell has no numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fell {
    /// Somebody asked to stop.
    Stopped,
    /// It could not be run.
    Failed(String),
}

/// One cell to run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    rung: Rung,
    rank: usize,
    load_per_s: f64,
    seed: u64,
}

impl Place {
    fn name(&self) -> String {
        format!("{}-{}-s{}", self.rung, self.load_per_s, self.seed)
    }
}

impl Ladder {
    /// Climbs what is left to climb, and reports on all there is. `on_step` hears of each cell. The
    /// cell that is under way when it is asked to stop has no record, and is run again.
    ///
    /// # Errors
    /// The ladder is none, or its folder cannot be used.
    pub fn climb(
        &self,
        stop: &Stop,
        mut on_step: impl FnMut(&Step),
    ) -> Result<Climbed, LadderError> {
        self.check()?;
        let records = Records::open(self)?;
        let places = self.places();
        let mut done = places.iter().filter(|place| records.has(place)).count();
        let clock = Clock::start();
        for place in &places {
            let late = self
                .budget
                .is_some_and(|most| clock.now().since(Time::START) >= most);
            if late || stop.is_pulled() || records.has(place) {
                continue;
            }
            on_step(&Step::Begins(place.name(), [done, places.len()]));
            let ran = match &self.ground {
                Ground::Virtual => planned::run(self, place, &records),
                Ground::Served(server) => served::run(self, server, (place, &records), stop),
            };
            let ran = match ran {
                Err(Fell::Stopped) => break,
                Err(Fell::Failed(why)) => {
                    on_step(&Step::Failed(place.name(), why.clone()));
                    Err(why)
                }
                Ok(ran) => Ok(ran),
            };
            records.keep(self, place, ran)?;
            done += 1;
        }
        self.report(done, places.len())
    }

    fn report(&self, done: usize, of: usize) -> Result<Climbed, LadderError> {
        let options = Options {
            title: "The ladder".to_owned(),
            slo: Some(self.slo),
            baseline: None,
        };
        let study = Study::read(&[self.out.display().to_string()], options)?;
        let page = self.out.join("ladder.html");
        let files = [
            (page.clone(), study.to_html()),
            (self.out.join("ladder.csv"), study.to_csv()),
            (self.out.join("ladder-peaks.csv"), study.peaks_csv()),
        ];
        for (path, text) in files {
            write_whole(&path, &text).map_err(LadderError::file(&path))?;
        }
        Ok(Climbed {
            done,
            of,
            with_numbers: study.counts().0,
            peaks: study.peaks(),
            page,
        })
    }

    fn check(&self) -> Result<(), LadderError> {
        let (rungs, loads) = (self.rungs.len(), self.loads.len());
        let seeds = usize::try_from(self.seeds).unwrap_or(usize::MAX);
        let cells = rungs.saturating_mul(loads).saturating_mul(seeds);
        if cells == 0 {
            return Err(LadderError::Empty {
                rungs,
                loads,
                seeds: self.seeds,
            });
        }
        if cells > Study::RUNS_MAX {
            return Err(LadderError::TooMany(cells));
        }
        let names = self.places().into_iter().map(|place| place.name());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(LadderError::Twice(pair[0].clone()));
        }
        if self.timing.measured() == Micros::ZERO {
            return Err(LadderError::NothingMeasured);
        }
        self.check_machine()?;
        let each = self
            .loads
            .iter()
            .map(|load| self.workload(*load, 1).map(drop));
        Ok(each.collect::<Result<(), WorkloadError>>()?)
    }

    fn check_machine(&self) -> Result<(), LadderError> {
        let (kv, context) = (self.machine.kv_tokens, self.machine.context);
        if u64::from(kv) % KvBlocks::SLOTS.get() != 0 {
            return Err(LadderError::Blocks(kv));
        }
        if context > u64::from(kv) {
            return Err(LadderError::Kv { kv, context });
        }
        let prompt = self.traffic.prompt.longest();
        if prompt >= context {
            return Err(LadderError::Context { prompt, context });
        }
        Ok(())
    }

    /// Rate by rate and seed by seed; who is first of the rungs changes each time.
    fn places(&self) -> Vec<Place> {
        let mut turn = 0;
        let mut places = Vec::new();
        for load_per_s in &self.loads {
            for seed in 1..=self.seeds {
                let ranked = self.rungs.iter().copied().enumerate();
                let mut round: Vec<Place> = ranked
                    .map(|(rank, rung)| Place {
                        rung,
                        rank,
                        load_per_s: *load_per_s,
                        seed,
                    })
                    .collect();
                round.rotate_left(turn % self.rungs.len().max(1));
                places.extend(round);
                turn += 1;
            }
        }
        places
    }

    /// What is sent in a cell: the same for every rung.
    fn workload(&self, load_per_s: f64, seed: u64) -> Result<Workload, WorkloadError> {
        let until = Time::START + self.timing.duration;
        Workload::drawn(vec![self.tenant(load_per_s)], until, seed)
    }

    fn tenant(&self, load_per_s: f64) -> TenantLoad {
        let Traffic {
            prompt,
            output,
            shared,
            cv,
        } = &self.traffic;
        let (rate, cv) = (load_per_s, *cv);
        let arrivals = Arrivals::Gamma { rate, cv };
        let mut load = TenantLoad::new("all", arrivals, *prompt, *output);
        load.shared.clone_from(shared);
        load
    }

    fn cell(&self, place: &Place, source: &str) -> Cell {
        let secs = |span: Micros| span.get() as f64 / 1e6;
        Cell {
            series: place.rung.label().to_owned(),
            rank: place.rank,
            load_per_s: place.load_per_s,
            seed: place.seed,
            slo: self.slo,
            duration_s: secs(self.timing.duration),
            warm_up_s: secs(self.timing.warm_up),
            source: source.to_owned(),
            canary_ms: None,
            failed: None,
        }
    }
}

/// Makes a folder and those above it.
fn make_folder(path: &Path) -> Result<(), LadderError> {
    fs::create_dir_all(path).map_err(LadderError::file(path))
}

#[cfg(test)]
mod tests;
