//! Errors as HTTP: one function per way to get one, all reading the same table.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body::Body as _;
use tollgate_policy::gateway::{Quota, Refusal};
use tollgate_policy::outcome::{Eviction, Failure, Fence, Outcome, Rejection, Row};
use tollgate_policy::units::{Micros, Tokens};
use tollgate_wire::{EngineError, ErrorBody, RelayKind, ResetIn};

use crate::answer::values::Values;
use crate::app::Turned;

/// The answer to a request that was turned away.
pub(crate) fn turned(turned: &Turned, quota: Quota, retry_after: Option<Micros>) -> Response {
    let row = Outcome::Rejected(turned.rejection).row();
    let body = ErrorBody {
        message: &turned.why.message,
        kind: row.kind,
        param: turned.why.param.as_deref(),
        code: turned.why.code.or(row.code),
    };
    let mut response = error(row, &body, retry_after);
    quota_headers(quota, response.headers_mut());
    response
}

/// The answer to a request that the policy refused or evicted.
pub(crate) fn refused(refusal: &Refusal, kind: RelayKind) -> Response {
    let row = refusal.outcome.row();
    let message =
        if let Outcome::Rejected(Rejection::ContextExceeded { asked, limit }) = refusal.outcome {
            too_long(asked, limit, kind)
        } else {
            message(refusal.outcome)
        };
    let body = ErrorBody {
        message: &message,
        kind: row.kind,
        param: param(refusal.outcome, kind),
        code: row.code,
    };
    let mut response = error(row, &body, refusal.retry_after);
    quota_headers(refusal.quota, response.headers_mut());
    if is_in_vain(refusal.outcome) {
        let headers = response.headers_mut();
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

/// Whether no other try of the same request can go better. OpenAI's clients try again after a 429
/// unless they are told this.
fn is_in_vain(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Rejected(Rejection::PromptExceedsRate { .. } | Rejection::InsufficientQuota)
    )
}

/// The answer to a request that ended before its first byte.
pub(crate) fn ended(outcome: Outcome) -> Response {
    ended_until(outcome, None)
}

/// The same, where it is known when to come back.
pub(crate) fn ended_until(outcome: Outcome, retry_after: Option<Micros>) -> Response {
    let row = outcome.row();
    let message = message(outcome);
    let retry = row
        .retry_after
        .then(|| retry_after.unwrap_or(Micros::from_secs(1)));
    let body = ErrorBody {
        message: &message,
        kind: row.kind,
        param: None,
        code: row.code,
    };
    error(row, &body, retry)
}

/// The answer to a request that an engine refused, in that engine's words.
pub(crate) fn replica_refused(
    status: StatusCode,
    said: &EngineError,
    retry_after: Option<Micros>,
) -> Response {
    let row = Outcome::ReplicaRefused(status.as_u16()).row();
    let own = message(Outcome::ReplicaRefused(status.as_u16()));
    let body = ErrorBody {
        message: if said.message.is_empty() {
            &own
        } else {
            &said.message
        },
        kind: said.kind.as_deref().unwrap_or(row.kind),
        param: said.param.as_deref(),
        code: said.code.as_deref(),
    };
    let busy = (status == StatusCode::TOO_MANY_REQUESTS).then_some(Micros::from_secs(1));
    error(row, &body, retry_after.or(busy))
}

/// The answer to a request whose handler panicked.
pub(crate) fn bug() -> Response {
    ended(Outcome::Bug)
}

/// An `error` event for a stream that can't go on.
pub(crate) fn event(outcome: Outcome, out: &mut Vec<u8>) {
    let row = outcome.row();
    let message = message(outcome);
    ErrorBody {
        message: &message,
        kind: row.kind,
        param: None,
        code: row.code,
    }
    .write_event(out);
}

/// The names of a level's headers: limit, remaining, reset.
type LevelNames = [HeaderName; 3];

const REQUESTS: LevelNames = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];

