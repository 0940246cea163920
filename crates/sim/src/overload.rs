//! Admission under loads from below the knee to three times what an engine can do, beside other
//! rules, and under shifts that nobody announces.
//!
//! Each cell is a world of its own. A load is offered requests over what the engine completes when
//! it is never without work; goodput is what came in time over the same.

mod beside;
mod held_out;

use std::fmt::Write as _;
use std::num::NonZeroU64;

use tollgate_policy::gateway::Gateway;
use tollgate_policy::units::{Micros, Time};

use self::beside::Beside;
pub use self::held_out::held_out;
use crate::fault::{Fault, FaultKind};
use crate::machine::MachineConfig;
use crate::promised::{Kept, Promised, Scores};
use crate::scenario::{Contender, Mistake, Replay, Scenario};
use crate::setup::{Longer, Setup};
use crate::tally::Fate;
use crate::trace::{Trace, TraceName};
use crate::workload::WorkloadError;
use crate::world::{self, Run};

/// The world, but for its load.
const SCENARIO: &str = include_str!("../../../scenarios/promises.yaml");

/// Requests per second of the trace of Azure's conversations at its own speed, and how long it is.
const NATIVE: Native = Native {
    rate: 5.53,
    secs: 3_500.0,
};

/// A trace at its own speed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Native {
    /// Requests per second.
    rate: f64,
    /// How long it is.
    secs: f64,
}

/// The rules that are compared.
const ARMS: [Contender; 7] = [
    Contender::Tollgate,
    Contender::Structural,
    Contender::NoControl,
    Contender::Ttl,
    Contender::Cap,
    Contender::Point,
    Contender::Split,
];

/// Those that promise a bound.
const BOUNDS: [Contender; 5] = [
    Contender::Tollgate,
    Contender::Structural,
    Contender::SplitAlike,
    Contender::Split,
    Contender::Point,
];

/// The world of tenants that are promised alike.
const TENANTS: &str = include_str!("../../../scenarios/promises-tenants.yaml");

const LOADS: [f64; 9] = [0.3, 0.6, 0.9, 0.95, 1.0, 1.2, 1.5, 2.0, 3.0];

/// Requests before this are not scored.
const WARMUP: Time = Time::from_micros(60_000_000);

/// When everything shifts.
const SHIFT: Time = Time::from_micros(600_000_000);

/// A minute later.
const SHIFTED: Time = Time::from_micros(660_000_000);

/// A study that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The scenario is none.
    #[error("{0}")]
    Scenario(#[from] Mistake),
    /// The workload can't be drawn.
    #[error("{0}")]
    Workload(#[from] WorkloadError),
}

/// One engine under a trace.
pub(crate) struct Bench<'t> {
    scenario: Scenario,
    replay: Replay<'t>,
    native: Native,
    /// How many times as fast as the scenario's it computes prompts.
    faster: u64,
    /// Requests per second that it completes when it is never without work.
    capacity: f64,
    seed: u64,
}

/// All tables, with the trace of Azure's conversations where it is at hand.
///
/// # Errors
/// None with the scenario of the project; the type says what can be wrong with another.
pub fn study(trace: Option<&Trace>, seed: u64) -> Result<String, StudyError> {
    let bench = Bench::new(trace, seed)?;
    let mut text = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        text,
        "capacity {:.3} requests/s, seed {seed}\n",
        bench.capacity
    );
    bench.loads(&mut text)?;
    bench.bounds(&mut text)?;
    bench.shifts(&mut text)?;
    bench.beside(&mut text)?;
    bench.cold(&mut text)?;
    tenants(&mut text, seed)?;
    Ok(text)
}

impl<'t> Bench<'t> {
    /// An engine whose capacity is measured first.
    pub(crate) fn new(trace: Option<&'t Trace>, seed: u64) -> Result<Self, StudyError> {
        let replay = Replay {
            name: TraceName::AzureConversations,
            trace,
        };
        let mut bench = Self {
            scenario: Scenario::parse(SCENARIO)?,
            replay,
            native: NATIVE,
            faster: 1,
            capacity: NATIVE.rate,
            seed,
        };
        bench.capacity = bench.saturated(3.0, |_| {}, Time::START)?;
        Ok(bench)
    }

