//! Keys of callers, kept only as digests: what is not stored cannot leak.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// The SHA-256 of a key. It prints as `***`.
///
/// A plain hash is enough for keys drawn at random; it would not be for passwords.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of the key that a caller presents.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Its bytes, to be stored and for nothing else.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A hash that was stored.
    pub(crate) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Whether both are the same, found out in a time that does not tell how much of them is.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Reads 64 hexadecimal digits.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let digits: Vec<u32> = text
            .chars()
            .map(|c| c.to_digit(16))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => u8::try_from(high * 16 + low).ok(),
                _ => None,
            })
            .collect::<Option<_>>()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_from_hex_is_the_hash_of_its_key() {
        // The digest of "abc" in FIPS 180-2, appendix B.1.
        let hex = "BA7816BF8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::from_hex(hex), Some(KeyHash::of(b"abc")));
    }

    #[test]
    fn only_64_hexadecimal_digits_are_a_hash() {
        for text in [
            String::new(),
            "a".repeat(63),
            "a".repeat(66),
            "g".repeat(64),
            "é".repeat(32),
        ] {
            assert_eq!(KeyHash::from_hex(&text), None, "{text}");
        }
    }

    #[test]
    fn a_key_does_not_print() {
        assert_eq!(format!("{:?}", Some(KeyHash::of(b"abc"))), "Some(***)");
    }
}
