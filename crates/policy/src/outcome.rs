//! How a request can end, and the one table that says what each end means to everybody.
//!
//! Client, ledger, metrics and log all read the same row, so they cannot disagree. Adding an
//! outcome without a row does not compile.

use crate::units::Tokens;

/// Why generation stopped of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string matched.
    Stop,
    /// The output limit or the context was reached.
    Length,
    /// The model called tools.
    ToolCalls,
    /// Whatever else an engine says, such as `content_filter`.
    Other,
}

impl FinishReason {
    /// As OpenAI spells it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::Other => "other",
        }
    }
}

/// How the engine's part in a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEnding {
    /// It produced all there was to produce.
    Finished(FinishReason),
    /// It was told to stop.
    Cancelled,
    /// It did not take the request, with this HTTP status of 4xx: its caller can mend that.
    Refused(u16),
    /// It could not go on.
    Failed(Failure),
}

/// What failed in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// This sequence alone; the others went on.
    Sequence,
    /// The engine as a whole, and with it every request it had.
    Engine,
    /// There was no connection to be had to it.
    Unreachable,
    /// It sent nothing for longer than it may.
    Silent,
    /// It has no room: no fault of its own.
    Busy,
    /// It answered with an error of its own: a status of 5xx, or an error event.
    Erred,
    /// What it sent is no answer.
    BadAnswer,
    /// It broke off in the middle of an answer.
    BrokeOff,
}

impl Failure {
    /// Whether another replica may do better.
    pub const fn may_go_elsewhere(self) -> bool {
        match self {
            Self::Sequence => false,
            Self::Engine
            | Self::Unreachable
            | Self::Silent
            | Self::Busy
            | Self::Erred
            | Self::BadAnswer
            | Self::BrokeOff => true,
        }
    }
}

/// The one way a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of the answer reached the client.
    Completed(FinishReason),
    /// The client left.
    ClientGone(Phase),
    /// Refused before it was queued.
    Rejected(Rejection),
    /// Dropped while it was queued.
    Evicted(Eviction),
    /// Its replica failed it.
    ReplicaFailed(Failure),
    /// Its replica refused it, with this HTTP status of 4xx.
    ReplicaRefused(u16),
    /// Stopped by a bound on time.
    Fenced(Fence),
    /// Answered by what was made for another with the same idempotency key.
    Repeated,
    /// A fault of ours: the handler of the request panicked.
    Bug,
}

/// Where a client left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// While it waited for a replica.
    Queued,
    /// After dispatch, before the first token.
    BeforeFirstToken,
    /// After the first token.
    MidStream,
}

/// Why a request was refused before it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The path does not exist.
    NoRoute,
    /// The path exists, the method does not.
    WrongMethod,
    /// No key, or one that is not known. One answer for every reason, so that it tells a guesser
    /// nothing.
    BadKey,
    /// No such model, or none that this tenant may name: the same answer for both.
    ModelNotFound,
    /// The body is not what the endpoint takes.
    BadRequest,
    /// The content type is not JSON.
    WrongMediaType,
    /// Prompt and output together exceed what one request may use.
    ContextExceeded {
        /// What it asked for: its prompt, and one token of output at least.
        asked: Tokens,
        /// What it may use.
        limit: Tokens,
    },
    /// The body is larger than the bound.
    BodyTooLarge,
    /// The client did not send its body in time.
    BodyTimeout,
    /// The bodies of other requests take all the memory that there is for them.
    NoBodyRoom,
    /// More requests a minute than the tenant's limit.
    RequestRate,
    /// More tokens a minute than the tenant's limit.
    TokenRate,
    /// A prompt that is longer than all the tokens the tenant may use at once: no wait would help.
    PromptExceedsRate {
        /// How long it is.
        prompt: Tokens,
        /// How many there may be.
        limit: Tokens,
    },
    /// As much KV over time in flight as the tenant may have.
    KvInFlight,
    /// All that the tenant, or its key, may spend in this day or month is spent: no wait that a
    /// client would take helps.
    InsufficientQuota,
    /// What is left of the budget is held by requests in flight.
    BudgetInFlight,
    /// The idempotency key came with another body before.
    IdempotencyReuse,
    /// The answer to the idempotency key was too long to be kept.
    IdempotencyTooLong,
    /// The key is not good for this.
    KeyScope,
    /// As many requests at once as the tenant may have.
    Concurrency,
    /// Too many of the last minute's requests were retries, and this is one more.
    RetryBudget,
    /// The queue of the model is full.
    QueueFull,
    /// The queue is hopeless already: what is ahead takes longer than the wait allowed.
    Capacity,
    /// An upper bound on its latency does not fit what its class is promised.
    Slo,
    /// The gateway is going away.
    Draining,
    /// What is served can't be written down.
    NoBooks,
    /// The key is not known here, and the store that may know it has not been read yet.
    NoDirectory,
    /// No replica of the model is up.
    NoReplica,
}

