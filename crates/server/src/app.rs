//! What every handler shares: the desk, who may call, and which models there are.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http_body::Body as _;
use hyper::body::Incoming;
use tollgate_engine::Model;
use tollgate_policy::gateway::Event;
use tollgate_policy::ids::{ModelId, RequestId, TenantId};
use tollgate_policy::outcome::{Outcome, Rejection};
use tollgate_policy::tenant::Tenant;
use tollgate_policy::units::{Micros, Time, Tokens};
use tollgate_wire::{BadRequest, RelayKind};

use crate::answer;
use crate::answer::idempotent::{self, Answers};
use crate::answer::refuse;
use crate::config::{KeyHash, MetricsReaders};
use crate::desk::Desk;
use crate::door::body_room::BodyRoom;
use crate::door::line::Line;
use crate::guarded::guarded;
use crate::members::identity::{Caller, Identity};
use crate::members::membership::Membership;
use crate::prepare;
use crate::prepare::repeats::Repeats;
use crate::replicas::roster::Roster;
use crate::spawn::Tasks;
use crate::store::clerk::{Clerk, SharedStore};
use crate::store::counting::Counting;
use crate::upstream::RemoteModel;

/// The shared state of all handlers.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) desk: Arc<Desk>,
    /// Replaced as a whole when the configuration changes.
    pub(crate) callers: RwLock<Arc<Callers>>,
    pub(crate) membership: Membership,
    pub(crate) repeats: Repeats,
    pub(crate) roster: Arc<Roster>,
    /// For whoever asks about usage, tenants and keys; those that count have a connection of their
    /// own.
    pub(crate) store: SharedStore,
    pub(crate) clerk: Clerk,
    pub(crate) counting: Counting,
    /// Answers to requests with an idempotency key, and where older ones are looked up.
    pub(crate) answers: Answers,
    pub(crate) replays: SharedStore,
    pub(crate) tasks: Tasks,
    /// Who may use the operator's listener.
    pub(crate) admins: BTreeMap<KeyHash, String>,
    pub(crate) models: Vec<ServedModel>,
    /// Whether any of them is made in another process.
    pub(crate) relays: bool,
    /// Names and aliases.
    pub(crate) by_name: HashMap<String, ModelId>,
    pub(crate) bounds: Bounds,
    /// By which rule the next request is chosen.
    pub(crate) policy: &'static str,
}

/// Who may call for what.
#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) identity: Identity,
    /// Which peers may read `/metrics`, which shows every tenant.
    pub(crate) metrics_readers: MetricsReaders,
}

/// Bounds on reading a request.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Bytes of a body.
    pub(crate) body_max: usize,
    /// What all of them may take.
    pub(crate) room: BodyRoom,
    /// Bytes of a body that is parsed, and its prompt counted, by the thread that read it: larger
    /// ones would keep the other requests of that thread waiting.
    pub(crate) inline_max: usize,
    /// Time for a head to come in, whole, and then for its body.
    pub(crate) read_time: Duration,
}

/// A model that is served, as handlers need it.
pub(crate) struct ServedModel {
    pub(crate) id: ModelId,
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// Prompt and output tokens of one request together, where that is known.
    pub(crate) context: Option<Tokens>,
    /// How often a client that waits on a stream is sent a comment.
    pub(crate) keepalive: Micros,
    pub(crate) made: Made,
}

/// Where its answers are made.
pub(crate) enum Made {
    /// In this process.
    Here(EngineModel),
    /// In others.
    Elsewhere(Arc<RemoteModel>),
}

/// A model of an engine in this process.
pub(crate) struct EngineModel {
    pub(crate) model: Arc<dyn Model>,
    /// Prompt and output tokens of one request together.
    pub(crate) context: Tokens,
    /// Whether callers may hold answers to a grammar or a schema of their own.
    pub(crate) grammars: bool,
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel")
            .field("name", &self.name)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// One request, as the connection hands it over.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) id: RequestId,
    pub(crate) received: Time,
    pub(crate) peer: IpAddr,
    pub(crate) line: Arc<Line>,
}

