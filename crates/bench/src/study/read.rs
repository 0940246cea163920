//! Reads runs from files: raw rows as they were written, and the record beside them.
//!
//! `x.csv` holds rows, `x.json` the record of the run. A record without rows is a run that failed.
//! A last line that is not whole (a full disk, a killed client) is left out and counted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tollgate_policy::units::{Micros, Time};

use super::{Cell, Facts, Run, State};
use crate::rows::{COLUMNS, Ending, Failure, Row};
use crate::spec::Timing;

/// The largest file that is read, in bytes.
const FILE_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Why runs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system does not give a file.
    #[error("cannot read {}: {error}; name files of raw rows, or folders", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file is no file of rows.
    #[error(
        "{} holds no raw rows: its columns are `{found}`; `tollgate bench run --rows` writes \
         such files", path.display()
    )]
    Columns {
        /// The file.
        path: PathBuf,
        /// Its first line, cut.
        found: String,
    },
    /// A line is no row.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A record is none.
    #[error("{}: {what}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// There is nothing to report.
    #[error("no run in {0}; name files of raw rows, or a folder that has some")]
    Nothing(String),
    /// More than a page can show.
    #[error("{0} runs; at most {max} fit on a page, name fewer", max = super::Study::RUNS_MAX)]
    TooMany(usize),
    /// No series has the name.
    #[error("no run belongs to `{0}`; --baseline takes the name of a series")]
    Baseline(String),
}

/// Every run of `inputs`.
pub(super) fn all(inputs: &[String]) -> Result<Vec<Run>, ReadError> {
    let mut runs = Vec::new();
    for input in inputs {
        let (name, path) = named(input);
        if path.is_dir() {
            for file in files_of(&path)? {
                runs.extend(one(&file, name.as_deref())?);
            }
        } else {
            match one(&path, name.as_deref())? {
                Some(run) => runs.push(run),
                None => {
                    let text = text_of(&path)?;
                    return Err(columns(&path, text.lines().next().unwrap_or_default()));
                }
            }
        }
    }
    if runs.is_empty() {
        return Err(ReadError::Nothing(inputs.join(", ")));
    }
    Ok(runs)
}

/// `NAME=PATH`, unless a file is called that.
fn named(input: &str) -> (Option<String>, PathBuf) {
    let whole = PathBuf::from(input);
    match input.split_once('=') {
        Some((name, path)) if !whole.exists() && !name.contains('/') && !name.is_empty() => {
            (Some(name.to_owned()), PathBuf::from(path))
        }
        Some(_) | None => (None, whole),
    }
}

/// Records and rows in a folder and in those inside it, each run once, in order of name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let failed = |error| ReadError::File {
        path: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is = |ending: &str| path.extension().is_some_and(|found| found == ending);
        if path.is_dir() {
            files.extend(files_of(&path)?);
        } else if is("csv") || (is("json") && !path.with_extension("csv").exists()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The run of one file; `None` of one that is about something else.
fn one(path: &Path, name: Option<&str>) -> Result<Option<Run>, ReadError> {
    let record = record(&path.with_extension("json"))?;
    let cell: Option<Cell> = record
        .as_ref()
        .and_then(|record| serde_json::from_value(record.get("cell")?.clone()).ok());
    if path.extension().is_some_and(|ending| ending == "json") {
        let cell = cell.filter(|cell| cell.failed.is_some());
        return Ok(cell.map(|cell| failed(path, cell)));
    }
    let text = text_of(path)?;
    let first = text.lines().next().unwrap_or_default();
    if !first.split(',').any(|column| column == "intended_us") {
        return match name {
            // A table of something else lies in the folder too.
            None => Ok(None),
            Some(_) => Err(columns(path, first)),
        };
    }
    let mut run = Run {
        series: name.map_or_else(|| stem(path), str::to_owned),
        rank: usize::MAX,
        load_per_s: 0.0,
        seed: 0,
        timing: Timing::default(),
        tenants: Vec::new(),
        rows: Vec::new(),
        facts: Facts {
            file: path.display().to_string(),
            ..Facts::default()
        },
        state: State::Measured,
    };
    Table::of(path, first)?.read(path, &text, &mut run)?;
    run.timing.duration = last_intended(&run.rows);
    run.timing.warm_up = Micros::ZERO;
    if let Some(record) = &record {
        describe(&mut run, record);
    }
    if let Some(cell) = cell {
        place(&mut run, cell, name);
    }
    if run.load_per_s <= 0.0 {
        run.load_per_s = offered(&run);
    }
    Ok(Some(run))
}

fn failed(path: &Path, cell: Cell) -> Run {
    let mut run = Run {
        series: String::new(),
        rank: 0,
        load_per_s: 0.0,
        seed: 0,
        timing: Timing::default(),
        tenants: Vec::new(),
        rows: Vec::new(),
        facts: Facts {
            file: path.display().to_string(),
            ..Facts::default()
        },
        state: State::Failed(cell.failed.clone().unwrap_or_default()),
    };
    place(&mut run, cell, None);
    run
}

/// The name without its ending, and without a seed as in `fair-s2`.
fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match stem.rsplit_once("-s") {
        Some((name, seed)) if seed.parse::<u64>().is_ok() && !name.is_empty() => name.to_owned(),
        Some(_) | None => stem.into_owned(),
    }
}