/// Why a request was dropped from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It waited as long as it may.
    QueueTime,
    /// Its latency can't be what its class is promised any more.
    Slo,
    /// The drain's bound came first.
    Draining,
}

/// Which bound on time stopped a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The longest a stream of this model may take.
    MaxStream,
    /// The drain's bound.
    Drain,
}

/// What the ledger does with a request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerEffect {
    /// Nothing: the request was never admitted.
    None,
    /// Writes what was used, which may be nothing.
    Charge,
}

/// How loudly an end is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every day's business.
    Info,
    /// Somebody may want to look.
    Warn,
    /// Somebody must look.
    Error,
}

/// What one outcome means to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// HTTP status where the answer has not begun; an `error` event of the same kind where it has.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.code`.
    pub code: Option<&'static str>,
    /// The reason, the same in log, metric, header and console.
    pub reason: &'static str,
    /// What the ledger does.
    pub ledger: LedgerEffect,
    /// How loudly it is logged.
    pub level: Level,
    /// Whether the answer tells the client when to come back.
    pub retry_after: bool,
}

impl Outcome {
    /// The row of the table.
    pub const fn row(self) -> Row {
        match self {
            Self::Completed(_) => Row {
                level: Level::Info,
                ..ended(200, "completed")
            },
            // 499 is nginx's number for it; no client sees it.
            Self::ClientGone(phase) => Row {
                level: Level::Info,
                ..ended(499, phase.reason())
            },
            Self::Rejected(rejection) => rejection.row(),
            Self::Evicted(eviction) => eviction.row(),
            Self::ReplicaFailed(Failure::Sequence | Failure::Erred) => {
                ended(502, "replica_failed_request")
            }
            Self::ReplicaFailed(Failure::Engine) => ended(502, "replica_failed"),
            Self::ReplicaFailed(Failure::Unreachable) => ended(502, "replica_unreachable"),
            Self::ReplicaFailed(Failure::Silent) => ended(504, "replica_silent"),
            Self::ReplicaFailed(Failure::Busy) => Row {
                ledger: LedgerEffect::Charge,
                ..unavailable("replica_busy")
            },
            Self::ReplicaFailed(Failure::BadAnswer) => ended(502, "replica_bad_answer"),
            Self::ReplicaFailed(Failure::BrokeOff) => ended(502, "replica_broke_off"),
            Self::ReplicaRefused(status) => Row {
                kind: "invalid_request_error",
                level: Level::Info,
                ..ended(status, "replica_refused")
            },
            Self::Fenced(Fence::MaxStream) => Row {
                level: Level::Warn,
                ..ended(504, "max_stream")
            },
            Self::Fenced(Fence::Drain) => Row {
                level: Level::Warn,
                retry_after: true,
                ..ended(503, "drain_fence")
            },
            Self::Repeated => Row {
                ledger: LedgerEffect::None,
                level: Level::Info,
                ..ended(200, "repeated")
            },
            Self::Bug => ended(500, "bug"),
        }
    }
}

impl Phase {
    const fn reason(self) -> &'static str {
        match self {
            Self::Queued => "client_gone_queued",
            Self::BeforeFirstToken => "client_gone_before_first_token",
            Self::MidStream => "client_gone_mid_stream",
        }
    }
}