    /// A world at this load, and when its arrivals end.
    pub(crate) fn setup(
        &self,
        load: f64,
        arm: Contender,
        change: impl Fn(&mut Setup),
    ) -> Result<(Setup, Time), StudyError> {
        let speed = load * self.capacity / self.native.rate;
        let micros = (self.native.secs / speed * 1e6) as u64;
        let scenario = self.scenario.clone().at_speed(speed, Micros::new(micros));
        let mut setup = scenario.setup(self.seed, arm, Some(self.replay))?;
        for replica in &mut setup.fleet {
            if let MachineConfig::Emulated(machine) = &mut replica.machine {
                let prefill = &mut machine.engine.cost.prefill_tokens_per_second;
                *prefill = prefill.saturating_mul(self.times());
            }
        }
        change(&mut setup);
        Ok((setup, Time::from_micros(micros)))
    }

    /// A run at this load, and when its arrivals end.
    fn run(
        &self,
        load: f64,
        arm: Contender,
        change: impl Fn(&mut Setup),
    ) -> Result<(Run, Time), StudyError> {
        let (setup, until) = self.setup(load, arm, change)?;
        let run = world::run(&setup, Gateway::new(setup.config()), None);
        Ok((run, until))
    }

    /// What the engine completes per second when it is never without work: of all that came from
    /// some time on, over the time that it took to serve it.
    fn saturated(
        &self,
        load: f64,
        change: impl Fn(&mut Setup),
        from: Time,
    ) -> Result<f64, StudyError> {
        let (run, _) = self.run(load, Contender::NoControl, |setup| {
            change(setup);
            setup.drain = Micros::from_secs(86_400);
        })?;
        let served = run
            .tally
            .scored
            .iter()
            .filter(|one| one.ended >= from && matches!(one.fate, Fate::InTime | Fate::Late));
        let span = run.ended.since(from).get() as f64 / 1e6;
        Ok(served.count() as f64 / span)
    }

    fn times(&self) -> NonZeroU64 {
        NonZeroU64::new(self.faster).unwrap_or(NonZeroU64::MIN)
    }

    fn loads(&self, text: &mut String) -> Result<(), StudyError> {
        let _ = write!(text, "| load |");
        for arm in ARMS {
            let _ = write!(text, " {} |", arm.label());
        }
        let _ = writeln!(text, "\n|---|{}", "---|".repeat(ARMS.len()));
        for load in LOADS {
            let _ = write!(text, "| {load} |");
            for arm in ARMS {
                let (run, until) = self.run(load, arm, |_| {})?;
                let _ = write!(text, " {} |", self.cell(&run, WARMUP, until));
            }
            let _ = writeln!(text);
        }
        let _ = writeln!(
            text,
            "\nEach cell: goodput over what can be had (capacity, or all that came where that is \
             less) / late of those served, % / refused, % / dropped, %.\n"
        );
        Ok(())
    }

    /// Goodput over what can be had, late, refused and dropped.
    fn cell(&self, run: &Run, from: Time, until: Time) -> String {
        let scores = Scores::of(&run.tally, from, until);
        let span = until.since(from).get() as f64 / 1e6;
        let best = (self.capacity * span).min(scores.came as f64);
        let part = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        format!(
            "{:.3} / {:.1} / {:.0} / {:.1}",
            scores.in_time as f64 / best.max(1.0),
            part(scores.late, scores.in_time + scores.late),
            part(scores.refused, scores.came),
            part(scores.dropped, scores.came),
        )
    }

    fn bounds(&self, text: &mut String) -> Result<(), StudyError> {
        heading(text, "load");
        for load in [0.6, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0] {
            for arm in BOUNDS {
                let (run, until) = self.run(load, arm, |_| {})?;
                let kept = Kept::of(&run.tally, WARMUP, until);
                row(text, (&format!("{load:.1}"), arm), &kept);
            }
        }
        let _ = writeln!(text);
        Ok(())
    }

