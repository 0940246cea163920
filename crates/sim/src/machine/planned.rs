//! The embedded engine: the planner that the server runs, on steps that cost time and compute
//! nothing.
//!
//! As in the engine's own thread, commands are taken between steps: a cancel takes effect when the
//! step under way is over, and what is dispatched because of a step joins the next one.

use std::collections::{BTreeMap, VecDeque};

use tollgate_policy::engine::{self, Engine, EngineEffect, EngineEvent, Sampled, Start, Step};
use tollgate_policy::gateway::{Report, Served};
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, Failure};
use tollgate_policy::prefix::Token;
use tollgate_policy::units::{KvBlocks, Micros, Time, Tokens};
use tollgate_policy::usage::Usage;

use super::{Job, Made, Prompt, Said, Shape, Sharing, StepCost};
use crate::chance::mix;

/// What an embedded engine is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedConfig {
    /// The planner's bounds.
    pub engine: engine::Config,
    /// What its steps cost.
    pub cost: StepCost,
    /// Who may find whose prefixes.
    pub sharing: Sharing,
}

/// One embedded engine.
#[derive(Debug)]
pub struct Planned {
    config: PlannedConfig,
    engine: Engine,
    jobs: BTreeMap<RequestId, Progress>,
    inbox: VecDeque<Command>,
    phase: Phase,
    said: VecDeque<Said>,
    made: Made,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    /// How long the answer comes to be.
    output: Tokens,
    made: Tokens,
}

#[derive(Debug)]
enum Phase {
    /// Nothing to do.
    Idle,
    /// Between two steps: commands come in before the next one is planned.
    Between(Time),
    /// A step is under way, and ends then.
    Step(Time, Step),
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Start(Job),
    Cancel(RequestId),
}

impl Planned {
    /// An idle engine.
    ///
    /// # Panics
    /// With bounds that no engine can run with; whoever reads a configuration checks them first.
    pub(super) fn new(config: PlannedConfig) -> Self {
        let engine = match Engine::new(config.engine) {
            Ok(engine) => engine,
            Err(error) => unreachable!("an engine was configured that cannot be: {error}"),
        };
        Self {
            config,
            engine,
            jobs: BTreeMap::new(),
            inbox: VecDeque::new(),
            phase: Phase::Idle,
            said: VecDeque::new(),
            made: Made::default(),
        }
    }

    pub(super) fn submit(&mut self, job: Job, now: Time) {
        self.take(Command::Start(job), now);
    }

    pub(super) fn cancel(&mut self, id: RequestId, now: Time) {
        self.take(Command::Cancel(id), now);
    }

