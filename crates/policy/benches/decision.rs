//! What a decision costs with ten thousand tenants: arrive, reserve, queue, dispatch, serve, end.
//!
//! `cargo bench -p tollgate-policy` prints the mean of a whole life of a request; with
//! `TOLLGATE_PERCENTILES=1` it prints the percentiles of each kind of event instead, timed one by
//! one; and with `TOLLGATE_SLO=1` each request is promised something too, by a fitted model of as
//! many trees as a fit makes. Under callgrind the same run counts instructions.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::disallowed_types, reason = "a benchmark measures time")]
#![expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Instant;

use criterion::{Criterion, criterion_group};
use tollgate_policy::bucket::Rate;
use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::{
    Config, Effect, Event, Gateway, Learned, Model, ReplicaConfig, Report, Served,
};
use tollgate_policy::ids::{ModelId, ReplicaId, RequestId, TenantId};
use tollgate_policy::outcome::{EngineEnding, FinishReason};
use tollgate_policy::pace::Target;
use tollgate_policy::request::{Arrival, ClientEnding};
use tollgate_policy::route;
use tollgate_policy::slo::trees::{Node, Trees};
use tollgate_policy::slo::{Asked, Slo, State, Terms};
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant, TenantTable};
use tollgate_policy::units::{KvBlocks, KvByteMicros, KvBytes, Micros, Time, Tokens};
use tollgate_policy::usage::{Usage, Weights};
use tollgate_policy::window::{Bounds, Capacity};

const TENANTS: u32 = 10_000;

/// A gateway in steady state: a full window, and some thousand requests that wait.
struct Bench {
    gateway: Gateway,
    now: Time,
    next: u64,
    running: VecDeque<RequestId>,
}

impl Bench {
    fn new() -> Self {
        let rate = |n| {
            NonZeroU64::new(n).map(|n| Rate {
                per_minute: n,
                burst: n,
            })
        };
        let limits = Limits {
            requests: rate(1_000_000),
            tokens: rate(1_000_000_000),
            kv: Some(KvByteMicros::from_gib_secs(1_000_000)),
            concurrency: NonZeroU32::new(1_000),
            ..Limits::default()
        };
        let tenant = |n: u32| Tenant {
            name: format!("tenant-{n}"),
            class: [Class::Standard, Class::BestEffort, Class::Reserved][(n % 3) as usize],
            weight: NonZeroU32::new(n % 4 + 1).unwrap_or(NonZeroU32::MIN),
            models: Allowed::All,
            limits: limits.clone(),
            by_model: Default::default(),
            floor: 0,
        };
        let model = Model {
            context: Tokens::new(8_192),
            queue_max: 100_000,
            max_wait: Some(Micros::from_secs(3_600)),
            max_stream: Micros::from_secs(3_600),
            kv_per_token: KvBytes::new(131_072),
            target: Target {
                slo: promises(),
                ..Target::default()
            },
            window: Bounds::default(),
            routing: route::Policy::default(),
            loading: None,
        };
        let config = Config {
            tenants: TenantTable::new((0..TENANTS).map(tenant).collect(), tenant(0)),
            models: vec![model],
            replicas: vec![ReplicaConfig {
                model: ModelId::new(0),
                only: None,
            }],
            fairness: Policy::Vtc,
            weights: Weights::default(),
            seed: 1,
        };
        let mut bench = Self {
            gateway: Gateway::new(config),
            now: Time::START,
            next: 0,
            running: VecDeque::new(),
        };
        let capacity = Capacity {
            sequences: 64,
            kv: KvBlocks::new(100_000),
        };
        bench.handle(Event::ReplicaUp {
            replica: ReplicaId::new(0),
            capacity,
        });
        bench.learn();
        for _ in 0..5_000 {
            bench.arrive();
        }
        bench
    }

    /// Takes on a fitted model, where anything is promised.
    fn learn(&mut self) {
        if !promises().is_off() {
            let state = State {
                model: fitted(),
                ..State::default()
            };
            self.handle(Event::Recalled {
                model: ModelId::new(0),
                learned: Learned::State(Box::new(state)),
            });
        }
    }

