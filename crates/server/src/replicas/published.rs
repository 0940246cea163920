//! Published texts as the tokens that prompts begin with.

use tollgate_engine::llama::LoadError;
use tollgate_engine::{ChatMessage, Model, Token};

use crate::config::{Published, PublishedForm, PublishedText};

/// The tokens of each.
///
/// # Errors
/// When a file can't be read. One that a model's template refuses is left out, which is logged: it
/// costs speed and nothing else.
pub(super) fn tokens(
    published: &[Published],
    model: &dyn Model,
) -> Result<Vec<Vec<Token>>, LoadError> {
    let mut all = Vec::with_capacity(published.len());
    for one in published {
        let text = match &one.text {
            PublishedText::Here(text) => text.clone(),
            PublishedText::File(path) => {
                std::fs::read_to_string(path).map_err(|error| LoadError::File {
                    path: path.clone(),
                    error,
                })?
            }
        };
        match beginning(&text, one.form, model) {
            Ok(tokens) => all.push(tokens),
            Err(why) => tracing::warn!(why, "a published prefix can't be used"),
        }
    }
    Ok(all)
}

fn beginning(text: &str, form: PublishedForm, model: &dyn Model) -> Result<Vec<Token>, String> {
    let prompt = match form {
        PublishedForm::Raw => text.to_owned(),
        PublishedForm::System => {
            let messages = [
                ChatMessage::new("system", text),
                ChatMessage::new("user", "?"),
            ];
            let rendered = model.render_chat(&messages, &[]);
            let rendered = rendered.map_err(|error| error.to_string())?;
            let text = text.trim();
            let at = rendered.find(text);
            let at = at.ok_or("the model's chat template changes it")?;
            rendered
                .get(..at + text.len())
                .unwrap_or_default()
                .to_owned()
        }
    };
    let mut tokens = model.tokenize(&prompt).map_err(|error| error.to_string())?;
    // With more text after it, its last letters may be part of another token.
    tokens.pop();
    if tokens.is_empty() {
        return Err("it is empty".to_owned());
    }
    Ok(tokens)
}