/// A request that was turned away before it was one for the policy.
#[derive(Debug)]
pub(crate) struct Turned {
    pub(crate) rejection: Rejection,
    /// Who sent it, where that is known.
    pub(crate) tenant: Option<TenantId>,
    /// What is wrong, and what to do.
    pub(crate) why: BadRequest,
}

impl App {
    /// Serves one request for an answer: everything that can fail fails before the first byte.
    pub(crate) async fn serve(
        self: Arc<Self>,
        kind: RelayKind,
        visit: Visit,
        request: hyper::Request<Incoming>,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let prepared = guarded(prepare::prepare(&self, kind, &visit, &parts, body)).await;
        match prepared {
            Ok(Ok(order)) => {
                let answered = match order.repeat {
                    Some(repeat) => guarded(idempotent::answer(&self, &visit, order, repeat)).await,
                    None => guarded(answer::answer(&self, &visit, order)).await,
                };
                answered.unwrap_or_else(|_| refuse::bug())
            }
            Ok(Err((turned, unread))) => {
                let unread = unread.map(Body::new);
                let unread = unread.and_then(|body| refuse::on_its_way(&parts.headers, body));
                self.turn_away(&visit, &turned, unread)
            }
            Err(_) => {
                self.end_early(&visit, None, Outcome::Bug);
                refuse::bug()
            }
        }
    }

    /// Answers a request that was turned away, at once, and ends it. `unread` is what is left of
    /// its body.
    pub(crate) fn turn_away(
        &self,
        visit: &Visit,
        turned: &Turned,
        unread: Option<Body>,
    ) -> Response {
        let outcome = Outcome::Rejected(turned.rejection);
        self.end_early(visit, turned.tenant, outcome);
        let quota = turned
            .tenant
            .map(|tenant| self.desk.quota(tenant))
            .unwrap_or_default();
        // Spread by when they came, so that they don't come back in one instant.
        let wait = 1_000_000 + visit.received.as_micros() % 1_000_000;
        let retry_after = outcome.row().retry_after.then(|| Micros::new(wait));
        let mut response = refuse::turned(turned, quota, retry_after);
        if let Some(unread) = unread.filter(|unread| !unread.is_end_stream()) {
            visit.line.linger();
            refuse::close_if_large(&unread, response.headers_mut());
        }
        response
    }

    pub(crate) fn end_early(&self, visit: &Visit, tenant: Option<TenantId>, outcome: Outcome) {
        let (id, received) = (visit.id, visit.received);
        self.desk.submit(Event::Turned {
            id,
            tenant,
            outcome,
            received,
        });
    }

    /// Who may call, as of now.
    pub(crate) fn callers(&self) -> Arc<Callers> {
        let callers = self.callers.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&callers)
    }

    /// These may call from now on, and no others.
    pub(crate) fn admit(&self, callers: Callers) {
        let mut current = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(callers);
    }

    pub(crate) fn model(&self, id: ModelId) -> &ServedModel {
        &self.models[usize::try_from(id.get()).unwrap_or(usize::MAX)]
    }

    /// The model of this name, if there is one and this caller may name it.
    pub(crate) fn find_model(&self, name: &str, caller: &Caller) -> Option<&ServedModel> {
        let id = *self.by_name.get(name)?;
        let permits = |tenant: &Tenant| tenant.models.permits(id);
        let permitted = caller.may_name(id) && self.desk.with_tenant(caller.tenant, permits);
        permitted.then(|| self.model(id))
    }
}

impl Turned {
    pub(crate) fn new(rejection: Rejection, message: impl Into<String>) -> Self {
        let why = BadRequest {
            message: message.into(),
            param: None,
            code: None,
        };
        Self {
            rejection,
            tenant: None,
            why,
        }
    }

    pub(crate) fn of(self, tenant: TenantId) -> Self {
        Self {
            tenant: Some(tenant),
            ..self
        }
    }

    pub(crate) fn param(mut self, param: &str) -> Self {
        self.why.param = Some(param.to_owned());
        self
    }
}

impl From<BadRequest> for Turned {
    fn from(why: BadRequest) -> Self {
        Self {
            rejection: Rejection::BadRequest,
            tenant: None,
            why,
        }
    }
}
