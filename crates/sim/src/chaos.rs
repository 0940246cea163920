//! Small worlds drawn at random, with everything that can go wrong in them: a seed is a fleet,
//! tenants with limits, clients with manners, and faults.
//!
//! They are made to be many and short. What happens in them is nobody's experience; they find
//! states that nobody thought of.

use std::num::{NonZeroU32, NonZeroU64};

use rand_core::Rng as _;
use rand_pcg::Pcg64;
use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::bucket::Rate;
use tollgate_policy::engine::{self, CacheConfig, Reservation};
use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::Model;
use tollgate_policy::pace::Target;
use tollgate_policy::route;
use tollgate_policy::tenant::{Allowed, Class, Limits, Tenant};
use tollgate_policy::units::{KvBlocks, KvByteMicros, KvBytes, Micros, Service, Time, Tokens};
use tollgate_policy::window::{Bounds, Knob};

use crate::arrivals::Arrivals;
use crate::chance::{Purpose, stream, unit};
use crate::client::{Broken, Manners, Obedience, Retries};
use crate::emulated::{self, Cost, PrefixCache};
use crate::fault::{Fault, FaultKind};
use crate::lengths::Lengths;
use crate::machine::{ImitatedConfig, MachineConfig, PlannedConfig, Sharing, StepCost};
use crate::setup::{Caller, Checks, Others, ReplicaSetup, Says, Setup};
use crate::workload::{Session, SharedPrefix, TenantLoad, Workload, WorkloadError};

/// What goes wrong in a world drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Nothing.
    Calm,
    /// Replicas die.
    Crashes,
    /// Replicas slow down and stand still.
    Sluggish,
    /// Replicas tell late what they hold, or cannot be reached.
    Partitions,
    /// The gateway's clock jumps.
    Clock,
    /// Clients leave in every phase, panic, or stop reading.
    Leavers,
    /// Clients come back at once, and many.
    Storms,
    /// All of it.
    All,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 8] = [
        Self::Calm,
        Self::Crashes,
        Self::Sluggish,
        Self::Partitions,
        Self::Clock,
        Self::Leavers,
        Self::Storms,
        Self::All,
    ];

    /// The name to ask by.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Crashes => "crashes",
            Self::Sluggish => "sluggish",
            Self::Partitions => "partitions",
            Self::Clock => "clock",
            Self::Leavers => "leavers",
            Self::Storms => "storms",
            Self::All => "all",
        }
    }

    fn has(self, other: Self) -> bool {
        self == other || self == Self::All
    }
}

/// Tokens of the longest request.
const CONTEXT: u64 = 512;

/// Requests of a world, about: few enough that thousands of worlds are quick.
const REQUESTS: f64 = 300.0;

/// The world of `seed`, of about `size` times 300 requests.
///
/// # Errors
/// None that these parameters can bring about; the type says what a workload can be refused for.
pub fn world(profile: Profile, seed: u64, size: f64) -> Result<Setup, WorkloadError> {
    let mut draw = Draw(stream(seed, Purpose::Fault, profile.label()));
    let fleet: Vec<ReplicaSetup> = (0..draw.up_to(1, 4)).map(|_| draw.replica()).collect();
    let slots: u64 = fleet
        .iter()
        .map(|one| u64::from(one.machine.capacity().sequences))
        .sum();
    let callers: Vec<Caller> = (0..draw.up_to(1, 5))
        .map(|n| draw.caller(n, profile))
        .collect();
    // A slot ends some three answers a second.
    let rate = slots as f64 * 3.0 * (0.2 + 2.5 * draw.unit());
    let lasting = (REQUESTS * size / rate).clamp(1.0, 10_000.0);
    let until = Time::START + Micros::new((lasting * 1e6) as u64);
    let each = rate / callers.len() as f64;
    let loads = callers
        .iter()
        .map(|caller| draw.load(&caller.tenant.name, each));
    let workload = Workload::drawn(loads.collect(), until, seed)?;
    let faults = draw.faults(profile, fleet.len(), until);
    Ok(Setup {
        seed,
        workload,
        fairness: draw.fairness(),
        model: draw.model(),
        faults,
        warmup: Time::START,
        drain: Micros::from_millis(draw.up_to(0, 20_000)),
        checks: Checks::All,
        score: None,
        longer: None,
        callers,
        fleet,
    })
}

struct Draw(Pcg64);

impl Draw {
    /// `least..=most`, each as likely.
    fn up_to(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.next_u64() % (most - least + 1)
    }

    fn unit(&mut self) -> f64 {
        unit(&mut self.0)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.up_to(1, many) == 1
    }

    fn millis(&mut self, least: u64, most: u64) -> Micros {
        Micros::from_millis(self.up_to(least, most))
    }

    fn some<T>(&mut self, one_in: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(one_in).then(|| make(self))
    }

