//! Service over time, and the widest gap in it between two tenants while both wait.
//!
//! Seen from the client: a prompt is served at its first token, output evenly from the first token
//! to the last, and a request waits from its send to its first token. The engine itself would say
//! it more sharply; this needs nothing but rows. (Sheng et al., OSDI 2024.)

use tollgate_policy::units::Time;

use super::Run;
use crate::rows::Row;

/// Looked at so often over a run.
const SAMPLES: u64 = 500;

/// Tenants that are compared; the busiest ones.
const TENANTS_MAX: usize = 32;

/// Of a prompt token and of an output token.
const WEIGHTS: [f64; 2] = [1.0, 2.0];

/// What tenants were served.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Service {
    /// Seconds from the start of the run.
    pub(crate) at_s: Vec<f64>,
    /// Of the busiest tenants: the index of each, and its service so far at each of `at_s`.
    pub(crate) tenants: Vec<(usize, Vec<f64>)>,
    /// The widest gap between two of them; none where no two ever waited at once.
    pub(crate) widest: Option<f64>,
}

pub(super) fn service(run: &Run) -> Service {
    let step = (run.timing.duration.get() / SAMPLES).max(1);
    let at: Vec<u64> = (0..=SAMPLES).map(|index| index * step).collect();
    let mut counts: Vec<(usize, usize)> = run
        .tenants
        .iter()
        .enumerate()
        .map(|(index, _)| {
            (
                run.rows.iter().filter(|row| row.tenant == index).count(),
                index,
            )
        })
        .collect();
    counts.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
    counts.truncate(TENANTS_MAX);
    let lines: Vec<Line> = counts
        .iter()
        .map(|(_, tenant)| Line::of(run, *tenant, &at))
        .collect();
    let widest = lines
        .iter()
        .enumerate()
        .flat_map(|(index, one)| lines.iter().skip(index + 1).map(move |other| (one, other)))
        .filter_map(|(one, other)| widest(one, other))
        .max_by(f64::total_cmp);
    Service {
        at_s: at.iter().map(|at| *at as f64 / 1e6).collect(),
        tenants: lines
            .into_iter()
            .map(|line| (line.tenant, line.served))
            .collect(),
        widest,
    }
}

/// One tenant at each moment.
struct Line {
    tenant: usize,
    served: Vec<f64>,
    waits: Vec<bool>,
}

impl Line {
    fn of(run: &Run, tenant: usize, at: &[u64]) -> Self {
        let own: Vec<&Row> = run.rows.iter().filter(|row| row.tenant == tenant).collect();
        let sum = |now: &u64| {
            own.iter()
                .map(|row| served(row, *now))
                .fold(0.0, |all: f64, more| all + more)
        };
        let waits = |now: &u64| own.iter().any(|row| waits(row, Time::from_micros(*now)));
        Self {
            tenant,
            served: at.iter().map(sum).collect(),
            waits: at.iter().map(waits).collect(),
        }
    }
}

fn served(row: &Row, now: u64) -> f64 {
    let Some(first) = row
        .first_token
        .map(Time::as_micros)
        .filter(|first| *first <= now)
    else {
        return 0.0;
    };
    let [of_prompt, of_output] = WEIGHTS;
    let last = row.last_token.map_or(first, Time::as_micros);
    let share = if now >= last {
        1.0
    } else {
        (now - first) as f64 / (last - first) as f64
    };
    let prompt = row.prompt_tokens.unwrap_or(row.prompt_asked);
    let output = row.output_tokens.unwrap_or(row.deltas);
    of_prompt * prompt as f64 + of_output * output as f64 * share
}

fn waits(row: &Row, now: Time) -> bool {
    let until = row.first_token.unwrap_or(row.end);
    row.sent.is_some_and(|sent| sent <= now) && now < until
}

/// The range of the difference while both wait, the widest of all such stretches of time.
fn widest(one: &Line, other: &Line) -> Option<f64> {
    let mut found: Option<f64> = None;
    let mut stretch: Option<(f64, f64)> = None;
    let both = one
        .waits
        .iter()
        .zip(&other.waits)
        .map(|(one, other)| *one && *other);
    let differences = one
        .served
        .iter()
        .zip(&other.served)
        .map(|(one, other)| one - other);
    for (both, difference) in both.zip(differences) {
        stretch = both.then(|| {
            let (low, high) = stretch.unwrap_or((difference, difference));
            (low.min(difference), high.max(difference))
        });
        if let Some((low, high)) = stretch {
            found = Some(found.unwrap_or(0.0).max(high - low));
        }
    }
    found
}
