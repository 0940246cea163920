//! What was learned of a model's latency, in a file: numbers and texts, and nothing that is run.
//!
//! The first line says what the file is and how long and how whole the second is; the second is
//! JSON. A file of another format, engine, model or machine is not taken on, and it is said why.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_policy::slo::State;
use tollgate_policy::slo::admission::{CalibratorState, FitState};
use tollgate_policy::slo::trees::{Node, Trees};

use crate::config::{EngineConfig, ModelConfig};

/// The format's name and its version; another version is another format.
const FORMAT: (&str, u32) = ("tollgate-admission", 2);

/// The longest file that is read, in bytes.
const LENGTH_MAX: u64 = 16 << 20;

/// Seconds after which what was learned says nothing any more: a month.
const AGE_MAX: u64 = 30 * 86_400;

/// Whose latency was learned, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The model's name in the configuration.
    pub model: String,
    /// What ran it.
    pub engine: String,
    /// How it was set up, in short.
    pub setup: String,
    /// What it ran on.
    pub machine: String,
    /// When it was written, in seconds of Unix time.
    pub written_unix: u64,
}

/// Why what was learned is not taken on.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file can't be read.
    #[error("{path} can't be read: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is not such a file, or not whole.
    #[error("{path} {what}; delete it")]
    Bad {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It was learned elsewhere, or too long ago.
    #[error("{path}: {what} was {then} and is {now}")]
    Other {
        /// Which file.
        path: PathBuf,
        /// In what it differs.
        what: &'static str,
        /// What the file says.
        then: String,
        /// What holds.
        now: String,
    },
}

impl Provenance {
    /// Of a model on this machine.
    pub(crate) fn of(model: &ModelConfig, now_unix: u64) -> Self {
        let (engine, own) = match &model.engine {
            EngineConfig::Embedded { path, threads, .. } => (
                "embedded".to_owned(),
                format!("{} threads {threads:?}", path.display()),
            ),
            EngineConfig::Fake(fake) => ("fake".to_owned(), format!("{fake:?}")),
            EngineConfig::Remote(remote) => (
                format!("{:?}", remote.kind).to_lowercase(),
                format!("{} replicas", model.replicas.len()),
            ),
        };
        let setup = format!(
            "{own}, {} sequences, steps of {}, {:?}, window {:?}, {}",
            model.max_sequences,
            model.step_tokens,
            model.schedule,
            model.window,
            model.target.slo.learner().label()
        );
        Self {
            model: model.name.clone(),
            engine,
            setup: format!("{:08x}", crc32c::crc32c(setup.as_bytes())),
            machine: machine(),
            written_unix: now_unix,
        }
    }

    /// Where it differs from what holds now.
    fn differs(&self, now: &Self) -> Option<(&'static str, String, String)> {
        let pairs = [
            ("the model", &self.model, &now.model),
            ("the engine", &self.engine, &now.engine),
            ("the engine's setup", &self.setup, &now.setup),
            ("the machine", &self.machine, &now.machine),
        ];
        let other = pairs.into_iter().find(|(_, then, now)| then != now);
        let other = other.map(|(what, then, now)| (what, then.clone(), now.clone()));
        let age = now.written_unix.saturating_sub(self.written_unix);
        let old = || {
            let days = |seconds: u64| format!("{} days old", seconds / 86_400);
            (
                "what was learned",
                "younger than 30 days".to_owned(),
                days(age),
            )
        };
        other.or_else(|| (age > AGE_MAX).then(old))
    }
}

/// The processors of this computer, as far as that makes it fast or slow.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let arch = std::env::consts::ARCH;
    format!("{cores} x {arch} {name}").trim_end().to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    format: String,
    version: u32,
    bytes: u64,
    crc32c: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    provenance: Provenance,
    prefill: [String; 5],
    decode: [String; 5],
    ttft: Scores,
    tpot: Scores,
    e2e: Scores,
    stage: Scores,
    outputs: Vec<u64>,
    prompts: Vec<u64>,
    /// Trees of nodes: one number is a leaf, four are a feature, its bound, and where to go on.
    model: Vec<Vec<Vec<i64>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scores {
    pool: Vec<u32>,
    groups: Vec<(Vec<u32>, Option<i32>)>,
}

