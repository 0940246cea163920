//! How the steps of an engine in this process are planned.

use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::engine::Reservation;
use tollgate_policy::units::Tokens;

use super::decode::Fields;
use super::models::tokens;

/// How the steps of an engine are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Whether requests of one tenant share the KV of what their prompts begin with alike.
    pub prefix_cache: bool,
    /// When waiting sequences start.
    pub scheduler: Scheduler,
    /// Who gets a step's tokens first.
    pub order: Order,
    /// Whether prompts of tenants that have their share are computed no faster than prompts come.
    pub paced: bool,
    /// Tokens that one sequence may compute in a step, 16 to 8192; `None` is all of the step.
    pub chunk_tokens: Option<Tokens>,
    /// How much room a sequence is given.
    pub reservation: Reservation,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            // With it, a sequence's KV lies where there was room, and llama.cpp rounds by where it
            // lies: a seed need not repeat its text, which clients count on more than on speed.
            prefix_cache: false,
            scheduler: Scheduler::Continuous,
            order: Order::DecodeFirst,
            paced: true,
            chunk_tokens: None,
            reservation: Reservation::Paged,
        }
    }
}

impl ScheduleConfig {
    pub(super) fn read(fields: &mut Fields<'_, '_>) -> Self {
        let default = Self::default();
        let schedulers = [
            ("fifo", Scheduler::Fifo),
            ("static", Scheduler::Static),
            ("continuous", Scheduler::Continuous),
        ];
        let orders = [
            ("decode_first", Order::DecodeFirst),
            ("prefill_first", Order::PrefillFirst),
        ];
        let reservations = [
            ("paged", Reservation::Paged),
            ("contiguous", Reservation::Contiguous),
        ];
        Self {
            prefix_cache: fields
                .optional("prefix_cache", |value| {
                    value.choice(&[("on", true), ("off", false)])
                })
                .unwrap_or(default.prefix_cache),
            scheduler: fields
                .optional("scheduler", |value| value.choice(&schedulers))
                .unwrap_or(default.scheduler),
            order: fields
                .optional("order", |value| value.choice(&orders))
                .unwrap_or(default.order),
            paced: fields
                .optional("prefill_pacing", |value| {
                    value.choice(&[("on", true), ("off", false)])
                })
                .unwrap_or(default.paced),
            chunk_tokens: fields.optional("chunk_tokens", |value| tokens(&value, 16, 8192)),
            reservation: fields
                .optional("kv", |value| value.choice(&reservations))
                .unwrap_or(default.reservation),
        }
    }
}
