//! The command line of a calibration.

use clap::{Args, ValueEnum};
use tollgate_policy::units::Micros;

use super::load::{TokenizerArg, identity_of_others};
use super::{ArgsError, tenant, value};
use crate::calibrate::{Plan, Simulated};
use crate::spec::{Endpoint, Tokenizer};

/// One more each time: on a CPU what one more costs differs from one to the next.
const SEQUENCES: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Prompts that no chunk cuts.
const PROMPTS: [u64; 4] = [32, 64, 128, 256];

/// Arguments of a calibration.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// The endpoint, such as http://127.0.0.1:8000/v1.
    #[arg(long, value_name = "URL")]
    pub url: Endpoint,
    /// The model to ask for.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub model: String,
    /// Which engine of `tollgate sim` is to cost as much.
    #[arg(long, value_name = "ENGINE", default_value = "emulated")]
    pub engine: EngineArg,
    /// Sequences at once, a run each: two different numbers at least, the last what the engine
    /// serves at once. Of `--engine embedded` each is a point, and it is straight in between.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = SEQUENCES,
          value_parser = value::within::<u32, 1, 4096>)]
    pub sequences: Vec<u32>,
    /// Prompt lengths, each as often as any other: two at least, short of a chunk, and with the
    /// lengths that the simulation is to have.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = PROMPTS,
          value_parser = value::within::<u64, 1, 1_000_000>)]
    pub prompts: Vec<u64>,
    /// Output tokens of a request in the middle; they are from half to one and a half of it.
    #[arg(long, value_name = "TOKENS", default_value_t = 32,
          value_parser = value::within::<u64, 4, 100_000>)]
    pub output: u64,
    /// Time for each run; its first fifth is left out.
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = each)]
    pub each: Micros,
    /// How a number of tokens becomes a text: `bytes` or `learn`.
    #[arg(long, value_name = "HOW", default_value = "learn")]
    pub tokenizer: TokenizerArg,
    /// The environment variable that holds the key, as *=VARIABLE.
    #[arg(long, value_name = "*=VARIABLE")]
    pub key: Vec<String>,
    /// Decides the texts and the lengths.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value::from_zero::<u64>)]
    pub seed: u64,
}

/// An engine of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineArg {
    /// One in another process: a step by itself, each sequence in it, and prompt tokens.
    Emulated,
    /// The one in the gateway's process, on a CPU: answers by how many they are and by the KV in
    /// use, and prompts by themselves.
    Embedded,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench calibrate --url http://127.0.0.1:8000/v1 --model smollm2 --engine embedded > cost.yaml
  tollgate bench calibrate --url http://127.0.0.1:8000/v1 --model stub --tokenizer bytes

The engine must have nothing else to do. What its steps took is read from when tokens came to the clients,
and a cost is fitted to that, which is printed as the `fleet` of a scenario of `tollgate sim`. Before it,
as comments, stands how far it is off for steps of each kind; `total` is what they took together of what
the cost says. One request comes before all, the longest, so that a wrong name or a short context is told
at once; requests that are refused or fail later, and sequences that the engine does not serve at once,
are told there and on stderr. Exits 2 where no such cost explains half of the steps to within 15%.";

/// A time in which steps show.
fn each(text: &str) -> Result<Micros, String> {
    let span = tenant::span(text)?;
    match span >= Micros::from_secs(1) {
        true => Ok(span),
        false => Err("too short for steps to show; use 1s or more".to_owned()),
    }
}

impl CalibrateArgs {
    /// What to measure.
    ///
    /// # Errors
    /// A key that is not set, or that of a tenant.
    pub fn plan(&self, command: String) -> Result<Plan, ArgsError> {
        if let Some(key) = self.key.iter().find(|key| !key.starts_with("*=")) {
            return Err(ArgsError::KeyOfOne(key.clone()));
        }
        Ok(Plan {
            endpoint: self.url.clone(),
            model: self.model.clone(),
            identity: identity_of_others(&self.key)?,
            simulated: match self.engine {
                EngineArg::Emulated => Simulated::Emulated,
                EngineArg::Embedded => Simulated::Embedded,
            },
            sequences: self.sequences.clone(),
            prompts: self.prompts.clone(),
            output: self.output,
            each: self.each,
            tokenizer: match self.tokenizer {
                TokenizerArg::Bytes => Tokenizer::Bytes { template: 18 },
                TokenizerArg::Learn => Tokenizer::Learned,
            },
            seed: self.seed,
            command,
        })
    }
}
