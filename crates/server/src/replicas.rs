//! Starts engines, and starts them again when the policy says so.
//!
//! Weights are loaded once, before the gateway says that it is there; a start after that builds
//! only the context. The engine's thread reports to the desk; what follows from a failure, and
//! when, is the policy's to say.

pub mod keeper;
pub mod process;
mod published;
pub(crate) mod roster;
mod steps;
mod watchdog;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::{Arc, Weak};

use tollgate_engine::fake::{Costs, Fake, FakeModel, Faults};
use tollgate_engine::llama::{LlamaModel, LoadError};
use tollgate_engine::{Engine, Model, Observer, Open, Served, Spec, Token};
use tollgate_policy::batch::Scheduler;
use tollgate_policy::engine::{CacheConfig, Config as Limits, Gauges, Reservation};
use tollgate_policy::gateway::{self, Event, Report};
use tollgate_policy::ids::{ModelId, ReplicaId, RequestId};
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::units::{KvBlocks, KvBytes, Tokens};
use tollgate_policy::usage::Usage;
use tollgate_policy::window::Capacity;
use tollgate_wire::Prompt;

use self::roster::Member;
pub(crate) use self::watchdog::watch;
use crate::config::{EngineConfig, FakeConfig, ModelConfig, Stuck};
use crate::desk::{Desk, ReplicaTask};
use crate::prepare;

/// The KV pool of a model whose configuration names none: half a GiB, so that a laptop stays one.
const KV_DEFAULT: KvBytes = KvBytes::new(512 << 20);

/// The longest text of a model that makes vectors, where its configuration says nothing.
const POOLED_CONTEXT: Tokens = Tokens::new(2_048);

/// Sequence ids that llama.cpp has at most (`LLAMA_MAX_SEQ` in llama-cparams.h), less the one
/// through which cached prefixes come and go.
const SEQUENCE_IDS_MAX: u32 = 255;

/// Prefixes kept: llama.cpp holds one row of logits for each sequence id, a few hundred KiB.
const PREFIXES_MAX: u32 = 96;

/// All replicas: how those of each model are built, and of which model each is.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// By [`ModelId`].
    plans: Vec<Plan>,
    /// By [`ReplicaId`].
    models: Vec<ModelId>,
}

impl Fleet {
    /// `models` has one entry for each replica.
    pub(crate) fn new(plans: Vec<Plan>, models: Vec<ModelId>) -> Self {
        Self { plans, models }
    }

    /// All of them.
    fn ids(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        (0..self.models.len()).filter_map(|n| u32::try_from(n).ok().map(ReplicaId::new))
    }

    fn plan(&self, id: ReplicaId) -> Option<&Plan> {
        let place = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let model = self.models.get(place(id.get()))?;
        self.plans.get(place(model.get()))
    }
}

/// Where the engines of one model come from.
#[derive(Debug)]
pub(crate) enum Plan {
    /// They are built here.
    Built(Box<Blueprint>),
    /// They run in other processes.
    Remote(Member),
}

impl Plan {
    /// Prompt and output tokens that the policy lets one request use together.
    pub(crate) fn context(&self) -> Tokens {
        match self {
            Self::Built(blueprint) => blueprint.context_of_all(),
            Self::Remote(member) => member.model.policy_context(),
        }
    }

    /// What the roster knows it by, where its engines run in other processes.
    pub(crate) fn member(&self) -> Option<Member> {
        match self {
            Self::Built(_) => None,
            Self::Remote(member) => Some(member.clone()),
        }
    }

    /// KV memory of one token.
    pub(crate) fn kv_per_token(&self) -> KvBytes {
        match self {
            Self::Built(blueprint) => blueprint.kv_per_token(),
            Self::Remote(member) => member.model.config.kv_per_token,
        }
    }

    /// Sequences that it takes beyond what it can run, of tenants below their share.
    pub(crate) const fn guests(&self) -> u32 {
        match self {
            Self::Built(blueprint) => blueprint.limits.guests,
            Self::Remote(_) => 0,
        }
    }
}

/// How one replica is built, as often as needed.
#[derive(Debug)]
pub(crate) struct Blueprint {
    name: String,
    weights: Weights,
    limits: Limits,
    published: Vec<Vec<Token>>,
    stuck: Stuck,
}

#[derive(Debug)]
enum Weights {
    Llama {
        model: Arc<LlamaModel>,
        threads: NonZeroU32,
    },
    Fake {
        model: FakeModel,
        costs: Costs,
        seed: u64,
        faults: Faults,
    },
}

