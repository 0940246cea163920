//! Checks that each crate depends only on the crates that the architecture lets it see.
//!
//! Reads `Cargo.toml` line by line: every dependency table counts, dev- and build-dependencies
//! too, since a test that reaches upwards couples the crates just the same.

use super::{File, Violation};

/// Who may depend on whom; a crate that is not listed may not exist.
const ARROWS: [(&str, &[&str]); 8] = [
    ("policy", &[]),
    ("wire", &[]),
    ("engine", &["policy"]),
    ("server", &["policy", "wire", "engine"]),
    ("sim", &["policy"]),
    ("bench", &["policy", "wire", "sim"]),
    ("cli", &["server", "sim", "bench"]),
    ("xtask", &[]),
];

/// Reports the dependencies on crates of ours that have no arrow, and crates without a row.
pub(super) fn check(manifest: &File<'_>) -> Vec<Violation> {
    let Some(name) = crate_name(manifest.path) else {
        return Vec::new();
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(of, _)| *of == name) else {
        let what = format!("crate `{name}` has no row in the table of arrows");
        return vec![Violation::new(
            manifest,
            1,
            what,
            "make it a module, or add its row in tidy",
        )];
    };
    let mut violations = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in manifest.text.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[') {
            in_dependencies = table.contains("dependencies");
        }
        if !in_dependencies || line.starts_with('#') {
            continue;
        }
        for other in ours_in(line).filter(|other| !allowed.contains(other)) {
            let what = format!("`{name}` depends on `{other}`");
            violations.push(Violation::new(manifest, index + 1, what, &may_use(allowed)));
        }
    }
    violations
}

/// `crates/x/Cargo.toml` and `xtask/Cargo.toml` are crates; the root manifest is none.
fn crate_name(path: &str) -> Option<&str> {
    let folder = path.strip_suffix("/Cargo.toml")?;
    match folder.strip_prefix("crates/") {
        Some(name) => (!name.contains('/')).then_some(name),
        None => (folder == "xtask").then_some(folder),
    }
}

/// The crates of ours that a line of a dependency table names, by package name or by path.
fn ours_in(line: &str) -> impl Iterator<Item = &'static str> {
    let words = line.split(|symbol: char| !symbol.is_alphanumeric() && !"-_".contains(symbol));
    let words: Vec<String> = words.map(str::to_owned).collect();
    ARROWS.iter().map(|(name, _)| *name).filter(move |name| {
        words.iter().any(|word| match *name {
            "xtask" => word == "xtask",
            "cli" => word == "tollgate",
            other => word.strip_prefix("tollgate-") == Some(other),
        })
    })
}

fn may_use(allowed: &[&str]) -> String {
    match allowed {
        [] => "it may depend on no crate of ours".to_owned(),
        names => format!("it may depend on {} only", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        check(&File { path, text })
            .into_iter()
            .map(|violation| violation.what)
            .collect()
    }

    #[test]
    fn an_allowed_arrow_passes() {
        let text = "[package]\nname = \"tollgate-engine\"\n[dependencies]\n\
            tollgate-policy.workspace = true\nserde.workspace = true\n";
        assert!(whats("crates/engine/Cargo.toml", text).is_empty());
        let text = "[package]\nname = \"tollgate\"\n[[bin]]\nname = \"tollgate\"\n\
            [dependencies]\ntollgate-server.workspace = true\n";
        assert!(whats("crates/cli/Cargo.toml", text).is_empty());
    }

    #[test]
    fn a_forbidden_arrow_fails_in_every_kind_of_table() {
        for text in [
            "[dependencies]\ntollgate-server.workspace = true\n",
            "[dev-dependencies]\ntollgate-server = { path = \"../server\" }\n",
            "[build-dependencies]\nother = { package = \"tollgate-server\", version = \"1\" }\n",
            "[target.'cfg(unix)'.dependencies]\ntollgate-server.workspace = true\n",
            "[dependencies.tollgate-server]\nworkspace = true\n",
        ] {
            let found = whats("crates/policy/Cargo.toml", text);
            assert_eq!(found, ["`policy` depends on `server`"], "{text}");
        }
    }

    #[test]
    fn nothing_may_depend_on_the_binary_or_on_the_house_tools() {
        let text = "[dependencies]\ntollgate = { path = \"../cli\" }\nxtask.workspace = true\n";
        assert_eq!(
            whats("crates/server/Cargo.toml", text),
            ["`server` depends on `cli`", "`server` depends on `xtask`"]
        );
    }

    #[test]
    fn a_crate_without_a_row_fails_and_the_root_manifest_is_no_crate() {
        assert_eq!(whats("crates/extra/Cargo.toml", "").len(), 1);
        let text = "[workspace.dependencies]\ntollgate-policy = { path = \"crates/policy\" }\n";
        assert!(whats("Cargo.toml", text).is_empty());
    }
}
