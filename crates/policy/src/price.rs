//! What usage costs: integers to the end, rounded once for each request.
//!
//! It knows neither dates nor time zones: which price holds when is the driver's to say.

use crate::units::{KvByteMicros, NanoUsd};
use crate::usage::Usage;

/// What a model's usage costs, each in nano-dollars for a million: of tokens, or of millionths of a
/// GiB-second, which is one GiB-second. So a price of a fraction of a nano-dollar a token is a
/// whole number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// A million prompt tokens that were computed.
    pub prompt: NanoUsd,
    /// A million prompt tokens whose KV was reused.
    pub cached: NanoUsd,
    /// A million generated tokens.
    pub output: NanoUsd,
    /// A GiB of KV held for a second.
    pub kv: NanoUsd,
}

impl Price {
    /// Nothing costs anything.
    pub const FREE: Self = Self {
        prompt: NanoUsd::ZERO,
        cached: NanoUsd::ZERO,
        output: NanoUsd::ZERO,
        kv: NanoUsd::ZERO,
    };

    /// What a request costs that used this; half a nano-dollar counts as a whole one.
    pub fn cost(self, usage: Usage, kv: KvByteMicros) -> NanoUsd {
        const MILLION: u128 = 1_000_000;
        let part = |price: NanoUsd, count: u128| u128::from(price.get()).saturating_mul(count);
        let computed = usage.prompt - usage.cached;
        let parts = [
            part(self.prompt, u128::from(computed.get())),
            part(self.cached, u128::from(usage.cached.get())),
            part(self.output, u128::from(usage.output.get())),
            part(self.kv, u128::from(kv.micro_gib_secs())),
        ];
        let sum = parts.into_iter().fold(0, u128::saturating_add);
        let rounded = sum.saturating_add(MILLION / 2) / MILLION;
        NanoUsd::new(u64::try_from(rounded).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    fn usage(prompt: u64, cached: u64, output: u64) -> Usage {
        Usage {
            prompt: Tokens::new(prompt),
            cached: Tokens::new(cached),
            output: Tokens::new(output),
        }
    }

    #[test]
    fn each_kind_of_token_has_its_own_price() {
        let price = Price {
            prompt: NanoUsd::new(150_000_000),
            cached: NanoUsd::new(37_500_000),
            output: NanoUsd::new(600_000_000),
            kv: NanoUsd::new(1_000),
        };
        let kv = KvByteMicros::from_gib_secs(3);
        // 176 * 150 + 1,024 * 37.5 + 80 * 600 + 3 * 1,000
        let cost = price.cost(usage(1_200, 1_024, 80), kv);
        assert_eq!(cost, NanoUsd::new(26_400 + 38_400 + 48_000 + 3_000));
    }

    #[test]
    fn a_fraction_is_rounded_once_and_not_for_each_kind() {
        let third = NanoUsd::new(333_333);
        let price = Price {
            prompt: third,
            cached: third,
            output: third,
            kv: NanoUsd::ZERO,
        };
        let cost = price.cost(usage(2, 1, 1), KvByteMicros::ZERO);
        assert_eq!(cost, NanoUsd::new(1));
        assert_eq!(
            price.cost(usage(1, 0, 0), KvByteMicros::ZERO),
            NanoUsd::ZERO
        );
    }

    #[test]
    fn absurd_usage_saturates() {
        let price = Price {
            prompt: NanoUsd::new(u64::MAX),
            ..Price::FREE
        };
        let cost = price.cost(usage(u64::MAX, 0, 0), KvByteMicros::ZERO);
        assert_eq!(cost, NanoUsd::new(u64::MAX));
    }
}
