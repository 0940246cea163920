//! From token bytes to text that may be shown: whole characters only, and nothing that may still be
//! a stop string.
//!
//! A token may hold part of a character, and a stop string may span tokens or begin inside one.
//! Both are decided byte by byte, so the text is the same however its bytes were split. Work per
//! byte is constant on average: what was sent is never looked at again.

use std::str;

/// What one token added.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Text that may be sent now. Empty while a character or a possible stop string is incomplete.
    pub(crate) text: String,
    /// Whether a stop string matched: `text` ends before it, and no more text comes.
    pub(crate) stopped: bool,
}

/// The text of one answer, as it grows.
#[derive(Debug)]
pub(crate) struct TextStream {
    characters: Characters,
    stops: Stops,
}

impl TextStream {
    /// A text that ends at the first of `stops`; empty ones never match.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self {
            characters: Characters::default(),
            stops: Stops::new(stops),
        }
    }

    /// Takes the bytes of the next token. Must not be called once a stop string matched.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Shown {
        let mut whole = String::new();
        self.characters.push(bytes, &mut whole);
        self.stops.push(&whole)
    }

    /// Ends the text: a character cut off becomes U+FFFD, and what was held back comes out.
    pub(crate) fn finish(&mut self) -> Shown {
        let mut whole = String::new();
        self.characters.finish(&mut whole);
        let mut shown = self.stops.push(&whole);
        if !shown.stopped {
            shown.text.push_str(&std::mem::take(&mut self.stops.held));
        }
        shown
    }
}

/// An incremental UTF-8 reader.
#[derive(Debug, Default)]
struct Characters {
    /// The start of a character. invariant: fewer than 4 bytes that some byte may still complete.
    partial: Vec<u8>,
}

impl Characters {
    /// Appends what is whole to `out`; bytes that can't become a character any more come out as
    /// U+FFFD, one for each maximal subpart (Unicode 16.0, section 3.9, "U+FFFD Substitution of
    /// Maximal Subparts").
    fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.partial.extend_from_slice(bytes);
        let mut rest = self.partial.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(valid) => {
                    out.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(str::from_utf8(valid).unwrap_or_default());
                    rest = after;
                    let Some(invalid) = error.error_len() else {
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let done = self.partial.len() - rest.len();
        self.partial.drain(..done);
    }

    fn finish(&mut self, out: &mut String) {
        if !self.partial.is_empty() {
            self.partial.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Finds the first of several strings in a text that comes in pieces.
#[derive(Debug)]
struct Stops {
    patterns: Vec<Pattern>,
    /// Text that a stop string may begin with. invariant: as long as the longest match under way.
    held: String,
}

impl Stops {
    fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty());
        Self {
            patterns: stops.map(Pattern::new).collect(),
            held: String::new(),
        }
    }

    /// Of stop strings that end at the same byte the longest counts: it begins first.
    fn push(&mut self, text: &str) -> Shown {
        for (at, byte) in text.bytes().enumerate() {
            let matched = self
                .patterns
                .iter_mut()
                .filter_map(|pattern| pattern.step(byte))
                .max();
            if let Some(length) = matched {
                let mut shown = std::mem::take(&mut self.held);
                shown.push_str(text.get(..=at).unwrap_or_default());
                shown.truncate(shown.len() - length);
                return Shown {
                    text: shown,
                    stopped: true,
                };
            }
        }
        self.held.push_str(text);
        let matching = self
            .patterns
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - matching);
        Shown {
            text: std::mem::replace(&mut self.held, kept),
            stopped: false,
        }
    }
}

/// One stop string as an automaton (Knuth, Morris and Pratt 1977).
#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix, by its length minus one: the length of its longest proper suffix that is a
    /// prefix too.
    fallback: Vec<usize>,
    /// Bytes matched so far. invariant: less than `bytes.len()`.
    matched: usize,
}

impl Pattern {
    fn new(stop: String) -> Self {
        let mut pattern = Self {
            bytes: stop.into_bytes(),
            fallback: vec![0],
            matched: 0,
        };
        for at in 1..pattern.bytes.len() {
            pattern.advance(pattern.bytes[at]);
            pattern.fallback.push(pattern.matched);
        }
        pattern.matched = 0;
        pattern
    }

