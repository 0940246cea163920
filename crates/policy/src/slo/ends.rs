//! How soon requests that run will end, as far as the lengths of the last answers tell: who has had
//! as many tokens as most answers have is likely to be done, and who has just begun is not.
//!
//! A place in the line is free when somebody ends, so this says of a wait what the mean pace of the
//! last ends can't.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::RequestId;
use crate::units::{Micros, Time, Tokens};

/// Requests that run, and how long answers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// When each got its first token, or was dispatched where it has none.
    since: BTreeMap<RequestId, Time>,
    /// Those points in time in microseconds, added up.
    sum: u128,
    lengths: Survival,
}

impl Ends {
    /// Requests that are looked at: of more, every so many-th.
    const LOOKED_AT: usize = 128;

    /// A request runs, from this on.
    pub(super) fn runs(&mut self, id: RequestId, at: Time) {
        self.ended(id);
        self.since.insert(id, at);
        self.sum += u128::from(at.as_micros());
    }

    /// A request has ended, if it ran.
    pub(super) fn ended(&mut self, id: RequestId) {
        if let Some(at) = self.since.remove(&id) {
            self.sum -= u128::from(at.as_micros());
        }
    }

    /// An answer came to this length.
    pub(super) fn learn(&mut self, output: Tokens) {
        self.lengths.push(output);
    }

    /// How long they have run, in the mean.
    pub(super) fn age(&self, now: Time) -> Micros {
        let count = u128::try_from(self.since.len()).unwrap_or(u128::MAX);
        let all = u128::from(now.as_micros()).saturating_mul(count);
        let mean = all.saturating_sub(self.sum).checked_div(count);
        Micros::new(mean.and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0))
    }

    /// How many will have ended `within` that, in thousandths, where a token takes `tpot`.
    pub(super) fn expected(&self, within: Micros, tpot: Micros, now: Time) -> u64 {
        let tpot = tpot.get().max(1);
        let more = within.get() / tpot;
        let step = self.since.len().div_ceil(Self::LOOKED_AT).max(1);
        let each = self.since.values().step_by(step).map(|since| {
            let so_far = now.since(*since).get() / tpot;
            self.lengths.ends(so_far, more)
        });
        let (sum, looked) = each.fold((0, 0), |(sum, n), one| (sum + one, n + 1));
        let all = u64::try_from(self.since.len()).unwrap_or(u64::MAX);
        (sum * all).checked_div(looked).unwrap_or(0)
    }
}

/// How many of the last answers are longer than so many tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Survival {
    /// The bin of each, the oldest first.
    recent: VecDeque<usize>,
    /// By bin: answers in it or in a later one.
    from: [u64; Self::BINS + 1],
}

impl Default for Survival {
    fn default() -> Self {
        Self {
            recent: VecDeque::new(),
            from: [0; Self::BINS + 1],
        }
    }
}

impl Survival {
    /// Bins of each doubling of length.
    const PARTS: usize = 8;

    /// For lengths up to a million.
    const BINS: usize = 20 * Self::PARTS;

    /// Answers remembered.
    const MEMORY: usize = 256;

    fn push(&mut self, output: Tokens) {
        if self.recent.len() == Self::MEMORY
            && let Some(old) = self.recent.pop_front()
        {
            self.count(old, false);
        }
        let (bin, _) = Self::bin(output.get());
        self.recent.push_back(bin);
        self.count(bin, true);
    }

    fn count(&mut self, bin: usize, more: bool) {
        for from in self.from.iter_mut().take(bin + 1) {
            *from = if more { *from + 1 } else { *from - 1 };
        }
    }

    /// How likely an answer of so many tokens ends within `more` of them, in thousandths.
    fn ends(&self, so_far: u64, more: u64) -> u64 {
        let alive = self.longer(so_far);
        let then = self.longer(so_far.saturating_add(more));
        ((alive - then.min(alive)) * 1_000)
            .checked_div(alive)
            .unwrap_or(1_000)
    }

    /// How many are longer than this, times 1,024: those of its bin are taken to lie evenly in it.
    fn longer(&self, length: u64) -> u64 {
        let (bin, into) = Self::bin(length);
        let at = |bin: usize| self.from.get(bin).copied().unwrap_or(0);
        let own = at(bin) - at(bin + 1);
        at(bin + 1) * 1_024 + own * (1_024 - into)
    }

    /// The bin of a length, and how far into it that is, of 1,024.
    fn bin(length: u64) -> (usize, u64) {
        let length = length.max(1);
        let doublings = length.ilog2();
        // Sixteen bits after the point: three choose the part, and the next ten go into it.
        let after = match doublings.checked_sub(16) {
            Some(down) => length >> down,
            None => length << (16 - doublings),
        } & 0xFFFF;
        let part = usize::try_from(after >> 13).unwrap_or(0);
        let bin = usize::try_from(doublings).unwrap_or(usize::MAX);
        let bin = bin.saturating_mul(Self::PARTS) + part;
        if bin >= Self::BINS {
            return (Self::BINS - 1, 0);
        }
        (bin, (after >> 3) & 0x3FF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Micros = Micros::from_millis(10);

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    fn ends(lengths: impl Iterator<Item = u64>) -> Ends {
        let mut ends = Ends::default();
        lengths.for_each(|length| ends.learn(Tokens::new(length)));
        ends
    }

    #[test]
    fn who_has_had_as_many_tokens_as_answers_have_is_likely_to_end() {
        let mut ends = ends((0..256).map(|n| 100 + n % 20));
        ends.runs(RequestId::new(1), at(0));
        let within = TOKEN.times(20);
        assert_eq!(ends.expected(within, TOKEN, at(0)), 0, "none is so short");
        let later = ends.expected(within, TOKEN, at(1_000));
        assert!(later > 900, "{later} of a thousand");
        ends.runs(RequestId::new(2), at(1_000));
        assert_eq!(ends.expected(within, TOKEN, at(1_000)), later);
        assert_eq!(ends.age(at(1_000)), Micros::from_millis(500));
        ends.ended(RequestId::new(1));
        assert_eq!(ends.expected(within, TOKEN, at(1_000)), 0);
    }

    #[test]
    fn answers_that_become_longer_are_soon_known_to_be() {
        let mut ends = ends((0..512).map(|_| 50));
        ends.runs(RequestId::new(1), at(0));
        assert!(ends.expected(TOKEN.times(60), TOKEN, at(0)) > 900);
        (0..256).for_each(|_| ends.learn(Tokens::new(200)));
        assert_eq!(ends.expected(TOKEN.times(60), TOKEN, at(0)), 0);
    }

    #[test]
    fn of_thousands_some_are_looked_at_and_stand_for_all() {
        let mut ends = ends(1..=256);
        for id in 0..5_000 {
            ends.runs(RequestId::new(id), at(0));
        }
        let expected = ends.expected(TOKEN.times(128), TOKEN, at(0));
        assert!(expected.abs_diff(2_500_000) < 100_000, "{expected}");
    }

    #[test]
    fn any_length_has_a_bin_and_longer_ones_have_later_ones() {
        let mut last = (0, 0);
        for n in 0..4_000 {
            let bin = Survival::bin(n);
            assert!(bin >= last, "{n}: {bin:?} after {last:?}");
            last = bin;
        }
        let mut survival = Survival::default();
        survival.push(Tokens::new(u64::MAX));
        survival.push(Tokens::ZERO);
        assert_eq!(survival.longer(u64::MAX), 1_024);
    }
}
