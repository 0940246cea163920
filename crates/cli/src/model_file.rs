//! A look at a model file before llama.cpp gets it, which says no more of a wrong one than that it
//! is wrong. Whether the model in it can run is not asked here.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

/// What every GGUF file begins with
/// (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#file-structure>).
const MAGIC: &[u8; 4] = b"GGUF";

/// Whether this looks like a model file; where it does not, why not and what to do.
pub(crate) fn look_at(path: &Path) -> Result<(), String> {
    let name = path.display();
    let say = |what: &str| Err(format!("{name} {what}"));
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return say("is not there; name a GGUF file, from the working directory");
        }
        Err(error) => return say(&format!("can't be opened: {error}; let this user read it")),
    };
    let mut start = [0; MAGIC.len()];
    match file.read_exact(&mut start) {
        Ok(()) if start == *MAGIC => Ok(()),
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            say("is a directory; name the GGUF file in it")
        }
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
            say(&format!("can't be read: {error}"))
        }
        Ok(()) | Err(_) => say("is no GGUF file, the only kind that the engine runs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_like_a_model_file_is_left_to_the_engine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"GGUF\x03 and more").unwrap();
        assert_eq!(look_at(&path), Ok(()));
        std::fs::write(&path, b"GGU").unwrap();
        assert!(look_at(&path).unwrap_err().contains("is no GGUF file"));
    }
}