    /// What becomes of goodput a minute after a shift, over what can be had then.
    fn shifts(&self, text: &mut String) -> Result<(), StudyError> {
        let _ = write!(text, "| from the 600th second on |");
        for arm in ARMS {
            let _ = write!(text, " {} |", arm.label());
        }
        let _ = writeln!(text, "\n|---|{}", "---|".repeat(ARMS.len()));
        self.shifted(text, "answers twice as long, at 1.5", longer)?;
        self.shifted(text, "everything takes 1/0.7 as long, at 1.5", slower)?;
        let _ = writeln!(
            text,
            "\nEach cell as above, of what came a minute after the shift or later, over what the \
             shifted engine completes when it is never without work.\n"
        );
        heading(text, "after the shift");
        self.shifted_bounds(text, "answers twice as long", longer)?;
        self.shifted_bounds(text, "everything slower", slower)?;
        let _ = writeln!(text);
        Ok(())
    }

    /// Bounds beside those that split conformal would have made for the same requests.
    fn beside(&self, text: &mut String) -> Result<(), StudyError> {
        let _ = writeln!(
            text,
            "| on the same requests | bounds | kept %: tollgate, factor stays, all stays \
             | pinball ms, likewise | of the first, of the second |\n|---|---|---|---|---|"
        );
        for load in [0.9, 1.0, 1.5, 2.0, 3.0] {
            let (run, until) = self.run(load, Contender::Tollgate, |_| {})?;
            let beside = Beside::of(&run.tally, WARMUP, until);
            side_by_side(text, &format!("{load:.1}"), beside);
        }
        for (name, change) in [
            ("answers twice as long, at 1.5", longer as fn(&mut Setup)),
            ("everything slower, at 1.5", slower),
        ] {
            let (run, until) = self.run(1.5, Contender::Tollgate, change)?;
            side_by_side(text, name, Beside::of(&run.tally, SHIFTED, until));
        }
        let _ = writeln!(text);
        Ok(())
    }

    /// How bounds fare a minute after a shift or later.
    fn shifted_bounds(
        &self,
        text: &mut String,
        what: &str,
        change: impl Fn(&mut Setup),
    ) -> Result<(), StudyError> {
        for arm in BOUNDS {
            let (run, until) = self.run(1.5, arm, &change)?;
            row(text, (what, arm), &Kept::of(&run.tally, SHIFTED, until));
        }
        Ok(())
    }

    /// What becomes of the first minutes of a gateway that knows nothing, at capacity.
    fn cold(&self, text: &mut String) -> Result<(), StudyError> {
        let (run, until) = self.run(1.0, Contender::Tollgate, |_| {})?;
        let at = |secs: u64| Time::START + Micros::from_secs(secs);
        let _ = writeln!(text, "| from cold, at 1.0 | tollgate |\n|---|---|");
        for (name, from, to) in [
            ("first minute", at(0), at(60)),
            ("second and third", at(60), at(180)),
            ("all later ones", at(180), until),
        ] {
            let _ = writeln!(text, "| {name} | {} |", self.cell(&run, from, to));
        }
        let _ = writeln!(text);
        Ok(())
    }

    fn shifted(
        &self,
        text: &mut String,
        what: &str,
        change: impl Fn(&mut Setup),
    ) -> Result<(), StudyError> {
        let from = SHIFTED;
        let shifted = Self {
            capacity: self.saturated(1.5, &change, from)?,
            scenario: self.scenario.clone(),
            ..*self
        };
        let _ = write!(text, "| {what} |");
        for arm in ARMS {
            let (run, until) = self.run(1.5, arm, &change)?;
            let _ = write!(text, " {} |", shifted.cell(&run, from, until));
        }
        let _ = writeln!(text);
        Ok(())
    }
}

/// From some time on answers are twice as long.
fn longer(setup: &mut Setup) {
    setup.longer = Some(Longer {
        at: SHIFT,
        percent: 200,
    });
}

/// From some time on everything takes longer.
fn slower(setup: &mut Setup) {
    setup.faults.push(Fault {
        at: SHIFT,
        kind: FaultKind::Slow {
            replica: 0,
            per_mille: 1_428,
            lasting: Micros::from_secs(36_000),
        },
    });
}

