//! Answers a client with what an engine in another process says.
//!
//! The status is committed once it is known what the answer is: for a stream when its first event
//! is a good one, for an answer in one piece when all of it is there. Only a client that has waited
//! for long is told `200` and a comment before that. Where a request goes, the policy says.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use tollgate_policy::gateway::Dispatch;
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason, Outcome};
use tollgate_policy::request::Arrival;
use tollgate_policy::route::Affinity;
use tollgate_policy::units::{Micros, Tokens};
use tollgate_policy::usage::{Counted, Usage};
use tollgate_wire::{
    Edits, EngineError, ErrorShape, Finish, Patch, Relay, RelayKind, StreamUsage, Tap, Whole,
};

use super::ask::{Ask, Part};
use super::exchange::{Failed, Reply, Streaming, ask, retry_after};
use super::headers::copy_response;
use super::http1::Fields;
use super::model::{RemoteModel, Upstream};
use super::prompt::Prompt;
use super::stream::{RelayBody, Watched};
use crate::answer::dispatch_headers;
use crate::answer::held::{Held, HeldBody};
use crate::answer::refuse;
use crate::answer::stream::{Gaps, Keepalive};
use crate::app::{App, Made, Visit};
use crate::desk::inflight::{InFlight, Letter};
use crate::door::body_room::Room;
use crate::door::line::Line;

/// A request for an engine in another process.
#[derive(Debug)]
pub(crate) struct Passage {
    pub(crate) kind: RelayKind,
    /// As the client sent it.
    pub(crate) body: Bytes,
    /// The room that it takes, until it is not needed any more.
    pub(crate) room: Room,
    pub(crate) relay: Relay,
    /// Its prompt, as it was measured.
    pub(crate) prompt: Prompt,
    /// The client's headers that the engine gets, as they go over the wire.
    pub(crate) headers: Vec<u8>,
    /// Where it is best served.
    pub(crate) affinity: Affinity,
}

/// One request on its way.
struct Call {
    app: Arc<App>,
    line: Arc<Line>,
    model: Arc<RemoteModel>,
    arrival: Arrival,
    passage: Passage,
}

/// What has become of a request once it is known what its answer is.
pub(crate) struct Opened {
    pub(crate) flight: InFlight,
    pub(crate) dispatch: Option<Dispatch>,
    pub(crate) what: What,
    /// The name that the caller knows the model by.
    asked: String,
    model: Arc<RemoteModel>,
    kind: RelayKind,
}

/// What that answer is.
pub(crate) enum What {
    /// A stream, and from whom.
    Stream(Box<Streaming>, Arc<Upstream>),
    Whole(Fields, Bytes),
    Refused {
        status: StatusCode,
        fields: Fields,
        body: Bytes,
        said: EngineError,
    },
    Failed(Failed),
    /// The policy has ended it: its last letter.
    Letter(Option<Letter>),
}

/// Hands in a request, and answers with what becomes of it.
pub(crate) async fn relay(
    app: &Arc<App>,
    visit: &Visit,
    arrival: Arrival,
    passage: Passage,
) -> Response {
    let served = app.model(arrival.model);
    let Made::Elsewhere(model) = &served.made else {
        return refuse::bug(); // Not reached: whoever made the passage looked.
    };
    let flight = app.desk.arrive_elsewhere(arrival, passage.affinity.clone());
    let keepalive = served.keepalive;
    let stream = passage.relay.delivery.stream;
    let call = Call {
        app: Arc::clone(app),
        line: Arc::clone(&visit.line),
        model: Arc::clone(model),
        arrival,
        passage,
    };
    if !stream {
        return Box::pin(call.open(flight)).await.answer(&visit.line);
    }
    let watched = call.watched(&served.name);
    let comments = Keepalive::new(app.desk.clock(), keepalive, &visit.line);
    let mut opening = Box::pin(call.open(flight));
    let patience = Duration::from_micros(keepalive.get());
    match visit.line.patience().wait(patience, opening.as_mut()).await {
        Some(opened) => opened.begin(watched, comments),
        None => {
            let body = RelayBody::waiting(opening, watched, comments);
            stream_response(body, &Fields::default(), None)
        }
    }
}

impl Call {
    /// What whoever reads the stream must know of the request.
    fn watched(&self, name: &str) -> Watched {
        let desk = &self.app.desk;
        let class = desk.with_tenant(self.arrival.tenant, |tenant| tenant.class.label());
        Watched {
            line: Arc::clone(&self.line),
            clock: desk.clock(),
            model: Arc::clone(&self.model),
            size: self.passage.prompt,
            prompt: self.arrival.prompt,
            answers: self.passage.relay.answers,
            gaps: Gaps::new(
                desk.books()
                    .metrics()
                    .itl((self.arrival.model, name), class),
            ),
            request: desk.books().name(self.arrival.id),
        }
    }

