//! A batching model server: the emulated engine as a replica of a simulation.
//!
//! It adds to the engine only what the gateway's side of it does: it names the blocks of prompts,
//! cuts answers to what was granted, and puts what the engine tells into words of the policy.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tollgate_policy::gateway::{Report, Served};
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, Failure, FinishReason};
use tollgate_policy::units::{KvBlocks, Time, Tokens};
use tollgate_policy::usage::Usage;

use super::{Job, Made, Prompt, Said, Sharing};
use crate::chance::mix;
use crate::emulated::{Config, Effect, Emulated, Event, PrefixCache, Request, Used};

/// What an emulated engine is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImitatedConfig {
    /// The engine.
    pub engine: Config,
    /// Who may find whose prefixes, where it keeps any.
    pub sharing: Sharing,
}

/// One emulated engine.
#[derive(Debug)]
pub struct Imitated {
    config: ImitatedConfig,
    engine: Emulated,
    /// What it has said and nobody has heard.
    said: VecDeque<Said>,
    /// Answers that are cut, and so end by their length.
    cut: BTreeSet<RequestId>,
}

impl Imitated {
    /// An idle engine.
    ///
    /// # Panics
    /// With numbers that no engine has; whoever reads a configuration checks them first.
    pub(super) fn new(config: ImitatedConfig) -> Self {
        let engine = match Emulated::new(config.engine) {
            Ok(engine) => engine,
            Err(error) => unreachable!("an engine was configured that cannot be: {error}"),
        };
        Self {
            config,
            engine,
            said: VecDeque::new(),
            cut: BTreeSet::new(),
        }
    }

    pub(super) fn submit(&mut self, job: Job, now: Time) {
        if job.output_max < job.output {
            self.cut.insert(job.id);
        }
        let request = Request {
            id: job.id,
            prompt: job.prompt.tokens,
            output: job.output.min(job.output_max),
            prefix: self.names(job.tenant, job.prompt),
        };
        self.engine.handle(Event::Arrived(request), now);
        self.hear();
    }

    pub(super) fn cancel(&mut self, id: RequestId, now: Time) {
        self.engine.handle(Event::Cancelled(id), now);
        self.hear();
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.engine.next_wake()
    }

    pub(super) fn advance(&mut self, now: Time) {
        self.engine.handle(Event::Wake, now);
        self.hear();
    }

    pub(super) fn poll(&mut self) -> Option<Said> {
        self.said.pop_front()
    }

    pub(super) fn kv(&self) -> KvBlocks {
        self.engine.gauges().kv_used
    }

    pub(super) fn is_empty(&self) -> bool {
        let gauges = self.engine.gauges();
        gauges.running == 0 && gauges.waiting == 0
    }

    pub(super) fn made(&self) -> Made {
        let counters = self.engine.counters();
        Made {
            prompt: counters.prompt,
            cached: counters.prefix_hit,
            output: counters.output,
            preemptions: counters.preempted,
        }
    }

    /// The names of the blocks that a prompt shares with others.
    fn names(&self, tenant: TenantId, prompt: Prompt) -> Arc<[u64]> {
        let Some(shared) = prompt.shared else {
            return Arc::default();
        };
        if self.config.engine.prefix_cache == PrefixCache::Off {
            return Arc::default();
        }
        let space = match self.config.sharing {
            Sharing::Tenant => u64::from(tenant.get()) + 1,
            Sharing::All => 0,
        };
        let text = mix(shared.id ^ mix(space));
        let blocks = shared.tokens.min(prompt.tokens).get() / KvBlocks::SLOTS.get();
        (0..blocks).map(|n| mix(text.wrapping_add(n))).collect()
    }

    fn hear(&mut self) {
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Started { .. } | Effect::Preempted { .. } => {}
                Effect::Stepped { served } => self.stepped(served),
                Effect::Ended { id, used } => {
                    let reason = match self.cut.remove(&id) {
                        true => FinishReason::Length,
                        false => FinishReason::Stop,
                    };
                    self.ended(id, EngineEnding::Finished(reason), used);
                }
                Effect::Cancelled { id, used } => {
                    self.cut.remove(&id);
                    self.ended(id, EngineEnding::Cancelled, used);
                }
                Effect::Refused { id, .. } => {
                    self.cut.remove(&id);
                    let ending = EngineEnding::Failed(Failure::Sequence);
                    self.ended(id, ending, Used::default());
                }
            }
        }
    }

    /// What it says of itself now.
    pub(super) fn report(&self) -> Report {
        let gauges = self.engine.gauges();
        Report {
            waiting: u32::try_from(gauges.waiting).unwrap_or(u32::MAX),
            kv: gauges.kv_used,
        }
    }

    fn stepped(&mut self, served: Vec<crate::emulated::Served>) {
        let report = self.report();
        let one = |one: crate::emulated::Served| Served {
            id: one.id,
            prompt: one.prompt,
            output: one.output,
        };
        let any = |one: &Served| one.prompt > Tokens::ZERO || one.output > Tokens::ZERO;
        let served = served.into_iter().map(one).filter(any).collect();
        self.said.push_back(Said::Stepped { served, report });
    }

    fn ended(&mut self, id: RequestId, ending: EngineEnding, used: Used) {
        let usage = Usage {
            prompt: used.prompt,
            cached: used.cached,
            output: used.output,
        };
        self.said.push_back(Said::Ended { id, ending, usage });
    }
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::Service;

    use super::*;
    use crate::workload::Prefix;
    use tollgate_policy::pace::Haste;

    fn job(id: u64, tenant: u32, output_max: u64) -> Job {
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
            output: Tokens::new(5),
            output_max: Tokens::new(output_max),
            served: Service::ZERO,
            haste: Haste::AtOnce,
        }
    }

    fn run(imitated: &mut Imitated, job: Job) -> Vec<Said> {
        imitated.submit(job, Time::START);
        while let Some(at) = imitated.next() {
            imitated.advance(at);
        }
        std::iter::from_fn(|| imitated.poll()).collect()
    }

    #[test]
    fn an_answer_longer_than_granted_ends_by_its_length() {
        let config = ImitatedConfig {
            engine: Config::default(),
            sharing: Sharing::Tenant,
        };
        let mut imitated = Imitated::new(config);
        for (id, most, output, reason) in [
            (1, 3, 3, FinishReason::Length),
            (2, 9, 5, FinishReason::Stop),
        ] {
            let said = run(&mut imitated, job(id, 0, most));
            let usage = Usage {
                prompt: Tokens::new(100),
                cached: Tokens::ZERO,
                output: Tokens::new(output),
            };
            let ending = EngineEnding::Finished(reason);
            let id = RequestId::new(id);
            assert_eq!(said.last(), Some(&Said::Ended { id, ending, usage }));
        }
        assert!(imitated.is_empty() && imitated.kv() == KvBlocks::ZERO);
    }

    #[test]
    fn what_one_tenant_said_is_found_by_another_only_where_all_share() {
        let reused = |sharing| {
            let engine = Config {
                prefix_cache: PrefixCache::On,
                ..Config::default()
            };
            let mut imitated = Imitated::new(ImitatedConfig { engine, sharing });
            run(&mut imitated, job(1, 0, 9));
            run(&mut imitated, job(2, 1, 9));
            imitated.made().cached
        };
        assert_eq!(reused(Sharing::Tenant), Tokens::ZERO);
        assert_eq!(reused(Sharing::All), Tokens::new(64));
    }
}
