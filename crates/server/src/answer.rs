//! From letters to a response. The status is committed only once the first letter that decides it
//! has come.

pub(crate) mod calls;
pub(crate) mod held;
pub(crate) mod idempotent;
pub(crate) mod refuse;
pub(crate) mod stream;
pub(crate) mod values;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use tollgate_engine::Delta;
use tollgate_policy::gateway::Dispatch;
use tollgate_policy::outcome::{EngineEnding, Outcome};
use tollgate_policy::usage::Usage;
use tollgate_wire::{Answer, Choice, ChunkWriter, Encoding, Stamp, StreamUsage, write_embeddings};

use self::calls::Calls;
use self::held::Held;
use self::stream::{Gaps, Keepalive, Opening, Shown, StreamBody};
use self::values::Values;
use crate::app::{App, ServedModel, Visit};
use crate::desk::inflight::{InFlight, Letter};
use crate::prepare::{Endpoint, EngineOrder, Order, Reading, Work};
use crate::upstream::relay::relay;

/// What every form of an answer needs.
struct Context<'a> {
    app: &'a Arc<App>,
    visit: &'a Visit,
    served: &'a ServedModel,
    order: Facts,
}

/// What is left of an order when its draft has been handed in.
struct Facts {
    endpoint: Endpoint,
    delivery: tollgate_wire::Delivery,
    model_name: String,
    class: &'static str,
    answers: usize,
    logprobs: bool,
    reading: Option<Reading>,
    encoding: Encoding,
}

/// Hands in an order, and answers with what becomes of it.
pub(crate) async fn answer(app: &Arc<App>, visit: &Visit, order: Order) -> Response {
    let Order {
        arrival,
        work,
        repeat: _,
    } = order;
    let order = match work {
        Work::Engine(order) => *order,
        Work::Replicas(passage) => return relay(app, visit, arrival, *passage).await,
    };
    let EngineOrder {
        draft,
        endpoint,
        delivery,
        reading,
        encoding,
        model_name,
    } = order;
    let class = app
        .desk
        .with_tenant(arrival.tenant, |tenant| tenant.class.label());
    let context = Context {
        app,
        visit,
        served: app.model(arrival.model),
        order: Facts {
            endpoint,
            delivery,
            model_name,
            class,
            answers: draft.answers(),
            logprobs: draft.sampling.logprobs.is_some(),
            reading,
            encoding,
        },
    };
    let flight = app.desk.arrive(arrival, draft);
    match endpoint {
        Endpoint::Vectors => vectors(context, flight).await,
        Endpoint::Chat | Endpoint::Text if delivery.stream => stream(context, flight).await,
        Endpoint::Chat | Endpoint::Text => whole(context, flight).await,
    }
}

/// A streamed answer: a status once there is a token to stream, or an error, or a client that has
/// waited long enough to want a sign of life.
async fn stream(context: Context<'_>, flight: InFlight) -> Response {
    let patience = Duration::from_micros(context.served.keepalive.get());
    let mut dispatch = None;
    let first = loop {
        match tokio::time::timeout(patience, flight.letters().next()).await {
            Ok(Some(Letter::Dispatched(sent))) => {
                context.visit.line.fence(sent.fence);
                dispatch = Some(*sent);
            }
            Ok(Some(letter @ (Letter::Delta(_) | Letter::Finished(..)))) => {
                break Opening::Letter(letter);
            }
            Ok(other) => return context.refusal(flight, other),
            Err(_) => break Opening::Keepalive,
        }
    };
    let id = context.answer_id();
    let usage = if context.order.delivery.include_usage {
        StreamUsage::Final
    } else {
        StreamUsage::Omitted
    };
    let stamp = context.stamp(&id);
    let writer = match context.order.endpoint {
        Endpoint::Chat => ChunkWriter::chat(&stamp, usage),
        Endpoint::Text | Endpoint::Vectors => ChunkWriter::text(&stamp, usage),
    };
    let itl = context.app.desk.books().metrics().itl(
        (context.served.id, &context.served.name),
        context.order.class,
    );
    let held = Held::new(flight, Arc::clone(&context.visit.line));
    let keepalive = Keepalive::new(
        context.app.desk.clock(),
        context.served.keepalive,
        &context.visit.line,
    );
    let mut shown = Shown::default();
    shown.logprobs = context.order.logprobs;
    let body = StreamBody::new(held, writer, first, Gaps::new(itl), keepalive)
        .showing(context.order.answers, shown)
        .calling(context.calls());
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx and its like hold a response back until a buffer is full, unless told.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    dispatch_headers(dispatch.as_ref(), &mut response);
    response
}

