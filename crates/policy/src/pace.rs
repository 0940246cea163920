//! How a pool runs, measured: what its tokens cost in time, and how sure that is.
//!
//! Two users: quota asks how long an answer will hold its KV, so that a pool that slows down
//! tightens admission; the window asks how much prefill a step can bear. A measurement that is old
//! falls to the safe side.

use std::collections::VecDeque;

use crate::slo::Slo;
use crate::units::{Micros, Time, Tokens};

/// How soon an engine may compute a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Haste {
    /// At once: its tenant has less than its share.
    #[default]
    AtOnce,
    /// At once, and it is expected to be over soon: so any tenant that was served more gives it a
    /// place, and has that back soon.
    InPassing,
    /// At once while its tenant is alone in the engine, and else as prompts come: nobody else was
    /// active when it was dispatched.
    WhileAlone,
    /// No faster than prompts come: its tenant has its share, and others are active.
    AsTheyCome,
}

impl Haste {
    /// Whether it is held to a pace, in an engine that holds work of `others` too.
    pub const fn is_paced(self, others: bool) -> bool {
        match self {
            Self::AtOnce | Self::InPassing => false,
            Self::WhileAlone => others,
            Self::AsTheyCome => true,
        }
    }
}

/// What is taken for the time of an output token until there is a measurement, and the middle of
/// what is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The time between two tokens that is promised.
    pub tpot: Micros,
    /// What decides who is let in.
    pub slo: Slo,
}

impl Default for Target {
    fn default() -> Self {
        Self {
            tpot: Micros::from_millis(100),
            slo: Slo::default(),
        }
    }
}

/// The time per output token of the answers that ended lately.
#[derive(Clone, Debug, Default)]
pub struct Tpot {
    /// In order of time. invariant: at most [`Tpot::MEMORY`] of them, none older than
    /// [`Tpot::WINDOW`] before the newest.
    seen: VecDeque<(Time, Micros)>,
    /// invariant: the spans of `seen`, the shortest first. Kept, since each answer adds one and
    /// each arrival asks for one of them.
    sorted: Vec<Micros>,
}

impl Tpot {
    /// Answers remembered.
    const MEMORY: usize = 256;

    /// How far back a measurement reaches.
    const WINDOW: Micros = Micros::from_secs(30);

    /// Age past which a measurement says nothing any more.
    const STALE: Micros = Micros::from_secs(60);

    /// An answer ended, with this mean time between its tokens.
    pub fn record(&mut self, tpot: Micros, now: Time) {
        if self.seen.len() == Self::MEMORY {
            self.forget_first();
        }
        self.seen.push_back((now, tpot));
        let place = self.sorted.partition_point(|one| *one < tpot);
        self.sorted.insert(place, tpot);
        let is_old = |(at, _): &(Time, Micros)| now.since(*at) > Self::WINDOW;
        while self.seen.front().is_some_and(is_old) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((_, tpot)) = self.seen.pop_front() else {
            return;
        };
        if let Ok(place) = self.sorted.binary_search(&tpot) {
            self.sorted.remove(place);
        }
    }

    /// The 95th percentile of what is remembered.
    fn p95(&self) -> Micros {
        let rank = (self.sorted.len() * 95).div_ceil(100).saturating_sub(1);
        self.sorted.get(rank).copied().unwrap_or_default()
    }

    /// The time per output token to expect: the measured 95th percentile, between `target` and four
    /// times it.
    ///
    /// Measured, so that a slowing pool tightens admission; clamped, so that one sick replica
    /// cannot freeze it. Where nothing was measured it is the target; where it is too long ago,
    /// twice the target: the safe side.
    pub fn estimate(&self, target: Target, now: Time) -> Micros {
        let Some((last, _)) = self.seen.back() else {
            return target.tpot;
        };
        if now.since(*last) > Self::STALE {
            return target.tpot.times(2);
        }
        self.p95().clamp(target.tpot, target.tpot.times(4))
    }
}

/// What the steps of an engine cost, taken apart: a step without prefill, and each prefilled token
/// on top.
///
/// Both are averages that forget: each new measurement moves them by an eighth. Until both are
/// known, nothing is said.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// A step that decodes only, in microseconds times [`Steps::SCALE`].
    decode: Option<u64>,
    /// One token of prefill, likewise.
    prefill: Option<u64>,
    /// When the last step ended, where the next one began at once.
    last: Option<Time>,
}

impl Steps {
    /// A token of prefill takes less than a microsecond on a fast engine.
    const SCALE: u64 = 1_024;

    /// A step ended that prefilled so many tokens.
    pub fn record(&mut self, prefilled: Tokens, now: Time) {
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let span = now.since(last).get().saturating_mul(Self::SCALE);
        if prefilled == Tokens::ZERO {
            blend(&mut self.decode, span);
        } else if let Some(decode) = self.decode {
            blend(
                &mut self.prefill,
                span.saturating_sub(decode) / prefilled.get(),
            );
        }
    }

    /// The engine has nothing to do; the time until its next step is not the step's.
    pub fn pause(&mut self) {
        self.last = None;
    }

