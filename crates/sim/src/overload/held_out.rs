//! How bounds fare on data that no setting was chosen by.
//!
//! What is chosen is chosen on what stands in for Azure's conversations, drawn with the seeds 1 to
//! 3. Shown here are other seeds of it, and traces of other services.

use std::fmt::Write as _;

use tollgate_policy::units::Time;

use super::{Bench, Native, StudyError, WARMUP, heading, row};
use crate::promised::Kept;
use crate::scenario::{Contender, Replay};
use crate::trace::{Trace, TraceName};

/// Seeds of the stand-in that nothing was chosen by.
const SEEDS: std::ops::RangeInclusive<u64> = 11..=15;

/// Loads that are shown.
const LOADS: [f64; 3] = [0.9, 1.0, 1.5];

/// A trace of another service is of other prompts: Mooncake's are eight times as long as Azure's,
/// and no engine on which they take as long would be given such work.
fn faster(name: TraceName) -> u64 {
    match name {
        TraceName::MooncakeConversations => 8,
        TraceName::AzureConversations | TraceName::AzureCode | TraceName::Lmsys27 => 1,
    }
}

/// A table of how bounds fare, and one of what came in time.
///
/// # Errors
/// As a study has them.
pub fn held_out(traces: &[(TraceName, Trace)]) -> Result<String, StudyError> {
    let (mut bounds, mut goodput) = (String::new(), String::new());
    heading(&mut bounds, "data, load");
    for (name, trace) in traces {
        let bench = Bench::replaying(*name, trace)?;
        bench.shown(name.label(), &mut bounds, &mut goodput)?;
    }
    for seed in SEEDS {
        let bench = Bench::new(None, seed)?;
        bench.shown(&format!("seed {seed}"), &mut bounds, &mut goodput)?;
    }
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        bounds,
        "\n| data, load | arm | goodput / late % / refused % / dropped % |\n|---|---|---|"
    );
    Ok(bounds + &goodput)
}

impl<'t> Bench<'t> {
    /// An engine under any trace, whose capacity is measured first.
    fn replaying(name: TraceName, trace: &'t Trace) -> Result<Self, StudyError> {
        let last = trace.rows.last().map_or(1, |row| row.at.as_micros().max(1));
        let secs = last as f64 / 1e6;
        let rate = trace.rows.len() as f64 / secs;
        let mut bench = Self {
            scenario: super::Scenario::parse(super::SCENARIO)?,
            replay: Replay {
                name,
                trace: Some(trace),
            },
            native: Native { rate, secs },
            faster: faster(name),
            capacity: rate,
            seed: 1,
        };
        bench.capacity = bench.saturated(20.0, |_| {}, Time::START)?;
        Ok(bench)
    }

    fn shown(
        &self,
        name: &str,
        bounds: &mut String,
        goodput: &mut String,
    ) -> Result<(), StudyError> {
        for load in LOADS {
            for arm in [Contender::Tollgate, Contender::Structural] {
                let (run, until) = self.run(load, arm, |_| {})?;
                let kept = Kept::of(&run.tally, WARMUP, until);
                row(bounds, (&format!("{name}, {load:.1}"), arm), &kept);
                let cell = self.cell(&run, WARMUP, until);
                let _ = writeln!(goodput, "| {name}, {load:.1} | {} | {cell} |", arm.label());
            }
        }
        Ok(())
    }
}
