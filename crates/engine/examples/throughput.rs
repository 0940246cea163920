//! Prints how fast the embedded engine reads prompts and writes answers, alone and together, what a
//! prefix cache gives, and how much of the time is not the model's.
//!
//! `cargo run --release -p tollgate-engine --example throughput -- [MODEL.gguf] [RUNS] [THREADS]
//! [SEQUENCES,…]`. Prefill is 512 prompt tokens a sequence for one token of answer; decode is 64
//! tokens of answer after a prompt of 8: the best of RUNS runs each. Without SEQUENCES comes the
//! shared workload too: 48 requests, eight at a time, of which seven in ten begin with one of four
//! prompts of about 550 tokens, for 32 tokens of answer.

#![expect(clippy::print_stdout, reason = "printing is its job")]

use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::available_parallelism;

use tollgate_engine::llama::LlamaModel;
use tollgate_engine::{
    Backend, Begin, Delta, Engine, FatalError, Job, Model as _, Observer, Open, OpenError, Output,
    Sampled, Sampling, SequenceError, Served, Spec, StepWork, Stop, Token,
};
use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::engine::{CacheConfig, Config, Reservation};
use tollgate_policy::ids::{RequestId, SeqId, TenantId};
use tollgate_policy::kv::KvOp;
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Haste;
use tollgate_policy::units::{KvBlocks, Service, Tokens};
use tollgate_policy::usage::Usage;

type Failed = Box<dyn Error>;

const LIMITS: Config = Config {
    sequences: 32,
    guests: 0,
    blocks: 32 * 40,
    step_tokens: Tokens::new(512),
    chunk: Tokens::new(512),
    paced: true,
    order: Order::DecodeFirst,
    scheduler: Scheduler::Continuous,
    reservation: Reservation::Paged,
    context: Tokens::new(1_024),
    waiting_max: 64,
    cache: CacheConfig::OFF,
};

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let default = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = arguments.next().unwrap_or_else(|| default.into());
    let runs: u32 = arguments.next().map_or(Ok(3), |runs| runs.parse())?;
    let threads = match arguments.next() {
        Some(threads) => threads.parse()?,
        None => NonZeroU32::try_from(u32::try_from(available_parallelism()?.get())?)?,
    };
    let chosen = arguments.next();
    let sizes = chosen.as_deref().unwrap_or("1,8,16,32").split(',');
    let sizes = sizes.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let model = LlamaModel::load(&PathBuf::from(path))?;
    println!("{}", model.name());
    let text = model.tokenize(&"The toll gate stands on a long road. ".repeat(80))?;
    let bench = Bench::start(&model, LIMITS, threads)?;
    for sequences in sizes {
        let job = |prompt: &[Token], output, sampling: &Sampling| Ask {
            prompt: prompt.to_vec(),
            output,
            sampling: sampling.clone(),
        };
        let (greedy, hot) = (Sampling::greedy(), Sampling::default());
        let prefill = bench.best(runs, sequences, &job(&text[..512], 1, &greedy))?;
        let decode = bench.best(runs, sequences, &job(&text[..8], 64, &greedy))?;
        let sampled = bench.best(1, sequences, &job(&text[..8], 64, &hot))?;
        println!(
            "{sequences} sequences: prefill {:.0}, decode {:.0}, decode at temperature 1 {:.0} \
             tokens/s; {:.2}% of the decode not in the backend",
            rate(sequences * 512, prefill.micros),
            rate(sequences * 64, decode.micros),
            rate(sequences * 64, sampled.micros),
            100.0 - 100.0 * rate(decode.backend, decode.micros) / 1e6,
        );
    }
    bench.engine.stop();
    if chosen.is_some() {
        return Ok(());
    }
    let cached = CacheConfig {
        prefixes: 64,
        tenant_blocks: KvBlocks::new(640),
    };
    for (name, cache) in [("off", CacheConfig::OFF), ("on", cached)] {
        let bench = Bench::start(&model, Config { cache, ..LIMITS }, threads)?;
        bench.shared(name, &model)?;
        bench.engine.stop();
    }
    Ok(())
}

