//! What steps of a scenario's replicas cost: three numbers, or for an embedded engine as many as
//! `tollgate bench calibrate --engine embedded` prints.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tollgate_policy::units::Micros;

use super::form::{EngineForm, ReplicaForm, Span};
use crate::emulated::Cost;
use crate::machine::{ApartCost, Curve, StepCost};

/// What the next tokens of so many answers cost: `{ 1: 7ms, 8: 35ms }`.
#[derive(Clone, Debug)]
pub(super) struct Steps(Curve);

impl<'de> Deserialize<'de> for Steps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let steps = BTreeMap::<Sequences, Span>::deserialize(deserializer)?;
        let points: Vec<_> = steps.iter().map(|(n, span)| (n.0, span.0)).collect();
        Curve::through(&points).map(Self).map_err(D::Error::custom)
    }
}

/// A number of sequences, as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sequences(NonZeroU32);

impl<'de> Deserialize<'de> for Sequences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| {
            let message = format!("`{text}` is no number of sequences; use 1, 2 or more");
            D::Error::custom(message)
        })
    }
}

/// The three numbers, each as it is where it is left out.
pub(super) fn together(form: &ReplicaForm) -> Cost {
    let default = Cost::default();
    Cost {
        step: form.step.map_or(default.step, |span| span.0),
        per_sequence: form
            .per_sequence
            .map_or(default.per_sequence, |span| span.0),
        prefill_tokens_per_second: form.prefill_per_second,
    }
}

/// The cost of an embedded engine.
///
/// # Errors
/// Keys of the one kind of cost beside keys of the other.
pub(super) fn of_steps(form: &ReplicaForm) -> Result<StepCost, String> {
    let Some(steps) = &form.steps else {
        return match (form.prompt_step, form.attention_per_second) {
            (None, None) => Ok(StepCost::Together(together(form))),
            (Some(_), _) => Err("prompt_step is of a cost with `steps`; list those too".into()),
            (None, Some(_)) => {
                Err("attention_per_second is of a cost with `steps`; list those too".into())
            }
        };
    };
    if form.step.is_some() || form.per_sequence.is_some() {
        return Err("steps say what step and per_sequence say; use one of both".into());
    }
    Ok(StepCost::Apart(ApartCost {
        answers: steps.0.clone(),
        attention_per_second: form.attention_per_second,
        prompt_step: form.prompt_step.map_or(Micros::ZERO, |span| span.0),
        prefill_tokens_per_second: form.prefill_per_second,
    }))
}

/// That a replica's steps take time, and that it has no key of another kind of engine.
///
/// # Errors
/// They take none, or it has one.
pub(super) fn check(form: &ReplicaForm) -> Result<(), String> {
    let cost = together(form);
    if form.steps.is_none() && cost.step + cost.per_sequence == Micros::ZERO {
        return Err("step and per_sequence are 0 both; one of them must take time".into());
    }
    let of_embedded = [
        ("steps", form.steps.is_some()),
        ("prompt_step", form.prompt_step.is_some()),
        ("attention_per_second", form.attention_per_second.is_some()),
    ];
    match form.engine {
        EngineForm::Embedded => of_steps(form).map(|_| ()),
        EngineForm::Emulated => match of_embedded.into_iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) => Err(format!("{key} is of `engine: embedded` only")),
            None => Ok(()),
        },
    }
}
