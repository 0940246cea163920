//! The `ledger` section: how what is served is written down.

use std::time::Duration;

use tollgate_policy::units::Micros;

use super::decode::{Cursor, Fields};
use crate::journal::Settings;

/// How what is served is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Whether new work is taken while it can't be.
    pub on_failure: OnFailure,
    /// Within which time a record is on disk, 2 ms to 10 s.
    pub sync: Micros,
    /// Bytes of a segment of the journal, 1 MiB to 1 GiB.
    pub segment: u64,
}

/// What happens while the disk takes no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// New work is refused.
    Refuse,
    /// It is served; records that memory has no room for go to the log.
    Serve,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            on_failure: OnFailure::Refuse,
            sync: Micros::from_millis(50),
            segment: 64 << 20,
        }
    }
}

impl LedgerConfig {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        section.mapping(Self::read_fields)
    }

    fn read_fields(fields: &mut Fields<'_, '_>) -> Self {
        let default = Self::default();
        let choices = [("refuse", OnFailure::Refuse), ("serve", OnFailure::Serve)];
        let sync = Micros::from_millis(2)..=Micros::from_secs(10);
        Self {
            on_failure: fields
                .optional("on_failure", |value| value.choice(&choices))
                .unwrap_or(default.on_failure),
            sync: fields
                .optional("sync", |value| value.duration(sync))
                .unwrap_or(default.sync),
            segment: fields
                .optional("segment", |value| value.size(1 << 20..=1 << 30))
                .unwrap_or(default.segment),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            sync: Duration::from_micros(self.sync.get()),
            segment_max: self.segment,
        }
    }
}