    fn replica(&mut self) -> ReplicaSetup {
        let slots = NonZeroU32::MIN.saturating_add(self.up_to(0, 11) as u32);
        let kv = self.up_to(CONTEXT, 4_096);
        let cost = Cost {
            step: self.millis(2, 30),
            per_sequence: Micros::new(self.up_to(0, 500)),
            prefill_tokens_per_second: NonZeroU64::MIN.saturating_add(self.up_to(1_000, 20_000)),
        };
        let chunk = Tokens::new(self.up_to(32, 512));
        let machine = if self.one_in(2) {
            MachineConfig::Emulated(ImitatedConfig {
                engine: emulated::Config {
                    slots,
                    cost,
                    chunk,
                    kv: Tokens::new(kv),
                    context: Tokens::new(CONTEXT),
                    waiting_max: 1_000,
                    prefix_cache: match self.one_in(2) {
                        true => PrefixCache::On,
                        false => PrefixCache::Off,
                    },
                },
                sharing: Sharing::Tenant,
            })
        } else {
            let blocks = u32::try_from(kv / KvBlocks::SLOTS.get()).unwrap_or(u32::MAX);
            MachineConfig::Planned(PlannedConfig {
                engine: engine::Config {
                    sequences: slots.get(),
                    guests: slots.get() % 3,
                    blocks,
                    step_tokens: Tokens::new(u64::from(slots.get()) + self.up_to(0, 512)),
                    chunk,
                    paced: self.one_in(2),
                    order: match self.one_in(4) {
                        true => Order::PrefillFirst,
                        false => Order::DecodeFirst,
                    },
                    scheduler: Scheduler::Continuous,
                    reservation: match self.one_in(5) {
                        true => Reservation::Contiguous,
                        false => Reservation::Paged,
                    },
                    context: Tokens::new(CONTEXT),
                    waiting_max: 1_000,
                    cache: CacheConfig {
                        prefixes: self.up_to(0, 8) as u32,
                        tenant_blocks: KvBlocks::new(64),
                    },
                },
                cost: StepCost::Together(cost),
                sharing: Sharing::Tenant,
            })
        };
        ReplicaSetup {
            machine,
            only: None,
            report_every: match self.one_in(2) {
                true => Micros::ZERO,
                false => self.millis(10, 500),
            },
            starts_in: self.millis(0, 3_000),
            others: self.some(6, |draw| Others {
                every: draw.millis(20, 2_000),
                prompt: Tokens::new(draw.up_to(1, 200)),
                output: Tokens::new(draw.up_to(1, 100)),
            }),
        }
    }

    fn caller(&mut self, n: u64, profile: Profile) -> Caller {
        let rate = |draw: &mut Self, least, most| {
            let per_minute = NonZeroU64::MIN.saturating_add(draw.up_to(least, most));
            let burst = NonZeroU64::MIN.saturating_add(draw.up_to(CONTEXT, most.max(CONTEXT)));
            Rate { per_minute, burst }
        };
        let limits = Limits {
            requests: self.some(5, |draw| rate(draw, 100, 5_000)),
            tokens: self.some(5, |draw| rate(draw, 10_000, 500_000)),
            kv: self.some(5, |draw| KvByteMicros::from_gib_secs(draw.up_to(1, 40))),
            concurrency: self.some(5, |draw| {
                NonZeroU32::MIN.saturating_add(draw.up_to(0, 20) as u32)
            }),
            max_context: self.some(9, |draw| Tokens::new(draw.up_to(64, CONTEXT))),
            max_output: self.some(9, |draw| Tokens::new(draw.up_to(1, 64))),
        };
        let class = Class::ALL[self.up_to(0, 2) as usize];
        Caller {
            tenant: Tenant {
                name: format!("t{n}"),
                class,
                weight: NonZeroU32::MIN.saturating_add(self.up_to(0, 3) as u32),
                models: Allowed::All,
                limits,
                by_model: Default::default(),
                floor: match class {
                    Class::Reserved => self.up_to(0, 60) as u8,
                    Class::Standard | Class::BestEffort => 0,
                },
            },
            manners: self.manners(profile),
            texts: None,
            says: match self.up_to(0, 2) {
                0 => Says::Nothing,
                1 => Says::Truth,
                _ => Says::AtMost(Tokens::new(self.up_to(1, 100))),
            },
        }
    }

