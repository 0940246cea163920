//! The parameters that chat and text completions share, each checked against its range.
//!
//! `null` is the same as leaving a parameter out. No defaults are filled in here: what an absent
//! value means is for the engine and the tenant's limits to say.

use std::num::NonZeroU32;

use crate::bad_request::BadRequest;
use crate::demand::Demand;
use crate::extras::Extras;
use crate::fields::{Field, Fields, Kind};

/// What a request of either kind says besides its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The model's name or alias as sent: not empty, of any length, not yet looked up.
    pub model: String,
    /// The most output tokens. Chat: `max_completion_tokens`, else `max_tokens`; text: the other
    /// way round.
    pub max_output: Option<NonZeroU32>,
    /// Texts that end the output: at most [`Params::MAX_STOPS`], each of 1 to
    /// [`Params::MAX_STOP_BYTES`] bytes.
    pub stop: Vec<String>,
    /// Go on past the model's end-of-text token.
    pub ignore_eos: bool,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// How the answer is sent.
    pub delivery: Delivery,
    /// The caller's name for its own user. It says nothing about who pays.
    pub user: Option<String>,
    /// What some engines have and others have not; each is also among the demands.
    pub extras: Extras,
    /// What is asked for beyond the ordinary, each parameter once.
    pub demands: Vec<Demand>,
}

impl Params {
    /// Stop texts that one request may have.
    pub const MAX_STOPS: usize = 4;
    /// Bytes of one stop text; a stream holds back up to that much of its end.
    pub const MAX_STOP_BYTES: usize = 256;

    /// Reads them. `max_output` names the parameters for the most output tokens, the one that wins
    /// first.
    pub(crate) fn of(
        fields: &Fields<'_, '_>,
        max_output: [&'static str; 2],
        demands: Vec<Demand>,
    ) -> Result<Self, BadRequest> {
        let [preferred, other] = max_output;
        let (preferred, other) = (positive(fields, preferred)?, positive(fields, other)?);
        Ok(Self {
            model: model(fields)?,
            max_output: preferred.or(other),
            stop: stop(fields)?,
            ignore_eos: flag(fields, "ignore_eos")?,
            sampling: Sampling::of(fields)?,
            delivery: Delivery::of(fields)?,
            user: fields
                .get("user")
                .map(|user| user.string("use a string"))
                .transpose()?,
            extras: Extras::of(fields)?,
            demands,
        })
    }
}

/// How tokens are drawn; `None` is whatever the engine does by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 to 2; 0 always takes the likeliest token.
    pub temperature: Option<f32>,
    /// 0 to 1: the likeliest tokens that together have this probability.
    pub top_p: Option<f32>,
    /// This many of the likeliest tokens; the wire's 0 and -1 (no limit) are `None`.
    pub top_k: Option<NonZeroU32>,
    /// 0 to 1: tokens at least this likely, relative to the likeliest.
    pub min_p: Option<f32>,
    /// -2 to 2: taken from the logit of each token that has occurred.
    pub presence_penalty: Option<f32>,
    /// -2 to 2: taken from a token's logit once for each time it has occurred.
    pub frequency_penalty: Option<f32>,
    /// Above 0, up to 2: divides the logits of tokens that have occurred; 1 does nothing.
    pub repetition_penalty: Option<f32>,
    /// The same seed repeats the text. A negative seed is its two's complement; none is rounded.
    pub seed: Option<u64>,
}

impl Sampling {
    fn of(fields: &Fields<'_, '_>) -> Result<Self, BadRequest> {
        let float = |name, range, rule| {
            fields
                .get(name)
                .map(|value| value.float(range, rule))
                .transpose()
        };
        Ok(Self {
            temperature: float("temperature", 0.0..=2.0, "use a number from 0 to 2")?,
            top_p: float("top_p", 0.0..=1.0, "use a number from 0 to 1")?,
            top_k: top_k(fields)?,
            min_p: float("min_p", 0.0..=1.0, "use a number from 0 to 1")?,
            presence_penalty: float("presence_penalty", -2.0..=2.0, "use a number from -2 to 2")?,
            frequency_penalty: float("frequency_penalty", -2.0..=2.0, "use a number from -2 to 2")?,
            repetition_penalty: float(
                "repetition_penalty",
                f32::MIN_POSITIVE..=2.0,
                "use a number above 0 and up to 2",
            )?,
            seed: seed(fields)?,
        })
    }
}

