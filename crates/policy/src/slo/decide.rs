//! What follows from a bound: let in, or refuse, with the reason.
//!
//! In `goodput` nobody is refused while there is room and nothing waits, nor while the pool is far
//! from its limits: a late answer that delays nobody costs nobody anything. Whether the pool is
//! pressed is its own smoothed state with hysteresis, and nothing of the request that asks, so one
//! long request does not set it and a short one does not clear it.

use super::facts::{Facts, Metric};
use super::lengths::Ring;
use super::terms::{Mode, Terms};
use crate::units::{Micros, Time, Tokens};

/// What becomes of a request at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is let in.
    Admit(Because),
    /// It is refused: this number would be later than promised.
    Refuse(Metric),
}

/// Why a request was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    /// Its class is promised nothing.
    Unbound,
    /// Its bound fits.
    Fits,
    /// Nothing waits, and there is room or it is expected to be in time as the next in line.
    Room,
    /// The pool is not pressed, so it costs others nothing.
    Slack,
    /// Nothing has been measured yet.
    Unknown,
    /// It would have been refused: it is let in to learn what that costs.
    Explored,
}

impl Because {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Unbound,
        Self::Fits,
        Self::Room,
        Self::Slack,
        Self::Unknown,
        Self::Explored,
    ];

    /// The reason as metrics and reports spell it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unbound => "unbound",
            Self::Fits => "fits",
            Self::Room => "room",
            Self::Slack => "slack",
            Self::Unknown => "unknown",
            Self::Explored => "explored",
        }
    }

    pub(super) const fn place(self) -> usize {
        match self {
            Self::Unbound => 0,
            Self::Fits => 1,
            Self::Room => 2,
            Self::Slack => 3,
            Self::Unknown => 4,
            Self::Explored => 5,
        }
    }
}

/// How near a pool is to its limits, for one class: what a typical request would take, as a part of
/// what is promised, smoothed over about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// In thousandths of what is promised.
    level: u64,
    is_on: bool,
    at: Option<Time>,
}

impl Pressure {
    const OVER: Micros = Micros::from_secs(1);

    /// Where it begins: with half of the promise for the typical request, the bound of one that is
    /// not is near all of it.
    const ON: u64 = 500;

    /// Where it ends.
    const OFF: u64 = 300;

    /// The largest level that counts: whatever was, it is over a few seconds after its cause.
    const MOST: u64 = 4_000;

    /// Takes in how near the pool is now, in thousandths.
    pub fn note(&mut self, level: u64, now: Time) {
        let level = level.min(Self::MOST);
        let span = self.at.map_or(Self::OVER, |at| now.since(at)).get();
        let whole = span.saturating_add(Self::OVER.get());
        let blend = self
            .level
            .saturating_mul(Self::OVER.get())
            .saturating_add(level.saturating_mul(span));
        self.level = blend.checked_div(whole).unwrap_or(level);
        self.at = Some(now);
        self.is_on = self.level >= if self.is_on { Self::OFF } else { Self::ON };
    }

    /// Whether the pool is pressed.
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// In thousandths of what is promised.
    pub const fn level(&self) -> u64 {
        self.level
    }
}

/// How often one that would be refused is let in, lest nothing is learned of what is refused, and
/// refusing everything goes on for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    admitted: u32,
    last: Option<Time>,
}

impl Quota {
    /// One in so many that are admitted: half a per cent of what is served.
    const EVERY: u32 = 200;

    /// And one in so long, however few are admitted.
    const AFTER: Micros = Micros::from_secs(30);

    /// One more is let in, if it is time for one.
    pub fn take(&mut self, now: Time) -> bool {
        let since = now.since(*self.last.get_or_insert(now));
        let is_due = self.admitted >= Self::EVERY || since >= Self::AFTER;
        if is_due {
            (self.admitted, self.last) = (0, Some(now));
        }
        is_due
    }

    /// A request was let in.
    pub fn admitted(&mut self) {
        self.admitted = self.admitted.saturating_add(1);
    }
}

/// What lately came, by cost over value, so that the dearest is told from the cheapest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Market(Ring);

impl Market {
    /// What a request costs over what it is worth: its work by its tenant's share. An answer counts
    /// one towards goodput, however long it is.
    pub fn price(facts: &Facts, weight: u32) -> Tokens {
        let output = facts.output_median.min(facts.output_max).get();
        let work = (facts.prompt - facts.cached)
            .get()
            .saturating_add(output.saturating_mul(2));
        Tokens::new(work.saturating_mul(16) / u64::from(weight.max(1)))
    }

    /// A request of this price came.
    pub fn came(&mut self, price: Tokens) {
        self.0.push(price);
    }

    /// How many of a thousand that came lately were cheaper.
    pub fn rank(&self, price: Tokens) -> u64 {
        self.0.below(price)
    }
}

/// What of the time that was promised a request may use up, where others want it too: less for one
/// of the dearer ones, so that these are refused first. One of a tenant that has less than its
/// share may use all of it: it is never refused in favour of one whose tenant has more.
pub fn budget(limit: Micros, rank: u64, below_share: bool, mode: Mode) -> Micros {
    /// Of a thousand, what the dearest gives up.
    const DEAREST: u64 = 200;
    match (mode, below_share) {
        (Mode::Guarantee, _) | (_, true) => limit,
        (Mode::Goodput, false) => {
            let less = u128::from(limit.get()) * u128::from(rank * DEAREST) / 1_000_000;
            limit - Micros::new(u64::try_from(less).unwrap_or(0))
        }
    }
}

