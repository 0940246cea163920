//! Keeps time: hands each arrival on when it is due, and waits for nothing else.
//!
//! It has a thread of its own, so that neither a busy runtime nor a slow answer delays the next
//! request. One that is late is handed on at once; how late it was is measured where it is sent.

use std::ops::ControlFlow;

use tollgate_sim::workload::Arrival;

use crate::clock::Clock;
use crate::stop::Stop;

/// Calls `hand_on` with each arrival and its number when it is due, until there are none, it
/// says to stop, or somebody does.
pub(crate) fn pace(
    clock: &Clock,
    stop: &Stop,
    arrivals: impl Iterator<Item = Arrival>,
    mut hand_on: impl FnMut(Arrival, u64) -> ControlFlow<()>,
) {
    for (number, arrival) in (0..).zip(arrivals) {
        // A piece may end late and the rest of the wait with it, so the clock is asked again.
        loop {
            let wait = clock.until(arrival.at);
            if wait.is_zero() || stop.is_pulled() {
                break;
            }
            stop.sleep(wait.min(std::time::Duration::from_millis(100)));
        }
        if stop.is_pulled() || hand_on(arrival, number).is_break() {
            return;
        }
    }
}
