//! Which requests are another try: their client says so, or their idempotency key has been seen.
//!
//! Keys are remembered as digests, for a minute, and so many of them at most. It knows nothing of
//! answers: whether a repeated request is served is the policy's to say.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use hyper::header::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};
use tollgate_policy::ids::TenantId;
use tollgate_policy::units::{Micros, Time};

/// What OpenAI's clients count their tries in.
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How long a key is remembered after it was last seen.
const MEMORY: Micros = Micros::from_secs(60);

/// Keys remembered at once, some 10 MB; past it the oldest is forgotten, and its next try counts as
/// a first one.
const KEYS_MAX: usize = 100_000;

/// The idempotency keys of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<Seen>);

/// The SHA-256 of a tenant's number and the key.
type Digest = [u8; 32];

#[derive(Debug, Default)]
struct Seen {
    last: HashMap<Digest, Time>,
    /// Every sight of a key. invariant: at most [`KEYS_MAX`] of them, and each of `last` is one.
    order: VecDeque<(Time, Digest)>,
}

impl Repeats {
    /// Whether the request of `tenant` with these headers is another try.
    pub(crate) fn is_retry(&self, headers: &HeaderMap, tenant: TenantId, now: Time) -> bool {
        let key = headers.get(IDEMPOTENCY_KEY);
        let seen = key.is_some_and(|key| {
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.note(digest(tenant, key.as_bytes()), now)
        });
        seen || is_counted(headers)
    }
}

impl Seen {
    /// Remembers a key; says whether it was remembered already.
    fn note(&mut self, digest: Digest, now: Time) -> bool {
        self.forget(now);
        self.order.push_back((now, digest));
        self.last.insert(digest, now).is_some()
    }

    /// Makes room for one more.
    fn forget(&mut self, now: Time) {
        while let Some((at, digest)) = self.order.front() {
            if self.order.len() < KEYS_MAX && now.since(*at) < MEMORY {
                break;
            }
            // It may have been seen again since.
            if self.last.get(digest) == Some(at) {
                self.last.remove(digest);
            }
            self.order.pop_front();
        }
    }
}

fn digest(tenant: TenantId, key: &[u8]) -> Digest {
    let hash = Sha256::new().chain_update(tenant.get().to_be_bytes());
    hash.chain_update(key).finalize().into()
}

fn is_counted(headers: &HeaderMap) -> bool {
    let count = headers
        .get(RETRY_COUNT)
        .and_then(|count| count.to_str().ok());
    count
        .and_then(|count| count.trim().parse().ok())
        .is_some_and(|count: u32| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().unwrap())].into_iter().collect()
    }

    fn at(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    #[test]
    fn a_client_that_counts_its_tries_is_believed() {
        let repeats = Repeats::default();
        let cases = [
            ("0", false),
            ("1", true),
            (" 2", true),
            ("", false),
            ("-1", false),
            ("many", false),
        ];
        for (count, retry) in cases {
            let headers = headers(RETRY_COUNT, count);
            assert_eq!(
                repeats.is_retry(&headers, TenantId::new(0), at(0)),
                retry,
                "{count}"
            );
        }
        assert!(!repeats.is_retry(&HeaderMap::new(), TenantId::new(0), at(0)));
    }

    #[test]
    fn a_key_is_a_repeat_for_a_minute_after_it_was_last_seen() {
        let repeats = Repeats::default();
        let (tenant, key) = (TenantId::new(0), headers(IDEMPOTENCY_KEY, "k1"));
        assert!(!repeats.is_retry(&key, tenant, at(0)));
        assert!(repeats.is_retry(&key, tenant, at(59)));
        assert!(
            repeats.is_retry(&key, tenant, at(118)),
            "seen 59 seconds ago"
        );
        assert!(!repeats.is_retry(&key, tenant, at(178)));
        let other = headers(IDEMPOTENCY_KEY, "k2");
        assert!(!repeats.is_retry(&other, tenant, at(178)));
    }

    #[test]
    fn a_key_of_one_tenant_is_no_key_of_another() {
        let repeats = Repeats::default();
        let key = headers(IDEMPOTENCY_KEY, "k1");
        assert!(!repeats.is_retry(&key, TenantId::new(0), at(0)));
        assert!(!repeats.is_retry(&key, TenantId::new(1), at(0)));
        assert!(repeats.is_retry(&key, TenantId::new(1), at(1)));
    }

    #[test]
    fn a_flood_of_keys_is_bounded_and_forgets_the_oldest() {
        let mut seen = Seen::default();
        let key = |n: usize| digest(TenantId::new(0), &n.to_be_bytes());
        for n in 0..=KEYS_MAX {
            assert!(!seen.note(key(n), at(1)));
        }
        assert_eq!((seen.order.len(), seen.last.len()), (KEYS_MAX, KEYS_MAX));
        assert!(seen.note(key(KEYS_MAX), at(1)));
        assert!(!seen.note(key(0), at(1)), "the oldest is forgotten");
        for _ in 0..KEYS_MAX {
            seen.note(key(7), at(2));
        }
        assert_eq!((seen.order.len(), seen.last.len()), (KEYS_MAX, 1));
    }
}
