//! The command line of the realism gates.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use tollgate_sim::realism::{RealismError, STAND_INS, trial};
use tollgate_sim::trace::{TraceName, UnknownTrace};

use super::value;

/// Which traces' stand-ins go before the gate.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RealismArgs {
    /// Only this trace's: azure-conversations, mooncake-conversations or lmsys-27.
    #[arg(long, value_name = "NAME")]
    pub trace: Option<String>,
    /// The folder of the trace files; else the environment variable TOLLGATE_TRACES names it.
    /// Without either, what is committed of each trace is the measure.
    #[arg(long, value_name = "DIR")]
    pub trace_dir: Option<PathBuf>,
    /// Decides every arrival and length.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value::from_zero::<u64>)]
    pub seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench realism
  tollgate bench realism --trace lmsys-27 --trace-dir traces";

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realism {
    /// Every check of every stream.
    pub text: String,
    /// Whether all streams passed and all controls failed.
    pub as_it_should: bool,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum RealismArgsError {
    /// No trace has the name.
    #[error(transparent)]
    Name(#[from] UnknownTrace),
    /// The trace has no stand-in.
    #[error("`{0}` has no stand-in: its requests come in batches; use another trace")]
    NoStandIn(String),
    /// A trace cannot be read.
    #[error(transparent)]
    Realism(#[from] RealismError),
}

impl RealismArgs {
    /// Puts streams and controls before the gate.
    ///
    /// # Errors
    /// An unknown trace, or one that cannot be read.
    pub fn run(&self) -> Result<Realism, RealismArgsError> {
        let names: Vec<TraceName> = match &self.trace {
            None => STAND_INS.to_vec(),
            Some(name) => vec![name.parse()?],
        };
        let told = || std::env::var_os(super::load::TRACES).map(PathBuf::from);
        let dir = self.trace_dir.clone().or_else(told);
        let (mut text, mut as_it_should) = (String::new(), true);
        for name in names {
            let tried = trial(name, dir.as_deref(), self.seed)?;
            if tried.is_empty() {
                return Err(RealismArgsError::NoStandIn(name.label().to_owned()));
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", name.label());
            for one in tried {
                let wanted = if one.control {
                    "has to fail"
                } else {
                    "has to pass"
                };
                let did = if one.gate.passes() { "passes" } else { "fails" };
                let _ = write!(text, "  {} {wanted}, and {did}\n{}", one.name, one.gate);
                as_it_should &= one.as_it_should();
            }
        }
        Ok(Realism { text, as_it_should })
    }
}
