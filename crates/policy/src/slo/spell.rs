//! A short memory of whether bounds hold, over requests of every kind: what holds one up holds up
//! those around it, so misses come one after the other.
//!
//! Levels follow what is missed too, but each in its own group and slowly, since a level that moves
//! fast makes every bound uncertain. So the misses of the last few widen all bounds at once, and
//! that is given back as others hold. (The proportional term of conformal PID control, with a leak:
//! Angelopoulos, Candès and Tibshirani, NeurIPS 2023.) With as many misses as were promised it
//! comes to nothing, so it does not move how many are kept; and were it to, levels would follow.

use super::terms::Alpha;
use super::trees::scaled;
use crate::units::Micros;

/// How much wider bounds are for what was missed lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// Binary logarithm of the factor, in ten-thousandths. invariant: what it forgets bounds it to
// `STEP * FADES` either way.
pub(super) struct Spell(i32);

impl Spell {
    /// What a miss widens the next bounds by where hardly any may be missed: 3%.
    const STEP: i32 = 400;

    /// Bounds that it reaches back.
    const FADES: i32 = 8;

    /// It became known of one that waited whether its bound holds.
    pub(super) fn note(&mut self, alpha: Alpha, missed: bool) {
        let err = if missed { 1_000 } else { 0 } - i32::from(alpha.get());
        self.0 += Self::STEP * err / 1_000 - self.0 / Self::FADES;
    }

    /// A bound, as wide as it is to be now.
    pub(super) fn widened(self, bound: Micros) -> Micros {
        scaled(bound, self.0 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_secs(1);

    fn after(spell: &mut Spell, missed: impl Iterator<Item = bool>) -> u64 {
        missed.for_each(|missed| spell.note(Alpha::TENTH, missed));
        spell.widened(SECOND).get()
    }

    #[test]
    fn misses_on_end_widen_bounds_at_once_and_up_to_a_bound() {
        let mut spell = Spell::default();
        assert_eq!(spell.widened(SECOND), SECOND);
        let one = after(&mut spell, std::iter::once(true));
        assert!((1_020_000..1_030_000).contains(&one), "{one}");
        let ten = after(&mut spell, std::iter::repeat_n(true, 10));
        assert!((1_140_000..1_230_000).contains(&ten), "{ten}");
        let many = after(&mut spell, std::iter::repeat_n(true, 10_000));
        assert!((ten..1_230_000).contains(&many), "{many}");
        let over = after(&mut spell, std::iter::repeat_n(false, 40));
        assert!((970_000..1_000_000).contains(&over), "{over}");
    }

    #[test]
    fn as_many_misses_as_were_promised_leave_bounds_as_wide_as_they_are() {
        let mut spell = Spell::default();
        let mut sum = 0;
        for n in 0..1_000 {
            sum += after(&mut spell, std::iter::once(n % 10 == 3));
        }
        assert!((995_000..1_005_000).contains(&(sum / 1_000)), "{sum}");
    }
}
