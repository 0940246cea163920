//! What an engine's steps cost, fitted to what a client sees: a step by itself, each sequence in
//! it, and each prompt token.
//!
//! Two straight lines by least squares. The median time from token to token against sequences at
//! once gives the first two: most steps have no prompt in them, so the median is of those that have
//! none, which the mean of a request is not. Time to first token of a lone request against the
//! length of its prompt gives the third. The clients wait for their answers, since here a number of
//! sequences is to be held, not a load.

use std::fmt;
use std::num::NonZeroUsize;

use serde::Serialize;
use tollgate_policy::units::Micros;
use tollgate_sim::workload::TenantLoad;
use tollgate_sim::{Arrivals, Lengths};

use crate::report::Report;
use crate::run::{BenchError, run};
use crate::spec::{Cycle, Endpoint, Identity, Reply, Source, Spec, TenantSpec, Timing, Tokenizer};
use crate::stop::Stop;

/// Below this part of the variance explained, the points lie on no line.
const STRAIGHT: f64 = 0.9;

/// Points of a line at least.
const POINTS_MIN: usize = 2;

/// The prompt of requests whose steps are timed: short, so that prefill is no part of them.
const SHORT_PROMPT: u64 = 32;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom it asks.
    pub endpoint: Endpoint,
    /// For which model.
    pub model: String,
    /// How it is known there.
    pub identity: Identity,
    /// Sequences at once, a point each.
    pub sequences: Vec<usize>,
    /// Prompt lengths of a lone request, a point each.
    pub prompts: Vec<u64>,
    /// Output tokens of requests whose steps are timed.
    pub output: u64,
    /// Time for each point.
    pub each: Micros,
    /// How a number of tokens becomes a text.
    pub tokenizer: Tokenizer,
    /// Decides the texts.
    pub seed: u64,
    /// The command line, for the record.
    pub command: String,
}

/// A measured point: sequences or prompt tokens, and milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Sequences at once, or prompt tokens.
    pub at: f64,
    /// Median of the times, in milliseconds.
    pub ms: f64,
}

/// A straight line through points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Where it begins, in milliseconds.
    pub at_zero: f64,
    /// How it rises, in milliseconds a unit.
    pub slope: f64,
    /// Part of the variance that it explains; 1 where all points lie on it.
    pub explained: f64,
}

/// The cost of an engine's steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Where it was measured.
    pub endpoint: String,
    /// Which model.
    pub model: String,
    /// A step by itself, in microseconds.
    pub step_us: u64,
    /// Each sequence in it, in microseconds.
    pub per_sequence_us: u64,
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_second: u64,
    /// Time from token to token by sequences at once.
    pub steps: Line,
    /// Its points.
    pub step_points: Vec<Measured>,
    /// Time to first token by prompt tokens.
    pub prefill: Line,
    /// Its points.
    pub prefill_points: Vec<Measured>,
}

/// Why there is no cost.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A point could not be measured.
    #[error(transparent)]
    Run(#[from] BenchError),
    /// A point's run says nothing.
    #[error("{what}: {why}")]
    Invalid {
        /// Which point.
        what: String,
        /// Why.
        why: String,
    },
    /// Too few to fit anything.
    #[error("{0} points of {1} make no line; name {POINTS_MIN} different ones at least")]
    Points(usize, &'static str),
    /// The engine is no such engine, or had other things to do.
    #[error(
        "{what} lie on no rising line (slope {:.6} ms, {:.0}% of the variance explained): \
         {points}; is the engine idle otherwise? Try a longer --each",
        line.slope,
        line.explained * 100.0
    )]
    Crooked {
        /// Which points.
        what: &'static str,
        /// The line.
        line: Line,
        /// The points, for a person.
        points: String,
    },
}

/// Measures and fits. `on_point` is called before each point, with what it is.
///
/// # Errors
/// A point cannot be measured, or the points lie on no line.
pub fn calibrate(
    plan: &Plan,
    stop: &Stop,
    mut on_point: impl FnMut(&str),
) -> Result<Fitted, CalibrateError> {
    let mut step_points = Vec::new();
    for sequences in &plan.sequences {
        let what = format!("{sequences} sequences at once");
        on_point(&what);
        let clients = NonZeroUsize::new(*sequences).unwrap_or(NonZeroUsize::MIN);
        let report = plan.point(&what, clients, [SHORT_PROMPT, plan.output.max(2)], stop)?;
        let ms = median(&report, &what, |tenant| tenant.itl.p50_ms)?;
        let at = clients.get() as f64;
        step_points.push(Measured { at, ms });
    }
    let mut prefill_points = Vec::new();
    for prompt in &plan.prompts {
        let what = format!("a prompt of {prompt} tokens");
        on_point(&what);
        let report = plan.point(&what, NonZeroUsize::MIN, [*prompt, 1], stop)?;
        let ms = median(&report, &what, |tenant| tenant.ttft.p50_ms)?;
        // What the endpoint counted, where it counts: a text is not always as long as was meant.
        let counted = report
            .tenants
            .first()
            .and_then(|tenant| tenant.prompt_tokens[1]);
        let at = counted.unwrap_or(*prompt as f64);
        prefill_points.push(Measured { at, ms });
    }
    plan.fit(step_points, prefill_points)
}

