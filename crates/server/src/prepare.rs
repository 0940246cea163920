//! From a request's bytes to an order for the policy. Whatever is wrong with it is found here,
//! before it holds anything.

pub(crate) mod repeats;
mod tools;
mod vectors;

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use tollgate_engine::{Sampling, Stop, TemplateError, Token};
use tollgate_policy::ids::ModelId;
use tollgate_policy::outcome::Rejection;
use tollgate_policy::request::Arrival;
use tollgate_policy::slo::Asked;
use tollgate_policy::units::{Micros, Tokens};
use tollgate_wire::{
    BadRequest, ChatRequest, CompletionRequest, Constraint, Delivery, EmbeddingRequest, Encoding,
    Params, PromptText, Relay, RelayKind,
};

pub(crate) use self::tools::Reading;
use crate::answer::idempotent::Repeat;
use crate::answer::refuse;
use crate::app::{App, EngineModel, Made, ServedModel, Turned, Visit};
use crate::desk::Draft;
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

/// What an engine in this process is to do.
#[derive(Debug)]
pub(crate) struct EngineOrder {
    pub(crate) draft: Draft,
    pub(crate) endpoint: Endpoint,
    pub(crate) delivery: Delivery,
    /// How calls are read out of the answer, where it may have any.
    pub(crate) reading: Option<Reading>,
    /// How the numbers of vectors are sent.
    pub(crate) encoding: Encoding,
    /// The model's name as the caller wrote it, which the answer repeats.
    pub(crate) model_name: String,
}

/// A body that has been read.
enum Ask {
    Chat(ChatRequest),
    Text {
        prompts: Vec<PromptText>,
        params: Params,
    },
    Vectors(EmbeddingRequest),
}

impl Ask {
    fn model(&self) -> &str {
        match self {
            Self::Chat(ChatRequest { params, .. }) | Self::Text { params, .. } => &params.model,
            Self::Vectors(ask) => &ask.model,
        }
    }

    /// What only requests for text say.
    fn params(&self) -> Option<&Params> {
        match self {
            Self::Chat(ChatRequest { params, .. }) | Self::Text { params, .. } => Some(params),
            Self::Vectors(_) => None,
        }
    }

    fn output_max(&self) -> Option<Tokens> {
        match self.params() {
            Some(params) => params
                .max_output
                .map(|most| Tokens::new(u64::from(most.get()))),
            // None is generated; a sequence ends with one that nobody sees.
            None => Some(Tokens::new(1)),
        }
    }

    fn into_model(self) -> String {
        match self {
            Self::Chat(ChatRequest { params, .. }) | Self::Text { params, .. } => params.model,
            Self::Vectors(ask) => ask.model,
        }
    }
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
    let ask = parse(endpoint, body)?;
    let served = find(app, ask.model(), caller)?;
    let Made::Here(engine) = &served.made else {
        return Err(no_model(ask.model())); // Not reached: they were looked for above.
    };
    ask.params().map_or(Ok(()), check_demands)?;
    vectors::check_makes(engine, endpoint)?;
    let prompt = tokens(engine, &ask)?;
    let asked = count(&prompt);
    let arrival = Arrival {
        id: visit.id,
        tenant: caller.tenant,
        key: caller.key_id(),
        model: served.id,
        prompt: asked,
        output_max: ask.output_max(),
        retry: false,
        slo: Asked {
            whole: !ask.params().is_some_and(|params| params.delivery.stream),
            ..Asked::default()
        },
        received: visit.received,
    };
    let order = engine_order(engine, endpoint, ask, prompt.unwrap_or_default())?;
    Ok(Order {
        arrival,
        work: Work::Engine(Box::new(order)),
        repeat: None,
    })
}

