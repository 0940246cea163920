//! The secret that tenants' cache salts are made with: kept in the data directory, so that a
//! restart leaves prefixes warm, and readable by nobody else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::config::{Config, EngineConfig};
use crate::server::StartError;

/// The name of its file.
const FILE: &str = "cache-salt.key";

/// The secret, made where there is none yet; zeros where no model needs it.
///
/// # Errors
/// It can be neither read nor kept.
pub(crate) fn key(config: &Config) -> Result<[u8; 32], StartError> {
    let mut models = config.models.list().iter();
    let needed = models.any(|model| match &model.engine {
        EngineConfig::Remote(remote) => remote.cache_salt,
        EngineConfig::Embedded { .. } | EngineConfig::Fake(_) => false,
    });
    if !needed {
        return Ok([0; 32]);
    }
    let path = config.data_dir.join(FILE);
    std::fs::create_dir_all(&config.data_dir)
        .and_then(|()| read_or_make(&path))
        .map_err(|source| StartError::Salt { path, source })
}

fn read_or_make(path: &Path) -> io::Result<[u8; 32]> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match made {
        Ok(mut file) => {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(io::Error::other)?;
            file.write_all(&key)?;
            file.sync_all()?;
            Ok(key)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut key = [0; 32];
            File::open(path)?.read_exact(&mut key)?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_then_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let first = read_or_make(&path).unwrap();
        assert_ne!(first, [0; 32]);
        assert_eq!(read_or_make(&path).unwrap(), first);
    }

    #[test]
    fn half_a_key_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, b"half").unwrap();
        assert!(read_or_make(&path).is_err());
    }
}
