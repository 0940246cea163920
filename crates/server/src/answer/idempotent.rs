//! Requests with an `Idempotency-Key`: made once, answered as often as they are asked.
//!
//! Such a request runs to its end whether or not its client stays, since the client has said that
//! it will ask again. The answer is recorded; a repeat reads the recording, from the start, also
//! while it is made. Whole answers are kept for a day, in the store too; any other end frees the
//! key, and so does a crash, since what runs is known here only.

mod recording;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use hyper::header::HeaderName;
use sha2::{Digest as _, Sha256};
use tollgate_policy::ids::TenantId;
use tollgate_policy::outcome::{Outcome, Rejection};
use tollgate_policy::units::{Micros, Time};

use self::recording::{Kept, Recording};
use crate::answer;
use crate::answer::refuse;
use crate::app::{App, Turned, Visit};
use crate::door::line::Line;
use crate::guarded::guarded;
use crate::prepare::Order;
use crate::store::clerk::REPLAY_US;
use crate::store::{Digest, Store};
use tollgate_wire::RelayKind;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How a repeat came by its answer: `replayed` or `joined`.
const HOW: HeaderName = HeaderName::from_static("x-tollgate-idempotency");

/// The longest key, in bytes.
const KEY_MAX: usize = 256;

/// Bytes of finished answers that stay in memory; the store has them longer.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Finished answers that stay in memory.
const HELD_MAX: usize = 10_000;

/// The longest answer that is kept, in bytes. A repeat of a longer one is told so, and is not made
/// again.
const ANSWER_MAX: usize = 8 << 20;

/// How long a request waits for the store to say whether it has been answered before. A store that
/// is away makes it a first one.
const LOOK_UP_MAX: Duration = Duration::from_millis(500);

/// How a request says that it may be a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// The digest of its key.
    name: Digest,
    /// The digest of what it asks for.
    body_hash: Digest,
}

impl Repeat {
    /// What these headers and this body say; nothing without a key.
    ///
    /// # Errors
    /// A key that is none.
    pub(crate) fn read(
        headers: &HeaderMap,
        endpoint: RelayKind,
        body: &[u8],
    ) -> Result<Option<Self>, Turned> {
        let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
            return Ok(None);
        };
        let key = key.as_bytes();
        if key.is_empty() || key.len() > KEY_MAX {
            let message = "an Idempotency-Key has 1 to 256 bytes; send a UUID";
            return Err(Turned::new(Rejection::BadRequest, message));
        }
        let path: &[u8] = match endpoint {
            RelayKind::Chat => b"chat\n",
            RelayKind::Text => b"text\n",
            RelayKind::Embeddings => b"embeddings\n",
        };
        Ok(Some(Self {
            name: Sha256::digest(key).into(),
            body_hash: Sha256::new()
                .chain_update(path)
                .chain_update(body)
                .finalize()
                .into(),
        }))
    }
}

/// Answers that are made, and that were made lately.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Table>);

type Name = (TenantId, Digest);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Name, Entry>,
    /// Finished ones by age. invariant: each is in `entries`, unless that has another by now.
    finished: VecDeque<(Name, Arc<Recording>, Time)>,
    /// Of the finished ones.
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    body_hash: Digest,
    recording: Arc<Recording>,
    /// Whether it was too long to be kept.
    too_long: bool,
}

/// What there is for a request.
enum Found {
    /// Nothing: it is the first, and its answer goes here.
    Nothing(Arc<Recording>),
    /// An answer.
    Answer(Arc<Recording>),
    /// An answer to another request with the same key.
    Other,
    /// An answer that was too long to be kept.
    TooLong,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, tenant: TenantId, repeat: Repeat, now: Time) -> Found {
        let mut table = self.lock();
        table.forget(now);
        let name = (tenant, repeat.name);
        match table.entries.get(&name) {
            Some(entry) if entry.body_hash != repeat.body_hash => Found::Other,
            Some(entry) if entry.too_long => Found::TooLong,
            Some(entry) => Found::Answer(Arc::clone(&entry.recording)),
            None => {
                let recording = Recording::new();
                let entry = Entry {
                    body_hash: repeat.body_hash,
                    recording: Arc::clone(&recording),
                    too_long: false,
                };
                table.entries.insert(name, entry);
                Found::Nothing(recording)
            }
        }
    }

    /// An answer is over: a good one stays for a while, any other frees the key.
    fn finish(&self, name: Name, recording: &Arc<Recording>, now: Time) {
        let mut table = self.lock();
        let mine = table
            .entries
            .get(&name)
            .is_some_and(|entry| Arc::ptr_eq(&entry.recording, recording));
        if !mine {
            return;
        }
        if !recording.is_good() {
            table.entries.remove(&name);
            return;
        }
        let kept = if recording.bytes() > ANSWER_MAX {
            Recording::new()
        } else {
            Arc::clone(recording)
        };
        if let Some(entry) = table.entries.get_mut(&name) {
            entry.too_long = recording.bytes() > ANSWER_MAX;
            entry.recording = Arc::clone(&kept);
        }
        table.bytes += kept.bytes();
        table.finished.push_back((name, kept, now));
        table.forget(now);
    }
}

