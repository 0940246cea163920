//! Who is calling: a key, a header of a trusted peer, or nobody in particular.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use tollgate_policy::ids::{KeyId, ModelId, TenantId};
use tollgate_policy::tenant::{Allowed, TenantTable};

use crate::config::{self, Anonymous, KeyHash};
use crate::desk::Desk;
use tollgate_wire::RelayKind;

/// The header by which a trusted peer names a tenant.
const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// The longest tenant name a header may carry, in bytes.
const NAME_MAX: usize = 64;

/// How callers are known.
#[derive(Debug)]
pub(crate) struct Identity {
    rules: config::Identity,
    keys: KeyRing,
    known: Keys,
}

/// Whose each key is. Only hashes are kept, so there is nothing here to leak. They are found by
/// their first bytes and then compared whole in constant time: a guesser who measures learns the
/// first bytes of a hash at best, and those lead to no key.
#[derive(Debug, Default)]
pub(crate) struct KeyRing(BTreeMap<[u8; 8], Vec<(KeyHash, Caller)>>);

/// Who is calling, and what the key is good for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Who pays.
    pub(crate) tenant: TenantId,
    /// The key, where it is one with a name.
    pub(crate) key: Option<Arc<NamedKey>>,
}

/// A key of the store.
#[derive(Debug)]
pub(crate) struct NamedKey {
    /// Its number in the policy.
    pub(crate) id: KeyId,
    /// The models it may name, out of its tenant's.
    pub(crate) models: Allowed,
    /// The forms of an answer it may ask for; all where it says nothing.
    pub(crate) endpoints: Option<Vec<RelayKind>>,
    /// It may look, and have nothing made.
    pub(crate) read_only: bool,
    /// When it stops being good, in microseconds since the Unix epoch.
    pub(crate) expires_us: Option<u64>,
}

impl Caller {
    /// A tenant as such.
    pub(crate) const fn tenant(tenant: TenantId) -> Self {
        Self { tenant, key: None }
    }

    /// The number of its key, where it has one.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        self.key.as_ref().map(|key| key.id)
    }

    /// Whether its key lets it ask for this form of an answer.
    pub(crate) fn may_ask(&self, endpoint: RelayKind) -> bool {
        self.key.as_ref().is_none_or(|key| {
            let among = |endpoints: &Vec<RelayKind>| endpoints.contains(&endpoint);
            !key.read_only && key.endpoints.as_ref().is_none_or(among)
        })
    }

    /// Whether its key lets it name this model.
    pub(crate) fn may_name(&self, model: ModelId) -> bool {
        self.key
            .as_ref()
            .is_none_or(|key| key.models.permits(model))
    }
}

impl KeyRing {
    pub(crate) fn add(&mut self, hash: KeyHash, caller: Caller) {
        self.0.entry(start(&hash)).or_default().push((hash, caller));
    }

    fn find(&self, hash: &KeyHash, now_us: u64) -> Option<&Caller> {
        let near = self.0.get(&start(hash))?.iter();
        let same = near.fold(None, |found, (known, caller)| {
            if known.matches(hash) {
                Some(caller)
            } else {
                found
            }
        })?;
        let good = |key: &Arc<NamedKey>| key.expires_us.is_none_or(|at| now_us < at);
        same.key.as_ref().is_none_or(good).then_some(same)
    }
}

/// The first bytes of a hash.
fn start(hash: &KeyHash) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *hash.bytes();
    [a, b, c, d, e, f, g, h]
}

/// A caller that is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// Unknown, revoked and malformed look the same.
    Unknown,
    /// It is trusted to name a tenant, and names none.
    Tenant,
    /// Nobody knows: its key may be in a store that has not been read yet.
    Unsure,
}

/// Whether all keys are known that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    All,
    /// Those of the store are not.
    Configured,
}

impl Identity {
    pub(crate) fn new(rules: config::Identity, keys: KeyRing, known: Keys) -> Self {
        Self { rules, keys, known }
    }