    /// Waits for a replica, asks it, and waits until it is known what the answer is. Where a
    /// replica fails, the policy says whether another is asked.
    async fn open(self, mut flight: InFlight) -> Opened {
        let (mut last, mut failed): (Option<Dispatch>, Option<Failed>) = (None, None);
        loop {
            let dispatch = match flight.letters().next().await {
                Some(Letter::Dispatched(dispatch)) => *dispatch,
                // It had failed already, which the policy did not know.
                Some(Letter::Withdrawn) => continue,
                Some(Letter::Ended(EngineEnding::Failed(failure), _)) => {
                    let failed = failed.unwrap_or_else(|| Failed::new(failure, "it went"));
                    return self.opened(flight, last, What::Failed(failed));
                }
                other => return self.opened(flight, last, What::Letter(other)),
            };
            self.line.fence(dispatch.fence);
            flight.given();
            last = Some(dispatch);
            match self.ask_one(&mut flight, &dispatch).await {
                Some(Ok(what)) => return self.opened(flight, last, what),
                Some(Err(why)) => failed = Some(self.failed(&mut flight, &dispatch, why)),
                None => {}
            }
        }
    }

    /// Asks one replica; nothing where it was told to let go of the request.
    async fn ask_one(
        &self,
        flight: &mut InFlight,
        dispatch: &Dispatch,
    ) -> Option<Result<What, Failed>> {
        let Some(upstream) = self.model.replica(dispatch.replica) else {
            let why = "the replica is not there any more";
            return Some(Err(Failed::new(Failure::Unreachable, why)));
        };
        // Also when nothing has come back yet: the engine works on the prompt from here on.
        let usage = Usage {
            prompt: self.arrival.prompt,
            ..Usage::default()
        };
        flight.note(usage);
        let (clock, patience) = (self.app.desk.clock(), self.line.patience());
        let asking = ask(&upstream, self.ask(dispatch, &upstream), patience, &clock);
        let reply = tokio::select! {
            reply = asking => reply,
            letter = flight.letters().next() => {
                if let Some(Letter::Withdrawn) = letter {
                    // What it may have done is our loss.
                    let nothing = Usage::default();
                    flight.engine_ended(EngineEnding::Cancelled, nothing, Counted::Exactly);
                    return None;
                }
                flight.engine_ended(EngineEnding::Cancelled, usage, Counted::Roughly);
                return Some(Ok(What::Letter(letter)));
            }
        };
        Some(match reply {
            Reply::Stream(streaming) => {
                flight.begun();
                Ok(What::Stream(streaming, upstream))
            }
            Reply::Whole { fields, body, said } => {
                self.whole_ended(flight, said, &body);
                Ok(What::Whole(fields, body))
            }
            Reply::Refused {
                status,
                fields,
                body,
                said,
            } => {
                let ending = EngineEnding::Refused(status.as_u16());
                flight.engine_ended(ending, Usage::default(), Counted::Exactly);
                Ok(What::Refused {
                    status,
                    fields,
                    body,
                    said,
                })
            }
            Reply::Failed(failed) => Err(failed),
        })
    }

    /// Says that a replica has failed it.
    fn failed(&self, flight: &mut InFlight, dispatch: &Dispatch, failed: Failed) -> Failed {
        self.log(dispatch, &failed);
        if failed.failure == Failure::Busy {
            flight.full(dispatch.replica, failed.retry_after);
        }
        let ending = EngineEnding::Failed(failed.failure);
        flight.engine_ended(ending, Usage::default(), Counted::Exactly);
        failed
    }

    fn log(&self, dispatch: &Dispatch, failed: &Failed) {
        let request = self.app.desk.books().request_name(dispatch.id);
        let replica = dispatch.replica.get();
        tracing::warn!(
            request,
            replica,
            why = failed.why,
            "a replica failed a request"
        );
    }

    fn opened(self, flight: InFlight, dispatch: Option<Dispatch>, what: What) -> Opened {
        Opened {
            flight,
            dispatch,
            what,
            asked: self.passage.relay.model,
            model: self.model,
            kind: self.passage.kind,
        }
    }