/// Writes what was learned, in place of what was there; a crash leaves one of the two.
pub(super) fn write(folder: &Path, provenance: &Provenance, state: &State) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let body = serde_json::to_string(&Body::of(provenance, state))?;
    let heading = serde_json::to_string(&Heading {
        format: FORMAT.0.to_owned(),
        version: FORMAT.1,
        bytes: body.len() as u64,
        crc32c: crc32c::crc32c(body.as_bytes()),
    })?;
    let path = path(folder, &provenance.model);
    let unfinished = path.with_extension("new");
    let mut file = fs::File::create(&unfinished)?;
    write!(file, "{heading}\n{body}\n")?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

/// Reads what was learned of what holds `now`; `None` where nothing was.
pub(super) fn read(folder: &Path, now: &Provenance) -> Result<Option<State>, StateError> {
    let path = path(folder, &now.model);
    let text = match fs::metadata(&path).map(|meta| meta.len()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(length) if length > LENGTH_MAX => Err(io::Error::other("it is too long")),
        Ok(_) => fs::read_to_string(&path),
        Err(error) => Err(error),
    };
    let text = text.map_err(|source| StateError::Read {
        path: path.clone(),
        source,
    })?;
    let body = checked(&text).map_err(|what| StateError::Bad {
        path: path.clone(),
        what,
    })?;
    if let Some((what, then, now)) = body.provenance.differs(now) {
        return Err(StateError::Other {
            path,
            what,
            then,
            now,
        });
    }
    let state = body.state();
    state
        .map(Some)
        .map_err(|what| StateError::Bad { path, what })
}

fn checked(text: &str) -> Result<Body, String> {
    let (heading, body) = text.split_once('\n').ok_or("has no heading")?;
    let body = body.trim_end_matches('\n');
    let heading: Heading =
        serde_json::from_str(heading).map_err(|error| format!("has a bad heading: {error}"))?;
    if (heading.format.as_str(), heading.version) != FORMAT {
        let (format, version) = (heading.format, heading.version);
        return Err(format!(
            "is {format} {version}; this gateway reads {} {}",
            FORMAT.0, FORMAT.1
        ));
    }
    if heading.bytes != body.len() as u64 || heading.crc32c != crc32c::crc32c(body.as_bytes()) {
        return Err("is not whole".to_owned());
    }
    serde_json::from_str(body).map_err(|error| format!("is not what it says: {error}"))
}

/// A name of a file for a name of a model.
fn path(folder: &Path, model: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = model.chars().map(plain).take(64).collect();
    let tail = crc32c::crc32c(model.as_bytes());
    folder.join(format!("{name}-{tail:08x}.json"))
}

impl Body {
    fn of(provenance: &Provenance, state: &State) -> Self {
        let [ttft, tpot, e2e] = state.door.each_ref().map(Scores::of);
        let node = |node: &Node| match *node {
            Node::Leaf(value) => vec![i64::from(value)],
            Node::Split {
                feature,
                most,
                left,
                right,
            } => vec![
                i64::from(feature),
                i64::try_from(most).unwrap_or(i64::MAX),
                i64::from(left),
                i64::from(right),
            ],
        };
        let trees = state.model.as_slice().iter();
        Self {
            provenance: provenance.clone(),
            prefill: state.prefill.sums.map(|sum| sum.to_string()),
            decode: state.decode.sums.map(|sum| sum.to_string()),
            ttft,
            tpot,
            e2e,
            stage: Scores::of(&state.stage),
            outputs: state.outputs.clone(),
            prompts: state.prompts.clone(),
            model: trees.map(|tree| tree.iter().map(node).collect()).collect(),
        }
    }