impl Blueprint {
    /// Loads what is loaded once; `None` where nothing is built here.
    ///
    /// # Errors
    /// When the model's file can't be used.
    pub(crate) fn load(config: &ModelConfig, faults: &Faults) -> Result<Option<Self>, LoadError> {
        let (weights, pool) = match &config.engine {
            EngineConfig::Embedded {
                path,
                threads,
                pooling,
            } => {
                let model = LlamaModel::load_for(path, *pooling)?;
                let threads = threads.unwrap_or_else(|| cores_of_one(config.replicas.len()));
                let pool = config.kv_tokens.unwrap_or_else(|| default_pool(&*model));
                (Weights::Llama { model, threads }, pool)
            }
            EngineConfig::Fake(fake) => {
                let pool = config.kv_tokens.unwrap_or(fake.kv_tokens);
                (fake_weights(fake, faults.clone()), pool)
            }
            EngineConfig::Remote(_) => return Ok(None),
        };
        let model = weights.model();
        let pools = model.vector_length().is_some();
        let own = model.context();
        let most = config.context.unwrap_or_else(|| {
            // A text is pooled in one piece, and memory for that grows with its length.
            if pools { own.min(POOLED_CONTEXT) } else { own }
        });
        let asked_at_once = if pools {
            Prompt::MAX_PROMPTS
        } else {
            prepare::ANSWERS_MAX
        };
        let blocks = pool.get() / KvBlocks::SLOTS.get();
        let guests = guests(config, pools);
        let mut limits = Limits {
            sequences: config.max_sequences,
            guests,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            step_tokens: config.step_tokens,
            chunk: config.schedule.chunk_tokens.unwrap_or(config.step_tokens),
            paced: config.schedule.paced,
            order: config.schedule.order,
            scheduler: config.schedule.scheduler,
            reservation: config.schedule.reservation,
            context: most,
            // The window lets out no more requests than there are sequences; each may have several
            // prompts.
            waiting_max: usize::try_from(config.max_sequences).unwrap_or(usize::MAX)
                * asked_at_once,
            cache: cache(config, &weights, blocks, guests),
        };
        if let Weights::Llama { model, .. } = &weights
            && model.has_lanes(&limits)
        {
            // A prefix is kept as a copy of its own, in as much memory as a sequence takes.
            limits.cache.prefixes = limits.cache.prefixes.min(limits.sequences);
        }
        Ok(Some(Self {
            name: config.name.clone(),
            published: published::tokens(&config.published, &*model)?,
            stuck: config.stuck,
            weights,
            limits,
        }))
    }

    /// The half of the model that handlers use.
    pub(crate) fn model(&self) -> Arc<dyn Model> {
        self.weights.model()
    }

    /// Prompt and output tokens that one request may use together.
    pub(crate) fn context(&self) -> Tokens {
        self.limits.request_tokens()
    }

    /// Tokens that all of one request may use: its inputs together, where it asks for vectors.
    pub(crate) fn context_of_all(&self) -> Tokens {
        if self.model().vector_length().is_some() {
            KvBlocks::new(u64::from(self.limits.blocks)).slots()
        } else {
            self.context()
        }
    }

    /// What the pool holds, in tokens and in bytes.
    pub(crate) fn pool(&self) -> (Tokens, KvBytes) {
        let blocks = KvBlocks::new(u64::from(self.limits.blocks));
        (
            blocks.slots(),
            blocks.bytes(self.weights.model().kv_bytes_per_token()),
        )
    }

    /// KV memory of one token.
    pub(crate) fn kv_per_token(&self) -> KvBytes {
        self.weights.model().kv_bytes_per_token()
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            sequences: self.limits.sequences,
            kv: KvBlocks::new(u64::from(self.limits.blocks)),
        }
    }

    /// Starts the replica's thread, and waits until it is ready. Blocks for as long as that takes.
    fn start(&self, id: ReplicaId, desk: &Arc<Desk>) -> Result<Engine, String> {
        let (backend, seed): (Box<dyn Open>, u64) = match &self.weights {
            Weights::Llama { model, threads } => (model.backend(&self.limits, *threads), 0),
            Weights::Fake {
                costs,
                seed,
                faults,
                model,
            } => {
                let fake = Fake::in_real_time(*costs, faults.clone()).of(model);
                (fake, *seed)
            }
        };
        let spec = Spec {
            name: format!("engine-{id}"),
            limits: self.limits,
            seed,
            published: self.published.clone(),
        };
        let backend = steps::told(backend, id, desk.clock());
        let watch = Watch {
            desk: Arc::downgrade(desk),
            id,
            model: self.name.clone(),
        };
        Engine::start(spec, backend, Box::new(watch)).map_err(|error| error.to_string())
    }
}

impl Weights {
    fn model(&self) -> Arc<dyn Model> {
        match self {
            Self::Llama { model, .. } => Arc::<LlamaModel>::clone(model),
            Self::Fake { model, .. } => Arc::new(model.clone()),
        }
    }
}

/// Carries out what is to be done with a replica of this process, without waiting for it: one that
/// is slow to start holds up no other.
pub(crate) fn carry_out(fleet: &Arc<Fleet>, desk: &Weak<Desk>, task: ReplicaTask) {
    let (fleet, desk) = (Arc::clone(fleet), desk.clone());
    drop(tokio::task::spawn_blocking(move || match task {
        ReplicaTask::Start(id) => start(&fleet, &desk, id),
        // None of this process is stopped but with it.
        ReplicaTask::Stop(_) | ReplicaTask::Retire(_) => {}
    }));
}

