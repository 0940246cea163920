//! How many tokens a text is, by the file that its model was published with (`tokenizer.json`).
//!
//! It counts; what a count is good for is not decided here. Texts of any length take their time, so
//! whoever asks bounds them first.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::Tokenizer as Rules;

/// The largest file that is read: those of models with 256,000 tokens have 30 MiB.
const FILE_MAX: u64 = 128 << 20;

/// What a model makes tokens of text by.
#[derive(Clone)]
pub struct Tokenizer {
    path: PathBuf,
    rules: Arc<Rules>,
}

/// Whether what the file says stands around a text is counted too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Around {
    /// It is, as for a prompt that the model reads as it is.
    Counted,
    /// It is not, as for a part of a conversation.
    LeftOut,
}

impl Tokenizer {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or holds no tokenizer: why.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let found = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
        if found.len() > FILE_MAX {
            let length = found.len();
            return Err(format!(
                "{shown} has {length} bytes, more than any tokenizer.json"
            ));
        }
        let bytes = std::fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
        let mut rules = Rules::from_bytes(bytes)
            .map_err(|error| format!("{shown} is no tokenizer.json: {error}"))?;
        // A file may say how texts are cut and filled up for training: neither is so when served.
        rules.with_padding(None);
        rules
            .with_truncation(None)
            .map_err(|error| format!("{shown}: {error}"))?;
        Ok(Self {
            path: path.to_owned(),
            rules: Arc::new(rules),
        })
    }

    /// Where it was read from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tokens that there are.
    pub(crate) fn vocabulary(&self) -> usize {
        self.rules.get_vocab_size(true)
    }

    /// The tokens of a text; `None` where the rules do not know what to make of it.
    pub(crate) fn count(&self, text: &str, around: Around) -> Option<u64> {
        let encoding = self.rules.encode_fast(text, around == Around::Counted);
        u64::try_from(encoding.ok()?.len()).ok()
    }
}

/// The same file: what is in it is read once.
impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Tokenizer {}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokenizer").field(&self.path).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file with a token for each of a few words, and one for all others.
    pub(crate) const WORDS: &str = r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [
            {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "?": 1, "river": 2}, "unk_token": "?"}
    }"#;

    /// Such a file in this folder.
    pub(crate) fn words(folder: &Path) -> PathBuf {
        let path = folder.join("tokenizer.json");
        std::fs::write(&path, WORDS).unwrap();
        path
    }

    #[test]
    fn a_text_is_counted_whole_whatever_the_file_says_of_cutting() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::load(&words(folder.path())).unwrap();
        let text = "a river of  words";
        assert_eq!(tokenizer.count(text, Around::LeftOut), Some(4));
        assert_eq!(tokenizer.count(text, Around::Counted), Some(5));
        assert_eq!(tokenizer.count("", Around::LeftOut), Some(0));
        assert_eq!(tokenizer.vocabulary(), 3);
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Tokenizer::load(&folder.path().join("none")).unwrap_err();
        assert!(missing.contains("No such file"), "{missing}");
        let path = folder.path().join("bad");
        for text in ["", "{}", "not json", r#"{"model":{"type":"Riddle"}}"#] {
            std::fs::write(&path, text).unwrap();
            let why = Tokenizer::load(&path).unwrap_err();
            assert!(why.contains("is no tokenizer.json"), "{why}");
        }
        assert!(Tokenizer::load(folder.path()).is_err(), "a folder");
    }
}