    /// Prefilled tokens that take as long as one step of decoding: with them a step is twice as
    /// long.
    pub fn prefill_per_step(&self) -> Option<Tokens> {
        let tokens = self.decode?.checked_div(self.prefill?)?;
        Some(Tokens::new(tokens))
    }
}

/// How fast prompts come, as prompt tokens computed per step.
///
/// An average that forgets: each step moves it by a 64th.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inflow {
    /// Prompt tokens per step, times [`Inflow::SCALE`].
    average: u64,
}

impl Inflow {
    /// Steps in a second or so of a busy engine; and what makes an average of small numbers exact
    /// enough.
    const SCALE: u64 = 64;

    /// The least pace: with less, an engine that was idle would be slow to begin.
    const LEAST: u64 = 64;

    /// A step computed so many prompt tokens.
    pub const fn record(&mut self, prefilled: Tokens) {
        let left = self.average - self.average.div_ceil(Self::SCALE);
        self.average = left.saturating_add(prefilled.get());
    }

    /// Prompt tokens per step that keep up with what comes: half as many again as came. Where that
    /// is not enough, it grows, since then all of it is computed.
    pub fn pace(self) -> Tokens {
        let pace = self.average.saturating_mul(3) / (2 * Self::SCALE);
        Tokens::new(pace.max(Self::LEAST))
    }
}

/// Moves an average by an eighth towards `new`, which counts for four times the average at most: a
/// pause that was taken for a step, or a machine that stood still, is no measurement.
fn blend(average: &mut Option<u64>, new: u64) {
    *average = Some(average.map_or(new, |old| {
        let new = new.min(old.saturating_mul(4).max(1));
        old.saturating_mul(7).saturating_add(new).div_ceil(8)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    fn target() -> Target {
        Target {
            tpot: Micros::from_millis(50),
            ..Target::default()
        }
    }

    #[test]
    fn a_pool_that_slows_down_is_believed_up_to_a_bound() {
        let mut tpot = Tpot::default();
        assert_eq!(tpot.estimate(target(), at(0)), Micros::from_millis(50));
        for n in 0..20 {
            tpot.record(Micros::from_millis(120), at(n));
        }
        assert_eq!(tpot.estimate(target(), at(20)), Micros::from_millis(120));
        tpot.record(Micros::from_secs(60), at(21));
        assert_eq!(
            tpot.estimate(target(), at(21)),
            Micros::from_millis(120),
            "one is no percentile"
        );
        for n in 30..60 {
            tpot.record(Micros::from_secs(60), at(n));
        }
        assert_eq!(tpot.estimate(target(), at(60)), Micros::from_millis(200));
    }

    #[test]
    fn a_fast_pool_is_not_believed_to_be_faster_than_promised() {
        let mut tpot = Tpot::default();
        tpot.record(Micros::from_millis(1), at(0));
        assert_eq!(tpot.estimate(target(), at(0)), Micros::from_millis(50));
    }

    #[test]
    fn an_old_measurement_falls_to_the_safe_side() {
        let mut tpot = Tpot::default();
        tpot.record(Micros::from_millis(60), at(0));
        assert_eq!(tpot.estimate(target(), at(60_000)), Micros::from_millis(60));
        assert_eq!(
            tpot.estimate(target(), at(60_001)),
            Micros::from_millis(100)
        );
    }

    #[test]
    fn what_a_step_costs_is_taken_apart() {
        let mut steps = Steps::default();
        assert_eq!(steps.prefill_per_step(), None);
        steps.record(Tokens::ZERO, at(0));
        steps.record(Tokens::ZERO, at(20));
        steps.record(Tokens::new(120), at(50));
        assert_eq!(steps.prefill_per_step(), Some(Tokens::new(240)));
        steps.record(Tokens::new(120), at(5_050));
        let after = steps.prefill_per_step().unwrap();
        assert!(
            after > Tokens::new(150),
            "one stall of 5 s makes {after} of 240"
        );
        for n in 0..30 {
            steps.record(Tokens::new(120), at(5_080 + 30 * n));
        }
        let mended = steps.prefill_per_step().unwrap().get();
        assert!((235..=240).contains(&mended), "{mended}");
        steps.pause();
        steps.record(Tokens::ZERO, at(9_000));
        assert_eq!(
            steps.prefill_per_step(),
            Some(Tokens::new(mended)),
            "idle time is no step"
        );
    }

    #[test]
    fn the_pace_of_prompts_follows_what_comes_and_grows_where_it_is_not_enough() {
        let mut inflow = Inflow::default();
        assert_eq!(inflow.pace(), Tokens::new(64), "the least");
        for _ in 0..1_000 {
            inflow.record(Tokens::new(100));
        }
        let pace = inflow.pace().get();
        assert!((145..=150).contains(&pace), "half as many again: {pace}");
        for _ in 0..1_000 {
            inflow.record(inflow.pace().min(Tokens::new(400)));
        }
        assert!(inflow.pace() >= Tokens::new(400), "no less than what comes");
        for _ in 0..1_000 {
            inflow.record(Tokens::ZERO);
        }
        assert_eq!(inflow.pace(), Tokens::new(64));
    }
}