impl Rejection {
    /// The row of the table.
    pub const fn row(self) -> Row {
        match self {
            Self::NoRoute => refused(404, "invalid_request_error", Some("not_found"), "no_route"),
            Self::WrongMethod => refused(
                405,
                "invalid_request_error",
                Some("method_not_allowed"),
                "wrong_method",
            ),
            Self::BadKey => refused(
                401,
                "invalid_request_error",
                Some("invalid_api_key"),
                "bad_key",
            ),
            Self::ModelNotFound => refused(
                404,
                "invalid_request_error",
                Some("model_not_found"),
                "model_not_found",
            ),
            Self::BadRequest => refused(400, "invalid_request_error", None, "bad_request"),
            Self::WrongMediaType => refused(
                415,
                "invalid_request_error",
                Some("unsupported_media_type"),
                "media_type",
            ),
            Self::ContextExceeded { .. } => refused(
                400,
                "invalid_request_error",
                Some("context_length_exceeded"),
                "context_length_exceeded",
            ),
            Self::BodyTooLarge => refused(
                413,
                "invalid_request_error",
                Some("body_too_large"),
                "body_too_large",
            ),
            Self::BodyTimeout => invalid(408, "body_timeout", "body_timeout"),
            Self::NoBodyRoom => unavailable("body_room"),
            Self::RequestRate => over_quota("requests"),
            Self::TokenRate | Self::PromptExceedsRate { .. } => over_quota("tokens"),
            Self::KvInFlight => over_quota("kv"),
            Self::BudgetInFlight => over_quota("budget_in_flight"),
            Self::InsufficientQuota => refused(
                429,
                "insufficient_quota",
                Some("insufficient_quota"),
                "budget",
            ),
            Self::IdempotencyReuse => invalid(422, "idempotency_key_reused", "idempotency_reuse"),
            Self::IdempotencyTooLong => {
                invalid(409, "idempotency_answer_too_long", "idempotency_too_long")
            }
            Self::KeyScope => invalid(403, "insufficient_permissions", "key_scope"),
            Self::Concurrency => over_quota("concurrency"),
            Self::RetryBudget => unavailable("retry_budget"),
            Self::QueueFull => unavailable("queue_full"),
            Self::Capacity => unavailable("capacity"),
            Self::Slo => unavailable("slo"),
            Self::Draining => unavailable("draining"),
            Self::NoBooks => unavailable("ledger"),
            Self::NoDirectory => unavailable("store"),
            Self::NoReplica => unavailable("no_replica"),
        }
    }
}

impl Eviction {
    const fn row(self) -> Row {
        let row = match self {
            Self::QueueTime => unavailable("queue_time"),
            Self::Slo => unavailable("slo_evicted"),
            Self::Draining => unavailable("draining"),
        };
        // It was admitted, so the ledger has a row for it: of nothing.
        Row {
            ledger: LedgerEffect::Charge,
            ..row
        }
    }
}

/// A request that was admitted: an error of the server's, and loud, unless the caller says
/// otherwise.
const fn ended(status: u16, reason: &'static str) -> Row {
    Row {
        status,
        kind: "server_error",
        code: Some(reason),
        reason,
        ledger: LedgerEffect::Charge,
        level: Level::Error,
        retry_after: false,
    }
}

/// A request that the caller can mend.
const fn refused(
    status: u16,
    kind: &'static str,
    code: Option<&'static str>,
    reason: &'static str,
) -> Row {
    Row {
        status,
        kind,
        code,
        reason,
        ledger: LedgerEffect::None,
        level: Level::Info,
        retry_after: false,
    }
}

/// A request that the caller can mend, of the kind that most are.
const fn invalid(status: u16, code: &'static str, reason: &'static str) -> Row {
    refused(status, "invalid_request_error", Some(code), reason)
}

/// 429: the tenant is over its contract, and can do something about it.
const fn over_quota(reason: &'static str) -> Row {
    let row = refused(429, reason, Some("rate_limit_exceeded"), reason);
    Row {
        retry_after: true,
        ..row
    }
}

/// 503: the machine is full, and the tenant can do nothing about it.
const fn unavailable(reason: &'static str) -> Row {
    let row = refused(503, "server_error", Some(reason), reason);
    Row {
        retry_after: true,
        level: Level::Warn,
        ..row
    }
}
