//! Every scheduler on every workload that claims are made on, as lines of a table.

use std::fmt;
use std::path::Path;

use tollgate_policy::fair::Policy;
use tollgate_policy::units::{Micros, Service, Time};

use super::{Engine, Scheduler, Score, run};
use crate::known::{skewed, stand_in_27};
use crate::trace::{Trace, TraceError, TraceName};
use crate::workload::{Workload, WorkloadError};

/// The columns of the table.
pub const HEADER: &str = "workload,scheduler,service_gap,of_the_reference,service/s,finished";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// What was asked for.
    pub workload: &'static str,
    /// Who decided.
    pub scheduler: Scheduler,
    /// What came of it.
    pub score: Score,
    /// The gap of the reference on the same workload.
    pub reference: Service,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.score.gap.get() * 100 / self.reference.get().max(1);
        write!(
            f,
            "\"{}\",{},{},{}.{:02}x,{},{}",
            self.workload,
            self.scheduler.label(),
            self.score.gap.get(),
            hundredths / 100,
            hundredths % 100,
            self.score.service_per_s,
            self.score.finished
        )
    }
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum ComparedError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A workload cannot be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// The whole table, of seed 1; with a folder of traces the trace itself comes last.
///
/// # Errors
/// The trace is not there or cannot be read.
pub fn compared(traces: Option<&Path>) -> Result<Vec<Compared>, ComparedError> {
    let mut workloads = vec![
        ("8 tenants, one with 10x longer answers", skewed(1)?),
        ("27 tenants, stand-in", stand_in_27(1)?),
    ];
    if let Some(dir) = traces {
        let trace = Trace::open(TraceName::Lmsys27, dir)?;
        let until = Time::START + Micros::from_secs(120);
        workloads.push((
            "27 tenants, the trace",
            Workload::replayed(&trace, 6.0, until, 1)?,
        ));
    }
    let lines = workloads
        .into_iter()
        .flat_map(|(name, workload)| lines(name, &workload));
    Ok(lines.collect())
}

fn lines(workload: &'static str, requests: &Workload) -> Vec<Compared> {
    let schedulers = [
        Scheduler::Fcfs,
        Scheduler::FixedEstimate,
        Scheduler::TrueVtc,
        Scheduler::Tollgate(Policy::Fifo),
        Scheduler::Tollgate(Policy::Drr {
            quantum: Service::new(1_024),
        }),
        Scheduler::Tollgate(Policy::Vtc),
    ];
    let arrivals: Vec<_> = requests.arrivals().collect();
    let score = |scheduler| run(scheduler, &arrivals, Engine::default(), requests.until());
    let reference = score(Scheduler::TrueVtc).gap;
    let line = |scheduler| Compared {
        workload,
        scheduler,
        score: score(scheduler),
        reference,
    };
    schedulers.map(line).into()
}
