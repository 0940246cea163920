//! Checks that a crate with its own `clippy.toml` keeps the rules of the root file.
//!
//! Clippy reads the nearest file and no other, so a crate that adds a ban would lose all the
//! rest without anyone noticing.

use super::{File, Violation};

const FILE_NAME: &str = "clippy.toml";

/// Reports each line of the root `clippy.toml` that a crate's own file lacks.
pub(super) fn check(files: &[File<'_>]) -> Vec<Violation> {
    let Some(root) = files.iter().find(|file| file.path == FILE_NAME) else {
        return Vec::new();
    };
    let own = files
        .iter()
        .filter(|file| file.path.ends_with("/clippy.toml"));
    own.flat_map(|file| missing(root, file)).collect()
}

fn missing(root: &File<'_>, own: &File<'_>) -> Vec<Violation> {
    let rules = root.text.lines().map(str::trim);
    let rules = rules.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lost = rules.filter(|rule| !own.text.lines().any(|line| line.trim() == *rule));
    lost.map(|rule| {
        let what = format!("lacks a line of the root file: {rule}");
        Violation::new(own, 1, what, "copy it: clippy reads the nearest file only")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: File<'_> = File {
        path: FILE_NAME,
        text: "# Why.\na = 1\n\nb = [\n    2,\n]\n",
    };

    #[test]
    fn a_file_that_repeats_the_root_and_adds_to_it_passes() {
        let text = "a = 1\nb = [\n    2,\n    3,\n]\nc = 4\n";
        let own = File {
            path: "crates/policy/clippy.toml",
            text,
        };
        assert!(check(&[ROOT, own]).is_empty());
    }

    #[test]
    fn each_lost_line_is_reported() {
        let own = File {
            path: "crates/policy/clippy.toml",
            text: "a = 2\nb = [\n]\n",
        };
        let found: Vec<_> = check(&[ROOT, own])
            .into_iter()
            .map(|lost| lost.what)
            .collect();
        assert_eq!(
            found,
            [
                "lacks a line of the root file: a = 1",
                "lacks a line of the root file: 2,"
            ]
        );
    }
}
