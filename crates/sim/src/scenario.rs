//! Scenarios: worlds written down in YAML, with what must come of them.
//!
//! A file names a fleet, tenants and their clients, faults, and measures with a bound; or a profile
//! of worlds drawn at random. A mistake is told with its path, line and column. Nothing runs here.

mod consistent;
mod cost;
mod form;
mod measure;
mod read;
mod within;

use std::num::{NonZeroU32, NonZeroU64};

use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::bucket::Rate;
use tollgate_policy::engine::{self, CacheConfig, Reservation};
use tollgate_policy::fair::Policy;
use tollgate_policy::gateway::Model;
use tollgate_policy::pace::Target;
use tollgate_policy::route;
use tollgate_policy::slo::{Alpha, Calibration, Learner, Mode, Slo, Terms};
use tollgate_policy::tenant::{Allowed, Limits, Tenant};
use tollgate_policy::units::{KvBlocks, KvByteMicros, KvBytes, Micros, Service, Time, Tokens};
use tollgate_policy::window::{Bounds, Knob};

use self::form::{
    EngineForm, FairnessForm, FaultForm, Form, LimitsForm, ModelForm, ReplicaForm, SaysForm,
    SloForm, TenantForm,
};
pub use self::measure::{Measure, Verdict, What};
use crate::chaos::{self, Profile};
use crate::client::{Broken, Manners, Obedience, Retries};
use crate::emulated::{self, PrefixCache};
use crate::fault::{Fault, FaultKind};
use crate::known;
use crate::machine::{ImitatedConfig, MachineConfig, PlannedConfig, Sharing, StepCost};
use crate::setup::{Caller, Checks, Longer, Others, ReplicaSetup, Says, Setup, Texts};
use crate::trace::{Trace, TraceName};
use crate::workload::{TenantLoad, Workload, WorkloadError};
pub use crate::yaml::Mistake;

/// A world written down, and what must come of it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it shows, in a line.
    pub title: String,
    /// What goes on in it.
    pub about: String,
    /// Which gateways are tried in it, the first of them first.
    pub contenders: Vec<Contender>,
    /// What must come of it.
    pub measures: Vec<Measure>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    World(Box<Form>),
    Chaos { profile: Profile, size: f64 },
}

/// A gateway to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Tollgate, by the scenario's fairness.
    Tollgate,
    /// Tollgate, first in, first out.
    Fifo,
    /// A plain gateway, in front of engines that it tells of no tenants.
    Plain,
    /// Tollgate that promises nothing, and queues whatever comes.
    NoControl,
    /// The same, but that drops what has waited as long as its first token may take.
    Ttl,
    /// The same, with so short a queue as does best before anything shifts.
    Cap,
    /// Tollgate with the estimate itself for a bound.
    Point,
    /// Tollgate with the plan rolled forward, and no trees that put it right.
    Structural,
    /// Tollgate with a bound that is fitted once, for as many as the others: split conformal.
    SplitAlike,
    /// Tollgate with a bound that is fitted once, for 95 of a hundred, and refuses what it does not
    /// fit: split conformal.
    Split,
}

/// Requests that the shortest queue which does well may hold.
const CAP: usize = 8;

impl Contender {
    /// The name in a table.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate",
            Self::Fifo => "fifo",
            Self::Plain => "plain",
            Self::NoControl => "no control",
            Self::Ttl => "time to live",
            Self::Cap => "cap",
            Self::Point => "point",
            Self::Structural => "plan alone",
            Self::SplitAlike => "split 90%",
            Self::Split => "split 95%",
        }
    }
}

