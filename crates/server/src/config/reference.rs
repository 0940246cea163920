//! Every key of a configuration, for people: the source of `docs/config.md`.
//!
//! Tests hold this table against the decoder: the same keys, the same defaults, the same bounds.

use self::Unset::{Is, Means, Refused};

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Where it stands, as in `tenants[].limits.rpm`.
    pub path: &'static str,
    /// What it takes, with its bounds.
    pub takes: &'static str,
    /// What holds when it is left out.
    pub unset: Unset,
    /// What it is for.
    pub meaning: &'static str,
}

/// What holds when a key is left out.
#[derive(Clone, Copy, Debug)]
pub enum Unset {
    /// The same as with this value.
    Is(&'static str),
    /// Something that no value says.
    Means(&'static str),
    /// A problem.
    Refused,
}

/// A heading and the keys under it.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The heading.
    pub title: &'static str,
    /// A sentence or two before the table.
    pub about: &'static str,
    /// The keys, in the order to read them.
    pub keys: &'static [Key],
}

const fn key(path: &'static str, takes: &'static str, unset: Unset, meaning: &'static str) -> Key {
    Key {
        path,
        takes,
        unset,
        meaning,
    }
}

/// All sections.
pub const SECTIONS: [Section; 6] = [
    Section {
        title: "The process",
        about: "",
        keys: PROCESS,
    },
    Section {
        title: "For the operator",
        about: "",
        keys: ADMIN,
    },
    Section {
        title: "Callers",
        about: "A caller is known by a key, or by the tenant header of a peer that is trusted to \
                have checked it. Trust goes by the address of the connection, never by a header.",
        keys: IDENTITY,
    },
    Section {
        title: "Models",
        about: "A list; clients name a model by its name or by an alias. Without models Tollgate \
                answers that it serves none.",
        keys: MODELS,
    },
    Section {
        title: "Tenants",
        about: "A list of who pays. The tenant `anonymous` has no keys; it stands for callers \
                without one. The name `other` is taken: metrics use it for tenants past a bound. \
                `default_tenant` is for tenants that only a trusted header names, and for \
                `anonymous` where the list does not have it.",
        keys: TENANTS,
    },
    Section {
        title: "Fairness",
        about: "",
        keys: FAIRNESS,
    },
];

const PROCESS: &[Key] = &[
    key(
        "listen",
        "address and port",
        Is("127.0.0.1:8080"),
        "Where to listen.",
    ),
    key(
        "data_dir",
        "path",
        Is("./tollgate-data"),
        "Where files are kept, from the working directory.",
    ),
    key(
        "server.max_body",
        "size, 1KiB..=1GiB",
        Is("32MiB"),
        "The longest request body; a longer one gets 413.",
    ),
    key(
        "server.max_connections",
        "number, 1..=1000000",
        Is("4096"),
        "Connections open at once.",
    ),
    key(
        "server.drain",
        "duration, 1s..=1h",
        Is("60s"),
        "How long running streams may go on after SIGTERM.",
    ),
    key(
        "server.read_timeout",
        "duration, 1s..=10m",
        Is("30s"),
        "How long a request's body may take to arrive; its head has 30 s.",
    ),
    key(
        "metrics.expose",
        "loopback or any",
        Is("loopback"),
        "Which peers may read `/metrics`, which names tenants and models.",
    ),
];

const ADMIN: &[Key] = &[key(
    "admin.listen",
    "loopback address and port",
    Means("off"),
    "Where `GET /admin/v1/queue` is answered: who waits for each model, in which place and for how \
     long, and what each replica's window holds. It asks for no key, so it is for this computer only.",
)];

const IDENTITY: &[Key] = &[
    key(
        "identity.anonymous",
        "deny or allow",
        Is("deny"),
        "Whether callers without a key are the tenant `anonymous` or are refused.",
    ),
    key(
        "identity.trust_tenant_header",
        "true or false",
        Is("false"),
        "Whether trusted peers may name the tenant in `X-Tenant-ID`.",
    ),
    key(
        "identity.trusted_peers",
        "list of networks",
        Is("[127.0.0.0/8, \"::1/128\"]"),
        "The peers that may, if anyone may.",
    ),
];

const MODELS: &[Key] = &[
    key(
        "models[].name",
        "1 to 128 of `A-Za-z0-9._:/-`",
        Refused,
        "The name that clients use; unique, aliases included.",
    ),
    key(
        "models[].aliases",
        "list of names",
        Is("[]"),
        "Other names for it.",
    ),
    key(
        "models[].engine",
        "embedded or fake or vllm or sglang or llama-server or openai",
        Is("embedded"),
        "What runs it: llama.cpp in this process, made-up text at a set pace, or engines in other \
         processes; `openai` is anything that speaks that API.",
    ),
    key(
        "models[].path",
        "path",
        Means("refused for embedded"),
        "The GGUF file; only for `engine: embedded`.",
    ),
    key(
        "models[].context",
        "tokens, 16..=10000000",
        Means("the model's own"),
        "Prompt and output tokens of one request.",
    ),
    key(
        "models[].kv_tokens",
        "tokens, 16..=1000000000",
        Means("the engine's choice"),
        "Room for the tokens of all running requests; a multiple of 16, at least `context`.",
    ),
    key(
        "models[].max_sequences",
        "number, 1..=256",
        Is("32"),
        "Requests that run at once; for engines in other processes 1..=4096, and 256 on each.",
    ),
    key(
        "models[].threads",
        "number, 1..=1024",
        Means("one for each core, divided among the replicas"),
        "Threads that compute; only for `engine: embedded`. They wait for each other many times in \
         a step: leave out cores that other work keeps busy, as two threads of which one has to \
         share are slower than one.",
    ),
    key(
        "models[].step_tokens",
        "tokens, 16..=8192",
        Is("512"),
        "Tokens that one step may compute; at least `max_sequences`.",
    ),
    key(
        "models[].chunk_tokens",
        "tokens, 16..=8192",
        Means("all of `step_tokens`"),
        "Tokens that one sequence may compute in a step: less leaves more to others.",
    ),
    key(
        "models[].prefill_pacing",
        "on or off",
        Is("on"),
        "While several tenants are active, computes the prompts of those that have their share \
         no faster than prompts come, a part in each step: no first token waits for a long step.",
    ),
    key(
        "models[].order",
        "decode_first or prefill_first",
        Is("decode_first"),
        "Who gets a step's tokens first: running answers, or new prompts.",
    ),
    key(
        "models[].scheduler",
        "fifo or static or continuous",
        Is("continuous"),
        "When waiting requests start: one by one, batch by batch, or as soon as there is room.",
    ),
    key(
        "models[].prefix_cache",
        "on or off",
        Is("off"),
        "Whether requests of one tenant share the KV of what their prompts begin with alike. \
         Faster, but a seed need no longer repeat its text.",
    ),
    key(
        "models[].kv",
        "paged or contiguous",
        Is("paged"),
        "How much KV a request is given: what it has come to, or from its start all that it may \
         come to, which wastes most of it and is there for comparison.",
    ),
    key(
        "models[].published_prefixes",
        "list of at most 64",
        Is("[]"),
        "Texts that prompts begin with and whose KV all tenants may share, each with `text` or \
         `file`; only with `prefix_cache: on`. Nobody learns from it what another tenant sent, as \
         you have published it.",
    ),
    key(
        "models[].published_prefixes[].text",
        "text",
        Means("`file` is used"),
        "The text itself.",
    ),
    key(
        "models[].published_prefixes[].file",
        "path",
        Means("`text` is used"),
        "A file that holds the text, all of it.",
    ),
    key(
        "models[].published_prefixes[].as",
        "system or raw",
        Is("system"),
        "Whether chats have it as their system message, or prompts begin with it as it is.",
    ),
    key(
        "models[].pooling",
        "mean or first or last",
        Means("what the file says, and if it says nothing the model generates text"),
        "How the vectors of a text's tokens become one for `/v1/embeddings`; such a model makes no \
         text. Only for `engine: embedded`.",
    ),
    key(
        "models[].stuck_step.after",
        "duration, 1s..=1h",
        Is("5m"),
        "How long a step may take before its engine counts as stuck: the replica is not ready, and \
         its requests end as failed.",
    ),
    key(
        "models[].stuck_step.then",
        "wait or exit",
        Is("wait"),
        "Whether a stuck engine is started again once its step has ended after all, or the process \
         exits with status 70. Nothing else can end such a step.",
    ),
    key(
        "models[].queue.max_requests",
        "number, 1..=1000000",
        Is("1000"),
        "Requests that may wait. Under a fair policy one tenant may fill its share of it, half \
         when it is alone; what is over gets 503.",
    ),
    key(
        "models[].queue.max_wait",
        "duration, 0s..=1h",
        Means("30s; 10s for best_effort"),
        "How long a request may wait; 0s refuses what cannot start at once.",
    ),
    key(
        "models[].max_stream",
        "duration, 1s..=24h",
        Is("10m"),
        "The longest that one request may take; longer than `stream.keepalive`.",
    ),
    key(
        "models[].stream.keepalive",
        "duration, 100ms..=10m",
        Is("15s"),
        "How often a client that waits for a token is sent a comment.",
    ),
    key(
        "models[].stream.idle",
        "duration, 100ms..=1h",
        Is("60s"),
        "How long an engine in another process may send nothing before its stream is cut; shorter \
         than `max_stream`.",
    ),
    key(
        "models[].upstream.model",
        "1 to 256 printable characters",
        Means("the model's `name`"),
        "The model's name at its engines.",
    ),
    key(
        "models[].upstream.key",
        "1 to 4096 printable characters",
        Means("none is sent"),
        "The key that its engines get, best written as `${NAME}`. Keys of callers never go there.",
    ),
    key(
        "models[].upstream.connect",
        "duration, 10ms..=60s",
        Is("5s"),
        "How long a connection to an engine may take.",
    ),
    key(
        "models[].upstream.first_byte",
        "duration, 100ms..=1h",
        Is("120s"),
        "How long an engine may take to send the first event of a stream; shorter than \
         `max_stream`, which alone bounds answers in one piece.",
    ),
    key(
        "models[].upstream.cache_salt",
        "on or off",
        Means("on for vllm and sglang"),
        "Whether each tenant's requests carry a salt of its own, so that no tenant can tell from \
         the time to a first token what others sent. Only for `vllm` and `sglang`.",
    ),
    key(
        "models[].upstream.priority",
        "on or off",
        Is("off"),
        "Whether requests carry a priority by the service their tenant has had. The engine must \
         run with `--scheduling-policy priority`. Only for `vllm` and `sglang`.",
    ),
    key(
        "models[].upstream.ca",
        "path",
        Means("this computer's own"),
        "A PEM file of certificates to trust beside this computer's own, for engines behind \
         `https`.",
    ),
    key(
        "models[].upstream.max_event",
        "size, 64KiB..=256MiB",
        Is("8MiB"),
        "The largest event of a stream; a larger one ends its stream with an error.",
    ),
    key(
        "models[].grammars",
        "on or off",
        Is("off"),
        "Whether callers may hold answers to a `grammar` or `json_schema` of their own. A hostile \
         one can hold up the engine for everybody: for callers who are trusted only.",
    ),
    key(
        "models[].replicas",
        "list of 1 to 16",
        Is("[{}]"),
        "The engines that serve it, in this process and on the same weights; each has a KV pool of \
         its own. Of engines in other processes 1 to 256, which must be named.",
    ),
    key(
        "models[].replicas[].url",
        "`http://HOST:PORT` or `https://HOST` or `unix:/PATH`",
        Means("refused for engines in other processes"),
        "Where the engine listens, with or without `/v1` at its end.",
    ),
    key(
        "models[].replicas[].only",
        "reserved",
        Means("every class"),
        "Keeps the replica for tenants of that class; one at least must serve all.",
    ),
    key(
        "models[].window.concurrency",
        "auto or number, 1..=256",
        Is("auto"),
        "Requests that a replica is given at once; by itself what it can hold, less while some of \
         them wait inside it.",
    ),
    key(
        "models[].window.headroom",
        "auto or number, 0..=256",
        Is("auto"),
        "The last of them, kept for tenants that have less than their share running; by itself 3% \
         of them.",
    ),
    key(
        "models[].window.prefill",
        "auto or tokens, 1..=1000000",
        Is("auto"),
        "Prompt tokens that are computed at once; by itself what makes a step twice as long, as \
         measured.",
    ),
    key(
        "models[].classes.reserved",
        "percent, 1%..=100%",
        Is("92%"),
        "How full a replica's KV may be for a `reserved` tenant within its floor; beyond its floor \
         it is as `standard`.",
    ),
    key(
        "models[].classes.standard",
        "percent, 1%..=100%",
        Is("85%"),
        "The same for `standard`; at most that of `reserved`.",
    ),
    key(
        "models[].classes.best_effort",
        "percent, 1%..=100%",
        Is("60%"),
        "The same for `best_effort`; at most that of `standard`.",
    ),
    key(
        "models[].classes.best_effort_min",
        "percent, 0%..=100%",
        Is("5%"),
        "What `best_effort` may hold of it in any case, up to the bound of `standard`.",
    ),
    key(
        "models[].slo.tpot",
        "duration, 1ms..=10s",
        Is("100ms"),
        "The time between two tokens that is promised; what KV limits reckon with until it has \
         been measured.",
    ),
    key(
        "models[].fake.step",
        "duration, 0s..=10s",
        Is("10ms"),
        "What a step takes. The keys of `fake` are only for `engine: fake`.",
    ),
    key(
        "models[].fake.per_sequence",
        "duration, 0s..=1s",
        Is("150us"),
        "What each sequence adds to a step.",
    ),
    key(
        "models[].fake.prefill_tokens_per_second",
        "number, 1..=1000000000",
        Is("12000"),
        "How fast prompts are computed.",
    ),
    key(
        "models[].fake.context",
        "tokens, 16..=10000000",
        Is("8192"),
        "The context the model claims to be made for.",
    ),
    key(
        "models[].fake.kv_tokens",
        "tokens, 16..=1000000000",
        Is("65536"),
        "The pool where `kv_tokens` is not set; a multiple of 16.",
    ),
    key(
        "models[].fake.seed",
        "number, 0..=18446744073709551615",
        Is("1"),
        "Decides the text, together with the prompt.",
    ),
    key(
        "models[].fake.vector",
        "number, 1..=65536",
        Means("it generates text"),
        "Numbers of each vector, for a model that makes vectors.",
    ),
];

const TENANTS: &[Key] = &[
    key(
        "tenants[].name",
        "1 to 64 of `A-Za-z0-9._-`",
        Refused,
        "The name, unique; not `other`.",
    ),
    key(
        "tenants[].keys",
        "list",
        Is("[]"),
        "The keys it is known by, each with one of the two entries below; no key \
         belongs to two tenants.",
    ),
    key(
        "tenants[].keys[].env",
        "name of a variable",
        Means("`sha256` is used"),
        "The environment variable that holds the key.",
    ),
    key(
        "tenants[].keys[].sha256",
        "64 hexadecimal digits",
        Means("`env` is used"),
        "The key's SHA-256, as `printf %s KEY \\| sha256sum` prints it.",
    ),
    key(
        "tenants[].class",
        "reserved or standard or best_effort",
        Is("standard"),
        "Its promise.",
    ),
    key(
        "tenants[].weight",
        "number, 1..=1000",
        Is("1"),
        "Its share against others; twice the weight, twice the service.",
    ),
    key(
        "tenants[].floor",
        "percent, 0%..=92%",
        Is("0%"),
        "What is set aside for it of each replica's KV; only for `class: reserved`.",
    ),
    key(
        "tenants[].models",
        "list of names or aliases",
        Means("all models"),
        "The models it may name.",
    ),
    key(
        "tenants[].limits.rpm",
        "number, 1..=1000000",
        Means("no limit"),
        "Requests per minute.",
    ),
    key(
        "tenants[].limits.burst",
        "number, 1..=1000000",
        Means("`rpm`"),
        "Requests that may come at once after a quiet spell; needs `rpm`.",
    ),
    key(
        "tenants[].limits.tpm",
        "tokens, 1..=10000000000",
        Means("no limit"),
        "Tokens per minute, prompt and output; as many may come at once after a quiet spell.",
    ),
    key(
        "tenants[].limits.kv_gib_seconds",
        "decimal, 0.001..=1000000000",
        Means("no limit"),
        "KV memory over time that its requests in flight may be expected to hold together.",
    ),
    key(
        "tenants[].limits.concurrency",
        "number, 1..=1000000",
        Means("no limit"),
        "Requests queued or running at once.",
    ),
    key(
        "tenants[].limits.max_context",
        "tokens, 1..=10000000",
        Means("the model's"),
        "Prompt and output tokens of one request.",
    ),
    key(
        "tenants[].limits.max_output",
        "tokens, 1..=10000000",
        Means("no limit"),
        "Output tokens of one request; at most `max_context`.",
    ),
    key(
        "default_tenant.class",
        "reserved or standard or best_effort",
        Is("best_effort"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.weight",
        "number, 1..=1000",
        Is("1"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.rpm",
        "number, 1..=1000000",
        Means("no limit"),
        "As for a tenant, each with its own count.",
    ),
    key(
        "default_tenant.limits.burst",
        "number, 1..=1000000",
        Means("`rpm`"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.tpm",
        "tokens, 1..=10000000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.kv_gib_seconds",
        "decimal, 0.001..=1000000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.concurrency",
        "number, 1..=1000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.max_context",
        "tokens, 1..=10000000",
        Means("the model's"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.max_output",
        "tokens, 1..=10000000",
        Means("no limit"),
        "As for a tenant.",
    ),
];

const FAIRNESS: &[Key] = &[
    key(
        "fairness.policy",
        "vtc or drr or fifo",
        Is("vtc"),
        "Who is next: the tenant that has had the least service; each in turn for a quantum; or in \
         the order of arrival, which lets a flooder starve the others.",
    ),
    key(
        "fairness.quantum",
        "number, 1..=1000000",
        Means("1024"),
        "Service that a tenant of weight 1 is granted per turn; only for `policy: drr`.",
    ),
    key(
        "fairness.input_weight",
        "number, 0..=1000",
        Is("1"),
        "What a computed prompt token counts as service.",
    ),
    key(
        "fairness.output_weight",
        "number, 0..=1000",
        Is("2"),
        "What a generated token counts; not both weights are 0.",
    ),
    key(
        "fairness.cached_weight",
        "percent, 0%..=100%",
        Is("0%"),
        "What a prompt token counts whose KV was reused, against one that is computed: as service \
         and against `tpm`.",
    ),
    key(
        "fairness.floors_max",
        "percent, 0%..=1000%",
        Is("60%"),
        "What the floors of the tenants of one model may add up to; more than 100% promises more \
         than there is.",
    ),
];

const OPENING: &str = "\
# Configuration

One YAML file, given as `tollgate serve --config FILE`. `tollgate check --config FILE` reports every mistake
with its line and column and starts nothing. A complete file is `tollgate.example.yaml` beside this page.

- An unknown key is a mistake; so is a key given twice.
- A duration is a whole number with `us`, `ms`, `s`, `m` or `h`; a size has `KiB`, `MiB` or `GiB`, or is in bytes;
  a percentage has its `%`.
- `${NAME}` in a value is replaced by that environment variable, which must be set; `$$` is a dollar sign. Inside
  `{ }` or `[ ]` YAML wants quotes around it: `{ rpm: \"${RPM}\" }`. Keys are never replaced.
- Numbers may be quoted. A key without a value counts as left out.
- A changed file is taken on while Tollgate runs, a second or two after it was written, or at once on SIGHUP: callers,
  tenants, keys, limits, weights and `metrics`. What was used of a limit stays used. A file with a mistake, or one that
  changes `listen`, `data_dir`, `admin`, `server`, `models`, `fairness.policy` or `fairness.quantum`, is refused whole:
  the log says why, and what held before goes on.

This page is made from `crates/server/src/config/reference.rs`; a test fails when it is stale and writes it anew
when `UPDATE_DOCS=1` is set.
";

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut page = OPENING.to_owned();
    for section in SECTIONS {
        page.push_str(&format!("\n## {}\n\n", section.title));
        if !section.about.is_empty() {
            page.push_str(&format!("{}\n\n", section.about));
        }
        page.push_str("| key | takes | left out | meaning |\n|---|---|---|---|\n");
        for Key {
            path,
            takes,
            unset,
            meaning,
        } in section.keys
        {
            let unset = match unset {
                Is(value) => format!("`{value}`"),
                Means(words) => (*words).to_owned(),
                Refused => "refused".to_owned(),
            };
            page.push_str(&format!("| `{path}` | {takes} | {unset} | {meaning} |\n"));
        }
    }
    page
}
