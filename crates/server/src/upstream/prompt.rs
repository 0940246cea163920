//! How long a prompt is, and what an answer comes to, before the engine has said so: counted where
//! the model's own tokenizer is there, and reckoned from bytes otherwise.
//!
//! Counting takes time, so there is a bound on what is counted; past it, length has to do. What the
//! engine counted in the end is the truth, and everything here learns from it.

use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;
use tollgate_wire::{PromptSize, Relay, RelayKind, Whole};

use super::model::RemoteModel;
use crate::upstream::tokenizer::{Around, Tokenizer};

/// Tokens that a picture, a sound or a file is taken for until the engine has counted: about what
/// vision models make of a picture of ordinary size.
const MEDIA_TOKENS: u64 = 576;

/// Bytes of a prompt's text that are counted. At some megabytes a second that is a tenth of a
/// second, on a thread that carries no other request.
const PROMPT_MAX: u64 = 256 << 10;

/// Bytes of an answer's text that are kept and counted, by the thread that carries other requests
/// too.
const ANSWER_MAX: usize = 16 << 10;

/// A prompt, as far as it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    size: PromptSize,
    counted: Option<Counted>,
}

/// What a tokenizer makes of it.
#[derive(Clone, Copy, Debug)]
struct Counted {
    tokens: Tokens,
    /// Messages around which the engine's template writes something; none where there is no
    /// template.
    messages: u64,
}

impl RemoteModel {
    /// Measures the prompt of a request, `body` being the one that was read.
    pub(crate) fn measure(&self, kind: RelayKind, relay: &Relay, body: &[u8]) -> Prompt {
        let counts = relay.size.text_bytes <= PROMPT_MAX;
        let tokenizer = self.config.tokenizer.as_ref().filter(|_| counts);
        Prompt {
            size: relay.size,
            counted: tokenizer.and_then(|rules| counted(rules, kind, relay, body)),
        }
    }

    /// The tokens that a prompt is likely to have.
    pub(crate) fn reckon_prompt(&self, prompt: Prompt) -> Tokens {
        let size = prompt.size;
        let densities = self.densities();
        let text = match prompt.counted {
            Some(counted) => counted.tokens + densities.frame.reckon(counted.messages),
            None => densities.prompt.reckon(size.text_bytes),
        };
        let media = Tokens::new(size.media.saturating_mul(MEDIA_TOKENS));
        (text + media + Tokens::new(size.tokens)).max(Tokens::new(1))
    }

    /// The tokens that an answer is likely to have: each delta is one at least. `text` is what was
    /// kept of it.
    pub(crate) fn reckon_output(&self, text_bytes: u64, deltas: u64, text: Option<&str>) -> Tokens {
        let tokenizer = self.config.tokenizer.as_ref();
        let counted = tokenizer
            .zip(text)
            .and_then(|(tokenizer, text)| tokenizer.count(text, Around::LeftOut));
        let tokens = counted.map(Tokens::new);
        tokens
            .unwrap_or_else(|| self.densities().output.reckon(text_bytes))
            .max(Tokens::new(deltas))
    }

    /// The same of an answer in one piece.
    pub(crate) fn reckon_whole(&self, text_bytes: u64, body: &[u8]) -> Tokens {
        let short = usize::try_from(text_bytes).is_ok_and(|bytes| bytes <= ANSWER_MAX);
        if self.config.tokenizer.is_none() || !short {
            return self.reckon_output(text_bytes, 0, None);
        }
        let mut all = String::new();
        Whole::each_text(body, &mut |text| all.push_str(text));
        self.reckon_output(text_bytes, 0, Some(&all))
    }

    /// An engine has counted.
    pub(crate) fn learn(&self, prompt: Prompt, text_bytes: u64, counted: Usage) {
        let size = prompt.size;
        let mut densities = self.densities_mut();
        // What pictures are in tokens would be taken for what text is.
        if size.media == 0 && size.tokens == 0 {
            densities.prompt.learn(size.text_bytes, counted.prompt);
            if let Some(own) = prompt.counted {
                densities
                    .frame
                    .learn(own.messages, counted.prompt - own.tokens);
            }
        }
        densities.output.learn(text_bytes, counted.output);
        densities.untold = false;
    }

    /// An engine has answered, and not said what it used.
    pub(crate) fn heard_no_usage(&self) {
        self.densities_mut().untold = true;
    }

    /// Bytes of its next answer's text that are worth keeping: only an engine that does not count
    /// needs to be counted after.
    pub(crate) fn keeps(&self, answers: u32) -> Option<usize> {
        let counts = self.config.tokenizer.is_some() && answers == 1;
        (counts && self.densities().untold).then_some(ANSWER_MAX)
    }
}

