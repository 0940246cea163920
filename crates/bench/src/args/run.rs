//! The command line of a run of any load.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use tollgate_sim::trace::{Trace, TraceName};
use tollgate_sim::workload::TenantLoad;

use super::load::{LoadArgs, TRACES, Target, identity_of_others};
use super::{ArgsError, tenant, value};
use crate::spec::{Endpoint, Source, Spec};
use crate::workload_file;

/// Arguments of a run of any load.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// The endpoint, such as http://127.0.0.1:8080/v1; https:// works too.
    #[arg(long, value_name = "URL")]
    pub url: Endpoint,
    /// The model to ask for.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub model: String,
    /// What a tenant sends, as NAME:KEY=VALUE,... with the keys rate (requests a second), cv (of
    /// the gaps; 1 is Poisson), prompt and output (tokens: 128, or 64..256, or 300~0.8 for a
    /// lognormal of that median and sigma), shared (tokens that prompts begin with alike), variants
    /// (of that), share (of the prompts that do), turns (requests of a session), think (seconds
    /// between an answer and the next turn, on average).
    #[arg(long, value_name = "TENANT", required_unless_present_any = ["trace", "workload"])]
    pub tenant: Vec<String>,
    /// Tenants from a YAML file, with every kind of arrivals: poisson, gamma, mmpp, log_ar, spikes,
    /// decays, diurnal.
    #[arg(long, value_name = "FILE.yaml", conflicts_with = "tenant")]
    pub workload: Option<PathBuf>,
    /// Replay a trace: azure-conversations, azure-code, mooncake-conversations or lmsys-27.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tenant", "workload"])]
    pub trace: Option<String>,
    /// The folder of the trace files; else the environment variable TOLLGATE_TRACES names it.
    #[arg(long, value_name = "DIR", requires = "trace")]
    pub trace_dir: Option<PathBuf>,
    /// Replay so many times as fast as recorded; bursts become shorter too.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "trace",
          value_parser = value::fraction)]
    pub speed: f64,
    /// So many clients that each wait for their answer before they ask again: a closed loop, whose
    /// latencies say nothing about a load. Rates then only mix the tenants.
    #[arg(long, value_name = "CLIENTS", value_parser = closed)]
    pub closed: Option<NonZeroUsize>,
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench run --url http://127.0.0.1:8080/v1 --model smollm2 \\
      --tenant a:rate=4,prompt=128,output=64 --tenant b:rate=1,cv=3,prompt=300~0.8,output=64..256
  tollgate bench run --url http://127.0.0.1:8080/v1 --model smollm2 --workload load.yaml --rows rows.csv
  tollgate bench run --url http://127.0.0.1:8080/v1 --model smollm2 --trace lmsys-27 --speed 2

A file for --workload:
  tenants:
    - name: chat
      arrivals: { mmpp: { rates: [1, 20], stay_s: [30, 5] } }
      prompt: 300~0.8
      output: 64..256
      shared: { tokens: 200, variants: 4, share: 0.7 }
      session: { turns: 5, think_s: 8 }
      key: { env: CHAT_KEY }

Latencies count from when a request was due, not from when it left. Exits 0 after a valid run, 2
after one that is not, and where there was none.";

/// As many clients as may have a request open.
fn closed(text: &str) -> Result<NonZeroUsize, String> {
    const MOST: u64 = crate::run::IN_FLIGHT_MAX as u64;
    let clients = value::within::<usize, 1, MOST>(text)?;
    NonZeroUsize::new(clients).ok_or_else(|| "use 1 or more".to_owned())
}

impl RunArgs {
    /// What to run; `command` is kept for the record.
    ///
    /// # Errors
    /// An argument that is no load, a key that is not set, or a file that cannot be read.
    pub fn spec(&self, command: String) -> Result<Spec, ArgsError> {
        let target = Target {
            endpoint: self.url.clone(),
            model: self.model.clone(),
            closed: self.closed,
            command,
        };
        Ok(self.load.spec(target, self.source()?))
    }

    fn source(&self) -> Result<Source, ArgsError> {
        if let Some(path) = &self.workload {
            return self.load.with_keys(workload_file::read(path)?);
        }
        let Some(name) = &self.trace else {
            let loads: Result<Vec<TenantLoad>, _> =
                self.tenant.iter().map(|text| tenant::load(text)).collect();
            return self.load.drawn(loads?);
        };
        let trace_name: TraceName = name.parse()?;
        let dir = self
            .trace_dir
            .clone()
            .or_else(|| std::env::var_os(TRACES).map(PathBuf::from));
        let trace = Trace::open(trace_name, &dir.ok_or(ArgsError::TraceDir)?)?;
        Ok(Source::Replayed {
            identity: identity_of_others(&self.load.key)?,
            name: name.clone(),
            trace,
            speed: self.speed,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};
    use tollgate_policy::units::Micros;

    use super::*;
    use crate::spec::{Cycle, Reply, Tokenizer};

    #[derive(Debug, Parser)]
    struct Run {
        #[command(flatten)]
        args: RunArgs,
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
    fn the_command_line_holds_together() {
        Run::command().debug_assert();
    }

    #[test]
    fn a_line_becomes_a_load() {
        let spec =
            run("--tenant a:rate=4,prompt=128,output=64 --duration 2s --warm-up 500ms").unwrap();
        assert_eq!(spec.timing.measured(), Micros::from_millis(1_500));
        assert_eq!(
            (spec.reply, spec.tokenizer, spec.cycle),
            (Reply::Streamed, Tokenizer::Learned, Cycle::Open)
        );
        let closed = run("--tenant a:rate=4,prompt=128,output=64 --closed 8").unwrap();
        assert_eq!(closed.cycle, Cycle::Closed(NonZeroUsize::new(8).unwrap()));
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
        assert!(
            run("--workload not-here.yaml")
                .unwrap_err()
                .contains("cannot read not-here.yaml")
        );
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
        let secret = std::env::var("PATH").unwrap();
        for key in ["a=PATH", "*=PATH"] {
            let line = format!("--tenant a:rate=1,prompt=1,output=1 --key {key}");
            let spec = run(&line).unwrap();
            let shown = format!("{spec:?}");
            assert!(
                shown.contains("Key(***)") && !shown.contains(&secret),
                "{shown}"
            );
        }
    }
}