fn engine_order(
    engine: &EngineModel,
    endpoint: Endpoint,
    ask: Ask,
    prompts: Vec<Vec<Token>>,
) -> Result<EngineOrder, Turned> {
    let (draft, reading) = match &ask {
        Ask::Chat(chat) => chat_draft(engine, prompts, chat)?,
        Ask::Text { params, .. } => (draft(engine, prompts, params)?, None),
        Ask::Vectors(ask) => (vectors::draft(engine, prompts, ask)?, None),
    };
    let encoding = match &ask {
        Ask::Vectors(ask) => ask.encoding,
        Ask::Chat(_) | Ask::Text { .. } => Encoding::default(),
    };
    let params = ask.params();
    Ok(EngineOrder {
        draft,
        endpoint,
        delivery: params.map_or_else(Delivery::default, |params| params.delivery),
        reading,
        encoding,
        model_name: ask.into_model(),
    })
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

fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Ask, BadRequest> {
    match endpoint {
        Endpoint::Chat => Ok(Ask::Chat(ChatRequest::parse(body)?)),
        Endpoint::Text => {
            let CompletionRequest { prompt, params } = CompletionRequest::parse(body)?;
            let prompts = prompt.into();
            Ok(Ask::Text { prompts, params })
        }
        Endpoint::Vectors => Ok(Ask::Vectors(EmbeddingRequest::parse(body)?)),
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

/// Refuses what the embedded engine can't do, and what makes no sense together.
fn check_demands(params: &Params) -> Result<(), BadRequest> {
    const SERVED: [&str; 12] = [
        "echo",
        "grammar",
        "logit_bias",
        "logprobs",
        "n",
        "prompt",
        "response_format",
        "stop_token_ids",
        "tool_choice",
        "tools",
        "top_logprobs",
        "typical_p",
    ];
    let mut demands = params.demands.iter();
    if let Some(demand) = demands.find(|demand| !SERVED.contains(&demand.param)) {
        return Err(demand.refusal());
    }
    if params.extras.echo && params.extras.logprobs.is_some() {
        let message = "logprobs of a prompt are not known; leave out echo or logprobs";
        return Err(bad("logprobs", message));
    }
    Ok(())
}

/// What to give the engine; no prompts where they are too long to be counted.
fn draft(
    served: &EngineModel,
    prompts: Vec<Vec<Token>>,
    params: &Params,
) -> Result<Draft, BadRequest> {
    let extras = &params.extras;
    let draft = Draft {
        prompts,
        choices: extras.choices.get(),
        sampling: sampling(served, params)?,
        stop: Stop {
            strings: params.stop.clone(),
            tokens: vocabulary(served, "stop_token_ids", &extras.stop_tokens)?,
            ignore_eos: params.ignore_eos,
        },
        spelled: Vec::new(),
        echo: extras.echo,
    };
    if draft.answers() > ANSWERS_MAX {
        let message = format!("prompts times n are {}; use at most 128", draft.answers());
        return Err(bad("n", &message));
    }
    Ok(draft)
}

/// The same for a chat, with its tools.
fn chat_draft(
    served: &EngineModel,
    prompts: Vec<Vec<Token>>,
    chat: &ChatRequest,
) -> Result<(Draft, Option<Reading>), BadRequest> {
    let mut draft = draft(served, prompts, &chat.params)?;
    let reading = Reading::of(served, chat.tools.as_ref());
    if let Some(reading) = &reading {
        if let Some(constraint) = &chat.params.extras.constraint {
            let message = "can't be followed beside tools; leave out either, or set tool_choice to \
                           none";
            let param = constraint.param();
            return Err(bad(param, &format!("{param} {message}")));
        }
        draft.sampling.grammar = tools::demanded(served, chat)?;
        draft.spelled = tools::spelled(served, reading);
    }
    Ok((draft, reading))
}

/// Prompts in tokens, or at least how many there are where counting their bytes says enough.
type Counted = Result<Vec<Vec<Token>>, Tokens>;

fn count(prompts: &Counted) -> Tokens {
    match prompts {
        Ok(prompts) => {
            let each = prompts.iter().map(|prompt| Tokens::of_len(prompt));
            each.fold(Tokens::ZERO, |sum, one| sum + one)
        }
        Err(least) => *least,
    }
}

fn tokens(served: &EngineModel, ask: &Ask) -> Result<Counted, Turned> {
    let mut all = Vec::new();
    match ask {
        Ask::Chat(chat) => {
            chat.require_text()?;
            let messages = chat.messages.iter().enumerate();
            let messages = messages.map(|(n, message)| tools::message(n, message));
            let messages = messages.collect::<Result<Vec<_>, _>>()?;
            let rendered = served.model.render_chat(&messages, &tools::offers(chat));
            match tokenized(served, &rendered.map_err(|error| template_error(&error))?)? {
                Ok(tokens) => all.push(tokens),
                Err(least) => return Ok(Err(least)),
            }
        }
        Ask::Vectors(ask) => {
            for (n, input) in ask.input.iter().enumerate() {
                match prompt_tokens(served, input, "input")? {
                    Ok(tokens) => all.push(tokens),
                    Err(least) => return Err(vectors::too_long(n, least, served).into()),
                }
            }
        }
        Ask::Text { prompts, .. } => {
            for prompt in prompts {
                match prompt_tokens(served, prompt, "prompt")? {
                    Ok(tokens) => all.push(tokens),
                    Err(least) => return Ok(Err(least)),
                }
            }
        }
    }
    Ok(Ok(all))
}

fn prompt_tokens(
    served: &EngineModel,
    prompt: &PromptText,
    param: &str,
) -> Result<Result<Vec<Token>, Tokens>, BadRequest> {
    match prompt {
        PromptText::Text(text) => tokenized(served, text),
        PromptText::Tokens(ids) => Ok(Ok(vocabulary(served, param, ids)?)),
    }
}

fn tokenized(served: &EngineModel, text: &str) -> Result<Result<Vec<Token>, Tokens>, BadRequest> {
    let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let least = Tokens::new(bytes / u64::from(served.model.max_token_bytes().max(1)));
    if least > served.context {
        return Ok(Err(least));
    }
    let tokens = served
        .model
        .tokenize(text)
        .map_err(|error| bad("prompt", &error.to_string()))?;
    if tokens.is_empty() {
        return Err(bad(
            "prompt",
            "the prompt is empty; send at least one token",
        ));
    }
    Ok(Ok(tokens))
}

/// Token ids of a parameter, each of which the model has.
fn vocabulary(served: &EngineModel, param: &str, ids: &[u32]) -> Result<Vec<Token>, BadRequest> {
    let size = served.model.vocabulary();
    let token = |id: &u32| {
        let number = i32::try_from(*id).ok().filter(|_| *id < size);
        let message = || {
            format!(
                "{param} has the token {id}; use 0 to {}",
                size.saturating_sub(1)
            )
        };
        number.map(Token::new).ok_or_else(|| bad(param, &message()))
    };
    ids.iter().map(token).collect()
}

fn template_error(error: &TemplateError) -> BadRequest {
    if !error.is_callers() {
        tracing::error!(%error, "the chat template of a model is broken");
    }
    bad("messages", &error.to_string())
}

fn sampling(served: &EngineModel, params: &Params) -> Result<Sampling, BadRequest> {
    let (asked, extras) = (&params.sampling, &params.extras);
    let default = Sampling::default();
    let (ids, biases): (Vec<_>, Vec<_>) = extras.logit_bias.iter().copied().unzip();
    let biased = vocabulary(served, "logit_bias", &ids)?;
    Ok(Sampling {
        temperature: asked.temperature.unwrap_or(default.temperature),
        top_p: asked.top_p.unwrap_or(default.top_p),
        top_k: asked.top_k.map(NonZeroU32::get).or(default.top_k),
        min_p: asked.min_p.unwrap_or(default.min_p),
        typical_p: extras.typical_p.unwrap_or(default.typical_p),
        frequency_penalty: asked.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(default.presence_penalty),
        repetition_penalty: asked
            .repetition_penalty
            .unwrap_or(default.repetition_penalty),
        seed: asked.seed,
        logit_bias: biased.into_iter().zip(biases).collect(),
        grammar: grammar(served, extras.constraint.as_ref())?,
        logprobs: extras.logprobs,
    })
}

/// The grammar that the text is held to. One that can't be followed is the caller's mistake, and
/// found here, before it costs anyone anything.
fn grammar(
    served: &EngineModel,
    constraint: Option<&Constraint>,
) -> Result<Option<String>, BadRequest> {
    let Some(constraint) = constraint else {
        return Ok(None);
    };
    let own = !matches!(constraint, Constraint::JsonObject);
    if own && !served.grammars {
        let how = "grammars and schemas are off for this model; use response_format json_object, \
                   or ask its operator for `grammars: on`";
        return Err(bad(constraint.param(), how));
    }
    let grammar = match constraint {
        Constraint::Grammar(grammar) => {
            let checked = served.model.check_grammar(grammar);
            checked.map(|()| grammar.clone())
        }
        Constraint::JsonObject => served.model.json_grammar(None),
        Constraint::JsonSchema(schema) => served.model.json_grammar(Some(schema)),
    };
    let refused = |error| {
        bad(
            constraint.param(),
            &format!("{}: {error}", constraint.param()),
        )
    };
    grammar.map(Some).map_err(refused)
}

fn bad(param: &str, message: &str) -> BadRequest {
    BadRequest {
        message: message.to_owned(),
        param: Some(param.to_owned()),
        code: None,
    }
}
