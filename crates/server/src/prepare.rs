//! From a request's bytes to an order for the policy. Whatever is wrong with it is found here,
//! before it holds anything.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use tollgate_engine::{ChatMessage, Sampling, TemplateError, Token};
use tollgate_policy::ids::TenantId;
use tollgate_policy::outcome::Rejection;
use tollgate_policy::request::Arrival;
use tollgate_policy::units::Tokens;
use tollgate_wire::{
    BadRequest, ChatRequest, CompletionRequest, Delivery, Message, Params, Prompt, PromptText, Role,
};

use crate::app::{App, ServedModel, Turned, Visit};
use crate::desk::Draft;
use crate::receive::receive;

/// Bodies larger than this are parsed and tokenized on a thread of their own: a millisecond of
/// work, at about the speed of a tokenizer, is as long as the other requests of a worker should
/// wait.
const INLINE_MAX: usize = 16 * 1024;

/// Which of the two forms of an answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// A request that is ready to be handed in.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) arrival: Arrival,
    pub(crate) draft: Draft,
    pub(crate) endpoint: Endpoint,
    pub(crate) delivery: Delivery,
    /// The model's name as the caller wrote it, which the answer repeats.
    pub(crate) model_name: String,
}

/// A body that has been read.
enum Ask {
    Chat(ChatRequest),
    Text { prompt: PromptText, params: Params },
}

impl Ask {
    fn params(&self) -> &Params {
        match self {
            Self::Chat(ChatRequest { params, .. }) | Self::Text { params, .. } => params,
        }
    }

    fn into_params(self) -> Params {
        match self {
            Self::Chat(ChatRequest { params, .. }) | Self::Text { params, .. } => params,
        }
    }
}

/// Why a request is turned away, and what is left unread of its body.
pub(crate) type Away = (Turned, Option<Body>);