/// Counts the texts of a prompt; `None` where the tokenizer can't.
fn counted(rules: &Tokenizer, kind: RelayKind, relay: &Relay, body: &[u8]) -> Option<Counted> {
    let (around, messages) = match kind {
        RelayKind::Chat => (Around::LeftOut, relay.messages(body)),
        RelayKind::Text | RelayKind::Embeddings => (Around::Counted, 0),
    };
    let mut sum = Some(0_u64);
    relay.each_text(body, &mut |text| {
        sum = sum.and_then(|sum| sum.checked_add(rules.count(text, around)?));
    });
    let tokens = Tokens::new(sum?);
    Some(Counted { tokens, messages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RemoteConfig, RemoteKind, RoutingConfig};
    use crate::upstream::Names;
    use crate::upstream::tokenizer::tests::words;

    fn model(tokenizer: Option<Tokenizer>) -> RemoteModel {
        let names = Names {
            here: "fast".into(),
            there: "qwen".into(),
        };
        let config = RemoteConfig {
            tokenizer,
            ..RemoteConfig::new(RemoteKind::Vllm)
        };
        RemoteModel::new(config, names, None, RoutingConfig::default(), [1; 32])
    }

    fn counting() -> RemoteModel {
        let folder = tempfile::tempdir().unwrap();
        model(Some(Tokenizer::load(&words(folder.path())).unwrap()))
    }

    fn prompt(model: &RemoteModel, kind: RelayKind, body: &str) -> Prompt {
        let relay = Relay::read(kind, body.as_bytes()).unwrap();
        model.measure(kind, &relay, body.as_bytes())
    }

    fn usage(prompt: u64) -> Usage {
        Usage {
            prompt: Tokens::new(prompt),
            cached: Tokens::ZERO,
            output: Tokens::new(1),
        }
    }

    #[test]
    fn a_picture_costs_the_same_whatever_its_size() {
        let size = |text_bytes, media| Prompt {
            size: PromptSize {
                text_bytes,
                media,
                tokens: 0,
            },
            counted: None,
        };
        let model = model(None);
        assert_eq!(model.reckon_prompt(size(40, 1)), Tokens::new(10 + 576));
        assert_eq!(model.reckon_prompt(size(0, 0)), Tokens::new(1));
    }

    #[test]
    fn a_prompt_is_counted_where_the_tokenizer_is_there() {
        let body = r#"{"model":"m","prompt":"a river of antidisestablishmentarianism"}"#;
        let model = counting();
        let own = prompt(&model, RelayKind::Text, body);
        assert_eq!(model.reckon_prompt(own), Tokens::new(4 + 1));
        let bare = self::model(None);
        let reckoned = bare.reckon_prompt(prompt(&bare, RelayKind::Text, body));
        assert_eq!(reckoned, Tokens::new(10));
    }

    #[test]
    fn what_a_template_writes_around_messages_is_learned_from_the_engine() {
        let body = r#"{"model":"m","messages":[{"role":"system","content":"a b"},
            {"role":"user","content":"c d e"}]}"#;
        let model = counting();
        let own = prompt(&model, RelayKind::Chat, body);
        for _ in 0..200 {
            model.learn(own, 4, usage(5 + 2 * 9));
        }
        assert_eq!(model.reckon_prompt(own), Tokens::new(5 + 2 * 9));
    }

    #[test]
    fn a_prompt_that_takes_long_to_count_is_reckoned_by_its_length() {
        let text = "w ".repeat(200 << 10);
        let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        let model = counting();
        let own = prompt(&model, RelayKind::Text, &body);
        assert!(own.counted.is_none());
        assert_eq!(model.reckon_prompt(own), Tokens::new(100 << 10));
    }

    #[test]
    fn an_answer_is_kept_only_where_its_engine_does_not_count() {
        let model = counting();
        assert_eq!(model.keeps(1), None);
        model.heard_no_usage();
        assert_eq!(model.keeps(1), Some(ANSWER_MAX));
        assert_eq!(model.keeps(2), None, "which text is whose is not kept");
        let text = "a river runs by";
        let tokens = model.reckon_output(15, 2, Some(text));
        assert_eq!(tokens, Tokens::new(4));
        let body = format!(r#"{{"choices":[{{"message":{{"content":"{text}"}}}}]}}"#);
        assert_eq!(model.reckon_whole(15, body.as_bytes()), Tokens::new(4));
        model.learn(
            prompt(&model, RelayKind::Text, r#"{"model":"m","prompt":"a"}"#),
            15,
            usage(2),
        );
        assert_eq!(model.keeps(1), None);
        let bare = self::model(None);
        bare.heard_no_usage();
        assert_eq!(bare.keeps(1), None);
    }
}
