//! Metrics of the ledger: how much of it is on its way to the disk, and whether the disk takes it.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::signed;
use crate::journal::{Health, Journal};

/// Gauges of the journal.
#[derive(Debug, Default)]
pub(super) struct LedgerMetrics {
    waiting: Gauge,
    batches: Gauge,
    segment: Gauge,
    failing: Gauge,
    spilled: Gauge,
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
        ];
        for (name, help, gauge) in all {
            registry.register(name, help, gauge.clone());
        }
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
