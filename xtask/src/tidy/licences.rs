//! Checks that every dependency may be shipped: its licence expression must hold with licences
//! of the allow list alone.
//!
//! Reads what `cargo metadata` prints, the whole lock file for all platforms. A package that
//! states no expression fails: somebody has to read its licence file and decide.

use std::iter::Peekable;

use anyhow::Context;
use serde_json::Value;

use super::{File, Violation};

const ALLOWED: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
    "CC0-1.0",
    "0BSD",
    "BSL-1.0",
];

/// Packages under weak copyleft that have no replacement, by name, each with its licence.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// Reports each package of `cargo metadata`'s output that the allow list does not cover.
pub(super) fn check(metadata: &Value) -> anyhow::Result<Vec<Violation>> {
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("cargo metadata lists no packages")?;
    let mut violations = Vec::new();
    for package in packages {
        let field = |name: &str| package.get(name).and_then(Value::as_str);
        let name = field("name").context("cargo metadata lists a package without a name")?;
        let version = field("version").unwrap_or("?");
        let licence = field("license").unwrap_or("none stated");
        let allows = |id: &str| ALLOWED.contains(&id) || EXCEPTIONS.contains(&(name, id));
        if !satisfied(licence, &allows) {
            let file = File {
                path: "Cargo.lock",
                text: "",
            };
            let what = format!("{name} {version} has licence: {licence}");
            violations.push(Violation::new(
                &file,
                1,
                what,
                "use another crate, or decide in tidy",
            ));
        }
    }
    Ok(violations)
}

/// Whether a licence expression holds with allowed licences; a malformed one does not.
fn satisfied(expression: &str, allows: &impl Fn(&str) -> bool) -> bool {
    // Before SPDX expressions, a slash meant OR.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let holds = any_of(&mut words, allows);
    holds == Some(true) && words.next().is_none()
}

/// `a OR b`; `None` where the expression is malformed.
fn any_of<'a>(
    words: &mut Peekable<impl Iterator<Item = &'a str>>,
    allows: &impl Fn(&str) -> bool,
) -> Option<bool> {
    let mut holds = all_of(words, allows)?;
    while words.next_if_eq(&"OR").is_some() {
        holds |= all_of(words, allows)?;
    }
    Some(holds)
}

/// `a AND b`, which binds closer than OR.
fn all_of<'a>(
    words: &mut Peekable<impl Iterator<Item = &'a str>>,
    allows: &impl Fn(&str) -> bool,
) -> Option<bool> {
    let mut holds = one(words, allows)?;
    while words.next_if_eq(&"AND").is_some() {
        holds &= one(words, allows)?;
    }
    Some(holds)
}

/// A licence, perhaps WITH an exception, or an expression in parentheses.
fn one<'a>(
    words: &mut Peekable<impl Iterator<Item = &'a str>>,
    allows: &impl Fn(&str) -> bool,
) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let holds = any_of(words, allows)?;
        return words.next_if_eq(&")").map(|_| holds);
    }
    if words.next_if_eq(&"WITH").is_some() {
        let exception = words.next()?;
        // An exception only adds permissions, so the licence alone is enough.
        return Some(allows(word) || allows(&format!("{word} WITH {exception}")));
    }
    Some(allows(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(expression: &str) -> bool {
        satisfied(expression, &|id| ALLOWED.contains(&id))
    }

    #[test]
    fn one_allowed_branch_of_an_or_is_enough() {
        for expression in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "Unlicense/MIT",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(holds(expression), "{expression}");
        }
    }

    #[test]
    fn every_branch_of_an_and_is_needed_and_it_binds_closer_than_or() {
        assert!(holds("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!holds("MIT AND GPL-3.0"));
        assert!(!holds("(MIT OR Apache-2.0) AND OpenSSL"));
        assert!(holds("MIT OR Apache-2.0 AND GPL-3.0"));
    }

    #[test]
    fn copyleft_nothing_and_nonsense_fail() {
        for expression in [
            "MPL-2.0",
            "GPL-3.0-only",
            "",
            "MIT OR",
            "(MIT",
            "MIT MIT",
            "none stated",
        ] {
            assert!(!holds(expression), "{expression}");
        }
    }

    #[test]
    fn each_package_that_may_not_be_shipped_is_named() {
        let metadata = json!({ "packages": [
            { "name": "good", "version": "1.0.0", "license": "MIT" },
            { "name": "bad", "version": "2.0.0", "license": "AGPL-3.0" },
            { "name": "mute", "version": "3.0.0", "license": null },
        ] });
        let whats: Vec<_> = check(&metadata)
            .unwrap()
            .into_iter()
            .map(|violation| violation.what)
            .collect();
        assert_eq!(
            whats,
            [
                "bad 2.0.0 has licence: AGPL-3.0",
                "mute 3.0.0 has licence: none stated"
            ]
        );
        assert!(check(&json!({})).is_err());
    }
}
