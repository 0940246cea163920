//! A cost that was fitted, and how far off it is.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tollgate_policy::units::Micros;
use tollgate_sim::machine::{Curve, Shape};

use super::fit::{Point, fit, value};
use super::steps::Seen;
use super::{Plan, Simulated};

/// A cost that is off by more than this at the median is none.
const OFF_MAX: f64 = 0.15;

/// Steps of a kind below which nothing is said of it.
const ENOUGH: usize = 5;

/// The cost of an engine's steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Where it was measured.
    pub endpoint: String,
    /// Which model.
    pub model: String,
    /// What steps cost.
    pub cost: FittedCost,
    /// How far off that is, over all steps.
    pub all: Residual,
    /// How far off for steps of one kind, by number of answers, without prompts before with.
    pub kinds: Vec<((u64, bool), Residual)>,
    /// What was not as it should be while it was measured, and what to do about it.
    pub notes: Vec<String>,
}

/// What steps cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FittedCost {
    /// As an emulated engine of the simulator has it.
    Emulated {
        /// A step by itself, in microseconds.
        step_us: u64,
        /// Each sequence in it, in microseconds.
        per_sequence_us: u64,
        /// Prompt tokens computed in a second; at least 1.
        prefill_tokens_per_second: u64,
    },
    /// As the embedded engine of the simulator has it.
    Embedded {
        /// The next tokens of so many answers, in microseconds.
        answers_us: Vec<(u32, u64)>,
        /// KV tokens that attention goes through in a second, all in use for each answer; `None`
        /// where that was not seen to cost anything.
        attention_per_second: Option<u64>,
        /// Prompts by themselves, in microseconds.
        prompt_step_us: u64,
        /// Prompt tokens computed in a second; at least 1.
        prefill_tokens_per_second: u64,
    },
}

/// How far a cost is off for some steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Residual {
    /// How many.
    pub steps: usize,
    /// What they took at the median, in milliseconds.
    pub median_ms: f64,
    /// What all of them took together, of what the cost says: 1.02 is two per cent more.
    pub total: f64,
    /// Half are off by less, as a part of what the cost says.
    pub off_median: f64,
    /// Nine of ten are off by less.
    pub off_p90: f64,
}

/// Why no cost was fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Too few steps showed.
    #[error(
        "{0} steps showed, which is not enough; try a longer --each, and --output well above 2"
    )]
    Few(usize),
    /// No number of sequences was held for long enough.
    #[error(
        "there were no steps of {0} answers alone; does the endpoint serve as many at once? \
         Name other --sequences"
    )]
    Never(String),
    /// Longer prompts took no longer.
    #[error("longer prompts took no longer; try longer --prompts")]
    Free,
    /// The engine is no such engine, or had other things to do.
    #[error(
        "half of {} steps took over {:.0}% more or less than any such cost says; is the engine \
         idle otherwise? Try a longer --each",
        .0.steps,
        .0.off_median * 100.0
    )]
    Off(Residual),
}

impl Fitted {
    /// Fits a cost to steps, where so many sequences were held.
    pub(super) fn to(plan: &Plan, seen: &[Seen], held: &[u32]) -> Result<Self, FitError> {
        let kind = Kind::of(plan.simulated, seen, held)?;
        let point = |seen: &Seen| Point {
            terms: kind.terms(seen.shape),
            measured: seen.took_ms,
        };
        let positive = seen.iter().filter(|seen| seen.took_ms > 0.0);
        let points: Vec<Point> = positive.clone().map(point).collect();
        let found = fit(&points).ok_or(FitError::Few(points.len()))?;
        let found = kind.possible(found);
        let mut kinds: BTreeMap<(u64, bool), Vec<[f64; 2]>> = BTreeMap::new();
        let mut all = Vec::new();
        for (seen, point) in positive.zip(&points) {
            let pair = [seen.took_ms, value(&found, point)];
            all.push(pair);
            let kind = (seen.shape.answers, seen.shape.prompts > 0);
            kinds.entry(kind).or_default().push(pair);
        }
        let all = Residual::of(&all);
        if all.off_median > OFF_MAX {
            return Err(FitError::Off(all));
        }
        let often = kinds.iter().filter(|(_, pairs)| pairs.len() >= ENOUGH);
        Ok(Self {
            endpoint: plan.endpoint.to_string(),
            model: plan.model.clone(),
            cost: kind.cost(&found)?,
            all,
            kinds: often
                .map(|(kind, pairs)| (*kind, Residual::of(pairs)))
                .collect(),
            notes: Vec::new(),
        })
    }
}

