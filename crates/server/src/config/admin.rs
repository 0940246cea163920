//! The `admin` section: where an operator looks into the queue.

use std::net::SocketAddr;

use super::decode::Cursor;
use super::server;

/// Reads the address of the operator's listener. Whoever reaches it sees every tenant, and nobody
/// is asked for a key; so only this computer may.
pub(super) fn read(section: &Cursor<'_>, listen: SocketAddr) -> Option<SocketAddr> {
    section
        .mapping(|fields| {
            fields.optional("listen", |value| {
                let address = server::listen(&value)?;
                if !address.ip().is_loopback() {
                    value.report(format!(
                        "is {address}, which other computers reach; it asks for no key, so use \
                         127.0.0.1 or [::1]"
                    ));
                    return None;
                }
                if address == listen && address.port() != 0 {
                    value.report(format!("is {address}, where the API listens already"));
                    return None;
                }
                Some(address)
            })
        })
        .flatten()
}
