//! Keys of tenants.

use super::Unset::{Is, Means, Refused};
use super::{Key, key};

pub(super) const TENANTS: &[Key] = &[
    key(
        "tenants[].name",
        "1 to 64 of `A-Za-z0-9._-`",
        Refused,
        "The name, unique; not `other`.",
    ),
    key(
        "tenants[].keys",
        "list",
        Is("[]"),
        "The keys it is known by, each with one of the two entries below; no key \
         belongs to two tenants.",
    ),
    key(
        "tenants[].keys[].env",
        "name of a variable",
        Means("`sha256` is used"),
        "The environment variable that holds the key.",
    ),
    key(
        "tenants[].keys[].sha256",
        "64 hexadecimal digits",
        Means("`env` is used"),
        "The key's SHA-256, as `printf %s KEY \\| sha256sum` prints it.",
    ),
    key(
        "tenants[].class",
        "reserved or standard or best_effort",
        Is("standard"),
        "Its promise.",
    ),
    key(
        "tenants[].weight",
        "number, 1..=1000",
        Is("1"),
        "Its share against others; twice the weight, twice the service.",
    ),
    key(
        "tenants[].floor",
        "percent, 0%..=92%",
        Is("0%"),
        "What is set aside for it of each replica's KV; only for `class: reserved`.",
    ),
    key(
        "tenants[].models",
        "list of names or aliases",
        Means("all models"),
        "The models it may name.",
    ),
    key(
        "tenants[].limits.rpm",
        "number, 1..=1000000",
        Means("no limit"),
        "Requests per minute.",
    ),
    key(
        "tenants[].limits.burst",
        "number, 1..=1000000",
        Means("`rpm`"),
        "Requests that may come at once after a quiet spell; needs `rpm`.",
    ),
    key(
        "tenants[].limits.tpm",
        "tokens, 1..=10000000000",
        Means("no limit"),
        "Tokens per minute, prompt and output; as many may come at once after a quiet spell.",
    ),
    key(
        "tenants[].limits.kv_gib_seconds",
        "decimal, 0.001..=1000000000",
        Means("no limit"),
        "KV memory over time that its requests in flight may be expected to hold together.",
    ),
    key(
        "tenants[].limits.concurrency",
        "number, 1..=1000000",
        Means("no limit"),
        "Requests queued or running at once.",
    ),
    key(
        "tenants[].limits.max_context",
        "tokens, 1..=10000000",
        Means("the model's"),
        "Prompt and output tokens of one request.",
    ),
    key(
        "tenants[].limits.max_output",
        "tokens, 1..=10000000",
        Means("no limit"),
        "Output tokens of one request; at most `max_context`.",
    ),
    key(
        "tenants[].model_limits",
        "list",
        Is("[]"),
        "Limits of single models, which hold beside those above: a request is within both, or \
         takes nothing of either.",
    ),
    key(
        "tenants[].model_limits[].model",
        "name or alias",
        Refused,
        "The model, once.",
    ),
    key(
        "tenants[].model_limits[].limits.rpm",
        "number, 1..=1000000",
        Means("no limit"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.burst",
        "number, 1..=1000000",
        Means("`rpm`"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.tpm",
        "tokens, 1..=10000000000",
        Means("no limit"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.kv_gib_seconds",
        "decimal, 0.001..=1000000000",
        Means("no limit"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.concurrency",
        "number, 1..=1000000",
        Means("no limit"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.max_context",
        "tokens, 1..=10000000",
        Means("the model's"),
        "As for all models.",
    ),
    key(
        "tenants[].model_limits[].limits.max_output",
        "tokens, 1..=10000000",
        Means("no limit"),
        "As for all models.",
    ),
    key(
        "tenants[].budget.usd",
        "dollars",
        Means("refused beside `per`"),
        "What it may spend in a day or month; past it 429 `insufficient_quota`. Up to nine \
         decimals.",
    ),
    key(
        "tenants[].budget.per",
        "day or month",
        Means("refused beside `usd`"),
        "For how long.",
    ),
    key(
        "tenants[].budget.zone",
        "name of a time zone",
        Is("UTC"),
        "Whose midnight begins it, as `Europe/Berlin`.",
    ),
    key(
        "default_tenant.class",
        "reserved or standard or best_effort",
        Is("best_effort"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.weight",
        "number, 1..=1000",
        Is("1"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.rpm",
        "number, 1..=1000000",
        Means("no limit"),
        "As for a tenant, each with its own count.",
    ),
    key(
        "default_tenant.limits.burst",
        "number, 1..=1000000",
        Means("`rpm`"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.tpm",
        "tokens, 1..=10000000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.kv_gib_seconds",
        "decimal, 0.001..=1000000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.concurrency",
        "number, 1..=1000000",
        Means("no limit"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.max_context",
        "tokens, 1..=10000000",
        Means("the model's"),
        "As for a tenant.",
    ),
    key(
        "default_tenant.limits.max_output",
        "tokens, 1..=10000000",
        Means("no limit"),
        "As for a tenant.",
    ),
];