/// A recorded trace to replay in place of what the scenario draws.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'t> {
    /// Which.
    pub name: TraceName,
    /// The trace, where it is at hand; a stand-in that was fitted to it takes its place.
    pub trace: Option<&'t Trace>,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        let form = read::form(text)?;
        let contenders = match form.compare.is_empty() {
            true => vec![Contender::Tollgate],
            false => form.compare.iter().map(|one| (*one).into()).collect(),
        };
        let measures = measure::all(&form, text)?;
        let kind = match form.chaos {
            Some(chaos) => Kind::Chaos {
                profile: chaos.profile.into(),
                size: chaos.size,
            },
            None => Kind::World(Box::new(form.clone())),
        };
        let scenario = Self {
            title: form.title.clone(),
            about: form.about.clone(),
            contenders,
            measures,
            kind,
        };
        consistent::check(&scenario, &form, text)?;
        Ok(scenario)
    }

    /// The trace that it names itself.
    pub fn replays(&self) -> Option<TraceName> {
        match &self.kind {
            Kind::World(form) => form.replay.as_ref().map(|replay| replay.trace.0),
            Kind::Chaos { .. } => None,
        }
    }

    /// The same at another speed of the trace that it replays, and for so long.
    pub fn at_speed(mut self, speed: f64, duration: Micros) -> Self {
        if let Kind::World(form) = &mut self.kind {
            form.duration.0 = duration;
            if let Some(replay) = &mut form.replay {
                replay.speed = speed;
            }
        }
        self
    }

    /// The world of this seed, for this gateway.
    ///
    /// # Errors
    /// A workload that cannot be drawn.
    pub fn setup(
        &self,
        seed: u64,
        contender: Contender,
        replay: Option<Replay<'_>>,
    ) -> Result<Setup, WorkloadError> {
        let setup = match &self.kind {
            Kind::Chaos { profile, size } => chaos::world(*profile, seed, *size)?,
            Kind::World(form) => world(form, seed, replay)?,
        };
        Ok(match contender {
            Contender::Tollgate => setup,
            Contender::Fifo => Setup {
                fairness: Policy::Fifo,
                ..setup
            },
            Contender::Plain => untold(setup),
            Contender::NoControl => uncontrolled(setup),
            Contender::Ttl => {
                let wait = setup.score.and_then(|terms| terms.ttft);
                let mut setup = uncontrolled(setup);
                setup.model.max_wait = wait;
                setup
            }
            Contender::Cap => {
                let mut setup = uncontrolled(setup);
                setup.model.queue_max = CAP;
                setup
            }
            Contender::Point => with_terms(setup, |terms| Terms {
                calibration: Calibration::None,
                ..terms
            }),
            Contender::Structural => {
                let mut setup = setup;
                setup.model.target.slo = setup.model.target.slo.by(Learner::Structural);
                setup
            }
            Contender::SplitAlike => with_terms(setup, |terms| Terms {
                calibration: Calibration::Split,
                ..terms
            }),
            Contender::Split => with_terms(setup, |terms| Terms {
                calibration: Calibration::Split,
                alpha: Alpha::of_thousand(50).unwrap_or(terms.alpha),
                mode: Mode::Guarantee,
                ..terms
            }),
        })
    }
}

/// Nothing is promised, and everything waits as long as it takes.
fn uncontrolled(mut setup: Setup) -> Setup {
    setup.model.target.slo = Slo::default();
    setup.model.max_wait = Some(Micros::from_secs(86_400));
    setup.model.queue_max = 1_000_000;
    setup
}

fn with_terms(mut setup: Setup, change: impl Fn(Terms) -> Terms) -> Setup {
    if let Some(terms) = setup.score {
        setup.model.target.slo = Slo::of(change(terms));
    }
    setup
}

/// Engines that are told of no tenants share what they keep between all.
fn untold(mut setup: Setup) -> Setup {
    for replica in &mut setup.fleet {
        match &mut replica.machine {
            MachineConfig::Emulated(config) => config.sharing = Sharing::All,
            MachineConfig::Planned(config) => config.sharing = Sharing::All,
        }
    }
    setup
}

fn fits(replica: &ReplicaForm, model: &ModelForm) -> Result<(), String> {
    cost::check(replica)?;
    match machine(replica, model) {
        MachineConfig::Emulated(config) => config.engine.check().map_err(|error| error.to_string()),
        MachineConfig::Planned(config) => engine::Engine::new(config.engine)
            .map(|_| ())
            .map_err(|error| error.to_string()),
    }
}

fn world(form: &Form, seed: u64, replay: Option<Replay<'_>>) -> Result<Setup, WorkloadError> {
    let until = Time::START + form.duration.0;
    let own = form.replay.as_ref();
    let name = replay
        .map(|replay| replay.name)
        .or_else(|| own.map(|own| own.trace.0));
    let speed = own.map_or(1.0, |own| own.speed);
    let (workload, callers) = match name {
        None => drawn(form, seed, until)?,
        Some(name) => {
            let trace = replay.and_then(|replay| replay.trace);
            let workload = match trace {
                Some(trace) => Workload::replayed(trace, speed, until, seed)?,
                None => known::stand_in(name, speed, until, seed)?,
            };
            let callers = workload.tenants().iter().map(|name| named(form, name));
            let callers = callers.collect();
            (workload, callers)
        }
    };
    let replicas = form.fleet.iter().flat_map(|replica| {
        let setup = replica_setup(replica, &form.model);
        std::iter::repeat_n(setup, replica.count)
    });
    let mut faults: Vec<Fault> = form.faults.iter().map(fault).collect();
    faults.sort_by_key(|fault| fault.at);
    Ok(Setup {
        seed,
        workload,
        callers,
        fleet: replicas.collect(),
        model: model(&form.model, &form.fleet),
        fairness: match form.fairness {
            FairnessForm::Vtc => Policy::Vtc,
            FairnessForm::Drr => Policy::Drr {
                quantum: Service::new(1_024),
            },
            FairnessForm::Fifo => Policy::Fifo,
        },
        faults,
        warmup: Time::START + form.warmup.0,
        drain: form.drain.0,
        checks: match form.large {
            true => Checks::PerRequest,
            false => Checks::All,
        },
        score: form.model.slo.as_ref().map(terms),
        longer: form.longer.map(|longer| Longer {
            at: Time::START + longer.at.0,
            percent: longer.percent.max(1),
        }),
    })
}

