//! Who asks when, and for how much: the arrivals of all tenants in one order of time.
//!
//! Each tenant has its own streams of chance, so that adding a tenant or changing one leaves the
//! others' arrivals as they were. Where the requests go is not decided here.

mod session;
mod shared;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tollgate_policy::units::{Micros, Time, Tokens};

use crate::arrivals::{Arrivals, ArrivalsError, Times};
use crate::chance::{Purpose, stream, unit};
use crate::lengths::{Lengths, LengthsError};
use crate::trace::Trace;

use self::shared::Beginnings;

pub use self::session::{Session, SessionError, Turn, Turns};
pub use self::shared::{Prefix, SharedError, SharedPrefix};

/// One request, before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it is to be sent.
    pub at: Time,
    /// Index of its tenant in the workload.
    pub tenant: usize,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Length of its output.
    pub output: Tokens,
    /// What its prompt begins with, where others begin so too.
    pub prefix: Option<Prefix>,
}

/// What one tenant sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantLoad {
    /// Unique in the workload; decides the tenant's chance, together with the seed.
    pub name: String,
    /// When its requests come.
    pub arrivals: Arrivals,
    /// How long its prompts are.
    pub prompt: Lengths,
    /// How long its outputs are.
    pub output: Lengths,
    /// What its prompts begin with alike; each is its own from the start without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedPrefix>,
    /// What follows an answer; nothing without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

impl TenantLoad {
    /// A tenant whose prompts share nothing and whose answers nothing follows.
    pub fn new(
        name: impl Into<String>,
        arrivals: Arrivals,
        prompt: Lengths,
        output: Lengths,
    ) -> Self {
        Self {
            name: name.into(),
            arrivals,
            prompt,
            output,
            shared: None,
            session: None,
        }
    }
}

/// The requests of several tenants over a span of time, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Workload {
    names: Vec<String>,
    sources: Vec<Source>,
    until: Time,
    seed: u64,
}

/// Where a tenant's requests come from.
#[derive(Clone, Debug)]
enum Source {
    Drawn(Box<TenantLoad>),
    /// Rows in the order of time, and how much faster than recorded they are sent.
    Replayed(Arc<[Replayed]>),
}

#[derive(Clone, Copy, Debug)]
struct Replayed {
    at: Time,
    prompt: Tokens,
    output: Tokens,
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// Nobody sends anything.
    #[error("no tenant; name at least one")]
    NoTenants,
    /// Two tenants would have the same chance.
    #[error("two tenants are called `{0}`; give each its own name")]
    SameName(String),
    /// A tenant's arrivals cannot be drawn.
    #[error("tenant `{tenant}`: {error}")]
    Arrivals {
        /// The tenant.
        tenant: String,
        /// Why not.
        error: ArrivalsError,
    },
    /// A tenant's lengths cannot be drawn.
    #[error("tenant `{tenant}`: {error}")]
    Lengths {
        /// The tenant.
        tenant: String,
        /// Why not.
        error: LengthsError,
    },
    /// Prompts cannot begin so.
    #[error("tenant `{tenant}`: {error}")]
    Shared {
        /// The tenant.
        tenant: String,
        /// Why not.
        error: SharedError,
    },
    /// No session goes on so.
    #[error("tenant `{tenant}`: {error}")]
    Session {
        /// The tenant.
        tenant: String,
        /// Why not.
        error: SessionError,
    },
    /// A trace can be replayed neither backwards nor at once.
    #[error("a trace at {0} times its speed; use 0.001 to 1000")]
    Speed(f64),
}