fn start(fleet: &Fleet, desk: &Weak<Desk>, id: ReplicaId) {
    let Some(desk) = desk.upgrade() else { return };
    let Some(Plan::Built(blueprint)) = fleet.plan(id) else {
        return;
    };
    let model = blueprint.name.as_str();
    // What is left of one that died. One that was given up may still be inside its step, on the
    // memory and the cores that a new one would need.
    if let Some(old) = desk.detach(id) {
        if desk.was_given_up(id) && !old.is_over() {
            desk.put_back(id, old);
            desk.submit(Event::ReplicaDown { replica: id });
            return;
        }
        old.stop();
    }
    match blueprint.start(id, &desk) {
        Ok(engine) => {
            tracing::info!(replica = id.get(), model, "replica is up");
            desk.attach(id, engine, blueprint.capacity());
        }
        Err(error) => {
            tracing::error!(replica = id.get(), model, error, "replica did not start");
            desk.submit(Event::ReplicaDown { replica: id });
        }
    }
}

/// Stops every engine, and waits for their threads.
pub(crate) fn stop_all(desk: &Desk, count: usize) {
    for id in (0..count).filter_map(|n| u32::try_from(n).ok()) {
        if let Some(engine) = desk.detach(ReplicaId::new(id)) {
            engine.stop();
        }
    }
}

/// Reports what one engine does to the desk.
struct Watch {
    desk: Weak<Desk>,
    id: ReplicaId,
    model: String,
}

impl Watch {
    fn report(&self, event: Event) {
        if let Some(desk) = self.desk.upgrade() {
            desk.submit(event);
        }
    }
}

impl Observer for Watch {
    fn stepped(&mut self, served: &[Served], held: Gauges) {
        let one = |served: &Served| gateway::Served {
            id: served.id,
            prompt: served.prompt,
            output: served.output,
        };
        let served = served.iter().map(one).collect();
        let report = Report {
            // Those that are delayed are delayed on purpose.
            waiting: u32::try_from(held.waiting - held.delayed).unwrap_or(u32::MAX),
            kv: held.blocks_held,
        };
        self.report(Event::Stepped {
            replica: self.id,
            served,
            report,
        });
    }

    fn ended(&mut self, id: RequestId, ending: EngineEnding, usage: Usage) {
        self.report(Event::EngineEnded { id, ending, usage });
    }

    fn died(&mut self, why: String) {
        tracing::error!(
            replica = self.id.get(),
            model = self.model,
            why,
            "replica died"
        );
        self.report(Event::ReplicaDown { replica: self.id });
    }
}

fn fake_weights(config: &FakeConfig, faults: Faults) -> Weights {
    let costs = Costs {
        step: config.step,
        per_sequence: config.per_sequence,
        prefill_tokens_per_sec: NonZeroU64::new(config.prefill_tokens_per_second),
    };
    Weights::Fake {
        model: match config.vector {
            Some(length) => FakeModel::with_vectors(config.context, length),
            None => FakeModel::new(config.context),
        },
        costs,
        seed: config.seed,
        faults,
    }
}

/// Sequences that may give up their place to a tenant that had less; none where each keeps the room
/// that was set aside for it, where they come in batches, and where a text is computed at once.
fn guests(config: &ModelConfig, pools: bool) -> u32 {
    let schedule = &config.schedule;
    match (schedule.scheduler, schedule.reservation) {
        (Scheduler::Continuous, Reservation::Paged) if schedule.paced && !pools => {
            let left = SEQUENCE_IDS_MAX.saturating_sub(config.max_sequences);
            Limits::guests_of(config.max_sequences).min(left)
        }
        (Scheduler::Continuous | Scheduler::Static | Scheduler::Fifo, _) => 0,
    }
}

/// A prefix cache, where one was asked for and the model can share.
fn cache(config: &ModelConfig, weights: &Weights, blocks: u64, guests: u32) -> CacheConfig {
    let shares = match weights {
        Weights::Llama { model, .. } => model.shares_prefixes(),
        Weights::Fake { .. } => true,
    };
    // A text that is pooled is computed in one piece.
    let pools = weights.model().vector_length().is_some();
    if !config.schedule.prefix_cache || !shares || pools {
        return CacheConfig::OFF;
    }
    CacheConfig {
        prefixes: PREFIXES_MAX.min(SEQUENCE_IDS_MAX.saturating_sub(config.max_sequences + guests)),
        // Half, so that one tenant's prompts never push out all others'.
        tenant_blocks: KvBlocks::new((blocks / 2).max(1)),
    }
}

fn default_pool(model: &dyn Model) -> Tokens {
    let tokens = KV_DEFAULT.get() / model.kv_bytes_per_token().get().max(1);
    Tokens::new(tokens / KvBlocks::SLOTS.get() * KvBlocks::SLOTS.get()).max(KvBlocks::SLOTS)
}

/// The cores of this computer that are one replica's, where so many share them.
fn cores_of_one(replicas: usize) -> NonZeroU32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    u32::try_from(cores / replicas.max(1))
        .ok()
        .and_then(NonZeroU32::new)
        .unwrap_or(NonZeroU32::MIN)
}
