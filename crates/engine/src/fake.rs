//! A backend without a model: the same text for the same prompt and seed, at a cost that is written
//! down.
//!
//! A token is a byte, so characters are split over tokens. What comes next depends on every token
//! that the sequence computed, in order: a driver that skips one, computes one twice or mixes two
//! sequences up changes the text. Only what a prompt has between `\u{2}say:` and `\u{3}` is said as
//! it is: so a test, or a demonstration, gets the text that it wants. Time passes only through a
//! function that is handed in, and faults happen where they were asked for.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use tollgate_policy::ids::{RequestId, SeqId};
use tollgate_policy::kv::KvOp;
use tollgate_policy::units::{KvBytes, Micros, Tokens};

use crate::backend::{
    Backend, Begin, Drawn, FatalError, Likelihood, Open, OpenError, Sampled, SequenceError,
    StepWork,
};
use crate::job::Token;
use crate::model::{
    CallCount, CallStyle, ChatMessage, GrammarError, Model, TemplateError, TokenizeError, ToolOffer,
};
use crate::seed::mix;
use crate::tools;

/// The end of a turn; the tokens below it are bytes.
const END: i32 = 256;

/// What the text is made of. With characters of every length, and none that begins like another.
/// Each begins with a character of one token: else the first one of some answers would come tokens
/// late, which is no delay of an engine's or of a schedule's.
const WORDS: [&str; 8] = [
    "toll ", "gate ", "lane ", "-你好", "~🙂 ", "+é, ", "queue ", "fair\n",
];

/// Between these a prompt says what the answer is; the last such text counts.
const SCRIPT: (&[u8], i32) = (b"\x02say:", 3);

/// One in so many words is the end of the turn.
const WORDS_PER_END: u64 = 32;

/// The model of [`Fake`].
#[derive(Clone, Debug)]
pub struct FakeModel {
    context: Tokens,
    vector: Option<u32>,
}

impl FakeModel {
    /// A model with this context.
    pub const fn new(context: Tokens) -> Self {
        Self {
            context,
            vector: None,
        }
    }

    /// One that makes vectors of so many numbers, and no text.
    pub const fn with_vectors(context: Tokens, length: u32) -> Self {
        Self {
            context,
            vector: Some(length),
        }
    }
}

impl Model for FakeModel {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn context(&self) -> Tokens {
        self.context
    }

    /// As a model of 8 billion parameters: 32 layers, 8 heads of 128, keys and values in two bytes.
    fn kv_bytes_per_token(&self) -> KvBytes {
        KvBytes::new(2 * 2 * 32 * 8 * 128)
    }

    fn vocabulary(&self) -> u32 {
        257
    }

    fn max_token_bytes(&self) -> u32 {
        1
    }

    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        Ok(text
            .bytes()
            .map(|byte| Token::new(i32::from(byte)))
            .collect())
    }

    /// A line `role: content` for each message, then `assistant: `. As strict as the strictest
    /// template in use: a system message may come first, then users and assistants take turns, a
    /// user first.
    fn render_chat(
        &self,
        messages: &[ChatMessage],
        offers: &[ToolOffer],
    ) -> Result<String, TemplateError> {
        let told = tools::in_words(messages, offers);
        let messages = told.as_slice();
        let refuse = |reason: &str| {
            Err(TemplateError::Refused {
                reason: reason.into(),
            })
        };
        let turns = match messages {
            [] => return Err(TemplateError::NoMessages),
            [first, turns @ ..] if first.role == "system" => turns,
            turns => turns,
        };
        if turns.is_empty() {
            return refuse("a conversation needs a user message");
        }
        for (message, expected) in turns.iter().zip(["user", "assistant"].into_iter().cycle()) {
            if message.role != expected {
                return refuse("roles must alternate user, assistant, user, …");
            }
        }
        let mut prompt = String::new();
        for ChatMessage { role, content, .. } in messages {
            prompt.extend([role, ": ", content, "\n"]);
        }
        prompt.push_str("assistant: ");
        Ok(prompt)
    }

    fn call_style(&self) -> CallStyle {
        CallStyle::Tagged
    }

    fn call_grammar(&self, _: &[ToolOffer], _: CallCount) -> Result<String, GrammarError> {
        Err(GrammarError::Unsupported)
    }

    fn vector_length(&self) -> Option<u32> {
        self.vector
    }

    fn check_grammar(&self, _: &str) -> Result<(), GrammarError> {
        Err(GrammarError::Unsupported)
    }

    fn json_grammar(&self, _: Option<&str>) -> Result<String, GrammarError> {
        Err(GrammarError::Unsupported)
    }
}

/// What a step costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// For the step itself.
    pub step: Micros,
    /// For each sequence in it.
    pub per_sequence: Micros,
    /// How fast tokens of longer pieces than one are computed; `None` computes them at no cost.
    pub prefill_tokens_per_sec: Option<NonZeroU64>,
}