    /// Takes one byte; the length of the match if it completes one.
    fn step(&mut self, byte: u8) -> Option<usize> {
        self.advance(byte);
        if self.matched < self.bytes.len() {
            return None;
        }
        self.matched = 0;
        Some(self.bytes.len())
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each piece showed, then what the end did; nothing after a stop.
    fn stream(pieces: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let mut text = TextStream::new(stops.iter().map(ToString::to_string).collect());
        let mut shown = vec![];
        for piece in pieces {
            let Shown { text, stopped } = text.push(piece);
            shown.push(text);
            if stopped {
                return (shown, true);
            }
        }
        let Shown { text, stopped } = text.finish();
        shown.push(text);
        (shown, stopped)
    }

    fn whole(bytes: &[u8], stops: &[&str]) -> (String, bool) {
        let (shown, stopped) = stream(&[bytes], stops);
        (shown.concat(), stopped)
    }

    #[test]
    fn a_character_split_over_tokens_is_shown_once_it_is_whole() {
        let (shown, _) = stream(&[b"a\xe4", b"\xbd", b"\xa0b"], &[]);
        assert_eq!(shown, ["a", "", "你b", ""]);
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        let (shown, _) = stream(&[b"\xff", b"\xf0\x9f", b"x"], &[]);
        assert_eq!(shown, ["\u{fffd}", "", "\u{fffd}x", ""]);
    }

    #[test]
    fn a_character_cut_off_by_the_end_is_replaced() {
        assert_eq!(
            whole(b"ok \xf0\x9f\x99", &[]),
            ("ok \u{fffd}".into(), false)
        );
    }

    #[test]
    fn a_stop_string_over_several_tokens_never_shows_its_beginning() {
        let (shown, stopped) = stream(&[b"M N O", b" P", b" Q R"], &["O P Q"]);
        assert_eq!(
            (shown, stopped),
            (vec!["M N ".into(), String::new(), String::new()], true)
        );
    }

    #[test]
    fn text_is_cut_where_the_match_begins_inside_a_token() {
        assert_eq!(
            whole(b"alpha gammas delta", &["gamma"]),
            ("alpha ".into(), true)
        );
    }

    #[test]
    fn what_was_held_back_comes_out_at_an_end_without_a_match() {
        let (shown, stopped) = stream(&[b"done\n"], &["\nX"]);
        assert_eq!((shown, stopped), (vec!["done".into(), "\n".into()], false));
    }

    #[test]
    fn a_match_that_fails_late_falls_back_to_a_shorter_one() {
        assert_eq!(whole(b"aabaabaac", &["aabaac"]), ("aab".into(), true));
        assert_eq!(whole(b"aaaaab", &["aab"]), ("aaa".into(), true));
    }

    #[test]
    fn of_two_matches_with_one_end_the_longer_counts() {
        assert_eq!(whole(b"x abc", &["bc", "abc"]), ("x ".into(), true));
    }

    #[test]
    fn an_empty_stop_string_never_matches() {
        assert_eq!(whole(b"abc", &[""]), ("abc".into(), false));
    }

    #[test]
    fn the_replacement_at_the_end_may_complete_a_stop_string() {
        assert_eq!(whole(b"a\xf0", &["\u{fffd}"]), ("a".into(), true));
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::sample::select(vec!["a", "b", "ab", "你", "🙂", "é"])
                .prop_map(|text| text.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 1..3),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_text(
            bytes in bytes(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            stops in prop::collection::vec("[ab你🙂]{1,4}", 0..3),
        ) {
            let stops: Vec<_> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut from = 0;
            let mut pieces = vec![];
            for to in cuts {
                pieces.push(&bytes[from..to]);
                from = to;
            }
            let (shown, stopped) = stream(&pieces, &stops);
            prop_assert_eq!((shown.concat(), stopped), whole(&bytes, &stops));
        }

        #[test]
        fn text_is_the_lossy_text_up_to_the_first_stop_string(
            bytes in bytes(), stops in prop::collection::vec("[ab你🙂]{1,4}", 0..3),
        ) {
            let stops: Vec<_> = stops.iter().map(String::as_str).collect();
            let lossy = String::from_utf8_lossy(&bytes);
            let (text, stopped) = whole(&bytes, &stops);
            prop_assert!(lossy.starts_with(&text));
            prop_assert!(stops.iter().all(|stop| !text.contains(stop)));
            prop_assert_eq!(stopped, stops.iter().any(|stop| lossy.contains(stop)));
            prop_assert!(stopped || text.len() == lossy.len());
        }
    }
}