impl Workload {
    /// Requests drawn at random for each of `tenants`, from the start to just before `until`.
    ///
    /// # Errors
    /// No tenant, two of one name, or a distribution that is none.
    pub fn drawn(tenants: Vec<TenantLoad>, until: Time, seed: u64) -> Result<Self, WorkloadError> {
        let mut seen = BTreeSet::new();
        for load in &tenants {
            if !seen.insert(load.name.as_str()) {
                return Err(WorkloadError::SameName(load.name.clone()));
            }
            let tenant = || load.name.clone();
            load.arrivals
                .check()
                .map_err(|error| WorkloadError::Arrivals {
                    tenant: tenant(),
                    error,
                })?;
            for lengths in [&load.prompt, &load.output] {
                lengths.check().map_err(|error| WorkloadError::Lengths {
                    tenant: tenant(),
                    error,
                })?;
            }
            let shared = load.shared.as_ref().map_or(Ok(()), SharedPrefix::check);
            shared.map_err(|error| WorkloadError::Shared {
                tenant: tenant(),
                error,
            })?;
            let session = load.session.map_or(Ok(()), |session| session.check());
            session.map_err(|error| WorkloadError::Session {
                tenant: tenant(),
                error,
            })?;
        }
        let names = tenants.iter().map(|load| load.name.clone()).collect();
        let sources = tenants
            .into_iter()
            .map(|load| Source::Drawn(Box::new(load)))
            .collect();
        Self::of(names, sources, until, seed)
    }

    /// The requests of `trace`, `speed` times as fast as recorded, up to just before `until`.
    ///
    /// Times are compressed, and bursts with them: at twice the speed a burst is half as long. Rows
    /// of one coarse tick are spread evenly over it first. Lengths of 0 become 1.
    ///
    /// # Errors
    /// A speed that is out of range, or a trace without tenants.
    pub fn replayed(
        trace: &Trace,
        speed: f64,
        until: Time,
        seed: u64,
    ) -> Result<Self, WorkloadError> {
        if !(0.001..=1_000.0).contains(&speed) {
            return Err(WorkloadError::Speed(speed));
        }
        let of_tenant = |(index, name): (usize, &String)| {
            let mut rng = stream(seed, Purpose::Tick, name);
            let rows = trace.rows.iter().filter(|row| row.tenant == index);
            let mut rows: Vec<Replayed> = rows
                .map(|row| {
                    let spread = trace
                        .tick
                        .map_or(0.0, |tick| unit(&mut rng) * tick.get() as f64);
                    let at = (row.at.as_micros() as f64 + spread) / speed;
                    let least = |tokens: Tokens| Tokens::new(tokens.get().max(1));
                    let (prompt, output) = (least(row.prompt), least(row.output));
                    Replayed {
                        at: Time::from_micros(at as u64),
                        prompt,
                        output,
                    }
                })
                .collect();
            rows.sort_by_key(|row| row.at);
            Source::Replayed(rows.into())
        };
        let sources = trace.tenants.iter().enumerate().map(of_tenant).collect();
        Self::of(trace.tenants.clone(), sources, until, seed)
    }

    fn of(
        names: Vec<String>,
        sources: Vec<Source>,
        until: Time,
        seed: u64,
    ) -> Result<Self, WorkloadError> {
        if names.is_empty() {
            return Err(WorkloadError::NoTenants);
        }
        Ok(Self {
            names,
            sources,
            until,
            seed,
        })
    }

    /// Names of the tenants, by their index.
    pub fn tenants(&self) -> &[String] {
        &self.names
    }

    /// When it ends: every arrival is earlier.
    pub fn until(&self) -> Time {
        self.until
    }

    /// What follows the answer to `first`, one after the other; nothing where its tenant has no
    /// sessions.
    pub fn turns(&self, first: &Arrival) -> Turns {
        match self.sources.get(first.tenant) {
            Some(Source::Drawn(load)) => Turns::new(load, self.seed, first),
            Some(Source::Replayed(_)) | None => Turns::none(),
        }
    }

    /// Every request, in the order of time; those of one moment in the order of the tenants.
    pub fn arrivals(&self) -> Merged {
        let start = |(tenant, source): (usize, &Source)| {
            let name = self.names.get(tenant).map_or("", String::as_str);
            Lane::new(source, self.seed, name)
        };
        let lanes: Vec<Lane> = self.sources.iter().enumerate().map(start).collect();
        let mut merged = Merged {
            lanes,
            next: BinaryHeap::new(),
            until: self.until,
        };
        for tenant in 0..merged.lanes.len() {
            merged.refill(tenant);
        }
        merged
    }
}

