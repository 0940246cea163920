//! Scripts: which bytes an answer has, and when, whatever a server would do.
//!
//! A script is a list of rules. The first whose path and count fit a request answers it; a request
//! that none fits is served as usual.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use tollgate_policy::units::Micros;

use crate::yaml::{self, YamlError};

/// Steps of one answer, repeated ones counted each time.
const STEPS_MAX: usize = 1_000_000;

/// Rules of one script: each request looks at all of them.
const RULES_MAX: usize = 1_000;

/// Answers that go another way.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// In the order in which they are tried.
    #[serde(default)]
    pub answers: Vec<Rule>,
}

/// Which requests, and what they get.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Requests of this path only.
    pub path: Option<String>,
    /// Of those that fit the path, these only.
    #[serde(default)]
    pub requests: Requests,
    /// What they get, one after the other.
    pub steps: Vec<Step>,
    /// Requests that fitted the path so far.
    #[serde(skip)]
    fitted: AtomicU64,
}

/// A span of requests, counted from 1 for each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// The first.
    #[serde(default = "first")]
    pub from: u64,
    /// The last; all that come without.
    pub to: Option<u64>,
}

/// One thing that an answer does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// These bytes, as they are.
    Send(String),
    /// These bytes, as hexadecimal digits.
    Hex(String),
    /// The head of a stream of events with this status, whose body comes in chunks.
    Head(u16),
    /// A chunk of the body.
    Chunk(String),
    /// A chunk that is one event with this data.
    Event(String),
    /// Nothing, for so long.
    Wait(Wait),
    /// Nothing more, until the client leaves.
    Silence,
    /// The end of a body of chunks.
    End,
    /// The end of the connection.
    Close,
    /// The end of the connection, by a reset.
    Reset,
    /// The same again.
    Repeat {
        /// So many times.
        times: u32,
        /// What is done each time.
        steps: Vec<Self>,
    },
}

/// A span of time such as `300ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Wait {
    /// The span.
    #[serde(deserialize_with = "yaml::span")]
    pub span: Micros,
}

/// A script that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// More than would ever be played.
    #[error("an answer has more than {STEPS_MAX} steps; repeat less")]
    TooLong,
    /// An answer to no request.
    #[error("requests: from {} to {}; they count from 1, and the last is not before the first",
        .0.from, .0.to.unwrap_or(u64::MAX))]
    Requests(Requests),
    /// An answer of nothing.
    #[error("an answer without steps; use one like `silence` or `close`")]
    NoSteps,
    /// More than each request could look at.
    #[error("{0} answers; use at most {RULES_MAX}")]
    TooMany(usize),
    /// No bytes.
    #[error("hex: `{0}` is no even number of hexadecimal digits")]
    Hex(String),
    /// No status.
    #[error("head: {0} is no status; use 200 to 599")]
    Status(u16),
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            from: first(),
            to: None,
        }
    }
}

const fn first() -> u64 {
    1
}

impl Clone for Script {
    fn clone(&self) -> Self {
        let answers = self.answers.iter().map(Rule::fresh).collect();
        Self { answers }
    }
}

impl Rule {
    /// The same rule, before any request.
    fn fresh(&self) -> Self {
        Self {
            path: self.path.clone(),
            requests: self.requests,
            steps: self.steps.clone(),
            fitted: AtomicU64::new(0),
        }
    }

    fn fits(&self, path: &str) -> bool {
        if self.path.as_deref().is_some_and(|own| own != path) {
            return false;
        }
        let count = self.fitted.fetch_add(1, Ordering::Relaxed) + 1;
        let Requests { from, to } = self.requests;
        from <= count && to.is_none_or(|to| count <= to)
    }
}

impl Script {
    /// Reads a script from a YAML file.
    ///
    /// # Errors
    /// The file cannot be read, or is no script.
    pub fn read(path: &Path) -> Result<Self, YamlError> {
        yaml::read_file(path)
    }

    pub(super) fn check(&self) -> Result<(), ScriptError> {
        if self.answers.len() > RULES_MAX {
            return Err(ScriptError::TooMany(self.answers.len()));
        }
        for rule in &self.answers {
            let Requests { from, to } = rule.requests;
            if from == 0 || to.is_some_and(|to| to < from) {
                return Err(ScriptError::Requests(rule.requests));
            }
            if rule.steps.is_empty() {
                return Err(ScriptError::NoSteps);
            }
            if count(&rule.steps) > STEPS_MAX {
                return Err(ScriptError::TooLong);
            }
            check_steps(&rule.steps)?;
        }
        Ok(())
    }

