//! The command line of the ladder.

use std::path::PathBuf;

use clap::Args;
use tollgate_policy::units::Micros;
use tollgate_sim::Lengths;
use tollgate_sim::rungs::{Cost, Machine, Rung};
use tollgate_sim::workload::SharedPrefix;

use super::tenant::{lengths, span};
use super::value;
use crate::ladder::{Engine, Ground, Ladder, Server, Traffic};
use crate::slo::Slo;
use crate::spec::Timing;

/// Rungs, loads and seeds, on which ground.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LadderArgs {
    /// Requests per second, one rate after the other: 1,2,4.
    #[arg(long, value_name = "RATES", required = true, value_delimiter = ',',
          value_parser = value::fraction)]
    pub loads: Vec<f64>,
    /// What is compared, the lowest first. slo-goodput, slo-80, slo-95 and slo-99 have a gateway
    /// before the engine that admits by the limits of --slo.
    #[arg(
        long,
        value_name = "RUNGS",
        value_delimiter = ',',
        default_value = "fifo,static,continuous,continuous+prefix"
    )]
    pub rungs: Vec<Rung>,
    /// Run each cell with the seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = value::within::<u64, 1, 1_000>)]
    pub seeds: u64,
    /// What a good request keeps, as ttft=2s,tpot=100ms,e2e=30s.
    #[arg(long, value_name = "LIMITS", default_value = "ttft=2s,tpot=100ms")]
    pub slo: Slo,
    /// Where cells, table and page go. A ladder of the same arguments that is there goes on.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Begin no cell later than this; the same command goes on with the rest.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub budget: Option<Micros>,
    /// Send requests for so long in each cell.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = span)]
    pub duration: Micros,
    /// Leave the first of it out of every number.
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = span)]
    pub warm_up: Micros,
    /// Await answers for at most so long after the last request.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = span)]
    pub drain: Micros,
    /// Tokens of a prompt: 600, or 580..640, or 600~0.3.
    #[arg(long, value_name = "TOKENS", default_value = "580..640", value_parser = lengths)]
    pub prompt: Lengths,
    /// Tokens of an output: 32, or 16..64, or 32~0.7 for a lognormal of that median and sigma.
    #[arg(long, value_name = "TOKENS", default_value = "32~0.7", value_parser = lengths)]
    pub output: Lengths,
    /// Which part of the prompts begins with a shared one; 0..=1.
    #[arg(long, value_name = "PART", default_value_t = 0.7, value_parser = value::fraction)]
    pub share: f64,
    /// How long the shared beginnings are, in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 550,
          value_parser = value::within::<u64, 1, 10_000_000>)]
    pub shared_tokens: u64,
    /// How many shared beginnings there are.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = value::within::<u32, 1, 1_000_000>)]
    pub shared_variants: u32,
    /// Spread of the gaps between requests over their mean: 1 is Poisson, and less makes short
    /// cells alike in what they are offered.
    #[arg(long, value_name = "CV", default_value_t = 1.0, value_parser = value::fraction)]
    pub cv: f64,
    /// The engine.
    #[command(flatten)]
    pub engine: LadderEngineArgs,
}

/// The engine that is measured.
#[derive(Args, Clone, Debug)]
pub struct LadderEngineArgs {
    /// The model file. `tollgate serve` is started anew on it for each cell.
    #[arg(long, value_name = "FILE.gguf", required_unless_present_any = ["sim", "fake"])]
    pub model: Option<PathBuf>,
    /// Climb on a virtual clock instead: the same planner, with steps that cost what --cost says.
    #[arg(long, conflicts_with = "model")]
    pub sim: bool,
    /// Climb on real servers with an engine that makes its text up, with steps that cost what
    /// --cost says.
    #[arg(long, conflicts_with_all = ["model", "sim"])]
    pub fake: bool,
    /// What steps cost with --sim and --fake: microseconds a step, microseconds for each sequence
    /// in it, and prompt tokens a second.
    #[arg(
        long,
        value_name = "STEP,SEQUENCE,PREFILL",
        default_value = "10000,150,12000",
        value_parser = cost
    )]
    pub cost: Cost,
    /// The program that serves; this one without.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "sim")]
    pub server: Option<PathBuf>,
    /// Threads that compute; the server's own choice without.
    #[arg(long, value_name = "N", requires = "model",
          value_parser = value::within::<usize, 1, 1_024>)]
    pub threads: Option<usize>,
    /// Sequences that run at once.
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = value::within::<u32, 1, 65_536>)]
    pub sequences: u32,
    /// Room for the tokens of all of them; a multiple of 16.
    #[arg(long, value_name = "TOKENS", default_value_t = 16_384,
          value_parser = value::within::<u32, 16, 1_000_000_000>)]
    pub kv_tokens: u32,
    /// Tokens that one step may compute.
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = value::within::<u64, 1, 10_000_000>)]
    pub step_tokens: u64,
    /// Tokens of one request.
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048,
          value_parser = value::within::<u64, 1, 10_000_000>)]
    pub context: u64,
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench ladder --sim --loads 5,10,20 --out ladder-sim
  tollgate bench ladder --model models/SmolLM2-135M-Instruct.Q4_1.gguf --loads 0.5,1,2 --out ladder

A cell that fails keeps its reason, and counts as done; remove its record under DIR/cells to run it
again. Ctrl-C loses the cell under way and no other.";

impl LadderArgs {
    /// The ladder; `this_program` serves unless another one is named.
    pub fn ladder(&self, this_program: PathBuf, command: String) -> Ladder {
        let LadderEngineArgs {
            model,
            sim,
            fake: _,
            cost,
            server,
            threads,
            sequences,
            kv_tokens,
            step_tokens,
            context,
        } = self.engine.clone();
        let ground = if sim {
            Ground::Virtual
        } else {
            Ground::Served(Server {
                program: server.unwrap_or(this_program),
                engine: model.map_or(Engine::Fake, |model| Engine::Embedded { model, threads }),
            })
        };
        let shared = SharedPrefix {
            tokens: self.shared_tokens,
            variants: self.shared_variants,
            share: self.share,
            family: None,
        };
        Ladder {
            rungs: self.rungs.clone(),
            loads: self.loads.clone(),
            seeds: self.seeds,
            slo: self.slo,
            timing: Timing {
                duration: self.duration,
                warm_up: self.warm_up,
                drain: self.drain,
                ..Timing::default()
            },
            traffic: Traffic {
                prompt: self.prompt,
                output: self.output,
                shared: (self.share > 0.0).then_some(shared),
                cv: self.cv,
            },
            machine: Machine {
                sequences,
                kv_tokens,
                step_tokens,
                context,
                cost,
            },
            ground,
            out: self.out.clone(),
            budget: self.budget,
            command,
        }
    }
}

fn cost(text: &str) -> Result<Cost, String> {
    let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([step, sequence, prefill]) if *prefill > 0 => Ok(Cost {
            step: Micros::new(*step),
            per_sequence: Micros::new(*sequence),
            prefill_tokens_per_s: *prefill,
        }),
        Ok(_) | Err(_) => Err(format!("`{text}` is no cost; use 10000,150,12000")),
    }
}