impl Plan {
    /// Runs one point.
    fn point(
        &self,
        what: &str,
        clients: NonZeroUsize,
        [prompt, output]: [u64; 2],
        stop: &Stop,
    ) -> Result<Report, CalibrateError> {
        let rate = Arrivals::Poisson { rate: 1.0 };
        let (prompt, output) = (Lengths::Constant(prompt), Lengths::Constant(output));
        let load = TenantLoad::new("calibration", rate, prompt, output);
        let spec = Spec {
            endpoint: self.endpoint.clone(),
            model: self.model.clone(),
            source: Source::Drawn(vec![TenantSpec {
                load,
                identity: self.identity.clone(),
            }]),
            cycle: Cycle::Closed(clients),
            reply: Reply::Streamed,
            tokenizer: self.tokenizer,
            timing: Timing {
                duration: self.each,
                // The first answers of a model are slow; a fifth is left out.
                warm_up: Micros::new(self.each.get() / 5),
                drain: Micros::from_secs(120),
                slip_p99_max: Micros::from_millis(20),
            },
            seed: self.seed.wrapping_add(clients.get() as u64),
            threads: 1,
            rows: None,
            command: self.command.clone(),
        };
        let report = run(&spec, stop, |_| {})?;
        match report.reasons().first() {
            None => Ok(report),
            Some(why) => Err(CalibrateError::Invalid {
                what: what.to_owned(),
                why: why.clone(),
            }),
        }
    }

    fn fit(
        &self,
        step_points: Vec<Measured>,
        prefill_points: Vec<Measured>,
    ) -> Result<Fitted, CalibrateError> {
        // Sequences may cost next to nothing, prompt tokens never do.
        let steps = match level(&step_points) {
            Some(level) => level,
            None => straight("times from token to token", &step_points)?,
        };
        let prefill = straight("times to first token", &prefill_points)?;
        let micros = |ms: f64| (ms * 1e3).round().max(0.0) as u64;
        Ok(Fitted {
            endpoint: self.endpoint.to_string(),
            model: self.model.clone(),
            step_us: micros(steps.at_zero),
            per_sequence_us: micros(steps.slope),
            prefill_tokens_per_second: (1e3 / prefill.slope).round().max(1.0) as u64,
            steps,
            step_points,
            prefill,
            prefill_points,
        })
    }
}

fn median(
    report: &Report,
    what: &str,
    of: impl Fn(&crate::summary::TenantSummary) -> Option<f64>,
) -> Result<f64, CalibrateError> {
    let found = report.tenants.first().and_then(of);
    found.ok_or_else(|| CalibrateError::Invalid {
        what: what.to_owned(),
        why: format!(
            "no request completed: {} refused, {} failed, {} unfinished",
            report.totals.refused, report.totals.failed, report.totals.unfinished
        ),
    })
}

/// The level line through `points` that differ by less than can be told from noise and do not lie
/// on a rising one.
fn level(points: &[Measured]) -> Option<Line> {
    /// A step is measured no better than this part of it.
    const NOISE: f64 = 0.05;
    let line = Line::through(points)?;
    let mean = points.iter().map(|point| point.ms).sum::<f64>() / points.len() as f64;
    let close = points
        .iter()
        .all(|point| (point.ms - mean).abs() <= NOISE * mean);
    let rises = line.slope > 0.0 && line.explained >= STRAIGHT;
    (close && !rises).then_some(Line {
        at_zero: mean,
        slope: 0.0,
        explained: line.explained,
    })
}

/// The line through `points`, if they lie on a rising one.
fn straight(what: &'static str, points: &[Measured]) -> Result<Line, CalibrateError> {
    let Some(line) = Line::through(points) else {
        return Err(CalibrateError::Points(points.len(), what));
    };
    let rises = line.slope > 0.0 && line.explained >= STRAIGHT;
    if rises {
        return Ok(line);
    }
    let shown: Vec<String> = points
        .iter()
        .map(|point| format!("{}: {:.3} ms", point.at, point.ms))
        .collect();
    let points = shown.join(", ");
    Err(CalibrateError::Crooked { what, line, points })
}

