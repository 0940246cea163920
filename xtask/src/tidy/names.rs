//! Checks names: words that say nothing about what a thing does, and tests named after codes.
//!
//! Only definitions and file names are looked at, so a foreign crate or type with such a name
//! can be used. A test name is a sentence: a number in a list elsewhere tells a reader nothing.

use super::lexer::{RustSource, identifiers};
use super::{File, Violation};

/// Words that name no job, wherever they stand in a name.
const EMPTY_WORDS: [&str; 7] = [
    "utils",
    "util",
    "misc",
    "helper",
    "helpers",
    "manager",
    "processor",
];

/// Says nothing as a whole name, but something inside one: a common prefix.
const EMPTY_NAME: &str = "common";

/// Words that begin a code such as `issue_12` or `b7`.
const CODE_WORDS: [&str; 9] = ["issue", "bug", "case", "row", "ticket", "gh", "b", "d", "e"];

const SAY_THE_JOB: &str = "name it after what it decides or does";
const SAY_THE_RULE: &str = "name the test as the sentence that it checks";

/// Reports file and folder names made of empty words.
pub(super) fn check_path(file: &File<'_>) -> Vec<Violation> {
    let parts = file
        .path
        .split('/')
        .map(|part| part.split('.').next().unwrap_or(part));
    let empty = parts.filter(|part| !part.is_empty() && is_empty_name(part));
    empty
        .map(|part| {
            Violation::new(
                file,
                1,
                format!("file or folder name `{part}`"),
                SAY_THE_JOB,
            )
        })
        .collect()
}

/// Reports empty words in the names that a Rust file defines, and tests named after codes.
pub(super) fn check(source: &RustSource<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        let in_test = source.is_test.get(index).is_some_and(|is_test| *is_test);
        for (keyword, name) in definitions(line) {
            let is_type = matches!(keyword, "struct" | "enum" | "trait" | "union");
            if is_empty_name(name) || (is_type && name.ends_with("Service") && name != "Service") {
                let what = format!("the name `{name}`");
                violations.push(Violation::new(&source.file, index + 1, what, SAY_THE_JOB));
            }
            if keyword == "fn" && in_test && is_code(name) {
                let what = format!("the test name `{name}`");
                violations.push(Violation::new(&source.file, index + 1, what, SAY_THE_RULE));
            }
        }
    }
    violations
}

/// Reports Python tests named after codes.
pub(super) fn check_python_tests(file: &File<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("def ") else {
            continue;
        };
        let name = rest.split('(').next().unwrap_or(rest);
        if is_code(name) {
            let what = format!("the test name `{name}`");
            violations.push(Violation::new(file, index + 1, what, SAY_THE_RULE));
        }
    }
    violations
}

/// The names that a line defines, each with the keyword before it.
fn definitions(line: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = identifiers(line).map(|(_, word)| word).collect();
    let keywords = ["mod", "struct", "enum", "trait", "union", "fn"];
    let pairs = words.windows(2).filter_map(|pair| match pair {
        [keyword, name] if keywords.contains(keyword) => Some((*keyword, *name)),
        _ => None,
    });
    pairs.collect()
}

fn is_empty_name(name: &str) -> bool {
    let words = words_of(name);
    let holds = |list: &[&str], word: &String| list.contains(&word.as_str());
    words.iter().any(|word| holds(&EMPTY_WORDS, word))
        || matches!(words.as_slice(), [only] if only == EMPTY_NAME)
}

/// The lowercase words of a name in snake, kebab or camel case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for symbol in name.chars() {
        let begins = symbol.is_uppercase() && after_lower;
        if begins || symbol == '_' || symbol == '-' {
            words.push(String::new());
        }
        if symbol.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(symbol.to_lowercase());
        }
        after_lower = symbol.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a test name begins like `issue_12`, `test_b7_…` or `d3`.
fn is_code(name: &str) -> bool {
    let name = name.strip_prefix("test_").unwrap_or(name);
    let letters = name.trim_start_matches(char::is_alphabetic);
    let word = name.strip_suffix(letters).unwrap_or(name);
    let rest = letters.strip_prefix('_').unwrap_or(letters);
    let after = rest.trim_start_matches(|symbol: char| symbol.is_ascii_digit());
    let has_number = after.len() < rest.len();
    CODE_WORDS.contains(&word) && has_number && (after.is_empty() || after.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        let file = File { path, text };
        let mut found = check_path(&file);
        found.extend(check(&RustSource::read(file)));
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn names_that_say_nothing_fail() {
        let text = "mod utils;\nstruct PoolManager;\nfn string_helper() {}\nmod common;\n";
        assert_eq!(
            whats("src/a.rs", text),
            [
                "the name `utils`",
                "the name `PoolManager`",
                "the name `string_helper`",
                "the name `common`"
            ]
        );
        assert_eq!(whats("src/utils/a.rs", ""), ["file or folder name `utils`"]);
        assert_eq!(whats("src/misc.rs", ""), ["file or folder name `misc`"]);
    }

    #[test]
    fn our_own_types_do_not_end_in_service_but_foreign_ones_may_be_implemented() {
        assert_eq!(
            whats("src/a.rs", "struct ChatService;\n"),
            ["the name `ChatService`"]
        );
        assert!(whats("src/a.rs", "impl Service<Request> for Routes {}\n").is_empty());
    }

    #[test]
    fn names_that_say_something_pass() {
        let text = "use hyper_util::rt;\nfn longest_common_prefix() {}\nstruct Manages;\n";
        assert!(whats("src/fair.rs", text).is_empty());
    }

    #[test]
    fn a_test_named_after_a_code_fails_and_a_sentence_passes() {
        for name in ["issue_12", "b12_leak", "d3", "test_e5_abort", "issue1361"] {
            let text = format!("fn {name}() {{}}\n");
            assert_eq!(
                whats("a/tests/b.rs", &text),
                [format!("the test name `{name}`")]
            );
            assert!(
                whats("a/src/b.rs", &text).is_empty(),
                "{name} is no test there"
            );
        }
        for name in [
            "e2e_streams",
            "a_bucket_of_3_tokens",
            "debt_is_repaid",
            "base64",
        ] {
            assert!(whats("a/tests/b.rs", &format!("fn {name}() {{}}\n")).is_empty());
        }
    }

    #[test]
    fn python_tests_are_named_as_sentences_too() {
        let file = File {
            path: "a.py",
            text: "def test_b12(x):\ndef test_a_stop_holds(x):\n",
        };
        let found = check_python_tests(&file);
        assert_eq!(found.len(), 1);
        assert_eq!(found.first().map(|violation| violation.line), Some(1));
    }
}
