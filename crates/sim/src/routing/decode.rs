//! Replicas that hold the KV of what they generate. What a rule can get wrong: all that comes
//! between two reports goes to the one that was emptiest.

use tollgate_policy::ids::ReplicaId;
use tollgate_policy::route::{Affinity, Candidate, Load};
use tollgate_policy::units::{KvBlocks, Micros, Time, Tokens};

use super::{Reports, Routers, Rule};
use crate::chance::{Purpose, stream};
use crate::stats::Sorted;
use crate::workload::Arrival;

/// A fleet that generates.
#[derive(Clone, Copy, Debug)]
pub struct DecodeWorld {
    /// Replicas, all alike.
    pub replicas: u32,
    /// From dispatch to the first token.
    pub ttft: Micros,
    /// From one token to the next.
    pub tpot: Micros,
    /// KV that each can hold.
    pub total: Tokens,
    /// Output that a router expects of every request, right or wrong.
    pub expected_output: Tokens,
    /// When scoring begins: the fleet is full by then.
    pub from: Time,
    /// What is known of them.
    pub reports: Reports,
}

/// What came of a rule: KV in flight on the replica that has most, over the mean, looked at with
/// each report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeScore {
    /// The mean over time.
    pub mean: f64,
    /// The 99th percentile over time.
    pub p99: f64,
}

/// Runs `arrivals` by `rule`; the same for the same seed.
pub fn decode(
    rule: Rule,
    arrivals: impl Iterator<Item = Arrival>,
    world: DecodeWorld,
    seed: u64,
) -> DecodeScore {
    let mut fleet: Vec<Replica> = (0..world.replicas)
        .map(|_| Replica::new(world.reports.routers))
        .collect();
    let chance = stream(seed, Purpose::Arrivals, "routers");
    let mut routers = Routers::new(rule, world.reports.routers, chance);
    let (mut seen, mut next_report) = (Vec::new(), Time::START);
    let none = Affinity::default();
    for arrival in arrivals {
        while next_report <= arrival.at {
            for replica in &mut fleet {
                replica.report(next_report, &world);
            }
            if next_report >= world.from {
                seen.extend(max_over_mean(&fleet));
            }
            next_report = next_report + world.reports.every;
        }
        let router = routers.draw();
        let candidates: Vec<_> = fleet
            .iter()
            .zip(0..)
            .map(|(replica, n)| replica.candidate(n, router, rule, world.total.blocks()))
            .collect();
        let chosen = routers.choose(router, (arrival.prompt, &none), &candidates, world.total);
        let Some(choice) = chosen else { continue };
        if let Some(replica) = fleet.get_mut(usize::try_from(choice.replica.get()).unwrap_or(0)) {
            replica.running.push(arrival);
            if let Some(sent) = replica.sent.get_mut(router) {
                *sent += (arrival.prompt + world.expected_output).blocks();
            }
        }
    }
    let seen = Sorted::new(seen);
    DecodeScore {
        mean: seen.mean().unwrap_or(0.0),
        p99: seen.quantile(0.99).unwrap_or(0.0),
    }
}

struct Replica {
    running: Vec<Arrival>,
    reported: KvBlocks,
    /// What each router sent it since.
    sent: Vec<KvBlocks>,
}

impl Replica {
    fn new(routers: usize) -> Self {
        Self {
            running: Vec::new(),
            reported: KvBlocks::ZERO,
            sent: vec![KvBlocks::ZERO; routers],
        }
    }

    fn report(&mut self, now: Time, world: &DecodeWorld) {
        let generated = |arrival: &Arrival| {
            let span = now.since(arrival.at + world.ttft);
            Tokens::new(span.get() / world.tpot.get().max(1))
        };
        self.running
            .retain(|arrival| generated(arrival) < arrival.output);
        let held = self
            .running
            .iter()
            .map(|one| (one.prompt + generated(one)).blocks());
        self.reported = held.fold(KvBlocks::ZERO, |sum, one| sum + one);
        self.sent.fill(KvBlocks::ZERO);
    }

    fn candidate(&self, n: u32, router: usize, rule: Rule, total: KvBlocks) -> Candidate {
        let sent = match rule {
            Rule::Tollgate(_) | Rule::LongestPrefix => self.sent.get(router).copied(),
            Rule::LowestReport => None,
        };
        Candidate {
            replica: ReplicaId::new(n),
            load: Load {
                kv: self.reported + sent.unwrap_or_default(),
                total,
                sequences: 0,
                prefill: Tokens::ZERO,
            },
        }
    }
}

fn max_over_mean(fleet: &[Replica]) -> Option<f64> {
    let held: Vec<f64> = fleet
        .iter()
        .map(|replica| replica.reported.get() as f64)
        .collect();
    let (most, sum) = (
        held.iter().copied().fold(0.0, f64::max),
        held.iter().sum::<f64>(),
    );
    (sum > 0.0).then(|| most * held.len() as f64 / sum)
}