    /// What a request of this path gets, if it is told here.
    pub(super) fn steps(&self, path: &str) -> Option<Vec<&Step>> {
        let rule = self.answers.iter().find(|rule| rule.fits(path))?;
        let mut flat = Vec::new();
        flatten(&rule.steps, &mut flat);
        Some(flat)
    }
}

/// How many steps these are when they are played.
fn count(steps: &[Step]) -> usize {
    let of = |step: &Step| match step {
        Step::Repeat { times, steps } => {
            let times = usize::try_from(*times).unwrap_or(usize::MAX);
            count(steps).saturating_mul(times)
        }
        Step::Send(_)
        | Step::Hex(_)
        | Step::Head(_)
        | Step::Chunk(_)
        | Step::Event(_)
        | Step::Wait(_)
        | Step::Silence
        | Step::End
        | Step::Close
        | Step::Reset => 1,
    };
    steps
        .iter()
        .fold(0, |all: usize, step| all.saturating_add(of(step)))
}

fn check_steps(steps: &[Step]) -> Result<(), ScriptError> {
    for step in steps {
        match step {
            Step::Hex(digits) => {
                unhex(digits).ok_or_else(|| ScriptError::Hex(digits.clone()))?;
            }
            Step::Head(status) if !(200..600).contains(status) => {
                return Err(ScriptError::Status(*status));
            }
            Step::Repeat { steps, .. } => check_steps(steps)?,
            Step::Send(_)
            | Step::Head(_)
            | Step::Chunk(_)
            | Step::Event(_)
            | Step::Wait(_)
            | Step::Silence
            | Step::End
            | Step::Close
            | Step::Reset => {}
        }
    }
    Ok(())
}

fn flatten<'a>(steps: &'a [Step], flat: &mut Vec<&'a Step>) {
    for step in steps {
        if let Step::Repeat { times, steps } = step {
            for _ in 0..*times {
                flatten(steps, flat);
            }
        } else {
            flat.push(step);
        }
    }
}

/// The bytes that the digits stand for; spaces between them mean nothing.
pub(super) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = digits
        .chars()
        .filter(|symbol| !symbol.is_whitespace())
        .map(|symbol| symbol.to_digit(16))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        yaml::read(text).unwrap()
    }

    #[test]
    fn every_step_can_be_written() {
        let script = script(
            "answers:
  - path: /v1/chat/completions
    requests: { from: 2, to: 3 }
    steps:
      - head: 200
      - event: '{\"choices\":[]}'
      - wait: 300ms
      - repeat: { times: 2, steps: [{ chunk: \"data: {\\\"ch\" }, { hex: '00 ff' }] }
      - send: \"0\\r\\n\\r\\n\"
      - end
      - silence
      - close
      - reset
",
        );
        script.check().unwrap();
        let path = "/v1/chat/completions";
        assert!(script.steps(path).is_none(), "the first is not told");
        assert!(script.steps("/health").is_none());
        let steps = script.steps(path).unwrap();
        assert_eq!(steps.len(), 12);
        let span = Micros::from_millis(300);
        assert_eq!(*steps[2], Step::Wait(Wait { span }));
        assert_eq!(*steps[3], Step::Chunk("data: {\"ch".to_owned()));
        assert_eq!(*steps[11], Step::Reset);
        assert!(script.steps(path).is_some());
        assert!(script.steps(path).is_none(), "nor is the fourth");
    }

    #[test]
    fn a_mistake_is_told_with_its_place_or_its_value() {
        let refused = |text: &str| yaml::read::<Script>(text).unwrap_err().to_string();
        let unknown = refused("answers:\n  - steps:\n      - jump: 1\n");
        assert!(
            unknown.starts_with("3:") && unknown.contains("there is no `jump` here"),
            "{unknown}"
        );
        let odd = refused("answers:\n  - steps:\n      - wait: soon\n");
        assert!(odd.contains("use 500ms, 40s or 2m"), "{odd}");
        let endless = "answers: [{ steps: [{ repeat: { times: 2000000, steps: [end] } }] }]";
        assert_eq!(script(endless).check(), Err(ScriptError::TooLong));
        for digits in ["0", "0g", "000"] {
            let text = format!("answers: [{{ steps: [{{ hex: '{digits}' }}] }}]");
            assert!(script(&text).check().is_err(), "{digits}");
        }
        let backwards = script("answers: [{ requests: { from: 5, to: 1 }, steps: [end] }]");
        assert!(matches!(backwards.check(), Err(ScriptError::Requests(_))));
        let nothing = script("answers: [{ steps: [] }]");
        assert_eq!(nothing.check(), Err(ScriptError::NoSteps));
        assert!(
            script("answers: [{ steps: [{ head: 99 }] }]")
                .check()
                .is_err()
        );
    }
}
