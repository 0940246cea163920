//! What a ladder leaves in its folder: a plan, and for each cell its rows and its record.
//!
//! A record is written last, so a cell that has one is done. Rows of a cell that was broken off
//! keep the ending `.part`, and the cell is run again.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tollgate_sim::rungs::{Machine, Rung};

use super::{Engine, Ground, Ladder, LadderError, Place, make_folder};
use crate::machine;
use crate::study::write_whole;

/// The cells of one ladder.
#[derive(Debug)]
pub(super) struct Records {
    cells: PathBuf,
    /// A digest of this program.
    source: String,
    machine: machine::Machine,
}

/// What is known of a cell that ran.
#[derive(Debug, Default)]
pub(super) struct Ran {
    /// The record of the run, without the cell.
    pub(super) record: Value,
    /// How long the probe before it took, in milliseconds.
    pub(super) canary_ms: Option<f64>,
}

impl Records {
    /// The folder, made if it is missing. It belongs to one ladder and one program.
    pub(super) fn open(ladder: &Ladder) -> Result<Self, LadderError> {
        let cells = ladder.out.join("cells");
        make_folder(&cells)?;
        let source = digest_of_this_program();
        let plan = format!("{:#}\n", plan(ladder, &source));
        let path = ladder.out.join("plan.json");
        match fs::read_to_string(&path) {
            Ok(there) if there == plan => {}
            Ok(_) => return Err(LadderError::Another(ladder.out.clone())),
            // Err: there is none yet, or none that can be read; then writing fails too.
            Err(_) => write_whole(&path, &plan).map_err(LadderError::file(&path))?,
        }
        Ok(Self {
            cells,
            source,
            machine: machine::Machine::this(),
        })
    }

    /// Whether the cell was run, with numbers or without.
    pub(super) fn has(&self, place: &Place) -> bool {
        self.record(place).exists()
    }

    /// Where rows go while they come.
    pub(super) fn rows_under_way(&self, place: &Place) -> PathBuf {
        self.cells.join(format!("{}.csv.part", place.name()))
    }

    /// A file of the cell, beside its rows.
    pub(super) fn beside(&self, place: &Place, ending: &str) -> PathBuf {
        self.cells.join(format!("{}.{ending}", place.name()))
    }

    fn record(&self, place: &Place) -> PathBuf {
        self.beside(place, "json")
    }

    /// Keeps what came of a cell.
    pub(super) fn keep(
        &self,
        ladder: &Ladder,
        place: &Place,
        ran: Result<Ran, String>,
    ) -> Result<(), LadderError> {
        let mut cell = ladder.cell(place, &self.source);
        let (mut record, rows) = match ran {
            Ok(ran) => {
                cell.canary_ms = ran.canary_ms;
                (ran.record, true)
            }
            Err(why) => {
                cell.failed = Some(why);
                (json!({}), false)
            }
        };
        if rows {
            let (from, to) = (self.rows_under_way(place), self.beside(place, "csv"));
            fs::rename(&from, &to).map_err(LadderError::file(&to))?;
        }
        record["cell"] = json!(cell);
        if record.get("header").is_none() {
            record["header"] = json!({ "command": ladder.command, "machine": self.machine });
        }
        let path = self.record(place);
        write_whole(&path, &format!("{record:#}\n")).map_err(LadderError::file(&path))
    }
}

/// All that decides what the numbers mean.
fn plan(ladder: &Ladder, source: &str) -> Value {
    let Machine {
        sequences,
        kv_tokens,
        step_tokens,
        context,
        cost,
    } = ladder.machine;
    let costs = |clock: &str| {
        json!({
            "clock": clock,
            "step_us": cost.step.get(),
            "per_sequence_us": cost.per_sequence.get(),
            "prefill_tokens_per_s": cost.prefill_tokens_per_s,
        })
    };
    let ground = match &ladder.ground {
        Ground::Virtual => costs("virtual"),
        Ground::Served(server) => match &server.engine {
            Engine::Fake => costs("real"),
            Engine::Embedded { model, threads } => {
                json!({ "clock": "real", "model": model, "threads": threads })
            }
        },
    };
    let rungs: Vec<&str> = ladder.rungs.iter().copied().map(Rung::label).collect();
    json!({
        "rungs": rungs,
        "loads": ladder.loads,
        "seeds": ladder.seeds,
        "slo": ladder.slo,
        "duration_us": ladder.timing.duration.get(),
        "warm_up_us": ladder.timing.warm_up.get(),
        "drain_us": ladder.timing.drain.get(),
        "traffic": ladder.traffic,
        "engine": {
            "sequences": sequences,
            "kv_tokens": kv_tokens,
            "step_tokens": step_tokens,
            "context": context,
        },
        "ground": ground,
        "source": source,
    })
}

/// Of the file that runs; empty where the system does not show it.
fn digest_of_this_program() -> String {
    let digest = |path: &Path| {
        let mut file = fs::File::open(path).ok()?;
        let (mut hasher, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            let count = file.read(&mut piece).ok()?;
            if count == 0 {
                break;
            }
            hasher.update(piece.get(..count)?);
        }
        let bytes = hasher.finalize();
        Some(
            bytes
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>(),
        )
    };
    std::env::current_exe()
        .ok()
        .and_then(|path| digest(&path))
        .unwrap_or_default()
}
