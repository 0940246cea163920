//! An engine under test, with everything it says written down in order.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::engine::{self, CacheConfig, Config, Reservation};
use tollgate_policy::ids::{RequestId, SeqId, TenantId};
use tollgate_policy::kv::KvOp;
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Haste;
use tollgate_policy::units::{KvBlocks, Service, Tokens};
use tollgate_policy::usage::Usage;

use crate::fake::{Costs, Fake, FakeModel, Faults};
use crate::handle::lock;
use crate::llama::LlamaModel;
use crate::{
    Backend, Begin, Delta, Drawn, Engine, FatalError, Job, Logprob, Model, Observer, Open,
    OpenError, Output, Sampled, Sampling, SequenceError, Served, Spec, StepWork, Stop, Token,
};

/// Longer than any test takes; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) const CONFIG: Config = Config {
    sequences: 8,
    guests: 0,
    blocks: 256,
    step_tokens: Tokens::new(512),
    chunk: Tokens::new(512),
    paced: true,
    order: Order::DecodeFirst,
    scheduler: Scheduler::Continuous,
    reservation: Reservation::Paged,
    context: Tokens::new(2_048),
    waiting_max: 512,
    cache: CacheConfig::OFF,
};

/// The same with a prefix cache.
pub(crate) const CACHED: Config = Config {
    cache: CacheConfig {
        prefixes: 32,
        tenant_blocks: KvBlocks::new(128),
    },
    ..CONFIG
};

/// A backend to test, and its model.
pub(crate) struct Lab {
    pub(crate) model: Arc<dyn Model>,
    llama: Option<Arc<LlamaModel>>,
    faults: Faults,
    /// llama.cpp uses all cores, so its tests take turns.
    _turn: Option<MutexGuard<'static, ()>>,
}

pub(crate) fn fake() -> Option<Lab> {
    Some(faulty(Faults::default()))
}

pub(crate) fn faulty(faults: Faults) -> Lab {
    let model = Arc::new(FakeModel::new(Tokens::new(2_048)));
    Lab {
        model,
        llama: None,
        faults,
        _turn: None,
    }
}

/// llama.cpp making vectors.
pub(crate) fn pooled(model: Arc<LlamaModel>) -> Lab {
    let llama = Some(Arc::clone(&model));
    Lab {
        model,
        llama,
        faults: Faults::default(),
        _turn: Some(lock(&TURN)),
    }
}

static TURN: Mutex<()> = Mutex::new(());

/// `None`, and a line that says so, where there is no model file.
pub(crate) fn model_file() -> Option<PathBuf> {
    let default = "../../models/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = std::env::var_os("TOLLGATE_TEST_MODEL").unwrap_or_else(|| default.into());
    let path = PathBuf::from(path);
    if !path.exists() {
        println!("no model file: set TOLLGATE_TEST_MODEL");
        return None;
    }
    Some(path)
}

/// `None` where the model file is not there.
pub(crate) fn llama() -> Option<Lab> {
    static MODEL: LazyLock<Option<Arc<LlamaModel>>> =
        LazyLock::new(|| model_file().map(|path| LlamaModel::load(&path).unwrap()));
    let turn = lock(&TURN);
    let model = MODEL.clone()?;
    let llama = Some(Arc::clone(&model));
    Some(Lab {
        model,
        llama,
        faults: Faults::default(),
        _turn: Some(turn),
    })
}

impl Lab {
    pub(crate) fn is_llama(&self) -> bool {
        self.llama.is_some()
    }

    /// Whether each sequence of such an engine has a KV of its own.
    pub(crate) fn has_lanes(&self, limits: &Config) -> bool {
        let llama = self.llama.as_ref();
        llama.is_some_and(|llama| llama.has_lanes(limits))
    }

    pub(crate) fn open(&self, limits: &Config) -> Box<dyn Open> {
        match &self.llama {
            // One thread: tests run side by side, and two threads that wait for each other spin
            // away the core that the other test needs (seen: 50 s where one thread takes 3 s).
            Some(model) => model.backend(limits, NonZeroU32::MIN),
            None => Fake::new(Costs::default(), self.faults.clone(), |_| {}),
        }
    }

    pub(crate) fn start(&self, limits: Config) -> Rig {
        self.start_with(limits, |_, _| {})
    }

