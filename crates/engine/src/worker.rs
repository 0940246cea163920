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

use crate::backend::{Backend, Drawn, FatalError, Sampled, SequenceError, StepWork};
use crate::choice::{Answering, Choice, take_apart};
use crate::handle::{Command, Gauges, Pulse, guarded, lock};
use crate::job::{Job, Observer, Served};

/// The state of the loop, kept apart from the backend, so that it outlives one that panics.
pub(crate) struct Worker {
    scheduler: engine::Engine,
    jobs: BTreeMap<RequestId, Answering>,
    /// By the scheduler's names for them. invariant: each has its job in `jobs`.
    choices: BTreeMap<RequestId, Choice>,
    /// The next of those names.
    next: u64,
    observer: Box<dyn Observer>,
    gauges: Arc<Mutex<Gauges>>,
    pulse: Arc<Pulse>,
    seed: u64,
    steps: u64,
    /// Kept between steps for its memory alone, like the one below.
    results: Vec<Sampled>,
    served: Vec<Served>,
}

impl Worker {
    pub(crate) fn new(
        scheduler: engine::Engine,
        observer: Box<dyn Observer>,
        (gauges, pulse): (Arc<Mutex<Gauges>>, Arc<Pulse>),
        seed: u64,
    ) -> Self {
        let worker = Self {
            scheduler,
            jobs: BTreeMap::new(),
            choices: BTreeMap::new(),
            next: 0,
            observer,
            gauges,
            pulse,
            seed,
            steps: 0,
            results: Vec::new(),
            served: Vec::new(),
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
            let first = if idle {
                match inbox.recv() {
                    Ok(Command::Stop) | Err(_) => return Ok(()),
                    Ok(command) => Some(command),
                }
            } else {
                None
            };
            self.pulse.begin();
            first.into_iter().for_each(|command| self.take(command));
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
            self.pulse.end();
        }
    }

    /// Ends all there is, and all that came in and was not seen yet, as failed. Nothing a caller's
    /// code does here keeps the others from their end.
    pub(crate) fn end_all(&mut self, unseen: impl Iterator<Item = Command>) {
        for command in unseen {
            if let Command::Start(job) = command {
                let id = job.id;
                let (answering, _) = take_apart(*job, self.seed, || RequestId::new(0));
                self.jobs.insert(id, answering);
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
            Command::Start(job) => self.start(*job),
            Command::Cancel(id) => self.cancel(id),
            Command::Stop => {}
        }
    }

    fn start(&mut self, job: Job) {
        let id = job.id;
        let next = &mut self.next;
        let (answering, parts) = take_apart(job, self.seed, || {
            *next += 1;
            RequestId::new(*next)
        });
        self.jobs.insert(id, answering);
        if parts.is_empty() {
            self.end_without_choices(id);
        }
        for (start, choice) in parts {
            self.choices.insert(start.id, choice);
            self.scheduler.handle(EngineEvent::Start(start));
        }
    }

    /// A job that asks for nothing is refused like one that can't be started.
    fn end_without_choices(&mut self, id: RequestId) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        let ending = EngineEnding::Failed(Failure::Sequence);
        self.observer.ended(id, ending, job.usage);
        job.output.end(ending, job.usage);
    }

    /// Ends all of a job that has not ended.
    fn cancel(&mut self, job: RequestId) {
        let Some(job) = self.jobs.get(&job) else {
            return;
        };
        for id in job.sequences.clone() {
            self.scheduler.handle(EngineEvent::Cancel { id });
        }
    }

    fn step(&mut self, backend: &mut dyn Backend, mut step: Step) -> Result<(), FatalError> {
        for op in &step.ops {
            backend.apply(*op);
        }
        step.work.retain(|work| self.begin(backend, work));
        self.compute(backend, &step.work)?;
        self.steps += 1;
        self.count(&step.work);
        self.observer.stepped(&self.served, self.scheduler.gauges());
        let sampled = self.speak(backend, &step.work);
        self.scheduler.handle(EngineEvent::Stepped { sampled });
        Ok(())
    }

