//! YAML text to the form of a scenario, or the first mistake in it and where it stands.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

use super::form::Form;
use crate::yaml::{self, Mistake};

/// The longest scenario, in bytes: none is nearly as long, and a file given by mistake may be.
const BYTES_MAX: usize = 1 << 20;

/// Reads the form.
pub(super) fn form(text: &str) -> Result<Form, Mistake> {
    if text.len() > BYTES_MAX {
        let message = format!("{} bytes; at most {BYTES_MAX} are read", text.len());
        return Err(Mistake::at_start("", &message));
    }
    yaml::read(text)
}

#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    tenants: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    fleet: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    faults: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    measures: Vec<Spanned<IgnoredAny>>,
}

/// A mistake in the `n`-th item of a list, in a text that has the right form.
pub(super) fn located(text: &str, list: &str, n: usize, message: impl Into<String>) -> Mistake {
    let places: Option<Places> = serde_saphyr::from_str(text).ok();
    let items = places.map(|places| match list {
        "tenants" => places.tenants,
        "fleet" => places.fleet,
        "faults" => places.faults,
        _ => places.measures,
    });
    let at = items
        .as_ref()
        .and_then(|items| items.get(n))
        .map(|item| item.referenced);
    Mistake {
        path: format!("{list}[{n}]"),
        line: at.map_or(1, |at| at.line()).max(1),
        column: at.map_or(1, |at| at.column()).max(1),
        message: message.into(),
    }
}

/// A mistake in a key of the file, in a text that has the right form.
pub(super) fn located_key(text: &str, key: &str, message: impl Into<String>) -> Mistake {
    let keys: Option<BTreeMap<String, Spanned<IgnoredAny>>> = serde_saphyr::from_str(text).ok();
    let at = keys.and_then(|keys| keys.get(key).map(|found| found.referenced));
    Mistake {
        path: key.to_owned(),
        line: at.map_or(1, |at| at.line()).max(1),
        column: at.map_or(1, |at| at.column()).max(1),
        message: message.into(),
    }
}
