//! Least squares of relative errors, with no coefficient below zero.
//!
//! A step that a client saw late, or the machine held up, would bend a plain fit, so steps far off
//! are weighed less from round to round (iteratively reweighted, with Huber's weights).

/// What is measured beside what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// The terms, as many of each point.
    pub(super) terms: Vec<f64>,
    /// What was measured; above 0.
    pub(super) measured: f64,
}

/// Relative errors up to this weigh in full.
const USUAL: f64 = 0.05;

const ROUNDS: usize = 20;

/// What any step is taken to be at least, of the one in the middle.
const LEAST: f64 = 0.05;

/// The coefficients of the terms; `None` of fewer points than terms.
pub(super) fn fit(points: &[Point]) -> Option<Vec<f64>> {
    let terms = points.first()?.terms.len();
    if points.len() < terms {
        return None;
    }
    // Two steps that a client read at once are one that took next to nothing: by its own measure
    // it would weigh more than all others.
    let least = LEAST * middle(points);
    let mut weights: Vec<f64> = points
        .iter()
        .map(|point| 1.0 / square(point.measured.max(least)))
        .collect();
    let mut found = vec![0.0; terms];
    for _ in 0..ROUNDS {
        found = not_negative(points, &weights);
        for (weight, point) in weights.iter_mut().zip(points) {
            let expected = value(&found, point).max(least);
            let off = (point.measured - expected).abs() / expected;
            *weight = (USUAL / off.max(USUAL)) / square(expected);
        }
    }
    Some(found)
}

/// What the coefficients make of a point.
pub(super) fn value(coefficients: &[f64], point: &Point) -> f64 {
    let parts = coefficients.iter().zip(&point.terms);
    parts.map(|(coefficient, term)| coefficient * term).sum()
}

/// The median of what was measured.
fn middle(points: &[Point]) -> f64 {
    let mut measured: Vec<f64> = points.iter().map(|point| point.measured).collect();
    measured.sort_unstable_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied().unwrap_or(1.0)
}

fn square(number: f64) -> f64 {
    number * number
}

/// The weighted least squares, where terms that would get less than nothing are left out, the worst
/// first.
fn not_negative(points: &[Point], weights: &[f64]) -> Vec<f64> {
    let terms = points.first().map_or(0, |point| point.terms.len());
    let mut kept: Vec<usize> = (0..terms).collect();
    loop {
        let solved = solve(normal(points, weights, &kept));
        let least = solved.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        match least {
            Some((at, least)) if *least < 0.0 => {
                kept.remove(at);
            }
            Some(_) | None => {
                let mut all = vec![0.0; terms];
                for (term, coefficient) in kept.iter().zip(solved) {
                    if let Some(place) = all.get_mut(*term) {
                        *place = coefficient;
                    }
                }
                return all;
            }
        }
    }
}

/// The normal equations of some of the terms: a row for each, its right side last.
fn normal(points: &[Point], weights: &[f64], kept: &[usize]) -> Vec<Vec<f64>> {
    let sum = |of: &dyn Fn(&Point) -> f64| -> f64 {
        let weighed = points.iter().zip(weights);
        weighed.map(|(point, weight)| weight * of(point)).sum()
    };
    let row = |a: &usize| {
        let products = kept
            .iter()
            .map(|b| sum(&|point| point.terms[*a] * point.terms[*b]));
        let right = std::iter::once(sum(&|point| point.terms[*a] * point.measured));
        products.chain(right).collect()
    };
    kept.iter().map(row).collect()
}

/// What is left of a term, of what it was, that others say as well.
const NOTHING_NEW: f64 = 1e-9;

/// Gauss and Jordan, with the largest pivot. A term that no point has, or that others say as well,
/// gets nothing.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let size = rows.len();
    let before: Vec<f64> = (0..size).map(|at| rows[at][at].abs()).collect();
    let is_new = |pivot: f64, at: usize| pivot.abs() > NOTHING_NEW * before[at];
    for at in 0..size {
        let largest = |row: &usize| rows[*row][at].abs();
        let pivot = (at..size).max_by(|a, b| largest(a).total_cmp(&largest(b)));
        rows.swap(at, pivot.unwrap_or(at));
        let pivot = rows[at].clone();
        if !is_new(pivot[at], at) {
            continue;
        }
        for (other, row) in rows.iter_mut().enumerate() {
            if other != at {
                let factor = row[at] / pivot[at];
                let cells = row.iter_mut().zip(&pivot);
                cells.for_each(|(cell, above)| *cell -= factor * above);
            }
        }
    }
    let found = |(at, row): (usize, &Vec<f64>)| match is_new(row[at], at) {
        true => row[size] / row[at],
        false => 0.0,
    };
    rows.iter().enumerate().map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(terms: &[f64], measured: f64) -> Point {
        Point {
            terms: terms.to_vec(),
            measured,
        }
    }

    fn close(found: &[f64], expected: &[f64]) {
        for (one, other) in found.iter().zip(expected) {
            assert!(
                (one - other).abs() <= 0.02 * other.abs() + 1e-6,
                "{found:?}"
            );
        }
    }

    #[test]
    fn points_that_were_made_by_coefficients_give_them_back() {
        let points: Vec<_> = (0..60)
            .map(|n| (1.0, f64::from(n % 8), f64::from(n % 5) * 100.0))
            .map(|(a, b, c)| point(&[a, b, c], 3.0 * a + 6.0 * b + 0.04 * c))
            .collect();
        close(&fit(&points).unwrap(), &[3.0, 6.0, 0.04]);
    }

    #[test]
    fn a_step_that_was_read_late_and_so_took_next_to_nothing_does_not_outweigh_all_others() {
        let points: Vec<_> = (0..600)
            .map(|n| {
                let usual = 10_000.0 + 2_000.0 * f64::from(n % 7);
                let took = if n == 77 { 5.0 } else { usual };
                point(&[1.0, f64::from(n % 7)], took)
            })
            .collect();
        close(&fit(&points).unwrap(), &[10_000.0, 2_000.0]);
    }

    #[test]
    fn some_that_are_far_off_move_it_by_little() {
        let late = |n: u32| if n % 10 == 3 { 5.0 } else { 1.0 };
        let points: Vec<_> = (0..200)
            .map(|n| (1.0, f64::from(n % 7), late(n)))
            .map(|(a, b, late)| point(&[a, b], (10.0 * a + 2.0 * b) * late))
            .collect();
        let found = fit(&points).unwrap();
        assert!((found[0] - 10.0).abs() < 0.5, "{found:?}");
        assert!((found[1] - 2.0).abs() < 0.2, "{found:?}");
    }

    #[test]
    fn nothing_costs_less_than_nothing() {
        // Falls with its second term, which a cost does not.
        let points: Vec<_> = (1..40)
            .map(|n| f64::from(n % 4))
            .map(|n| point(&[1.0, n], 10.0 - n * 0.1))
            .collect();
        let found = fit(&points).unwrap();
        assert_eq!(found[1], 0.0);
        assert!((9.6..10.0).contains(&found[0]), "{found:?}");
    }

    #[test]
    fn of_two_terms_that_say_the_same_one_is_enough() {
        let points: Vec<_> = (1..40)
            .map(|n| f64::from(n % 4 + 1))
            .map(|n| point(&[n, n * 2.0], n * 6.0))
            .collect();
        let found = fit(&points).unwrap();
        assert!((found[0] + 2.0 * found[1] - 6.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn fewer_points_than_terms_fit_anything() {
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[point(&[1.0, 2.0], 3.0)]), None);
    }
}