    /// Starts an engine. `hook` sees each event on the engine's thread, before the next step.
    pub(crate) fn start_with(
        &self,
        limits: Config,
        hook: impl FnMut(&Engine, &Event) + Send + 'static,
    ) -> Rig {
        let log = Arc::new(Mutex::new(Log::default()));
        let inner = self.open(&limits);
        let recorded = Recorded {
            inner,
            limits,
            log: Arc::clone(&log),
        };
        let (sender, events) = mpsc::channel();
        let engine = Arc::new(OnceLock::new());
        let hook = Arc::new(Mutex::new(hook));
        let tap = Tap {
            sender,
            hook,
            engine: Arc::clone(&engine),
            hold: Arc::default(),
        };
        let spec = Spec {
            name: "engine-under-test".into(),
            limits,
            seed: 1,
            published: vec![],
        };
        let started = Engine::start(spec, Box::new(recorded), Box::new(tap.clone())).unwrap();
        engine.set(started).unwrap();
        Rig {
            engine,
            events,
            tap,
            log,
            model: Arc::clone(&self.model),
        }
    }

    /// How far the two likeliest next tokens are apart, and how far the order of computing alone
    /// moves logits: kernels for few and for many tokens round differently. The fake does not
    /// round.
    pub(crate) fn gap_and_noise(&self, tokens: &[Token]) -> (f32, f32) {
        let Some(model) = &self.llama else {
            return (f32::INFINITY, 0.0);
        };
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(2_048))
            .with_n_seq_max(8)
            .with_kv_unified(true);
        let backend = crate::llama::backend().unwrap();
        let mut context = model.weights().new_context(backend, params).unwrap();
        let whole = logits(&mut context, tokens, tokens.len(), 1);
        let mut noise = 0.0_f32;
        for (chunk, sequences) in [(1, 1), (4, 1), (tokens.len(), 8)] {
            let other = logits(&mut context, tokens, chunk, sequences);
            let moved = whole.iter().zip(other).map(|(a, b)| (a - b).abs());
            noise = moved.fold(noise, f32::max);
        }
        let mut sorted = whole;
        sorted.sort_by(|a, b| b.total_cmp(a));
        (sorted[0] - sorted[1], noise)
    }
}

/// The logits after `tokens`, computed `chunk` at a time in each of so many sequences at once.
fn logits(
    context: &mut LlamaContext<'_>,
    tokens: &[Token],
    chunk: usize,
    sequences: i32,
) -> Vec<f32> {
    context.clear_kv_cache();
    let mut batch = LlamaBatch::new(1_024, 1);
    let mut start = 0;
    for piece in tokens.chunks(chunk) {
        batch.clear();
        for seq in 0..sequences {
            for (position, token) in (start..).zip(piece) {
                let token = LlamaToken::new(token.get());
                let last = position + 1 == i32::try_from(tokens.len()).unwrap();
                batch.add(token, position, &[seq], last).unwrap();
            }
        }
        context.decode(&mut batch).unwrap();
        start += i32::try_from(piece.len()).unwrap();
    }
    context.get_logits_ith(batch.n_tokens() - 1).to_vec()
}

/// One thing the engine said.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Delta(RequestId, Delta),
    Vector(RequestId, u32, Vec<f32>),
    Finished(RequestId, u32, FinishReason),
    End(RequestId, EngineEnding, Usage),
    Observed(RequestId, EngineEnding, Usage),
    Stepped(Vec<Served>),
    Died(String),
}

/// One request's answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Of all choices, one after the other.
    pub(crate) text: String,
    /// By choice.
    pub(crate) choices: BTreeMap<u32, Said>,
    pub(crate) ending: EngineEnding,
    pub(crate) usage: Usage,
}

/// What one choice said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) tokens: u64,
    pub(crate) logprobs: Vec<Logprob>,
    pub(crate) vector: Vec<f32>,
    pub(crate) finish: Option<FinishReason>,
}

/// A running engine.
pub(crate) struct Rig {
    pub(crate) engine: Arc<OnceLock<Engine>>,
    pub(crate) events: Receiver<Event>,
    tap: Tap,
    pub(crate) log: Arc<Mutex<Log>>,
    model: Arc<dyn Model>,
}

impl Rig {
    pub(crate) fn engine(&self) -> &Engine {
        self.engine.get().unwrap()
    }

