//! The command line of the gate on decisions.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use super::value;

/// Arguments of the gate.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GateArgs {
    /// The decisions to compare with.
    #[arg(long, value_name = "FILE.json", default_value = "results/gate.json")]
    pub baseline: PathBuf,
    /// Write the decisions of this run to the file instead.
    #[arg(long)]
    pub update: bool,
    /// Slots of the engine; fewer than the baseline's show that the gate can close.
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN.saturating_add(63),
          value_parser = value::from_one::<NonZeroU32>)]
    pub slots: NonZeroU32,
    /// Fail also where decisions differ and nothing got worse.
    #[arg(long)]
    pub exact: bool,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench gate                 compare with results/gate.json
  tollgate bench gate --slots 1       must fail: who would not see this sees nothing
  tollgate bench gate --update        accept what is decided now

A fixed load is played through the policy and an emulated engine, in virtual time: a second of it, and
the same everywhere. Exits 0 when nothing got worse, 1 when something did, 2 when the run or the
baseline says nothing.";