fn last_intended(rows: &[Row]) -> Micros {
    let last = rows.iter().map(|row| row.intended).max();
    last.map_or(Micros::ZERO, |last| {
        last.since(Time::START) + Micros::new(1)
    })
}

/// To two places: what was due in the measured window.
fn offered(run: &Run) -> f64 {
    let from = Time::START + run.timing.warm_up;
    let due = run.rows.iter().filter(|row| row.intended >= from).count();
    let per_s = due as f64 * 1e6 / (run.timing.measured().get().max(1) as f64);
    (per_s * 100.0).round() / 100.0
}

/// What the record of a run says of it.
fn describe(run: &mut Run, record: &Value) {
    let header = record.get("header").unwrap_or(&Value::Null);
    let span = |name: &str| {
        let secs = header.get(name).and_then(Value::as_f64);
        secs.map(|secs| Micros::new((secs * 1e6).round() as u64))
    };
    run.seed = header.get("seed").and_then(Value::as_u64).unwrap_or(0);
    run.timing.duration = span("duration_s").unwrap_or(run.timing.duration);
    run.timing.warm_up = span("warm_up_s").unwrap_or(run.timing.warm_up);
    let text = |name: &str| header.get(name).and_then(Value::as_str).unwrap_or_default();
    run.facts.command = text("command").to_owned();
    let machine = header.get("machine").unwrap_or(&Value::Null);
    if let Some(cores) = machine.get("cores").and_then(Value::as_u64) {
        let part = |name: &str| {
            machine
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        run.facts.machine = format!("{} ({cores} cores, {})", part("cpu"), part("system"));
    }
    let invalid = record
        .get("validity")
        .and_then(|validity| validity.get("invalid"));
    if let Some(reasons) = invalid.and_then(Value::as_array) {
        let reasons: Vec<&str> = reasons.iter().filter_map(Value::as_str).collect();
        run.state = State::Invalid(reasons.join("; "));
    }
}

/// What the record of a ladder's cell says of it.
fn place(run: &mut Run, cell: Cell, name: Option<&str>) {
    let span = |secs: f64| Micros::new((secs * 1e6).round() as u64);
    run.series = name.map_or(cell.series, str::to_owned);
    run.rank = cell.rank;
    run.load_per_s = cell.load_per_s;
    run.seed = cell.seed;
    run.timing.duration = span(cell.duration_s);
    run.timing.warm_up = span(cell.warm_up_s);
    run.facts.source = cell.source;
    run.facts.canary_ms = cell.canary_ms;
    run.facts.slo = Some(cell.slo);
    if let Some(why) = cell.failed {
        run.state = State::Failed(why);
    }
}

fn record(path: &Path) -> Result<Option<Value>, ReadError> {
    if !path.exists() {
        return Ok(None);
    }
    serde_json::from_str(&text_of(path)?)
        .map(Some)
        .map_err(|error| ReadError::Record {
            path: path.to_owned(),
            what: error.to_string(),
        })
}

fn text_of(path: &Path) -> Result<String, ReadError> {
    let size = fs::metadata(path).map(|known| known.len());
    let text = size.and_then(|size| {
        if size > FILE_MAX {
            return Err(io::Error::other(format!(
                "{size} bytes; at most {FILE_MAX} are read"
            )));
        }
        fs::read_to_string(path)
    });
    text.map_err(|error| ReadError::File {
        path: path.to_owned(),
        error,
    })
}

fn columns(path: &Path, found: &str) -> ReadError {
    ReadError::Columns {
        path: path.to_owned(),
        found: found.chars().take(120).collect(),
    }
}

/// Where each column stands.
struct Table {
    columns: Vec<String>,
}

/// The columns without which there is nothing to say. Files of earlier versions lack the others.
const NEEDED: [&str; 7] = [
    "tenant",
    "intended_us",
    "first_token_us",
    "last_token_us",
    "end_us",
    "ending",
    "deltas",
];

impl Table {
    fn of(path: &Path, header: &str) -> Result<Self, ReadError> {
        let columns: Vec<String> = header.split(',').map(str::to_owned).collect();
        let known = COLUMNS.split(',').count();
        let lacks = NEEDED
            .iter()
            .find(|name| !columns.iter().any(|column| column == *name));
        match lacks {
            Some(name) => Err(ReadError::Line {
                path: path.to_owned(),
                line: 1,
                what: format!("there is no column `{name}`, of the {known} that rows have"),
            }),
            None => Ok(Self { columns }),
        }
    }

    fn read(&self, path: &Path, text: &str, run: &mut Run) -> Result<(), ReadError> {
        let whole = text.ends_with('\n');
        let mut lines = text.lines().enumerate().skip(1).peekable();
        while let Some((index, line)) = lines.next() {
            let last = lines.peek().is_none();
            match self.row(line, &mut run.tenants) {
                Ok(_) | Err(_) if last && !whole => run.facts.torn += 1,
                Ok(row) => run.rows.push(row),
                Err(what) => {
                    return Err(ReadError::Line {
                        path: path.to_owned(),
                        line: index + 1,
                        what,
                    });
                }
            }
        }
        Ok(())
    }

    fn row(&self, line: &str, tenants: &mut Vec<String>) -> Result<Row, String> {
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != self.columns.len() {
            return Err(format!(
                "{} fields; the header has {}",
                fields.len(),
                self.columns.len()
            ));
        }
        let field = |name: &str| {
            let mut places = self.columns.iter();
            let place = places.position(|column| column == name);
            place
                .and_then(|place| fields.get(place))
                .copied()
                .unwrap_or_default()
        };
        let count = |name: &str| match field(name) {
            "" => Ok(None),
            text => text
                .parse::<u64>()
                .map(Some)
                .map_err(|_| format!("{name} is `{text}`; it must be a whole number")),
        };
        let time = |name: &str| count(name).map(|at| at.map(Time::from_micros));
        let needed = |name: &str| time(name)?.ok_or_else(|| format!("{name} is empty"));
        let gaps = field("gaps_us").split(' ').filter(|gap| !gap.is_empty());
        let gaps: Result<Vec<Micros>, _> = gaps.map(|gap| gap.parse().map(Micros::new)).collect();
        Ok(Row {
            tenant: index_of(field("tenant"), tenants),
            intended: needed("intended_us")?,
            sent: time("sent_us")?,
            first_token: time("first_token_us")?,
            last_token: time("last_token_us")?,
            end: needed("end_us")?,
            status: count("status")?.and_then(|status| u16::try_from(status).ok()),
            ending: ending(field("ending"), field("reason"))?,
            prompt_asked: count("prompt_asked")?.unwrap_or(0),
            output_asked: count("output_asked")?.unwrap_or(0),
            prompt_tokens: count("prompt_tokens")?,
            output_tokens: count("output_tokens")?,
            deltas: count("deltas")?.unwrap_or(0),
            deltas_in_window: count("deltas_in_window")?.unwrap_or(0),
            request_id: field("request_id").to_owned(),
            gaps: gaps.map_err(|_| "gaps_us holds what is no number".to_owned())?,
        })
    }
}

fn index_of(name: &str, tenants: &mut Vec<String>) -> usize {
    tenants
        .iter()
        .position(|known| known == name)
        .unwrap_or_else(|| {
            tenants.push(name.to_owned());
            tenants.len() - 1
        })
}

fn ending(kind: &str, reason: &str) -> Result<Ending, String> {
    Ok(match kind {
        "completed" => Ending::Completed,
        "refused" => Ending::Refused(reason.to_owned()),
        "unfinished" => Ending::Unfinished,
        "not_sent" => Ending::NotSent,
        "failed" => Ending::Failed(match reason {
            "connect" => Failure::Connect,
            "client_limit" => Failure::ClientLimit,
            "cut_off" => Failure::CutOff,
            "error_event" => Failure::ErrorEvent,
            "no_finish" => Failure::NoFinish,
            "bad_reply" => Failure::BadReply,
            // A kind that this version does not know is a failure all the same.
            other => match other
                .strip_prefix("http_")
                .and_then(|code| code.parse().ok())
            {
                Some(status) => Failure::Status(status),
                None => Failure::Reset,
            },
        }),
        _ => {
            return Err(format!(
                "ending is `{kind}`; it must be completed, refused, failed, unfinished or not_sent"
            ));
        }
    })
}
