//! What is said of mistakes, and that no message shows a key.

use insta::assert_snapshot;

use super::*;

#[test]
fn ten_mistakes_are_reported_at_once() {
    let text = "\
listen: localhost
server: { max_body: 32MB, drain: 60 }
modles: []
models:
  - name: small
    engine: vllm
  - name: small
    engine: fake
    max_sequences: 0
tenants:
  - name: quiet
    keys: [{ env: NO_SUCH_KEY }]
    models: [large]
    limits: { rmp: 600 }
";
    assert_snapshot!(problems(text), @r#"
    1:9: listen is localhost; use an address and a port, like 127.0.0.1:8080 or [::1]:8080
    2:21: server.max_body is 32MB; use a size in KiB, MiB, GiB or bytes, 1KiB..=1GiB
    2:34: server.drain is 60; use a duration like 30s, 250ms or 10m, 1s..=1h
    3:9: modles is not a known key; did you mean models?
    5:5: models[0].replicas is missing; say where the engines listen: [{ url: "http://127.0.0.1:8000" }]
    7:11: models[1].name is small, which names models[0] already; names are unique
    9:20: models[1].max_sequences is 0; use 1..=256
    12:19: tenants[0].keys[0].env is NO_SUCH_KEY, which is not set or empty; set it to the key
    13:14: tenants[0].models[0] is large, which names no model here
    14:20: tenants[0].limits.rmp is not a known key; did you mean rpm?
    "#);
}

#[test]
fn mistakes_about_the_process() {
    let text = "\
listen: ${HOST}:8080
data_dir: ''
server: { max_body: 2GiB, max_connections: many, drain: 0s, read_timeout: [1s], workers: 4 }
metrics: { expose: everyone }
identity: { anonymous: allow }
";
    assert_snapshot!(problems(text), @r#"
    1:9: listen needs the environment variable HOST, which is not set
    2:11: data_dir is empty; use a path
    3:21: server.max_body is 2GiB; use 1KiB..=1GiB
    3:44: server.max_connections is many; use a whole number, 1..=1000000
    3:57: server.drain is 0s; use 1s..=1h
    3:75: server.read_timeout is a list; use a duration like 30s
    3:90: server.workers is not a known key; known here: max_body, max_bodies, max_connections, drain, read_timeout, threads
    4:20: metrics.expose is everyone; use loopback or any
    "#);
}

#[test]
fn mistakes_about_identity() {
    let text = "\
identity:
  anonymous: maybe
  trust_tenant_header: yes
  trusted_peers: [10.0.0.1/8, localhost, '::ffff:10.0.0.0/104', 10.0.0.0/33]
";
    assert_snapshot!(problems(text), @r#"
    2:14: identity.anonymous is maybe; use deny or allow
    3:24: identity.trust_tenant_header is yes; use true or false
    4:19: identity.trusted_peers[0] is 10.0.0.1/8; it has bits behind its prefix; use 10.0.0.0/8
    4:31: identity.trusted_peers[1] is localhost; use a network like 10.0.0.0/8, or one address
    4:42: identity.trusted_peers[2] is ::ffff:10.0.0.0/104; write it as an IPv4 network
    4:65: identity.trusted_peers[3] is 10.0.0.0/33; use a network like 10.0.0.0/8, or one address
    "#);
}

#[test]
fn mistakes_about_models() {
    let text = "\
identity: { anonymous: allow }
models:
  - engine: embedded
  - name: a b
    engine: fake
    path: model.gguf
    threads: 2
  - name: c
    path: model.gguf
    aliases: [d, c, d]
    context: 8192
    kv_tokens: 4096
    fake: {}
    slo: { ttft: 0s, tpot: 0ms, alpha: 1 }
    max_stream: 10s
  - name: e
    engine: fake
    context: 9000
    kv_tokens: 100
    queue: { max_requests: 0, max_wait: 2h }
    stream: { keepalive: 1ms, idle: 60s }
    fake: { seed: -1, steps: 10ms }
  - { name: f, engine: openai }
  - { name: g, engine: magic }
  - h
";
    assert_snapshot!(problems(text), @r#"
    3:5: models[0].name is missing; give the model a name
    3:5: models[0].path is missing; name the model's GGUF file
    4:11: models[1].name is `a b`; use 1 to 128 characters out of A-Z a-z 0-9 ._:/-
    6:11: models[1].path is for engine: embedded; this engine is fake
    7:14: models[1].threads is for engine: embedded; this engine is fake
    10:18: models[2].aliases[1] is c, which names models[2] already; names are unique
    10:21: models[2].aliases[2] is d, which names models[2] already; names are unique
    12:16: models[2].kv_tokens is 4096; one request may need the context's 8192
    13:11: models[2].fake is for engine: fake; this engine is embedded
    14:18: models[2].slo.ttft is 0s; use 1ms..=10m
    14:28: models[2].slo.tpot is 0ms; use 1ms..=10s
    14:40: models[2].slo.alpha is 1; use 0.001..=0.5
    15:17: models[2].max_stream ends each stream before its first stream.keepalive
    16:5: models[3].stream.idle is for engines in other processes; this one is in ours
    18:14: models[3].context is 9000, more than fake.context 8192
    19:16: models[3].kv_tokens is 100; use a multiple of 16
    20:28: models[3].queue.max_requests is 0; use 1..=1000000
    20:41: models[3].queue.max_wait is 2h; use 0s..=1h
    21:26: models[3].stream.keepalive is 1ms; use 100ms..=10m
    22:19: models[3].fake.seed is -1; use 0..=18446744073709551615
    22:30: models[3].fake.steps is not a known key; did you mean step?
    23:5: models[4].replicas is missing; say where the engines listen: [{ url: "http://127.0.0.1:8000" }]
    24:24: models[5].engine is magic; use embedded or fake or vllm or sglang or llama-server or openai
    25:5: models[6] is h; use a mapping of keys to values
    "#);
}

#[test]
fn a_step_has_room_for_a_token_of_each_sequence() {
    let text = "\
identity: { anonymous: allow }
models:
  - { name: a, engine: fake, step_tokens: 32 }
  - { name: b, engine: fake, step_tokens: 31 }
  - { name: c, engine: fake, step_tokens: 16, max_sequences: 17 }
";
    assert_snapshot!(problems(text), @r#"
    4:43: models[1].step_tokens is 31; each of max_sequences 32 needs one
    5:43: models[2].step_tokens is 16; each of max_sequences 17 needs one
    "#);
}

#[test]
fn mistakes_about_tenants() {
    let text = "\
models: [{ name: m, engine: fake }]
tenants:
  - keys: [{ env: QUIET_KEY }, { env: EMPTY }, { env: BROKEN_KEY }, {}]
  - name: other
    keys: [{ env: SAME_KEY }]
  - name: b
    class: gold
    weight: 0
    models: []
    limits: { burst: 5, tpm: 0, kv_gib_seconds: 0.0005, max_context: 10, max_output: 11 }
  - name: b
    models: [m, n]
    limits: { rpm: 0, burst: 0, concurrency: 1.5 }
    model_limits: [{ model: n, limits: { tpm: 0 } }, { limits: {} }, { model: m, limits: {} }, { model: m, limits: {} }]
  - name: anonymous
    keys: [{ env: SECRET }]
default_tenant: { name: x, limits: { rpm: 60s } }
";
    assert_snapshot!(problems(text), @r#"
    3:5: tenants[0].name is missing; give the tenant a name
    3:39: tenants[0].keys[1].env is EMPTY, which is not set or empty; set it to the key
    3:55: tenants[0].keys[2].env is BROKEN_KEY, whose value no caller can send: it has spaces or is not ASCII
    3:69: tenants[0].keys[3].env is missing; use { env: NAME } or { sha256: … }
    4:11: tenants[1].name is other, which tenants past a bound share; use another name
    5:12: tenants[1].keys[0] is also a key of tenants[0]; a key belongs to one tenant
    7:12: tenants[2].class is gold; use reserved or standard or best_effort
    8:13: tenants[2].weight is 0; use 1..=1000
    9:13: tenants[2].models is an empty list; use a list of models, or leave it out to allow all
    10:22: tenants[2].limits.burst needs rpm beside it
    10:30: tenants[2].limits.tpm is 0; use 1..=10000000000
    10:49: tenants[2].limits.kv_gib_seconds is 0.0005; use a number with at most three decimals, 0.001..=1000000000
    10:86: tenants[2].limits.max_output is 11, more than max_context 10 allows
    11:11: tenants[3].name is b, as in tenants[2]; names are unique
    12:17: tenants[3].models[1] is n, which names no model here
    13:20: tenants[3].limits.rpm is 0; use 1..=1000000
    13:30: tenants[3].limits.burst is 0; use 1..=1000000
    13:46: tenants[3].limits.concurrency is 1.5; use a whole number, 1..=1000000
    14:29: tenants[3].model_limits[0].model is n, which names no model here
    14:47: tenants[3].model_limits[0].limits.tpm is 0; use 1..=10000000000
    14:54: tenants[3].model_limits[1].model is missing; name the model
    14:105: tenants[3].model_limits[3].model has its limits before; give each model once
    16:12: tenants[4].keys[0] is a key for callers that have none; give this tenant no keys
    17:25: default_tenant.name is not a known key; known here: class, weight, limits
    17:43: default_tenant.limits.rpm is 60s; use a whole number, 1..=1000000
    "#);
}

#[test]
fn mistakes_about_fairness() {
    let text = "\
identity: { anonymous: allow }
fairness: { policy: wfq, input_weight: 0, output_weight: 0, cached_weight: 0.5, floors_max: 60 }
";
    assert_snapshot!(problems(text), @r#"
    2:21: fairness.policy is wfq; use vtc or drr or fifo
    2:40: fairness.input_weight is 0 and so is output_weight; one must count
    2:76: fairness.cached_weight is 0.5; use a part like 20%, 0%..=100%
    2:93: fairness.floors_max is 60; use a part like 20%, 0%..=1000%
    "#);
}

#[test]
fn a_quantum_is_for_deficit_round_robin_alone() {
    let text = "\
identity: { anonymous: allow }
fairness: { policy: fifo, quantum: 5 }
";
    assert_snapshot!(problems(text), @r#"
    2:36: fairness.quantum is for policy: drr; this policy is fifo
    "#);
    let with = |policy: &str| {
        let text = format!("identity: {{ anonymous: allow }}\nfairness: {{ {policy} }}\n");
        parsed(&text).fairness.policy
    };
    let quantum = |units| Policy::Drr {
        quantum: Service::new(units),
    };
    assert_eq!(with("policy: drr, quantum: 5"), quantum(5));
    assert_eq!(with("policy: drr"), quantum(1024));
    assert_eq!(with("policy: fifo"), Policy::Fifo);
    assert_eq!(with(""), Policy::Vtc);
}

#[test]
fn mistakes_about_windows_classes_and_replicas() {
    let text = "\
identity: { anonymous: allow }
models:
  - name: a
    engine: fake
    window: { concurrency: 0, headroom: all, prefill: 1000001, kv: 1 }
    classes: { reserved: 0%, standard: 90, best_effort: 95%, best_effort_min: 96% }
    replicas: []
  - name: b
    engine: fake
    window: { concurrency: 4, headroom: 4 }
    classes: { reserved: 80% }
    replicas: [{ only: reserved }, { only: reserved }]
  - name: c
    engine: fake
    replicas: [{ only: standard }, { url: \"http://127.0.0.1:8000\" }, {}]
  - { name: d, engine: fake, replicas: 2 }
";
    assert_snapshot!(problems(text), @r#"
    5:28: models[0].window.concurrency is 0; use auto or 1..=256
    5:41: models[0].window.headroom is all; use auto or 0..=256
    5:55: models[0].window.prefill is 1000001; use auto or 1..=1000000
    5:68: models[0].window.kv is not a known key; known here: concurrency, headroom, prefill
    6:26: models[0].classes.reserved is 0%; use 1%..=100%
    6:40: models[0].classes.standard is 90; use a part like 20%, 1%..=100%
    6:57: models[0].classes.best_effort is 95%, more than standard 85%
    6:79: models[0].classes.best_effort_min is 96%, more than best_effort 95%
    7:15: models[0].replicas is an empty list; use a list of 1 to 16 replicas, like [{}, {}]
    10:41: models[1].window.headroom is 4, which leaves nothing of concurrency 4 to the others
    11:14: models[1].classes.standard is 85%, more than reserved 80%
    12:15: models[1].replicas leaves nobody to serve the other classes; add {}
    15:24: models[2].replicas[0].only is standard; use reserved
    15:43: models[2].replicas[1].url is for engines in other processes; this one is in ours
    16:40: models[3].replicas is 2; use a list like [a, b]
    "#);
}

#[test]
fn mistakes_about_engines_in_other_processes() {
    let text = "\
identity: { anonymous: allow }
models:
  - name: a
    engine: vllm
    path: m.gguf
    replicas: [{}, { url: here }, { url: \"http://h\" }]
    upstream: { model: a b, key: \"sk-secret with a space\", connect: 1ms, priority: maybe, max_event: 1, http2: 2 }
  - name: b
    engine: llama-server
    replicas: [{ url: \"http://h\", only: reserved }]
    upstream: { cache_salt: on, first_byte: 20m }
    max_sequences: 5000
  - { name: c, engine: fake, upstream: {}, stream: { idle: 5s } }
  - { name: d, engine: openai, replicas: [] }
";
    assert_snapshot!(problems(text), @"
    5:11: models[0].path is not for engine: vllm
    6:16: models[0].replicas[0].url is missing; say where it listens, like http://127.0.0.1:8000, or how it is started by command
    6:27: models[0].replicas[1].url is here; use an address like http://127.0.0.1:8000, https://host or unix:/path
    7:24: models[0].upstream.model is `a b`; use a text of 1 to 256 printable characters
    7:34: models[0].upstream.key is ***; use a text of 1 to 4096 printable characters
    7:69: models[0].upstream.connect is 1ms; use 10ms..=1m
    7:84: models[0].upstream.priority is maybe; use on or off
    7:102: models[0].upstream.max_event is 1; use 64KiB..=256MiB
    7:112: models[0].upstream.http2 is 2; use on or off
    8:5: models[1].max_stream ends each stream before it could be cut by upstream.first_byte
    10:15: models[1].replicas leaves nobody to serve the other classes; add {}
    11:29: models[1].upstream.cache_salt is for vllm and sglang; llama-server has no such member
    12:20: models[1].max_sequences is 5000; use 1..=4096
    13:5: models[2].stream.idle is for engines in other processes; this one is in ours
    13:40: models[2].upstream is for engines in other processes; this one is in ours
    14:42: models[3].replicas is an empty list; use a list of 1 to 256 replicas, like [{}, {}]
    ");
}

#[test]
fn floors_are_checked_against_what_they_may_add_up_to() {
    let tenants = "\
identity: { anonymous: allow }
models: [{ name: m, engine: fake }, { name: n, engine: fake }]
tenants:
  - { name: a, class: reserved, floor: 40% }
  - { name: b, class: reserved, floor: 40%, models: [m] }
  - { name: c, class: reserved, floor: 10%, models: [n] }
  - { name: d, class: reserved }
";
    assert_snapshot!(problems(tenants), @r#"
    4:3: tenants have floors that add up to 80% of m, more than fairness.floors_max 60%; lower some, or raise it
    "#);
    let oversubscribed = format!("{tenants}fairness: {{ floors_max: 80% }}\n");
    assert_eq!(parsed(&oversubscribed).tenants.list[0].floor, 40);
    let text = "\
identity: { anonymous: allow }
tenants:
  - { name: a, floor: 40% }
  - { name: b, class: best_effort, floor: 1% }
  - { name: c, class: reserved, floor: 93% }
  - { name: d, class: reserved, floor: 40 }
";
    assert_snapshot!(problems(text), @r#"
    3:23: tenants[0].floor is for class: reserved; this class is standard
    4:43: tenants[1].floor is for class: reserved; this class is best_effort
    5:40: tenants[2].floor is 93%; use 0%..=92%
    6:40: tenants[3].floor is 40; use a part like 20%, 0%..=92%
    "#);
}

#[test]
fn the_operators_listener_is_for_this_computer_only() {
    let with = |listen: &str| {
        let text = "listen: 127.0.0.1:8080\nidentity: { anonymous: allow }\n";
        format!("{text}admin: {{ listen: {listen} }}\n")
    };
    assert_snapshot!(problems(&with("0.0.0.0:8081")), @r#"
    3:18: admin.listen is 0.0.0.0:8081, which other computers reach; it asks for no key, so use 127.0.0.1 or [::1], or set admin.keys
    "#);
    assert_snapshot!(problems(&with("127.0.0.1:8080")), @r#"
    3:18: admin.listen is 127.0.0.1:8080, where the API listens already
    "#);
    assert_snapshot!(problems(&with("localhost")), @r#"
    3:18: admin.listen is localhost; use an address and a port, like 127.0.0.1:8080 or [::1]:8080
    "#);
    let admin = parsed(&with("\"[::1]:8081\"")).admin;
    assert_eq!(admin.unwrap().listen, "[::1]:8081".parse().unwrap());
}

#[test]
fn a_key_given_twice_is_a_mistake() {
    let text = "identity: { anonymous: allow }\nlisten: 127.0.0.1:1\nlisten: 127.0.0.1:2\n";
    assert_snapshot!(problems(text), @r#"
    3:1: listen is given twice; the first is on line 2
    "#);
}

#[test]
fn text_that_is_not_yaml_is_placed() {
    for text in [
        "server:\n\tdrain: 60s\n",
        "a: [1, 2\nb: 3\n",
        "a: 1\n---\na: 2\n",
        "a: !x 1\n",
    ] {
        let found = parse(text, &env).unwrap_err();
        assert_eq!(found.len(), 1, "{found:?}");
    }
    assert_snapshot!(problems("server:\n\tdrain: 60s\n"), @r#"
    2:2: a tab cannot indent; use spaces
    "#);
    assert_snapshot!(problems("listen: [1, 2\nmodels: 3\n"), @r#"
    2:7: this is not YAML: illegal placement of ':' indicator
    "#);
    assert_snapshot!(problems("listen: x\n---\nlisten: y\n"), @r#"
    2:1: a second document begins; use one document only
    "#);
    assert_snapshot!(problems("listen: !addr x\n"), @r#"
    1:9: a tag stands here; tags have no meaning in this file
    "#);
    assert_snapshot!(problems("- listen"), @r#"
    1:1: the file is a list; use a mapping of keys to values
    "#);
}

#[test]
fn an_empty_file_lets_nobody_in() {
    for text in ["", "# nothing\n", "~", "{}"] {
        assert_eq!(problems(text), problems(""), "{text}");
    }
    assert_snapshot!(problems(""), @r#"
    1:1: identity lets nobody in; give a tenant keys, or set anonymous: allow or trust_tenant_header: true
    "#);
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    assert!(problems(&text).contains("its aliases unfolded"));

    let thousand = ["x, ".repeat(1_000), "*a, ".repeat(1_000)];
    let text = format!("a: &a [{}]\nb: [{}]\n", thousand[0], thousand[1]);
    assert!(problems(&text).contains("its aliases unfolded"));
}

#[test]
fn deep_nesting_is_refused_before_it_fills_the_stack() {
    let found = problems(&"- ".repeat(100_000));
    assert!(
        found.contains("nesting is deeper than 32 levels"),
        "{found}"
    );
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000)] {
        let found = problems(&text);
        assert!(found.contains("recursion limit exceeded"), "{found}");
    }
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..1000 {
        text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert!(problems(&text).contains("nesting is deeper than 32 levels"));
}

#[test]
fn an_unset_variable_is_one_problem_wherever_it_stands() {
    let text = "identity: { anonymous: allow }\nlisten: ${NOWHERE}\nlisten2: [x, '${NOWHERE}']\n";
    assert_snapshot!(problems(text), @r#"
    2:9: listen needs the environment variable NOWHERE, which is not set
    3:10: listen2 is not a known key; did you mean listen?
    3:14: listen2[1] needs the environment variable NOWHERE, which is not set
    "#);
}

#[test]
fn an_empty_variable_is_an_empty_value_and_not_a_missing_key() {
    assert_snapshot!(problems("identity: { anonymous: allow }\nlisten: ${EMPTY}\n"), @r#"
    2:9: listen is ${EMPTY}; use an address and a port, like 127.0.0.1:8080 or [::1]:8080
    "#);
}

#[test]
fn no_message_and_no_config_shows_a_key() {
    let text = "\
listen: ${SECRET}
data_dir: /tmp
identity: { anonymous: deny }
tenants:
  - name: a
    keys:
      - sk-pasted
      - { env: sk-pasted }
      - { sha256: sk-pasted }
      - { sk-pasted: sk-pasted }
      - { env: SECRET, sha256: sk-pasted }
      - { env: BROKEN_KEY }
      - { env: [sk-pasted] }
  - { name: b, keys: sk-pasted }
  - { name: c, keys: [{ env: SECRET }] }
  - { name: d, keys: [{ env: SECRET }] }
";
    let found = parse(text, &env).unwrap_err();
    assert_eq!(found.len(), 11, "{found:#?}");
    assert!(!format!("{found:?}").contains("sk-"), "{found:#?}");
    assert_snapshot!(problems(text), @r#"
    1:9: listen is ${SECRET}; use an address and a port, like 127.0.0.1:8080 or [::1]:8080
    7:9: tenants[0].keys[0] is ***; use a mapping of keys to values
    8:16: tenants[0].keys[1].env is ***; use the name of an environment variable, like QUIET_KEY
    9:19: tenants[0].keys[2].sha256 is ***; use the key's SHA-256, 64 hexadecimal digits
    10:9: tenants[0].keys[3].env is missing; use { env: NAME } or { sha256: … }
    10:22: tenants[0].keys[3].*** is not a known key; known here: env, sha256
    11:32: tenants[0].keys[4].sha256 stands beside env; use one of them
    12:16: tenants[0].keys[5].env is BROKEN_KEY, whose value no caller can send: it has spaces or is not ASCII
    13:16: tenants[0].keys[6].env is a list; use the name of an environment variable, like QUIET_KEY
    14:22: tenants[1].keys is ***; use a list like [a, b]
    16:23: tenants[3].keys[0] is also a key of tenants[2]; a key belongs to one tenant
    "#);

    let config = format!("{:?}", parsed(EXAMPLE));
    assert!(
        config.contains("***") && !config.contains("sk-"),
        "{config}"
    );
}

#[test]
fn a_header_that_nobody_may_send_is_a_mistake() {
    let text = "\
listen: 0.0.0.0:8080
identity: { trust_tenant_header: true, trusted_peers: [] }
";
    assert_snapshot!(problems(text), @r#"
    2:55: identity.trusted_peers is empty, so nobody who reaches 0.0.0.0:8080 may name a tenant; name the peers, or set trust_tenant_header: false
    "#);
}

#[test]
fn an_engine_that_is_started_listens_where_only_this_computer_reaches_it() {
    let hosted = |kind: &str, words: &str| {
        let yaml = format!(
            "identity: {{ anonymous: allow }}\nmodels: [{{ name: m, engine: {kind}, replicas: [{{ \
             command: [{words}] }}] }}]"
        );
        parse(&yaml, &env).map(|config| {
            let replica = &config.models.list()[0].replicas[0];
            replica.command.clone().unwrap().words.join(" ")
        })
    };
    let ends = "--host 127.0.0.1 --port {port}";
    for kind in ["vllm", "sglang", "llama-server"] {
        assert_eq!(hosted(kind, "run, m").unwrap(), format!("run m {ends}"));
    }
    let own = hosted("vllm", "run, --host=localhost, --port, '{port}'").unwrap();
    assert_eq!(own, "run --host=localhost --port {port}");
    for (kind, words, said) in [
        (
            "vllm",
            "run, --host, 0.0.0.0",
            "has --host 0.0.0.0; the engine knows no keys",
        ),
        ("vllm", "run, --port, '8000'", "names no free port"),
        ("openai", "run", "names no free port"),
    ] {
        let found = hosted(kind, words).unwrap_err();
        assert!(found[0].message.contains(said), "{found:?}");
    }
}
