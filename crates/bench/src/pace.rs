//! Keeps time: hands each arrival on when it is due, and waits for nothing else.
//!
//! It has a thread of its own, so that neither a busy runtime nor a slow answer delays the next
//! request. One that is late is handed on at once; how late it was is measured where it is sent.

use std::ops::ControlFlow;

use tollgate_sim::workload::Arrival;

use crate::clock::Clock;

/// Calls `hand_on` with each arrival and its number when it is due, until there are none or it says
/// to stop.
pub(crate) fn pace(
    clock: &Clock,
    arrivals: impl Iterator<Item = Arrival>,
    mut hand_on: impl FnMut(Arrival, u64) -> ControlFlow<()>,
) {
    for (number, arrival) in (0..).zip(arrivals) {
        let wait = clock.until(arrival.at);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if hand_on(arrival, number).is_break() {
            return;
        }
    }
}