/// The arrivals of a workload, in the order of time.
#[derive(Clone, Debug)]
pub struct Merged {
    lanes: Vec<Lane>,
    /// The next time of each tenant that has one.
    next: BinaryHeap<Reverse<(Time, usize)>>,
    until: Time,
}

impl Merged {
    fn refill(&mut self, tenant: usize) {
        let at = self.lanes.get_mut(tenant).and_then(Lane::next_time);
        if let Some(at) = at.filter(|at| *at < self.until) {
            self.next.push(Reverse((at, tenant)));
        }
    }
}

impl Iterator for Merged {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, tenant)) = self.next.pop()?;
        let (prompt, output, prefix) = self.lanes.get_mut(tenant)?.lengths();
        self.refill(tenant);
        Some(Arrival {
            at,
            tenant,
            prompt,
            output,
            prefix,
        })
    }
}

/// One tenant's requests so far.
#[derive(Clone, Debug)]
enum Lane {
    Drawn {
        times: Times,
        prompt: Box<(Lengths, Pcg64)>,
        output: Box<(Lengths, Pcg64)>,
        beginnings: Option<Beginnings>,
    },
    Replayed {
        rows: Arc<[Replayed]>,
        /// Rows whose time has been told.
        told: usize,
    },
}

impl Lane {
    fn new(source: &Source, seed: u64, name: &str) -> Self {
        let drawn = |lengths, purpose| Box::new((lengths, stream(seed, purpose, name)));
        match source {
            Source::Drawn(load) => Self::Drawn {
                times: load.arrivals.times(seed, name),
                prompt: drawn(load.prompt, Purpose::Prompt),
                output: drawn(load.output, Purpose::Output),
                beginnings: load
                    .shared
                    .as_ref()
                    .map(|shared| Beginnings::new(shared, seed, name)),
            },
            Source::Replayed(rows) => Self::Replayed {
                rows: Arc::clone(rows),
                told: 0,
            },
        }
    }

    fn next_time(&mut self) -> Option<Time> {
        match self {
            Self::Drawn { times, .. } => {
                let at_s = times.next()?;
                Some(Time::START + Micros::new((at_s * 1e6) as u64))
            }
            Self::Replayed { rows, told } => {
                let row = rows.get(*told)?;
                *told += 1;
                Some(row.at)
            }
        }
    }

