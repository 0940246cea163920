//! How one sequence chooses its next token from llama.cpp's logits.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;

use crate::backend::Begin;
use crate::job::Sampling;
use crate::llama::model::LlamaModel;
use crate::model::Model as _;

/// What one sequence's sampling remembers: its random state, and what penalties count.
pub(crate) enum Chooser {
    /// The largest logit. Without llama.cpp's samplers, which would first copy the whole
    /// vocabulary.
    Greedy {
        /// Whether the end of a turn is never chosen.
        ignore_eos: bool,
    },
    Chain(LlamaSampler),
}

impl Chooser {
    pub(crate) fn new(begin: &Begin, model: &LlamaModel) -> Self {
        if begin.sampling.is_plainly_greedy() {
            return Self::Greedy {
                ignore_eos: begin.ignore_eos,
            };
        }
        Self::Chain(chain(begin, model))
    }

    /// The token after the batch's token at `index`, whose logits were computed.
    pub(crate) fn choose(
        &mut self,
        context: &LlamaContext<'_>,
        index: i32,
        model: &LlamaModel,
    ) -> LlamaToken {
        match self {
            Self::Greedy { ignore_eos } => {
                let banned = if *ignore_eos { model.ends() } else { &[] };
                largest(context.get_logits_ith(index), banned)
            }
            Self::Chain(chain) => chain.sample(context, index),
        }
    }
}

/// Of equal logits the first counts.
fn largest(logits: &[f32], banned: &[LlamaToken]) -> LlamaToken {
    let tokens = (0..).map(LlamaToken::new).zip(logits);
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    match tokens.clone().find(|(_, logit)| **logit >= best) {
        Some((token, _)) if !banned.contains(&token) => token,
        _ => {
            let allowed = tokens.filter(|(token, _)| !banned.contains(token));
            let best = allowed.max_by(|(one, a), (two, b)| a.total_cmp(b).then(two.cmp(one)));
            best.map_or_else(|| LlamaToken::new(0), |(token, _)| token)
        }
    }
}

/// In llama.cpp's own order: what changes logits, what cuts candidates off, the temperature, the
/// choice.
fn chain(begin: &Begin, model: &LlamaModel) -> LlamaSampler {
    let Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        seed: _,
    } = begin.sampling;
    let vocabulary = i32::try_from(model.vocabulary()).unwrap_or(i32::MAX);
    let mut chain = Vec::new();
    if begin.ignore_eos {
        let never = |token: &LlamaToken| LlamaLogitBias::new(*token, f32::NEG_INFINITY);
        let biases: Vec<_> = model.ends().iter().map(never).collect();
        chain.push(LlamaSampler::logit_bias(vocabulary, &biases));
    }
    let penalties = Sampling {
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        ..Sampling::greedy()
    };
    if !penalties.is_plainly_greedy() {
        // All of the output counts, as the context bounds it.
        let last = i32::try_from(model.context().get()).unwrap_or(i32::MAX);
        chain.push(LlamaSampler::penalties(
            vocabulary,
            last,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
        ));
    }
    if temperature <= 0.0 {
        chain.push(LlamaSampler::greedy());
        return LlamaSampler::chain_simple(chain);
    }
    if let Some(top_k) = top_k {
        chain.push(LlamaSampler::top_k(
            i32::try_from(top_k).unwrap_or(i32::MAX),
        ));
    }
    if top_p < 1.0 {
        chain.push(LlamaSampler::top_p(top_p, 1));
    }
    if min_p > 0.0 {
        chain.push(LlamaSampler::min_p(min_p, 1));
    }
    chain.push(LlamaSampler::temp(temperature));
    chain.push(LlamaSampler::dist(seed(begin.seed)));
    LlamaSampler::chain_simple(chain)
}

/// llama.cpp's seeds are shorter, and take the largest for "at random" (`LLAMA_DEFAULT_SEED` in
/// llama.h).
fn seed(seed: u64) -> u32 {
    let folded = (seed ^ (seed >> 32)) & u64::from(u32::MAX);
    u32::try_from(folded).map_or(0, |seed| seed.min(u32::MAX - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_logits_is_chosen() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0], &[]), LlamaToken::new(1));
    }

    #[test]
    fn a_banned_token_is_not_chosen_however_large_its_logit() {
        let banned = [LlamaToken::new(1)];
        assert_eq!(largest(&[1.0, 9.0, 3.0, 3.0], &banned), LlamaToken::new(2));
    }

    #[test]
    fn no_seed_means_at_random() {
        assert_eq!(seed(u64::from(u32::MAX)), u32::MAX - 1);
        assert_eq!(seed(7), 7);
        assert_ne!(seed(7 << 32), seed(8 << 32));
    }
}
