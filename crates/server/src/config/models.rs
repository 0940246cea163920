//! The `models` section: what is served, under which names, by which engine and within which
//! bounds.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use tollgate_engine::llama::Pooling;
use tollgate_policy::ids::ModelId;
use tollgate_policy::pace::Target;
use tollgate_policy::shelf::Loading;
use tollgate_policy::units::{KvBlocks, Micros, Tokens};
use tollgate_policy::window::Bounds;

use super::decode::{Cursor, Fields};
use super::fake::FakeConfig;
use super::fleet::{self, HealthConfig, RoutingConfig};
use super::prefixes::Published;
use super::remote::{RemoteConfig, RemoteKind};
use super::replicas::{ReplicaConfig, replicas};
use super::schedule::ScheduleConfig;
use super::stuck::Stuck;
use super::{server, slo, window};

/// The longest context anyone can ask for; far beyond what models have, and safe to multiply.
pub(super) const CONTEXT_MAX: u64 = 10_000_000;

/// The largest KV pool, in tokens.
const KV_TOKENS_MAX: u64 = 1_000_000_000;

const NAME_CHARS_MAX: usize = 128;
const NAME_SIGNS: &str = "._:/-";

/// The models, each at the place that its [`ModelId`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    list: Vec<ModelConfig>,
    /// Names and aliases.
    names: BTreeMap<String, ModelId>,
}

impl Models {
    /// The model with this name or alias.
    pub fn find(&self, name: &str) -> Option<ModelId> {
        self.names.get(name).copied()
    }

    /// The models in the order of their ids.
    pub fn list(&self) -> &[ModelConfig] {
        &self.list
    }

    /// Whether they are those of `others`, but for the replicas of engines in other processes.
    pub(crate) fn differ_in_replicas_alone(&self, others: &Self) -> bool {
        let same = |(one, other): (&ModelConfig, &ModelConfig)| {
            if !matches!(one.engine, EngineConfig::Remote(_)) {
                return one == other;
            }
            let replicas = other.replicas.clone();
            ModelConfig {
                replicas,
                ..one.clone()
            } == *other
        };
        let pairs = self.list.iter().zip(&others.list);
        self.names == others.names
            && self.list.len() == others.list.len()
            && pairs.into_iter().all(same)
    }

    /// One model, under its name and aliases.
    pub(super) fn one(model: ModelConfig) -> Self {
        let names = [&model.name].into_iter().chain(&model.aliases);
        let names = names.map(|name| (name.clone(), ModelId::new(0))).collect();
        Self {
            list: vec![model],
            names,
        }
    }

    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let mut names = BTreeMap::new();
        let mut count = 0;
        let list = section.list(|model| {
            let id = ModelId::new(count);
            count += 1;
            model.mapping(|fields| ModelConfig::read(fields, &mut names, id))
        })?;
        Some(Self { list, names })
    }
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The name that clients use and that metrics carry; 1 to 128 of `A-Z a-z 0-9 . _ : / -`.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// What runs it.
    pub engine: EngineConfig,
    /// Tokens that one request may use, prompt and output; `None` is what the model was made for.
    pub context: Option<Tokens>,
    /// Room for tokens of all running requests together, in whole blocks; `None` leaves it to the
    /// engine.
    pub kv_tokens: Option<Tokens>,
    /// Requests that may run at once, 1 to 256.
    pub max_sequences: u32,
    /// Tokens that one step may compute, 16 to 8192.
    pub step_tokens: Tokens,
    /// How its steps are planned, for `embedded` and `fake`.
    pub schedule: ScheduleConfig,
    /// What prompts may begin with, to be shared by all tenants.
    pub published: Vec<Published>,
    /// What becomes of an engine that does not come back from a step.
    pub stuck: Stuck,
    /// The queue before it.
    pub queue: QueueConfig,
    /// The longest that one request may take, 1 s to 24 h.
    pub max_stream: Micros,
    /// How often a client that waits for a token is sent a sign of life, 100 ms to 10 min.
    pub keepalive: Micros,
    /// Whether callers may hold answers to a grammar or a schema of their own.
    pub grammars: bool,
    /// The engines that serve it, 1 to 16, all alike but for whom they serve.
    pub replicas: Vec<ReplicaConfig>,
    /// What each of them may hold.
    pub window: Bounds,
    /// What its answers are promised to be like.
    pub target: Target,
    /// How one of them is chosen.
    pub routing: RoutingConfig,
    /// How those in other processes are probed.
    pub health: HealthConfig,
    /// What it takes to load it, where it is loaded only when it is asked for.
    pub loading: Option<Loading>,
}