const TOKENS: LevelNames = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// What a tenant has left, as OpenAI's headers say it.
pub(crate) fn quota_headers(quota: Quota, headers: &mut HeaderMap) {
    write_quota(quota, &mut Values::new(), headers);
}

/// The same, beside others.
pub(crate) fn write_quota(quota: Quota, values: &mut Values, headers: &mut HeaderMap) {
    let levels = [(REQUESTS, quota.requests), (TOKENS, quota.tokens)];
    for ([limit, remaining, reset], level) in levels {
        let Some(level) = level else { continue };
        headers.insert(limit, values.of(level.limit));
        headers.insert(remaining, values.of(level.remaining));
        headers.insert(reset, values.of(ResetIn(level.reset.get())));
    }
}

/// Headers that an answer has, more or less: room for them is made at once.
pub(crate) const HEADERS: usize = 20;

fn error(row: Row, body: &ErrorBody<'_>, retry_after: Option<Micros>) -> Response {
    let mut bytes = Vec::with_capacity(256);
    body.write(&mut bytes);
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() =
        StatusCode::from_u16(row.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.reserve(HEADERS);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert("x-tollgate-reason", HeaderValue::from_static(row.reason));
    if let Some(wait) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.secs_up()));
        headers.insert("retry-after-ms", HeaderValue::from(wait.millis_up()));
    }
    response
}

/// The parameter at fault, where it is one.
fn param(outcome: Outcome, kind: RelayKind) -> Option<&'static str> {
    let too_long = matches!(
        outcome,
        Outcome::Rejected(Rejection::ContextExceeded { .. })
    );
    too_long.then_some(kind.prompt())
}

/// What a person reads: what is wrong, and what to do.
fn message(outcome: Outcome) -> String {
    let text = match outcome {
        Outcome::Rejected(rejection) => return rejected(rejection),
        Outcome::Evicted(Eviction::QueueTime) => {
            "no replica had room in time; try again when Retry-After says"
        }
        Outcome::Evicted(Eviction::Slo) => {
            "it waited too long to be answered as fast as promised; try again when Retry-After says"
        }
        Outcome::Evicted(Eviction::Draining) => "this gateway is going away; try again elsewhere",
        Outcome::ReplicaFailed(Failure::Busy) => {
            "the engine of this model has no room; try again when Retry-After says"
        }
        Outcome::ReplicaFailed(Failure::Silent) => {
            "the engine of this model sent nothing for too long; try again"
        }
        Outcome::ReplicaFailed(
            Failure::Sequence
            | Failure::Erred
            | Failure::Engine
            | Failure::Unreachable
            | Failure::BadAnswer
            | Failure::BrokeOff,
        ) => "the model failed while it answered; try again",
        Outcome::ReplicaRefused(_) => "the engine of this model does not take this request",
        Outcome::Fenced(Fence::MaxStream) => {
            "the answer took longer than max_stream allows and was stopped"
        }
        Outcome::Fenced(Fence::Drain) => {
            "this gateway is going away and could not wait for the answer; try again elsewhere"
        }
        Outcome::Bug => "a fault of the gateway ended this request; its log says more",
        Outcome::Completed(_) | Outcome::ClientGone(_) | Outcome::Repeated => "the request is over",
    };
    text.to_owned()
}

/// That a prompt leaves no room, with what it is called in such a request. By the first words
/// agents know an overflow.
fn too_long(asked: Tokens, limit: Tokens, kind: RelayKind) -> String {
    let prompt = kind.prompt();
    let more = match kind {
        RelayKind::Chat | RelayKind::Text => "one token of answer",
        RelayKind::Embeddings => "the one that ends it",
    };
    format!(
        "This model's maximum context length is {limit} tokens. However, your {prompt} resulted in \
         {asked} tokens with {more}. Please reduce the length of the {prompt}."
    )
}

