//! Durations, sizes, parts and amounts as people write them: `30s`, `32MiB`, `20%`, `0.125`.
//!
//! Whole numbers of one unit only, but for amounts. A duration always has a unit and a part its
//! sign, so that nobody has to guess it; a size without one is in bytes.

use tollgate_policy::units::Micros;

/// Units of time in microseconds, the longest first.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Units of size in bytes, the largest first.
const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("", 1),
];

/// The duration that `text` says.
pub(super) fn duration(text: &str) -> Option<Micros> {
    measured(text, &DURATION_UNITS).map(Micros::new)
}

/// The size in bytes that `text` says.
pub(super) fn size(text: &str) -> Option<u64> {
    measured(text, &SIZE_UNITS)
}

/// The whole per cent that `text` says, sign included.
pub(super) fn percent(text: &str) -> Option<u16> {
    let digits = text.strip_suffix('%')?;
    let digits = digits.strip_suffix(' ').unwrap_or(digits);
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

/// The thousandths in `text`, a number with at most three decimals.
pub(crate) fn thousandths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 3 {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<3}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000)?
        .checked_add(decimals)
}

/// So many thousandths as a number, without zeros at its end.
pub(super) fn show_thousandths(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A duration in the longest unit that needs no fraction.
pub(super) fn show_duration(span: Micros) -> String {
    match span.get() {
        0 => "0s".to_owned(),
        micros => in_units(micros, &DURATION_UNITS),
    }
}

/// A size in the largest unit that needs no fraction.
pub(super) fn show_size(bytes: u64) -> String {
    in_units(bytes, &SIZE_UNITS)
}

fn measured(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (count, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(end) => text.split_at(end),
        None => (text, ""),
    };
    let (_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit.trim_start_matches(' '))?;
    count.parse::<u64>().ok()?.checked_mul(*factor)
}

fn in_units(amount: u64, units: &[(&str, u64)]) -> String {
    let exact = units
        .iter()
        .find(|(_, factor)| amount >= *factor && amount.is_multiple_of(*factor));
    match exact {
        Some((unit, factor)) => format!("{}{unit}", amount / factor),
        None => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_means_what_it_says() {
        let cases = [
            ("150us", 150),
            ("250ms", 250_000),
            ("30s", 30_000_000),
            ("10m", 600_000_000),
        ];
        for (text, micros) in cases {
            assert_eq!(duration(text), Some(Micros::new(micros)));
            assert_eq!(show_duration(Micros::new(micros)), text);
        }
        assert_eq!(duration("1h"), Some(Micros::from_secs(3600)));
        assert_eq!(size("500KiB"), Some(512_000));
        assert_eq!(size("1GiB"), Some(1 << 30));
        assert_eq!(size("77"), Some(77));
    }

    #[test]
    fn a_duration_needs_a_unit_and_a_whole_number() {
        for text in [
            "30",
            "",
            "s",
            "1.5s",
            "-1s",
            "1m30s",
            "30S",
            "99999999999999999999s",
            "9999999999999h",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_in_thousands_is_refused_rather_than_guessed() {
        for text in ["32MB", "32M", "32mib", "MiB", "99999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn a_part_is_a_whole_number_with_its_sign() {
        assert_eq!(percent("0%"), Some(0));
        assert_eq!(percent("92 %"), Some(92));
        for text in ["20", "%", "-1%", "+1%", "2.5%", "0.2", "99999%", "20%%"] {
            assert_eq!(percent(text), None, "{text}");
        }
    }

    #[test]
    fn an_amount_has_at_most_three_decimals() {
        let cases = [
            ("40", 40_000),
            ("0.5", 500),
            ("0.125", 125),
            ("7.050", 7_050),
        ];
        for (text, expected) in cases {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        for text in [
            "",
            ".5",
            "5.",
            "0.0001",
            "-1",
            "1e3",
            "1,5",
            "1.+5",
            "99999999999999999999",
        ] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for amount in [1, 125, 500, 1_000, 40_000, 12_345] {
            assert_eq!(thousandths(&show_thousandths(amount)), Some(amount));
        }
        for micros in [0, 1, 999, 1_000, 90_000_000, 86_400_000_000] {
            let span = Micros::new(micros);
            assert_eq!(duration(&show_duration(span)), Some(span));
        }
        for bytes in [0, 1, 1_023, 1_024, 1_536, 1 << 30] {
            assert_eq!(size(&show_size(bytes)), Some(bytes));
        }
    }
}
