//! What goes wrong in a run, and when.

use tollgate_policy::units::{Micros, Time};

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub kind: FaultKind,
}

/// What can go wrong. Replicas are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A replica dies with all that it has.
    Crash {
        /// Which.
        replica: usize,
        /// How many of the starts that follow fail too.
        starts_in_vain: u32,
    },
    /// A replica takes longer for everything.
    Slow {
        /// Which.
        replica: usize,
        /// How much longer, in thousandths; at least 1.
        per_mille: u64,
        /// For how long.
        lasting: Micros,
    },
    /// A replica does nothing.
    Stuck {
        /// Which.
        replica: usize,
        /// For how long.
        lasting: Micros,
    },
    /// A replica says seldom what it holds.
    Stale {
        /// Which.
        replica: usize,
        /// How old what it says may be.
        every: Micros,
        /// For how long.
        lasting: Micros,
    },
    /// Nothing gets to a replica or from it; what was on its way arrives afterwards.
    Cut {
        /// Which.
        replica: usize,
        /// For how long.
        lasting: Micros,
    },
    /// The gateway's clock jumps ahead.
    ClockAhead(Micros),
    /// The gateway's clock jumps back.
    ClockBack(Micros),
    /// So many of a hundred clients leave at once, the longest there first.
    Exodus {
        /// Of a hundred.
        percent: u64,
    },
}

impl FaultKind {
    /// The name in a log.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Slow { .. } => "slow",
            Self::Stuck { .. } => "stuck",
            Self::Stale { .. } => "stale",
            Self::Cut { .. } => "cut",
            Self::ClockAhead(_) => "clock_ahead",
            Self::ClockBack(_) => "clock_back",
            Self::Exodus { .. } => "exodus",
        }
    }

    /// For how long it lasts, where it ends of itself.
    pub(crate) const fn lasting(self) -> Option<Micros> {
        match self {
            Self::Slow { lasting, .. }
            | Self::Stuck { lasting, .. }
            | Self::Stale { lasting, .. }
            | Self::Cut { lasting, .. } => Some(lasting),
            Self::Crash { .. } | Self::ClockAhead(_) | Self::ClockBack(_) | Self::Exodus { .. } => {
                None
            }
        }
    }
}
