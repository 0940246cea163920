//! What the operator publishes: texts that prompts begin with, shared by all tenants.

use std::path::PathBuf;

use super::decode::Cursor;
use super::server;

/// Prefixes that one model may have published; each is compared with each prompt.
const PREFIXES_MAX: usize = 64;

/// A text that prompts begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where it is written.
    pub text: PublishedText,
    /// Whether it is a system message, which the model's chat template puts into a prompt.
    pub form: PublishedForm,
}

/// Where a published text is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishedText {
    /// In the configuration itself.
    Here(String),
    /// In a file of its own, read when the server starts.
    File(PathBuf),
}

/// How prompts begin with a published text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishedForm {
    /// It is their system message.
    #[default]
    System,
    /// It is the first of the prompt as the model reads it.
    Raw,
}

impl Published {
    pub(super) fn read_list(section: &Cursor<'_>) -> Option<Vec<Self>> {
        let list = section.list(|item| Self::read(&item))?;
        if list.len() > PREFIXES_MAX {
            return section.refuse(format!("a list of at most {PREFIXES_MAX}"));
        }
        Some(list)
    }

    fn read(item: &Cursor<'_>) -> Option<Self> {
        let (text, form) = item.mapping(|fields| {
            let here = fields.optional("text", |value| {
                let text = value.text("a text")?;
                Some(PublishedText::Here(text.to_owned()))
            });
            let file = fields.optional("file", |value| {
                server::path(&value).map(PublishedText::File)
            });
            let forms = [
                ("system", PublishedForm::System),
                ("raw", PublishedForm::Raw),
            ];
            let form = fields.optional("as", |value| value.choice(&forms));
            ((here, file), form.unwrap_or_default())
        })?;
        match text {
            (Some(text), None) | (None, Some(text)) => Some(Self { text, form }),
            (None, None) | (Some(_), Some(_)) => {
                item.report("has to have one of text and file");
                None
            }
        }
    }
}
