//! Bytes to types and back.

mod bad_request;
mod body;
mod chat;
mod completion;
mod demand;
mod embedding;
mod extras;
mod fields;
mod params;
mod tools;

pub use bad_request::BadRequest;
pub use chat::{ChatRequest, Content, Message, Part, Role};
pub use completion::{CompletionRequest, Prompt, PromptText};
pub use demand::Demand;
pub use embedding::{EmbeddingRequest, Encoding, write_embeddings};
pub use extras::{Constraint, Extras};
pub use params::{Delivery, Params, Sampling};
pub use tools::{CallReader, CallSyntax, Said, Tool, ToolCall, ToolChoice, Tools};

mod error;
mod headers;
mod json_text;
mod measure;
mod models;
mod relay;
mod reply;
pub mod sse;
mod tap;
mod whole;

pub use error::ErrorBody;
pub use headers::ResetIn;
pub use measure::PromptSize;
pub use models::{ModelCard, write_model_list};
pub use relay::{Edits, Patch, Relay, RelayKind, patched};
pub use reply::{
    Answer, CallOpening, Choice, ChunkWriter, FinishReason, Likely, Logprob, Piece, Stamp,
    StreamUsage, Usage,
};
pub use tap::{EngineError, ErrorShape, Facts, Fault, Finish, Tap};
pub use whole::Whole;