pub(crate) async fn prepare(
    app: &Arc<App>,
    endpoint: Endpoint,
    visit: &Visit,
    parts: &Parts,
    body: Body,
) -> Result<Order, Away> {
    let tenant = match identify(app, visit, parts) {
        Ok(tenant) => tenant,
        Err(turned) => return Err((turned, Some(body))),
    };
    if let Err(turned) = check_media_type(parts) {
        return Err((turned.of(tenant), Some(body)));
    }
    let bytes = receive(parts, body, app.bounds).await;
    let bytes = bytes.map_err(|(turned, unread)| (turned.of(tenant), unread))?;
    let order = if bytes.len() > INLINE_MAX {
        let (app, visit) = (Arc::clone(app), visit.clone());
        let heavy = move || digest(&app, endpoint, &visit, tenant, &bytes);
        match tokio::task::spawn_blocking(heavy).await {
            Ok(order) => order,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    } else {
        digest(app, endpoint, visit, tenant, &bytes)
    };
    let mut order = order.map_err(|turned| (turned.of(tenant), None))?;
    order.arrival.retry = app.repeats.is_retry(&parts.headers, tenant, visit.received);
    Ok(order)
}

/// Who is calling.
pub(crate) fn identify(app: &App, visit: &Visit, parts: &Parts) -> Result<TenantId, Turned> {
    app.callers()
        .identity
        .who(&parts.headers, visit.peer, &app.desk)
        .map_err(|_| {
            let how = "no valid API key was given; send one as `Authorization: Bearer KEY`";
            Turned::new(Rejection::BadKey, how)
        })
}

fn check_media_type(parts: &Parts) -> Result<(), Turned> {
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
    endpoint: Endpoint,
    visit: &Visit,
    tenant: TenantId,
    body: &Bytes,
) -> Result<Order, Turned> {
    let ask = parse(endpoint, body)?;
    let params = ask.params();
    let served = app
        .find_model(&params.model, tenant)
        .ok_or_else(|| no_model(&params.model))?;
    if let Some(demand) = params.demands.first() {
        return Err(demand.refusal().into());
    }
    let prompt = tokens(served, &ask)?;
    let params = ask.into_params();
    let arrival = Arrival {
        id: visit.id,
        tenant,
        model: served.id,
        prompt: prompt.count(),
        output_max: params
            .max_output
            .map(|most| Tokens::new(u64::from(most.get()))),
        retry: false,
        received: visit.received,
    };
    let draft = Draft {
        prompt: prompt.into_tokens(),
        sampling: sampling(&params.sampling),
        stop: params.stop,
        ignore_eos: params.ignore_eos,
    };
    let (delivery, model_name) = (params.delivery, params.model);
    Ok(Order {
        arrival,
        draft,
        endpoint,
        delivery,
        model_name,
    })
}

fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Ask, BadRequest> {
    match endpoint {
        Endpoint::Chat => Ok(Ask::Chat(ChatRequest::parse(body)?)),
        Endpoint::Text => {
            let CompletionRequest { prompt, params } = CompletionRequest::parse(body)?;
            match prompt {
                Prompt::One(prompt) => Ok(Ask::Text { prompt, params }),
                Prompt::Many(_) => Err(bad("prompt", "send one prompt per request to this model")),
            }
        }
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

/// A prompt in tokens, or so long that counting its bytes says enough.
enum Counted {
    Tokens(Vec<Token>),
    /// At least this many, which is more than fits.
    TooMany(Tokens),
}

impl Counted {
    fn count(&self) -> Tokens {
        match self {
            Self::Tokens(tokens) => Tokens::of_len(tokens),
            Self::TooMany(least) => *least,
        }
    }

    fn into_tokens(self) -> Vec<Token> {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::TooMany(_) => Vec::new(),
        }
    }
}

fn tokens(served: &ServedModel, ask: &Ask) -> Result<Counted, Turned> {
    let text = match ask {
        Ask::Chat(chat) => {
            chat.require_text()?;
            let messages = chat.messages.iter().enumerate();
            let messages = messages.map(|(n, message)| plain(n, message));
            let messages = messages.collect::<Result<Vec<_>, _>>()?;
            let rendered = served.model.render_chat(&messages);
            Cow::Owned(rendered.map_err(|error| template_error(&error))?)
        }
        Ask::Text {
            prompt: PromptText::Text(text),
            ..
        } => Cow::Borrowed(text.as_str()),
        Ask::Text {
            prompt: PromptText::Tokens(ids),
            ..
        } => {
            return Ok(Counted::Tokens(known(served, ids)?));
        }
    };
    let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    let least = Tokens::new(bytes / u64::from(served.model.max_token_bytes().max(1)));
    if least > served.context {
        return Ok(Counted::TooMany(least));
    }
    let tokens = served
        .model
        .tokenize(&text)
        .map_err(|error| bad("prompt", &error.to_string()))?;
    if tokens.is_empty() {
        return Err(bad("prompt", "the prompt is empty; send at least one token").into());
    }
    Ok(Counted::Tokens(tokens))
}

fn known(served: &ServedModel, ids: &[u32]) -> Result<Vec<Token>, BadRequest> {
    let size = served.model.vocabulary();
    let token = |id: &u32| {
        let number = i32::try_from(*id).ok().filter(|_| *id < size);
        let message = || {
            format!(
                "prompt has the token {id}; use 0 to {}",
                size.saturating_sub(1)
            )
        };
        number
            .map(Token::new)
            .ok_or_else(|| bad("prompt", &message()))
    };
    ids.iter().map(token).collect()
}

/// A message as templates read it: a role and one text.
fn plain(n: usize, message: &Message) -> Result<ChatMessage, BadRequest> {
    let role = match message.role {
        // Newer clients' word for the same thing; templates know only the older one.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool | Role::Function => "tool",
    };
    if message.tool_calls.is_some() {
        let param = format!("messages.{n}.tool_calls");
        return Err(bad(
            &param,
            "this model does not take tool calls; leave them out",
        ));
    }
    Ok(ChatMessage {
        role: role.to_owned(),
        content: message.text().into_owned(),
    })
}

fn template_error(error: &TemplateError) -> BadRequest {
    if !error.is_callers() {
        tracing::error!(%error, "the chat template of a model is broken");
    }
    bad("messages", &error.to_string())
}

fn sampling(asked: &tollgate_wire::Sampling) -> Sampling {
    let default = Sampling::default();
    Sampling {
        temperature: asked.temperature.unwrap_or(default.temperature),
        top_p: asked.top_p.unwrap_or(default.top_p),
        top_k: asked.top_k.map(NonZeroU32::get).or(default.top_k),
        min_p: asked.min_p.unwrap_or(default.min_p),
        frequency_penalty: asked.frequency_penalty.unwrap_or(default.frequency_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(default.presence_penalty),
        repetition_penalty: asked
            .repetition_penalty
            .unwrap_or(default.repetition_penalty),
        seed: asked.seed,
    }
}

fn bad(param: &str, message: &str) -> BadRequest {
    BadRequest {
        message: message.to_owned(),
        param: Some(param.to_owned()),
        code: None,
    }
}
