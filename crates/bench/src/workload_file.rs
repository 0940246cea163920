//! A workload as a YAML file: tenants, when they ask and for how much.

use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use tollgate_sim::workload::{Session, SharedPrefix, TenantLoad};
use tollgate_sim::{Arrivals, Lengths};

use crate::args::{ArgsError, lengths};
use crate::spec::{Identity, Key, TenantSpec};
use crate::yaml;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadFile {
    tenants: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    arrivals: Arrivals,
    prompt: Form,
    output: Form,
    shared: Option<SharedPrefix>,
    session: Option<Session>,
    key: Option<KeyForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyForm {
    /// The variable that holds it.
    env: String,
}

/// Lengths in full, or as the command line has them: `128`, `64..256`, `300~0.8`.
struct Form(Lengths);

impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FormVisitor)
    }
}

struct FormVisitor;

impl<'de> Visitor<'de> for FormVisitor {
    type Value = Form;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tokens: 128, 64..256, 300~0.8 or { lognormal: { … } }")
    }

    fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<Form, E> {
        Ok(Form(Lengths::Constant(tokens)))
    }

    fn visit_i64<E: de::Error>(self, tokens: i64) -> Result<Form, E> {
        let wrong = || E::invalid_value(de::Unexpected::Signed(tokens), &self);
        u64::try_from(tokens)
            .map(|tokens| Form(Lengths::Constant(tokens)))
            .map_err(|_| wrong())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Form, E> {
        lengths(text).map(Form).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Form, A::Error> {
        Lengths::deserialize(MapAccessDeserializer::new(map)).map(Form)
    }
}

/// Reads the tenants of a file; keys come from the environment.
///
/// # Errors
/// The file cannot be read or has another form, or a key is not set.
pub fn read(path: &Path) -> Result<Vec<TenantSpec>, ArgsError> {
    let file: WorkloadFile = yaml::read_file(path)?;
    file.tenants.into_iter().map(tenant).collect()
}

fn tenant(entry: Entry) -> Result<TenantSpec, ArgsError> {
    let identity = match entry.key {
        None => Identity::TenantHeader,
        Some(KeyForm { env }) => {
            let secret = std::env::var(&env)
                .map_err(|_| ArgsError::KeyUnset(format!("{}={env}", entry.name)))?;
            Identity::Key(Key::new(secret))
        }
    };
    Ok(TenantSpec {
        load: TenantLoad {
            name: entry.name,
            arrivals: entry.arrivals,
            prompt: entry.prompt.0,
            output: entry.output.0,
            shared: entry.shared,
            session: entry.session,
        },
        identity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<TenantSpec>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("load.yaml");
        std::fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn every_process_and_every_form_of_length_can_be_written() {
        let tenants = read_text(
            "tenants:
  - { name: a, arrivals: { poisson: { rate: 4 } }, prompt: 128, output: 64..256 }
  - { name: b, arrivals: { gamma: { rate: 4, cv: 2 } }, prompt: 300~0.8, output: { constant: 9 } }
  - name: c
    arrivals: { mmpp: { rates: [1, 9], stay_s: [3, 1] } }
    prompt: { lognormal: { median: 300, sigma: 0.8, min: 1, max: 900 } }
    output: { uniform: { min: 1, max: 9 } }
    shared: { tokens: 100, variants: 4, share: 0.7, family: docs }
    session: { turns: 4, think_s: 2.5 }
    key: { env: PATH }
  - { name: d, arrivals: { log_ar: { rate: 4, rho: 0.9, sigma: 0.2, bin_s: 10 } }, prompt: 1, output: 1 }
  - { name: e, arrivals: { spikes: { base: 0, peak: 9, every_s: 9, lasting_s: 1 } }, prompt: 1, output: 1 }
  - { name: f, arrivals: { decays: { base: 0, peak: 9, every_s: 9, half_s: 1 } }, prompt: 1, output: 1 }
  - { name: g, arrivals: { diurnal: { rate: 4, swing: 0.5, period_s: 60 } }, prompt: 1, output: 1 }
",
        )
        .unwrap();
        assert_eq!(tenants.len(), 7);
        for tenant in &tenants {
            tenant.load.arrivals.check().unwrap();
        }
        assert_eq!(tenants[0].load.prompt, Lengths::Constant(128));
        assert_eq!(
            tenants[0].load.output,
            Lengths::Uniform { min: 64, max: 256 }
        );
        assert_eq!(tenants[1].load.output, Lengths::Constant(9));
        let third = &tenants[2];
        assert!(matches!(third.identity, Identity::Key(_)));
        assert_eq!(third.load.session.unwrap().turns, 4);
        assert_eq!(
            third.load.shared.as_ref().unwrap().family.as_deref(),
            Some("docs")
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let tenant = "{ name: a, arrivals: { poisson: { rate: 4 } }, prompt: 128, output: 1";
        let unknown = read_text(&format!("tenants:\n  - {tenant}, speed: 1 }}\n")).unwrap_err();
        assert!(
            unknown.contains("load.yaml:2:") && unknown.contains("there is no key `speed`"),
            "{unknown}"
        );
        let no_process =
            "tenants:\n  - { name: a, arrivals: { often: 1 }, prompt: 1, output: 1 }\n";
        assert!(read_text(no_process).unwrap_err().contains("often"));
        let no_length = format!("tenants:\n  - {tenant} }}\n").replace("128", "long");
        let said = read_text(&no_length).unwrap_err();
        assert!(said.contains("`long` is no number of tokens"), "{said}");
        let unset =
            format!("tenants:\n  - {tenant}, key: {{ env: TOLLGATE_NO_SUCH_VARIABLE }} }}\n");
        assert!(read_text(&unset).unwrap_err().contains("not set"));
        assert!(
            read_text("tenants: []\nother: 1\n")
                .unwrap_err()
                .contains("other")
        );
    }
}
