//! Command lines of load runs, for a binary to mount.
//!
//! A line becomes a [`Spec`] or a message that says what to write instead. Secrets come from the
//! environment, so that the command line can stand in the record of a run.

mod ladder;
mod realism;
mod report;
mod tenant;

use std::path::PathBuf;

use clap::Args;
use tollgate_policy::units::Micros;
use tollgate_sim::trace::{Trace, TraceError, TraceName, UnknownTrace};
use tollgate_sim::workload::TenantLoad;

use crate::flood::Scenario;
use crate::spec::{Endpoint, Identity, Key, Reply, Source, Spec, TenantSpec, Timing, Tokenizer};

pub use ladder::{LadderArgs, LadderEngineArgs};
pub use realism::{Realism, RealismArgs, RealismArgsError};
pub use report::ReportArgs;
pub use tenant::TenantArgError;
pub(crate) use tenant::span;

/// The environment variable that names the folder of traces.
const TRACES: &str = "TOLLGATE_TRACES";

/// Arguments that every load has.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// The endpoint, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub url: Endpoint,
    /// The model to ask for.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Send requests for so long.
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = tenant::span)]
    pub duration: Micros,
    /// Leave the first of it out of every number.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = tenant::span)]
    pub warm_up: Micros,
    /// Await answers for at most so long after the last request.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = tenant::span)]
    pub drain: Micros,
    /// Requests that leave later than this after they were due (at the 99th percentile) make the
    /// run invalid.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = tenant::span)]
    pub slip_max: Micros,
    /// Decides every arrival, length and text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Threads that send and read, besides the one that keeps time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Ask for whole answers instead of streams.
    #[arg(long)]
    pub buffered: bool,
    /// How a number of tokens becomes a text: `bytes` (a byte is a token, as in emulated engines),
    /// or `learn` (two requests before the run tell).
    #[arg(long, value_name = "HOW", default_value = "learn")]
    pub tokenizer: TokenizerArg,
    /// Tokens that the chat template adds; for `--tokenizer bytes`.
    #[arg(long, value_name = "N", default_value_t = 18)]
    pub template_tokens: u64,
    /// The environment variable that holds a tenant's key. Tenants without one are named by
    /// X-Tenant-ID.
    #[arg(long, value_name = "TENANT=VARIABLE")]
    pub key: Vec<String>,
    /// Write one line of CSV for each request to this file, as they end.
    #[arg(long, value_name = "FILE.csv")]
    pub rows: Option<PathBuf>,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
}

/// How a number of tokens becomes a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenizerArg {
    /// Every byte is a token.
    Bytes,
    /// Two requests before the run tell.
    Learn,
}

/// Arguments of a run of any load.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// What a tenant sends, as NAME:KEY=VALUE,... with the keys rate (requests a second), cv (of
    /// the gaps; 1 is Poisson), prompt and output (tokens: 128, or 64..256, or 300~0.8 for a
    /// lognormal of that median and sigma).
    #[arg(long, value_name = "TENANT", required_unless_present = "trace")]
    pub tenant: Vec<String>,
    /// Replay a trace: azure-conversations, azure-code, mooncake-conversations or lmsys-27.
    #[arg(long, value_name = "NAME", conflicts_with = "tenant")]
    pub trace: Option<String>,
    /// The folder of the trace files; else the environment variable TOLLGATE_TRACES names it.
    #[arg(long, value_name = "DIR", requires = "trace")]
    pub trace_dir: Option<PathBuf>,
    /// Replay so many times as fast as recorded; bursts become shorter too.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "trace")]
    pub speed: f64,
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,
}

const RUN_EXAMPLES: &str = "\
Examples:
  --url http://127.0.0.1:8080/v1 --model smollm2 --tenant a:rate=4,prompt=128,output=64
  --url http://127.0.0.1:8080/v1 --model smollm2 --trace lmsys-27 --trace-dir traces --speed 2";

