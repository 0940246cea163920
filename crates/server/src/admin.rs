//! What an operator sees and changes, on a listener of its own.
//!
//! Without admin keys in the configuration it shows queue and replicas and nothing else, to this
//! computer only, which the configuration sees to. With them every request needs one. It shows
//! neither prompts nor keys, but for a key that was just made, once.

mod admission;
mod money;
mod people;
mod queue;
mod replicas;

pub(crate) use self::money::own_usage;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate_wire::ErrorBody;

use crate::app::App;
use crate::config::KeyHash;
use crate::door::routes::{json, no_route, wrong_method};
use crate::members::identity;
use crate::store::{Actor, DirectoryError, StoreError, UsageError};

/// Connections of operators at once.
pub(crate) const CONNECTIONS_MAX: usize = 16;

/// The longest body that an operator sends, in bytes.
const BODY_MAX: usize = 64 << 10;

/// The description of all paths.
const OPENAPI: &str = include_str!("admin/openapi.json");

/// The paths of the operator's listener.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/admin/v1/queue", get(queue::queue))
        .route("/admin/v1/admission", get(admission::admission))
        .route("/admin/v1/openapi.json", get(openapi))
        .route(
            "/admin/v1/replicas",
            get(replicas::list).post(replicas::add),
        )
        .route("/admin/v1/replicas/{id}", delete(replicas::remove))
        .route(
            "/admin/v1/tenants",
            get(people::tenants).post(people::create_tenant),
        )
        .route(
            "/admin/v1/tenants/{name}",
            put(people::change_tenant).delete(people::remove_tenant),
        )
        .route("/admin/v1/keys", get(people::keys).post(people::create_key))
        .route("/admin/v1/keys/{id}", delete(people::revoke_key))
        .route("/admin/v1/keys/{id}/rotate", post(people::rotate_key))
        .route("/admin/v1/keys/{id}/expire", post(people::expire_key))
        .route("/admin/v1/audit", get(people::audit))
        .route("/admin/v1/usage", get(money::usage))
        .route("/admin/v1/invoices/{tenant}/{month}", get(money::invoice))
        .route("/admin/v1/prices", get(money::prices))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(from_fn_with_state(Arc::clone(&app), let_in))
        .fallback(no_route)
        .with_state(app)
}

/// What is shown, and not changed, without admin keys.
const OPEN: [&str; 3] = [
    "/admin/v1/queue",
    "/admin/v1/replicas",
    "/admin/v1/admission",
];

/// Who is let in: whoever has an admin key, or, where there are none, whoever looks at the queue,
/// at the replicas or at admission.
async fn let_in(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    if app.admins.is_empty() {
        let looks = request.method() == Method::GET && OPEN.contains(&request.uri().path());
        return if looks {
            next.run(request).await
        } else {
            let how = "this needs an admin key; set admin.keys in the configuration, and restart";
            fail(StatusCode::FORBIDDEN, "no_admin_keys", how)
        };
    }
    let given = identity::key(request.headers()).map(KeyHash::of);
    // Each is compared, so that the time says nothing of which of them was near.
    let known = given.and_then(|given| {
        let all = app.admins.iter();
        all.fold(None, |found, (hash, name)| {
            if hash.matches(&given) {
                Some(name)
            } else {
                found
            }
        })
    });
    let Some(name) = known else {
        let how = "no valid admin key was given; send one as `Authorization: Bearer KEY`";
        return fail(StatusCode::UNAUTHORIZED, "invalid_api_key", how);
    };
    let clock = app.desk.clock();
    let actor = Actor {
        name: format!("admin:{name}"),
        at_us: clock.unix_micros(clock.now()),
    };
    request.extensions_mut().insert(actor);
    next.run(request).await
}

async fn openapi() -> Response {
    json(OPENAPI.into())
}

/// An answer in JSON.
fn page(content: &impl Serialize) -> Response {
    match serde_json::to_vec(content) {
        Ok(body) => json(body),
        // Numbers and texts always serialize.
        Err(_) => crate::answer::refuse::bug(),
    }
}

/// A body, read; or what is wrong with it.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        let how = format!("the body is not what this path takes: {error}");
        Box::new(fail(StatusCode::BAD_REQUEST, "bad_request", &how))
    })
}

fn fail(status: StatusCode, code: &'static str, message: &str) -> Response {
    let mut bytes = Vec::new();
    let body = ErrorBody {
        message,
        kind: "invalid_request_error",
        param: None,
        code: Some(code),
    };
    body.write(&mut bytes);
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The answer where tenants or keys were not changed.
fn unchanged(error: &DirectoryError) -> Response {
    let (status, code) = match error {
        DirectoryError::NoTenant(_) | DirectoryError::NoKey(_) => {
            (StatusCode::NOT_FOUND, "not_found")
        }
        DirectoryError::TenantExists(_) => (StatusCode::CONFLICT, "exists"),
        DirectoryError::Bad(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        DirectoryError::Store(error) => return away(error),
    };
    fail(status, code, &error.to_string())
}

/// The answer where usage could not be summed.
fn unsummed(error: &UsageError) -> Response {
    match error {
        UsageError::Store(error) => away(error),
        UsageError::NotWholeHours | UsageError::CutsGrain(_) | UsageError::Twice => {
            fail(StatusCode::BAD_REQUEST, "bad_request", &error.to_string())
        }
    }
}

/// The answer where the store can't be asked.
pub(crate) fn away(error: &StoreError) -> Response {
    tracing::warn!(%error, "the store did not answer");
    let how = "the store can't be reached just now; try again later";
    fail(StatusCode::SERVICE_UNAVAILABLE, "store_away", how)
}
