//! Checks the text itself: headers, line lengths, stray whitespace, notes to self, and paths
//! that exist on one machine only.

use super::lexer::{RustSource, identifiers};
use super::{File, Violation};

const COLUMNS_MAX: usize = 100;
/// Words that mark unfinished work; comments say why something is, not what is missing.
const NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];
/// Roots of absolute paths that exist on somebody's machine.
const MACHINE_ROOTS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
];

/// Reports what no text file may hold.
pub(super) fn check(file: &File<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // A snapshot is the exact output of something, and a seed of a fuzzer its exact input, so it
    // may end a line as that did.
    let is_exact = file.path.ends_with(".snap") || file.path.contains("/corpus/");
    let mut push = |index: usize, what: String, instead: &str| {
        violations.push(Violation::new(file, index + 1, what, instead));
    };
    for (index, line) in file.text.split('\n').enumerate() {
        if !is_exact && line.ends_with([' ', '\t', '\r']) {
            push(index, "trailing whitespace".to_owned(), "remove it");
        }
        for root in MACHINE_ROOTS.iter().filter(|root| holds_root(line, root)) {
            push(
                index,
                format!("a path under `{root}`"),
                "use a path relative to the checkout",
            );
        }
        if !file.is_rust()
            && let Some(note) = note_in(line)
        {
            push(index, format!("`{note}`"), "do it, or file an issue");
        }
    }
    violations
}

/// Reports what no Rust file may hold or lack.
pub(super) fn check_rust(source: &RustSource<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut push = |index: usize, what: String, instead: &str| {
        violations.push(Violation::new(&source.file, index + 1, what, instead));
    };
    if !source.file.text.starts_with("//!") {
        push(
            0,
            "no `//!` header".to_owned(),
            "begin with the file's job and what it must not do",
        );
    }
    for (index, line) in source.file.text.lines().enumerate() {
        let columns = line.chars().count();
        let in_string = source
            .begins_in_string
            .get(index)
            .is_some_and(|inside| *inside);
        // A URL, a raw string or an inline snapshot is another one when it is broken.
        let unbreakable = ["://", "r#\"", "@\""]
            .iter()
            .any(|mark| line.contains(mark));
        if columns > COLUMNS_MAX && !in_string && !unbreakable {
            push(
                index,
                format!("{columns} columns, more than {COLUMNS_MAX}"),
                "break the line",
            );
        }
    }
    for (index, line) in source.comments.iter().enumerate() {
        if let Some(note) = note_in(line) {
            push(index, format!("`{note}`"), "do it, or file an issue");
        }
    }
    violations
}

fn note_in(line: &str) -> Option<&'static str> {
    NOTES
        .into_iter()
        .find(|note| identifiers(line).any(|(_, word)| word == *note))
}

/// Whether an absolute path begins with `root`; the same words later in a path or URL are fine.
fn holds_root(line: &str, root: &str) -> bool {
    line.match_indices(root).any(|(at, _)| {
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        before.is_none_or(|symbol| !symbol.is_alphanumeric() && !"._-}*)>".contains(symbol))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        let file = File { path, text };
        let mut found = check(&file);
        if file.is_rust() {
            found.extend(check_rust(&RustSource::read(file)));
        }
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn a_rust_file_begins_with_its_header() {
        assert!(whats("a.rs", "//! The job.\n").is_empty());
        assert_eq!(whats("a.rs", "use b;\n"), ["no `//!` header"]);
    }

    #[test]
    fn a_line_has_a_hundred_columns_unless_it_is_a_url_or_inside_a_string() {
        let ok = format!("//! {}\n", "ä".repeat(96));
        assert!(whats("a.rs", &ok).is_empty());
        let long = format!("//! {}\n", "a".repeat(97));
        assert_eq!(whats("a.rs", &long), ["101 columns, more than 100"]);
        let url = format!("//! https://example.com/{}\n", "a".repeat(97));
        assert!(whats("a.rs", &url).is_empty());
        let snapshot = format!("//! A.\nconst A: &str = r\"\n{}\n\";\n", "a".repeat(101));
        assert!(whats("a.rs", &snapshot).is_empty());
    }

    #[test]
    fn trailing_whitespace_fails_except_in_a_snapshot() {
        for text in ["a \n", "a\t\n", "a\r\n"] {
            assert_eq!(whats("a.md", text), ["trailing whitespace"]);
            assert!(whats("a.snap", text).is_empty());
        }
        assert!(whats("a.md", "a\n").is_empty());
    }

    #[test]
    fn a_note_to_self_fails_in_a_comment_and_in_other_text_but_not_in_a_string() {
        for note in NOTES {
            assert_eq!(
                whats("a.rs", &format!("//! {note}: later\n")),
                [format!("`{note}`")]
            );
            assert_eq!(whats("a.sh", &format!("# {note}\n")), [format!("`{note}`")]);
            assert!(whats("a.rs", &format!("//! A.\nconst A: &str = \"{note}\";\n")).is_empty());
        }
        assert!(whats("a.sh", "mktemp -d models.XXXXXX\n").is_empty());
    }

    #[test]
    fn a_path_of_one_machine_fails_and_the_same_words_inside_a_path_pass() {
        for root in MACHINE_ROOTS {
            let found = whats("a.md", &format!("see {root}x\n"));
            assert_eq!(found, [format!("a path under `{root}`")]);
            assert_eq!(whats("a.md", &format!("`{root}x`\n")).len(), 1);
            assert!(
                whats(
                    "a.md",
                    &format!("https://example.com{root}x $HOME{root}x\n")
                )
                .is_empty()
            );
        }
    }
}
