//! The paths, and the small answers that need no policy.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::{any, get};
use tollgate_policy::outcome::Rejection;
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::Tokens;
use tollgate_wire::{ModelCard, RelayKind, write_model_list};

use crate::admin;
use crate::answer::refuse;
use crate::app::{App, ServedModel, Turned, Visit};
use crate::config::MetricsReaders;
use crate::prepare::{identify, no_model};

/// The form of an answer that a request is for, where it is for one.
pub(crate) fn endpoint<B>(request: &axum::http::Request<B>) -> Option<RelayKind> {
    if request.method() != Method::POST {
        return None;
    }
    match request.uri().path() {
        "/v1/chat/completions" => Some(RelayKind::Chat),
        "/v1/completions" => Some(RelayKind::Text),
        "/v1/embeddings" => Some(RelayKind::Embeddings),
        _ => None,
    }
}

/// All other paths, and other methods of those.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", any(only_post))
        .route("/v1/completions", any(only_post))
        .route("/v1/embeddings", any(only_post))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/usage", get(usage))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .with_state(app)
}

/// The models that the caller may name, under each of their names.
async fn models(State(app): State<Arc<App>>, request: Request) -> Response {
    listing(&app, request, |app, permitted| {
        let created = app
            .desk
            .clock()
            .unix_micros(tollgate_policy::units::Time::START)
            / 1_000_000;
        let cards: Vec<_> = permitted
            .iter()
            .flat_map(|served| names(served).map(|name| card(served, name, created)))
            .collect();
        let mut body = Vec::new();
        write_model_list(&cards, &mut body);
        Ok(body)
    })
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    listing(&app, request, |app, permitted| {
        let created = app
            .desk
            .clock()
            .unix_micros(tollgate_policy::units::Time::START)
            / 1_000_000;
        let found = permitted
            .iter()
            .find(|served| names(served).any(|name| name == id));
        let Some(served) = found else {
            return Err(no_model(&id));
        };
        let mut body = Vec::new();
        card(served, &id, created).write(&mut body);
        Ok(body)
    })
}

/// What the caller's own tenant has used.
async fn usage(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let Some(visit) = parts.extensions.get::<Visit>() else {
        return refuse::bug();
    };
    let caller = match identify(&app, visit, &parts) {
        Ok(caller) => caller,
        Err(turned) => return app.turn_away(visit, &turned, None),
    };
    let Ok(Query(terms)) = Query::try_from_uri(&parts.uri) else {
        let message = "the address asks for what this path does not know; use by, from and to";
        let turned = Turned::new(Rejection::BadRequest, message).of(caller.tenant);
        return app.turn_away(visit, &turned, None);
    };
    let name = app
        .desk
        .with_tenant(caller.tenant, |tenant| tenant.name.clone());
    admin::own_usage(&app, terms, name).await
}

/// Answers a question about the models that the caller may name.
fn listing(
    app: &App,
    request: Request,
    answer: impl FnOnce(&App, &[&ServedModel]) -> Result<Vec<u8>, Turned>,
) -> Response {
    let (parts, _) = request.into_parts();
    let Some(visit) = parts.extensions.get::<Visit>() else {
        return refuse::bug();
    };
    let answered = identify(app, visit, &parts).and_then(|caller| {
        let tenant = caller.tenant;
        let permits = |served: &&ServedModel| {
            let models = |tenant: &Tenant| tenant.models.permits(served.id);
            caller.may_name(served.id) && app.desk.with_tenant(tenant, models)
        };
        let permitted: Vec<_> = app.models.iter().filter(permits).collect();
        let body = answer(app, &permitted).map_err(|turned| turned.of(tenant))?;
        Ok((body, app.desk.quota(tenant)))
    });
    match answered {
        Ok((body, quota)) => {
            let mut response = json(body);
            refuse::quota_headers(quota, response.headers_mut());
            response
        }
        Err(turned) => app.turn_away(visit, &turned, None),
    }
}

fn names(served: &ServedModel) -> impl Iterator<Item = &str> {
    std::iter::once(served.name.as_str()).chain(served.aliases.iter().map(String::as_str))
}

fn card<'a>(served: &ServedModel, name: &'a str, created: u64) -> ModelCard<'a> {
    ModelCard {
        id: name,
        created,
        context_length: served.context.map(Tokens::get),
    }
}

/// Alive: also while draining, since a supervisor that kills what drains cuts its streams.
async fn health() -> Response {
    plain(StatusCode::OK, "ok\n")
}

/// Whether traffic should be sent here.
async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.desk.is_ready() {
        plain(StatusCode::OK, "ready\n")
    } else if app.desk.is_draining() {
        plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if !app.desk.books_are_open() {
        plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the ledger can't be written\n",
        )
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, "no replica is up\n")
    }
}

async fn metrics(State(app): State<Arc<App>>, request: Request) -> Response {
    let Some(visit) = request.extensions().get::<Visit>() else {
        return refuse::bug();
    };
    let open = match app.callers().metrics_readers {
        MetricsReaders::Any => true,
        MetricsReaders::Loopback => visit.peer.to_canonical().is_loopback(),
    };
    if !open {
        return app.turn_away(visit, &no_such_path("/metrics"), None);
    }
    let mut response = plain(StatusCode::OK, app.desk.books().metrics().render(&app.desk));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

pub(crate) async fn no_route(State(app): State<Arc<App>>, request: Request) -> Response {
    let turned = no_such_path(request.uri().path());
    turn_away_unread(&app, request, &turned)
}

pub(crate) async fn wrong_method(State(app): State<Arc<App>>, request: Request) -> Response {
    let message = format!(
        "{} does not take {}",
        request.uri().path(),
        request.method()
    );
    turn_away_unread(&app, request, &Turned::new(Rejection::WrongMethod, message))
}

async fn only_post(app: State<Arc<App>>, request: Request) -> Response {
    let mut response = wrong_method(app, request).await;
    let post = HeaderValue::from_static("POST");
    response.headers_mut().insert(header::ALLOW, post);
    response
}

fn no_such_path(path: &str) -> Turned {
    let shown: String = path.chars().take(128).collect();
    let message = format!("there is no {shown}; the API is under /v1");
    Turned::new(Rejection::NoRoute, message)
}

fn turn_away_unread(app: &App, request: Request, turned: &Turned) -> Response {
    let (parts, body) = request.into_parts();
    match parts.extensions.get::<Visit>() {
        Some(visit) => {
            let unread = refuse::on_its_way(&parts.headers, body);
            app.turn_away(visit, turned, unread)
        }
        None => refuse::bug(),
    }
}

pub(crate) fn json(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn plain(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
