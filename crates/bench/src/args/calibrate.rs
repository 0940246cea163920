//! The command line of a calibration.

use clap::Args;
use tollgate_policy::units::Micros;

use super::load::{TokenizerArg, identity_of_others};
use super::{ArgsError, tenant};
use crate::calibrate::Plan;
use crate::spec::{Endpoint, Tokenizer};

/// Prompts that no chunk cuts.
const PROMPTS: [u64; 4] = [64, 256, 512, 1_024];

/// Arguments of a calibration.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// The endpoint, such as http://127.0.0.1:8000/v1.
    #[arg(long, value_name = "URL")]
    pub url: Endpoint,
    /// The model to ask for.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Sequences at once, of which each gives one point of the line of steps.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    pub sequences: Vec<usize>,
    /// Prompt lengths, of which each gives one point of the line of prefill; short of a chunk.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = PROMPTS)]
    pub prompts: Vec<u64>,
    /// Output tokens of each request while steps are timed.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub output: u64,
    /// Time for each point.
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = tenant::span)]
    pub each: Micros,
    /// How a number of tokens becomes a text: `bytes` or `learn`.
    #[arg(long, value_name = "HOW", default_value = "learn")]
    pub tokenizer: TokenizerArg,
    /// The environment variable that holds the key, as *=VARIABLE.
    #[arg(long, value_name = "*=VARIABLE")]
    pub key: Vec<String>,
    /// Decides the texts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench calibrate --url http://127.0.0.1:8000/v1 --model smollm2 > cost.yaml
  tollgate bench calibrate --url http://127.0.0.1:8000/v1 --model stub --tokenizer bytes

The engine must have nothing else to do. Its cost is a line: a step by itself, each sequence in it, and
each prompt token. What it prints is the `fleet` of a scenario of `tollgate sim`. Exits 2 where the points
lie on no line.";

impl CalibrateArgs {
    /// What to measure.
    ///
    /// # Errors
    /// A key that is not set.
    pub fn plan(&self, command: String) -> Result<Plan, ArgsError> {
        Ok(Plan {
            endpoint: self.url.clone(),
            model: self.model.clone(),
            identity: identity_of_others(&self.key)?,
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