/// One request.
struct Ask {
    prompt: Vec<Token>,
    output: u64,
    sampling: Sampling,
}

/// How long a run took, and how much of that the backend did.
#[derive(Clone, Copy)]
struct Took {
    micros: u64,
    backend: u64,
}

struct Bench {
    engine: Engine,
    backend: Arc<Spent>,
    sender: Sender<Said>,
    said: Receiver<Said>,
}

enum Said {
    First(RequestId, i64),
    End,
}

impl Bench {
    fn start(model: &Arc<LlamaModel>, limits: Config, threads: NonZeroU32) -> Result<Self, Failed> {
        let spec = Spec {
            name: "engine".into(),
            limits,
            seed: 0,
            published: Vec::new(),
        };
        let backend = Arc::new(Spent::default());
        let timed = Timed {
            inner: model.backend(&limits, threads),
            spent: Arc::clone(&backend),
        };
        let engine = Engine::start(spec, Box::new(timed), Box::new(Silent))?;
        let (sender, said) = mpsc::channel();
        Ok(Self {
            engine,
            backend,
            sender,
            said,
        })
    }

    /// The shortest of some runs of equal requests.
    fn best(&self, runs: u32, sequences: u64, ask: &Ask) -> Result<Took, Failed> {
        let mut best: Option<Took> = None;
        for _ in 0..runs {
            let (begun, before) = (now(), self.backend.micros());
            for id in 0..sequences {
                self.submit(id, ask)?;
            }
            let mut ends = 0;
            while ends < sequences {
                ends += u64::from(matches!(self.said.recv()?, Said::End));
            }
            let took = Took {
                micros: now().abs_diff(begun),
                backend: self.backend.micros() - before,
            };
            best = Some(best.map_or(took, |best| {
                if took.micros < best.micros {
                    took
                } else {
                    best
                }
            }));
        }
        best.ok_or_else(|| "no run".into())
    }

    fn submit(&self, id: u64, ask: &Ask) -> Result<(), Failed> {
        let id = RequestId::new(id);
        let output = Box::new(Ears {
            id,
            first: true,
            sender: self.sender.clone(),
        });
        let job = Job {
            id,
            tenant: TenantId::new(0),
            served: Service::ZERO,
            haste: Haste::AtOnce,
            prompts: vec![ask.prompt.clone()],
            choices: 1,
            max_output: Tokens::new(ask.output),
            sampling: ask.sampling.clone(),
            stop: Stop {
                ignore_eos: true,
                ..Stop::default()
            },
            spelled: Vec::new(),
            echo: false,
            output,
        };
        self.engine
            .submit(job)
            .map_err(|_| "the engine is gone".into())
    }