/// What runs a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineConfig {
    /// llama.cpp in this process.
    Embedded {
        /// The GGUF file, relative to the working directory.
        path: PathBuf,
        /// Threads that compute for each replica, 1 to 1024; `None` divides the cores among them.
        threads: Option<NonZeroU32>,
        /// How it makes one vector of a text; `None` leaves it to the file, and a file that says
        /// nothing generates text.
        pooling: Option<Pooling>,
    },
    /// Made-up text at the pace of a cost model.
    Fake(FakeConfig),
    /// Engines in other processes.
    Remote(RemoteConfig),
}

/// The bounds of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Requests that may wait at once, 1 to 1,000,000.
    pub max_requests: usize,
    /// How long one may wait, up to 1 h; zero refuses what cannot start at once, `None` leaves it
    /// to its class.
    pub max_wait: Option<Micros>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            max_requests: 1000,
            max_wait: None,
        }
    }
}

/// The default of `step_tokens`: one for each sequence, and 160 for prompts. A CPU reads prompts as
/// fast in such pieces as in larger ones, and who waits for a first token or the next one waits for
/// a step.
fn step_tokens(max_sequences: u32) -> Tokens {
    Tokens::new(u64::from(max_sequences) + 160)
}

impl ModelConfig {
    /// A model with the default bounds.
    pub fn new(name: String, engine: EngineConfig) -> Self {
        Self {
            name,
            aliases: vec![],
            engine,
            context: None,
            kv_tokens: None,
            max_sequences: 32,
            step_tokens: step_tokens(32),
            schedule: ScheduleConfig::default(),
            published: vec![],
            stuck: Stuck::default(),
            queue: QueueConfig::default(),
            max_stream: Micros::from_secs(600),
            keepalive: Micros::from_secs(15),
            // llama.cpp follows a grammar by every way that it could go on, so a short one with
            // many ways holds the engine, and with it every other request, as long as it likes.
            grammars: false,
            replicas: vec![ReplicaConfig::default()],
            window: Bounds::default(),
            target: Target::default(),
            routing: RoutingConfig::default(),
            health: HealthConfig::default(),
            loading: None,
        }
    }

