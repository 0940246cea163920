//! What steps of a scenario's replicas cost: three numbers, or for an embedded engine as many as
//! `tollgate bench calibrate --engine embedded` prints.

use tollgate_policy::units::Micros;

use super::form::{EngineForm, ReplicaForm};
use crate::emulated::Cost;
use crate::machine::{ApartCost, Curve, StepCost};

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
/// Keys of the one kind of cost beside keys of the other, or steps of which no curve can be made.
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
    let points: Vec<_> = steps.iter().map(|(n, span)| (*n, span.0)).collect();
    let answers = Curve::through(&points).map_err(|error| format!("steps: {error}"))?;
    Ok(StepCost::Apart(ApartCost {
        answers,
        attention_per_second: form.attention_per_second,
        prompt_step: form.prompt_step.map_or(Micros::ZERO, |span| span.0),
        prefill_tokens_per_second: form.prefill_per_second,
    }))
}

/// That a replica has no key of another kind of engine.
///
/// # Errors
/// It has one.
pub(super) fn check(form: &ReplicaForm) -> Result<(), String> {
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
