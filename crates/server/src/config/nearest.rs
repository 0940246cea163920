//! Which known name a misspelt one is likely to mean.

/// The closest of `known` to `name`, if it is close enough to be meant.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let name: Vec<char> = name.chars().take(NAME_CHARS_MAX).map(typed).collect();
    known
        .iter()
        .map(|candidate| {
            (
                distance(&name, &candidate.chars().collect::<Vec<_>>()),
                *candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer than any key; the work grows with the square of it.
const NAME_CHARS_MAX: usize = 40;

/// Case and the kind of dash are no difference that counts.
fn typed(c: char) -> char {
    match c {
        '-' => '_',
        other => other.to_ascii_lowercase(),
    }
}

/// How many characters to insert, delete, replace or swap with their neighbour to make `b` of `a`.
fn distance(a: &[char], b: &[char]) -> usize {
    // rows[i][j]: between the first i characters of `a` and the first j of `b`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["rpm", "burst", "max_context", "trust_tenant_header"];

    #[test]
    fn a_slip_of_the_fingers_is_understood() {
        for (typo, meant) in [
            ("rmp", "rpm"),
            ("bursts", "burst"),
            ("max-context", "max_context"),
            ("MaxContext", "max_context"),
            ("trust_tenant_headers", "trust_tenant_header"),
        ] {
            assert_eq!(nearest(typo, &KNOWN), Some(meant), "{typo}");
        }
    }

    #[test]
    fn a_different_word_is_not_guessed_at() {
        for word in ["", "a", "timeout", "max_output_tokens_per_request"] {
            assert_eq!(nearest(word, &KNOWN), None, "{word}");
        }
    }
}
