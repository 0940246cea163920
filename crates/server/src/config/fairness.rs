//! The `fairness` section: who is next, and what counts as having been served.

use tollgate_policy::fair::Policy;

use super::decode::{Cursor, Fields};

/// Who is next, and what counts as having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// How the next request is chosen.
    pub policy: Policy,
    /// What a computed prompt token counts, 0 to 1000; not both weights are 0.
    pub input_weight: u32,
    /// What a generated token counts, 0 to 1000.
    pub output_weight: u32,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            policy: Policy::Fifo,
            input_weight: 1,
            output_weight: 2,
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
            policy: fields.optional("policy", policy).unwrap_or(default.policy),
            input_weight: fields
                .optional("input_weight", |value| value.integer(0..=1000))
                .unwrap_or(default.input_weight),
            output_weight: fields
                .optional("output_weight", |value| value.integer(0..=1000))
                .unwrap_or(default.output_weight),
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

fn policy(value: Cursor<'_>) -> Option<Policy> {
    match value.text("fifo")? {
        "vtc" | "drr" => {
            value.report(format!(
                "is {}, which is not in this version; fifo is",
                value.shown()
            ));
            None
        }
        _ => value.choice(&[("fifo", Policy::Fifo)]),
    }
}
