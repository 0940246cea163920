//! From a request's bytes to an order for the policy. Whatever is wrong with it is found here,
//! before it holds anything.

mod here;
pub(crate) mod repeats;
mod tools;
mod vectors;

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use tollgate_policy::ids::ModelId;
use tollgate_policy::outcome::Rejection;
use tollgate_policy::request::Arrival;
use tollgate_policy::slo::Asked;
use tollgate_policy::units::{Micros, Tokens};
use tollgate_wire::{Relay, RelayKind};

pub(crate) use self::here::EngineOrder;
pub(crate) use self::tools::Reading;
use crate::answer::idempotent::Repeat;
use crate::answer::refuse;
use crate::app::{App, Made, ServedModel, Turned, Visit};
use crate::door::body_room::Room;
use crate::door::receive::{Received, receive};
use crate::members::identity::{Caller, Stranger};
use crate::upstream::relay::Passage;
use crate::upstream::{RemoteModel, headers};

/// Bodies larger than this are parsed, and tokenized by an engine of ours, on a thread of their
/// own: a millisecond of work is as long as the other requests of a worker should wait.
pub(crate) const PARSED_INLINE: usize = 16 << 10;

/// The same where a tokenizer of another engine counts prompts, which is some times slower.
pub(crate) const COUNTED_INLINE: usize = 4 << 10;

/// Answers that one request may ask for: to all its prompts together.
pub(crate) const ANSWERS_MAX: usize = 128;

/// Which of the forms of an answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
    /// `/v1/embeddings`
    Vectors,
}

impl Endpoint {
    pub(crate) const fn kind(self) -> RelayKind {
        match self {
            Self::Chat => RelayKind::Chat,
            Self::Text => RelayKind::Text,
            Self::Vectors => RelayKind::Embeddings,
        }
    }

    /// Of what engines in this process make.
    const fn of(kind: RelayKind) -> Self {
        match kind {
            RelayKind::Chat => Self::Chat,
            RelayKind::Text => Self::Text,
            RelayKind::Embeddings => Self::Vectors,
        }
    }
}

/// A request that is ready to be handed in.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) arrival: Arrival,
    pub(crate) work: Work,
    /// How it says that it may be a repeat, where it does.
    pub(crate) repeat: Option<Repeat>,
}

/// What is to be done for it.
#[derive(Debug)]
pub(crate) enum Work {
    /// By an engine in this process.
    Engine(Box<EngineOrder>),
    /// By one in another.
    Replicas(Box<Passage>),
}

/// Why a request is turned away, and what is left unread of its body.
pub(crate) type Away = (Turned, Option<Incoming>);

