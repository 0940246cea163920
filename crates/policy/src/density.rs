//! How many bytes of text make a token, learned from what engines counted.
//!
//! For models whose tokenizer is in another process: what a prompt will cost is reckoned from its
//! length until the engine has said it. Integers only, since it is rationed by.

use crate::units::Tokens;

/// The bytes per token of one model's prompts or answers.
///
/// Both sums are halved when they outgrow their memory, so what was learned long ago fades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Density {
    /// invariant: `tokens <= bytes <= 16 * tokens`, both above zero.
    bytes: u64,
    tokens: u64,
}

impl Default for Density {
    /// Four bytes, as English text has with most tokenizers, believed as much as a page of text.
    fn default() -> Self {
        Self {
            bytes: 2_048,
            tokens: 512,
        }
    }
}

impl Density {
    /// Bytes that are remembered at most.
    const MEMORY: u64 = 1 << 20;

    /// The most bytes of one observation that count, so that one long prompt does not undo all.
    const SAMPLE: u64 = 1 << 16;

    /// The tokens that so much text is likely to be; at least one, where there is any.
    pub fn reckon(self, bytes: u64) -> Tokens {
        let tokens = u128::from(bytes) * u128::from(self.tokens);
        let tokens = tokens.div_ceil(u128::from(self.bytes));
        Tokens::new(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// An engine counted so many tokens for so much text.
    ///
    /// What is denser or thinner than any text is believed only up to a bound: the text of a tool
    /// call may be half template.
    pub fn learn(&mut self, bytes: u64, tokens: Tokens) {
        if bytes == 0 || tokens == Tokens::ZERO {
            return;
        }
        let seen = bytes.min(Self::SAMPLE);
        let counted = u128::from(tokens.get()) * u128::from(seen) / u128::from(bytes);
        let counted = u64::try_from(counted).unwrap_or(u64::MAX);
        self.bytes += seen;
        self.tokens += counted.clamp(seen.div_ceil(16), seen);
        if self.bytes > Self::MEMORY {
            self.bytes = self.bytes.div_ceil(2);
            self.tokens = self.tokens.div_ceil(2);
        }
        debug_assert!(self.tokens <= self.bytes && self.bytes <= 16 * self.tokens);
    }
}

/// What a template writes around each message of a conversation, in tokens: names of roles, marks,
/// a system message of its own. Learned from what engines counted beyond the texts.
///
/// Both sums are halved when they outgrow their memory, as those of [`Density`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    tokens: u64,
    /// invariant: above zero.
    messages: u64,
}

impl Default for Frame {
    /// Four, as templates with marks of one token have, believed as much as eight messages.
    fn default() -> Self {
        Self {
            tokens: 32,
            messages: 8,
        }
    }
}

impl Frame {
    /// Messages that are remembered at most.
    const MEMORY: u64 = 1 << 10;

    /// The most messages of one observation that count, so that one long conversation does not undo
    /// all.
    const SAMPLE: u64 = 1 << 6;

    /// The most tokens around a message that are believed.
    const MOST: u64 = 256;

    /// The tokens around so many messages.
    pub fn reckon(self, messages: u64) -> Tokens {
        let tokens = u128::from(messages) * u128::from(self.tokens);
        let tokens = tokens.div_ceil(u128::from(self.messages.max(1)));
        Tokens::new(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// An engine counted so many tokens beyond the texts of so many messages.
    pub fn learn(&mut self, messages: u64, around: Tokens) {
        if messages == 0 {
            return;
        }
        let seen = messages.min(Self::SAMPLE);
        let each = u128::from(around.get()) * u128::from(seen) / u128::from(messages);
        let each = u64::try_from(each).unwrap_or(u64::MAX);
        self.messages += seen;
        self.tokens += each.min(seen * Self::MOST);
        if self.messages > Self::MEMORY {
            self.messages = self.messages.div_ceil(2);
            self.tokens = self.tokens.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn four_bytes_are_a_token_until_something_else_is_seen() {
        let density = Density::default();
        assert_eq!(density.reckon(0), Tokens::ZERO);
        assert_eq!(density.reckon(1), Tokens::new(1));
        assert_eq!(density.reckon(400), Tokens::new(100));
    }

    #[test]
    fn what_stands_around_messages_is_soon_known_and_never_beyond_belief() {
        let mut frame = Frame::default();
        assert_eq!(frame.reckon(3), Tokens::new(12));
        for _ in 0..100 {
            frame.learn(2, Tokens::new(22));
        }
        assert_eq!(frame.reckon(2), Tokens::new(22));
        frame.learn(0, Tokens::new(1_000));
        for _ in 0..10_000 {
            frame.learn(1, Tokens::new(u64::MAX));
        }
        assert!(frame.reckon(1) <= Tokens::new(Frame::MOST + 1));
        assert_eq!(Frame::default().reckon(0), Tokens::ZERO);
    }

    #[test]
    fn what_engines_count_is_soon_believed() {
        let mut density = Density::default();
        for _ in 0..20 {
            density.learn(2_000, Tokens::new(1_000));
        }
        let tokens = density.reckon(2_000).get();
        assert!((950..=1_000).contains(&tokens), "{tokens}");
    }

    #[test]
    fn an_absurd_count_does_not_move_it_past_its_bounds() {
        let mut density = Density::default();
        for _ in 0..1_000 {
            density.learn(1_000, Tokens::new(1_000_000));
        }
        assert!(density.reckon(1_000) <= Tokens::new(1_000));
    }

    proptest! {
        #[test]
        fn more_text_is_never_fewer_tokens(
            seen in prop::collection::vec((0_u64..1 << 40, 0_u64..1 << 40), 0..50),
            (less, more) in (0_u64..1 << 40, 0_u64..1 << 40),
        ) {
            let mut density = Density::default();
            for (bytes, tokens) in seen {
                density.learn(bytes, Tokens::new(tokens));
            }
            prop_assert!(density.reckon(less.min(more)) <= density.reckon(less.max(more)));
        }
    }
}
