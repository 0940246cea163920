//! Seeded streams of chance: one for each purpose of each tenant.
//!
//! A stream is found by name and not by its place in a list, so that another tenant, or one more
//! draw for another purpose, leaves it as it was. A stream must never be shared between purposes.

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// What the numbers of a stream are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// When requests come.
    Arrivals,
    /// How the rate of requests changes.
    Rate,
    /// How long prompts are.
    Prompt,
    /// How long outputs are.
    Output,
    /// Where inside its tick a traced request stood.
    Tick,
    /// In which order gaps come.
    Shuffle,
    /// What prompts begin with alike.
    Prefix,
    /// What follows in a session.
    Turns,
    /// What a client does before its answer is whole.
    Client,
    /// How long a client waits before it asks again.
    Retry,
    /// What goes wrong, and when.
    Fault,
}

impl Purpose {
    const fn number(self) -> u64 {
        match self {
            Self::Arrivals => 1,
            Self::Rate => 2,
            Self::Prompt => 3,
            Self::Output => 4,
            Self::Tick => 5,
            Self::Shuffle => 8,
            Self::Prefix => 6,
            Self::Turns => 7,
            Self::Client => 8,
            Self::Retry => 9,
            Self::Fault => 10,
        }
    }
}

/// The stream of `tenant` for `purpose` in the run with this seed.
pub(crate) fn stream(seed: u64, purpose: Purpose, tenant: &str) -> Pcg64 {
    Pcg64::seed_from_u64(mix(named(seed, tenant) ^ mix(purpose.number())))
}

/// A number for this name.
pub(crate) fn named(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed), |state, byte| {
        mix(state ^ u64::from(byte).wrapping_add(1))
    })
}

/// A number in `[0, 1)`, of the 53 bits that a float can tell apart.
pub(crate) fn unit(rng: &mut Pcg64) -> f64 {
    const STEP: f64 = 1.0 / 9_007_199_254_740_992.0;
    (rng.next_u64() >> 11) as f64 * STEP
}

/// A bijection under which close numbers end up far apart (the finalizer of SplitMix64: Steele et
/// al., OOPSLA 2014).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: u64, purpose: Purpose, tenant: &str) -> u64 {
        stream(seed, purpose, tenant).next_u64()
    }

    #[test]
    fn seed_purpose_and_tenant_each_change_the_stream() {
        let base = first(1, Purpose::Arrivals, "quiet");
        assert_eq!(base, first(1, Purpose::Arrivals, "quiet"));
        for other in [
            first(2, Purpose::Arrivals, "quiet"),
            first(1, Purpose::Rate, "quiet"),
            first(1, Purpose::Arrivals, "quie"),
            first(1, Purpose::Arrivals, "quiet\0"),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_unit_interval_is_filled_evenly() {
        let mut rng = stream(1, Purpose::Prompt, "a");
        let (mut counts, draws) = ([0_u32; 10], 10_000);
        for _ in 0..draws {
            let number = unit(&mut rng);
            assert!((0.0..1.0).contains(&number));
            counts[(number * 10.0) as usize] += 1;
        }
        // Five standard deviations of a count of 1,000.
        assert!(counts.iter().all(|count| count.abs_diff(1_000) < 150));
    }
}