/// Where a request stands when it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The first number whose bound does not fit.
    pub misfit: Option<Metric>,
    /// Whether there is a bound at all.
    pub is_known: bool,
    /// Whether nothing waits, and there is room or it is expected to be in time as the next in
    /// line: bounds that are too wide would otherwise keep the line empty, and never learn that
    /// they are.
    pub is_room: bool,
    /// Whether the pool is pressed.
    pub is_pressed: bool,
}

/// What becomes of a request.
pub fn decide(terms: &Terms, standing: Standing, quota: &mut Quota, now: Time) -> Verdict {
    let verdict = match (standing.misfit, terms.mode) {
        _ if !standing.is_known => Verdict::Admit(Because::Unknown),
        (None, _) => Verdict::Admit(Because::Fits),
        (Some(_), Mode::Goodput) if standing.is_room => Verdict::Admit(Because::Room),
        (Some(_), Mode::Goodput) if !standing.is_pressed => Verdict::Admit(Because::Slack),
        (Some(_), Mode::Goodput | Mode::Guarantee) if quota.take(now) => {
            Verdict::Admit(Because::Explored)
        }
        (Some(metric), Mode::Goodput | Mode::Guarantee) => Verdict::Refuse(metric),
    };
    if let Verdict::Admit(_) = verdict {
        quota.admitted();
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::START + Micros::from_millis(millis)
    }

    const LATE: Standing = Standing {
        misfit: Some(Metric::Ttft),
        is_known: true,
        is_room: false,
        is_pressed: true,
    };

    #[test]
    fn goodput_refuses_nobody_while_there_is_room_or_no_pressure() {
        let mut quota = Quota::default();
        let mut of = |standing| decide(&Terms::NONE, standing, &mut quota, at(0));
        assert_eq!(of(LATE), Verdict::Refuse(Metric::Ttft));
        let room = Standing {
            is_room: true,
            ..LATE
        };
        assert_eq!(of(room), Verdict::Admit(Because::Room));
        let slack = Standing {
            is_pressed: false,
            ..LATE
        };
        assert_eq!(of(slack), Verdict::Admit(Because::Slack));
        let guarantee = Terms {
            mode: Mode::Guarantee,
            ..Terms::NONE
        };
        assert_eq!(
            decide(&guarantee, room, &mut quota, at(0)),
            Verdict::Refuse(Metric::Ttft)
        );
    }

    #[test]
    fn one_in_two_hundred_or_one_in_half_a_minute_is_let_in_to_learn() {
        let mut quota = Quota::default();
        let fits = Standing {
            misfit: None,
            ..LATE
        };
        assert_eq!(
            decide(&Terms::NONE, LATE, &mut quota, at(0)),
            Verdict::Refuse(Metric::Ttft)
        );
        for _ in 0..200 {
            decide(&Terms::NONE, fits, &mut quota, at(1));
        }
        let explored = Verdict::Admit(Because::Explored);
        assert_eq!(decide(&Terms::NONE, LATE, &mut quota, at(2)), explored);
        assert_ne!(decide(&Terms::NONE, LATE, &mut quota, at(3)), explored);
        assert_ne!(decide(&Terms::NONE, LATE, &mut quota, at(30_001)), explored);
        assert_eq!(decide(&Terms::NONE, LATE, &mut quota, at(30_002)), explored);
    }

    #[test]
    fn one_look_neither_sets_pressure_nor_clears_it() {
        let mut pressure = Pressure::default();
        let mut now = 0;
        let mut note = |pressure: &mut Pressure, level, times| {
            for _ in 0..times {
                now += 50;
                pressure.note(level, at(now));
            }
        };
        note(&mut pressure, 100, 40);
        note(&mut pressure, 4_000, 1);
        assert!(!pressure.is_on(), "one long wait is no pressure");
        note(&mut pressure, 900, 40);
        assert!(pressure.is_on());
        note(&mut pressure, 0, 1);
        assert!(pressure.is_on(), "one short wait does not end it");
        note(&mut pressure, 400, 200);
        assert!(pressure.is_on(), "between its two ends it stays as it is");
        note(&mut pressure, 100, 200);
        assert!(!pressure.is_on());
    }

    #[test]
    fn the_dearest_gives_way_first_and_nobody_below_its_share_does() {
        let mut market = Market::default();
        for n in 1..=96 {
            market.came(Tokens::new(n));
        }
        assert_eq!(market.rank(Tokens::new(1)), 0);
        assert!(market.rank(Tokens::new(97)) == 1_000);
        let limit = Micros::from_secs(2);
        let cheap = budget(limit, 0, false, Mode::Goodput);
        let dear = budget(limit, 1_000, false, Mode::Goodput);
        assert_eq!((cheap, dear), (limit, Micros::from_millis(1_600)));
        assert_eq!(budget(limit, 1_000, true, Mode::Goodput), limit);
        assert_eq!(budget(limit, 1_000, false, Mode::Guarantee), limit);
    }
}