    /// Settles an answer in one piece.
    fn whole_ended(&self, flight: &mut InFlight, said: Whole, body: &[u8]) {
        let (usage, counted) = match said.usage {
            Some(usage) => (policy_usage(usage), Counted::Exactly),
            None => {
                self.model.heard_no_usage();
                let output = self.model.reckon_whole(said.text_bytes, body);
                let prompt = self.arrival.prompt;
                let usage = Usage {
                    prompt,
                    output,
                    ..Usage::default()
                };
                (usage, Counted::Roughly)
            }
        };
        if counted == Counted::Exactly {
            self.model
                .learn(self.passage.prompt, said.text_bytes, usage);
        }
        let finish = EngineEnding::Finished(finish_reason(said.finish));
        flight.engine_ended(finish, usage, counted);
    }

    /// The request as the replica gets it.
    fn ask(&self, dispatch: &Dispatch, upstream: &Upstream) -> Ask {
        let (config, passage) = (&self.model.config, &self.passage);
        let patches = self.patches();
        let body = &passage.body;
        let (cut, put) = patches.iter().fold((0, 0), |(cut, put), patch| {
            (cut + patch.at.len(), put + patch.with.len())
        });
        let length = body.len() - cut + put;
        let path = match passage.kind {
            RelayKind::Chat => "/v1/chat/completions",
            RelayKind::Text => "/v1/completions",
            RelayKind::Embeddings => "/v1/embeddings",
        };
        let room = Ask::room_for(length) + passage.headers.len();
        let mut head = self.model.head_with_room(upstream, ("POST", path), room);
        let request = self.app.desk.books().name(dispatch.id);
        // Err: a vector takes all that is written.
        let _ = write!(
            head,
            "content-type: application/json\r\ncontent-length: {length}\r\nx-request-id: \
             {request}\r\n"
        );
        head.extend_from_slice(&passage.headers);
        head.extend_from_slice(b"\r\n");
        let first_byte = Duration::from_micros(config.first_byte.get());
        Ask::new(head, self.tap(), first_byte).with_body(length, parts(body, patches))
    }

    /// What the replica gets otherwise than the client sent it.
    fn patches(&self) -> Vec<Patch> {
        let (config, relay) = (&self.model.config, &self.passage.relay);
        let (salt, most) = self.app.desk.with_tenant(self.arrival.tenant, |tenant| {
            let salt = config.cache_salt.then(|| self.model.salt(&tenant.name));
            (salt, tenant.limits_for(self.arrival.model).max_output)
        });
        let writes = self.passage.kind != RelayKind::Embeddings;
        relay.patches(&Edits {
            model: Some(&self.model.name),
            include_usage: relay.delivery.stream,
            max_output: most.filter(|_| writes).and_then(token_limit),
            cache_salt: salt.as_deref().filter(|_| writes),
            priority: config.priority.then(|| self.priority()).filter(|_| writes),
        })
    }

    /// The reader of the stream that is asked for, where one is.
    fn tap(&self) -> Option<Tap> {
        let delivery = &self.passage.relay.delivery;
        let wants = if delivery.include_usage {
            StreamUsage::Final
        } else {
            StreamUsage::Omitted
        };
        let keeps = self.model.keeps(self.passage.relay.answers);
        delivery.stream.then(|| {
            let tap = Tap::new(wants, self.model.config.max_event);
            match keeps {
                Some(most) => tap.keeping(most),
                None => tap,
            }
        })
    }

    /// Its place in the engine's own order, where less is sooner: the service its tenant has had,
    /// by weight.
    fn priority(&self) -> i64 {
        let served = self.app.desk.served_by_weight(self.arrival.tenant);
        i64::try_from(served.get()).unwrap_or(i64::MAX)
    }
}

fn token_limit(tokens: Tokens) -> Option<NonZeroU32> {
    u32::try_from(tokens.get()).ok().and_then(NonZeroU32::new)
}

/// A body with its patches, in parts.
fn parts(body: &Bytes, patches: Vec<Patch>) -> impl Iterator<Item = Part<'_>> {
    let mut at = 0;
    let mut each = patches.into_iter();
    let mut over = false;
    let patched = std::iter::from_fn(move || {
        let (upto, after, with) = match each.next() {
            Some(patch) => (patch.at.start, patch.at.end, Some(patch.with)),
            None if std::mem::replace(&mut over, true) => return None,
            None => (body.len(), body.len(), None),
        };
        let own = Part::Slice(body, std::mem::replace(&mut at, after)..upto);
        Some([Some(own), with.map(Part::New)])
    });
    patched.flatten().flatten()
}

pub(crate) fn policy_usage(usage: tollgate_wire::Usage) -> Usage {
    Usage {
        prompt: Tokens::new(usage.prompt_tokens),
        cached: Tokens::new(usage.cached_tokens),
        output: Tokens::new(usage.completion_tokens),
    }
}

