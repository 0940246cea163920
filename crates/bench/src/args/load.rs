//! What every load has on its command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use tollgate_policy::units::Micros;
use tollgate_sim::workload::TenantLoad;

use super::{ArgsError, tenant, value};
use crate::spec::{
    Cycle, Endpoint, Identity, Key, Reply, Source, Spec, TenantSpec, Timing, Tokenizer,
};

/// The environment variable that names the folder of traces.
pub(super) const TRACES: &str = "TOLLGATE_TRACES";

/// Arguments that every load has.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Send requests for so long.
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = tenant::span)]
    pub duration: Micros,
    /// Leave requests that were due in the first of it out of every number.
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
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value::from_zero::<u64>)]
    pub seed: u64,
    /// Threads that send and read, besides the one that keeps time.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value::within::<usize, 1, 256>)]
    pub threads: usize,
    /// Ask for whole answers instead of streams.
    #[arg(long)]
    pub buffered: bool,
    /// How a number of tokens becomes a text: `bytes` (a byte is a token, as in emulated engines),
    /// or `learn` (two requests before the run tell).
    #[arg(long, value_name = "HOW", default_value = "learn")]
    pub tokenizer: TokenizerArg,
    /// Tokens that the chat template adds; for `--tokenizer bytes`.
    #[arg(long, value_name = "N", default_value_t = 18,
          value_parser = value::within::<u64, 0, 1_000_000>)]
    pub template_tokens: u64,
    /// The environment variable that holds a tenant's key; `*=VARIABLE` is for all others. Tenants
    /// without one are named by X-Tenant-ID.
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

/// Whom a load asks, and how.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    pub(super) closed: Option<NonZeroUsize>,
    /// Kept for the record.
    pub(super) command: String,
}

impl LoadArgs {
    /// Tenants that are known by their keys, where they have any.
    pub(super) fn drawn(&self, loads: Vec<TenantLoad>) -> Result<Source, ArgsError> {
        let tenants = loads.into_iter().map(|load| TenantSpec {
            load,
            identity: Identity::TenantHeader,
        });
        self.with_keys(tenants.collect())
    }

    /// Gives keys to those that are known by their names so far.
    pub(super) fn with_keys(&self, tenants: Vec<TenantSpec>) -> Result<Source, ArgsError> {
        let mut tenants = tenants;
        for key in &self.key {
            let (name, secret) = secret(key)?;
            if name == EVERYBODY {
                continue;
            }
            let tenant = tenants.iter_mut().find(|tenant| tenant.load.name == name);
            let nobody = || ArgsError::KeyOfNobody {
                key: key.clone(),
                tenant: name.to_owned(),
            };
            tenant.ok_or_else(nobody)?.identity = Identity::Key(Key::new(secret));
        }
        let others = identity_of_others(&self.key)?;
        for tenant in &mut tenants {
            if matches!(tenant.identity, Identity::TenantHeader) {
                tenant.identity = others.clone();
            }
        }
        Ok(Source::Drawn(tenants))
    }

    pub(super) fn spec(&self, target: Target, source: Source) -> Spec {
        Spec {
            endpoint: target.endpoint,
            model: target.model,
            source,
            cycle: target.closed.map_or(Cycle::Open, Cycle::Closed),
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
            command: target.command,
        }
    }
}

/// How tenants without a key of their own are known.
pub(super) fn identity_of_others(keys: &[String]) -> Result<Identity, ArgsError> {
    for key in keys {
        let (name, secret) = secret(key)?;
        if name == EVERYBODY {
            return Ok(Identity::Key(Key::new(secret)));
        }
    }
    Ok(Identity::TenantHeader)
}

/// Stands for all tenants without a key of their own.
const EVERYBODY: &str = "*";

/// The tenant that a key is for, and the key.
fn secret(key: &str) -> Result<(&str, String), ArgsError> {
    let (name, variable) = key
        .split_once('=')
        .ok_or_else(|| ArgsError::Key(key.to_owned()))?;
    let secret = std::env::var(variable).map_err(|_| ArgsError::KeyUnset(key.to_owned()))?;
    Ok((name, secret))
}
