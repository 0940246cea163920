//! Who waits, in which place and for how long. It shows tenants by name, and neither prompts nor
//! keys.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tollgate_policy::gateway::{QueueEntry, ReplicaGauges};
use tollgate_policy::ids::ReplicaId;
use tollgate_policy::units::{Micros, Time, Tokens};

use crate::answer::refuse;
use crate::app::App;
use crate::desk::QueueView;
use crate::door::routes::json;

/// Requests shown of each queue; the page says how many there are.
const SHOWN_MAX: usize = 1_000;

#[derive(Serialize)]
struct Page<'a> {
    models: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    model: &'a str,
    policy: &'static str,
    queued_requests: usize,
    queued_tokens: u64,
    running_requests: u32,
    windows: Vec<Window>,
    /// At most [`SHOWN_MAX`] of them.
    waiting: Vec<Waiting>,
}

/// What one replica holds of what it may; `null` is no bound.
#[derive(Serialize)]
struct Window {
    replica: u32,
    up: bool,
    sequences: u32,
    sequences_limit: u32,
    /// Why the limit is what it is.
    moved: &'static str,
    headroom: u32,
    /// Requests it was sent beyond what it can run, since the start.
    guests_taken: u64,
    prefill_tokens: u64,
    prefill_tokens_limit: Option<u64>,
    kv_blocks: u64,
    kv_blocks_limit: u64,
}

#[derive(Serialize)]
struct Waiting {
    request: String,
    tenant: String,
    class: &'static str,
    waited_ms: u64,
    /// `turn`, `sequences`, `headroom`, `prefill`, `kv` or `replica`.
    waits_for: &'static str,
    /// Among its tenant's own, from 1.
    position: u32,
    tokens_ahead: u64,
    /// How long those take; `null` where there are none, or while the pace of the model has not
    /// been measured.
    estimated_wait_ms: Option<u64>,
}

pub(super) async fn queue(State(app): State<Arc<App>>) -> Response {
    let (now, views) = app.desk.queues(SHOWN_MAX);
    let models = app.models.iter().zip(views);
    let page = Page {
        models: models
            .map(|(served, view)| Model {
                model: &served.name,
                policy: app.policy,
                queued_requests: view.pool.queued,
                queued_tokens: view.pool.queued_work.get(),
                running_requests: view.pool.running,
                windows: view.windows.iter().map(window).collect(),
                waiting: waiting(&app, view, now),
            })
            .collect(),
    };
    match serde_json::to_vec(&page) {
        Ok(body) => json(body),
        // Numbers and strings always serialize.
        Err(_) => refuse::bug(),
    }
}

fn window((id, replica): &(ReplicaId, ReplicaGauges)) -> Window {
    let window = replica.window;
    Window {
        replica: id.get(),
        up: replica.healthy,
        sequences: window.sequences(),
        sequences_limit: window.limit(),
        moved: window.moved().label(),
        headroom: window.headroom(),
        guests_taken: window.guests_taken(),
        prefill_tokens: window.prefill().get(),
        prefill_tokens_limit: window
            .prefill_max(replica.prefill_per_step)
            .map(Tokens::get),
        kv_blocks: window.occupancy().get(),
        kv_blocks_limit: window.capacity().kv.get(),
    }
}

fn waiting(app: &App, view: QueueView, now: Time) -> Vec<Waiting> {
    let one = |(entry, tenant): (QueueEntry, String)| Waiting {
        request: app.desk.books().request_name(entry.id),
        tenant,
        class: entry.class.label(),
        waited_ms: now.since(entry.arrived).get() / 1_000,
        waits_for: entry.waits.label(),
        position: entry.position,
        tokens_ahead: entry.ahead.get(),
        estimated_wait_ms: entry.estimate.map(Micros::millis_up),
    };
    view.waiting.into_iter().map(one).collect()
}
