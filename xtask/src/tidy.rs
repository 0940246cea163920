//! Walks the checkout and runs every check over it.
//!
//! A check is a function from file contents to violations, so that its tests need no files.
//! All violations are collected before anything is printed: one run shows all there is to fix.

mod arrows;
mod calls;
mod lexer;
mod licences;
mod names;
mod shared_lints;
mod sizes;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};

use lexer::RustSource;

/// One break of a house rule: where it is, what it is, and what to write instead.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    /// Counted from 1.
    line: usize,
    what: String,
    instead: String,
}

impl Violation {
    fn new(file: &File<'_>, line: usize, what: impl Into<String>, instead: &str) -> Self {
        Self {
            path: file.path.to_owned(),
            line,
            what: what.into(),
            instead: instead.to_owned(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            what,
            instead,
        } = self;
        write!(f, "{path}:{line}: {what}; {instead}")
    }
}

/// A text file, its path relative to the root of the checkout and with forward slashes.
#[derive(Debug, Clone, Copy)]
struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_manifest(&self) -> bool {
        self.path == "Cargo.toml" || self.path.ends_with("/Cargo.toml")
    }
}

/// Runs every check and prints what they found; fails when they found anything.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let root = checkout_root()?;
    let mut violations = licences::check(&cargo_metadata(&root)?)?;
    let mut texts: Vec<(String, String)> = Vec::new();
    for path in listed_files(&root)? {
        let Ok(bytes) = std::fs::read(root.join(&path)) else {
            continue; // Deleted but still in the index, or a link to nowhere.
        };
        violations.extend(sizes::check_bytes(&path, bytes.len()));
        if let Ok(text) = String::from_utf8(bytes) {
            texts.push((path, text));
        }
    }
    let files: Vec<File<'_>> = texts
        .iter()
        .map(|(path, text)| File { path, text })
        .collect();
    violations.extend(files.iter().flat_map(check_file));
    violations.extend(shared_lints::check(&files));
    violations.sort();
    for violation in &violations {
        eprintln!("{violation}");
    }
    if violations.is_empty() {
        eprintln!("tidy: {} files, nothing to say", files.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: {} violations", violations.len());
    Ok(ExitCode::FAILURE)
}

fn check_file(file: &File<'_>) -> Vec<Violation> {
    let mut violations = text::check(file);
    violations.extend(names::check_path(file));
    if file.is_manifest() {
        violations.extend(arrows::check(file));
    }
    if file.is_rust() {
        let source = RustSource::read(*file);
        violations.extend(text::check_rust(&source));
        violations.extend(sizes::check(&source));
        violations.extend(names::check(&source));
        violations.extend(calls::check(&source));
    }
    if file.path.ends_with(".py") {
        violations.extend(names::check_python_tests(file));
    }
    violations
}

pub(crate) fn checkout_root() -> anyhow::Result<PathBuf> {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest_dir
        .parent()
        .context("xtask is not inside a workspace")?;
    Ok(root.to_owned())
}

/// Every file that git tracks or would track.
pub(crate) fn listed_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let arguments = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .context("cannot run git; tidy needs it to list the files")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(listing
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect())
}

fn cargo_metadata(root: &Path) -> anyhow::Result<serde_json::Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_says_where_what_and_what_instead() {
        let file = File {
            path: "a/b.rs",
            text: "",
        };
        let violation = Violation::new(&file, 3, "a tab", "use spaces");
        assert_eq!(violation.to_string(), "a/b.rs:3: a tab; use spaces");
    }

    #[test]
    fn one_file_is_seen_by_every_check_that_concerns_it() {
        let file = File {
            path: "crates/policy/src/utils.rs",
            text: "use std::collections::HashMap; \nfn f() { Instant::now() }\n",
        };
        let whats: Vec<String> = check_file(&file)
            .into_iter()
            .map(|found| found.what)
            .collect();
        assert_eq!(
            whats,
            [
                "trailing whitespace",
                "file or folder name `utils`",
                "no `//!` header",
                "`HashMap`",
                "`Instant::now`",
            ]
        );
    }

    #[test]
    fn the_listing_holds_this_very_file() {
        let files = listed_files(&checkout_root().unwrap()).unwrap();
        assert!(files.iter().any(|path| path == "xtask/src/tidy.rs"));
    }
}
