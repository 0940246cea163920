//! Tells the log what each step of an engine computed and how long that took, where
//! `TOLLGATE_LOG` asks for `tollgate::step=trace`. It changes nothing of what is computed.
//!
//! What a client sees of a step has the way to it in it; these lines have not, and so show what
//! of a cost is the engine's.

use tollgate_engine::{Backend, Begin, FatalError, Open, OpenError, Sampled, SequenceError};
use tollgate_engine::{StepWork, Token};
use tollgate_policy::ids::{ReplicaId, SeqId};
use tollgate_policy::kv::KvOp;
use tollgate_policy::units::{Micros, Time, Tokens};

use crate::clock::Clock;

const TARGET: &str = "tollgate::step";

/// The same backend, with its steps told where somebody listens.
pub(super) fn told(inner: Box<dyn Open>, replica: ReplicaId, clock: Clock) -> Box<dyn Open> {
    if tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
        return Box::new(Opening {
            inner,
            replica,
            clock,
        });
    }
    inner
}

struct Opening {
    inner: Box<dyn Open>,
    replica: ReplicaId,
    clock: Clock,
}

impl Open for Opening {
    fn open(self: Box<Self>, run: &mut dyn FnMut(&mut dyn Backend)) -> Result<(), OpenError> {
        let Self {
            inner,
            replica,
            clock,
        } = *self;
        inner.open(&mut |inner| {
            run(&mut Told {
                inner,
                replica,
                clock,
                kv: Micros::ZERO,
                ended: clock.now(),
            });
        })
    }
}

struct Told<'a> {
    inner: &'a mut dyn Backend,
    replica: ReplicaId,
    clock: Clock,
    /// Time spent on KV since the last step.
    kv: Micros,
    /// When the last step was over.
    ended: Time,
}

impl Backend for Told<'_> {
    fn begin(&mut self, seq: SeqId, begin: &Begin) -> Result<(), SequenceError> {
        self.inner.begin(seq, begin)
    }

    fn apply(&mut self, op: KvOp) {
        let begun = self.clock.now();
        self.inner.apply(op);
        self.kv += self.clock.now().since(begun);
    }

    fn step(
        &mut self,
        work: &[StepWork<'_>],
        results: &mut Vec<Sampled>,
    ) -> Result<(), FatalError> {
        let begun = self.clock.now();
        let stepped = self.inner.step(work, results);
        let ended = self.clock.now();
        let shape = Shape::of(work);
        tracing::trace!(
            target: TARGET,
            replica = self.replica.get(),
            decodes = shape.decodes,
            prompts = shape.prompts,
            prompt_tokens = shape.prompt_tokens.get(),
            sampled = shape.sampled,
            kv_tokens = shape.kv.get(),
            since_last_us = begun.since(self.ended).get(),
            kv_us = self.kv.get(),
            step_us = ended.since(begun).get(),
            "step"
        );
        (self.kv, self.ended) = (Micros::ZERO, ended);
        stepped
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        self.inner.bytes(token, out);
    }

    fn is_end(&self, token: Token) -> bool {
        self.inner.is_end(token)
    }
}

/// What a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shape {
    /// Sequences that compute one token.
    decodes: u64,
    /// Those that compute more.
    prompts: u64,
    /// Tokens of the latter.
    prompt_tokens: Tokens,
    /// Sequences whose next token is chosen.
    sampled: u64,
    /// Tokens of all of them together, those before the step with them.
    kv: Tokens,
}

impl Shape {
    fn of(work: &[StepWork<'_>]) -> Self {
        let mut shape = Self::default();
        for work in work {
            let tokens = Tokens::of_len(work.tokens);
            if tokens > Tokens::new(1) {
                shape.prompts += 1;
                shape.prompt_tokens += tokens;
            } else {
                shape.decodes += 1;
            }
            shape.sampled += u64::from(work.samples);
            shape.kv += work.start + tokens;
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_by_what_it_computes() {
        let tokens = [1, 2, 3, 4].map(Token::new);
        let work = |seq, start, count, samples| StepWork {
            seq: SeqId::new(seq),
            start: Tokens::new(start),
            tokens: &tokens[..count],
            samples,
        };
        let step = [
            work(0, 40, 1, true),
            work(1, 9, 1, true),
            work(2, 16, 4, false),
        ];
        let expected = Shape {
            decodes: 2,
            prompts: 1,
            prompt_tokens: Tokens::new(4),
            sampled: 2,
            kv: Tokens::new(41 + 10 + 20),
        };
        assert_eq!(Shape::of(&step), expected);
    }
}