    /// A greedy request that never ends of itself.
    pub(crate) fn job(&self, id: u64, prompt: &str, max_output: u64) -> Job {
        Job {
            id: RequestId::new(id),
            tenant: TenantId::new(0),
            served: Service::ZERO,
            haste: Haste::AtOnce,
            prompts: vec![self.model.tokenize(prompt).unwrap()],
            choices: 1,
            max_output: Tokens::new(max_output),
            sampling: Sampling::greedy(),
            stop: Stop {
                ignore_eos: true,
                ..Stop::default()
            },
            spelled: Vec::new(),
            echo: false,
            output: Box::new(Sink {
                id: RequestId::new(id),
                tap: self.tap.clone(),
            }),
        }
    }

    pub(crate) fn submit(&self, job: Job) {
        self.engine().submit(job).unwrap();
    }

    pub(crate) fn next(&self) -> Event {
        self.events
            .recv_timeout(DEADLINE)
            .expect("the engine says something in time")
    }

    /// Hands `jobs` over together: no second step before all are there.
    pub(crate) fn submit_all(&self, jobs: Vec<Job>) {
        let _held = lock(&self.tap.hold);
        for job in jobs {
            self.submit(job);
        }
    }

    /// Runs `jobs` together, to their ends, and checks what holds for all.
    pub(crate) fn run(&self, jobs: Vec<Job>) -> BTreeMap<u64, Answer> {
        let count = jobs.len();
        self.submit_all(jobs);
        self.answers(count)
    }

    /// Waits for `count` ends. Each request must be observed, then told, once; nothing comes after;
    /// what was served step by step is what was used; deltas are not empty and count no more tokens
    /// than there are.
    pub(crate) fn answers(&self, count: usize) -> BTreeMap<u64, Answer> {
        let mut said: BTreeMap<RequestId, BTreeMap<u32, Said>> = BTreeMap::new();
        let mut served: BTreeMap<RequestId, (Tokens, Tokens)> = BTreeMap::new();
        let mut observed = BTreeMap::new();
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            match self.next() {
                Event::Delta(id, delta) => {
                    assert!(!delta.text.is_empty() && !answers.contains_key(&id.get()));
                    let choice = said.entry(id).or_default().entry(delta.choice).or_default();
                    assert_eq!(choice.finish, None, "nothing is said after the finish");
                    choice.text.push_str(&delta.text);
                    choice.tokens += u64::from(delta.tokens);
                    choice.logprobs.extend(delta.logprobs);
                }
                Event::Vector(id, choice, vector) => {
                    let choice = said.entry(id).or_default().entry(choice).or_default();
                    assert!(choice.vector.is_empty() && choice.finish.is_none());
                    choice.vector = vector;
                }
                Event::Finished(id, choice, reason) => {
                    let choice = said.entry(id).or_default().entry(choice).or_default();
                    assert_eq!(choice.finish.replace(reason), None, "finished once");
                }
                Event::Stepped(items) => {
                    for item in items {
                        let (prompt, output) = served.entry(item.id).or_default();
                        *prompt += item.prompt;
                        *output += item.output;
                    }
                }
                Event::Observed(id, ending, usage) => {
                    assert!(
                        observed.insert(id, (ending, usage)).is_none(),
                        "observed once"
                    );
                }
                Event::End(id, ending, usage) => {
                    assert_eq!(observed.get(&id), Some(&(ending, usage)), "observed first");
                    let choices = said.remove(&id).unwrap_or_default();
                    let tokens: u64 = choices.values().map(|said| said.tokens).sum();
                    assert!(tokens <= usage.output.get());
                    let (prompt, output) = served.remove(&id).unwrap_or_default();
                    assert_eq!(
                        (usage.prompt - usage.cached, usage.output),
                        (prompt, output)
                    );
                    if let EngineEnding::Finished(_) = ending {
                        assert!(choices.values().all(|said| said.finish.is_some()));
                    }
                    let answer = Answer {
                        text: choices.values().map(|said| said.text.as_str()).collect(),
                        choices,
                        ending,
                        usage,
                    };
                    assert!(answers.insert(id.get(), answer).is_none(), "told once");
                }
                Event::Died(why) => panic!("the engine died: {why}"),
            }
        }
        answers
    }

    /// The tokens generated for each request.
    pub(crate) fn generated(&self) -> BTreeMap<u64, Vec<Token>> {
        lock(&self.log)
            .generated
            .iter()
            .map(|(id, tokens)| (id.get(), tokens.clone()))
            .collect()
    }

    /// Stops the engine, which must hold nothing any more.
    pub(crate) fn assert_empty(&self) {
        let blocks_total = self.engine().gauges().held.blocks_total;
        let held = self.engine().gauges().held;
        let empty = engine::Gauges {
            blocks_total,
            blocks_idle: held.blocks_idle,
            prefixes: held.prefixes,
            totals: held.totals,
            ..engine::Gauges::default()
        };
        assert_eq!(held, empty);
        self.engine().stop();
    }
}

