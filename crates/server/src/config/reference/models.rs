//! Keys of models and of the engines that serve them.

use super::Unset::{Is, Means, Refused};
use super::{Key, key};

pub(super) const MODELS: &[Key] = &[
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
        "Prompt and output tokens of one request. A prompt that leaves no room is a 400; an answer \
         ends here with `finish_reason: length`, whatever `max_tokens` says (docs/api.md).",
    ),
    key(
        "models[].kv_tokens",
        "tokens, 16..=1000000000",
        Means("the engine's choice"),
        "Room for the tokens of all running requests; a multiple of 16, at least `context`. With \
         room for `max_sequences` times `context`, an engine that computes here on a CPU has a KV \
         for each, and many streams are faster. Requests of a class take up to its part of this \
         (`classes`, 85% for standard), so where answers are long some more lets all sequences run.",
    ),
    key(
        "models[].max_sequences",
        "number, 1..=256",
        Is("32"),
        "Requests that run at once; for engines in other processes 1..=4096, and 256 on each. Left \
         out for `vllm` and `sglang`, more run where all that may do, none waits inside the engine, \
         and answers keep the pace of `slo.tpot`.",
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
        Means("160 and `max_sequences`"),
        "Tokens that one step may compute; at least `max_sequences`. A CPU reads prompts as fast \
         in small pieces as in large ones; a GPU wants 512 or more. First tokens wait for steps.",
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
         no faster than prompts come, a part in each step: no first token waits for a long step. \
         Newcomers are given places of others then, whose text need not be what it would be alone \
         (docs/fairness.md).",
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
         Faster, but a seed need no longer repeat its text. What nobody uses just then is kept \
         beside the KV, in up to as much memory again.",
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
        "models[].upstream.http2",
        "on or off",
        Is("off"),
        "Whether engines are spoken to in HTTP/2, all requests over one connection to each: over \
         TLS by ALPN, else without asking first. vLLM, llama-server and SGLang as they come speak \
         HTTP/1.1.",
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
        "models[].upstream.kv_per_token",
        "size, 64..=64MiB",
        Is("128KiB"),
        "What a token takes of an engine's KV memory, for `kv_gib_seconds` of limits and ledger: \
         two times layers, KV heads and head size, times the bytes of a number.",
    ),
    key(
        "models[].tokenizer",
        "path",
        Means("prompts are reckoned by their length"),
        "The model's `tokenizer.json`: what a prompt costs is counted by it before the engine has, \
         and an answer where the engine does not count. What the engine counts is the truth, with \
         or without. Only for engines in other processes.",
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
        Means("refused for engines in other processes without `command`"),
        "Where the engine listens, with or without `/v1` at its end.",
    ),
    key(
        "models[].replicas[].command",
        "list of 1 to 256 words",
        Means("the engine runs already"),
        "The program that starts the engine, and its arguments. `{port}` stands for a free port; \
         `--host 127.0.0.1 --port {port}` is put behind it where it is not there and the engine is \
         one that takes it. What it says is kept in `engines/` under `data_dir`. It is stopped with \
         the gateway.",
    ),
    key(
        "models[].replicas[].device",
        "number, 0..=1023",
        Is("0"),
        "The device the engine is loaded on: those on one are loaded one after the other. Only \
         with `command`.",
    ),
    key(
        "models[].replicas[].start_timeout",
        "duration, 1s..=6h",
        Is("15m"),
        "How long the engine may take to be up; then it is stopped and tried again. Only with \
         `command`.",
    ),
    key(
        "models[].replicas[].only",
        "reserved",
        Means("every class"),
        "Keeps the replica for tenants of that class; one at least must serve all.",
    ),
    key(
        "models[].routing.policy",
        "prefix or power_of_two or least_load or round_robin or hash",
        Is("prefix"),
        "How a replica is chosen. `prefix`: of the one that holds most of the prompt and two \
         drawn at random, the one with the least to do before the first token. `power_of_two`: the less \
         loaded of two drawn at random. `least_load`: the least loaded of all. `round_robin`: each in \
         turn. `hash`: the one that the beginning of the prompt hashes to, or else the tenant.",
    ),
    key(
        "models[].routing.session_header",
        "1 to 64 characters out of A-Z a-z 0-9 -_",
        Is("x-session-id"),
        "The header that names a session. All requests of one go to the same replica, under every \
         policy, as long as it has room.",
    ),
    key(
        "models[].health.interval",
        "duration, 100ms..=1h",
        Is("1s"),
        "Time between two probes of an engine in another process. Three in a row without an answer \
         eject it, unless it is the last or answers requests meanwhile.",
    ),
    key(
        "models[].health.timeout",
        "duration, 10ms..=60s",
        Is("1s"),
        "How long a probe may take.",
    ),
    key(
        "models[].load.memory",
        "size",
        Means("refused in `load`, without which the model is always loaded"),
        "What the model takes of its device. With `load` it is loaded when it is first asked \
         for, and unloaded when others need the room and it is used least. Only with `command`.",
    ),
    key(
        "models[].load.budget",
        "size",
        Means("refused in `load`"),
        "What the device has for all models that are loaded on it.",
    ),
    key(
        "models[].load.device",
        "number, 0..=1023",
        Is("0"),
        "The device it is loaded on.",
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
        "The last of them, kept for tenants that have less than their share running (an engine \
         that computes here also gives those places of others); by itself 3% \
         of them, and for a while more, up to 12%, where such a tenant had to wait; of 4 to 15 none \
         before that, and then one for as long as such tenants come.",
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
        "models[].slo.ttft",
        "duration, 1ms..=10m",
        Means("not promised"),
        "Received to first token, as promised to each request that is let in; see \
         [admission](admission.md). A request may ask for less by `x-tollgate-slo-ttft-ms`.",
    ),
    key(
        "models[].slo.tpot",
        "duration, 1ms..=10s",
        Means("not promised; KV limits reckon with 100ms"),
        "The mean time between two tokens, likewise (`x-tollgate-slo-tpot-ms`); what KV limits \
         reckon with until it has been measured.",
    ),
    key(
        "models[].slo.e2e",
        "duration, 1ms..=24h",
        Means("not promised"),
        "Received to last byte, likewise (`x-tollgate-slo-e2e-ms`).",
    ),
    key(
        "models[].slo.alpha",
        "decimal, 0.001..=0.5",
        Is("0.1"),
        "How many of the promised bounds may be missed: 0.1 is one in ten.",
    ),
    key(
        "models[].slo.mode",
        "one of `goodput` `guarantee` `off`",
        Is("goodput"),
        "`goodput` refuses a request whose bound does not fit only where others would pay for it, \
         never while there is room and nothing waits; `guarantee` refuses it always; `off` promises \
         nothing.",
    ),
    key(
        "models[].slo.calibration",
        "one of `rolling` `split` `none`",
        Is("rolling"),
        "How a bound is made of an estimate: by the last requests, by the first 2000 for good, or \
         not at all. The last two are there to compare with.",
    ),
    key(
        "models[].slo.model",
        "one of `learned` `structural`",
        Is("learned"),
        "What an estimate of the first token is put right by: by trees that are fitted to what \
         came of the last requests, in the background, or by nothing.",
    ),
    key(
        "models[].slo.refit",
        "duration, 1s..=24h",
        Is("20s"),
        "From one fit of those trees to the next at the least; none without 256 new answers.",
    ),
    key(
        "models[].slo.classes[].class",
        "one of `reserved` `standard` `best_effort`",
        Refused,
        "The class for which something else holds than for all.",
    ),
    key(
        "models[].slo.classes[].ttft",
        "duration, 1ms..=10m",
        Means("as for all"),
        "What is promised to it.",
    ),
    key(
        "models[].slo.classes[].tpot",
        "duration, 1ms..=10s",
        Means("as for all"),
        "Likewise.",
    ),
    key(
        "models[].slo.classes[].e2e",
        "duration, 1ms..=24h",
        Means("as for all"),
        "Likewise.",
    ),
    key(
        "models[].slo.classes[].alpha",
        "decimal, 0.001..=0.5",
        Means("as for all"),
        "Likewise.",
    ),
    key(
        "models[].slo.classes[].mode",
        "one of `goodput` `guarantee` `off`",
        Means("as for all"),
        "Likewise; `off` promises the class nothing, and refuses it nothing.",
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
