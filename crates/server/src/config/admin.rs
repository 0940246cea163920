//! The `admin` section: where an operator looks into the gateway and changes who may call.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::decode::{Cursor, Fields};
use super::expand::Env;
use super::key::KeyHash;
use super::{server, tenants};

/// What admin keys without a name are called.
const NAME: &str = "admin";

/// The operator's listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where it is.
    pub listen: SocketAddr,
    /// Who may come in, by key. Without any, whoever reaches it may look at the queue, and nobody
    /// may do more.
    pub keys: BTreeMap<KeyHash, String>,
}

/// Reads the operator's listener. Where it asks for no key, only this computer may reach it.
pub(super) fn read(section: &Cursor<'_>, listen: SocketAddr, env: Env<'_>) -> Option<AdminConfig> {
    section
        .mapping(|fields| {
            let keys = fields.optional("keys", |value| {
                value
                    .secret()
                    .list(|item| item.mapping(|fields| key(fields, env)).flatten())
            });
            let with_keys = fields
                .find("keys")
                .is_some_and(|value| !value.is_empty_list());
            let address = fields.optional("listen", |value| address(&value, listen, with_keys));
            Some(AdminConfig {
                listen: address?,
                keys: keys.unwrap_or_default().into_iter().collect(),
            })
        })
        .flatten()
}

fn address(value: &Cursor<'_>, listen: SocketAddr, with_keys: bool) -> Option<SocketAddr> {
    let address = server::listen(value)?;
    if !address.ip().is_loopback() && !with_keys {
        value.report(format!(
            "is {address}, which other computers reach; it asks for no key, so use 127.0.0.1 or \
             [::1], or set admin.keys"
        ));
        return None;
    }
    if address == listen && address.port() != 0 {
        value.report(format!("is {address}, where the API listens already"));
        return None;
    }
    Some(address)
}

fn key(fields: &mut Fields<'_, '_>, env: Env<'_>) -> Option<(KeyHash, String)> {
    let name = fields.optional("name", |value| value.name("._-", 64).map(str::to_owned));
    let hash = tenants::key_hash(fields, env)?;
    Some((hash, name.unwrap_or_else(|| NAME.to_owned())))
}
