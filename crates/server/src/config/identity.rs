//! The `identity` section: who callers are taken to be.

use std::net::{IpAddr, SocketAddr};

use super::decode::{Cursor, Fields};
use super::network::Network;

/// What happens to a caller without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// It is refused.
    #[default]
    Deny,
    /// It is the tenant `anonymous`.
    Allow,
}

/// Who callers are taken to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What happens to a caller without a key.
    pub anonymous: Anonymous,
    /// Whether trusted peers may name the tenant in a header.
    pub trust_tenant_header: bool,
    /// The peers that may, if anyone may.
    pub trusted_peers: Vec<Network>,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            anonymous: Anonymous::Deny,
            trust_tenant_header: false,
            trusted_peers: Network::LOOPBACK.to_vec(),
        }
    }
}

impl Identity {
    /// Whether a tenant header counts from this peer: the address of the socket, never one that a
    /// header names.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trust_tenant_header
            && self
                .trusted_peers
                .iter()
                .any(|network| network.contains(peer))
    }

    pub(super) fn read(section: &Cursor<'_>, listen: SocketAddr) -> Option<Self> {
        section.mapping(|fields| Self::read_fields(fields, listen))
    }

    fn read_fields(fields: &mut Fields<'_, '_>, listen: SocketAddr) -> Self {
        let default = Self::default();
        let choices = [("deny", Anonymous::Deny), ("allow", Anonymous::Allow)];
        let identity = Self {
            // A misspelt value does not count as `deny`, or it would be reported as shutting
            // everyone out as well.
            anonymous: match fields.find("anonymous") {
                Some(value) => value.choice(&choices).unwrap_or(Anonymous::Allow),
                None => default.anonymous,
            },
            trust_tenant_header: fields
                .optional("trust_tenant_header", |value| value.boolean())
                .unwrap_or(default.trust_tenant_header),
            trusted_peers: fields
                .optional("trusted_peers", |value| value.list(network))
                .unwrap_or(default.trusted_peers),
        };
        let nobody = fields
            .find("trusted_peers")
            .is_some_and(|value| value.is_empty_list());
        if identity.trust_tenant_header && nobody {
            fields.report(
                "trusted_peers",
                format!(
                    "is empty, so nobody who reaches {listen} may name a tenant; name the peers, \
                     or set trust_tenant_header: false"
                ),
            );
        }
        identity
    }
}

fn network(value: Cursor<'_>) -> Option<Network> {
    let text = value.text("a network like 10.0.0.0/8")?;
    match Network::read(text) {
        Ok(network) => Some(network),
        Err(why) => {
            value.report(format!("is {}; {why}", value.shown()));
            None
        }
    }
}
