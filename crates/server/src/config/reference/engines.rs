//! The keys of models that only engines in this process have, beside those that all have.

use super::Unset::{Is, Means};
use super::{Key, key};

/// The keys, in the order to read them.
pub(super) const KEYS: &[Key] = &[
    key(
        "models[].kv",
        "paged or contiguous",
        Is("paged"),
        "How much KV a request is given: what it has come to, or from its start all that it may \
         come to, which wastes most of it and is there for comparison.",
    ),
    key(
        "models[].published_prefixes",
        "list of at most 64",
        Is("[]"),
        "Texts that prompts begin with and whose KV all tenants may share, each with `text` or \
         `file`; only with `prefix_cache: on`. Nobody learns from it what another tenant sent, as \
         you have published it.",
    ),
    key(
        "models[].published_prefixes[].text",
        "text",
        Means("`file` is used"),
        "The text itself.",
    ),
    key(
        "models[].published_prefixes[].file",
        "path",
        Means("`text` is used"),
        "A file that holds the text, all of it.",
    ),
    key(
        "models[].published_prefixes[].as",
        "system or raw",
        Is("system"),
        "Whether chats have it as their system message, or prompts begin with it as it is.",
    ),
    key(
        "models[].pooling",
        "mean or first or last",
        Means("what the file says, and if it says nothing the model generates text"),
        "How the vectors of a text's tokens become one for `/v1/embeddings`; such a model makes no \
         text. Only for `engine: embedded`.",
    ),
    key(
        "models[].stuck_step.after",
        "duration, 1s..=1h",
        Is("5m"),
        "How long a step may take before its engine counts as stuck: the replica is not ready, and \
         its requests end as failed.",
    ),
    key(
        "models[].stuck_step.then",
        "wait or exit",
        Is("wait"),
        "Whether a stuck engine is started again once its step has ended after all, or the process \
         exits with status 70. Nothing else can end such a step.",
    ),
];