/// An answer in one piece.
async fn whole(context: Context<'_>, flight: InFlight) -> Response {
    let mut dispatch = None;
    let blank = Choice {
        text: String::new(),
        calls: Vec::new(),
        finish: tollgate_wire::FinishReason::Length,
        logprobs: context.order.logprobs.then(Vec::new),
    };
    let mut choices = vec![blank; context.order.answers];
    loop {
        match flight.letters().next().await {
            Some(Letter::Dispatched(sent)) => {
                context.visit.line.fence(sent.fence);
                dispatch = Some(*sent);
            }
            Some(Letter::Delta(delta)) => take(&mut choices, delta),
            Some(Letter::Finished(choice, reason)) => {
                let at = usize::try_from(choice).unwrap_or(usize::MAX);
                if let Some(choice) = choices.get_mut(at) {
                    choice.finish = finish_reason(reason);
                }
            }
            Some(Letter::Ended(EngineEnding::Finished(_), usage)) => {
                context.take_calls(&mut choices);
                let id = context.answer_id();
                let answer = Answer {
                    choices: &choices,
                    usage: wire_usage(usage),
                };
                let mut bytes = Vec::with_capacity(512);
                match context.order.endpoint {
                    Endpoint::Chat => answer.write_chat(&context.stamp(&id), &mut bytes),
                    Endpoint::Text | Endpoint::Vectors => {
                        answer.write_text(&context.stamp(&id), &mut bytes);
                    }
                }
                return context.in_one_piece(flight, bytes, dispatch.as_ref());
            }
            other => return context.refusal(flight, other),
        }
    }
}

/// The vectors of texts, in one piece.
async fn vectors(context: Context<'_>, flight: InFlight) -> Response {
    let mut dispatch = None;
    let mut vectors = vec![Vec::new(); context.order.answers];
    loop {
        match flight.letters().next().await {
            Some(Letter::Dispatched(sent)) => {
                context.visit.line.fence(sent.fence);
                dispatch = Some(*sent);
            }
            Some(Letter::Vector(place, vector)) => {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                if let Some(slot) = vectors.get_mut(place) {
                    *slot = vector;
                }
            }
            Some(Letter::Finished(..)) => {}
            Some(Letter::Ended(EngineEnding::Finished(_), usage)) => {
                let mut bytes = Vec::with_capacity(512);
                let (encoding, model) = (context.order.encoding, &context.order.model_name);
                let prompt = usage.prompt.get();
                write_embeddings(&vectors, encoding, model, prompt, &mut bytes);
                return context.in_one_piece(flight, bytes, dispatch.as_ref());
            }
            other => return context.refusal(flight, other),
        }
    }
}

/// Adds a piece to its choice.
fn take(choices: &mut [Choice], delta: Delta) {
    let at = usize::try_from(delta.choice).unwrap_or(usize::MAX);
    if let Some(choice) = choices.get_mut(at) {
        choice.text.push_str(&delta.text);
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.extend(delta.logprobs.into_iter().map(wire_logprob));
        }
    }
}