    pub(super) fn next(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle => None,
            Phase::Between(at) | Phase::Step(at, _) => Some(at),
        }
    }

    pub(super) fn advance(&mut self, now: Time) {
        match std::mem::replace(&mut self.phase, Phase::Between(now)) {
            Phase::Idle | Phase::Between(_) => self.begin(now),
            Phase::Step(_, step) => self.finish(&step),
        }
    }

    pub(super) fn poll(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    pub(super) fn kv(&self) -> KvBlocks {
        self.engine.gauges().blocks_held
    }

    pub(super) fn is_empty(&self) -> bool {
        // A cancel that comes too late is nobody's request.
        let starts = |command: &Command| matches!(command, Command::Start(_));
        self.jobs.is_empty() && !self.inbox.iter().any(starts)
    }

    pub(super) fn made(&self) -> Made {
        let preemptions = self.engine.gauges().totals.preemptions;
        Made {
            preemptions,
            ..self.made
        }
    }

    fn take(&mut self, command: Command, now: Time) {
        self.inbox.push_back(command);
        if let Phase::Idle = self.phase {
            self.phase = Phase::Between(now);
        }
    }

    /// Takes the commands that came, and begins the next step if there is one.
    fn begin(&mut self, now: Time) {
        while let Some(command) = self.inbox.pop_front() {
            self.obey(command);
        }
        self.settle();
        self.phase = match self.engine.plan() {
            None => Phase::Idle,
            // Only KV is moved, which costs nothing here.
            Some(step) if step.work.is_empty() => {
                self.finish(&step);
                Phase::Between(now)
            }
            Some(step) => {
                let cost = self.config.cost.of(Shape::of(&step.work));
                Phase::Step(now + cost.max(Micros::new(1)), step)
            }
        };
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start(job) => {
                let progress = Progress {
                    output: job.output,
                    made: Tokens::ZERO,
                };
                self.jobs.insert(job.id, progress);
                let tenant = match self.config.sharing {
                    Sharing::Tenant => job.tenant,
                    Sharing::All => TenantId::new(0),
                };
                self.engine.handle(EngineEvent::Start(Start {
                    id: job.id,
                    tenant,
                    prompt: words(job.id, job.prompt),
                    max_output: job.output_max,
                    elder: None,
                    served: job.served,
                    haste: job.haste,
                }));
            }
            Command::Cancel(id) => self.engine.handle(EngineEvent::Cancel { id }),
        }
    }

    fn finish(&mut self, step: &Step) {
        let (mut served, mut sampled) = (Vec::new(), Vec::new());
        for work in &step.work {
            let Some(progress) = self.jobs.get_mut(&work.id) else {
                continue;
            };
            let output = Tokens::new(u64::from(work.samples));
            progress.made += output;
            if work.samples {
                sampled.push(Sampled {
                    id: work.id,
                    token: word(work.id.get(), progress.made.get()),
                    ends: progress.made >= progress.output,
                });
            }
            self.made.prompt += work.fresh;
            self.made.cached += work.reused;
            self.made.output += output;
            if work.fresh > Tokens::ZERO || output > Tokens::ZERO {
                served.push(Served {
                    id: work.id,
                    prompt: work.fresh,
                    output,
                });
            }
        }
        let report = self.report();
        self.said.push_back(Said::Stepped { served, report });
        self.engine.handle(EngineEvent::Stepped { sampled });
        self.settle();
    }

    /// What it says of itself now.
    pub(super) fn report(&self) -> Report {
        let gauges = self.engine.gauges();
        Report {
            // Those that are delayed are delayed on purpose.
            waiting: u32::try_from(gauges.waiting - gauges.delayed).unwrap_or(u32::MAX),
            kv: gauges.blocks_held,
        }
    }

    fn settle(&mut self) {
        while let Some(effect) = self.engine.poll_effect() {
            let (id, ending, usage) = match effect {
                EngineEffect::Ended {
                    id, ending, usage, ..
                } => (id, ending, usage),
                EngineEffect::Refused { id, .. } => {
                    let ending = EngineEnding::Failed(Failure::Sequence);
                    (id, ending, Usage::default())
                }
            };
            self.jobs.remove(&id);
            self.said.push_back(Said::Ended { id, ending, usage });
        }
    }
}

/// The words of a prompt: those it shares by their text's name, the others its own.
fn words(id: RequestId, prompt: Prompt) -> Vec<Token> {
    let shared = prompt.shared.map_or(0, |shared| shared.tokens.get());
    let name = prompt.shared.map_or(0, |shared| mix(shared.id));
    let own = mix(id.get() ^ 0x5eed);
    let word_at = |n: u64| word(if n < shared { name } else { own }, n);
    (0..prompt.tokens.get()).map(word_at).collect()
}

