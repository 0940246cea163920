//! Ranges of addresses, for deciding whether a peer is trusted. Decides by the address handed in,
//! reads no header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that share their first `prefix` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    // invariant: the bits behind the prefix are zero
    address: IpAddr,
    // invariant: <= 32 for IPv4, <= 128 for IPv6
    prefix: u32,
}

/// Why text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotANetwork {
    /// It does not read as one.
    #[error("use a network like 10.0.0.0/8, or one address")]
    Unreadable,
    /// The address has bits behind its prefix; this is the network that it lies in.
    #[error("it has bits behind its prefix; use {}/{}", .0.address, .0.prefix)]
    HostBits(Network),
    /// An IPv4 network written as IPv6. Peers are compared as IPv4, so it would never match.
    #[error("write it as an IPv4 network")]
    Mapped,
}

impl Network {
    /// This computer over IPv4 and IPv6.
    pub const LOOPBACK: [Self; 2] = [
        Self {
            address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
            prefix: 8,
        },
        Self {
            address: IpAddr::V6(Ipv6Addr::LOCALHOST),
            prefix: 128,
        },
    ];

    /// Whether `peer` is in it. An IPv4 peer of an IPv6 socket counts as IPv4.
    pub fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        width(peer) == width(self.address) && masked(peer, self.prefix) == self.address
    }

    /// Reads `address/prefix`, or an address alone.
    pub(super) fn read(text: &str) -> Result<Self, NotANetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork::Unreadable)?;
        let prefix = match prefix {
            Some(digits) if digits.chars().all(|c| c.is_ascii_digit()) => digits.parse().ok(),
            Some(_) => None,
            None => Some(width(address)),
        };
        let prefix = prefix
            .filter(|prefix| *prefix <= width(address))
            .ok_or(NotANetwork::Unreadable)?;
        if address.to_canonical() != address {
            return Err(NotANetwork::Mapped);
        }
        let network = Self {
            address: masked(address, prefix),
            prefix,
        };
        match network.address == address {
            true => Ok(network),
            false => Err(NotANetwork::HostBits(network)),
        }
    }
}

/// Bits in an address of this kind.
const fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => Ipv4Addr::BITS,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    }
}

/// `address` with the bits behind `prefix` cleared.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    // A shift by the whole width is no shift in Rust: prefix 0 has the empty mask.
    let cleared = width(address).saturating_sub(prefix);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(cleared).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(cleared).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, peer: &str) -> bool {
        Network::read(network)
            .unwrap()
            .contains(peer.parse().unwrap())
    }

    #[test]
    fn a_prefix_decides_up_to_its_last_bit() {
        assert!(contains("10.0.0.0/8", "10.255.255.255"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("10.0.0.4/31", "10.0.0.5"));
        assert!(!contains("10.0.0.4/31", "10.0.0.6"));
        assert!(contains("0.0.0.0/0", "255.1.2.3"));
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!contains("2001:db8::/32", "2001:db9::"));
        assert!(contains("::/0", "2001:db9::"));
    }

    #[test]
    fn one_address_is_a_network_of_its_own() {
        assert!(contains("10.0.0.1", "10.0.0.1"));
        assert!(!contains("10.0.0.1", "10.0.0.2"));
    }

    #[test]
    fn a_v4_peer_of_a_v6_socket_is_a_v4_peer() {
        assert!(contains("127.0.0.0/8", "::ffff:127.0.0.1"));
        assert!(!contains("::/0", "::ffff:127.0.0.1"));
        assert!(!contains("0.0.0.0/0", "::1"));
    }

    #[test]
    fn what_would_not_match_as_meant_is_refused() {
        for text in [
            "",
            "localhost",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "::1/129",
            "10.0.0/8",
        ] {
            assert_eq!(Network::read(text), Err(NotANetwork::Unreadable), "{text}");
        }
        let network = Network::read("10.0.0.0/8").unwrap();
        assert_eq!(
            Network::read("10.1.2.3/8"),
            Err(NotANetwork::HostBits(network))
        );
        assert_eq!(
            Network::read("::ffff:10.0.0.0/104"),
            Err(NotANetwork::Mapped)
        );
    }
}