impl Line {
    /// The line of least squares; `None` of points that all stand above one another.
    fn through(points: &[Measured]) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |of: fn(&Measured) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x, y) = (mean(|point| point.at), mean(|point| point.ms));
        let sum = |of: &dyn Fn(&Measured) -> f64| points.iter().map(of).sum::<f64>();
        let spread = sum(&|point| (point.at - x).powi(2));
        if points.len() < POINTS_MIN || spread == 0.0 {
            return None;
        }
        let slope = sum(&|point| (point.at - x) * (point.ms - y)) / spread;
        let at_zero = y - slope * x;
        let all = sum(&|point| (point.ms - y).powi(2));
        let left = sum(&|point| (point.ms - at_zero - slope * point.at).powi(2));
        let explained = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        Some(Self {
            at_zero,
            slope,
            explained,
        })
    }
}

impl fmt::Display for Fitted {
    /// The fleet of a simulated scenario, in YAML, with what it was fitted to in comments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Fitted to {} ({}).", self.endpoint, self.model)?;
        for (what, points, line) in [
            ("sequences", &self.step_points, self.steps),
            ("prompt tokens", &self.prefill_points, self.prefill),
        ] {
            let explained = line.explained * 100.0;
            writeln!(
                f,
                "# By {what}; the line explains {explained:.2}% of the variance:"
            )?;
            for Measured { at, ms } in points {
                let off = ms - line.at_zero - line.slope * at;
                writeln!(f, "#   {at:>6.0}: {ms:>9.3} ms, {off:+.3} from the line")?;
            }
        }
        writeln!(f, "fleet:")?;
        writeln!(f, "  - step: {}us", self.step_us)?;
        writeln!(f, "    per_sequence: {}us", self.per_sequence_us)?;
        let prefill = self.prefill_tokens_per_second;
        writeln!(f, "    prefill_per_second: {prefill}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(points: &[(f64, f64)]) -> Vec<Measured> {
        points.iter().map(|&(at, ms)| Measured { at, ms }).collect()
    }

    fn plan() -> Plan {
        Plan {
            endpoint: "http://127.0.0.1:1".parse().unwrap(),
            model: "m".to_owned(),
            identity: Identity::TenantHeader,
            sequences: vec![1, 4, 16],
            prompts: vec![100, 1_000],
            output: 8,
            each: Micros::from_secs(1),
            tokenizer: Tokenizer::Bytes { template: 18 },
            seed: 1,
            command: "calibrate".to_owned(),
        }
    }

    #[test]
    fn points_on_a_line_give_back_the_engine_that_made_them() {
        let steps = points(&[(1.0, 10.15), (4.0, 10.6), (16.0, 12.4)]);
        let prefill = points(&[(100.0, 18.48), (1_000.0, 93.48)]);
        let fitted = plan().fit(steps, prefill).unwrap();
        assert_eq!((fitted.step_us, fitted.per_sequence_us), (10_000, 150));
        assert_eq!(fitted.prefill_tokens_per_second, 12_000);
        assert!(fitted.steps.explained > 0.999_999);
        let text = fitted.to_string();
        let yaml: serde_json::Value = crate::yaml::read(&text).unwrap();
        assert_eq!(yaml["fleet"][0]["step"], "10000us", "{text}");
        assert_eq!(yaml["fleet"][0]["prefill_per_second"], 12_000);
    }

    #[test]
    fn noise_around_a_line_is_averaged_out() {
        let noise = [0.05, -0.04, 0.02, -0.05, 0.02];
        let steps: Vec<Measured> = [1.0, 2.0, 4.0, 8.0, 16.0]
            .iter()
            .zip(noise)
            .map(|(at, off)| Measured {
                at: *at,
                ms: 10.0 + 0.15 * at + off,
            })
            .collect();
        let line = straight("times", &steps).unwrap();
        assert!((line.at_zero - 10.0).abs() < 0.06, "{line:?}");
        assert!((line.slope - 0.15).abs() < 0.015, "{line:?}");
    }

    #[test]
    fn sequences_that_cost_nothing_are_no_mistake() {
        let steps = points(&[(1.0, 10.02), (4.0, 9.99), (16.0, 9.98)]);
        let prefill = points(&[(100.0, 18.48), (1_000.0, 93.48)]);
        let fitted = plan().fit(steps, prefill).unwrap();
        assert_eq!((fitted.step_us, fitted.per_sequence_us), (9_997, 0));
    }

    #[test]
    fn points_on_no_line_are_refused_and_shown() {
        let falling = straight("times", &points(&[(1.0, 20.0), (2.0, 10.0)]));
        assert!(
            falling
                .unwrap_err()
                .to_string()
                .contains("1: 20.000 ms, 2: 10.000 ms")
        );
        let scattered = points(&[(1.0, 1.0), (2.0, 9.0), (3.0, 1.0), (4.0, 9.0)]);
        assert!(straight("times", &scattered).is_err());
        for few in [&[][..], &[(1.0, 1.0)], &[(1.0, 1.0), (1.0, 2.0)]] {
            let error = straight("times", &points(few)).unwrap_err();
            assert!(error.to_string().contains("make no line"), "{error}");
        }
    }
}
