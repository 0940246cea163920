//! One request from its first byte to its last, and the row that is left of it.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tollgate_policy::units::Time;
use tollgate_sim::workload::{Arrival, Merged, Turns};

use crate::clock::Clock;
use crate::connections::Connections;
use crate::prompts::Prompts;
use crate::remedy::remedy;
use crate::reply::{Seen, StreamReader, Usage, Window, read_whole};
use crate::rows::{Ending, Failure, Row, cleaned};
use crate::spec::{Demand, Endpoint, Identity, Reply};

/// The largest body that is not streamed, in bytes.
const BODY_MAX: usize = 64 * 1024 * 1024;

/// Asks one endpoint for one model.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) connections: Connections,
    pub(crate) path: String,
    pub(crate) model: String,
    pub(crate) reply: Reply,
    /// By the index of the tenant.
    pub(crate) headers: Vec<HeaderMap>,
}

/// What all requests of a run share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) asker: Asker,
    pub(crate) clock: Clock,
    pub(crate) prompts: Prompts,
    pub(crate) window: Window,
    /// Set when the run is over, whatever is still open.
    pub(crate) over: CancellationToken,
}

/// What is known of an answer while it comes.
#[derive(Debug, Default)]
struct Heard {
    status: Option<u16>,
    request_id: String,
    seen: Seen,
}

/// Sends the request that is due and reports what became of it, once; when it ended, if it
/// completed.
pub(crate) async fn exchange(
    session: &Session,
    arrival: Arrival,
    number: u64,
    rows: &Sender<Row>,
) -> Option<Time> {
    let demand = Demand {
        prompt: arrival.prompt.get(),
        output: arrival.output.get(),
    };
    let text = session.prompts.text(number, demand.prompt, arrival.prefix);
    let request = session
        .asker
        .request(arrival.tenant, &text, demand.output, session.asker.reply);
    let sent = session.clock.now();
    let mut heard = Heard::default();
    let ending = match request {
        Ok(request) => tokio::select! {
            biased;
            ending = session.converse(request, &mut heard) => ending,
            () = session.over.cancelled() => Ending::Unfinished,
        },
        // Only a URL or a header that cannot be written gets here; both are checked before.
        Err(_) => Ending::Failed(Failure::BadReply),
    };
    let Heard {
        status,
        request_id,
        seen,
    } = heard;
    let end = session.clock.now();
    let completed = (ending == Ending::Completed).then_some(end);
    let row = Row {
        tenant: arrival.tenant,
        intended: arrival.at,
        sent: Some(sent),
        first_token: seen.first_token,
        last_token: seen.last_token,
        end,
        status,
        ending,
        prompt_asked: demand.prompt,
        output_asked: demand.output,
        prompt_tokens: seen.usage.map(|usage| usage.prompt_tokens),
        output_tokens: seen.usage.map(|usage| usage.completion_tokens),
        deltas: seen.deltas,
        deltas_in_window: seen.deltas_in_window,
        request_id,
        gaps: seen.gaps,
    };
    // Err: nobody collects rows any more, because they cannot be written; the run says so itself.
    let _ = rows.send(row);
    completed
}

/// As [`exchange`], and what follows the answer, each after its pause, while requests are sent.
pub(crate) async fn whole_session(
    session: Arc<Session>,
    first: Arrival,
    number: u64,
    (turns, rows): (Turns, Sender<Row>),
) {
    let mut ended = exchange(&session, first, number, &rows).await;
    for (turn, place) in turns.zip(1_u64..) {
        let Some(due) = ended.map(|end| end + turn.think) else {
            return;
        };
        if due >= session.window.until {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(session.clock.until(due)) => {}
            () = session.over.cancelled() => return,
        }
        let arrival = Arrival {
            at: due,
            tenant: first.tenant,
            prompt: turn.prompt,
            output: turn.output,
            prefix: turn.prefix,
        };
        // The number of a turn is none that an arrival has.
        ended = exchange(&session, arrival, number | (place << TURN_BITS), &rows).await;
    }
}

/// Numbers of arrivals have fewer bits.
const TURN_BITS: u32 = 40;

/// A client of a closed loop: sends what comes next in `arrivals` as soon as its last has ended.
pub(crate) async fn client(
    session: Arc<Session>,
    arrivals: Arc<Mutex<Numbered>>,
    rows: Sender<Row>,
) {
    while session.clock.now() < session.window.until && !session.over.is_cancelled() {
        let next = arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next();
        let Some((number, arrival)) = next else {
            return;
        };
        let at = session.clock.now();
        exchange(&session, Arrival { at, ..arrival }, number, &rows).await;
    }
}

/// Arrivals with their numbers.
pub(crate) type Numbered = std::iter::Zip<std::ops::RangeFrom<u64>, Merged>;

