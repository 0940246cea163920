//! Checks for calls and types that the house does not use, each with what to use instead.
//!
//! Clippy bans most of them too, but an `#[expect]` silences clippy; the places where a call is
//! right are listed here, and nowhere else can talk its way out.

use super::lexer::{RustSource, identifiers};
use super::{File, Violation};

/// Which lines a ban covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    All,
    Tests,
    NotTests,
}

#[derive(Debug)]
struct Ban {
    /// A path, as it is written at the call: whole identifiers match, prefixes may differ.
    path: &'static str,
    lines: Lines,
    /// Path prefixes of the files that the ban covers.
    only_in: &'static [&'static str],
    /// Path prefixes of the files where the call is right.
    except_in: &'static [&'static str],
    instead: &'static str,
}

const EVERYWHERE: &[&str] = &[""];
const DETERMINISTIC: &[&str] = &["crates/policy/", "crates/sim/"];
const CLOCKS: &[&str] = &[
    "crates/server/src/clock.rs",
    "crates/engine/src/clock.rs",
    "crates/bench/src/clock.rs",
    "crates/policy/benches/",
    "scripts/quantile-crates/",
    "crates/cli/",
];
const NO_CLOCK: &str = "time comes from server::clock or as an argument";
const NO_ORDER: &str = "its order differs from run to run; use BTreeMap or BTreeSet";
const NO_SLEEP: &str = "advance the virtual clock, pause tokio's time, or await the event itself";
const NO_SPAWN: &str = "use server::spawn::spawn_named: shutdown waits on its tasks";

const BANS: [Ban; 8] = [
    no_clock("Instant::now"),
    no_clock("SystemTime::now"),
    no_spawn("tokio::spawn"),
    no_spawn("task::spawn"),
    no_order("HashMap"),
    no_order("HashSet"),
    no_sleep("thread::sleep"),
    no_sleep("time::sleep"),
];

const fn no_clock(path: &'static str) -> Ban {
    let lines = Lines::NotTests;
    Ban {
        path,
        lines,
        only_in: EVERYWHERE,
        except_in: CLOCKS,
        instead: NO_CLOCK,
    }
}

const fn no_spawn(path: &'static str) -> Ban {
    let lines = Lines::NotTests;
    let except_in = &["crates/server/src/spawn.rs"];
    Ban {
        path,
        lines,
        only_in: EVERYWHERE,
        except_in,
        instead: NO_SPAWN,
    }
}

const fn no_order(path: &'static str) -> Ban {
    Ban {
        path,
        lines: Lines::All,
        only_in: DETERMINISTIC,
        except_in: &[],
        instead: NO_ORDER,
    }
}

const fn no_sleep(path: &'static str) -> Ban {
    Ban {
        path,
        lines: Lines::Tests,
        only_in: EVERYWHERE,
        except_in: &[],
        instead: NO_SLEEP,
    }
}

/// Reports every banned call of a Rust file.
pub(super) fn check(source: &RustSource<'_>) -> Vec<Violation> {
    let bans: Vec<&Ban> = BANS
        .iter()
        .filter(|ban| ban.covers_file(&source.file))
        .collect();
    let mut violations = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        if line.contains("#[ignore") {
            let instead = "a test runs or is deleted";
            violations.push(Violation::new(
                &source.file,
                index + 1,
                "`#[ignore]`",
                instead,
            ));
        }
        let in_test = source.is_test.get(index).is_some_and(|is_test| *is_test);
        for ban in bans
            .iter()
            .filter(|ban| ban.covers_line(in_test) && ban.is_in(line))
        {
            let what = format!("`{}`", ban.path);
            violations.push(Violation::new(&source.file, index + 1, what, ban.instead));
        }
    }
    violations
}

impl Ban {
    fn covers_file(&self, file: &File<'_>) -> bool {
        let is_in = |prefixes: &[&str]| prefixes.iter().any(|prefix| file.path.starts_with(prefix));
        is_in(self.only_in) && !is_in(self.except_in)
    }

    fn covers_line(&self, in_test: bool) -> bool {
        match self.lines {
            Lines::All => true,
            Lines::Tests => in_test,
            Lines::NotTests => !in_test,
        }
    }

    /// Whether the line holds the path, its identifiers in a row and joined as written here.
    fn is_in(&self, line: &str) -> bool {
        let words: Vec<(usize, &str)> = identifiers(line).collect();
        let wanted: Vec<&str> = self.path.split("::").collect();
        words.windows(wanted.len()).any(|window| {
            let same = window
                .iter()
                .zip(&wanted)
                .all(|((_, word), want)| word == want);
            same && window.windows(2).all(|pair| joined(line, pair))
        })
    }
}

/// Whether two neighbouring identifiers have exactly `::` between them.
fn joined(line: &str, pair: &[(usize, &str)]) -> bool {
    let [(start, word), (next, _)] = pair else {
        return false;
    };
    line.get(start + word.len()..*next) == Some("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        let file = File { path, text };
        let found = check(&RustSource::read(file));
        found
            .into_iter()
            .map(|violation| format!("{} {}", violation.line, violation.what))
            .collect()
    }

    #[test]
    fn the_clock_is_read_in_its_own_file_only() {
        let text = "fn f() {\n    std::time::Instant::now();\n}\n";
        assert_eq!(
            whats("crates/server/src/routes.rs", text),
            ["2 `Instant::now`"]
        );
        assert!(whats("crates/server/src/clock.rs", text).is_empty());
        assert!(whats("crates/server/tests/drain.rs", text).is_empty());
        let text = "fn f(start: Instant, now: Instant) {} // not Instant::now()\n";
        assert!(whats("crates/server/src/routes.rs", text).is_empty());
    }

    #[test]
    fn tasks_are_spawned_in_one_place() {
        for text in [
            "fn f() { tokio::spawn(g()); }\n",
            "fn f() { task::spawn(g()); }\n",
        ] {
            assert_eq!(whats("crates/server/src/routes.rs", text).len(), 1);
            assert!(whats("crates/server/src/spawn.rs", text).is_empty());
        }
        let text = "fn f() { crate::spawn::spawn_named(\"a\", g()); thread::spawn(h); }\n";
        assert!(whats("crates/server/src/routes.rs", text).is_empty());
    }

    #[test]
    fn hash_maps_stay_out_of_the_deterministic_crates_even_in_tests() {
        let text = "#[cfg(test)]\nmod tests {\n    use std::collections::{HashMap, HashSet};\n}\n";
        assert_eq!(
            whats("crates/policy/src/fair.rs", text),
            ["3 `HashMap`", "3 `HashSet`"]
        );
        assert!(whats("crates/server/src/fair.rs", text).is_empty());
    }

    #[test]
    fn a_test_neither_sleeps_nor_is_ignored() {
        let text = "#[test]\n#[ignore = \"slow\"]\nfn f() {\n    std::thread::sleep(x);\n}\n";
        assert_eq!(
            whats("crates/cli/tests/a.rs", text),
            ["2 `#[ignore]`", "4 `thread::sleep`"]
        );
        let text = "async fn f() { tokio::time::sleep(x).await; }\n";
        assert_eq!(whats("crates/cli/tests/a.rs", text), ["1 `time::sleep`"]);
        assert!(whats("crates/server/src/retry.rs", text).is_empty());
    }
}