impl Context<'_> {
    /// How a stream finds calls, where it may have any.
    fn calls(&self) -> Option<Calls> {
        let reading = self.order.reading.clone()?;
        Some(Calls::new(reading, self.request_name(), self.order.answers))
    }

    /// Takes the calls out of the texts.
    fn take_calls(&self, choices: &mut [Choice]) {
        let Some(reading) = &self.order.reading else {
            return;
        };
        let answer = self.request_name();
        for (place, choice) in (0..).zip(choices) {
            let text = std::mem::take(&mut choice.text);
            let id = |index| reading.call_id(&answer, place, index);
            (choice.text, choice.calls) = reading.split(&text, id);
            choice.finish = called(choice.finish, !choice.calls.is_empty());
        }
    }

    fn request_name(&self) -> String {
        self.app
            .desk
            .books()
            .request_name(self.visit.id)
            .to_string()
    }

    fn answer_id(&self) -> String {
        let prefix = match self.order.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Text | Endpoint::Vectors => "cmpl",
        };
        format!(
            "{prefix}-{}",
            self.app.desk.books().request_name(self.visit.id)
        )
    }

    fn stamp<'s>(&'s self, id: &'s str) -> Stamp<'s> {
        Stamp {
            id,
            created: self.app.desk.clock().unix_secs(),
            model: &self.order.model_name,
            system_fingerprint: None,
        }
    }

    fn in_one_piece(
        &self,
        flight: InFlight,
        bytes: Vec<u8>,
        dispatch: Option<&Dispatch>,
    ) -> Response {
        let line = Arc::clone(&self.visit.line);
        let body = Held::new(flight, line).whole(bytes.into());
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        dispatch_headers(dispatch, &mut response);
        response
    }

    /// The error for a letter that ends a request before its first byte.
    fn refusal(&self, flight: InFlight, letter: Option<Letter>) -> Response {
        let response = match letter {
            Some(Letter::Refused(refusal)) => refuse::refused(&refusal, self.order.endpoint.kind()),
            Some(Letter::Stopped(outcome)) => refuse::ended(outcome),
            Some(Letter::Ended(EngineEnding::Failed(failure), _)) => {
                refuse::ended(Outcome::ReplicaFailed(failure))
            }
            Some(Letter::Ended(
                EngineEnding::Cancelled | EngineEnding::Refused(_) | EngineEnding::Finished(_),
                _,
            ))
            | Some(
                Letter::Dispatched(_)
                | Letter::Delta(_)
                | Letter::Vector(..)
                | Letter::Finished(..)
                | Letter::Withdrawn,
            )
            | None => refuse::bug(),
        };
        let line = Arc::clone(&self.visit.line);
        response.map(|body| Body::new(Held::new(flight, line).around(body)))
    }
}

pub(crate) fn finish_reason(
    finish: tollgate_policy::outcome::FinishReason,
) -> tollgate_wire::FinishReason {
    match finish {
        tollgate_policy::outcome::FinishReason::Stop => tollgate_wire::FinishReason::Stop,
        tollgate_policy::outcome::FinishReason::Length => tollgate_wire::FinishReason::Length,
        // Engines in this process end for no other reason.
        tollgate_policy::outcome::FinishReason::ToolCalls
        | tollgate_policy::outcome::FinishReason::Other => tollgate_wire::FinishReason::Stop,
    }
}

/// A turn that ended with calls waits for what comes of them.
pub(crate) fn called(
    finish: tollgate_wire::FinishReason,
    called: bool,
) -> tollgate_wire::FinishReason {
    match finish {
        tollgate_wire::FinishReason::Stop if called => tollgate_wire::FinishReason::ToolCalls,
        tollgate_wire::FinishReason::Stop
        | tollgate_wire::FinishReason::Length
        | tollgate_wire::FinishReason::ToolCalls => finish,
    }
}

pub(crate) fn wire_usage(usage: Usage) -> tollgate_wire::Usage {
    tollgate_wire::Usage {
        prompt_tokens: usage.prompt.get(),
        completion_tokens: usage.output.get(),
        cached_tokens: usage.cached.get(),
    }
}

pub(crate) fn wire_logprob(logprob: tollgate_engine::Logprob) -> tollgate_wire::Logprob {
    let likely = |likely: tollgate_engine::Likely| tollgate_wire::Likely {
        bytes: likely.bytes,
        logprob: likely.logprob,
    };
    tollgate_wire::Logprob {
        chosen: likely(logprob.chosen),
        top: logprob.top.into_iter().map(likely).collect(),
    }
}

/// Who serves it, how long it waited, and what its tenant has left.
pub(crate) fn dispatch_headers(dispatch: Option<&Dispatch>, response: &mut Response) {
    const REPLICA: HeaderName = HeaderName::from_static("x-tollgate-replica");
    const QUEUE: HeaderName = HeaderName::from_static("x-tollgate-queue-ms");
    const REASON: HeaderName = HeaderName::from_static("x-tollgate-route-reason");
    let Some(dispatch) = dispatch else { return };
    let (headers, mut values) = (response.headers_mut(), Values::new());
    headers.insert(REPLICA, values.of(dispatch.replica.get()));
    headers.insert(QUEUE, values.of(dispatch.queued.get() / 1_000));
    headers.insert(REASON, HeaderValue::from_static(dispatch.because.label()));
    refuse::write_quota(dispatch.quota, &mut values, headers);
}
