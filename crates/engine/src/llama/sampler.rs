//! How one sequence chooses its next token from llama.cpp's logits.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;

use crate::backend::{Begin, Drawn, Likelihood};
use crate::job::{Sampling, Token};
use crate::llama::model::LlamaModel;
use crate::llama::plain::Plain;
use crate::model::{GrammarError, Model as _};

/// What one sequence's sampling remembers: its random state, what penalties count, and where in its
/// grammar it is.
pub(crate) struct Chooser {
    how: How,
    /// How many of the likeliest tokens to tell of.
    logprobs: Option<usize>,
}

enum How {
    /// The largest logit. Without llama.cpp's samplers, which would first copy the whole
    /// vocabulary.
    Greedy {
        /// Whether the end of a turn is never chosen.
        ignore_eos: bool,
    },
    /// Temperature alone.
    Plain {
        plain: Plain,
        /// As above.
        ignore_eos: bool,
    },
    Chain(LlamaSampler),
    Constrained(Constrained),
}

impl Chooser {
    pub(crate) fn new(begin: &Begin, model: &LlamaModel) -> Result<Self, GrammarError> {
        let sampling = &begin.sampling;
        let how = match &sampling.grammar {
            None if sampling.is_plainly_greedy() => How::Greedy {
                ignore_eos: begin.ignore_eos,
            },
            None if sampling.is_plain() => How::Plain {
                plain: Plain::new(sampling.temperature, begin.seed),
                ignore_eos: begin.ignore_eos,
            },
            None => How::Chain(chain(begin, model)),
            Some(grammar) => How::Constrained(Constrained {
                // A text is over when its grammar is, so the end of a turn must be possible.
                chain: chain(
                    &Begin {
                        ignore_eos: false,
                        ..begin.clone()
                    },
                    model,
                ),
                grammar: grammar_sampler(grammar, model)?,
            }),
        };
        let logprobs = sampling
            .logprobs
            .map(|top| usize::try_from(top).unwrap_or(0));
        Ok(Self { how, logprobs })
    }

    /// The token after the batch's token at `index`, whose logits were computed.
    pub(crate) fn choose(
        &mut self,
        context: &LlamaContext<'_>,
        index: i32,
        model: &LlamaModel,
    ) -> Result<Drawn, String> {
        let token = match &mut self.how {
            How::Greedy { ignore_eos } => {
                let banned = if *ignore_eos { model.ends() } else { &[] };
                largest(context.get_logits_ith(index), banned)
            }
            How::Plain { plain, ignore_eos } => {
                let banned = if *ignore_eos { model.ends() } else { &[] };
                plain.draw(context.get_logits_ith(index), banned)
            }
            How::Chain(chain) => chain.sample(context, index),
            How::Constrained(constrained) => constrained.choose(context, index)?,
        };
        let top = self.logprobs;
        Ok(Drawn::Token {
            token: Token::new(token.0),
            likely: top.map(|top| likelihood(context.get_logits_ith(index), token, top)),
        })
    }
}

/// Sampling held to a grammar.
struct Constrained {
    chain: LlamaSampler,
    grammar: LlamaSampler,
}

impl Constrained {
    /// Draws freely first: a grammar costs little for one token and much for a whole vocabulary.
    fn choose(&mut self, context: &LlamaContext<'_>, index: i32) -> Result<LlamaToken, String> {
        let mut free = context.token_data_array_ith(index);
        free.apply_sampler(&mut self.chain);
        let drawn = free.selected_token().filter(|token| self.allows(*token));
        let token = match drawn {
            Some(token) => token,
            None => self.draw_allowed(context, index)?,
        };
        self.chain.accept(token);
        self.grammar
            .try_accept(token)
            .map_err(|error| format!("the grammar went wrong: {error}"))?;
        Ok(token)
    }

    fn allows(&mut self, token: LlamaToken) -> bool {
        let mut one = LlamaTokenDataArray::new(vec![LlamaTokenData::new(token, 0.0, 0.0)], false);
        one.apply_sampler(&mut self.grammar);
        one.data.iter().all(|one| one.logit() > f32::NEG_INFINITY)
    }

    fn draw_allowed(
        &mut self,
        context: &LlamaContext<'_>,
        index: i32,
    ) -> Result<LlamaToken, String> {
        let mut held = context.token_data_array_ith(index);
        held.apply_sampler(&mut self.grammar);
        held.data.retain(|one| one.logit() > f32::NEG_INFINITY);
        if held.data.is_empty() {
            return Err("the grammar allows no token".into());
        }
        held.apply_sampler(&mut self.chain);
        let nothing = || "nothing was chosen of what the grammar allows".to_owned();
        held.selected_token().ok_or_else(nothing)
    }
}

/// What samples by a grammar, or why there is none.
pub(crate) fn grammar_sampler(
    grammar: &str,
    model: &LlamaModel,
) -> Result<LlamaSampler, GrammarError> {
    let sampler = LlamaSampler::grammar(model.weights(), grammar, "root");
    sampler.map_err(|_| GrammarError::NotAGrammar)
}

/// The logarithms of the probabilities that these logits stand for, of one token and the likeliest.
fn likelihood(logits: &[f32], token: LlamaToken, top: usize) -> Likelihood {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - most).exp())
        .sum();
    #[expect(clippy::cast_possible_truncation, reason = "a report")]
    let scale = most + sum.ln() as f32;
    let mut order: Vec<_> = (0..).zip(logits).collect();
    let likelier = |a: &(i32, &f32), b: &(i32, &f32)| b.1.total_cmp(a.1).then(a.0.cmp(&b.0));
    if top < order.len() {
        order.select_nth_unstable_by(top, likelier);
        order.truncate(top);
    }
    order.sort_unstable_by(likelier);
    let chosen = usize::try_from(token.0).ok().and_then(|at| logits.get(at));
    Likelihood {
        chosen: chosen.map_or(f32::NEG_INFINITY, |logit| logit - scale),
        top: order
            .into_iter()
            .map(|(token, logit)| (Token::new(token), logit - scale))
            .collect(),
    }
}

/// Of equal logits the first counts.
pub(super) fn largest(logits: &[f32], banned: &[LlamaToken]) -> LlamaToken {
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
        typical_p,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        seed: _,
        ref logit_bias,
        grammar: _,
        logprobs: _,
    } = begin.sampling;
    let vocabulary = i32::try_from(model.vocabulary()).unwrap_or(i32::MAX);
    let mut chain = Vec::new();
    let bias = |(token, bias): &(Token, f32)| {
        let token = LlamaToken::new(token.get());
        LlamaLogitBias::new(token, *bias)
    };
    let mut biases: Vec<_> = logit_bias.iter().map(bias).collect();
    if begin.ignore_eos {
        let never = |token: &LlamaToken| LlamaLogitBias::new(*token, f32::NEG_INFINITY);
        biases.extend(model.ends().iter().map(never));
    }
    if !biases.is_empty() {
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
    if typical_p < 1.0 {
        chain.push(LlamaSampler::typical(typical_p, 1));
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
