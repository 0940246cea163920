//! The `fairness` section: who is next, and what counts as having been served.

use tollgate_policy::fair::Policy;
use tollgate_policy::units::Service;

use super::decode::{Cursor, Fields};

/// Service that a lane of weight one is granted per round where the file does not say: a few short
/// answers, so that a turn is worth its switch.
const QUANTUM: u64 = 1024;

/// Who is next, and what counts as having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// How the next request is chosen.
    pub policy: Policy,
    /// What a computed prompt token counts, 0 to 1000; not both weights are 0.
    pub input_weight: u32,
    /// What a generated token counts, 0 to 1000.
    pub output_weight: u32,
    /// What a cached prompt token counts, in per cent of a computed one, 0 to 100.
    pub cached_weight: u8,
    /// Per cent of a pool that the floors of its tenants may add up to, 0 to 1000.
    pub floors_max: u16,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            policy: Policy::Vtc,
            input_weight: 1,
            output_weight: 2,
            cached_weight: 0,
            floors_max: 60,
        }
    }
}

impl Fairness {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        section.mapping(Self::read_fields)
    }

    fn read_fields(fields: &mut Fields<'_, '_>) -> Self {
        let default = Self::default();
        let fairness = Self {
            policy: policy(fields).unwrap_or(default.policy),
            input_weight: fields
                .optional("input_weight", |value| value.integer(0..=1000))
                .unwrap_or(default.input_weight),
            output_weight: fields
                .optional("output_weight", |value| value.integer(0..=1000))
                .unwrap_or(default.output_weight),
            cached_weight: fields
                .optional("cached_weight", |value| value.percent(0..=100))
                .unwrap_or(default.cached_weight),
            floors_max: fields
                .optional("floors_max", |value| value.percent(0..=1000))
                .unwrap_or(default.floors_max),
        };
        if fairness.input_weight == 0 && fairness.output_weight == 0 {
            fields.report(
                "input_weight",
                "is 0 and so is output_weight; one must count",
            );
        }
        fairness
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Vtc,
    Drr,
    Fifo,
}

/// Reads `policy` and what belongs to it alone.
fn policy(fields: &mut Fields<'_, '_>) -> Option<Policy> {
    let choices = [("vtc", Kind::Vtc), ("drr", Kind::Drr), ("fifo", Kind::Fifo)];
    let given = fields.find("policy");
    let kind = match &given {
        Some(value) => value.choice(&choices),
        None => Some(Kind::Vtc),
    };
    let quantum = fields.optional("quantum", |value| value.integer(1..=1_000_000));
    let policy = match kind? {
        Kind::Vtc => Policy::Vtc,
        Kind::Fifo => Policy::Fifo,
        Kind::Drr => {
            let quantum = Service::new(quantum.unwrap_or(QUANTUM));
            return Some(Policy::Drr { quantum });
        }
    };
    if quantum.is_some() {
        let message = format!("is for policy: drr; this policy is {}", policy.label());
        fields.report("quantum", message);
    }
    Some(policy)
}