impl Session {
    /// The answer to `request`: how it ended.
    async fn converse(&self, request: Request<Full<Bytes>>, heard: &mut Heard) -> Ending {
        let (response, connection) = match self.asker.connections.send(request).await {
            Ok(answered) => answered,
            Err(failure) => return Ending::Failed(failure),
        };
        let status = response.status().as_u16();
        heard.status = Some(status);
        heard.request_id = header(&response, "x-request-id").unwrap_or_default();
        let refusal = refusal(&response);
        let read = match (refusal, self.asker.reply) {
            (Some(ending), _) => whole_body(response).await.map(|_| ending),
            (None, Reply::Buffered) => whole_body(response)
                .await
                .map(|body| read_whole(&body, self.clock.now(), self.window, &mut heard.seen)),
            (None, Reply::Streamed) => self.read_stream(response, &mut heard.seen).await,
        };
        match read {
            Ok(ending) => {
                self.asker.connections.keep(connection);
                ending
            }
            Err(failure) => Ending::Failed(failure),
        }
    }

    async fn read_stream(
        &self,
        response: Response<Incoming>,
        seen: &mut Seen,
    ) -> Result<Ending, Failure> {
        let mut body = response.into_body();
        let mut reader = StreamReader::new(self.window);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::Reset)?;
            if let Some(bytes) = frame.data_ref() {
                reader.push(bytes, self.clock.now(), seen);
            }
        }
        Ok(reader.finish())
    }
}

impl Asker {
    /// The request of `tenant` with this text, for so many tokens.
    pub(crate) fn request(
        &self,
        tenant: usize,
        text: &str,
        output: u64,
        reply: Reply,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let stream = reply == Reply::Streamed;
        let body = ChatBody {
            model: &self.model,
            messages: [ChatMessage {
                role: "user",
                content: text,
            }],
            max_tokens: output,
            ignore_eos: true,
            stream,
            stream_options: stream.then_some(StreamOptions {
                include_usage: true,
            }),
        };
        // Strings and numbers alone: there is nothing that it could refuse.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut request = Request::post(&self.path).body(Full::new(Bytes::from(body)))?;
        if let Some(headers) = self.headers.get(tenant) {
            *request.headers_mut() = headers.clone();
        }
        Ok(request)
    }

    /// Asks for one whole answer; gives what the endpoint counts for the prompt, or what it says
    /// instead and what to do about that.
    pub(crate) async fn ask_whole(&self, text: &str, output: u64) -> Result<u64, String> {
        #[derive(serde::Deserialize)]
        struct Counted {
            usage: Usage,
        }
        let request = self
            .request(0, text, output, Reply::Buffered)
            .map_err(|error| error.to_string())?;
        let told = |failure: Failure| with_remedy(failure.label(), &failure.label());
        let sent = self.connections.send(request).await;
        let (response, _connection) = sent.map_err(told)?;
        let status = response.status();
        let reason = refusal(&response).map(|ending| ending.reason());
        let body = whole_body(response).await.map_err(told)?;
        match serde_json::from_slice::<Counted>(&body) {
            Ok(counted) if status.is_success() => Ok(counted.usage.prompt_tokens),
            Ok(_) | Err(_) => {
                let said = format!("{status}: {}", said(&body));
                Err(with_remedy(said, reason.as_deref().unwrap_or("bad_reply")))
            }
        }
    }
}

/// The message of an error, or what a body begins with that is none.
fn said(body: &[u8]) -> String {
    let error: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = error
        .as_ref()
        .and_then(|body| body["error"]["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    text.chars().take(300).collect()
}

fn with_remedy(said: String, reason: &str) -> String {
    match remedy(reason) {
        Some(remedy) => format!("{}; {remedy}", said.trim_end_matches('.')),
        None => said,
    }
}

/// The headers of one tenant's requests; `None` if its key or its name cannot stand in one.
pub(crate) fn headers(endpoint: &Endpoint, identity: &Identity, name: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::from_str(endpoint.authority()).ok()?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match identity {
        Identity::Key(key) => {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.reveal())).ok()?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Identity::TenantHeader => {
            headers.insert("x-tenant-id", HeaderValue::from_str(name).ok()?);
        }
    }
    Some(headers)
}

/// How an answer ends whose status is not a success.
fn refusal(response: &Response<Incoming>) -> Option<Ending> {
    let status = response.status().as_u16();
    match status {
        200..=299 => None,
        400..=499 | 503 | 529 => {
            let reason = header(response, "x-tollgate-reason");
            Some(Ending::Refused(
                reason.unwrap_or_else(|| format!("http_{status}")),
            ))
        }
        _ => Some(Ending::Failed(Failure::Status(status))),
    }
}

fn header(response: &Response<Incoming>, name: &str) -> Option<String> {
    let value = response.headers().get(name)?.to_str().ok()?;
    Some(cleaned(value))
}

async fn whole_body(response: Response<Incoming>) -> Result<Vec<u8>, Failure> {
    let (mut body, mut whole) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::Reset)?;
        let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
        if whole.len() + bytes.len() > BODY_MAX {
            return Err(Failure::BadReply);
        }
        whole.extend_from_slice(bytes);
    }
    Ok(whole)
}

#[derive(Serialize)]
struct ChatBody<'a> {
    model: &'a str,
    messages: [ChatMessage<'a>; 1],
    max_tokens: u64,
    /// The output has the length that was asked for, whatever the model would say.
    ignore_eos: bool,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}
