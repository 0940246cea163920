//! A map for keys that nobody outside chooses: numbers we gave ourselves, and words of our own.
//!
//! The hash of the standard library's withstands callers that choose keys to collide, which costs
//! several times what finding such a key does. So this one is not for names that callers send.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Such a map.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// Its hash: each word is folded in by one multiplication (Fibonacci hashing: Knuth, The Art of
/// Computer Programming, volume 3, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quick(u64);

/// 2^64 over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Quick {
    fn fold(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
}

impl Hasher for Quick {
    /// The high bits are the good ones, and the map finds a place by the low ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words
            .iter()
            .for_each(|word| self.fold(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last));
    }

    fn write_u8(&mut self, number: u8) {
        self.fold(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.fold(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.fold(number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher as _, Hash};

    use super::*;

    /// Places that these keys have among 1,024.
    fn places<K: Hash>(keys: impl Iterator<Item = K>) -> usize {
        let hash = BuildHasherDefault::<Quick>::default();
        let place = |key: K| hash.hash_one(key) & 1_023;
        keys.map(place).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn numbers_in_a_row_and_words_that_differ_in_a_letter_are_spread() {
        // Of 1,024 balls thrown into 1,024 places at random, some 647 find one of their own.
        assert!(places(0..1_024_u64) > 600);
        assert!(places((0..1_024_u64).map(|n| n << 20)) > 600);
        assert!(places((0..1_024_u32).map(|n| (n % 4, format!("word-{n}")))) > 500);
    }
}