impl Residual {
    /// Of what was measured, and what the cost says.
    fn of(pairs: &[[f64; 2]]) -> Self {
        let middle = |mut values: Vec<f64>, part: f64| {
            values.sort_unstable_by(f64::total_cmp);
            let at = (values.len() as f64 * part) as usize;
            values
                .get(at.min(values.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0.0)
        };
        let off = pairs
            .iter()
            .map(|[is, says]| (is - says).abs() / says.max(f64::MIN_POSITIVE));
        let off: Vec<f64> = off.collect();
        let sum = |at: usize| pairs.iter().map(|pair| pair[at]).sum::<f64>();
        Self {
            steps: pairs.len(),
            median_ms: middle(pairs.iter().map(|[is, _]| *is).collect(), 0.5),
            total: sum(0) / sum(1).max(f64::MIN_POSITIVE),
            off_median: middle(off.clone(), 0.5),
            off_p90: middle(off, 0.9),
        }
    }
}

/// What a step is made of.
#[derive(Clone, Debug)]
enum Kind {
    Emulated,
    Embedded {
        /// Numbers of answers at which the curve has a point, in order; at least one.
        knots: Vec<u32>,
    },
}

impl Kind {
    fn of(simulated: Simulated, seen: &[Seen], held: &[u32]) -> Result<Self, FitError> {
        match simulated {
            Simulated::Emulated => Ok(Self::Emulated),
            Simulated::Embedded => {
                let alone = |number: u32| {
                    let is = |seen: &&Seen| {
                        seen.shape.prompts == 0 && seen.shape.answers == u64::from(number)
                    };
                    seen.iter().filter(is).count()
                };
                let often = |number: &u32| alone(*number) >= ENOUGH;
                let knots: Vec<u32> = held.iter().copied().filter(often).collect();
                if knots.is_empty() {
                    let held: Vec<String> = held.iter().map(u32::to_string).collect();
                    return Err(FitError::Never(held.join(" or ")));
                }
                Ok(Self::Embedded { knots })
            }
        }
    }

    fn terms(&self, shape: Shape) -> Vec<f64> {
        let answers = shape.answers as f64;
        let prompt = shape.prompt_tokens.get() as f64;
        let prompts = shape.prompts as f64;
        match self {
            Self::Emulated => vec![1.0, answers + prompts, prompt],
            Self::Embedded { knots } => {
                let mut terms = shares(knots, answers);
                terms.push(answers * shape.kv.get() as f64);
                terms.push(prompts.min(1.0));
                terms.push(prompt);
                terms
            }
        }
    }

    /// The cost next to what was found that the simulator takes: a step of more answers takes no
    /// less than one of fewer, but for a little.
    fn possible(&self, mut found: Vec<f64>) -> Vec<f64> {
        if let Self::Embedded { knots } = self {
            let mut longest: f64 = 0.0;
            for ms in found.iter_mut().take(knots.len()) {
                let least = Curve::least_after(micros(longest));
                // A microsecond more, as what is printed is in whole ones.
                *ms = ms.max((least.get() + 1) as f64 / 1e3);
                longest = longest.max(*ms);
            }
        }
        found
    }

