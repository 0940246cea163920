//! Metrics of the ledger: how much of it is on its way to the disk and into the store, and whether
//! they take it.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::signed;
use crate::journal::{Health, Journal};

/// Gauges of the journal and the store.
#[derive(Debug, Default)]
pub(crate) struct LedgerMetrics {
    waiting: Gauge,
    batches: Gauge,
    segment: Gauge,
    failing: Gauge,
    spilled: Gauge,
    store_up: Gauge,
    store_rounds: Gauge,
    store_waiting: Gauge,
}

impl LedgerMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let all = [
            (
                "ledger_waiting_records",
                "Records of the ledger that are not on disk yet",
                &self.waiting,
            ),
            (
                "ledger_batches",
                "Batches of records that reached the disk since the start",
                &self.batches,
            ),
            (
                "ledger_segment",
                "Number of the segment of the journal that is written",
                &self.segment,
            ),
            (
                "ledger_failing",
                "Whether the disk takes no records",
                &self.failing,
            ),
            (
                "ledger_spilled_lines",
                "Ledger lines that went to the log because too many waited for the disk",
                &self.spilled,
            ),
            (
                "store_up",
                "Whether the store took all that was due when it was last tried",
                &self.store_up,
            ),
            (
                "store_rounds",
                "Times since the start that the store took all that was due",
                &self.store_rounds,
            ),
            (
                "store_waiting_answer_bytes",
                "Bytes of answers to idempotent requests that wait for the store",
                &self.store_waiting,
            ),
        ];
        for (name, help, gauge) in all {
            registry.register(name, help, gauge.clone());
        }
    }

    /// The store took all that was due but for so many bytes of answers.
    pub(crate) fn store_tended(&self, waiting: usize) {
        self.store_up.set(1);
        self.store_rounds.inc();
        self.store_waiting.set(signed(waiting));
    }

    /// It did not.
    pub(crate) fn store_failed(&self, waiting: usize) {
        self.store_up.set(0);
        self.store_waiting.set(signed(waiting));
    }

    pub(super) fn take(&self, journal: &Journal) {
        self.waiting.set(signed(journal.waiting()));
        self.batches.set(signed(journal.batches()));
        self.segment.set(signed(journal.synced().borrow().segment));
        let failing = *journal.health().borrow() != Health::Writing;
        self.failing.set(i64::from(failing));
        self.spilled.set(signed(journal.spilled()));
    }
}
