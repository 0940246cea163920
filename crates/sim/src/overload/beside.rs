//! What split conformal would have promised the very requests that a gateway let in.
//!
//! Two gateways let in whom each of them likes, so their bounds are of other requests. Here the
//! rule looks on: it learns from what the gateway under test has seen, in that order, and decides
//! nothing. So both bounds are of the same outcomes.

use tollgate_policy::slo::{Estimate, Facts, PoolFacts, Row};
use tollgate_policy::units::{Micros, Time};

use crate::promised::pinball;
use crate::stats::Sorted;
use crate::tally::Tally;

/// Scores that it goes by.
const SCORES: usize = 2_000;

/// Bounds of three kinds for the same requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// How many there are.
    pub(super) due: u64,
    /// Those that were promised.
    pub(super) ours: Fared,
    /// Of a plan whose costs are measured as it goes, times a factor that stays.
    pub(super) factor_stays: Fared,
    /// Of a plan whose costs stay too: all of it is of the first scores.
    pub(super) all_stays: Fared,
}

/// How one kind fared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fared {
    kept: u64,
    loss: f64,
}

impl Fared {
    fn add(&mut self, bound: f64, came: f64) {
        self.kept += u64::from(came <= bound);
        self.loss += pinball(bound, came, 0.1);
    }

    /// Kept, of a hundred of so many.
    pub(super) fn percent(&self, of: u64) -> f64 {
        100.0 * self.kept as f64 / of.max(1) as f64
    }

    /// Mean pinball loss, in milliseconds.
    pub(super) fn mean_ms(&self, of: u64) -> f64 {
        self.loss / of.max(1) as f64 / 1_000.0
    }

    /// Its loss over that of another.
    pub(super) fn over(&self, other: &Self) -> f64 {
        self.loss / other.loss.max(1.0)
    }
}

impl Beside {
    /// Of requests that were received in `from..until`, once the rule had its scores; nothing where
    /// it never had.
    pub(super) fn of(tally: &Tally, from: Time, until: Time) -> Option<Self> {
        let mut known: Vec<(Time, Seen<'_>)> = tally
            .rows
            .iter()
            .filter_map(|row| Some((row.judged.received + row.seen.ttft?, Seen::of(row)?)))
            .collect();
        known.sort_by_key(|(at, seen)| (*at, seen.row.id));
        let first = known.get(..SCORES)?;
        let (at, last) = *first.last()?;
        let stays = Costs::of(&last.row.judged.facts.pool);
        let each = || first.iter().map(|(_, seen)| seen);
        let factor = ninth_decile(each().map(|seen| seen.came / seen.planned));
        let fixed = ninth_decile(each().map(|seen| seen.came / stays.plan(seen.row)));
        let mut beside = Self::default();
        let within = |row: &Row| {
            let received = row.judged.received;
            received >= from.max(at) && received < until
        };
        for (_, seen) in known.iter().filter(|(_, seen)| within(seen.row)) {
            beside.due += 1;
            beside.ours.add(seen.promised, seen.came);
            let bound = factor * seen.planned;
            beside.factor_stays.add(bound, seen.came);
            let bound = fixed * stays.plan(seen.row);
            beside.all_stays.add(bound, seen.came);
        }
        Some(beside)
    }
}

/// A request whose first token came, in microseconds from when it was judged.
#[derive(Clone, Copy, Debug)]
struct Seen<'r> {
    row: &'r Row,
    came: f64,
    planned: f64,
    promised: f64,
}

impl<'r> Seen<'r> {
    fn of(row: &'r Row) -> Option<Self> {
        let plan = row.judged.plan?;
        let after = |span: Micros| (span - plan.passed).get() as f64;
        Some(Self {
            row,
            came: after(row.seen.ttft?),
            planned: plan.first.get().max(1) as f64,
            promised: after(row.judged.bounds[0]?.promised),
        })
    }
}

/// What a pool cost at one moment.
#[derive(Clone, Copy, Debug)]
struct Costs(PoolFacts);

impl Costs {
    const fn of(pool: &PoolFacts) -> Self {
        Self(*pool)
    }

    /// What is planned for a request with these costs, in microseconds.
    fn plan(&self, row: &Row) -> f64 {
        let facts = Facts {
            pool: PoolFacts {
                gap: self.0.gap,
                prefill: self.0.prefill,
                decode: self.0.decode,
                ..row.judged.facts.pool
            },
            ..row.judged.facts
        };
        let first = Estimate::of(&facts).map_or(Micros::ZERO, |plan| plan.first);
        first.get().max(1) as f64
    }
}

/// The k-th smallest, `k = ceil((n + 1) 0.9)`.
fn ninth_decile(scores: impl Iterator<Item = f64>) -> f64 {
    let sorted = Sorted::new(scores);
    let rank = ((sorted.len() + 1) * 9).div_ceil(10).max(1);
    sorted.as_slice().get(rank - 1).copied().unwrap_or(1.0)
}
