//! Header values that are pure formatting.
//!
//! The numbers come from the policy; nothing is computed from a clock here.

use std::fmt;

/// A span of so many microseconds as OpenAI writes it in `x-ratelimit-reset-*`: `20ms`, `1s`,
/// `6m0s`, `1h0m0s`.
///
/// Rounded up, to milliseconds below a second and to seconds above: a client that waits as long as
/// the header says must not come early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetIn(pub u64);

impl fmt::Display for ResetIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MILLIS_PER_SECOND: u64 = 1_000;
        const MICROS_PER_MILLI: u64 = 1_000;
        const MICROS_PER_SECOND: u64 = 1_000_000;

        let millis = self.0.div_ceil(MICROS_PER_MILLI);
        if self.0 > 0 && millis < MILLIS_PER_SECOND {
            return write!(f, "{millis}ms");
        }
        let seconds = self.0.div_ceil(MICROS_PER_SECOND);
        let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h{minutes}m{rest}s")
        } else if minutes > 0 {
            write!(f, "{minutes}m{rest}s")
        } else {
            write!(f, "{rest}s")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ResetIn;

    fn written(micros: u64) -> String {
        ResetIn(micros).to_string()
    }

    /// Reads a header back as microseconds, by its units.
    fn micros(header: &str) -> u128 {
        let (mut total, mut number) = (0, 0);
        let mut rest = header;
        while let Some(first) = rest.chars().next() {
            if let Some(digit) = first.to_digit(10) {
                number = number * 10 + u128::from(digit);
                rest = &rest[1..];
                continue;
            }
            let (unit, scale) = [("ms", 1_000), ("h", 3_600_000_000), ("m", 60_000_000)]
                .into_iter()
                .find(|(unit, _)| rest.starts_with(unit))
                .unwrap_or(("s", 1_000_000));
            rest = rest.strip_prefix(unit).unwrap();
            total += number * scale;
            number = 0;
        }
        total
    }

    #[test]
    fn each_size_of_span_has_its_form() {
        let cases = [
            (0, "0s"),
            (1, "1ms"),
            (20_000, "20ms"),
            (999_000, "999ms"),
            (1_000_000, "1s"),
            (59_000_000, "59s"),
            (60_000_000, "1m0s"),
            (360_000_000, "6m0s"),
            (3_599_000_000, "59m59s"),
            (3_600_000_000, "1h0m0s"),
            (90_061_000_000, "25h1m1s"),
        ];
        for (micros, header) in cases {
            assert_eq!(written(micros), header, "{micros}");
        }
    }

    #[test]
    fn a_span_is_rounded_up_also_over_the_border_of_a_form() {
        assert_eq!(written(19_001), "20ms");
        assert_eq!(written(999_001), "1s");
        assert_eq!(written(1_000_001), "2s");
        assert_eq!(written(59_000_001), "1m0s");
        assert_eq!(written(3_599_000_001), "1h0m0s");
    }

    #[test]
    fn the_longest_span_has_a_form() {
        assert_eq!(written(u64::MAX), "5124095576h1m50s");
    }

    proptest! {
        #[test]
        fn waiting_as_long_as_it_says_is_enough_and_hardly_more(span: u64) {
            let (span, said) = (u128::from(span), micros(&written(span)));
            prop_assert!(said >= span);
            prop_assert!(said - span < 1_000_000);
        }
    }
}