fn drawn(form: &Form, seed: u64, until: Time) -> Result<(Workload, Vec<Caller>), WorkloadError> {
    let (mut loads, mut callers) = (Vec::new(), Vec::new());
    for tenant in &form.tenants {
        for n in 0..tenant.count {
            let name = match tenant.count {
                1 => tenant.name.clone(),
                _ => format!("{}-{n}", tenant.name),
            };
            loads.push(TenantLoad {
                shared: tenant.shared.clone(),
                session: tenant.session,
                ..TenantLoad::new(name.clone(), tenant.arrivals, tenant.prompt, tenant.output)
            });
            callers.push(caller(tenant, name));
        }
    }
    Ok((Workload::drawn(loads, until, seed)?, callers))
}

/// A tenant of a trace: as the scenario has it, or as the first one there.
fn named(form: &Form, name: &str) -> Caller {
    let of_name = form.tenants.iter().find(|tenant| tenant.name == name);
    let template = of_name.unwrap_or(&form.tenants[0]);
    caller(template, name.to_owned())
}

fn caller(tenant: &TenantForm, name: String) -> Caller {
    let clients = &tenant.clients;
    Caller {
        tenant: Tenant {
            name,
            class: tenant.class.into(),
            weight: tenant.weight,
            models: Allowed::All,
            limits: limits(&tenant.limits),
            by_model: Default::default(),
            floor: tenant.floor_percent,
        },
        manners: Manners {
            impatient: clients.impatient,
            patience: clients.patience.0,
            leaves_at_dispatch: clients.leaves_at_dispatch,
            leaves_mid_stream: clients.leaves_mid_stream,
            leaves_at_end: clients.leaves_at_end,
            panics: 0.0,
            stops_reading: clients.stops_reading,
            takes: clients.takes.0,
            retries: Retries {
                most: clients.retries,
                obedient: match clients.heeds_retry_after {
                    true => Obedience::Waits,
                    false => Obedience::Ignores,
                },
                broken: match clients.retries_broken {
                    true => Broken::AsksAgain,
                    false => Broken::Keeps,
                },
            },
        },
        texts: tenant.texts.as_ref().map(|texts| Texts {
            family: texts.family.clone(),
            tokens: Tokens::new(texts.tokens),
        }),
        says: match tenant.says {
            SaysForm::Nothing => Says::Nothing,
            SaysForm::Truth => Says::Truth,
            SaysForm::AtMost(tokens) => Says::AtMost(Tokens::new(tokens)),
        },
    }
}

fn limits(form: &LimitsForm) -> Limits {
    let rate = |per_minute: NonZeroU64| Rate {
        per_minute,
        burst: per_minute,
    };
    Limits {
        requests: form.rpm.map(rate),
        tokens: form.tpm.map(rate),
        kv: form.kv_gib_seconds.map(KvByteMicros::from_gib_secs),
        concurrency: form.concurrency,
        max_context: None,
        max_output: form.max_output.map(Tokens::new),
    }
}

fn model(form: &ModelForm, fleet: &[ReplicaForm]) -> Model {
    let embedded = |replica: &ReplicaForm| replica.engine == EngineForm::Embedded;
    Model {
        context: Tokens::new(form.context),
        queue_max: form.queue,
        max_wait: form.max_wait.map(|wait| wait.0),
        max_stream: form.max_stream.0,
        kv_per_token: KvBytes::new(form.kv_bytes_per_token),
        target: Target {
            tpot: form.tpot.0,
            slo: form
                .slo
                .as_ref()
                .map_or_else(Slo::default, |slo| Slo::of(terms(slo))),
        },
        window: Bounds {
            concurrency: form.window.concurrency.map_or(Knob::Auto, Knob::Fixed),
            headroom: form.window.headroom.map_or(Knob::Auto, Knob::Fixed),
            prefill: match form.window.prefill {
                Some(tokens) => Knob::Fixed(Tokens::new(tokens)),
                None => Knob::Auto,
            },
            // Only engines in the gateway's own process keep prompts to a pace.
            paced: form.prefill_pacing && fleet.iter().all(embedded),
            guests: guests(form, fleet),
            ..Bounds::default()
        },
        routing: route::Policy::PowerOfTwo,
        loading: None,
    }
}