    fn shared(&self, name: &str, model: &LlamaModel) -> Result<(), Failed> {
        let mut asks = Vec::new();
        for n in 0..48_u64 {
            let system = format!("You keep gate {} of a long road. ", n % 4).repeat(55);
            let own = format!("Request {n}: what does cart {n} pay at dusk, and why?");
            let text = if n % 10 < 7 {
                system + &own
            } else {
                own.repeat(4)
            };
            asks.push(Ask {
                prompt: model.tokenize(&text)?,
                output: 32,
                sampling: Sampling::greedy(),
            });
        }
        let tokens: usize = asks.iter().map(|ask| ask.prompt.len() + 32).sum();
        let begun = now();
        let mut sent = Vec::new();
        let mut firsts = Vec::new();
        let mut ends = 0;
        while ends < asks.len() {
            while sent.len() < asks.len() && sent.len() - ends < 8 {
                let id = sent.len();
                self.submit(u64::try_from(id)?, &asks[id])?;
                sent.push(now());
            }
            match self.said.recv()? {
                Said::End => ends += 1,
                Said::First(id, at) => {
                    firsts.push(at.abs_diff(sent[usize::try_from(id.get())?]));
                }
            }
        }
        let took = now().abs_diff(begun);
        firsts.sort_unstable();
        let totals = self.engine.gauges().held.totals;
        println!(
            "shared prefixes, cache {name}: {:.0} tokens/s, TTFT p50 {:.0} ms, {} of {} prompt \
             tokens reused",
            rate(u64::try_from(tokens)?, took),
            rate(firsts[firsts.len() / 2], 1_000_000_000),
            totals.reused,
            totals.prompt,
        );
        for (name, kind) in [
            ("steps with prompts", &self.backend.prompts),
            ("steps without", &self.backend.decodes),
        ] {
            let [steps, prompt, output, micros] = kind.read();
            println!(
                "  {name}: {steps}, of {prompt} prompt tokens and {output} decodes, {:.2} s, {:.0} \
                 tokens/s",
                rate(micros, 1_000_000_000_000),
                rate(prompt + output, micros),
            );
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a report")]
fn rate(count: u64, micros: u64) -> f64 {
    count as f64 * 1e6 / micros as f64
}

/// Microseconds on llama.cpp's own clock.
fn now() -> i64 {
    llama_cpp_2::llama_time_us()
}

/// Tells of the first text and of the end.
struct Ears {
    id: RequestId,
    first: bool,
    sender: Sender<Said>,
}

impl Output for Ears {
    fn delta(&mut self, _: Delta) {
        if std::mem::take(&mut self.first) {
            // Err: nobody measures any more.
            let _ = self.sender.send(Said::First(self.id, now()));
        }
    }

    fn vector(&mut self, _: u32, _: Vec<f32>) {}

    fn finished(&mut self, _: u32, _: FinishReason) {}

    fn end(&mut self, _: EngineEnding, _: Usage) {
        let _ = self.sender.send(Said::End);
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

/// What steps did, and how long they took, by whether they computed any prompt.
#[derive(Default)]
struct Spent {
    prompts: Kind,
    decodes: Kind,
}

/// Steps, prompt tokens, sequences that computed one token, and microseconds.
#[derive(Default)]
struct Kind([AtomicU64; 4]);

impl Kind {
    fn read(&self) -> [u64; 4] {
        self.0.each_ref().map(|one| one.load(Ordering::Relaxed))
    }
}

impl Spent {
    fn add(&self, work: &[StepWork<'_>], micros: u64) {
        let (one, more): (Vec<&StepWork<'_>>, Vec<_>) =
            work.iter().partition(|work| work.tokens.len() == 1);
        let prompt: usize = more.iter().map(|work| work.tokens.len()).sum();
        let kind = if prompt > 0 {
            &self.prompts
        } else {
            &self.decodes
        };
        let count = |of: usize| u64::try_from(of).unwrap_or(u64::MAX);
        let more = [1, count(prompt), count(one.len()), micros];
        for (sum, more) in kind.0.iter().zip(more) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn micros(&self) -> u64 {
        self.prompts.read()[3] + self.decodes.read()[3]
    }
}

/// A backend, and how long its steps take.
struct Timed {
    inner: Box<dyn Open>,
    spent: Arc<Spent>,
}

impl Open for Timed {
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        let Self { inner, spent } = *self;
        inner.open(&mut |inner| {
            run(&mut Timer {
                inner,
                spent: &spent,
            });
        })
    }
}

struct Timer<'a> {
    inner: &'a mut dyn Backend,
    spent: &'a Spent,
}

impl Backend for Timer<'_> {
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError> {
        self.inner.begin(seq, begin)
    }

    fn apply(&mut self, op: KvOp) {
        self.inner.apply(op);
    }

    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        let begun = now();
        let stepped = self.inner.step(work, results);
        self.spent.add(work, now().abs_diff(begun));
        stepped
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.inner.bytes(token, out);
    }

    fn is_end(&self, token: Token) -> bool {
        self.inner.is_end(token)
    }
}
