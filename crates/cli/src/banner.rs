//! The first lines a person sees: what is served, to whom, and how to try it.

use std::fmt::Write as _;

use tollgate_server::config::{Anonymous, Config};
use tollgate_server::{ModelFacts, Server};

use crate::check::counted;
use crate::terminal;

/// Prints them, once the server takes work.
pub(crate) fn print(server: &Server, config: &Config, open: bool) {
    terminal::answer(&text(
        &server.address().to_string(),
        server.models(),
        config,
        open,
    ));
}

fn text(address: &str, models: &[ModelFacts], config: &Config, open: bool) -> String {
    let mut out = format!(
        "\nTollgate {} on http://{address}\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for model in models {
        let _ = writeln!(out, "  model    {} ({})", model.name, model.description);
        let _ = writeln!(out, "           {}", bounds(model));
    }
    let _ = writeln!(out, "  callers  {}", callers(config, open));
    let _ = writeln!(
        out,
        "  usage    {}",
        config.data_dir.join("journal").display()
    );
    let _ = writeln!(out, "  metrics  http://{address}/metrics");
    if let Some(model) = models.first() {
        let anyone = open || config.tenants.keys.is_empty();
        let _ = write!(out, "{}", examples(address, &model.name, open, anyone));
    }
    out.push_str("\nCtrl-C ends it, once running answers have finished.");
    out
}

/// What a model can take, as far as it is known here.
fn bounds(model: &ModelFacts) -> String {
    let context = match model.context {
        Some(context) => format!("context {context} tokens a request; "),
        None => String::new(),
    };
    let pool = match (model.kv_tokens, model.kv_bytes) {
        (Some(tokens), Some(bytes)) => format!("KV pool {tokens} tokens, {} MiB; ", mib(bytes)),
        _ => format!("{}; ", counted(model.replicas, "replica")),
    };
    format!("{context}{pool}up to {} at once", model.sequences)
}

fn callers(config: &Config, open: bool) -> String {
    if open {
        return "anyone on this computer, with any API key or none; the X-Tenant-ID header says \
                who"
        .to_owned();
    }
    let anonymous = config.identity.anonymous == Anonymous::Allow;
    let mut callers = match (config.tenants.keys.len(), anonymous) {
        (0, true) => "anyone who can connect, with any API key or none".to_owned(),
        (0, false) => "nobody by key".to_owned(),
        (1, _) => "whoever has the API key".to_owned(),
        (keys, _) => format!("whoever has one of {keys} API keys"),
    };
    if anonymous && !config.tenants.keys.is_empty() {
        callers.push_str("; without one, as the tenant anonymous");
    }
    if config.identity.trust_tenant_header {
        callers.push_str("; trusted peers may name a tenant in X-Tenant-ID");
    }
    callers
}

/// Two requests to paste. `open` callers may name a tenant.
fn examples(address: &str, model: &str, open: bool, anyone: bool) -> String {
    let (key, with) = if anyone {
        ("any", "")
    } else {
        ("YOUR_KEY", ", with a key of yours in place of YOUR_KEY")
    };
    let tenant = if open {
        " \\\n    -H 'X-Tenant-ID: alice'"
    } else {
        ""
    };
    format!(
        r#"
Try it{with}:

  curl -N http://{address}/v1/chat/completions -H 'Content-Type: application/json'{tenant} \
    -H "Authorization: Bearer {key}" \
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'

  # pip install openai
  from openai import OpenAI
  client = OpenAI(base_url="http://{address}/v1", api_key="{key}")
  for chunk in client.chat.completions.create(
      model="{model}", stream=True,
      messages=[{{"role": "user", "content": "Why is the sky blue?"}}]):
      print(chunk.choices[0].delta.content or "", end="", flush=True)
"#
    )
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