/// Called on the engine's thread with each event.
type Hook = dyn FnMut(&Engine, &Event) + Send;

#[derive(Clone)]
struct Tap {
    sender: Sender<Event>,
    hook: Arc<Mutex<Hook>>,
    engine: Arc<OnceLock<Engine>>,
    /// While it is locked, the engine stops after its step.
    hold: Arc<Mutex<()>>,
}

impl Tap {
    fn say(&self, event: Event) {
        if let Some(engine) = self.engine.get() {
            lock(&self.hook)(engine, &event);
        }
        // Err: the test is over.
        let _ = self.sender.send(event);
    }
}

struct Sink {
    id: RequestId,
    tap: Tap,
}

impl Output for Sink {
    fn delta(&mut self, delta: Delta) {
        self.tap.say(Event::Delta(self.id, delta));
    }

    fn vector(&mut self, choice: u32, vector: Vec<f32>) {
        self.tap.say(Event::Vector(self.id, choice, vector));
    }

    fn finished(&mut self, choice: u32, reason: FinishReason) {
        self.tap.say(Event::Finished(self.id, choice, reason));
    }

    fn end(&mut self, ending: EngineEnding, usage: Usage) {
        self.tap.say(Event::End(self.id, ending, usage));
    }
}

impl Observer for Tap {
    fn stepped(&mut self, served: &[Served], _: engine::Gauges) {
        drop(lock(&self.hold));
        self.say(Event::Stepped(served.to_vec()));
    }

    fn ended(&mut self, id: RequestId, ending: EngineEnding, usage: Usage) {
        self.say(Event::Observed(id, ending, usage));
    }

    fn died(&mut self, why: String) {
        self.say(Event::Died(why));
    }
}

/// What the backend was asked to do.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) generated: BTreeMap<RequestId, Vec<Token>>,
    owners: BTreeMap<SeqId, RequestId>,
    pub(crate) steps: u64,
    pub(crate) widest: usize,
    pub(crate) preempted: u64,
    pub(crate) copies: u64,
}

/// A backend as it is, written down: the engine must keep to its contract and to its limits.
struct Recorded {
    inner: Box<dyn Open>,
    limits: Config,
    log: Arc<Mutex<Log>>,
}

impl Open for Recorded {
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        let Self { inner, limits, log } = *self;
        inner.open(&mut |inner| {
            run(&mut Recorder {
                inner,
                limits,
                log: Arc::clone(&log),
            });
        })
    }
}

struct Recorder<'a> {
    inner: &'a mut dyn Backend,
    limits: Config,
    log: Arc<Mutex<Log>>,
}

impl Backend for Recorder<'_> {
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError> {
        let owner = lock(&self.log).owners.insert(seq, begin.id);
        assert_eq!(owner, None, "a sequence id is free before it is used again");
        self.inner.begin(seq, begin)
    }

    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        let total: usize = work.iter().map(|work| work.tokens.len()).sum();
        assert!(total > 0 && u64::try_from(total).unwrap() <= self.limits.step_tokens.get());
        let seqs: BTreeSet<_> = work.iter().map(|work| work.seq).collect();
        assert_eq!(seqs.len(), work.len());
        self.inner.step(work, results)?;
        let mut log = lock(&self.log);
        let log = &mut *log;
        log.steps += 1;
        log.widest = log.widest.max(work.len());
        for (work, result) in work.iter().zip(results) {
            if let Ok(Some(Drawn::Token { token, .. })) = result {
                log.generated
                    .entry(log.owners[&work.seq])
                    .or_default()
                    .push(*token);
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: KvOp) {
        {
            let mut log = lock(&self.log);
            match op {
                KvOp::Copy { from, to, .. } => {
                    assert!(from != to && to.get() < self.limits.sequence_ids());
                    log.copies += 1;
                }
                KvOp::Trim { seq, .. } => {
                    log.preempted += u64::from(seq.get() < self.limits.seats());
                }
                KvOp::End { seq } => {
                    log.owners.remove(&seq);
                }
            }
        }
        self.inner.apply(op);
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.inner.bytes(token, out);
    }

    fn is_end(&self, token: Token) -> bool {
        self.inner.is_end(token)
    }
}