pub(crate) fn rejected(rejection: Rejection) -> String {
    let text = match rejection {
        Rejection::ContextExceeded { asked, limit } => {
            return too_long(asked, limit, RelayKind::Text);
        }
        Rejection::RequestRate => {
            "too many requests for your requests-per-minute limit; come back when Retry-After says"
        }
        Rejection::TokenRate => {
            "too many tokens for your tokens-per-minute limit; come back when Retry-After says"
        }
        Rejection::PromptExceedsRate { prompt, limit } => {
            return format!(
                "the prompt has {prompt} tokens, and your limit lets in {limit} at once; shorten it"
            );
        }
        Rejection::KvInFlight => {
            "your requests in flight hold as much memory as your limit allows; wait for one to end"
        }
        Rejection::InsufficientQuota => {
            "what is left of your budget for this day or month does not pay for this request; ask \
             your operator"
        }
        Rejection::BudgetInFlight => {
            "your requests in flight hold what is left of your budget; wait for one to end"
        }
        Rejection::IdempotencyReuse => {
            "this Idempotency-Key was sent with another body before; use a new key for a new \
             request"
        }
        Rejection::IdempotencyTooLong => {
            "the answer to this Idempotency-Key was too long to be kept; it was made once, and is \
             not made again"
        }
        Rejection::KeyScope => "this key is not good for this; use another of yours",
        Rejection::RetryBudget => "too many are retries just now; come back when Retry-After says",
        Rejection::Concurrency => {
            "as many of your requests are in flight as your limit allows; wait for one to end"
        }
        Rejection::QueueFull => "the queue of this model is full; try again when Retry-After says",
        Rejection::Capacity => {
            "what waits already takes longer than you may wait; try again when Retry-After says"
        }
        Rejection::Slo => "it would be later than promised; try again when Retry-After says",
        Rejection::Draining => "this gateway is going away; try again elsewhere",
        Rejection::NoBooks => {
            "what is served can't be written down just now, so nothing new is; try again when \
             Retry-After says"
        }
        Rejection::NoDirectory => {
            "who may call can't be looked up just now; try again when Retry-After says"
        }
        Rejection::NoReplica => {
            "no replica of this model is up; one is being started, try again when Retry-After says"
        }
        Rejection::NoRoute => "no such path; the API is under /v1",
        Rejection::WrongMethod => "this path does not take this method",
        Rejection::BadKey => "no valid API key was given",
        Rejection::ModelNotFound => "no such model",
        Rejection::BadRequest => "the request is not what this path takes",
        Rejection::WrongMediaType => "the body must be JSON",
        Rejection::BodyTooLarge => "the body is too large",
        Rejection::BodyTimeout => "the body was not sent in time",
        Rejection::NoBodyRoom => "no room for a large body yet; try again when Retry-After says",
    };
    text.to_owned()
}

/// What a client is sending while it is refused. One that asked whether to send at all
/// (`Expect: 100-continue`) sends nothing once it has its answer, so there is nothing to wait for.
pub(crate) fn on_its_way(headers: &HeaderMap, body: Body) -> Option<Body> {
    (!headers.contains_key(header::EXPECT)).then_some(body)
}

/// Bytes of an unread body that come with its head or soon after it, as a rule; the connection of a
/// larger one is not used again.
const SMALL: u64 = 16 * 1024;

/// Ends the connection behind a refusal of which more is unread than is read for politeness.
pub(crate) fn close_if_large(unread: &Body, headers: &mut HeaderMap) {
    if unread.size_hint().exact().is_none_or(|left| left > SMALL) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_is_told_in_the_words_of_its_path_and_known_by_the_usual_ones() {
        let (asked, limit) = (Tokens::new(401), Tokens::new(400));
        for (kind, name) in [
            (RelayKind::Chat, "messages"),
            (RelayKind::Text, "prompt"),
            (RelayKind::Embeddings, "input"),
        ] {
            let told = too_long(asked, limit, kind);
            let known = "This model's maximum context length is 400 tokens.";
            assert!(told.starts_with(known), "{told}");
            assert!(
                told.contains(&format!("your {name} resulted in 401 tokens")),
                "{told}"
            );
            assert!(
                told.ends_with(&format!("Please reduce the length of the {name}.")),
                "{told}"
            );
        }
    }
}