    fn cost(&self, found: &[f64]) -> Result<FittedCost, FitError> {
        let micros = |ms: f64| micros(ms).get();
        let rate = |ms: f64| (ms > 0.0).then(|| (1e3 / ms).round().max(1.0) as u64);
        let prefill = found.last().copied().and_then(rate).ok_or(FitError::Free)?;
        let at = |place: usize| found.get(place).copied().unwrap_or(0.0);
        Ok(match self {
            Self::Emulated => FittedCost::Emulated {
                step_us: micros(at(0)),
                per_sequence_us: micros(at(1)),
                prefill_tokens_per_second: prefill,
            },
            Self::Embedded { knots } => FittedCost::Embedded {
                answers_us: knots
                    .iter()
                    .zip(found)
                    .map(|(n, ms)| (*n, micros(*ms)))
                    .collect(),
                attention_per_second: rate(at(knots.len())),
                prompt_step_us: micros(at(knots.len() + 1)),
                prefill_tokens_per_second: prefill,
            },
        })
    }
}

/// Milliseconds as a span.
fn micros(ms: f64) -> Micros {
    Micros::new((ms * 1e3).round().max(0.0) as u64)
}

/// How much of the value at each knot a curve has at a number of answers: as the simulator's
/// [`Curve`](tollgate_sim::machine::Curve) goes.
fn shares(knots: &[u32], answers: f64) -> Vec<f64> {
    let mut shares = vec![0.0; knots.len()];
    if answers == 0.0 {
        return shares;
    }
    let above = knots.iter().position(|knot| f64::from(*knot) >= answers);
    let high = above.unwrap_or(knots.len() - 1);
    let Some(low) = high.checked_sub(1) else {
        shares[0] = 1.0;
        return shares;
    };
    let (from, to) = (f64::from(knots[low]), f64::from(knots[high]));
    let part = (answers - from) / (to - from);
    shares[low] = 1.0 - part;
    shares[high] = part;
    shares
}

impl fmt::Display for Fitted {
    /// The fleet of a simulated scenario, in YAML, with what it was fitted to in comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Fitted to {} ({}).", self.endpoint, self.model)?;
        writeln!(
            f,
            "# answers  prompts   steps  median ms   total  off p50  off p90"
        )?;
        for ((answers, prompts), residual) in &self.kinds {
            let prompts = if *prompts { "with" } else { "without" };
            writeln!(f, "# {answers:>7}  {prompts:>7}  {residual}")?;
        }
        writeln!(f, "#     all           {}", self.all)?;
        for note in &self.notes {
            writeln!(f, "# {note}")?;
        }
        f.write_str("fleet:\n")?;
        self.cost.fmt(f)
    }
}

impl fmt::Display for Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>6} {:>10.2} {:>7.3} {:>7.1}% {:>7.1}%",
            self.steps,
            self.median_ms,
            self.total,
            self.off_median * 100.0,
            self.off_p90 * 100.0
        )
    }
}

impl fmt::Display for FittedCost {
    /// One replica of a fleet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Emulated {
                step_us,
                per_sequence_us,
                prefill_tokens_per_second,
            } => {
                writeln!(f, "  - step: {step_us}us")?;
                writeln!(f, "    per_sequence: {per_sequence_us}us")?;
                writeln!(f, "    prefill_per_second: {prefill_tokens_per_second}")
            }
            Self::Embedded {
                answers_us,
                attention_per_second,
                prompt_step_us,
                prefill_tokens_per_second,
            } => {
                let steps: Vec<String> = answers_us
                    .iter()
                    .map(|(n, us)| format!("{n}: {us}us"))
                    .collect();
                writeln!(f, "  - engine: embedded")?;
                writeln!(f, "    steps: {{ {} }}", steps.join(", "))?;
                if let Some(attention) = attention_per_second {
                    writeln!(f, "    attention_per_second: {attention}")?;
                }
                writeln!(f, "    prompt_step: {prompt_step_us}us")?;
                writeln!(f, "    prefill_per_second: {prefill_tokens_per_second}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
