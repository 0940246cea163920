//! What becomes of an engine that does not come back from a step.

use tollgate_policy::units::Micros;

use super::decode::Cursor;

/// When a step counts as one that never ends, and what is done then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The longest that a step may take, 1 s to 1 h.
    pub after: Micros,
    /// What is done besides ending the engine's requests.
    pub then: WhenStuck,
}

/// What is done with an engine that is stuck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenStuck {
    /// It takes no work until the step has ended after all, and is started again then: nothing can
    /// end a thread from outside.
    #[default]
    Wait,
    /// The process ends, for whoever watches it to start it again.
    Exit,
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            // A step of the largest size takes about a minute where a model is much too large for
            // the computer.
            after: Micros::from_secs(300),
            then: WhenStuck::default(),
        }
    }
}

impl Stuck {
    pub(super) fn read(section: &Cursor<'_>) -> Option<Self> {
        let default = Self::default();
        let ends = Micros::from_secs(1)..=Micros::from_secs(3_600);
        section.mapping(|fields| Self {
            after: fields
                .optional("after", |value| value.duration(ends))
                .unwrap_or(default.after),
            then: fields
                .optional("then", |value| {
                    value.choice(&[("wait", WhenStuck::Wait), ("exit", WhenStuck::Exit)])
                })
                .unwrap_or(default.then),
        })
    }
}