    /// Who sent a request with these headers from `peer`.
    pub(crate) fn who(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        desk: &Desk,
    ) -> Result<Caller, Stranger> {
        let anonymous = self.rules.anonymous == Anonymous::Allow;
        if let Some(key) = key(headers) {
            let clock = desk.clock();
            let now_us = clock.unix_micros(clock.now());
            if let Some(caller) = self.keys.find(&KeyHash::of(key), now_us) {
                return Ok(caller.clone());
            }
            if self.known == Keys::Configured {
                return Err(Stranger::Unsure);
            }
            // Clients can't be made to send no key, so where there are none, any will do.
            if !anonymous || !self.keys.0.is_empty() {
                return Err(Stranger::Unknown);
            }
        }
        let mut names = headers.get_all(TENANT).iter();
        if let Some(name) = names.next()
            && self.rules.trusts(peer)
        {
            // Two of them come of a proxy that adds to what a client sent: neither can be believed.
            if names.next().is_some() {
                return Err(Stranger::Tenant);
            }
            let name = name.to_str().map_err(|_| Stranger::Tenant)?;
            return if is_name(name) {
                Ok(Caller::tenant(desk.tenant_named_by_header(name)))
            } else {
                Err(Stranger::Tenant)
            };
        }
        if anonymous {
            Ok(Caller::tenant(
                desk.tenant_named_by_header(config::ANONYMOUS),
            ))
        } else {
            Err(Stranger::Unknown)
        }
    }
}

/// The key that a request carries, in the first of the places where clients put it.
pub(crate) fn key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let value = value.as_bytes();
        let scheme = value
            .get(..7)
            .filter(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        return Some(scheme.map_or(value, |_| value[7..].trim_ascii()));
    }
    let value = headers
        .get("x-api-key")
        .or_else(|| headers.get("api-key"))?;
    Some(value.as_bytes().trim_ascii())
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let known = !name.is_empty() && name.len() <= NAME_MAX && name != TenantTable::OVERFLOW;
    known && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let each = list.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, value.parse().unwrap())
        });
        each.collect()
    }

    #[test]
    fn a_key_is_read_from_the_first_place_that_has_one() {
        type Case = (
            &'static [(&'static str, &'static str)],
            Option<&'static [u8]>,
        );
        let cases: [Case; 7] = [
            (
                &[("authorization", "Bearer k1"), ("x-api-key", "k2")],
                Some(b"k1"),
            ),
            (&[("authorization", "BEARER  k1 ")], Some(b"k1")),
            (&[("authorization", "k1")], Some(b"k1")),
            (&[("authorization", "Basic k1")], Some(b"Basic k1")),
            (&[("x-api-key", " k2 "), ("api-key", "k3")], Some(b"k2")),
            (&[("api-key", "k3")], Some(b"k3")),
            (&[], None),
        ];
        for (list, expected) in cases {
            assert_eq!(key(&headers(list)), expected, "{list:?}");
        }
    }

    #[test]
    fn a_key_is_good_until_the_microsecond_it_expires() {
        let mut ring = KeyRing::default();
        let named = NamedKey {
            id: KeyId::new(0),
            models: Allowed::Only(vec![ModelId::new(1)]),
            endpoints: Some(vec![RelayKind::Chat]),
            read_only: false,
            expires_us: Some(100),
        };
        let (good, other) = (KeyHash::of(b"k1"), KeyHash::of(b"k2"));
        let caller = Caller {
            tenant: TenantId::new(3),
            key: Some(Arc::new(named)),
        };
        ring.add(good, caller);
        let found = ring.find(&good, 99).unwrap();
        assert_eq!(found.tenant, TenantId::new(3));
        assert!(found.may_ask(RelayKind::Chat) && !found.may_ask(RelayKind::Text));
        assert!(found.may_name(ModelId::new(1)) && !found.may_name(ModelId::new(0)));
        assert!(ring.find(&good, 100).is_none());
        assert!(ring.find(&other, 0).is_none());
    }

    #[test]
    fn hashes_that_begin_alike_are_told_apart() {
        let like = |last: u8| {
            let mut bytes = [7; 32];
            bytes[31] = last;
            KeyHash::from_bytes(bytes)
        };
        let mut ring = KeyRing::default();
        for n in 0..3 {
            ring.add(like(n), Caller::tenant(TenantId::new(u32::from(n))));
        }
        assert_eq!(ring.find(&like(1), 0).unwrap().tenant, TenantId::new(1));
        assert!(ring.find(&like(9), 0).is_none());
    }

    #[test]
    fn a_tenants_name_is_short_and_plain() {
        for name in ["a", "team-7", "A.b_c", &"n".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "a/b", "a\"", "é", &"n".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
