//! Usage, invoices and prices.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::{away, fail, page, unsummed};
use crate::app::App;
use crate::store::{Asked, InvoiceError, Store, UsageRow};

/// What is asked of usage, as in the address.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Terms {
    by: Option<String>,
    from: Option<String>,
    to: Option<String>,
    tenant: Option<String>,
}

/// Usage, and of when.
#[derive(Serialize)]
struct Sums {
    from: String,
    to: String,
    data: Vec<UsageRow>,
}

pub(super) async fn usage(State(app): State<Arc<App>>, Query(terms): Query<Terms>) -> Response {
    sums(&app, terms, "tenant,model").await
}

/// Sums usage; by `by` where the terms say nothing.
async fn sums(app: &App, terms: Terms, by: &str) -> Response {
    let clock = app.desk.clock();
    let asked = Asked {
        by: Some(terms.by.as_deref().unwrap_or(by)),
        from: terms.from.as_deref(),
        to: terms.to.as_deref(),
        tenant: terms.tenant.as_deref(),
    };
    let question = match asked.read(clock.unix_micros(clock.now())) {
        Ok(question) => question,
        Err(how) => return fail(StatusCode::BAD_REQUEST, "bad_request", &how),
    };
    let (from, to) = question.span();
    match app.store.ask(move |store| store.usage(&question)).await {
        Ok(data) => page(&Sums { from, to, data }),
        Err(error) => unsummed(&error),
    }
}

/// The usage of one tenant, whatever else is asked for.
pub(crate) async fn own_usage(app: &App, mut terms: Terms, tenant: String) -> Response {
    if terms.tenant.as_ref().is_some_and(|other| *other != tenant) {
        let how = "a key sums the usage of its own tenant; leave `tenant` out";
        return fail(StatusCode::FORBIDDEN, "insufficient_permissions", how);
    }
    terms.tenant = Some(tenant);
    sums(app, terms, "model,day").await
}

pub(super) async fn invoice(
    State(app): State<Arc<App>>,
    Path((tenant, month)): Path<(String, String)>,
) -> Response {
    match app
        .store
        .ask(move |store| store.invoice(&tenant, &month))
        .await
    {
        Ok(invoice) => page(&invoice),
        Err(InvoiceError::Month(how)) => fail(StatusCode::BAD_REQUEST, "bad_request", &how),
        Err(InvoiceError::Usage(error)) => unsummed(&error),
    }
}

/// A price as JSON has it: in billionths of a dollar, for a million tokens and for a GiB-second.
#[derive(Serialize)]
struct Price {
    model: String,
    from_us: u64,
    prompt_nano_usd: u64,
    cached_nano_usd: u64,
    output_nano_usd: u64,
    kv_nano_usd: u64,
}

#[derive(Serialize)]
struct Prices {
    data: Vec<Price>,
}

pub(super) async fn prices(State(app): State<Arc<App>>) -> Response {
    let rows = match app.store.ask(Store::prices).await {
        Ok(rows) => rows,
        Err(error) => return away(&error),
    };
    let data = rows.into_iter().map(|row| Price {
        model: row.model,
        from_us: row.from_us,
        prompt_nano_usd: row.price.prompt.get(),
        cached_nano_usd: row.price.cached.get(),
        output_nano_usd: row.price.output.get(),
        kv_nano_usd: row.price.kv.get(),
    });
    page(&Prices {
        data: data.collect(),
    })
}