/// How bounds fare just below capacity and above it, for three seeds.
///
/// # Errors
/// As [`study`].
pub fn seeds(trace: Option<&Trace>) -> Result<String, StudyError> {
    let mut text = String::new();
    heading(&mut text, "load, seed");
    // A replay is the same whatever the seed; what stands in for the trace is drawn by it.
    let worlds = [
        (trace, 1, "trace"),
        (None, 1, "1"),
        (None, 2, "2"),
        (None, 3, "3"),
    ];
    let mut goodput = String::new();
    for (trace, seed, name) in worlds {
        let bench = Bench::new(trace, seed)?;
        for load in [0.9, 1.0, 1.5] {
            for arm in [Contender::Tollgate, Contender::Structural] {
                let (run, until) = bench.run(load, arm, |_| {})?;
                let kept = Kept::of(&run.tally, WARMUP, until);
                row(&mut text, (&format!("{load:.1}, {name}"), arm), &kept);
                let cell = bench.cell(&run, WARMUP, until);
                let _ = writeln!(goodput, "| {load:.1}, {name} | {} | {cell} |", arm.label());
            }
        }
    }
    let _ = writeln!(
        text,
        "\n| load, seed | arm | goodput / late % / refused % / dropped % |\n|---|---|---|"
    );
    Ok(text + &goodput)
}

/// Four equal tenants and a greedy one: how the bounds of each fare, and who is refused.
fn tenants(text: &mut String, seed: u64) -> Result<(), StudyError> {
    let scenario = Scenario::parse(TENANTS)?;
    let _ = writeln!(
        text,
        "| tenants | kept % | worst of a tenant with 300 or more, % | least goodput share over \
         entitled share |\n|---|---|---|---|"
    );
    for arm in [Contender::Tollgate, Contender::Structural, Contender::Cap] {
        let setup = scenario.setup(seed, arm, None)?;
        let run = world::run(&setup, Gateway::new(setup.config()), None);
        let until = setup.workload.until();
        let kept = Kept::of(&run.tally, WARMUP, until);
        let fairest = Promised::Fairest.of(&run.tally, WARMUP, until);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            arm.label(),
            shown(kept.percent(), 1),
            shown(kept.worst_tenant(), 1),
            shown(fairest, 2)
        );
    }
    let _ = writeln!(text);
    Ok(())
}

fn heading(text: &mut String, what: &str) {
    let _ = writeln!(
        text,
        "| {what} | arm | bounds | kept % | p5 minute % | worst minute % | longest run \
         | pinball ms | hindsight ms | bound/outcome |\n|---|---|---|---|---|---|---|---|---|---|"
    );
}

fn row(text: &mut String, (what, arm): (&str, Contender), kept: &Kept) {
    let _ = writeln!(
        text,
        "| {what} | {} | {} | {} | {} | {} | {} | {:.0} | {:.0} | {:.2} |",
        arm.label(),
        kept.due,
        shown(kept.percent(), 1),
        shown(kept.windows().quantile(0.05), 1),
        shown(kept.worst_window(), 1),
        kept.run,
        kept.pinball_ms,
        kept.hindsight_ms,
        kept.widths.quantile(0.5).unwrap_or(0.0),
    );
}

fn side_by_side(text: &mut String, what: &str, beside: Option<Beside>) {
    let Some(beside) = beside else {
        let _ = writeln!(text, "| {what} | - | - | - | - |");
        return;
    };
    let due = beside.due;
    let kinds = [beside.ours, beside.factor_stays, beside.all_stays];
    let [kept, loss] = [
        kinds.map(|kind| format!("{:.1}", kind.percent(due))),
        kinds.map(|kind| format!("{:.1}", kind.mean_ms(due))),
    ]
    .map(|each| each.join(" / "));
    let over = [kinds[1], kinds[2]].map(|kind| format!("{:.2}", beside.ours.over(&kind)));
    let over = over.join(" / ");
    let _ = writeln!(text, "| {what} | {due} | {kept} | {loss} | {over} |");
}

fn shown(number: Option<f64>, places: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |n| format!("{n:.places$}"))
}

#[cfg(test)]
mod tests;
