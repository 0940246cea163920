//! Command lines of the load tools, for a binary to mount.
//!
//! A line becomes a value that can be run, or a message that says what to write instead. Secrets
//! come from the environment, so that the command line can stand in the record of a run.

mod calibrate;
mod engine;
mod flood;
mod gate;
mod ladder;
mod load;
mod realism;
mod report;
mod run;
mod tenant;
pub mod value;

use tollgate_sim::trace::{TraceError, UnknownTrace};

use crate::engine::ScriptError;
use crate::yaml::YamlError;

pub use calibrate::{CalibrateArgs, EngineArg};
pub use engine::EngineArgs;
pub use flood::{FloodArgs, NamedEndpoint};
pub use gate::GateArgs;
pub use ladder::{LadderArgs, LadderEngineArgs};
pub use load::{LoadArgs, TokenizerArg};
pub use realism::{Realism, RealismArgs, RealismArgsError};
pub use report::ReportArgs;
pub use run::RunArgs;
pub use tenant::TenantArgError;

pub(crate) use tenant::{lengths, span};

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
    /// A key of one tenant, where there is none.
    #[error("`--key {0}`: there are no tenants here; use *=VARIABLE")]
    KeyOfOne(String),
    /// A key is not where it should be.
    #[error("`--key {0}`: the environment variable is not set; export it first")]
    KeyUnset(String),
    /// No trace has the name.
    #[error(transparent)]
    TraceName(#[from] UnknownTrace),
    /// No folder for the trace.
    #[error("where are the traces? Use --trace-dir DIR, or set {}", load::TRACES)]
    TraceDir,
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A file does not say what it should.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// A script that cannot be followed.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// A flood of nobody.
    #[error("--tenants {0}; use 2 to 64: one that floods, the others quiet")]
    Tenants(usize),
    /// Two endpoints of one name.
    #[error("two endpoints are called `{0}`; give each its own name")]
    SameName(String),
}
