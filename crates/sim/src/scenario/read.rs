//! YAML text to the form of a scenario, or the first mistake in it and where it stands.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Error, Spanned};

use super::form::Form;

/// The longest scenario, in bytes: none is nearly as long, and a file given by mistake may be.
const BYTES_MAX: usize = 1 << 20;

/// What is wrong with a scenario, and where.
///
/// It displays as `12:7: tenants[1].weight: …`, for the name of the file to go before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistake {
    /// The key at fault; empty when it is the file as a whole.
    pub path: String,
    /// Line in the file, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl Mistake {
    /// A mistake of the file as a whole, about this key.
    pub(super) fn at_start(path: &str, message: &str) -> Self {
        Self {
            path: path.to_owned(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        }
    }
}

/// Reads the form.
pub(super) fn form(text: &str) -> Result<Form, Mistake> {
    if text.len() > BYTES_MAX {
        let message = format!("{} bytes; at most {BYTES_MAX} are read", text.len());
        return Err(Mistake::at_start("", &message));
    }
    let mut path = String::new();
    let options = serde_saphyr::options! { with_snippet: false };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |de| {
        serde_path_to_error::deserialize::<_, Form>(de).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    let form = read.map_err(|error| mistake(&path, &error))?;
    match form.chaos {
        Some(chaos) if !chaos.is_sized() => {
            let message = format!("{}; use more than 0 and at most 10000", chaos.size);
            Err(Mistake::at_start("chaos.size", &message))
        }
        Some(_) | None => Ok(form),
    }
}

fn mistake(path: &str, error: &Error) -> Mistake {
    let at = error.location();
    let text = error.to_string();
    let text = text.trim();
    // The place goes before the message here, and the parser writes it into it as well.
    let message = text.split(" at line ").next().unwrap_or(text);
    let message = message
        .rsplit_once(": line ")
        .map_or(message, |(what, _)| what);
    Mistake {
        path: if path == "." {
            String::new()
        } else {
            path.to_owned()
        },
        line: at.map_or(1, |at| at.line()).max(1),
        column: at.map_or(1, |at| at.column()).max(1),
        message: message.to_owned(),
    }
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
