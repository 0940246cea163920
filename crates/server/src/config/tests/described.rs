//! The reference says what the decoder does.

use super::super::reference::{self, Unset};
use super::*;

/// A configuration of nothing but `value` at `path`, and what the schema needs beside it.
fn only(path: &str, value: &str) -> String {
    let mut text = value.to_owned();
    let parts: Vec<&str> = path.split('.').collect();
    for (depth, part) in parts.iter().enumerate().rev() {
        let remote = "name: m, engine: vllm, replicas: [{url: \"http://h\"}], ";
        let beside = match (&parts[..depth], *part) {
            (["models[]"], "upstream") => remote,
            (["models[]"], "load") => "name: m, engine: vllm, replicas: [{command: [vllm]}], ",
            (["models[]"], "replicas[]") if parts.len() > 2 && parts[2] != "only" => {
                "name: m, engine: vllm, "
            }
            (["models[]", "replicas[]"], "device" | "start_timeout") => "command: [vllm], ",
            (["models[]"], "stream") if parts.ends_with(&["idle"]) => remote,
            (["models[]"], "name") => "engine: fake, ",
            (["models[]"], "path" | "threads" | "pooling") => "name: m, engine: embedded, ",
            (["models[]"], "engine") => "name: m, path: m, ",
            (["models[]"], _) => "name: m, engine: fake, ",
            (["models[]", "slo", "classes[]"], "class") => "",
            (["models[]", "slo", "classes[]"], _) => "class: standard, ",
            (["tenants[]"], "name") => "",
            (["tenants[]", "model_limits[]"], "model") => "limits: {rpm: 1}, ",
            (["tenants[]"], "floor") => "name: t, class: reserved, ",
            (["fairness"], "quantum") => "policy: drr, ",
            (["admin"], "keys[]") => "listen: 127.0.0.1:1, ",
            (["prices[]"], "model") => "",
            (["prices[]"], _) => "model: m, ",
            (["tenants[]", "budget"], "usd") => "per: day, ",
            (["tenants[]", "budget"], "per") => "usd: 1, ",
            (["tenants[]", "budget"], _) => "usd: 1, per: day, ",
            (["tenants[]", "model_limits[]"], _) => "model: m, ",
            (["tenants[]"], _) => "name: t, ",
            ([.., "limits"], "burst") => "rpm: 1, ",
            _ => "",
        };
        text = match part.strip_suffix("[]") {
            Some(list) => format!("{{{beside}{list}: [{text}]}}"),
            None => format!("{{{beside}{part}: {text}}}"),
        };
    }
    text
}

/// What is said of the value at `path` when it is `value`.
fn said_of(path: &str, value: &str) -> Vec<String> {
    let place = path.replace("[]", "[0]");
    let found = parse(&only(path, value), &env).err().unwrap_or_default();
    let said = found.into_iter().filter(|problem| problem.path == place);
    said.map(|problem| problem.message).collect()
}

fn all_keys() -> impl Iterator<Item = &'static reference::Key> {
    reference::SECTIONS.iter().flat_map(|section| section.keys)
}

#[test]
fn each_key_that_is_read_is_documented_and_the_reverse() {
    let problems = Problems::default();
    read(EXAMPLE, &env, &problems).unwrap();
    let read: Vec<String> = problems
        .known
        .borrow()
        .iter()
        .map(|path| without_indices(path))
        .collect();

    let documented: Vec<&str> = all_keys().map(|key| key.path).collect();
    for path in &documented {
        assert!(
            read.iter().any(|key| key == path),
            "{path} is documented but not read"
        );
    }
    for path in &read {
        let inside = [format!("{path}."), format!("{path}[]")];
        let described = |key: &&str| {
            *key == path.as_str() || inside.iter().any(|inside| key.starts_with(inside))
        };
        assert!(
            documented.iter().any(described),
            "{path} is read but not documented"
        );
    }
}

/// `tenants[1].name` as `tenants[].name`.
fn without_indices(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    parts.collect::<Vec<_>>().join("[")
}

#[test]
fn a_documented_default_is_the_one_that_holds() {
    for key in all_keys() {
        let Unset::Is(default) = key.unset else {
            continue;
        };
        let given = read(&only(key.path, default), &env, &Problems::default()).unwrap();
        let absent = read(&only(key.path, ""), &env, &Problems::default()).unwrap();
        assert_eq!(given, absent, "{}", key.path);
        assert_eq!(said_of(key.path, default), [""; 0], "{}", key.path);
    }
}

#[test]
fn a_key_documented_as_needed_is_missed() {
    for key in all_keys() {
        let said = said_of(key.path, "")
            .iter()
            .any(|said| said.starts_with("is missing"));
        let needed = match key.unset {
            Unset::Refused => true,
            Unset::Means(words) => words.starts_with("refused"),
            Unset::Is(_) => false,
        };
        // A model's path is missed when the engine is the embedded one; a key's two entries are
        // each other's.
        let either = ["tenants[].keys[].env", "admin.keys[].env"].contains(&key.path);
        assert_eq!(said, needed || either, "{}", key.path);
    }
}

#[test]
fn a_documented_bound_is_the_one_that_is_checked() {
    let mut checked = 0;
    for key in all_keys() {
        let Some((kind, range)) = key.takes.split_once(", ") else {
            continue;
        };
        let (low, high) = range.split_once("..=").unwrap();
        let (below, above) = match kind {
            "duration" => {
                let micros = |text| i128::from(quantity::duration(text).unwrap().get());
                (
                    format!("{}us", micros(low) - 1),
                    format!("{}us", micros(high) + 1),
                )
            }
            "size" => {
                let bytes = |text| i128::from(quantity::size(text).unwrap());
                ((bytes(low) - 1).to_string(), (bytes(high) + 1).to_string())
            }
            "percent" => {
                let part = |text| i32::from(quantity::percent(text).unwrap());
                (
                    format!("{}%", part(low) - 1),
                    format!("{}%", part(high) + 1),
                )
            }
            "decimal" => ("0".to_owned(), format!("{high}.001")),
            _ => {
                let number = |text: &str| text.parse::<i128>().unwrap();
                (
                    (number(low) - 1).to_string(),
                    (number(high) + 1).to_string(),
                )
            }
        };
        for refused in [below, above] {
            let said = said_of(key.path, &refused);
            assert!(
                said.iter().any(|said| said.contains("; use ")),
                "{} {refused}",
                key.path
            );
        }
        for accepted in [low, high] {
            let said = said_of(key.path, accepted);
            assert!(
                !said.iter().any(|said| said.contains("; use ")),
                "{} {said:?}",
                key.path
            );
        }
        checked += 1;
    }
    assert!(
        checked > 40,
        "the table speaks of bounds in another way: {checked}"
    );
}

#[test]
fn the_reference_on_disk_is_the_one_in_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    let page = reference::markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let on_disk = std::fs::read_to_string(&path).unwrap();
    assert!(
        on_disk == page,
        "docs/config.md is stale; run this test with UPDATE_DOCS=1"
    );
}