    fn handle(&mut self, event: Event) {
        self.gateway.handle(event, self.now);
        while let Some(effect) = self.gateway.poll_effect() {
            if let Effect::Dispatch(dispatch) = effect {
                self.running.push_back(dispatch.id);
            }
        }
    }

    fn arrive(&mut self) {
        self.next += 1;
        self.now = self.now + Micros::new(300);
        // A multiplicative walk over all tenants, in no order that helps a cache.
        let tenant = (self.next.wrapping_mul(2_654_435_761) % u64::from(TENANTS)) as u32;
        self.handle(Event::Arrived(Arrival {
            id: RequestId::new(self.next),
            tenant: TenantId::new(tenant),
            key: None,
            model: ModelId::new(0),
            prompt: Tokens::new(100),
            output_max: None,
            retry: false,
            slo: Asked::default(),
            received: self.now,
        }));
    }

    fn step(&mut self) {
        let served = self.running.iter().take(64).map(|id| Served {
            id: *id,
            prompt: Tokens::ZERO,
            output: Tokens::new(1),
        });
        let event = Event::Stepped {
            replica: ReplicaId::new(0),
            served: served.collect(),
            report: Report::default(),
        };
        self.handle(event);
    }

    fn end(&mut self) {
        let Some(id) = self.running.pop_front() else {
            return;
        };
        self.handle(Event::FirstToken { id });
        let usage = Usage {
            prompt: Tokens::new(100),
            cached: Tokens::ZERO,
            output: Tokens::new(50),
        };
        let ending = EngineEnding::Finished(FinishReason::Stop);
        self.handle(Event::EngineEnded { id, ending, usage });
        self.handle(Event::ClientEnded {
            id,
            ending: ClientEnding::Delivered,
        });
    }
}

/// What is promised: nothing, or so much that nobody is refused.
fn promises() -> Slo {
    if std::env::var_os("TOLLGATE_SLO").is_none() {
        return Slo::default();
    }
    let long = Some(Micros::from_secs(3_600));
    Slo::of(Terms {
        ttft: long,
        tpot: long,
        e2e: long,
        ..Terms::NONE
    })
}

/// As many trees as a fit makes, of as many levels.
fn fitted() -> Trees {
    let split = |n: u16| Node::Split {
        feature: (n % 11) as u8,
        most: u64::from(n) * 100,
        left: 2 * n + 1,
        right: 2 * n + 2,
    };
    let tree = |_| (0..7).map(split).chain((0..8).map(Node::Leaf)).collect();
    Trees::new((0..61).map(tree).collect()).unwrap_or_default()
}

fn decision(criterion: &mut Criterion) {
    let mut bench = Bench::new();
    criterion.bench_function("a request's life, 10,000 tenants", |b| {
        b.iter(|| {
            bench.arrive();
            bench.end();
        });
    });
    criterion.bench_function("a step of 64 sequences", |b| b.iter(|| bench.step()));
}

/// Times each event by itself: a mean hides what the slowest client sees.
fn percentiles() {
    const ROUNDS: usize = 200_000;
    let mut bench = Bench::new();
    let (mut arrivals, mut ends) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        arrivals.push(timed(|| bench.arrive()));
        ends.push(timed(|| bench.end()));
    }
    for (name, mut nanos) in [
        ("arrive to queue", arrivals),
        ("end to next dispatch", ends),
    ] {
        nanos.sort_unstable();
        let at = |percent: usize| nanos[(nanos.len() - 1) * percent / 1_000];
        println!(
            "{name}: p50 {} ns, p99 {} ns, p99.9 {} ns, of {ROUNDS}",
            at(500),
            at(990),
            at(999)
        );
    }
}

fn timed(work: impl FnOnce()) -> u128 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos()
}

criterion_group!(benches, decision);

fn main() {
    if std::env::var_os("TOLLGATE_PERCENTILES").is_some() {
        percentiles();
    } else {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}
