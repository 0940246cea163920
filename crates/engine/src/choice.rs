//! A job as its choices: each is one sequence, and becomes text of its own.
//!
//! Choices of one prompt come right after each other, so that all but the first take over what the
//! first computed of it. A job ends when its last choice did.

use std::sync::Arc;

use tollgate_policy::engine::{Start, Work};
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

use crate::backend::{Backend, Begin, Drawn, Likelihood};
use crate::job::{Delta, Job, Likely, Logprob, Output, Sampling, Token};
use crate::seed::mix;
use crate::text::{Shown, TextStream};

/// A job that came in and was told no end yet.
pub(crate) struct Answering {
    pub(crate) output: Box<dyn Output>,
    /// Its sequences, by the scheduler's names for them.
    pub(crate) sequences: Vec<RequestId>,
    /// How many of them have not ended.
    pub(crate) open: usize,
    /// How it ends: as the first thing that came between, else by length if any choice did.
    pub(crate) ending: Option<EngineEnding>,
    /// The same as the scheduler counts, for an end that the scheduler does not see.
    pub(crate) usage: Usage,
}

impl Answering {
    /// Takes the end of one choice; whether it is the first thing that came between, so that the
    /// others are to be cancelled.
    pub(crate) fn close_one(&mut self, ending: EngineEnding) -> bool {
        self.open -= 1;
        let length = EngineEnding::Finished(FinishReason::Length);
        match (self.ending, ending) {
            (None | Some(EngineEnding::Finished(_)), EngineEnding::Finished(_)) => {
                if self.ending != Some(length) {
                    self.ending = Some(ending);
                }
                false
            }
            (None | Some(EngineEnding::Finished(_)), _) => {
                self.ending = Some(ending);
                true
            }
            (
                Some(EngineEnding::Cancelled | EngineEnding::Refused(_) | EngineEnding::Failed(_)),
                _,
            ) => false,
        }
    }
}

/// One sequence of a job.
pub(crate) struct Choice {
    pub(crate) job: RequestId,
    /// Its number within the job.
    index: u32,
    pub(crate) begin: Begin,
    /// Whether the backend knows the sequence.
    pub(crate) begun: bool,
    /// Whether another one computes the prompt, and is charged for it.
    is_younger: bool,
    stop: Arc<[Token]>,
    /// Control tokens that are shown, and as what.
    spelled: Arc<[(Token, String)]>,
    text: TextStream,
    /// What its text begins with, until that has been said.
    echo: Vec<Token>,
    /// Tokens since the last delta, and how likely they were.
    unsaid: u32,
    likely: Vec<Logprob>,
}

/// A job taken apart: itself, and each of its choices with what the scheduler is told of it.
pub(crate) type Parts = (Answering, Vec<(Start, Choice)>);

/// Takes a job apart. `name` gives each sequence a name for the scheduler, `seed` is the engine's.
pub(crate) fn take_apart(job: Job, seed: u64, mut name: impl FnMut() -> RequestId) -> Parts {
    let stop: Arc<[Token]> = job.stop.tokens.into();
    let spelled: Arc<[(Token, String)]> = job.spelled.into();
    let mut parts = Vec::new();
    for prompt in job.prompts {
        let mut elder = None;
        for _ in 0..job.choices {
            let index = u32::try_from(parts.len()).unwrap_or(u32::MAX);
            let id = name();
            let begin = Begin {
                id: job.id,
                choice: index,
                seed: seed_of(job.id, index, &job.sampling, seed),
                sampling: job.sampling.clone(),
                ignore_eos: job.stop.ignore_eos,
            };
            let choice = Choice {
                job: job.id,
                index,
                begin,
                begun: false,
                is_younger: elder.is_some(),
                stop: Arc::clone(&stop),
                spelled: Arc::clone(&spelled),
                text: TextStream::new(job.stop.strings.clone()),
                echo: if job.echo { prompt.clone() } else { Vec::new() },
                unsaid: 0,
                likely: Vec::new(),
            };
            let start = Start {
                id,
                tenant: job.tenant,
                prompt: prompt.clone(),
                max_output: job.max_output,
                elder,
                served: job.served,
                haste: job.haste,
            };
            elder = elder.or(Some(id));
            parts.push((start, choice));
        }
    }
    let answering = Answering {
        output: job.output,
        sequences: parts.iter().map(|(start, _)| start.id).collect(),
        open: parts.len(),
        ending: None,
        usage: Usage::default(),
    };
    (answering, parts)
}

