//! Who is calling: a key, a header of a trusted peer, or nobody in particular.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use tollgate_policy::ids::TenantId;
use tollgate_policy::tenant::TenantTable;

use crate::config::{self, Anonymous, KeyHash};
use crate::desk::Desk;

/// The header by which a trusted peer names a tenant.
const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// The longest tenant name a header may carry, in bytes.
const NAME_MAX: usize = 64;

/// How callers are known.
#[derive(Debug)]
pub(crate) struct Identity {
    rules: config::Identity,
    /// Whose each key is, by hash: only hashes are kept, so there is nothing here to leak; and a
    /// lookup by hash takes no longer for a key that is nearly right.
    keys: BTreeMap<KeyHash, TenantId>,
}

/// A caller that is not let in. It says nothing of why: unknown, revoked and malformed look the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

impl Identity {
    pub(crate) fn new(rules: config::Identity, keys: BTreeMap<KeyHash, TenantId>) -> Self {
        Self { rules, keys }
    }

    /// The tenant of a request with these headers from `peer`.
    pub(crate) fn who(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        desk: &Desk,
    ) -> Result<TenantId, Unknown> {
        let anonymous = self.rules.anonymous == Anonymous::Allow;
        if let Some(key) = key(headers) {
            if let Some(tenant) = self.keys.get(&KeyHash::of(key)) {
                return Ok(*tenant);
            }
            // Clients can't be made to send no key, so where there are none, any will do.
            if !anonymous || !self.keys.is_empty() {
                return Err(Unknown);
            }
        }
        let mut names = headers.get_all(TENANT).iter();
        if let Some(name) = names.next()
            && self.rules.trusts(peer)
        {
            // Two of them come of a proxy that adds to what a client sent: neither can be believed.
            if names.next().is_some() {
                return Err(Unknown);
            }
            let name = name.to_str().map_err(|_| Unknown)?;
            return if is_name(name) {
                Ok(desk.tenant_named_by_header(name))
            } else {
                Err(Unknown)
            };
        }
        if anonymous {
            Ok(desk.tenant_named_by_header(config::ANONYMOUS))
        } else {
            Err(Unknown)
        }
    }
}

/// The key that a request carries, in the first of the places where clients put it.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
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
    fn a_tenants_name_is_short_and_plain() {
        for name in ["a", "team-7", "A.b_c", &"n".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "a/b", "a\"", "é", &"n".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
