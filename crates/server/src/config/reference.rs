//! Every key of a configuration, for people: the source of `docs/config.md`.
//!
//! Tests hold this table against the decoder: the same keys, the same defaults, the same bounds.

mod engines;
mod models;
mod money;
mod process;
mod tenants;

use self::Unset::{Is, Means, Refused};
use self::models::MODELS;
use self::money::STORE;
use self::process::{ADMIN, FAIRNESS, IDENTITY, PROCESS};
use self::tenants::TENANTS;

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Where it stands, as in `tenants[].limits.rpm`.
    pub path: &'static str,
    /// What it takes, with its bounds.
    pub takes: &'static str,
    /// What holds when it is left out.
    pub unset: Unset,
    /// What it is for.
    pub meaning: &'static str,
}

/// What holds when a key is left out.
#[derive(Clone, Copy, Debug)]
pub enum Unset {
    /// The same as with this value.
    Is(&'static str),
    /// Something that no value says.
    Means(&'static str),
    /// A problem.
    Refused,
}

/// A heading and the keys under it.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The heading.
    pub title: &'static str,
    /// A sentence or two before the table.
    pub about: &'static str,
    /// The keys, in the order to read them.
    pub keys: &'static [Key],
}

const fn key(path: &'static str, takes: &'static str, unset: Unset, meaning: &'static str) -> Key {
    Key {
        path,
        takes,
        unset,
        meaning,
    }
}

/// All sections.
pub const SECTIONS: [Section; 8] = [
    Section {
        title: "The process",
        about: "",
        keys: PROCESS,
    },
    Section {
        title: "For the operator",
        about: "",
        keys: ADMIN,
    },
    Section {
        title: "Callers",
        about: "A caller is known by a key, or by the tenant header of a peer that is trusted to \
                have checked it. Trust goes by the address of the connection, never by a header.",
        keys: IDENTITY,
    },
    Section {
        title: "Models",
        about: "A list; clients name a model by its name or by an alias. Without models Tollgate \
                answers that it serves none.",
        keys: MODELS,
    },
    Section {
        title: "Models in this process",
        about: "More of the entries under `models`, for `engine: embedded` and `fake`.",
        keys: engines::KEYS,
    },
    Section {
        title: "Tenants",
        about: "A list of who pays. The tenant `anonymous` has no keys; it stands for callers \
                without one. The name `other` is taken: metrics use it for tenants past a bound. \
                `default_tenant` is for tenants that only a trusted header names, and for \
                `anonymous` where the list does not have it.",
        keys: TENANTS,
    },
    Section {
        title: "Usage and money",
        about: "What was served is kept in a store: who used how much of what, by the hour, and \
                who may call beside the tenants of this file. `tollgate usage`, `tollgate keys` and \
                `tollgate tenants` read and change it.",
        keys: STORE,
    },
    Section {
        title: "Fairness",
        about: "",
        keys: FAIRNESS,
    },
];

const OPENING: &str = "\
# Configuration

One YAML file, given as `tollgate serve --config FILE`. `tollgate check --config FILE` reports every mistake
with its line and column and starts nothing. A complete file is `tollgate.example.yaml` beside this page.

- An unknown key is a mistake; so is a key given twice.
- A duration is a whole number with `us`, `ms`, `s`, `m` or `h`; a size has `KiB`, `MiB` or `GiB`, or is in bytes;
  a percentage has its `%`.
- `${NAME}` in a value is replaced by that environment variable, which must be set; `$$` is a dollar sign. Inside
  `{ }` or `[ ]` YAML wants quotes around it: `{ rpm: \"${RPM}\" }`. Keys are never replaced.
- Numbers may be quoted. A key without a value counts as left out.
- A changed file is taken on while Tollgate runs, a second or two after it was written, or at once on SIGHUP: callers,
  tenants, keys, limits, weights, budgets, prices and `metrics`. What was used of a limit stays used. A file with a mistake, or one that
  changes `listen`, `data_dir`, `admin`, `admission`, `server`, `store`, `models`, `fairness.policy` or `fairness.quantum`, is refused whole:
  the log says why, and what held before goes on.

This page is made from `crates/server/src/config/reference/`; a test fails when it is stale and writes it anew
when `UPDATE_DOCS=1` is set.
";

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut page = OPENING.to_owned();
    for section in SECTIONS {
        page.push_str(&format!("\n## {}\n\n", section.title));
        if !section.about.is_empty() {
            page.push_str(&format!("{}\n\n", section.about));
        }
        page.push_str("| key | takes | left out | meaning |\n|---|---|---|---|\n");
        for Key {
            path,
            takes,
            unset,
            meaning,
        } in section.keys
        {
            let unset = match unset {
                Is(value) => format!("`{value}`"),
                Means(words) => (*words).to_owned(),
                Refused => "refused".to_owned(),
            };
            page.push_str(&format!("| `{path}` | {takes} | {unset} | {meaning} |\n"));
        }
    }
    page
}