    fn manners(&mut self, profile: Profile) -> Manners {
        let leavers = profile.has(Profile::Leavers);
        let mut chance = |most: f64| if leavers { self.unit() * most } else { 0.0 };
        let (impatient, at_dispatch, mid, at_end) =
            (chance(0.2), chance(0.1), chance(0.2), chance(0.1));
        let (panics, stops_reading) = (chance(0.1), chance(0.05));
        let storms = profile.has(Profile::Storms);
        Manners {
            impatient,
            patience: self.millis(1, 5_000),
            leaves_at_dispatch: at_dispatch,
            leaves_mid_stream: mid,
            leaves_at_end: at_end,
            panics,
            stops_reading,
            takes: self.millis(0, 300),
            retries: Retries {
                most: if storms { self.up_to(1, 6) as u32 } else { 0 },
                obedient: match self.one_in(2) {
                    true => Obedience::Ignores,
                    false => Obedience::Waits,
                },
                broken: match self.one_in(2) {
                    true => Broken::AsksAgain,
                    false => Broken::Keeps,
                },
            },
        }
    }

    fn load(&mut self, name: &str, rate: f64) -> TenantLoad {
        let shared = self.some(3, |draw| SharedPrefix {
            tokens: draw.up_to(1, 200),
            variants: draw.up_to(1, 8) as u32,
            share: draw.unit(),
            family: Some(format!("texts{}", draw.up_to(0, 1))),
        });
        let session = self.some(4, |draw| Session {
            turns: draw.up_to(1, 5) as u32,
            think_s: draw.unit(),
        });
        TenantLoad {
            shared,
            session,
            ..TenantLoad::new(
                name,
                self.arrivals(rate),
                Lengths::Uniform { min: 1, max: 300 },
                Lengths::Uniform { min: 1, max: 60 },
            )
        }
    }

    fn arrivals(&mut self, rate: f64) -> Arrivals {
        match self.up_to(0, 2) {
            0 => Arrivals::Poisson { rate },
            1 => Arrivals::Gamma { rate, cv: 3.0 },
            _ => Arrivals::Spikes {
                base: rate * 0.5,
                peak: rate * 4.0,
                every_s: 2.0,
                lasting_s: 0.3,
            },
        }
    }

    fn fairness(&mut self) -> Policy {
        match self.up_to(0, 4) {
            0 => Policy::Fifo,
            1 => Policy::Drr {
                quantum: Service::new(self.up_to(1, 2_048)),
            },
            _ => Policy::Vtc,
        }
    }

    fn model(&mut self) -> Model {
        let mut window = Bounds {
            concurrency: match self.one_in(3) {
                true => Knob::Fixed(NonZeroU32::MIN.saturating_add(self.up_to(0, 7) as u32)),
                false => Knob::Auto,
            },
            headroom: match self.one_in(3) {
                true => Knob::Fixed(self.up_to(0, 3) as u32),
                false => Knob::Auto,
            },
            paced: self.one_in(2),
            ..Bounds::default()
        };
        window.guests = if window.paced { 2 } else { 0 };
        Model {
            context: Tokens::new(CONTEXT),
            queue_max: self.up_to(1, 200) as usize,
            max_wait: self.some(2, |draw| draw.millis(0, 10_000)),
            max_stream: self.millis(2_000, 30_000),
            kv_per_token: KvBytes::new(1 << 17),
            target: Target::default(),
            window,
            routing: route::Policy::ALL[self.up_to(0, 4) as usize].1,
            loading: None,
        }
    }

    fn faults(&mut self, profile: Profile, replicas: usize, until: Time) -> Vec<Fault> {
        let span = until.as_micros();
        let count = if profile == Profile::Calm {
            0
        } else {
            self.up_to(1, 8)
        };
        let mut faults: Vec<Fault> = (0..count)
            .filter_map(|_| {
                let at = Time::from_micros(self.up_to(0, span));
                let replica = self.up_to(0, replicas as u64 - 1) as usize;
                let kind = self.fault(profile, replica)?;
                Some(Fault { at, kind })
            })
            .collect();
        faults.sort_by_key(|fault| fault.at);
        faults
    }

    fn fault(&mut self, profile: Profile, replica: usize) -> Option<FaultKind> {
        let lasting = self.millis(50, 15_000);
        let every = self.millis(100, 10_000);
        let which = match profile {
            Profile::Calm => return None,
            Profile::Crashes | Profile::Storms => 0,
            Profile::Sluggish => self.up_to(1, 2),
            Profile::Partitions => self.up_to(3, 4),
            Profile::Clock => self.up_to(5, 6),
            Profile::Leavers => 7,
            Profile::All => self.up_to(0, 7),
        };
        Some(match which {
            0 => FaultKind::Crash {
                replica,
                starts_in_vain: self.up_to(0, 2) as u32,
            },
            1 => FaultKind::Slow {
                replica,
                per_mille: self.up_to(200, 20_000),
                lasting,
            },
            2 => FaultKind::Stuck { replica, lasting },
            3 => FaultKind::Stale {
                replica,
                every,
                lasting,
            },
            4 => FaultKind::Cut { replica, lasting },
            5 => FaultKind::ClockAhead(lasting),
            6 => FaultKind::ClockBack(lasting),
            _ => FaultKind::Exodus {
                percent: self.up_to(10, 100),
            },
        })
    }
}
