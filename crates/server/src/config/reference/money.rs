//! Keys of the store, of usage and of prices.

use super::Unset::{Is, Means, Refused};
use super::{Key, key};

pub(super) const STORE: &[Key] = &[
    key(
        "store.url",
        "URL or libpq words",
        Means("`tollgate.db` in `data_dir`"),
        "A PostgreSQL that several gateways share, as `postgres://user:password@host/database`; \
         best as `${DATABASE_URL}`. With `sslmode=verify-full` it is encrypted and the server's name \
         checked; `sslrootcert=FILE` names a certificate to trust.",
    ),
    key(
        "store.request_log",
        "duration, 1h..=87600h",
        Is("720h"),
        "How long single requests are kept; usage by the hour is kept for ever.",
    ),
    key(
        "prices[].model",
        "name or alias of a model",
        Refused,
        "What the price is of. A model without one costs nothing.",
    ),
    key(
        "prices[].from",
        "date",
        Means("always"),
        "Since which day, from midnight UTC, as `2026-07-01`.",
    ),
    key(
        "prices[].prompt",
        "dollars",
        Is("0"),
        "What a million computed prompt tokens cost, with up to nine decimals and up to 1000.",
    ),
    key(
        "prices[].cached",
        "dollars",
        Means("as `prompt`"),
        "What a million prompt tokens cost whose KV was reused.",
    ),
    key(
        "prices[].output",
        "dollars",
        Is("0"),
        "What a million generated tokens cost.",
    ),
    key(
        "prices[].kv_gib_second",
        "dollars",
        Is("0"),
        "What a GiB of KV costs that is held for a second.",
    ),
];
