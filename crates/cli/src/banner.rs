//! The first lines a person sees: what is served, to whom, and how to try it.

use std::fmt::Write as _;

use tollgate_server::config::{Anonymous, Config};
use tollgate_server::{ModelFacts, Server};

/// Prints them, once the server takes work.
pub(crate) fn print(server: &Server, config: &Config, open: bool) {
    println!(
        "{}",
        text(&server.address().to_string(), server.models(), config, open)
    );
}

fn text(address: &str, models: &[ModelFacts], config: &Config, open: bool) -> String {
    let mut out = format!(
        "\nTollgate {} on http://{address}\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for model in models {
        let gib = mib(model.kv_bytes);
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "  model    {} ({})\n           context {} tokens a request; KV pool {} tokens, {gib} \
             MiB; up to {} at once",
            model.name, model.description, model.context, model.kv_tokens, model.sequences
        );
    }
    let _ = writeln!(out, "  callers  {}", callers(config, open));
    let _ = writeln!(
        out,
        "  usage    {}",
        config.data_dir.join("usage.jsonl").display()
    );
    let _ = writeln!(out, "  metrics  http://{address}/metrics");
    if let Some(model) = models.first() {
        let _ = write!(out, "{}", examples(address, &model.name, open));
    }
    out
}

fn callers(config: &Config, open: bool) -> String {
    if open {
        return "anyone on this computer, with any API key or none; the X-Tenant-ID header says \
                who"
        .to_owned();
    }
    let keys = config.tenants.keys.len();
    let anonymous = match config.identity.anonymous {
        Anonymous::Allow => ", and anyone without one",
        Anonymous::Deny => "",
    };
    let header = if config.identity.trust_tenant_header {
        "; trusted peers may name a tenant in X-Tenant-ID"
    } else {
        ""
    };
    format!("whoever has one of {keys} keys{anonymous}{header}")
}

fn examples(address: &str, model: &str, open: bool) -> String {
    let (key, tenant) = if open {
        ("any", " \\\n    -H 'X-Tenant-ID: alice'")
    } else {
        ("$YOUR_KEY", "")
    };
    format!(
        r#"
Try it:

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
