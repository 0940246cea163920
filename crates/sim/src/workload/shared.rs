//! What prompts begin with alike: system prompts, tools, documents that many ask about.

use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tollgate_policy::units::Tokens;

use crate::chance::{Purpose, named, stream, unit};
use crate::lengths::Lengths;

/// A family of beginnings, of which a prompt has one or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Length of each beginning, in tokens; a shorter prompt is the first part of it.
    pub tokens: u64,
    /// How many beginnings there are; at least 1.
    #[serde(default = "one")]
    pub variants: u32,
    /// Which part of the prompts has one; 0..=1.
    #[serde(default = "all")]
    pub share: f64,
    /// Tenants that name the same family have the same beginnings; a tenant that names none has
    /// its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
}

/// What a prompt begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// Equal numbers are equal texts.
    pub id: u64,
    /// How many tokens of it; at most as many as the prompt has.
    pub tokens: Tokens,
}

/// Why prompts cannot begin so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SharedError {
    /// No length, or none that a prompt has.
    #[error("a shared prefix of {tokens} tokens; use 1 to {}", Lengths::LONGEST)]
    Tokens {
        /// The length asked for.
        tokens: u64,
    },
    /// Nothing to choose from.
    #[error("0 variants of a shared prefix; use 1 or more")]
    NoVariants,
    /// No part of anything.
    #[error("a share of {0} prompts; use 0 to 1")]
    Share(f64),
}

impl SharedPrefix {
    /// Checks that beginnings can be drawn.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn check(&self) -> Result<(), SharedError> {
        let tokens = self.tokens;
        if tokens == 0 || tokens > Lengths::LONGEST {
            return Err(SharedError::Tokens { tokens });
        }
        if self.variants == 0 {
            return Err(SharedError::NoVariants);
        }
        if !(0.0..=1.0).contains(&self.share) {
            return Err(SharedError::Share(self.share));
        }
        Ok(())
    }
}

const fn one() -> u32 {
    1
}

const fn all() -> f64 {
    1.0
}

/// The beginnings of one tenant's prompts, as they are drawn.
#[derive(Clone, Debug)]
pub(super) struct Beginnings {
    tokens: Tokens,
    variants: u32,
    share: f64,
    family: u64,
    rng: Box<Pcg64>,
}

impl Beginnings {
    pub(super) fn new(shared: &SharedPrefix, seed: u64, tenant: &str) -> Self {
        let family = match &shared.family {
            Some(family) => named(seed, &format!("family {family}")),
            None => named(seed, &format!("tenant {tenant}")),
        };
        Self {
            tokens: Tokens::new(shared.tokens),
            variants: shared.variants,
            share: shared.share,
            family,
            rng: Box::new(stream(seed, Purpose::Prefix, tenant)),
        }
    }

    /// That of the next prompt, which has so many tokens.
    pub(super) fn draw(&mut self, prompt: Tokens) -> Option<Prefix> {
        // Both are drawn each time: the share then does not change who begins with what.
        let (has, which) = (unit(&mut self.rng), unit(&mut self.rng));
        let variant = (which * f64::from(self.variants)) as u64;
        (has < self.share).then(|| Prefix {
            id: self.family.wrapping_add(variant),
            tokens: self.tokens.min(prompt),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> SharedPrefix {
        SharedPrefix {
            tokens: 100,
            variants: 4,
            share: 0.7,
            family: None,
        }
    }

    fn drawn(shared: &SharedPrefix, tenant: &str) -> Vec<Option<Prefix>> {
        let mut beginnings = Beginnings::new(shared, 1, tenant);
        let prompt = Tokens::new(300);
        (0..10_000).map(|_| beginnings.draw(prompt)).collect()
    }

    #[test]
    fn as_many_prompts_as_the_share_begin_with_one_of_the_variants_evenly() {
        let drawn = drawn(&shared(), "a");
        let some: Vec<u64> = drawn.iter().flatten().map(|prefix| prefix.id).collect();
        // Five standard deviations of a count of 7,000, then of a quarter of it.
        assert!(some.len().abs_diff(7_000) < 230, "{}", some.len());
        let mut ids = some.clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
        for id in ids {
            let count = some.iter().filter(|some| **some == id).count();
            assert!(count.abs_diff(some.len() / 4) < 200, "{count}");
        }
    }

    #[test]
    fn only_tenants_of_one_family_begin_alike() {
        let ids = |shared: &SharedPrefix, tenant| {
            let ids = drawn(shared, tenant).into_iter().flatten();
            ids.map(|prefix| prefix.id)
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert!(ids(&shared(), "a").is_disjoint(&ids(&shared(), "b")));
        let family = SharedPrefix {
            family: Some("docs".to_owned()),
            ..shared()
        };
        assert_eq!(ids(&family, "a"), ids(&family, "b"));
    }

    #[test]
    fn no_prompt_shares_more_than_it_has() {
        let mut beginnings = Beginnings::new(
            &SharedPrefix {
                share: 1.0,
                ..shared()
            },
            1,
            "a",
        );
        let prefix = beginnings.draw(Tokens::new(30)).unwrap();
        assert_eq!(prefix.tokens, Tokens::new(30));
    }

    #[test]
    fn what_cannot_be_shared_is_refused_with_its_number() {
        let refused = |shared: SharedPrefix| shared.check().unwrap_err().to_string();
        assert!(
            refused(SharedPrefix {
                tokens: 0,
                ..shared()
            })
            .starts_with("a shared prefix of 0")
        );
        assert!(
            refused(SharedPrefix {
                variants: 0,
                ..shared()
            })
            .starts_with("0 variants")
        );
        assert_eq!(
            refused(SharedPrefix {
                share: 1.5,
                ..shared()
            }),
            "a share of 1.5 prompts; use 0 to 1"
        );
    }
}
