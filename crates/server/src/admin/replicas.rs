//! The replicas, as an operator sees them, adds one and has one go.
//!
//! One that is to go takes no new work, finishes its streams and is then let go of; the policy says
//! when that is.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tollgate_policy::gateway::{ReplicaGauges, Stay};
use tollgate_policy::health::State as Health;
use tollgate_policy::ids::ReplicaId;
use tollgate_policy::tenant::Class;
use tollgate_policy::units::Time;
use tollgate_wire::ErrorBody;

use crate::answer::refuse;
use crate::app::App;
use crate::config::{Address, ReplicaConfig};
use crate::replicas::roster::NotAdded;

#[derive(Serialize)]
struct Page<'a> {
    replicas: Vec<Replica<'a>>,
}

#[derive(Serialize)]
struct Replica<'a> {
    replica: u32,
    model: &'a str,
    /// Where it listens; `null` for one of this process.
    url: Option<String>,
    /// Whether the gateway started it.
    hosted: bool,
    /// `starting`, `healthy`, `ejected` or `leaving`.
    state: &'static str,
    /// When one that is ejected is tried again.
    retry_in_ms: Option<u64>,
    sequences: u32,
    sequences_limit: u32,
    /// Why the limit is what it is.
    moved: &'static str,
    prefill_tokens: u64,
    kv_blocks: u64,
}

/// What is to be added.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// A model's name or alias.
    model: String,
    /// Where it listens.
    url: String,
    /// `reserved`, where it is for that class alone.
    #[serde(default)]
    only: Option<String>,
}

#[derive(Serialize)]
struct Changed {
    replica: u32,
    state: &'static str,
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Response {
    let now = app.desk.clock().now();
    let (gauges, _) = app.desk.gauges();
    let each = (0..).map(ReplicaId::new).zip(&gauges.replicas);
    let there = each.filter(|(_, one)| one.stay != Stay::Retired);
    let page = Page {
        replicas: there.map(|(id, one)| replica(&app, id, one, now)).collect(),
    };
    answer(StatusCode::OK, &page)
}

pub(super) async fn add(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let wanted: Wanted = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => {
            let how = format!("the body is not what this path takes: {error}");
            return fail(StatusCode::BAD_REQUEST, "bad_request", &how);
        }
    };
    let Some(model) = app.by_name.get(&wanted.model).copied() else {
        let how = "no model has this name; GET /admin/v1/queue lists them";
        return fail(StatusCode::NOT_FOUND, "model_not_found", how);
    };
    let Some(url) = Address::parse(&wanted.url) else {
        let how =
            "url is no address; use one like http://127.0.0.1:8000, https://host or unix:/path";
        return fail(StatusCode::BAD_REQUEST, "bad_request", how);
    };
    let only = match wanted.only.as_deref() {
        None => None,
        Some("reserved") => Some(Class::Reserved),
        Some(_) => {
            let how = "only is not `reserved`; leave it out for a replica that serves all";
            return fail(StatusCode::BAD_REQUEST, "bad_request", how);
        }
    };
    let config = ReplicaConfig {
        url: Some(url),
        command: None,
        only,
    };
    match app.roster.add(model, &config) {
        Ok(id) => {
            tracing::info!(
                replica = id.get(),
                model = wanted.model,
                "replica was added"
            );
            let changed = Changed {
                replica: id.get(),
                state: "starting",
            };
            answer(StatusCode::CREATED, &changed)
        }
        Err(error @ NotAdded::Twice(_)) => {
            fail(StatusCode::CONFLICT, "replica_exists", &error.to_string())
        }
        Err(error @ (NotAdded::Here | NotAdded::TooMany | NotAdded::Port(_))) => {
            fail(StatusCode::BAD_REQUEST, "not_added", &error.to_string())
        }
    }
}

pub(super) async fn remove(State(app): State<Arc<App>>, Path(id): Path<u32>) -> Response {
    if app.roster.remove(ReplicaId::new(id)) {
        tracing::info!(replica = id, "replica is to go");
        let changed = Changed {
            replica: id,
            state: "leaving",
        };
        return answer(StatusCode::ACCEPTED, &changed);
    }
    let how = "no replica in another process has this number; GET /admin/v1/replicas lists them";
    fail(StatusCode::NOT_FOUND, "replica_not_found", how)
}

fn replica<'a>(app: &'a App, id: ReplicaId, one: &ReplicaGauges, now: Time) -> Replica<'a> {
    let upstream = app.roster.find(id).map(|(_, upstream)| upstream);
    let (state, retry_at) = match (one.stay, one.health) {
        (Stay::Leaving | Stay::Retired, _) => ("leaving", None),
        (Stay::Serving, Health::Starting) => ("starting", None),
        (Stay::Serving, Health::Healthy) => ("healthy", None),
        (Stay::Serving, Health::Ejected { retry_at }) => ("ejected", Some(retry_at)),
    };
    Replica {
        replica: id.get(),
        model: app.desk.books().model_name(one.model),
        hosted: upstream.as_ref().is_some_and(|one| one.hosting.is_some()),
        url: upstream.map(|upstream| upstream.pool.address().to_string()),
        state,
        retry_in_ms: retry_at.map(|at| at.since(now).millis_up()),
        sequences: one.window.sequences(),
        sequences_limit: one.window.limit(),
        moved: one.window.moved().label(),
        prefill_tokens: one.window.prefill().get(),
        kv_blocks: one.window.occupancy().get(),
    }
}

fn answer(status: StatusCode, page: &impl Serialize) -> Response {
    let Ok(body) = serde_json::to_vec(page) else {
        return refuse::bug(); // Numbers and strings always serialize.
    };
    respond(status, body)
}

fn fail(status: StatusCode, code: &'static str, message: &str) -> Response {
    let error = ErrorBody {
        message,
        kind: "invalid_request_error",
        param: None,
        code: Some(code),
    };
    let mut body = Vec::new();
    error.write(&mut body);
    respond(status, body)
}

fn respond(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