    /// The model in this GGUF file, named after it.
    pub fn from_file(path: &Path) -> Self {
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy())
            .unwrap_or_default();
        let legal = |c: char| c.is_ascii_alphanumeric() || NAME_SIGNS.contains(c);
        let name: String = stem
            .chars()
            .take(NAME_CHARS_MAX)
            .map(|c| if legal(c) { c } else { '-' })
            .collect();
        let name = if name.is_empty() {
            "model".to_owned()
        } else {
            name
        };
        Self::new(
            name,
            EngineConfig::Embedded {
                path: path.to_owned(),
                threads: None,
                pooling: None,
            },
        )
    }

    fn read(
        fields: &mut Fields<'_, '_>,
        names: &mut BTreeMap<String, ModelId>,
        id: ModelId,
    ) -> Self {
        let name = fields.required("name", "give the model a name", |value| {
            claim(&value, names, id)
        });
        let aliases = fields.optional("aliases", |value| {
            value.list(|name| claim(&name, names, id))
        });
        // What stands in for a missing name or engine is never seen: a problem was reported.
        let stream = fields.optional("stream", |value| stream(&value));
        let (keepalive, idle) = stream.unwrap_or_default();
        let engine = EngineConfig::read(fields, idle).unwrap_or_else(|| EngineConfig::Embedded {
            path: PathBuf::new(),
            threads: None,
            pooling: None,
        });
        let kind = match &engine {
            EngineConfig::Remote(config) => Some(config.kind),
            EngineConfig::Embedded { .. } | EngineConfig::Fake(_) => None,
        };
        let default = Self::new(name.unwrap_or_default(), engine);
        let most = kind.map_or(256, |_| RemoteKind::SEQUENCES_MAX);
        let guess = kind.map_or(default.max_sequences, |_| RemoteKind::SEQUENCES_GUESS);
        let told = fields.optional("max_sequences", |value| value.integer(1..=most));
        let max_sequences = told.unwrap_or(guess);
        let model = Self {
            aliases: aliases.unwrap_or_default(),
            context: fields.optional("context", |value| tokens(&value, 16, CONTEXT_MAX)),
            kv_tokens: fields.optional("kv_tokens", kv_tokens),
            max_sequences,
            step_tokens: fields
                .optional("step_tokens", |value| tokens(&value, 16, 8192))
                .unwrap_or_else(|| step_tokens(max_sequences)),
            schedule: ScheduleConfig::read(fields),
            published: fields
                .optional("published_prefixes", |value| Published::read_list(&value))
                .unwrap_or_default(),
            stuck: fields
                .optional("stuck_step", |value| Stuck::read(&value))
                .unwrap_or_default(),
            queue: fields
                .optional("queue", |value| QueueConfig::read(&value))
                .unwrap_or_default(),
            max_stream: fields
                .optional("max_stream", |value| {
                    value.duration(span(1_000, 86_400_000))
                })
                .unwrap_or(default.max_stream),
            grammars: fields
                .optional("grammars", |value| {
                    value.choice(&[("on", true), ("off", false)])
                })
                .unwrap_or(default.grammars),
            keepalive: keepalive.unwrap_or(default.keepalive),
            replicas: replicas(fields, kind).unwrap_or_else(|| default.replicas.clone()),
            window: Bounds {
                reach: kind.map_or(0, |kind| kind.reach(told)),
                ..window::read(fields)
            },
            target: slo::target(fields),
            routing: fields
                .optional("routing", |value| RoutingConfig::read(&value))
                .unwrap_or_default(),
            health: fields
                .optional("health", |value| HealthConfig::read(&value))
                .unwrap_or_default(),
            loading: fields.optional("load", |value| fleet::loading(&value)),
            ..default
        };
        model.check(fields);
        model
    }

    /// Reports bounds that contradict each other.
    fn check(&self, fields: &Fields<'_, '_>) {
        let (context, kv_tokens) = match &self.engine {
            EngineConfig::Embedded { .. } => (self.context, self.kv_tokens),
            // What its steps are is its own to know.
            EngineConfig::Remote(_) => return self.check_remote(fields),
            EngineConfig::Fake(fake) => {
                if let Some(context) = self.context.filter(|context| *context > fake.context) {
                    let most = fake.context;
                    fields.report(
                        "context",
                        format!("is {context}, more than fake.context {most}"),
                    );
                }
                let context = self.context.unwrap_or(fake.context);
                (
                    Some(context),
                    Some(self.kv_tokens.unwrap_or(fake.kv_tokens)),
                )
            }
        };
        if let (Some(context), Some(kv_tokens)) = (context, kv_tokens)
            && kv_tokens < context
        {
            let message = format!("is {kv_tokens}; one request may need the context's {context}");
            fields.report("kv_tokens", message);
        }
        if self.step_tokens < Tokens::new(u64::from(self.max_sequences)) {
            let message = format!(
                "is {}; each of max_sequences {} needs one",
                self.step_tokens, self.max_sequences
            );
            fields.report("step_tokens", message);
        }
        if !self.published.is_empty() && !self.schedule.prefix_cache {
            fields.report(
                "published_prefixes",
                "is shared through prefix_cache: on only",
            );
        }
        if self.loading.is_some() {
            fields.report(
                "load",
                "is for replicas that are started by command; this one is not",
            );
        }
        self.check_times(fields);
    }

    fn check_times(&self, fields: &Fields<'_, '_>) {
        if self.keepalive >= self.max_stream {
            fields.report(
                "max_stream",
                "ends each stream before its first stream.keepalive",
            );
        }
    }

    /// Reports bounds that could never be reached.
    fn check_remote(&self, fields: &Fields<'_, '_>) {
        self.check_times(fields);
        if self.loading.is_some() && self.replicas.iter().any(|one| one.command.is_none()) {
            fields.report(
                "load",
                "is for replicas that are started by command; one is not",
            );
        }
        let EngineConfig::Remote(config) = &self.engine else {
            return;
        };
        for (key, span) in [
            ("upstream.first_byte", config.first_byte),
            ("stream.idle", config.idle),
        ] {
            if span >= self.max_stream {
                let message = "ends each stream before it could be";
                fields.report("max_stream", format!("{message} cut by {key}"));
            }
        }
    }
}

