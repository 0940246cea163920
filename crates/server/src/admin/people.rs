//! Tenants and keys of the store, made and changed.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::{away, fail, page, read, unchanged};
use crate::app::App;
use crate::store::{Actor, DirectoryError, FreshKey, NewKey, Store, TenantRow};

/// A list, by the name that OpenAI's lists have.
#[derive(Serialize)]
struct List<T> {
    data: Vec<T>,
}

pub(super) async fn tenants(State(app): State<Arc<App>>) -> Response {
    match app.store.ask(Store::tenants).await {
        Ok(data) => page(&List { data }),
        Err(error) => away(&error),
    }
}

pub(super) async fn create_tenant(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    body: Bytes,
) -> Response {
    let row: TenantRow = match read(&body) {
        Ok(row) => row,
        Err(response) => return *response,
    };
    let configured = app.membership.is_configured(&row.name);
    if configured {
        let how = format!(
            "the configuration has a tenant {}; use another name",
            row.name
        );
        return fail(StatusCode::CONFLICT, "exists", &how);
    }
    change(&app, StatusCode::CREATED, move |store| {
        store.create_tenant(&row, &actor)?;
        Ok(row)
    })
    .await
}

pub(super) async fn change_tenant(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response {
    let row: TenantRow = match read(&body) {
        Ok(row) => row,
        Err(response) => return *response,
    };
    if row.name != name {
        let how = "the name in the body is not that in the path; a tenant keeps its name";
        return fail(StatusCode::BAD_REQUEST, "bad_request", how);
    }
    change(&app, StatusCode::OK, move |store| {
        store.change_tenant(&row, &actor)?;
        Ok(row)
    })
    .await
}

pub(super) async fn remove_tenant(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
) -> Response {
    change(&app, StatusCode::OK, move |store| {
        store.remove_tenant(&name, &actor)?;
        Ok(Gone { removed: name })
    })
    .await
}

#[derive(Serialize)]
struct Gone {
    removed: String,
}

pub(super) async fn keys(State(app): State<Arc<App>>) -> Response {
    match app.store.ask(Store::keys).await {
        Ok(data) => page(&List { data }),
        Err(error) => away(&error),
    }
}

/// A key that was just made, with what callers send: here and never again.
#[derive(Serialize)]
struct Shown {
    id: String,
    key: String,
}

impl From<FreshKey> for Shown {
    fn from(fresh: FreshKey) -> Self {
        Self {
            id: fresh.id,
            key: fresh.secret,
        }
    }
}

pub(super) async fn create_key(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    body: Bytes,
) -> Response {
    let key: NewKey = match read(&body) {
        Ok(key) => key,
        Err(response) => return *response,
    };
    change(&app, StatusCode::CREATED, move |store| {
        store.create_key(&key, &actor).map(Shown::from)
    })
    .await
}

/// How long the old key is good beside the new one.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Overlap {
    overlap_seconds: u64,
}

pub(super) async fn rotate_key(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let asked = if body.is_empty() {
        Ok(Overlap::default())
    } else {
        read(&body)
    };
    let overlap = match asked {
        Ok(overlap) => overlap.overlap_seconds.saturating_mul(1_000_000),
        Err(response) => return *response,
    };
    change(&app, StatusCode::CREATED, move |store| {
        let until = actor.at_us.saturating_add(overlap);
        store.rotate_key(&id, until, &actor).map(Shown::from)
    })
    .await
}

/// When a key stops being good.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expiry {
    expires_us: u64,
}

#[derive(Serialize)]
struct Changed {
    id: String,
}

pub(super) async fn expire_key(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let expiry: Expiry = match read(&body) {
        Ok(expiry) => expiry,
        Err(response) => return *response,
    };
    change(&app, StatusCode::OK, move |store| {
        store.expire_key(&id, expiry.expires_us, &actor)?;
        Ok(Changed { id })
    })
    .await
}

pub(super) async fn revoke_key(
    State(app): State<Arc<App>>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
) -> Response {
    change(&app, StatusCode::OK, move |store| {
        store.revoke_key(&id, &actor)?;
        Ok(Changed { id })
    })
    .await
}

pub(super) async fn audit(State(app): State<Arc<App>>) -> Response {
    match app.store.ask(Store::audit).await {
        Ok(data) => page(&List { data }),
        Err(error) => away(&error),
    }
}

/// Makes a change, and has the gateway take it on.
async fn change<T: Serialize + Send + 'static>(
    app: &App,
    status: StatusCode,
    work: impl FnOnce(&mut Store) -> Result<T, DirectoryError> + Send + 'static,
) -> Response {
    match app.store.ask(work).await {
        Ok(content) => {
            app.clerk.changed();
            let mut response = page(&content);
            *response.status_mut() = status;
            response
        }
        Err(error) => unchanged(&error),
    }
}