/// Only engines in the gateway's own process give places of those that had more to others.
fn guests(form: &ModelForm, fleet: &[ReplicaForm]) -> u32 {
    let embedded = |replica: &ReplicaForm| replica.engine == EngineForm::Embedded;
    match form.prefill_pacing && fleet.iter().all(embedded) {
        true => {
            let guests = |one: &ReplicaForm| engine::Config::guests_of(one.slots.get());
            fleet.iter().map(guests).min().unwrap_or(0)
        }
        false => 0,
    }
}

fn terms(form: &SloForm) -> Terms {
    let default = Terms::NONE;
    Terms {
        ttft: form.ttft.map(|span| span.0),
        tpot: form.tpot.map(|span| span.0),
        e2e: form.e2e.map(|span| span.0),
        alpha: Alpha::of_thousand(form.per_mille).unwrap_or(default.alpha),
        mode: match form.guarantee {
            true => Mode::Guarantee,
            false => Mode::Goodput,
        },
        calibration: default.calibration,
    }
}

fn replica_setup(form: &ReplicaForm, model: &ModelForm) -> ReplicaSetup {
    ReplicaSetup {
        machine: machine(form, model),
        only: form.only.map(Into::into),
        report_every: form.report_every.0,
        starts_in: form.starts_in.0,
        others: form.others.as_ref().map(|others| Others {
            every: others.every.0.max(Micros::from_millis(1)),
            prompt: Tokens::new(others.prompt),
            output: Tokens::new(others.output),
        }),
    }
}

fn machine(form: &ReplicaForm, model: &ModelForm) -> MachineConfig {
    let context = model.context;
    let (slots, chunk) = (form.slots, Tokens::new(form.chunk));
    match form.engine {
        EngineForm::Emulated => MachineConfig::Emulated(ImitatedConfig {
            engine: emulated::Config {
                slots,
                cost: cost::together(form),
                chunk,
                kv: Tokens::new(form.kv_tokens),
                context: Tokens::new(context),
                waiting_max: 1_000_000,
                prefix_cache: match form.cache {
                    true => PrefixCache::On,
                    false => PrefixCache::Off,
                },
            },
            sharing: Sharing::Tenant,
        }),
        EngineForm::Embedded => MachineConfig::Planned(PlannedConfig {
            engine: engine::Config {
                sequences: slots.get(),
                guests: engine::Config::guests_of(slots.get()),
                blocks: u32::try_from(form.kv_tokens / KvBlocks::SLOTS.get()).unwrap_or(u32::MAX),
                step_tokens: Tokens::new(u64::from(slots.get())) + chunk,
                chunk,
                paced: model.prefill_pacing,
                order: Order::DecodeFirst,
                scheduler: Scheduler::Continuous,
                reservation: Reservation::Paged,
                context: Tokens::new(context),
                waiting_max: 1_000_000,
                cache: match form.cache {
                    true => CacheConfig {
                        prefixes: PREFIXES,
                        tenant_blocks: KvBlocks::new(form.kv_tokens / KvBlocks::SLOTS.get()),
                    },
                    false => CacheConfig::OFF,
                },
            },
            // Checked when the file was read.
            cost: cost::of_steps(form).unwrap_or_else(|_| StepCost::Together(cost::together(form))),
            sharing: Sharing::Tenant,
        }),
    }
}

/// Prefixes that an embedded engine keeps where its cache is on.
const PREFIXES: u32 = 256;

fn fault(form: &FaultForm) -> Fault {
    let replica = form.replica.unwrap_or(0);
    let lasting = form.lasting.map_or(Micros::from_secs(10), |span| span.0);
    let kind = match form.kind {
        form::FaultKindForm::Crash => FaultKind::Crash {
            replica,
            starts_in_vain: form.starts_in_vain,
        },
        form::FaultKindForm::Slow => FaultKind::Slow {
            replica,
            per_mille: (form.times * 1_000.0) as u64,
            lasting,
        },
        form::FaultKindForm::Stuck => FaultKind::Stuck { replica, lasting },
        form::FaultKindForm::Stale => FaultKind::Stale {
            replica,
            every: form.every.map_or(Micros::from_secs(10), |span| span.0),
            lasting,
        },
        form::FaultKindForm::Cut => FaultKind::Cut { replica, lasting },
        form::FaultKindForm::ClockAhead => FaultKind::ClockAhead(lasting),
        form::FaultKindForm::ClockBack => FaultKind::ClockBack(lasting),
        form::FaultKindForm::Exodus => FaultKind::Exodus {
            percent: form.percent,
        },
    };
    Fault {
        at: Time::START + form.at.0,
        kind,
    }
}

/// The least share that anything has.
const ONE: NonZeroU32 = NonZeroU32::MIN;

#[cfg(test)]
mod tests;
