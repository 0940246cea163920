//! Orders for engines in this process: a body into prompts in tokens, and how they are to be
//! answered. What this engine can't do is refused here, before it holds anything.

use std::num::NonZeroU32;

use tollgate_engine::{Sampling, Stop, TemplateError, Token};
use tollgate_policy::ids::ModelId;
use tollgate_policy::request::Arrival;
use tollgate_policy::slo::Asked;
use tollgate_policy::units::Tokens;
use tollgate_wire::{
    BadRequest, ChatRequest, CompletionRequest, Constraint, Delivery, EmbeddingRequest, Encoding,
    Params, PromptText,
};

use super::tools::{self, Reading};
use super::{ANSWERS_MAX, Endpoint, Order, Work, vectors};
use crate::app::{EngineModel, Turned, Visit};
use crate::desk::Draft;
use crate::members::identity::Caller;

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
pub(super) enum Ask {
    Chat(ChatRequest),
    Text {
        prompts: Vec<PromptText>,
        params: Params,
    },
    Vectors(EmbeddingRequest),
}

impl Ask {
    pub(super) fn model(&self) -> &str {
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

/// A body, read.
pub(super) fn parse(endpoint: Endpoint, body: &[u8]) -> Result<Ask, BadRequest> {
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

/// An order for what was asked of this model, ready to be handed in.
pub(super) fn order(
    (id, engine): (ModelId, &EngineModel),
    endpoint: Endpoint,
    ask: Ask,
    (visit, caller): (&Visit, &Caller),
) -> Result<Order, Turned> {
    ask.params().map_or(Ok(()), check_demands)?;
    vectors::check_makes(engine, endpoint)?;
    let prompt = tokens(engine, &ask)?;
    let asked = count(&prompt);
    let arrival = Arrival {
        id: visit.id,
        tenant: caller.tenant,
        key: caller.key_id(),
        model: id,
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

pub(super) fn bad(param: &str, message: &str) -> BadRequest {
    BadRequest {
        message: message.to_owned(),
        param: Some(param.to_owned()),
        code: None,
    }
}
