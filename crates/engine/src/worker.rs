//! The engine's loop: take commands, plan, step, tell.
//!
//! Commands are taken between steps and never waited for while there is work, so a cancel takes
//! effect within one step. What to compute is the scheduler's decision, what a token is the
//! backend's; here tokens become text, and every job that came in is told one end.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use tollgate_policy::engine::{self, EngineEffect, EngineEvent, Step, Work};
use tollgate_policy::ids::RequestId;
use tollgate_policy::outcome::{EngineEnding, Failure};
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;

use crate::backend::{Backend, Begin, FatalError, Sampled, SequenceError, StepWork};
use crate::handle::{Command, Gauges, guarded, lock};
use crate::job::{Delta, Job, Observer, Output, Sampling, Served, Token};
use crate::seed::mix;
use crate::text::{Shown, TextStream};

/// The state of the loop, kept apart from the backend, so that it outlives one that panics.
pub(crate) struct Worker {
    scheduler: engine::Engine,
    jobs: BTreeMap<RequestId, Running>,
    observer: Box<dyn Observer>,
    gauges: Arc<Mutex<Gauges>>,
    seed: u64,
    steps: u64,
    /// Kept between steps for its memory alone, like the two below.
    results: Vec<Sampled>,
    served: Vec<Served>,
    bytes: Vec<u8>,
}

/// A job that came in and was told no end yet.
struct Running {
    /// The prompt, then the output.
    tokens: Vec<Token>,
    text: TextStream,
    /// Tokens since the last delta.
    unsaid: u32,
    begin: Begin,
    /// Whether the backend knows the sequence.
    begun: bool,
    /// The same as the scheduler counts, for an end that the scheduler does not see.
    usage: Usage,
    output: Box<dyn Output>,
}

impl Worker {
    pub(crate) fn new(
        scheduler: engine::Engine,
        observer: Box<dyn Observer>,
        gauges: Arc<Mutex<Gauges>>,
        seed: u64,
    ) -> Self {
        let worker = Self {
            scheduler,
            jobs: BTreeMap::new(),
            observer,
            gauges,
            seed,
            steps: 0,
            results: Vec::new(),
            served: Vec::new(),
            bytes: Vec::new(),
        };
        worker.publish();
        worker
    }