pub(crate) fn finish_reason(finish: Option<Finish>) -> FinishReason {
    match finish {
        Some(Finish::Stop) | None => FinishReason::Stop,
        Some(Finish::Length) => FinishReason::Length,
        Some(Finish::ToolCalls) => FinishReason::ToolCalls,
        Some(Finish::Other) => FinishReason::Other,
    }
}

impl Opened {
    /// The answer to a client that asked for a stream and has been sent nothing.
    fn begin(self, watched: Watched, comments: Keepalive) -> Response {
        match self.what {
            What::Stream(streaming, upstream) => {
                let fields = streaming.fields.clone();
                let held = Held::new(self.flight, Arc::clone(&watched.line));
                let body = RelayBody::begun(held, (streaming, upstream), watched, comments);
                stream_response(body, &fields, self.dispatch.as_ref())
            }
            What::Whole(..) | What::Refused { .. } | What::Failed(_) | What::Letter(_) => {
                let line = Arc::clone(&watched.line);
                self.answer(&line)
            }
        }
    }

    /// The answer to a client that has been sent nothing, where it is no stream.
    fn answer(self, line: &Arc<Line>) -> Response {
        let held = Held::new(self.flight, Arc::clone(line));
        let mut response = match self.what {
            What::Whole(fields, body) => {
                let mut response = whole_response(fields, held.whole(body));
                dispatch_headers(self.dispatch.as_ref(), &mut response);
                return response;
            }
            What::Refused {
                status,
                fields,
                body,
                said,
            } => {
                let body = self.model.renamed(body, &self.asked);
                refused_response(status, &fields, body, &said, (&self.model, &self.asked))
            }
            What::Failed(failed) => {
                refuse::ended_until(Outcome::ReplicaFailed(failed.failure), failed.retry_after)
            }
            What::Letter(Some(Letter::Refused(refusal))) => refuse::refused(&refusal, self.kind),
            What::Letter(Some(Letter::Stopped(outcome))) => refuse::ended(outcome),
            What::Letter(
                Some(
                    Letter::Dispatched(_)
                    | Letter::Delta(_)
                    | Letter::Vector(..)
                    | Letter::Finished(..)
                    | Letter::Withdrawn
                    | Letter::Ended(..),
                )
                | None,
            )
            | What::Stream(..) => refuse::bug(),
        };
        dispatch_headers(self.dispatch.as_ref(), &mut response);
        response.map(|body| Body::new(held.around(body)))
    }

    /// What a stream that has begun with a comment is to end with, if it does not go on.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.what {
            What::Stream(..) => None,
            What::Refused { status, .. } => Some(Outcome::ReplicaRefused(status.as_u16())),
            What::Failed(failed) => Some(Outcome::ReplicaFailed(failed.failure)),
            What::Letter(Some(Letter::Refused(refusal))) => Some(refusal.outcome),
            What::Letter(Some(Letter::Stopped(outcome))) => Some(*outcome),
            What::Letter(_) | What::Whole(..) => Some(Outcome::Bug),
        }
    }
}

fn stream_response(body: RelayBody, fields: &Fields, dispatch: Option<&Dispatch>) -> Response {
    let mut response = Response::new(Body::new(body));
    let own = response.headers_mut();
    own.reserve(refuse::HEADERS);
    copy_response(&fields.others, own);
    let kind = fields.kind.clone();
    let default = HeaderValue::from_static("text/event-stream");
    own.insert(header::CONTENT_TYPE, kind.unwrap_or(default));
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    own.insert("x-accel-buffering", HeaderValue::from_static("no"));
    dispatch_headers(dispatch, &mut response);
    response
}

fn whole_response(fields: Fields, body: HeldBody) -> Response {
    let mut response = Response::new(Body::new(body));
    let own = response.headers_mut();
    own.reserve(refuse::HEADERS);
    copy_response(&fields.others, own);
    let default = HeaderValue::from_static("application/json");
    own.insert(header::CONTENT_TYPE, fields.kind.unwrap_or(default));
    response
}

/// An engine's refusal: as it came where clients can read that, in its words otherwise.
fn refused_response(
    status: StatusCode,
    fields: &Fields,
    body: Bytes,
    said: &EngineError,
    (model, asked): (&RemoteModel, &str),
) -> Response {
    let message = model.renamed(Bytes::from(said.message.clone()), asked);
    let said = EngineError {
        message: String::from_utf8_lossy(&message).into_owned(),
        ..said.clone()
    };
    let retry: Option<Micros> = retry_after(fields);
    let mut response = refuse::replica_refused(status, &said, retry);
    if said.shape == ErrorShape::OpenAi && !body.is_empty() {
        *response.body_mut() = Body::from(body);
    }
    copy_response(&fields.others, response.headers_mut());
    response
}
