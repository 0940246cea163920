//! The command line of an emulated engine.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use clap::Args;
use tollgate_policy::units::{Micros, Tokens};
use tollgate_sim::emulated::{Config, Cost, PrefixCache};

use super::{ArgsError, tenant, value};
use crate::engine::{Pace, Script, Settings};

/// Tokens of anything that is one request's or one step's.
const TOKENS: u64 = 10_000_000;

/// Tokens of all KV.
const KV_TOKENS: u64 = 1_000_000_000;

/// Arguments of an emulated engine.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EngineArgs {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000",
          value_parser = value::address)]
    pub listen: SocketAddr,
    /// A model that it has; may be given again.
    #[arg(long, value_name = "NAME", default_value = "stub", value_parser = value::name)]
    pub model: Vec<String>,
    /// Answer at once: whole streams in one write, for measuring what stands in front of it.
    #[arg(long)]
    pub instant: bool,
    /// Answers of any bytes at any time, from a YAML file; what it does not tell is served
    /// as usual.
    #[arg(long, value_name = "FILE.yaml")]
    pub script: Option<PathBuf>,
    /// Sequences that run at once.
    #[arg(long, value_name = "N", default_value_t = Config::default().slots,
          value_parser = value::from_one::<NonZeroU32>)]
    pub slots: NonZeroU32,
    /// What a step takes by itself.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = tenant::span)]
    pub step: Micros,
    /// What each sequence adds to it.
    #[arg(long, value_name = "TIME", default_value = "150us", value_parser = tenant::span)]
    pub per_sequence: Micros,
    /// Prompt tokens computed in a second.
    #[arg(long, value_name = "TOKENS", default_value_t = Cost::default().prefill_tokens_per_second,
          value_parser = value::from_one::<NonZeroU64>)]
    pub prefill: NonZeroU64,
    /// Tokens of one step.
    #[arg(long, value_name = "TOKENS", default_value_t = Config::default().chunk.get(),
          value_parser = value::within::<u64, 1, TOKENS>)]
    pub chunk: u64,
    /// Tokens of KV; past it, the newest sequence is computed again later.
    #[arg(long, value_name = "TOKENS", default_value_t = Config::default().kv.get(),
          value_parser = value::within::<u64, 1, KV_TOKENS>)]
    pub kv_tokens: u64,
    /// The longest prompt and output together.
    #[arg(long, value_name = "TOKENS", default_value_t = Config::default().context.get(),
          value_parser = value::within::<u64, 1, TOKENS>)]
    pub context: u64,
    /// Requests that wait at most; one more is a 503.
    #[arg(long, value_name = "N", default_value_t = Config::default().waiting_max,
          value_parser = value::within::<usize, 0, 1_000_000>)]
    pub waiting_max: usize,
    /// Compute what prompts begin with alike only once.
    #[arg(long)]
    pub prefix_cache: bool,
    /// Output tokens of a request that does not say how many.
    #[arg(long, value_name = "TOKENS", default_value_t = 128,
          value_parser = value::within::<u64, 1, TOKENS>)]
    pub output_default: u64,
    /// Requests that /seen keeps; 1000 unless answers come at once.
    #[arg(long, value_name = "N", value_parser = value::within::<usize, 0, 1_000_000>)]
    pub seen: Option<usize>,
    /// Threads that serve.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value::within::<usize, 1, 256>)]
    pub threads: usize,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench engine                                  64 slots, 10 ms + 0.15 ms a sequence a step
  tollgate bench engine --listen 127.0.0.1:8001 --slots 8 --kv-tokens 16384 --prefix-cache
  tollgate bench engine --instant --threads 2            no cost: what does a gateway itself cost?
  tollgate bench engine --script broken.yaml             bytes, waits and resets, as told

A byte of a prompt is a token, and a chat has its roles in it. /metrics has vLLM's names; /seen says
what came, with headers and bodies, and DELETE /seen forgets it; POST /cost with a number makes steps
cost so many per cent of what they did.

A script:
  answers:
    - path: /v1/chat/completions
      requests: { from: 1, to: 1 }
      steps:
        - head: 200
        - event: '{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}'
        - wait: 300ms
        - chunk: 'data: {\"cho'
        - reset
Steps: send (bytes as they are), hex, head (a status), chunk, event, wait, silence, end, close, reset,
repeat ({ times, steps }).";

impl EngineArgs {
    /// What to start.
    ///
    /// # Errors
    /// A script that cannot be read.
    pub fn settings(&self) -> Result<Settings, ArgsError> {
        let script = match &self.script {
            Some(path) => Script::read(path)?,
            None => Script::default(),
        };
        let config = Config {
            slots: self.slots,
            cost: Cost {
                step: self.step,
                per_sequence: self.per_sequence,
                prefill_tokens_per_second: self.prefill,
            },
            chunk: Tokens::new(self.chunk),
            kv: Tokens::new(self.kv_tokens),
            context: Tokens::new(self.context),
            waiting_max: self.waiting_max,
            prefix_cache: if self.prefix_cache {
                PrefixCache::On
            } else {
                PrefixCache::Off
            },
        };
        let seen = self.seen.unwrap_or(if self.instant { 0 } else { 1_000 });
        Ok(Settings {
            listen: self.listen,
            models: self.model.clone(),
            pace: if self.instant {
                Pace::Instant(config.context)
            } else {
                Pace::Emulated(config)
            },
            script,
            seen,
            output_default: self.output_default,
            threads: self.threads,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Engine {
        #[command(flatten)]
        args: EngineArgs,
    }

    fn settings(line: &str) -> Settings {
        let words = line.split(' ').filter(|word| !word.is_empty());
        let parsed = Engine::parse_from(std::iter::once("engine").chain(words));
        parsed.args.settings().unwrap()
    }

    #[test]
    fn the_command_line_holds_together() {
        Engine::command().debug_assert();
    }

    #[test]
    fn without_a_flag_it_is_the_engine_of_the_simulator() {
        let settings = settings("");
        assert_eq!(settings.pace, Pace::Emulated(Config::default()));
        assert_eq!(
            (settings.seen, settings.models),
            (1_000, vec!["stub".to_owned()])
        );
    }

    #[test]
    fn an_engine_that_answers_at_once_keeps_nothing_of_what_it_saw() {
        let settings = settings("--instant --context 4096");
        assert_eq!(settings.pace, Pace::Instant(Tokens::new(4_096)));
        assert_eq!(settings.seen, 0);
    }
}