pub(crate) async fn prepare(
    app: &Arc<App>,
    kind: RelayKind,
    visit: &Visit,
    parts: &Parts,
    body: Incoming,
) -> Result<Order, Away> {
    let caller = match identify(app, visit, parts) {
        Ok(caller) => caller,
        Err(turned) => return Err((turned, Some(body))),
    };
    let tenant = caller.tenant;
    if !caller.may_ask(kind) {
        let message = "this key may not ask for this; its operator says what it is good for";
        return Err((
            Turned::new(Rejection::KeyScope, message).of(tenant),
            Some(body),
        ));
    }
    if let Err(turned) = check_media_type(parts) {
        return Err((turned.of(tenant), Some(body)));
    }
    let received = receive(parts, body, (&app.bounds, visit.line.patience())).await;
    let received = received.map_err(|(turned, unread)| (turned.of(tenant), unread))?;
    let Received { bytes, room } = received;
    let repeat = Repeat::read(&parts.headers, kind, &bytes);
    let repeat = repeat.map_err(|turned| (turned.of(tenant), None))?;
    let order = if bytes.len() > app.bounds.inline_max {
        let (app, visit) = (Arc::clone(app), visit.clone());
        let heavy = move || digest(&app, kind, &visit, &caller, &bytes);
        match tokio::task::spawn_blocking(heavy).await {
            Ok(order) => order,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    } else {
        digest(app, kind, visit, &caller, &bytes)
    };
    let mut order = order.map_err(|turned| (turned.of(tenant), None))?;
    if let Work::Replicas(passage) = &mut order.work {
        passage.room = room;
        headers::write_request(&parts.headers, &mut passage.headers);
        if let Made::Elsewhere(model) = &app.model(order.arrival.model).made
            && let Some(name) = parts.headers.get(&model.routing.session_header)
        {
            let affinity = std::mem::take(&mut passage.affinity);
            passage.affinity = model.in_session(affinity, tenant, name.as_bytes());
        }
    }
    order.repeat = repeat;
    order.arrival.slo = Asked {
        whole: order.arrival.slo.whole,
        ..asked(&parts.headers)
    };
    order.arrival.retry = app.repeats.is_retry(&parts.headers, tenant, visit.received);
    Ok(order)
}

/// What a request asks of its latency, beyond what its class is promised. What is no whole number
/// of milliseconds is not heard, as any header that is not understood.
fn asked(headers: &HeaderMap) -> Asked {
    // Hardly anyone asks, and to look for six names takes longer than to see that.
    if !headers.keys().any(|name| name.as_str().contains("-slo-")) {
        return Asked::default();
    }
    let millis = |names: [&str; 2]| {
        let value = names.iter().find_map(|name| headers.get(*name))?;
        let millis: u64 = value.to_str().ok()?.trim().parse().ok()?;
        (millis > 0).then(|| Micros::from_millis(millis))
    };
    Asked {
        ttft: millis(["x-tollgate-slo-ttft-ms", "x-llm-d-slo-ttft-ms"]),
        tpot: millis(["x-tollgate-slo-tpot-ms", "x-llm-d-slo-tpot-ms"]),
        e2e: millis(["x-tollgate-slo-e2e-ms", "x-llm-d-slo-e2e-ms"]),
        whole: false,
    }
}

/// Who is calling.
pub(crate) fn identify(app: &App, visit: &Visit, parts: &Parts) -> Result<Caller, Turned> {
    app.callers()
        .identity
        .who(&parts.headers, visit.peer, &app.desk)
        .map_err(|stranger| match stranger {
            Stranger::Unknown => {
                let how = "no valid API key was given; send one as `Authorization: Bearer KEY`";
                Turned::new(Rejection::BadKey, how)
            }
            Stranger::Tenant => {
                let how = "X-Tenant-ID names no tenant; send it once, as 1 to 64 of `A-Za-z0-9._-`";
                Turned::new(Rejection::BadRequest, how).param("X-Tenant-ID")
            }
            Stranger::Unsure => Turned::new(
                Rejection::NoDirectory,
                refuse::rejected(Rejection::NoDirectory),
            ),
        })
}

fn check_media_type(parts: &Parts) -> Result<(), Turned> {
    let coded = |coding: &HeaderValue| !coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if parts.headers.get_all(CONTENT_ENCODING).iter().any(coded) {
        let how = "the body must be plain JSON; send it without `Content-Encoding`";
        return Err(Turned::new(Rejection::WrongMediaType, how));
    }
    let Some(value) = parts.headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let how = "the body must be JSON; send `Content-Type: application/json`";
    Err(Turned::new(Rejection::WrongMediaType, how))
}

/// The part that takes time: parses, renders and tokenizes.
fn digest(
    app: &App,
    kind: RelayKind,
    visit: &Visit,
    caller: &Caller,
    body: &Bytes,
) -> Result<Order, Turned> {
    if app.relays {
        let relay = Relay::read(kind, body)?;
        let served = find(app, &relay.model, caller)?;
        if let Made::Elsewhere(model) = &served.made {
            return Ok(passage(
                served.id,
                model,
                visit,
                caller,
                (kind, relay, body),
            ));
        }
    }
    let endpoint = Endpoint::of(kind);
    let ask = here::parse(endpoint, body)?;
    let served = find(app, ask.model(), caller)?;
    let Made::Here(engine) = &served.made else {
        return Err(no_model(ask.model())); // Not reached: they were looked for above.
    };
    here::order((served.id, engine), endpoint, ask, (visit, caller))
}

fn find<'a>(app: &'a App, name: &str, caller: &Caller) -> Result<&'a ServedModel, Turned> {
    app.find_model(name, caller).ok_or_else(|| no_model(name))
}

/// A request for an engine in another process, which counts its prompt itself: until it has, the
/// prompt is as long as text of its size is likely to be.
fn passage(
    id: ModelId,
    model: &RemoteModel,
    visit: &Visit,
    caller: &Caller,
    (kind, relay, body): (RelayKind, Relay, &Bytes),
) -> Order {
    let measured = model.measure(kind, &relay, body);
    let reckoned = model.reckon_prompt(measured);
    // An engine judges by its count, not by our guess: what may be too long is for it to refuse.
    let fits = model.policy_context() - Tokens::new(1);
    let answers = u64::from(relay.answers);
    let most = relay.max_output.map(|most| u64::from(most.get()));
    let arrival = Arrival {
        id: visit.id,
        tenant: caller.tenant,
        key: caller.key_id(),
        model: id,
        prompt: reckoned.min(fits),
        output_max: match kind {
            // One token, since the policy knows no answer without any.
            RelayKind::Embeddings => Some(Tokens::new(1)),
            RelayKind::Chat | RelayKind::Text => {
                most.map(|most| Tokens::new(most.saturating_mul(answers)))
            }
        },
        retry: false,
        slo: Asked {
            whole: !relay.delivery.stream,
            ..Asked::default()
        },
        received: visit.received,
    };
    let prompt = relay.prompt.clone();
    let passage = Passage {
        kind,
        body: body.clone(),
        room: Room::default(),
        prompt: measured,
        relay,
        headers: Vec::new(),
        affinity: model.affinity(caller.tenant, body.get(prompt).unwrap_or_default()),
    };
    Order {
        arrival,
        work: Work::Replicas(Box::new(passage)),
        repeat: None,
    }
}

/// The same answer whether a model does not exist or is not this tenant's to name.
pub(crate) fn no_model(name: &str) -> Turned {
    // A name of some length is a mistake or an attack; either way nobody needs it repeated.
    let shown: String = name.chars().take(64).collect();
    let message = format!(
        "the model `{shown}` does not exist or is not open to you; GET /v1/models lists yours"
    );
    Turned::new(Rejection::ModelNotFound, message).param("model")
}