    /// Runs until told to stop, or until the backend can't go on.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        inbox: &Receiver<Command>,
    ) -> Result<(), FatalError> {
        let mut idle = true;
        loop {
            if idle {
                match inbox.recv() {
                    Ok(Command::Stop) | Err(_) => return Ok(()),
                    Ok(command) => self.take(command),
                }
            }
            for command in inbox.try_iter() {
                match command {
                    Command::Stop => return Ok(()),
                    Command::Start(_) | Command::Cancel(_) => self.take(command),
                }
            }
            self.settle();
            let step = self.scheduler.plan();
            idle = step.is_none();
            if let Some(step) = step {
                self.step(backend, step)?;
                self.settle();
            }
        }
    }

    /// Ends all there is, and all that came in and was not seen yet, as failed. Nothing a caller's
    /// code does here keeps the others from their end.
    pub(crate) fn end_all(&mut self, unseen: impl Iterator<Item = Command>) {
        for command in unseen {
            if let Command::Start(job) = command {
                self.jobs.insert(job.id, Running::new(job, self.seed));
            }
        }
        let held = engine::Gauges {
            blocks_total: self.scheduler.gauges().blocks_total,
            ..engine::Gauges::default()
        };
        *lock(&self.gauges) = Gauges {
            held,
            steps: self.steps,
        };
        let ending = EngineEnding::Failed(Failure::Engine);
        for (id, mut job) in std::mem::take(&mut self.jobs) {
            // Err: it panicked, and has said so on stderr.
            let _ = guarded(|| self.observer.ended(id, ending, job.usage));
            let _ = guarded(|| job.output.end(ending, job.usage));
        }
    }

    /// Tells the observer, last of all.
    pub(crate) fn died(&mut self, why: String) {
        let _ = guarded(|| self.observer.died(why));
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Start(job) => {
                self.scheduler.handle(EngineEvent::Start {
                    id: job.id,
                    tenant: job.tenant,
                    prompt: Tokens::of_len(&job.prompt),
                    max_output: job.max_output,
                });
                self.jobs.insert(job.id, Running::new(job, self.seed));
            }
            Command::Cancel(id) => self.scheduler.handle(EngineEvent::Cancel { id }),
            Command::Stop => {}
        }
    }

    fn step(&mut self, backend: &mut dyn Backend, mut step: Step) -> Result<(), FatalError> {
        for seq in &step.over {
            backend.end(*seq);
        }
        for seq in &step.preempted {
            backend.forget(*seq);
        }
        step.work.retain(|work| self.begin(backend, work));
        self.compute(backend, &step.work)?;
        self.steps += 1;
        self.count(&step.work);
        self.observer.stepped(&self.served, self.scheduler.gauges());
        let ended = self.speak(backend, &step.work);
        self.scheduler.handle(EngineEvent::Stepped { ended });
        Ok(())
    }

    /// Whether the sequence can go on, after it began where it had not.
    fn begin(&mut self, backend: &mut dyn Backend, work: &Work) -> bool {
        let Some(job) = self.jobs.get_mut(&work.id) else {
            return false;
        };
        if job.begun {
            return true;
        }
        job.begun = true;
        match backend.begin(work.seq, job.begin) {
            Ok(()) => true,
            Err(error) => {
                self.fail(work.id, &error);
                false
            }
        }
    }

    fn compute(&mut self, backend: &mut dyn Backend, work: &[Work]) -> Result<(), FatalError> {
        self.results.clear();
        if work.is_empty() {
            return Ok(());
        }
        let tokens = |work: &Work| {
            let start = usize::try_from(work.start.get()).ok()?;
            let count = usize::try_from(work.count.get()).ok()?;
            self.jobs
                .get(&work.id)?
                .tokens
                .get(start..start.checked_add(count)?)
        };
        let items: Vec<_> = work
            .iter()
            .map(|work| StepWork {
                seq: work.seq,
                start: work.start,
                tokens: tokens(work).unwrap_or_default(),
                samples: work.samples,
            })
            .collect();
        backend.step(&items, &mut self.results)?;
        assert_eq!(
            self.results.len(),
            work.len(),
            "one result for each sequence"
        );
        Ok(())
    }

    /// Counts what the step served.
    fn count(&mut self, work: &[Work]) {
        self.served.clear();
        for (work, result) in work.iter().zip(&self.results) {
            let Ok(sampled) = result else { continue };
            let output = Tokens::new(u64::from(sampled.is_some()));
            if let Some(job) = self.jobs.get_mut(&work.id) {
                job.usage.prompt += work.fresh;
                job.usage.output += output;
            }
            if work.fresh > Tokens::ZERO || output > Tokens::ZERO {
                self.served.push(Served {
                    id: work.id,
                    prompt: work.fresh,
                    output,
                });
            }
        }
    }

    /// Turns the tokens of a step into text; returns the requests whose text ended.
    fn speak(&mut self, backend: &dyn Backend, work: &[Work]) -> Vec<RequestId> {
        let mut ended = Vec::new();
        let mut results = std::mem::take(&mut self.results);
        for (work, result) in work.iter().zip(results.drain(..)) {
            match (result, self.jobs.get_mut(&work.id)) {
                (Ok(Some(token)), Some(job)) => {
                    if job.say(token, backend, &mut self.bytes) {
                        ended.push(work.id);
                    }
                }
                (Ok(None), _) | (_, None) => {}
                (Err(error), Some(_)) => self.fail(work.id, &error),
            }
        }
        self.results = results;
        ended
    }

    /// Ends one request for its own fault. Said here, as the reason goes no further.
    fn fail(&mut self, id: RequestId, error: &SequenceError) {
        tracing::warn!(request = id.get(), %error, "a sequence failed");
        self.scheduler.handle(EngineEvent::Failed { id });
    }

    /// Publishes the levels, then tells what became of requests: whoever hears of an end finds its
    /// place free.
    fn settle(&mut self) {
        self.publish();
        while let Some(effect) = self.scheduler.poll_effect() {
            match effect {
                EngineEffect::Ended {
                    id,
                    tenant: _,
                    ending,
                    usage,
                } => {
                    self.end(id, ending, usage);
                }
                EngineEffect::Refused { id, because } => {
                    tracing::warn!(request = id.get(), %because, "the engine refused a request");
                    let ending = EngineEnding::Failed(Failure::Sequence);
                    self.end(id, ending, Usage::default());
                }
            }
        }
    }

    fn end(&mut self, id: RequestId, ending: EngineEnding, usage: Usage) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        self.observer.ended(id, ending, usage);
        if let EngineEnding::Finished(_) = ending {
            job.say_rest();
        }
        job.output.end(ending, usage);
    }

    fn publish(&self) {
        *lock(&self.gauges) = Gauges {
            held: self.scheduler.gauges(),
            steps: self.steps,
        };
    }
}

impl Running {
    fn new(job: Job, seed: u64) -> Self {
        let Job {
            id,
            tenant: _,
            prompt,
            max_output: _,
            sampling,
            stop,
            ignore_eos,
            output,
        } = job;
        Self {
            tokens: prompt,
            text: TextStream::new(stop),
            unsaid: 0,
            begin: Begin {
                id,
                sampling,
                seed: seed_of(id, sampling, seed),
                ignore_eos,
            },
            begun: false,
            usage: Usage::default(),
            output,
        }
    }

    /// Takes a sampled token; whether the text ends with it.
    fn say(&mut self, token: Token, backend: &dyn Backend, bytes: &mut Vec<u8>) -> bool {
        self.tokens.push(token);
        self.unsaid += 1;
        if backend.is_end(token) {
            return true;
        }
        bytes.clear();
        backend.bytes(token, bytes);
        let Shown { text, stopped } = self.text.push(bytes);
        self.send(text);
        if stopped {
            // Nothing of what was cut off comes out at the end.
            self.text = TextStream::new(Vec::new());
        }
        stopped
    }

    fn say_rest(&mut self) {
        let Shown { text, stopped: _ } = self.text.finish();
        self.send(text);
    }

    fn send(&mut self, text: String) {
        if !text.is_empty() {
            let tokens = std::mem::take(&mut self.unsaid);
            self.output.delta(Delta { text, tokens });
        }
    }
}

/// The request's own seed, or one that differs from request to request.
fn seed_of(id: RequestId, sampling: Sampling, seed: u64) -> u64 {
    sampling.seed.unwrap_or_else(|| mix(seed ^ mix(id.get())))
}