    /// Prompt, output and beginning of the request whose time was told last.
    fn lengths(&mut self) -> (Tokens, Tokens, Option<Prefix>) {
        match self {
            Self::Drawn {
                prompt,
                output,
                beginnings,
                ..
            } => {
                let (lengths, rng) = &mut **prompt;
                let prompt = lengths.draw(rng);
                let prefix = beginnings.as_mut().and_then(|some| some.draw(prompt));
                let (lengths, rng) = &mut **output;
                (prompt, lengths.draw(rng), prefix)
            }
            Self::Replayed { rows, told } => {
                let row = rows.get(told.saturating_sub(1));
                row.map_or((Tokens::ZERO, Tokens::ZERO, None), |row| {
                    (row.prompt, row.output, None)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceRow;

    fn load(name: &str, rate: f64) -> TenantLoad {
        let lengths = Lengths::Uniform { min: 1, max: 1_000 };
        TenantLoad::new(name, Arrivals::Poisson { rate }, lengths, lengths)
    }

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    fn arrivals(tenants: Vec<TenantLoad>, seed: u64) -> Vec<Arrival> {
        Workload::drawn(tenants, secs(60), seed)
            .unwrap()
            .arrivals()
            .collect()
    }

    fn of_tenant(arrivals: &[Arrival], tenant: usize) -> Vec<Arrival> {
        let own = arrivals.iter().filter(|arrival| arrival.tenant == tenant);
        own.map(|arrival| Arrival {
            tenant: 0,
            ..*arrival
        })
        .collect()
    }

    #[test]
    fn arrivals_come_in_order_before_the_end_and_the_same_for_the_same_seed() {
        let tenants = || vec![load("a", 20.0), load("b", 3.0), load("c", 7.0)];
        let first = arrivals(tenants(), 1);
        assert!(first.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(first.iter().all(|arrival| arrival.at < secs(60)));
        assert!((0..3).all(|tenant| of_tenant(&first, tenant).len() > 100));
        assert_eq!(first, arrivals(tenants(), 1));
        assert_ne!(first, arrivals(tenants(), 2));
    }

    #[test]
    fn adding_a_tenant_shifts_nobody_elses_arrivals_wherever_it_is_put() {
        let alone = arrivals(vec![load("a", 20.0), load("b", 3.0)], 1);
        let joined = arrivals(vec![load("new", 50.0), load("a", 20.0), load("b", 3.0)], 1);
        assert_eq!(of_tenant(&alone, 0), of_tenant(&joined, 1));
        assert_eq!(of_tenant(&alone, 1), of_tenant(&joined, 2));
    }

    #[test]
    fn changing_the_lengths_of_outputs_leaves_times_and_prompts_alone() {
        let longer = TenantLoad {
            output: Lengths::Constant(9),
            ..load("a", 20.0)
        };
        let (before, after) = (
            arrivals(vec![load("a", 20.0)], 1),
            arrivals(vec![longer], 1),
        );
        let kept =
            |all: &[Arrival]| -> Vec<_> { all.iter().map(|one| (one.at, one.prompt)).collect() };
        assert_eq!(kept(&before), kept(&after));
    }

    #[test]
    fn a_workload_that_cannot_be_is_refused_with_the_tenants_name() {
        let refused = |tenants| {
            Workload::drawn(tenants, secs(1), 1)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(refused(vec![]), "no tenant; name at least one");
        assert!(
            refused(vec![load("a", 1.0), load("a", 2.0)]).contains("two tenants are called `a`")
        );
        assert!(refused(vec![load("a", 0.0)]).starts_with("tenant `a`: 0 requests per second"));
        let empty = TenantLoad {
            prompt: Lengths::Constant(0),
            ..load("a", 1.0)
        };
        assert!(refused(vec![empty]).starts_with("tenant `a`: lengths from 0"));
    }

    fn trace(tick: Option<Micros>) -> Trace {
        let row = |secs_at, tenant, prompt| TraceRow {
            at: secs(secs_at),
            tenant,
            prompt: Tokens::new(prompt),
            output: Tokens::new(0),
        };
        let rows = vec![
            row(0, 0, 10),
            row(0, 1, 20),
            row(3, 0, 30),
            row(6, 1, 40),
            row(9, 0, 50),
        ];
        Trace {
            tenants: vec!["x".to_owned(), "y".to_owned()],
            rows,
            tick,
        }
    }

    #[test]
    fn a_replay_is_the_trace_at_its_speed_up_to_the_end() {
        let workload = Workload::replayed(&trace(None), 3.0, secs(3), 1).unwrap();
        assert_eq!(workload.tenants(), ["x", "y"]);
        let shown: Vec<_> = workload
            .arrivals()
            .map(|arrival| {
                (
                    arrival.at,
                    arrival.tenant,
                    arrival.prompt.get(),
                    arrival.output.get(),
                )
            })
            .collect();
        let expected = [
            (secs(0), 0, 10, 1),
            (secs(0), 1, 20, 1),
            (secs(1), 0, 30, 1),
            (secs(2), 1, 40, 1),
        ];
        assert_eq!(shown, expected);
        for speed in [0.0, -1.0, f64::NAN] {
            assert!(Workload::replayed(&trace(None), speed, secs(3), 1).is_err());
        }
    }

    #[test]
    fn rows_of_a_coarse_tick_are_spread_over_it() {
        let tick = Micros::from_secs(3);
        let workload = Workload::replayed(&trace(Some(tick)), 1.0, secs(60), 1).unwrap();
        let times: Vec<Time> = workload.arrivals().map(|arrival| arrival.at).collect();
        assert_eq!(times.len(), 5);
        assert!(times.iter().all(|at| at.as_micros() % 3_000_000 != 0));
        assert!(times[0] < secs(3) && times[4] >= secs(9) && times[4] < secs(12));
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
