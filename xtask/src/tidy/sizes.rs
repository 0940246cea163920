//! Checks sizes: bytes of a file, lines of a Rust file, lines of a function.
//!
//! Clippy counts only the lines with code in a function. This check counts all lines between the
//! braces, comments too: what has to be scrolled past is what has to be read.

use super::lexer::{Position, RustSource, identifiers};
use super::{File, Violation};

/// No file of text grows so big; data of that size is generated or fetched.
const FILE_BYTES_MAX: usize = 512 * 1024;
/// Aim for 500.
const FILE_LINES_MAX: usize = 800;
/// Most functions stay under 40.
const FUNCTION_LINES_MAX: usize = 70;

/// Reports a file that is too big to be source.
pub(super) fn check_bytes(path: &str, bytes: usize) -> Option<Violation> {
    let what = format!("{bytes} bytes, more than {FILE_BYTES_MAX}");
    let file = File { path, text: "" };
    (bytes > FILE_BYTES_MAX)
        .then(|| Violation::new(&file, 1, what, "generate or fetch it, and ignore it in git"))
}

/// Reports a Rust file that is too long, and each function in it that is.
pub(super) fn check(source: &RustSource<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let lines = source.code.len();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, more than {FILE_LINES_MAX}");
        let instead = "split it by what it decides; tests may move to their own file";
        violations.push(Violation::new(
            &source.file,
            FILE_LINES_MAX + 1,
            what,
            instead,
        ));
    }
    for (index, line) in source.code.iter().enumerate() {
        for (name, after) in functions(line) {
            let body = source.body_after(Position {
                line: index,
                column: after,
            });
            let length = body.map_or(0, |open| inner_lines(open, source.matching_brace(open)));
            if length > FUNCTION_LINES_MAX {
                let what = format!("`{name}` has {length} lines, more than {FUNCTION_LINES_MAX}");
                let instead = "split it where it changes what it is about";
                violations.push(Violation::new(&source.file, index + 1, what, instead));
            }
        }
    }
    violations
}

/// The functions whose name stands on the line, each with the column after its name.
fn functions(line: &str) -> Vec<(&str, usize)> {
    let words: Vec<(usize, &str)> = identifiers(line).collect();
    let pairs = words.windows(2).filter_map(|pair| match pair {
        [(_, "fn"), (start, name)] => Some((*name, start + name.len())),
        _ => None,
    });
    pairs.collect()
}

/// The lines between two braces, without those that the braces stand on.
fn inner_lines(open: Position, close: Position) -> usize {
    (close.line - open.line).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        let file = File {
            path: "src/a.rs",
            text,
        };
        check(&RustSource::read(file))
            .into_iter()
            .map(|violation| violation.what)
            .collect()
    }

    #[test]
    fn seventy_lines_between_the_braces_pass_and_one_more_fails() {
        let function =
            |lines: usize| format!("fn f(x: [u8; {{ 3 }}])\n{{\n{}}}\n", "g();\n".repeat(lines));
        assert!(whats(&function(70)).is_empty());
        assert_eq!(whats(&function(71)), ["`f` has 71 lines, more than 70"]);
    }

    #[test]
    fn a_brace_in_a_literal_or_a_comment_neither_opens_nor_closes_a_function() {
        let noise = "let s = \"}\"; let c = '}'; // }\nlet r = r#\"}\"#; /* } */\n";
        let text = format!("fn f() {{\n{}}}\nfn g() {{}}\n", noise.repeat(36));
        assert_eq!(whats(&text), ["`f` has 72 lines, more than 70"]);
    }

    #[test]
    fn a_declaration_and_a_pointer_type_have_no_body() {
        let text = format!(
            "trait T {{\n    fn f(&self);\n    type F = fn(u8);\n{}}}\n",
            "\n".repeat(90)
        );
        assert!(whats(&text).is_empty());
    }

    #[test]
    fn a_long_function_inside_a_module_is_found_at_its_own_line() {
        let text = format!("mod m {{\n    fn f() {{\n{}    }}\n}}\n", "\n".repeat(80));
        let file = File {
            path: "src/a.rs",
            text: &text,
        };
        let found = check(&RustSource::read(file));
        assert_eq!(found.first().map(|violation| violation.line), Some(2));
    }

    #[test]
    fn a_file_of_more_than_800_lines_fails() {
        assert!(whats(&"\n".repeat(800)).is_empty());
        assert_eq!(whats(&"\n".repeat(801)), ["801 lines, more than 800"]);
    }

    #[test]
    fn a_file_of_more_than_512_kib_fails() {
        assert!(check_bytes("a.json", 512 * 1024).is_none());
        assert!(check_bytes("a.json", 512 * 1024 + 1).is_some());
    }
}
