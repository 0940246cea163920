//! What a whole file means. Mistakes, the reference and hostile text have files of their own.

mod any_text;
mod described;
mod mistakes;

use std::path::{Path, PathBuf};

use tollgate_policy::fair::Policy;
use tollgate_policy::ids::{ModelId, TenantId};
use tollgate_policy::slo::Mode;
use tollgate_policy::tenant::{Allowed, Class};
use tollgate_policy::units::{KvByteMicros, KvBytes, Micros, Service, Tokens};
use tollgate_policy::window::{Bounds, Knob};

use super::*;

const EXAMPLE: &str = include_str!("../../../../docs/tollgate.example.yaml");

/// The environment of these tests.
fn env(name: &str) -> Option<String> {
    let value = match name {
        "QUIET_KEY" => "sk-quiet",
        "SAME_KEY" => "sk-quiet",
        "EMPTY" => "",
        "BROKEN_KEY" => "sk-secret with a space",
        "SECRET" => "sk-secret",
        "RPM" => "600",
        "PORT" => "9999",
        _ => return None,
    };
    Some(value.to_owned())
}

fn parsed(text: &str) -> Config {
    parse(text, &env).unwrap()
}

/// The problems of `text`, each on a line.
fn problems(text: &str) -> String {
    let found = parse(text, &env).unwrap_err();
    found.iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn what_is_said_of_engines_elsewhere_and_threads_is_taken() {
    let text = "\
server: { threads: 3 }
identity: { anonymous: allow }
models:
  - name: a
    engine: vllm
    replicas: [{ url: \"http://h\" }]
    upstream: { http2: on, kv_per_token: 64KiB }
";
    let config = parsed(text);
    assert_eq!(
        config.server.threads.map(std::num::NonZeroUsize::get),
        Some(3)
    );
    let EngineConfig::Remote(remote) = &config.models.list()[0].engine else {
        panic!("an engine elsewhere");
    };
    assert_eq!(remote.speaks, Speaks::Http2);
    assert_eq!(remote.kv_per_token, KvBytes::new(64 << 10));
}

#[test]
fn the_example_means_what_it_says() {
    let config = parsed(EXAMPLE);
    let model = &config.models.list()[0];
    assert_eq!(config.models.find("gpt-4o-mini"), Some(ModelId::new(0)));
    assert_eq!(model.context, Some(Tokens::new(8192)));
    assert_eq!(model.queue.max_wait, Some(Micros::from_secs(30)));
    let path = PathBuf::from("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert_eq!(
        model.engine,
        EngineConfig::Embedded {
            path,
            threads: None,
            pooling: None,
        }
    );
    assert_eq!(
        config.models.list()[1].engine,
        EngineConfig::Fake(FakeConfig::default())
    );

    let quiet = &config.tenants.list[0];
    assert_eq!(
        quiet.models,
        Allowed::Only(vec![ModelId::new(0), ModelId::new(1)])
    );
    assert_eq!(quiet.limits.requests.unwrap().burst.get(), 10);
    let tokens = quiet.limits.tokens.unwrap();
    assert_eq!(
        (tokens.per_minute.get(), tokens.burst.get()),
        (200_000, 200_000)
    );
    assert_eq!(quiet.limits.kv, Some(KvByteMicros::from_gib_secs(40)));
    assert_eq!(
        config.tenants.keys[&KeyHash::of(b"sk-quiet")],
        TenantId::new(0)
    );
    assert_eq!(
        config.tenants.keys[&KeyHash::of(b"sk-batch")],
        TenantId::new(2)
    );
    let gold = &config.tenants.list[1];
    assert_eq!((gold.class, gold.floor), (Class::Reserved, 20));
    assert_eq!(config.tenants.list[2].class, Class::BestEffort);
    assert_eq!(config.tenants.anonymous, None);
    let only = config.models.list()[1].replicas.iter().map(|one| one.only);
    assert_eq!(only.collect::<Vec<_>>(), [None, Some(Class::Reserved)]);
    assert_eq!(model.window, Bounds::default());
    let terms = model.target.slo.terms(Class::Standard).unwrap();
    assert_eq!(
        (terms.ttft, terms.mode),
        (Some(Micros::from_secs(2)), Mode::Goodput)
    );
    let weaker = model.target.slo.terms(Class::BestEffort).unwrap();
    assert_eq!(
        (weaker.ttft, weaker.alpha.get()),
        (Some(Micros::from_secs(10)), 200)
    );
    assert_eq!(config.admission, AdmissionConfig::default());
    let admin = config.admin.unwrap();
    assert_eq!(admin.listen, "127.0.0.1:8081".parse().unwrap());
    assert_eq!(admin.keys[&KeyHash::of(b"sk-ops")], "ops");
    let quiet = &config.tenants.budgets[&TenantId::new(0)];
    assert_eq!(
        (quiet.limit.get(), quiet.zone.name()),
        (100_000_000_000, "Europe/Berlin")
    );
    assert_eq!(config.prices.len(), 2);
    assert_eq!(config.prices[0].price.cached.get(), 37_500_000);
    assert_eq!(config.store, StoreConfig::default());
    assert_eq!(config.fairness, Fairness::default());
}

#[test]
fn a_window_is_what_the_file_says_and_finds_the_rest_by_itself() {
    let text = "\
identity: { anonymous: allow }
models:
  - name: m
    engine: fake
    window: { concurrency: 8, prefill: 128 }
    classes: { standard: 70%, best_effort_min: 0% }
    slo: { tpot: 50ms }
tenants: [{ name: t, limits: { kv_gib_seconds: 0.125 } }]
";
    let config = parsed(text);
    let model = &config.models.list()[0];
    assert_eq!(model.window.concurrency, Knob::Fixed(8.try_into().unwrap()));
    assert_eq!(model.window.headroom, Knob::Auto);
    assert_eq!(model.window.prefill, Knob::Fixed(Tokens::new(128)));
    let thresholds = model.window.thresholds;
    assert_eq!((thresholds.standard, thresholds.best_effort_min), (70, 0));
    assert_eq!((thresholds.reserved, thresholds.best_effort), (92, 60));
    assert_eq!(model.target.tpot, Micros::from_millis(50));
    let terms = model.target.slo.terms(Class::Reserved).unwrap();
    assert_eq!(
        (terms.ttft, terms.tpot),
        (None, Some(Micros::from_millis(50)))
    );
    let eighth = KvByteMicros::new((1 << 30) * 125_000);
    assert_eq!(config.tenants.list[0].limits.kv, Some(eighth));
}

#[test]
fn an_alias_repeats_a_value() {
    let text = "\
identity: { anonymous: allow }
tenants:
  - { name: a, limits: &few { rpm: 5 } }
  - { name: b, limits: *few }
";
    let config = parsed(text);
    assert_eq!(config.tenants.list[0].limits, config.tenants.list[1].limits);
    assert!(problems("a: &a [*a]").contains("inside the value it repeats"));
}

#[test]
fn a_value_may_come_from_the_environment() {
    let text = "
identity: { anonymous: allow }
listen: 127.0.0.1:${PORT}
data_dir: ./a$$b
default_tenant: { limits: { rpm: \"${RPM}\" } }
";
    let config = parsed(text);
    assert_eq!(config.listen.port(), 9999);
    assert_eq!(config.data_dir, Path::new("./a$b"));
    assert_eq!(
        config
            .tenants
            .template
            .limits
            .requests
            .unwrap()
            .per_minute
            .get(),
        600
    );
}

#[test]
fn a_tenant_header_is_believed_only_from_a_trusted_peer() {
    let text = "identity: { trust_tenant_header: true, trusted_peers: [10.0.0.0/8] }";
    let identity = parsed(text).identity;
    assert!(identity.trusts("10.1.2.3".parse().unwrap()));
    assert!(!identity.trusts("127.0.0.1".parse().unwrap()));

    let identity = parsed("identity: { anonymous: allow }").identity;
    assert!(
        !identity.trusts("127.0.0.1".parse().unwrap()),
        "nobody is trusted by default"
    );
    let identity = parsed("identity: { trust_tenant_header: true }").identity;
    assert!(identity.trusts("::1".parse().unwrap()));
    assert!(!identity.trusts("10.0.0.1".parse().unwrap()));
}

#[test]
fn callers_without_a_key_are_like_the_default_tenant_unless_described() {
    let text = "identity: { anonymous: allow }\ndefault_tenant: { limits: { rpm: 7 } }\n";
    let tenants = parsed(text).tenants;
    let id = tenants.anonymous.unwrap();
    assert_eq!((id, tenants.list.len()), (TenantId::new(0), 1));
    assert_eq!(tenants.list[0].name, ANONYMOUS);
    assert_eq!(tenants.list[0].limits, tenants.template.limits);

    let text = format!("{text}tenants: [{{ name: a }}, {{ name: anonymous, weight: 3 }}]\n");
    let tenants = parsed(&text).tenants;
    assert_eq!(
        (tenants.anonymous, tenants.list.len()),
        (Some(TenantId::new(1)), 2)
    );
    assert_eq!(tenants.list[1].weight.get(), 3);
}

#[test]
fn a_name_of_digits_and_a_name_called_no_are_names() {
    let text = "\
identity: { anonymous: allow }
models: [{ name: 1234, engine: fake, aliases: [no, 1e5] }]
tenants: [{ name: true, models: [1e5] }]
";
    let config = parsed(text);
    assert_eq!(config.models.find("1234"), Some(ModelId::new(0)));
    assert_eq!(
        config.tenants.list[0].models,
        Allowed::Only(vec![ModelId::new(0)])
    );
}

#[test]
fn the_body_limit_that_is_configured_is_the_one_that_counts() {
    let text = "identity: { anonymous: allow }\nserver: { max_body: 64MiB }\n";
    assert_eq!(parsed(text).server.max_body, 64 << 20);
}

#[test]
fn without_a_file_everyone_on_this_computer_may_call() {
    let model = ModelConfig::from_file(Path::new("models/Smol LM2.Q4_1.gguf"));
    let config = Config::for_laptop(model);
    assert!(config.listen.ip().is_loopback());
    assert_eq!(config.models.find("Smol-LM2.Q4_1"), Some(ModelId::new(0)));
    assert_eq!(config.tenants.anonymous, Some(TenantId::new(0)));
    assert!(config.identity.trusts("127.0.0.1".parse().unwrap()));
    assert!(!config.identity.trusts("192.168.0.1".parse().unwrap()));

    let text = "
identity: { anonymous: allow, trust_tenant_header: true }
default_tenant: { class: standard }
models: [{ name: Smol-LM2.Q4_1, path: models/Smol LM2.Q4_1.gguf }]
";
    assert_eq!(
        config,
        parsed(text),
        "a file that says the same means the same"
    );
}
