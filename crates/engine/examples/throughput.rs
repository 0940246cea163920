//! Prints how fast the embedded engine reads prompts and writes answers, for one sequence and for
//! eight.
//!
//! `cargo run --release -p tollgate-engine --example throughput [MODEL.gguf]`. Prefill is 512
//! prompt tokens a sequence for one token of answer; decode is 128 tokens of answer after a prompt
//! of 8. Best of three runs each.

#![expect(clippy::print_stdout, reason = "printing is its job")]

use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::thread::available_parallelism;
use std::time::Duration;

use tollgate_engine::llama::LlamaModel;
use tollgate_engine::{
    Delta, Engine, Job, Model as _, Observer, Output, Sampling, Served, Spec, Token,
};
use tollgate_policy::batch::Order;
use tollgate_policy::engine::Config;
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

fn main() -> Result<(), Box<dyn Error>> {
    let default = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = std::env::args().nth(1).unwrap_or_else(|| default.into());
    let begun = now();
    let model = LlamaModel::load(&PathBuf::from(path))?;
    println!("{}: loaded in {:?}", model.name(), since(begun));
    let limits = Config {
        sequences: 8,
        blocks: 8 * 64,
        step_tokens: Tokens::new(512),
        order: Order::DecodeFirst,
        context: Tokens::new(1_024),
        waiting_max: 8,
    };
    let threads = NonZeroU32::try_from(u32::try_from(available_parallelism()?.get())?)?;
    let spec = Spec {
        name: "engine".into(),
        limits,
        seed: 0,
    };
    let begun = now();
    let engine = Engine::start(spec, model.backend(&limits, threads), Box::new(Silent))?;
    println!("{threads} threads: ready in {:?}", since(begun));
    let text = model.tokenize(&"The toll gate stands on a long road. ".repeat(80))?;
    for sequences in [1_u32, 8] {
        let prefill = best(&engine, sequences, &text[..512], 1)?;
        let decode = best(&engine, sequences, &text[..8], 128)?;
        let per_second = |tokens: u32, took: Duration| f64::from(tokens) / took.as_secs_f64();
        println!(
            "{sequences} sequences: prefill {:.0} tokens/s, decode {:.0} tokens/s",
            per_second(sequences * 512, prefill),
            per_second(sequences * 128, decode),
        );
    }
    engine.stop();
    Ok(())
}

/// The shortest of three runs of equal requests.
fn best(
    engine: &Engine,
    sequences: u32,
    prompt: &[Token],
    output: u64,
) -> Result<Duration, Box<dyn Error>> {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let (sender, ends) = mpsc::channel();
        let begun = now();
        for id in 0..sequences {
            let job = Job {
                id: RequestId::new(u64::from(id)),
                tenant: TenantId::new(0),
                prompt: prompt.to_vec(),
                max_output: Tokens::new(output),
                sampling: Sampling::greedy(),
                stop: vec![],
                ignore_eos: true,
                output: Box::new(Ends(sender.clone())),
            };
            engine.submit(job).map_err(|_| "the engine is gone")?;
        }
        for _ in 0..sequences {
            ends.recv_timeout(Duration::from_secs(600))?;
        }
        best = best.min(since(begun));
    }
    Ok(best)
}

/// Microseconds on llama.cpp's own clock.
fn now() -> i64 {
    llama_cpp_2::llama_time_us()
}

fn since(begun: i64) -> Duration {
    Duration::from_micros(now().abs_diff(begun))
}

struct Ends(Sender<()>);

impl Output for Ends {
    fn delta(&mut self, _: Delta) {}

    fn end(&mut self, _: EngineEnding, _: Usage) {
        // Err: nobody measures any more.
        let _ = self.0.send(());
    }
}

struct Silent;

impl Observer for Silent {
    fn stepped(&mut self, _: &[Served], _: tollgate_policy::engine::Gauges) {}

    fn ended(&mut self, _: RequestId, _: EngineEnding, _: Usage) {}

    fn died(&mut self, why: String) {
        println!("the engine died: {why}");
    }
}
