//! Sampling by temperature alone, which is what most requests ask for: two passes over the logits
//! and no copy of the vocabulary. llama.cpp's own samplers take several times as long for it.

use llama_cpp_2::token::LlamaToken;

use crate::llama::sampler::largest;
use crate::seed::mix;

/// Draws each token with the probability that its logit stands for.
pub(super) struct Plain {
    /// One over the temperature.
    sharpness: f32,
    chance: u64,
    /// Of each token, not normalized; kept for its memory.
    weights: Vec<f32>,
}

impl Plain {
    /// `temperature` is above zero.
    pub(super) fn new(temperature: f32, seed: u64) -> Self {
        Self {
            sharpness: temperature.recip(),
            chance: mix(seed),
            weights: Vec::new(),
        }
    }

    /// Never one of `banned`.
    pub(super) fn draw(&mut self, logits: &[f32], banned: &[LlamaToken]) -> LlamaToken {
        let place = |token: &LlamaToken| usize::try_from(token.0).unwrap_or(usize::MAX);
        let likeliest = largest(logits, banned);
        let most = logits.get(place(&likeliest)).copied().unwrap_or_default();
        let sharpness = self.sharpness;
        self.weights.clear();
        self.weights
            .extend(logits.iter().map(|logit| exp((logit - most) * sharpness)));
        for token in banned {
            if let Some(weight) = self.weights.get_mut(place(token)) {
                *weight = 0.0;
            }
        }
        // Sums of some hundred keep the error of the whole small, and find the place quickly.
        let sums: Vec<f64> = self.weights.chunks(CHUNK).map(sum).collect();
        let mut left = self.fraction() * sums.iter().sum::<f64>();
        let mut first = 0;
        for (chunk, total) in self.weights.chunks(CHUNK).zip(&sums) {
            if left < *total {
                for (token, weight) in (first..).zip(chunk) {
                    left -= f64::from(*weight);
                    if left < 0.0 {
                        return LlamaToken::new(token);
                    }
                }
            }
            left -= total;
            first += i32::try_from(chunk.len()).unwrap_or(0);
        }
        // Rounding put the place after the last one: any of the likely ones will do.
        likeliest
    }

    /// At least 0 and below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn fraction(&mut self) -> f64 {
        self.chance = mix(self.chance);
        (self.chance >> 11) as f64 / (1_u64 << 53) as f64
    }
}

const CHUNK: usize = 256;

fn sum(weights: &[f32]) -> f64 {
    f64::from(weights.iter().sum::<f32>())
}

/// e to the power of `x`, which is at most zero, within some millionths of it: without branches or
/// calls, so that many are computed at once.
fn exp(x: f32) -> f32 {
    // Adding this rounds to a whole number, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let twos = x.max(-87.0) * std::f32::consts::LOG2_E;
    let rounded = twos + ROUND;
    let rest = (twos - (rounded - ROUND)) * std::f32::consts::LN_2;
    let series = 1.0 / 24.0 + rest * (1.0 / 120.0);
    let series = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0 + rest * series)));
    series * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_one() {
        for step in 0..2_000_u16 {
            let x = -f32::from(step) / 25.0;
            let (got, wanted) = (exp(x), x.exp());
            assert!((got - wanted).abs() <= wanted * 5e-6, "{x}: {got} {wanted}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-36);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let logits: Vec<f32> = (0..600_u16).map(|n| f32::from(n % 3)).collect();
        let mut plain = Plain::new(0.5, 7);
        let mut counts = [0_u32; 3];
        for _ in 0..30_000 {
            let token = plain.draw(&logits, &[]).0;
            counts[usize::try_from(token % 3).unwrap()] += 1;
        }
        let all: f64 = (0..3).map(|n| (2.0 * f64::from(n)).exp()).sum();
        for (n, count) in (0..).zip(counts) {
            let wanted = 30_000.0 * (2.0 * f64::from(n)).exp() / all;
            assert!(
                (f64::from(count) - wanted).abs() < 5.0 * wanted.sqrt(),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn a_banned_token_is_never_drawn_however_likely() {
        let banned = [LlamaToken::new(1)];
        let mut plain = Plain::new(1.0, 3);
        for _ in 0..100 {
            assert_ne!(plain.draw(&[0.0, 200.0, 0.5], &banned), banned[0]);
        }
    }

    #[test]
    fn of_one_seed_come_the_same_tokens() {
        let logits = vec![0.0; 1_000];
        let draw = |seed| {
            let mut plain = Plain::new(1.0, seed);
            [0; 5].map(|_| plain.draw(&logits, &[]).0)
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