/// Arguments of a scenario.
#[derive(Args, Clone, Debug)]
pub struct FloodArgs {
    /// Who is beside the quiet tenant.
    #[arg(long, value_enum, default_value = "flood")]
    pub scenario: Scenario,
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Why a command line is no load.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// A tenant is not described as it should be.
    #[error(transparent)]
    Tenant(#[from] TenantArgError),
    /// A key is not `TENANT=VARIABLE`.
    #[error("`--key {0}` is no key; use TENANT=VARIABLE")]
    Key(String),
    /// A key is for nobody.
    #[error("`--key {key}`: no tenant is called `{tenant}`")]
    KeyOfNobody {
        /// The argument.
        key: String,
        /// The tenant it names.
        tenant: String,
    },
    /// A key is not where it should be.
    #[error("`--key {0}`: the environment variable is not set")]
    KeyUnset(String),
    /// No trace has the name.
    #[error(transparent)]
    TraceName(#[from] UnknownTrace),
    /// No folder for the trace.
    #[error("where are the traces? Use --trace-dir DIR, or set {TRACES}")]
    TraceDir,
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl RunArgs {
    /// What to run; `command` is kept for the record.
    ///
    /// # Errors
    /// An argument that is no load, a key that is not set, or a trace that cannot be read.
    pub fn spec(&self, command: String) -> Result<Spec, ArgsError> {
        let Some(name) = &self.trace else {
            let loads: Result<Vec<TenantLoad>, _> =
                self.tenant.iter().map(|text| tenant::load(text)).collect();
            return self.load.spec_of(loads?, command);
        };
        let trace_name: TraceName = name.parse()?;
        let dir = self
            .trace_dir
            .clone()
            .or_else(|| std::env::var_os(TRACES).map(PathBuf::from));
        let trace = Trace::open(trace_name, &dir.ok_or(ArgsError::TraceDir)?)?;
        let source = Source::Replayed {
            name: name.clone(),
            trace,
            speed: self.speed,
        };
        Ok(self.load.spec(source, command))
    }
}

impl FloodArgs {
    /// What to run; `command` is kept for the record.
    ///
    /// # Errors
    /// A key that is not set or for nobody.
    pub fn spec(&self, command: String) -> Result<Spec, ArgsError> {
        self.load.spec_of(self.scenario.loads(), command)
    }
}

impl LoadArgs {
    fn spec_of(&self, loads: Vec<TenantLoad>, command: String) -> Result<Spec, ArgsError> {
        let mut tenants: Vec<TenantSpec> = loads
            .into_iter()
            .map(|load| TenantSpec {
                load,
                identity: Identity::TenantHeader,
            })
            .collect();
        for key in &self.key {
            let (name, variable) = key
                .split_once('=')
                .ok_or_else(|| ArgsError::Key(key.clone()))?;
            let tenant = tenants.iter_mut().find(|tenant| tenant.load.name == name);
            let nobody = || ArgsError::KeyOfNobody {
                key: key.clone(),
                tenant: name.to_owned(),
            };
            let secret = std::env::var(variable).map_err(|_| ArgsError::KeyUnset(key.clone()))?;
            tenant.ok_or_else(nobody)?.identity = Identity::Key(Key::new(secret));
        }
        Ok(self.spec(Source::Drawn(tenants), command))
    }

    fn spec(&self, source: Source, command: String) -> Spec {
        Spec {
            endpoint: self.url.clone(),
            model: self.model.clone(),
            source,
            reply: if self.buffered {
                Reply::Buffered
            } else {
                Reply::Streamed
            },
            tokenizer: match self.tokenizer {
                TokenizerArg::Bytes => Tokenizer::Bytes {
                    template: self.template_tokens,
                },
                TokenizerArg::Learn => Tokenizer::Learned,
            },
            timing: Timing {
                duration: self.duration,
                warm_up: self.warm_up,
                drain: self.drain,
                slip_p99_max: self.slip_max,
            },
            seed: self.seed,
            threads: self.threads,
            rows: self.rows.clone(),
            command,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Run {
        #[command(flatten)]
        args: RunArgs,
    }

    #[derive(Debug, Parser)]
    struct Flood {
        #[command(flatten)]
        args: FloodArgs,
    }

    fn run(line: &str) -> Result<Spec, String> {
        let words = "run --url http://127.0.0.1:1 --model m"
            .split(' ')
            .chain(line.split(' '));
        let parsed = Run::try_parse_from(words).map_err(|error| error.to_string())?;
        parsed
            .args
            .spec(line.to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_lines_hold_together() {
        Run::command().debug_assert();
        Flood::command().debug_assert();
    }

    #[test]
    fn a_line_becomes_a_load() {
        let spec =
            run("--tenant a:rate=4,prompt=128,output=64 --duration 2s --warm-up 500ms").unwrap();
        assert_eq!(spec.timing.measured(), Micros::from_millis(1_500));
        assert_eq!(
            (spec.reply, spec.tokenizer),
            (Reply::Streamed, Tokenizer::Learned)
        );
        let words = "flood --url http://h:1/v1 --model m --scenario four --tokenizer bytes";
        let flood = Flood::parse_from(words.split(' '))
            .args
            .spec(String::new())
            .unwrap();
        let Source::Drawn(tenants) = flood.source else {
            panic!("a scenario is drawn")
        };
        assert_eq!(tenants.len(), 5);
        assert_eq!(flood.tokenizer, Tokenizer::Bytes { template: 18 });
    }

    #[test]
    fn a_mistake_says_what_to_write_instead() {
        assert!(run("--seed 1").unwrap_err().contains("--tenant"));
        assert!(
            run("--tenant a:rate=x")
                .unwrap_err()
                .contains("`x` is no number")
        );
        assert!(run("--trace nope").unwrap_err().contains("lmsys-27"));
        let there = "--trace lmsys-27 --trace-dir not-here";
        assert!(run(there).unwrap_err().contains("does not exist"));
        let tenant = "--tenant a:rate=1,prompt=1,output=1";
        let refused = |key: &str| run(&format!("{tenant} --key {key}")).unwrap_err();
        assert!(refused("a").contains("TENANT=VARIABLE"));
        assert!(refused("a=TOLLGATE_NO_SUCH_VARIABLE").contains("not set"));
        assert!(refused("b=PATH").contains("no tenant is called `b`"));
        assert!(
            run(&format!("{tenant} --duration 5y"))
                .unwrap_err()
                .contains("use 500ms, 40s or 2m")
        );
    }

    #[test]
    fn a_key_is_read_from_the_environment_and_stays_out_of_the_record() {
        let spec = run("--tenant a:rate=1,prompt=1,output=1 --key a=PATH").unwrap();
        assert!(!format!("{spec:?}").contains(&std::env::var("PATH").unwrap()));
    }
}