impl EngineConfig {
    fn read(fields: &mut Fields<'_, '_>, idle: Option<Micros>) -> Option<Self> {
        let kind = match fields.find("engine") {
            Some(value) => Kind::read(&value),
            None => Some(Kind::Embedded),
        };
        let path = fields.find("path");
        let threads = fields
            .optional("threads", |value| value.integer(1..=1024_u32))
            .and_then(NonZeroU32::new);
        let pooling = pooling(fields);
        let fake = fields.find("fake");
        let (upstream, tokenizer) = (fields.find("upstream"), fields.find("tokenizer"));
        let kind = kind?;
        if !matches!(kind, Kind::Remote(_)) {
            let why = "is for engines in other processes; this one is in ours";
            for (key, given) in [
                ("upstream", upstream.is_some()),
                ("tokenizer", tokenizer.is_some()),
                ("stream.idle", idle.is_some()),
            ] {
                if given {
                    fields.report(key, why);
                }
            }
        }
        match kind {
            Kind::Remote(kind) => {
                for (key, value) in [
                    ("path", path),
                    ("threads", fields.find("threads")),
                    ("pooling", fields.find("pooling")),
                    ("fake", fake),
                ] {
                    if value.is_some() {
                        fields.report(key, format!("is not for engine: {}", kind.label()));
                    }
                }
                let remote = RemoteConfig::read(kind, upstream, tokenizer, idle);
                Some(Self::Remote(remote))
            }
            Kind::Embedded => {
                if let Some(fake) = fake {
                    fake.report("is for engine: fake; this engine is embedded");
                }
                let path = fields.required("path", "name the model's GGUF file", |value| {
                    server::path(&value)
                })?;
                Some(Self::Embedded {
                    path,
                    threads,
                    pooling,
                })
            }
            Kind::Fake => {
                let others = [
                    ("path", path),
                    ("threads", fields.find("threads")),
                    ("pooling", fields.find("pooling")),
                ];
                for (key, value) in others {
                    if value.is_some() {
                        fields.report(key, "is for engine: embedded; this engine is fake");
                    }
                }
                Some(Self::Fake(
                    fake.and_then(|value| FakeConfig::read(&value))
                        .unwrap_or_default(),
                ))
            }
        }
    }
}

fn pooling(fields: &mut Fields<'_, '_>) -> Option<Pooling> {
    let poolings = [
        ("mean", Pooling::Mean),
        ("first", Pooling::First),
        ("last", Pooling::Last),
    ];
    fields.optional("pooling", |value| value.choice(&poolings))
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Embedded,
    Fake,
    Remote(RemoteKind),
}

impl Kind {
    fn read(value: &Cursor<'_>) -> Option<Self> {
        let remote = [
            RemoteKind::Vllm,
            RemoteKind::Sglang,
            RemoteKind::LlamaServer,
            RemoteKind::OpenAi,
        ];
        let remote = remote.map(|kind| (kind.label(), Self::Remote(kind)));
        let own = [("embedded", Self::Embedded), ("fake", Self::Fake)];
        value.choice(&[own.as_slice(), remote.as_slice()].concat())
    }
}

impl QueueConfig {
    fn read(section: &Cursor<'_>) -> Option<Self> {
        let default = Self::default();
        section.mapping(|fields| Self {
            max_requests: fields
                .optional("max_requests", |value| value.integer(1..=1_000_000))
                .unwrap_or(default.max_requests),
            max_wait: fields.optional("max_wait", |value| value.duration(span(0, 3_600_000))),
        })
    }
}

/// How often a client is sent a comment, and how long a replica may send nothing.
fn stream(section: &Cursor<'_>) -> Option<(Option<Micros>, Option<Micros>)> {
    section.mapping(|fields| {
        let keepalive = fields.optional("keepalive", |value| value.duration(span(100, 600_000)));
        let idle = fields.optional("idle", |value| value.duration(span(100, 3_600_000)));
        (keepalive, idle)
    })
}

/// Reads a name and takes it for the model `id`.
fn claim(value: &Cursor<'_>, names: &mut BTreeMap<String, ModelId>, id: ModelId) -> Option<String> {
    let name = value.name(NAME_SIGNS, NAME_CHARS_MAX)?;
    match names.get(name) {
        Some(owner) => {
            value.report(format!(
                "is {name}, which names models[{owner}] already; names are unique"
            ));
            None
        }
        None => {
            names.insert(name.to_owned(), id);
            Some(name.to_owned())
        }
    }
}

/// Reads a number of tokens.
pub(super) fn tokens(value: &Cursor<'_>, low: u64, high: u64) -> Option<Tokens> {
    value.integer(low..=high).map(Tokens::new)
}

/// Reads the size of a KV pool.
pub(super) fn kv_tokens(value: Cursor<'_>) -> Option<Tokens> {
    let block = KvBlocks::SLOTS;
    let tokens = tokens(&value, block.get(), KV_TOKENS_MAX)?;
    match tokens.get().is_multiple_of(block.get()) {
        true => Some(tokens),
        false => value.refuse(format_args!("a multiple of {block}")),
    }
}

/// From `low` to `high` milliseconds.
pub(super) fn span(low: u64, high: u64) -> std::ops::RangeInclusive<Micros> {
    Micros::from_millis(low)..=Micros::from_millis(high)
}