impl Costs {
    fn of(&self, work: &[StepWork<'_>]) -> Micros {
        let lengths = work.iter().map(|work| Tokens::of_len(work.tokens).get());
        let prefill: u64 = lengths.filter(|length| *length > 1).sum();
        let prefill = self
            .prefill_tokens_per_sec
            .map_or(0, |rate| prefill * 1_000_000 / rate);
        let sequences = Tokens::of_len(work).get() * self.per_sequence.get();
        self.step + Micros::new(sequences + prefill)
    }
}

/// What goes wrong, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests whose sequence can't begin.
    pub begin: Vec<RequestId>,
    /// Requests that fail in place of their n-th output token, counted from 1.
    pub output: Vec<(RequestId, u64)>,
    /// Steps, counted from 1, that fail as a whole.
    pub fatal_step: Option<u64>,
    /// Steps, counted from 1, that panic.
    pub panic_step: Option<u64>,
    /// A step, counted from 1, that takes so long.
    pub slow_step: Option<(u64, Micros)>,
}

/// A backend without a model.
pub struct Fake {
    costs: Costs,
    faults: Faults,
    spend: Box<dyn FnMut(Micros) + Send>,
    steps: u64,
    vector: Option<u32>,
    sequences: BTreeMap<SeqId, Sequence>,
    /// Stands for the KV of each sequence: at each position a digest of all tokens up to there.
    kv: BTreeMap<SeqId, Vec<Computed>>,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fake")
            .field("costs", &self.costs)
            .field("faults", &self.faults)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

/// What is left of a token that was computed.
#[derive(Clone, Copy, Debug, Default)]
struct Computed {
    digest: u64,
    token: i32,
}

struct Sequence {
    begin: Begin,
    /// What it is to say, where its prompt tells.
    script: Option<Vec<i32>>,
    /// What is left of the word under way.
    word: std::slice::Iter<'static, u8>,
    output: u64,
}

impl Fake {
    /// A backend that spends the cost of each step through `spend`.
    pub fn new(
        costs: Costs,
        faults: Faults,
        spend: impl FnMut(Micros) + Send + 'static,
    ) -> Box<Self> {
        Box::new(Self {
            costs,
            faults,
            spend: Box::new(spend),
            steps: 0,
            vector: None,
            sequences: BTreeMap::new(),
            kv: BTreeMap::new(),
        })
    }

    /// A backend that takes as long as its steps cost.
    pub fn in_real_time(costs: Costs, faults: Faults) -> Box<Self> {
        Self::new(costs, faults, |cost| {
            std::thread::sleep(std::time::Duration::from_micros(cost.get()));
        })
    }

    /// The same, making vectors where the model does.
    pub fn of(mut self: Box<Self>, model: &FakeModel) -> Box<Self> {
        self.vector = model.vector;
        self
    }

    fn advance(&mut self, work: &StepWork<'_>) -> Result<Sampled, FatalError> {
        let Some(sequence) = self.sequences.get_mut(&work.seq) else {
            return Err(FatalError {
                why: format!("sequence {} never began", work.seq),
            });
        };
        let kv = self.kv.entry(work.seq).or_default();
        if Tokens::of_len(kv) != work.start || work.tokens.is_empty() {
            let (seq, there) = (work.seq, kv.len());
            let why = format!("sequence {seq} has {there} tokens, {} is next", work.start);
            return Err(FatalError { why });
        }
        let failed = |why: &str| {
            Ok(Err(SequenceError {
                seq: work.seq,
                why: why.into(),
            }))
        };
        for token in work.tokens {
            let Ok(number) = u16::try_from(token.get()).map(u64::from) else {
                return failed("a token is not in the vocabulary");
            };
            let before = kv.last().copied().unwrap_or_default();
            kv.push(Computed {
                digest: mix(before.digest ^ number),
                token: token.get(),
            });
        }
        if !work.samples {
            return Ok(Ok(None));
        }
        let digest = kv.last().copied().unwrap_or_default().digest;
        if let Some(length) = self.vector {
            return Ok(Ok(Some(Drawn::Vector(vector(digest, length)))));
        }
        if sequence.output == 0 {
            sequence.script = script(kv);
        }
        let token = sequence.sample(digest);
        if self
            .faults
            .output
            .contains(&(sequence.begin.id, sequence.output))
        {
            return failed("a fault was asked for here");
        }
        let likely = sequence.begin.sampling.logprobs.map(|top| Likelihood {
            chosen: 0.0,
            top: vec![(token, 0.0); usize::from(top > 0)],
        });
        Ok(Ok(Some(Drawn::Token { token, likely })))
    }
}

impl Open for Fake {
    fn open(mut self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        run(self.as_mut());
        Ok(())
    }
}

impl Backend for Fake {
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError> {
        if self.faults.begin.contains(&begin.id) {
            return Err(SequenceError {
                seq,
                why: "a fault was asked for here".into(),
            });
        }
        let word = [].iter();
        let sequence = Sequence {
            begin: begin.clone(),
            script: None,
            word,
            output: 0,
        };
        self.sequences.insert(seq, sequence);
        Ok(())
    }