impl Choice {
    /// What a step served it, as its job counts: a prompt once, however many choices it has.
    pub(crate) fn served(&self, work: &Work, output: Tokens) -> Usage {
        let (fresh, reused) = if self.is_younger {
            (Tokens::ZERO, Tokens::ZERO)
        } else {
            (work.fresh, work.reused)
        };
        Usage {
            prompt: fresh + reused,
            cached: reused,
            output,
        }
    }

    /// Takes what was drawn: the token that the scheduler is to know of, and whether the sequence
    /// ends with it. A vector comes in place of a token that means nothing.
    pub(crate) fn say(
        &mut self,
        drawn: Drawn,
        backend: &dyn Backend,
        output: &mut dyn Output,
    ) -> (Token, bool) {
        match drawn {
            Drawn::Token { token, likely } => {
                (token, self.say_token(token, likely, backend, output))
            }
            Drawn::Vector(vector) => {
                output.vector(self.index, vector);
                (Token::new(0), true)
            }
        }
    }

    fn say_token(
        &mut self,
        token: Token,
        likely: Option<Likelihood>,
        backend: &dyn Backend,
        output: &mut dyn Output,
    ) -> bool {
        self.say_echo(backend, output);
        self.unsaid += 1;
        if backend.is_end(token) || self.stop.contains(&token) {
            return true;
        }
        let mut bytes = Vec::new();
        match self.spelled.iter().find(|(spelled, _)| *spelled == token) {
            Some((_, text)) => bytes.extend_from_slice(text.as_bytes()),
            None => backend.bytes(token, &mut bytes),
        }
        let Shown { text, stopped } = self.text.push(&bytes);
        self.likely
            .extend(likely.map(|likely| logprob(token, likely, backend)));
        self.send(text, output);
        if stopped {
            // Nothing of what was cut off comes out at the end.
            self.text = TextStream::new(Vec::new());
        }
        stopped
    }

    /// Says what was held back in case more came.
    pub(crate) fn finish(&mut self, reason: FinishReason, output: &mut dyn Output) {
        let Shown { text, stopped: _ } = self.text.finish();
        self.send(text, output);
        output.finished(self.index, reason);
    }

    fn say_echo(&mut self, backend: &dyn Backend, output: &mut dyn Output) {
        let mut bytes = Vec::new();
        for token in std::mem::take(&mut self.echo) {
            backend.bytes(token, &mut bytes);
        }
        self.send(String::from_utf8_lossy(&bytes).into_owned(), output);
    }

    fn send(&mut self, text: String, output: &mut dyn Output) {
        if !text.is_empty() {
            output.delta(Delta {
                choice: self.index,
                text,
                tokens: std::mem::take(&mut self.unsaid),
                logprobs: std::mem::take(&mut self.likely),
            });
        }
    }
}

fn logprob(token: Token, likelihood: Likelihood, backend: &dyn Backend) -> Logprob {
    let likely = |token, logprob| {
        let mut bytes = Vec::new();
        backend.bytes(token, &mut bytes);
        Likely { bytes, logprob }
    };
    let top = likelihood.top.into_iter();
    Logprob {
        chosen: likely(token, likelihood.chosen),
        top: top.map(|(token, logprob)| likely(token, logprob)).collect(),
    }
}

/// The request's own seed, or one that differs from request to request; each choice has another.
fn seed_of(id: RequestId, choice: u32, sampling: &Sampling, seed: u64) -> u64 {
    let first = sampling.seed.unwrap_or_else(|| mix(seed ^ mix(id.get())));
    match choice {
        0 => first,
        choice => mix(first ^ mix(u64::from(choice))),
    }
}
