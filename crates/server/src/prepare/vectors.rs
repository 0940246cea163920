//! Requests for vectors, and which model answers what: one that makes vectors makes no text.

use tollgate_engine::Token;
use tollgate_policy::units::Tokens;
use tollgate_wire::{BadRequest, EmbeddingRequest};

use super::Endpoint;
use super::here::bad;
use crate::app::EngineModel;
use crate::desk::Draft;

/// Refuses what the model does not make.
pub(super) fn check_makes(served: &EngineModel, endpoint: Endpoint) -> Result<(), BadRequest> {
    match (endpoint, served.model.vector_length()) {
        (Endpoint::Vectors, Some(_)) | (Endpoint::Chat | Endpoint::Text, None) => Ok(()),
        (Endpoint::Vectors, None) => Err(bad(
            "model",
            "this model generates text and does not pool; use one that makes embeddings, or \
             /v1/chat/completions",
        )),
        (Endpoint::Chat | Endpoint::Text, Some(_)) => Err(bad(
            "model",
            "this model makes embeddings and no text; use /v1/embeddings",
        )),
    }
}

/// What to give the engine.
pub(super) fn draft(
    served: &EngineModel,
    prompts: Vec<Vec<Token>>,
    ask: &EmbeddingRequest,
) -> Result<Draft, BadRequest> {
    let length = served.model.vector_length().unwrap_or(0);
    if let Some(asked) = ask.dimensions.filter(|asked| *asked != length) {
        let message = format!("dimensions is {asked}; this model's vectors have {length}");
        return Err(bad("dimensions", &message));
    }
    for (n, prompt) in prompts.iter().enumerate() {
        let tokens = Tokens::of_len(prompt);
        // One more, as every sequence ends with one.
        if tokens + Tokens::new(1) > served.context {
            return Err(too_long(n, tokens, served));
        }
    }
    Ok(Draft {
        prompts,
        choices: 1,
        ..Draft::default()
    })
}

pub(super) fn too_long(n: usize, tokens: Tokens, served: &EngineModel) -> BadRequest {
    let most = served.context - Tokens::new(1);
    BadRequest {
        message: format!(
            "This model's maximum context length is {most} tokens. However, input {n} resulted in \
             {tokens} tokens. Please shorten it."
        ),
        param: Some("input".to_owned()),
        code: Some("context_length_exceeded"),
    }
}