fn word(text: u64, n: u64) -> Token {
    let low = mix(text.wrapping_add(n)) & 0x7fff_ffff;
    Token::new(i32::try_from(low).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use tollgate_policy::pace::Haste;

    use tollgate_policy::batch::{Order, Scheduler};
    use tollgate_policy::engine::{CacheConfig, Reservation};
    use tollgate_policy::outcome::FinishReason;
    use tollgate_policy::units::Service;

    use super::*;
    use crate::emulated::Cost;
    use crate::workload::Prefix;

    fn config(sharing: Sharing, prefixes: u32) -> PlannedConfig {
        PlannedConfig {
            engine: engine::Config {
                sequences: 4,
                guests: 0,
                blocks: 64,
                step_tokens: Tokens::new(256),
                chunk: Tokens::new(128),
                paced: false,
                order: Order::DecodeFirst,
                scheduler: Scheduler::Continuous,
                reservation: Reservation::Paged,
                context: Tokens::new(512),
                waiting_max: 100,
                cache: CacheConfig {
                    prefixes,
                    tenant_blocks: KvBlocks::new(64),
                },
            },
            cost: StepCost::Together(Cost {
                step: Micros::from_millis(10),
                per_sequence: Micros::new(100),
                prefill_tokens_per_second: NonZeroU64::new(10_000).unwrap(),
            }),
            sharing,
        }
    }

    fn job(id: u64, tenant: u32) -> Job {
        Job {
            id: RequestId::new(id),
            tenant: TenantId::new(tenant),
            prompt: Prompt {
                tokens: Tokens::new(100),
                shared: Some(Prefix {
                    id: 7,
                    tokens: Tokens::new(64),
                }),
            },
            output: Tokens::new(3),
            output_max: Tokens::new(50),
            served: Service::ZERO,
            haste: Haste::AtOnce,
        }
    }

    /// Runs it dry: the last time, and all it said.
    fn run(planned: &mut Planned) -> (Time, Vec<Said>) {
        let (mut now, mut said) = (Time::START, vec![]);
        while let Some(at) = planned.next() {
            now = at;
            planned.advance(now);
        }
        said.extend(std::iter::from_fn(|| planned.poll()));
        (now, said)
    }

    #[test]
    fn a_step_costs_what_is_written_down() {
        let mut planned = Planned::new(config(Sharing::Tenant, 0));
        planned.submit(job(1, 0), Time::START);
        planned.advance(Time::START);
        assert_eq!(planned.next(), Some(Time::from_micros(20_100)));
        let (end, said) = run(&mut planned);
        assert_eq!(end, Time::from_micros(20_100 + 2 * 10_100));
        let usage = Usage {
            prompt: Tokens::new(100),
            cached: Tokens::ZERO,
            output: Tokens::new(3),
        };
        let ended = Said::Ended {
            id: RequestId::new(1),
            ending: EngineEnding::Finished(FinishReason::Stop),
            usage,
        };
        // A step for each token, and one that puts away.
        assert_eq!((said.len(), &said[3]), (5, &ended));
        assert!(planned.is_empty() && planned.kv() == KvBlocks::ZERO);
    }

    #[test]
    fn a_cancel_waits_for_the_step_under_way() {
        let mut planned = Planned::new(config(Sharing::Tenant, 0));
        planned.submit(job(1, 0), Time::START);
        planned.advance(Time::START);
        planned.cancel(RequestId::new(1), Time::from_micros(5));
        assert_eq!(planned.poll(), None);
        let (_, said) = run(&mut planned);
        assert!(said.iter().any(|one| matches!(
            one,
            Said::Ended { ending: EngineEnding::Cancelled, usage, .. }
                if usage.output == Tokens::new(1)
        )));
        assert!(planned.is_empty());
    }

    #[test]
    fn what_one_tenant_said_is_found_by_another_only_where_all_share() {
        let reused = |sharing| {
            let mut planned = Planned::new(config(sharing, 8));
            planned.submit(job(1, 0), Time::START);
            run(&mut planned);
            planned.submit(job(2, 1), Time::START);
            run(&mut planned);
            planned.made().cached
        };
        assert_eq!(reused(Sharing::Tenant), Tokens::ZERO);
        assert_eq!(reused(Sharing::All), Tokens::new(64));
    }
}