    /// Whether the sequence can go on, after it began where it had not.
    fn begin(&mut self, backend: &mut dyn Backend, work: &Work) -> bool {
        let Some(choice) = self.choices.get_mut(&work.id) else {
            return false;
        };
        if choice.begun {
            return true;
        }
        choice.begun = true;
        match backend.begin(work.seq, &choice.begin) {
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
            let known = self.scheduler.tokens(work.id);
            known.get(start..start.checked_add(count)?)
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
            let generated = matches!(sampled, Some(Drawn::Token { .. }));
            let output = Tokens::new(u64::from(generated));
            let Some(choice) = self.choices.get(&work.id) else {
                continue;
            };
            let served = choice.served(work, output);
            if let Some(job) = self.jobs.get_mut(&choice.job) {
                add(&mut job.usage, served);
            }
            let computed = served.prompt - served.cached;
            if computed > Tokens::ZERO || output > Tokens::ZERO {
                self.served.push(Served {
                    id: choice.job,
                    prompt: computed,
                    output,
                });
            }
        }
    }

    /// Turns the tokens of a step into text.
    fn speak(&mut self, backend: &dyn Backend, work: &[Work]) -> Vec<engine::Sampled> {
        let mut sampled = Vec::with_capacity(work.len());
        let mut results = std::mem::take(&mut self.results);
        for (work, result) in work.iter().zip(results.drain(..)) {
            let choice = self.choices.get_mut(&work.id);
            let speaks = choice.and_then(|choice| {
                let job = self.jobs.get_mut(&choice.job)?;
                Some((choice, job))
            });
            match (result, speaks) {
                (Ok(Some(drawn)), Some((choice, job))) => {
                    let (token, ends) = choice.say(drawn, backend, &mut *job.output);
                    let id = work.id;
                    sampled.push(engine::Sampled { id, token, ends });
                }
                (Ok(None), _) | (_, None) => {}
                (Err(error), Some(_)) => self.fail(work.id, &error),
            }
        }
        self.results = results;
        sampled
    }

    /// Ends one sequence for its own fault, and its job. Said here, as the reason goes no further.
    fn fail(&mut self, id: RequestId, error: &SequenceError) {
        let job = self.choices.get(&id).map(|choice| choice.job.get());
        tracing::warn!(request = job, %error, "a sequence failed");
        self.scheduler.handle(EngineEvent::Failed { id });
    }

    /// Publishes the levels, then tells what became of requests: whoever hears of an end finds its
    /// place free.
    fn settle(&mut self) {
        self.publish();
        while let Some(effect) = self.scheduler.poll_effect() {
            match effect {
                EngineEffect::Ended { id, ending, .. } => self.end(id, ending),
                EngineEffect::Refused { id, because } => {
                    let job = self.choices.get(&id).map(|choice| choice.job.get());
                    tracing::warn!(request = job, %because, "the engine refused a request");
                    let ending = EngineEnding::Failed(Failure::Sequence);
                    self.end(id, ending);
                }
            }
        }
    }

    /// One sequence has ended; its job has, if it was the last.
    fn end(&mut self, id: RequestId, ending: EngineEnding) {
        let Some(mut choice) = self.choices.remove(&id) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&choice.job) else {
            return;
        };
        if job.close_one(ending) {
            self.cancel(choice.job);
        }
        let Some(job) = self.jobs.get_mut(&choice.job) else {
            return;
        };
        if job.open > 0 {
            if let EngineEnding::Finished(reason) = ending {
                choice.finish(reason, &mut *job.output);
            }
            return;
        }
        let (usage, whole) = (job.usage, job.ending.unwrap_or(ending));
        self.publish();
        self.observer.ended(choice.job, whole, usage);
        if let Some(mut job) = self.jobs.remove(&choice.job) {
            if let EngineEnding::Finished(reason) = ending {
                choice.finish(reason, &mut *job.output);
            }
            job.output.end(whole, usage);
        }
    }

    fn publish(&self) {
        *lock(&self.gauges) = Gauges {
            held: self.scheduler.gauges(),
            steps: self.steps,
        };
    }
}

fn add(sum: &mut Usage, one: Usage) {
    let Usage {
        prompt,
        cached,
        output,
    } = one;
    sum.prompt += prompt;
    sum.cached += cached;
    sum.output += output;
}
