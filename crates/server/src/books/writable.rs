//! Tells the policy whether what is served can be written down: the disk says no, or it says
//! nothing for too long.
//!
//! Whether that is a reason to take no new work is configured; what follows from it is the
//! policy's to say.

use std::sync::Arc;
use std::time::Duration;

use tollgate_policy::gateway::{Books, Event};

use crate::config::OnFailure;
use crate::desk::Desk;
use crate::journal::{Health, Journal};

/// How often it is looked whether the disk moves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// So many looks in a row without a batch on disk, although records wait: the disk hangs.
const LOOKS_MAX: u32 = 5;

/// Watches the journal. Runs until it is dropped.
pub(crate) async fn keep(desk: Arc<Desk>, on_failure: OnFailure) {
    if on_failure == OnFailure::Serve {
        return std::future::pending().await;
    }
    let mut health = desk.books().journal().health();
    let mut pulse = Pulse::default();
    let mut told = Books::Open;
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            changed = health.changed() => {
                // The writer ends with the server, and then nothing changes any more.
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
            _ = looks.tick() => pulse.look(desk.books().journal()),
        }
        let fails = *health.borrow_and_update() != Health::Writing || pulse.hangs();
        let books = if fails { Books::Closed } else { Books::Open };
        if books != told {
            told = books;
            desk.submit(Event::Books(books));
        }
    }
}

/// Whether batches reach the disk.
#[derive(Debug, Default)]
struct Pulse {
    batches: u64,
    without: u32,
}

impl Pulse {
    fn look(&mut self, journal: &Journal) {
        self.see(journal.batches(), journal.waiting());
    }

    fn see(&mut self, batches: u64, waiting: usize) {
        let moves = batches != self.batches || waiting == 0;
        self.batches = batches;
        self.without = if moves { 0 } else { self.without + 1 };
    }

    fn hangs(&self) -> bool {
        self.without >= LOOKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_noticed_after_a_while_and_forgiven_at_once() {
        let mut pulse = Pulse::default();
        pulse.see(1, 9);
        for _ in 0..LOOKS_MAX {
            assert!(!pulse.hangs());
            pulse.see(1, 9);
        }
        assert!(pulse.hangs());
        pulse.see(2, 9);
        assert!(!pulse.hangs());
    }

    #[test]
    fn a_disk_with_nothing_to_write_does_not_hang() {
        let mut pulse = Pulse::default();
        for _ in 0..100 {
            pulse.see(1, 0);
        }
        assert!(!pulse.hangs());
    }
}
