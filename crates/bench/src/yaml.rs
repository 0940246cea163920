//! Files of a person's making: YAML to types, or what is wrong with it and where.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Deserializer, Error as _};
use tollgate_policy::units::Micros;
use tollgate_sim::yaml::Mistake;

pub(crate) use tollgate_sim::yaml::read;

/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 4 << 20;

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// It cannot be read.
    #[error("cannot read {}: {error}; name a YAML file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// It is longer than anything that is meant.
    #[error("{} has more than {BYTES_MAX} bytes; is it the right file?", path.display())]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// It is not YAML, or not of the form that is meant.
    #[error("{}:{mistake}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        mistake: Mistake,
    },
}

/// Reads a file into what it describes.
///
/// # Errors
/// It cannot be read, or has another form.
pub fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T, YamlError> {
    let failed = |error| YamlError::Read {
        path: path.to_owned(),
        error,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    let mut bounded = file.take(BYTES_MAX + 1);
    bounded.read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        let path = path.to_owned();
        return Err(YamlError::Long { path });
    }
    read(&text).map_err(|mistake| YamlError::Form {
        path: path.to_owned(),
        mistake,
    })
}

/// Reads `500ms`, `40s` or `2m` where serde wants a span.
pub(crate) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Micros, D::Error> {
    let text = <String as serde::Deserialize>::deserialize(deserializer)?;
    crate::args::span(&text).map_err(D::Error::custom)
}