impl Table {
    /// Forgets answers that are a day old, and the oldest past a bound.
    fn forget(&mut self, now: Time) {
        while let Some((name, recording, at)) = self.finished.front() {
            let old = now.since(*at) >= Micros::new(REPLAY_US);
            let fits = self.bytes <= HELD_BYTES_MAX && self.finished.len() <= HELD_MAX;
            if fits && !old {
                return;
            }
            let entry = self.entries.get(name);
            if entry.is_some_and(|entry| Arc::ptr_eq(&entry.recording, recording)) {
                self.entries.remove(name);
            }
            self.bytes -= recording.bytes();
            self.finished.pop_front();
        }
    }
}

/// Answers a request that may be a repeat.
pub(crate) async fn answer(
    app: &Arc<App>,
    visit: &Visit,
    order: Order,
    repeat: Repeat,
) -> Response {
    let tenant = order.arrival.tenant;
    match app.answers.find(tenant, repeat, app.desk.clock().now()) {
        Found::Nothing(recording) => {
            // In a task of its own from here on: a key that is taken must lead to an answer.
            let making = Making {
                app: Arc::clone(app),
                visit: visit.clone(),
                repeat,
                recording: Arc::clone(&recording),
            };
            app.tasks.spawn_named("answer", making.run(order));
            recording.response().await
        }
        Found::Answer(recording) => again(app, visit, tenant, recording).await,
        Found::Other => turn_away(app, visit, tenant, Rejection::IdempotencyReuse),
        Found::TooLong => turn_away(app, visit, tenant, Rejection::IdempotencyTooLong),
    }
}

/// A request on its way to its recording.
struct Making {
    app: Arc<App>,
    visit: Visit,
    repeat: Repeat,
    recording: Arc<Recording>,
}

impl Making {
    async fn run(self, order: Order) {
        let (app, tenant) = (&self.app, order.arrival.tenant);
        match look_up(app, tenant, self.repeat, &self.recording).await {
            Kind::First => {
                self.make(order).await;
                self.keep(tenant);
            }
            Kind::Again => app.end_early(&self.visit, Some(tenant), Outcome::Repeated),
            Kind::Other => {
                let away = turn_away(app, &self.visit, tenant, Rejection::IdempotencyReuse);
                self.recording.record(away).await;
            }
        }
        let name = (tenant, self.repeat.name);
        app.answers
            .finish(name, &self.recording, app.desk.clock().now());
    }

    /// Runs the request to its end, whoever stays.
    async fn make(&self, order: Order) {
        let visit = Visit {
            line: Line::detached(&self.app.desk),
            ..self.visit.clone()
        };
        let answered = guarded(answer::answer(&self.app, &visit, order)).await;
        let response = answered.unwrap_or_else(|_| refuse::bug());
        self.recording.record(response).await;
    }

    fn keep(&self, tenant: TenantId) {
        let desk = &self.app.desk;
        let clock = desk.clock();
        let kept = self.recording.kept(Kept {
            tenant: &desk.with_tenant(tenant, |tenant| tenant.name.clone()),
            name: self.repeat.name,
            body_hash: self.repeat.body_hash,
            request: &desk.books().request_name(self.visit.id),
            finished_us: clock.unix_micros(clock.now()),
        });
        if let Some(replay) = kept.filter(|replay| replay.body.len() <= ANSWER_MAX) {
            self.app.clerk.keep(replay);
        }
    }
}

/// What the store knows of a request that is not known here.
enum Kind {
    First,
    Again,
    Other,
}

async fn look_up(app: &App, tenant: TenantId, repeat: Repeat, recording: &Arc<Recording>) -> Kind {
    let name = app.desk.with_tenant(tenant, |tenant| tenant.name.clone());
    let clock = app.desk.clock();
    let now = clock.now();
    let since = clock.unix_micros(now).saturating_sub(REPLAY_US);
    let look = move |store: &mut Store| store.replay(&name, &repeat.name, since);
    let asked = app.replays.ask_unless_busy(look);
    // Unknown, or nobody can say in time: both make it a first one.
    let Ok(Some(Ok(Some(replay)))) = tokio::time::timeout(LOOK_UP_MAX, asked).await else {
        return Kind::First;
    };
    if replay.body_hash != repeat.body_hash {
        return Kind::Other;
    }
    if recording.restore(&replay) {
        Kind::Again
    } else {
        Kind::First
    }
}

/// Answers a repeat, which is no request for the policy.
async fn again(app: &App, visit: &Visit, tenant: TenantId, recording: Arc<Recording>) -> Response {
    let how = if recording.is_over() {
        "replayed"
    } else {
        "joined"
    };
    let mut response = recording.response().await;
    let name = HeaderName::from_static("x-tollgate-idempotency");
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(how));
    app.end_early(visit, Some(tenant), Outcome::Repeated);
    response
}

fn turn_away(app: &App, visit: &Visit, tenant: TenantId, rejection: Rejection) -> Response {
    app.turn_away(
        visit,
        &Turned::new(rejection, refuse::rejected(rejection)).of(tenant),
        None,
    )
}