    fn state(self) -> Result<State, String> {
        let fit = |sums: [String; 5]| -> Result<FitState, String> {
            let mut fit = FitState::default();
            for (sum, text) in fit.sums.iter_mut().zip(&sums) {
                *sum = text.parse().map_err(|_| format!("has no sum but {text}"))?;
            }
            Ok(fit)
        };
        let tree = |tree: Vec<Vec<i64>>| tree.iter().map(|one| node(one)).collect();
        let trees: Option<Vec<Vec<Node>>> = self.model.into_iter().map(tree).collect();
        let trees = trees.ok_or("has a tree with a node that is none")?;
        Ok(State {
            prefill: fit(self.prefill)?,
            decode: fit(self.decode)?,
            door: [self.ttft, self.tpot, self.e2e].map(Scores::state),
            stage: self.stage.state(),
            outputs: self.outputs,
            prompts: self.prompts,
            model: Trees::new(trees).map_err(|error| error.to_string())?,
        })
    }
}

fn node(numbers: &[i64]) -> Option<Node> {
    match *numbers {
        [value] => Some(Node::Leaf(i32::try_from(value).ok()?)),
        [feature, most, left, right] => Some(Node::Split {
            feature: u8::try_from(feature).ok()?,
            most: u64::try_from(most).ok()?,
            left: u16::try_from(left).ok()?,
            right: u16::try_from(right).ok()?,
        }),
        _ => None,
    }
}

impl Scores {
    fn of(state: &CalibratorState) -> Self {
        Self {
            pool: state.pool.clone(),
            groups: state.groups.clone(),
        }
    }

    fn state(self) -> CalibratorState {
        CalibratorState {
            pool: self.pool,
            groups: self.groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned() -> State {
        let tree = vec![
            Node::Split {
                feature: 1,
                most: 500,
                left: 1,
                right: 2,
            },
            Node::Leaf(-20),
            Node::Leaf(1_000),
        ];
        State {
            prefill: FitState {
                sums: [1 << 20, 1 << 40, 1 << 50, u128::from(u64::MAX) * 7, 3],
            },
            outputs: vec![5, 7],
            stage: CalibratorState {
                pool: vec![1_024, 2_048],
                groups: vec![(vec![1_024], Some(-3))],
            },
            model: Trees::new(vec![tree]).unwrap(),
            ..State::default()
        }
    }

    fn provenance() -> Provenance {
        let engine = EngineConfig::Fake(crate::config::FakeConfig::default());
        Provenance::of(
            &ModelConfig::new("llama/3:8b".to_owned(), engine),
            1_000_000,
        )
    }

    #[test]
    fn what_is_written_is_what_is_read_and_nothing_is_no_mistake() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), &provenance()).unwrap(), None);
        write(folder.path(), &provenance(), &learned()).unwrap();
        assert_eq!(read(folder.path(), &provenance()).unwrap(), Some(learned()));
    }

    #[test]
    fn another_machine_or_engine_or_month_is_said_aloud() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &provenance(), &learned()).unwrap();
        let elsewhere = Provenance {
            machine: "96 x aarch64".to_owned(),
            ..provenance()
        };
        let said = read(folder.path(), &elsewhere).unwrap_err().to_string();
        assert!(said.contains("the machine was"), "{said}");
        let later = Provenance {
            written_unix: 1_000_000 + 31 * 86_400,
            ..provenance()
        };
        let said = read(folder.path(), &later).unwrap_err().to_string();
        assert!(said.contains("31 days old"), "{said}");
    }

    #[test]
    fn a_damaged_or_foreign_file_is_refused_and_never_run() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &provenance(), &learned()).unwrap();
        let path = path(folder.path(), &provenance().model);
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in [
            whole.replacen("1024", "1025", 1),
            whole.replacen("\"version\":2", "\"version\":1", 1),
            whole[..whole.len() - 9].to_owned(),
            "\u{80}\u{4}pickle".to_owned(),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = read(folder.path(), &provenance()).unwrap_err();
            assert!(matches!(error, StateError::Bad { .. }), "{error}");
        }
    }
}
