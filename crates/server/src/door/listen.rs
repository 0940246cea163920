//! Accepts connections, and runs each until it ends or the server does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tollgate_policy::ids::RequestId;
use tollgate_wire::RelayKind;
use tower::ServiceExt as _;

use crate::answer::values::Values;
use crate::app::{App, Visit};
use crate::door::line::{FencedIo, Line};
use crate::door::routes::endpoint;
use crate::spawn::Tasks;

/// Bytes of one request's head.
const HEAD_MAX: usize = 64 * 1024;

/// Connections that may wait to be accepted, unless the system allows fewer. Of a burst past it the
/// system drops some, whose clients try again a second later; a runtime's usual 128 is one burst.
const WAITING_MAX: u32 = 4_096;

/// Pause after a failure to accept: most of them mean that the process is out of files, and pass as
/// others close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What every connection needs.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) app: Arc<App>,
    pub(crate) router: Router,
    pub(crate) for_whom: ForWhom,
    pub(crate) tasks: Tasks,
    /// When connections are to end.
    pub(crate) closing: watch::Receiver<Closing>,
    /// Connections at once; those past it wait unaccepted, in the system's own bounded line.
    pub(crate) places: Arc<Semaphore>,
}

/// Who comes in by a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForWhom {
    /// Whoever wants answers.
    Callers,
    /// Whoever runs this.
    Operators,
}

/// How far the server is with ending its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Closing {
    /// They stay.
    No,
    /// Each ends as soon as it is idle.
    WhenIdle,
    /// They are cut: whoever does not read would hold them for as long as it likes.
    Now,
}

/// Listens on an address.
///
/// # Errors
/// The system does not let it.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // A port whose last connections are not quite over is free all the same.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING_MAX)
}

/// Accepts connections until it is dropped.
pub(crate) async fn accept(listener: TcpListener, door: Door) {
    loop {
        let Ok(place) = Arc::clone(&door.places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let door = door.clone();
                door.tasks.clone().spawn_named("connection", async move {
                    door.serve(stream, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Door {
    async fn serve(mut self, stream: TcpStream, peer: SocketAddr) {
        // Without it, a token can wait 40 ms for the one before it to be acknowledged.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let connections = self.app.desk.books().metrics().connections().clone();
        connections.inc();
        let line = Line::new();
        let patience = line.patience().clone();
        let io = FencedIo::new(TokioIo::new(stream), Arc::clone(&line), &self.app.desk);
        let (app, router) = (Arc::clone(&self.app), self.router.clone());
        let for_whom = self.for_whom;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (app, line) = (Arc::clone(&app), Arc::clone(&line));
            // The router's layers would cost an answer as much as all else that is done for it.
            let way = match (for_whom, endpoint(&request)) {
                (ForWhom::Callers, Some(kind)) => Way::Straight(kind),
                (ForWhom::Callers | ForWhom::Operators, _) => Way::Routed(router.clone()),
            };
            respond(app, way, peer, line, request)
        });
        let connection = http1::Builder::new()
            .timer(patience)
            // From the last answer on, or from the beginning: one that is idle takes a place too.
            .header_read_timeout(self.app.bounds.read_time)
            .max_buf_size(HEAD_MAX)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = reached(&mut self.closing, Closing::WhenIdle) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = reached(&mut self.closing, Closing::Now) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended early");
        }
        connections.dec();
    }
}

/// Resolves when the server is that far.
async fn reached(closing: &mut watch::Receiver<Closing>, stage: Closing) {
    // Err: the server is gone, which comes to the same.
    let _ = closing.wait_for(|closing| *closing >= stage).await;
}

/// Who answers a request.
enum Way {
    Straight(RelayKind),
    Routed(Router),
}

async fn respond(
    app: Arc<App>,
    way: Way,
    peer: SocketAddr,
    line: Arc<Line>,
    request: hyper::Request<Incoming>,
) -> Result<Response, std::convert::Infallible> {
    line.answering();
    let id = app.desk.next_id();
    let visit = Visit {
        id,
        received: app.desk.clock().now(),
        peer: peer.ip(),
        line,
    };
    let mut response = match way {
        Way::Straight(kind) => Box::pin(Arc::clone(&app).serve(kind, visit, request)).await,
        Way::Routed(router) => {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(visit);
            let Ok(response) = router.oneshot(request).await;
            response
        }
    };
    finish_head(&app, id, &mut response);
    Ok(response)
}

/// What every response says.
fn finish_head(app: &App, id: RequestId, response: &mut Response) {
    const REQUEST: HeaderName = HeaderName::from_static("x-request-id");
    let headers = response.headers_mut();
    headers.insert(REQUEST, Values::new().of(app.desk.books().name(id)));
    // A client that keeps its connection would find it gone at its next request.
    if app.desk.is_draining() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}