    /// # Panics
    ///
    /// When a sequence is to have what another one has not: a mistake of the driver.
    fn apply(&mut self, op: KvOp) {
        let at = |tokens: Tokens| usize::try_from(tokens.get()).unwrap_or(usize::MAX);
        match op {
            KvOp::Copy {
                from,
                to,
                start,
                end,
            } => {
                let source = self.kv.get(&from).and_then(|kv| kv.get(at(start)..at(end)));
                assert!(
                    source.is_some(),
                    "sequence {from} has not all of {start} to {end}"
                );
                let copied = source.unwrap_or_default().to_vec();
                let kv = self.kv.entry(to).or_default();
                assert_eq!(kv.len(), at(start), "sequence {to} goes on elsewhere");
                kv.extend(copied);
            }
            KvOp::Trim { seq, from } => {
                if let Some(kv) = self.kv.get_mut(&seq) {
                    kv.truncate(at(from));
                }
            }
            KvOp::End { seq } => {
                self.kv.remove(&seq);
                self.sequences.remove(&seq);
            }
        }
    }

    /// # Panics
    ///
    /// At the step that [`Faults`] names.
    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        self.steps += 1;
        (self.spend)(self.costs.of(work));
        if let Some((step, time)) = self.faults.slow_step
            && step == self.steps
        {
            (self.spend)(time);
        }
        assert_ne!(
            Some(self.steps),
            self.faults.panic_step,
            "a panic was asked for here"
        );
        if Some(self.steps) == self.faults.fatal_step {
            return Err(FatalError {
                why: "a fault was asked for here".into(),
            });
        }
        for work in work {
            let result = self.advance(work)?;
            results.push(result);
        }
        Ok(())
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.get()));
    }

    fn is_end(&self, token: Token) -> bool {
        token.get() == END
    }
}

impl Sequence {
    fn sample(&mut self, digest: u64) -> Token {
        self.output += 1;
        if let Some(script) = &self.script {
            let place = usize::try_from(self.output - 1).unwrap_or(usize::MAX);
            return Token::new(script.get(place).copied().unwrap_or(END));
        }
        if self.word.as_slice().is_empty() {
            let seed = if self.begin.sampling.temperature > 0.0 {
                self.begin.seed
            } else {
                0
            };
            let chance = mix(digest ^ mix(seed));
            if chance.is_multiple_of(WORDS_PER_END) && !self.begin.ignore_eos {
                return Token::new(END);
            }
            let count = u64::try_from(WORDS.len()).unwrap_or(1);
            let choice = usize::try_from(chance / WORDS_PER_END % count).unwrap_or(0);
            self.word = WORDS[choice].as_bytes().iter();
        }
        Token::new(self.word.next().copied().map_or(END, i32::from))
    }
}

/// What a prompt says that the answer is.
fn script(kv: &[Computed]) -> Option<Vec<i32>> {
    let (opening, closing) = SCRIPT;
    let end = kv.iter().rposition(|one| one.token == closing)?;
    let text: Vec<i32> = kv[..end].iter().map(|one| one.token).collect();
    let opens = |piece: &[i32]| {
        piece
            .iter()
            .copied()
            .eq(opening.iter().copied().map(i32::from))
    };
    let begin = text.windows(opening.len()).rposition(opens)?;
    Some(text[begin + opening.len()..].to_vec())
}

/// Numbers that depend on every token of a text, together of length 1.
#[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
fn vector(digest: u64, length: u32) -> Vec<f32> {
    let number = |n| (mix(digest ^ mix(n)) >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
    unit((0..u64::from(length)).map(number).collect())
}

/// A vector of length 1 in the same direction; one without a direction stays as it is.
pub(crate) fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let square: f32 = vector.iter().map(|number| number * number).sum();
    if square > 0.0 {
        let length = square.sqrt();
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str) -> ChatMessage {
        ChatMessage::new(role, "x")
    }

    fn render(roles: &[&str]) -> Result<String, TemplateError> {
        let messages: Vec<_> = roles.iter().map(|role| message(role)).collect();
        FakeModel::new(Tokens::new(64)).render_chat(&messages, &[])
    }

    #[test]
    fn roles_out_of_turn_are_the_callers_mistake() {
        for roles in [&["user", "user"][..], &["assistant"], &["system"], &[]] {
            assert!(render(roles).unwrap_err().is_callers(), "{roles:?}");
        }
        let prompt = render(&["system", "user", "assistant", "user"]).unwrap();
        assert_eq!(
            prompt,
            "system: x\nuser: x\nassistant: x\nuser: x\nassistant: "
        );
    }

    #[test]
    fn a_step_costs_its_sequences_and_the_tokens_of_longer_pieces() {
        let costs = Costs {
            step: Micros::new(5),
            per_sequence: Micros::new(3),
            prefill_tokens_per_sec: NonZeroU64::new(500_000),
        };
        let tokens = [Token::new(1); 10];
        let work = |count| StepWork {
            seq: SeqId::new(0),
            start: Tokens::ZERO,
            tokens: &tokens[..count],
            samples: true,
        };
        assert_eq!(costs.of(&[work(1), work(10)]), Micros::new(5 + 2 * 3 + 20));
    }
}
