//! Prints how fair each scheduler is: `cargo run --release -p tollgate-sim --example fairness [--
//! TRACE_DIR]`.
//!
//! With the folder of the traces it runs the real trace of 27 tenants too, at six times its speed.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use std::path::Path;

use tollgate_policy::fair::Policy;
use tollgate_policy::units::{Micros, Service, Time};
use tollgate_sim::fairness::{Engine, Scheduler, run};
use tollgate_sim::known::{skewed, stand_in_27};
use tollgate_sim::trace::{Trace, TraceName};
use tollgate_sim::workload::{Arrival, Workload};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut workloads = vec![
        ("8 tenants, one with 10x longer answers", skewed(1)?),
        ("27 tenants, stand-in", stand_in_27(1)?),
    ];
    if let Some(dir) = std::env::args().nth(1) {
        let trace = Trace::open(TraceName::Lmsys27, Path::new(&dir))?;
        let minutes = Time::START + Micros::from_secs(120);
        workloads.push((
            "27 tenants, the trace",
            Workload::replayed(&trace, 6.0, minutes, 1)?,
        ));
    }
    println!("| workload | scheduler | service gap | of the reference | service/s | finished |");
    println!("|---|---|---|---|---|---|");
    for (name, workload) in workloads {
        let arrivals: Vec<_> = workload.arrivals().collect();
        table(name, &arrivals, workload.until());
    }
    Ok(())
}

fn table(name: &str, arrivals: &[Arrival], until: Time) {
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
    let truth = run(Scheduler::TrueVtc, arrivals, Engine::default(), until)
        .gap
        .get();
    for scheduler in schedulers {
        let score = run(scheduler, arrivals, Engine::default(), until);
        let times = score.gap.get() * 100 / truth.max(1);
        println!(
            "| {name} | {} | {} | {}.{:02}x | {} | {} |",
            scheduler.label(),
            score.gap.get(),
            times / 100,
            times % 100,
            score.service_per_s,
            score.finished
        );
    }
}
