//! Texts of a given number of tokens, for a tokenizer that only the endpoint knows.
//!
//! The cost of a byte and of the chat template is either told or learned before the run; what the
//! endpoint counted for each request stands in the raw rows, so that a wrong one is seen.

use tollgate_sim::workload::Prefix;

use crate::spec::Tokenizer;

/// Bytes of the two texts that an unknown tokenizer is learned from.
pub(crate) const PROBE_BYTES: [usize; 2] = [200, 2_000];

/// The longest text, in bytes: what a gateway takes as a body at most, with room for the rest.
const TEXT_MAX: usize = 24 * 1024 * 1024;

/// What texts are made of. Common words, so that they cost what ordinary text costs.
const WORDS: [&str; 16] = [
    "the ", "time ", "of ", "people ", "and ", "water ", "in ", "work ", "a ", "number ", "is ",
    "place ", "to ", "small ", "for ", "house ",
];

/// What texts cost in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prompts {
    /// Tokens of the template around one message.
    template: f64,
    /// Tokens of a byte; above 0.
    per_byte: f64,
    /// Makes the texts of two runs differ.
    seed: u64,
}

impl Prompts {
    /// With costs that are told; `None` where they have to be learned.
    pub(crate) fn told(tokenizer: Tokenizer, seed: u64) -> Option<Self> {
        match tokenizer {
            Tokenizer::Bytes { template } => Some(Self {
                template: template as f64,
                per_byte: 1.0,
                seed,
            }),
            Tokenizer::Learned => None,
        }
    }

    /// With costs learned from what the endpoint counted for texts of [`PROBE_BYTES`]; `None` if
    /// the longer one did not cost more.
    pub(crate) fn learned([short, long]: [u64; 2], seed: u64) -> Option<Self> {
        let [short_bytes, long_bytes] = PROBE_BYTES.map(|bytes| bytes as f64);
        let per_byte = (long as f64 - short as f64) / (long_bytes - short_bytes);
        let template = short as f64 - per_byte * short_bytes;
        (per_byte > 0.0).then_some(Self {
            template,
            per_byte,
            seed,
        })
    }

    /// The text of request `number` whose prompt is to have `tokens` tokens, and to begin as
    /// others of that prefix do.
    pub(crate) fn text(&self, number: u64, tokens: u64, prefix: Option<Prefix>) -> String {
        let bytes = ((tokens as f64 - self.template) / self.per_byte).round();
        let bytes = (bytes as usize).clamp(1, TEXT_MAX);
        let Some(prefix) = prefix else {
            return filler(self.seed, number, bytes);
        };
        let alike = (prefix.tokens.get() as f64 / self.per_byte).round();
        let alike = (alike as usize).min(bytes);
        // Numbers of requests are far below: no prompt is another one's beginning by chance.
        let mut text = filler(self.seed ^ PREFIXES, prefix.id, alike);
        text.push_str(&filler(self.seed, number, bytes - alike));
        text
    }
}

/// Tells the texts of prefixes from those of requests.
const PREFIXES: u64 = 0x7072_6566_6978_6573;

/// A text of exactly `bytes` bytes, which begins differently for each number: no prefix cache
/// serves two of them.
pub(crate) fn filler(seed: u64, number: u64, bytes: usize) -> String {
    let mut state = mixed(seed ^ mixed(number));
    begun(state, bytes, || {
        state = mixed(state);
        usize::try_from(state & 15).unwrap_or(0)
    })
}

/// A text that begins as differently, with each word as often as any other: what it costs is what
/// texts cost on average, and not what one of them happens to.
pub(crate) fn probe(seed: u64, number: u64, bytes: usize) -> String {
    let mut turn = 0..;
    begun(mixed(seed ^ mixed(number)), bytes, || {
        turn.next().unwrap_or(0) % WORDS.len()
    })
}

/// A beginning by the lowest bits of `state`, and words by their index.
fn begun(state: u64, bytes: usize, mut next: impl FnMut() -> usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    // The low bits first: the shortest texts differ too. Letters by themselves, of which each is a
    // token: what a word of them comes to would differ from text to text by several.
    for digit in 0..8 {
        let letter = b'a' + u8::try_from((state >> (digit * 4)) & 15).unwrap_or(0);
        text.push(char::from(letter));
        text.push(' ');
    }
    while text.len() < bytes {
        text.push_str(WORDS.get(next()).copied().unwrap_or("the "));
    }
    text.truncate(bytes);
    text
}

/// The finalizer of SplitMix64 (Steele et al., OOPSLA 2014).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_its_length_with_the_template_counted_in() {
        let prompts = Prompts::told(Tokenizer::Bytes { template: 18 }, 1).unwrap();
        assert_eq!(prompts.text(1, 128, None).len(), 110);
        assert_eq!(
            prompts.text(1, 5, None).len(),
            1,
            "no prompt is shorter than its template"
        );
    }

    #[test]
    fn costs_are_learned_from_two_counts() {
        // 20 tokens of template and a quarter of a token a byte.
        let prompts = Prompts::learned([70, 520], 1).unwrap();
        assert_eq!(prompts.text(1, 120, None).len(), 400);
        let bytewise = Prompts::learned([218, 2_018], 1).unwrap();
        assert_eq!(bytewise.text(1, 128, None).len(), 110);
        assert_eq!(Prompts::learned([70, 70], 1), None);
    }

    #[test]
    fn prompts_of_one_prefix_are_alike_for_as_long_as_it_is_and_no_longer() {
        let prompts = Prompts::told(Tokenizer::Bytes { template: 18 }, 1).unwrap();
        let prefix = |id| {
            let tokens = tollgate_policy::units::Tokens::new(60);
            Some(Prefix { id, tokens })
        };
        let [one, two] = [1, 2].map(|number| prompts.text(number, 128, prefix(7)));
        assert_eq!((one.len(), &one[..60]), (110, &two[..60]));
        assert_ne!(&one[60..68], &two[60..68]);
        assert_ne!(&one[..60], &prompts.text(1, 128, prefix(8))[..60]);
    }

    #[test]
    fn texts_to_learn_from_have_each_word_as_often() {
        let text = probe(1, 7, 16 + 10 * 74);
        let (begun, words) = text.split_at(16);
        assert_eq!(begun, &filler(1, 7, 16));
        let count = |word| {
            words
                .split_inclusive(' ')
                .filter(|one| *one == word)
                .count()
        };
        assert!(WORDS.iter().all(|word| count(*word) == 10), "{words}");
        assert_ne!(text, probe(1, 8, 16 + 10 * 74));
    }

    #[test]
    fn texts_repeat_for_the_same_seed_and_differ_from_the_first_word_on_otherwise() {
        let texts: Vec<String> = (0..100).map(|number| filler(1, number, 300)).collect();
        assert_eq!(texts[7], filler(1, 7, 300));
        let mut beginnings: Vec<&str> = texts.iter().map(|text| &text[..16]).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 100);
        assert_ne!(texts[7], filler(2, 7, 300));
    }
}
