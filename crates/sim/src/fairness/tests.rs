//! The order of the schedulers that every run must show: the real policy near the reference, the
//! plain ones far off.

use super::*;
use crate::known::{skewed, stand_in_27};
use crate::workload::Workload;

/// Twice the bound's unit: 2 x 2 x 10,000 tokens of batch.
const TWO_U: u64 = 40_000;

fn gap(scheduler: Scheduler, arrivals: &[Arrival], until: Time) -> u64 {
    run(scheduler, arrivals, Engine::default(), until).gap.get()
}

fn table(workload: &Workload) -> [u64; 5] {
    let arrivals: Vec<_> = workload.arrivals().collect();
    let until = workload.until();
    let schedulers = [
        Scheduler::Fcfs,
        Scheduler::FixedEstimate,
        Scheduler::TrueVtc,
        Scheduler::Tollgate(Policy::Drr {
            quantum: Service::new(1_024),
        }),
        Scheduler::Tollgate(Policy::Vtc),
    ];
    schedulers.map(|scheduler| gap(scheduler, &arrivals, until))
}

#[test]
fn with_ten_times_longer_answers_of_one_tenant_only_served_work_is_fair() {
    let [fcfs, fixed, truth, drr, vtc] = table(&skewed(1).unwrap());
    assert!(vtc * 2 <= truth * 3, "vtc {vtc}, the reference {truth}");
    assert!(
        vtc <= TWO_U && drr <= TWO_U + 2 * 1_024,
        "vtc {vtc}, drr {drr}"
    );
    assert!(
        fcfs > TWO_U && fixed > TWO_U,
        "fcfs {fcfs}, fixed estimate {fixed}"
    );
    assert!(fixed > vtc * 10, "fixed estimate {fixed}, vtc {vtc}");
}

#[test]
fn on_twenty_seven_tenants_it_is_as_fair_as_the_reference() {
    let [fcfs, fixed, truth, _, vtc] = table(&stand_in_27(1).unwrap());
    assert!(vtc * 2 <= truth * 3, "vtc {vtc}, the reference {truth}");
    assert!(vtc <= TWO_U, "{vtc}");
    assert!(
        fcfs > vtc * 5 && fixed > vtc,
        "fcfs {fcfs}, fixed estimate {fixed}, vtc {vtc}"
    );
}

#[test]
fn nobody_does_less_work_for_being_fair() {
    let workload = skewed(1).unwrap();
    let arrivals: Vec<_> = workload.arrivals().collect();
    let rate =
        |scheduler| run(scheduler, &arrivals, Engine::default(), workload.until()).service_per_s;
    let (plain, fair) = (
        rate(Scheduler::Fcfs),
        rate(Scheduler::Tollgate(Policy::Vtc)),
    );
    assert!(fair * 100 >= plain * 97, "{fair} a second against {plain}");
}

#[test]
fn the_committed_table_is_what_a_run_gives() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/fairness.csv");
    let committed = std::fs::read_to_string(file).unwrap();
    let traces = std::env::var_os("TOLLGATE_TRACES").map(std::path::PathBuf::from);
    let run: Vec<String> = compared(traces.as_deref())
        .unwrap()
        .iter()
        .map(Compared::to_string)
        .collect();
    assert_eq!(committed.lines().next(), Some(HEADER));
    let of_the_trace = |line: &&str| line.starts_with("\"27 tenants, the trace\"");
    let lines = committed.lines().skip(1);
    let expected: Vec<&str> = lines
        .filter(|line| traces.is_some() || !of_the_trace(line))
        .collect();
    assert_eq!(
        run, expected,
        "cargo run --release -p tollgate-sim --example fairness"
    );
}