/// How the answer is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Piece by piece, as server-sent events.
    pub stream: bool,
    /// A last chunk of the stream tells the usage; only ever true with `stream`.
    pub include_usage: bool,
}

impl Delivery {
    fn of(fields: &Fields<'_, '_>) -> Result<Self, BadRequest> {
        let stream = flag(fields, "stream")?;
        let Some(options) = fields.get("stream_options") else {
            return Ok(Self {
                stream,
                include_usage: false,
            });
        };
        if !stream {
            let rule = "leave it out, or set stream to true";
            return Err(options.wrong_value(rule));
        }
        let options = options.object("use an object like {\"include_usage\": true}")?;
        Ok(Self {
            stream,
            include_usage: flag(&options, "include_usage")?,
        })
    }
}

pub(crate) fn model(fields: &Fields<'_, '_>) -> Result<String, BadRequest> {
    let rule = "use the name of a model, as GET /v1/models lists them";
    let field = fields.require("model", rule)?;
    let name = field.string(rule)?;
    if name.is_empty() {
        Err(field.wrong_value(rule))
    } else {
        Ok(name)
    }
}

/// A switch that is off when absent.
pub(crate) fn flag(fields: &Fields<'_, '_>, name: &'static str) -> Result<bool, BadRequest> {
    fields.get(name).map_or(Ok(false), |value| value.boolean())
}

pub(crate) fn positive(
    fields: &Fields<'_, '_>,
    name: &'static str,
) -> Result<Option<NonZeroU32>, BadRequest> {
    let rule = "use a whole number from 1 to 4294967295, or leave it out";
    let Some(field) = fields.get(name) else {
        return Ok(None);
    };
    let number = field.integer(1..=i64::from(u32::MAX), rule)?;
    Ok(u32::try_from(number).ok().and_then(NonZeroU32::new))
}

/// 0 and -1 are two spellings of "no limit" that engines have taught their clients.
fn top_k(fields: &Fields<'_, '_>) -> Result<Option<NonZeroU32>, BadRequest> {
    let rule = "use a whole number from 1 to 2147483647, or -1 for no limit";
    let Some(field) = fields.get("top_k") else {
        return Ok(None);
    };
    let number = field.integer(-1..=i64::from(i32::MAX), rule)?;
    Ok(u32::try_from(number).ok().and_then(NonZeroU32::new))
}

/// Any 64-bit integer, signed or not: read from its digits, since a float would round it.
fn seed(fields: &Fields<'_, '_>) -> Result<Option<u64>, BadRequest> {
    let rule = "use a whole number of 64 bits";
    let Some(field) = fields.get("seed") else {
        return Ok(None);
    };
    let text = field.number_text(rule)?;
    let signed = || text.parse::<i64>().ok().map(i64::cast_unsigned);
    text.parse()
        .ok()
        .or_else(signed)
        .map(Some)
        .ok_or_else(|| field.wrong_value(rule))
}

fn stop(fields: &Fields<'_, '_>) -> Result<Vec<String>, BadRequest> {
    let rule = "use a string, or an array of 1 to 4 strings, of 1 to 256 bytes each";
    let Some(field) = fields.get("stop") else {
        return Ok(Vec::new());
    };
    let text = |field: Field<'_, '_>| {
        let text = field.string(rule)?;
        let fits = (1..=Params::MAX_STOP_BYTES).contains(&text.len());
        if fits {
            Ok(text)
        } else {
            Err(field.wrong_value(rule))
        }
    };
    match field.kind() {
        Kind::String => Ok(vec![text(field)?]),
        Kind::Array => field
            .items(Params::MAX_STOPS, rule)?
            .iter()
            .map(text)
            .collect(),
        Kind::Null | Kind::Boolean | Kind::Number | Kind::Object => Err(field.wrong_type(rule)),
    }
}

#[cfg(test)]
mod tests;
