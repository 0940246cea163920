//! One embedded engine alone on a virtual clock: the planner that serves real models, with steps
//! that cost what they are told to.
//!
//! Made for ladders: the same requests under each scheduler, without a gateway before them; and on
//! the last rungs with one that admits by latency. What the tokens say is made up; equal prefixes
//! are equal tokens, so that the prefix cache finds what it would find.

mod admitted;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tollgate_policy::batch::{Order, Scheduler};
use tollgate_policy::engine::{
    CacheConfig, Config, ConfigError, Engine, EngineEffect, EngineEvent, Reservation, Sampled,
    Start, Step,
};
use tollgate_policy::ids::{RequestId, TenantId};
use tollgate_policy::outcome::EngineEnding;
use tollgate_policy::pace::Haste;
use tollgate_policy::prefix::Token;
use tollgate_policy::slo::{Alpha, Mode, Terms};
use tollgate_policy::units::{KvBlocks, Micros, Service, Time, Tokens};

pub use self::admitted::serve_admitted;
use crate::chance::mix;
use crate::workload::{Arrival, Prefix};

/// How an engine takes its requests, and who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// One at a time.
    Fifo,
    /// Batch by batch.
    Static,
    /// As soon as there is room.
    Continuous,
    /// And what prompts begin with alike is computed once.
    ContinuousPrefix,
    /// And a gateway before it refuses whom it would answer late at others' cost.
    Goodput,
    /// And refuses whatever it can't answer in time as surely as 80 of a hundred times.
    Guarantee80,
    /// The same, 95 of a hundred.
    Guarantee95,
    /// The same, 99 of a hundred.
    Guarantee99,
}

/// No rung has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no rung is called `{0}`; use fifo, static, continuous, continuous+prefix, slo-goodput, \
     slo-80, slo-95 or slo-99"
)]
pub struct UnknownRung(String);

impl Rung {
    /// Every rung, the lowest first.
    pub const ALL: [Self; 8] = [
        Self::Fifo,
        Self::Static,
        Self::Continuous,
        Self::ContinuousPrefix,
        Self::Goodput,
        Self::Guarantee80,
        Self::Guarantee95,
        Self::Guarantee99,
    ];

    /// Those of the engine alone, each better than the one before it.
    pub const ENGINE: [Self; 4] = [
        Self::Fifo,
        Self::Static,
        Self::Continuous,
        Self::ContinuousPrefix,
    ];

    /// The name.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Static => "static",
            Self::Continuous => "continuous",
            Self::ContinuousPrefix => "continuous+prefix",
            Self::Goodput => "slo-goodput",
            Self::Guarantee80 => "slo-80",
            Self::Guarantee95 => "slo-95",
            Self::Guarantee99 => "slo-99",
        }
    }

    /// How requests are admitted by latency, and how many of a thousand bounds may be missed;
    /// nothing where no gateway decides.
    pub const fn admits(self) -> Option<(Mode, u16)> {
        match self {
            Self::Fifo | Self::Static | Self::Continuous | Self::ContinuousPrefix => None,
            Self::Goodput => Some((Mode::Goodput, 100)),
            Self::Guarantee80 => Some((Mode::Guarantee, 200)),
            Self::Guarantee95 => Some((Mode::Guarantee, 50)),
            Self::Guarantee99 => Some((Mode::Guarantee, 10)),
        }
    }

    /// What requests are promised of these limits, where they are admitted by them.
    pub fn terms(self, limits: Terms) -> Option<Terms> {
        let (mode, per_mille) = self.admits()?;
        Some(Terms {
            mode,
            alpha: Alpha::of_thousand(per_mille)?,
            ..limits
        })
    }

    /// The value of `scheduler` in a configuration.
    pub const fn scheduler_label(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Static => "static",
            Self::Continuous
            | Self::ContinuousPrefix
            | Self::Goodput
            | Self::Guarantee80
            | Self::Guarantee95
            | Self::Guarantee99 => "continuous",
        }
    }

    /// Whether prompts share what they begin with alike.
    pub const fn shares_prefixes(self) -> bool {
        match self {
            Self::ContinuousPrefix
            | Self::Goodput
            | Self::Guarantee80
            | Self::Guarantee95
            | Self::Guarantee99 => true,
            Self::Fifo | Self::Static | Self::Continuous => false,
        }
    }

    const fn scheduler(self) -> Scheduler {
        match self {
            Self::Fifo => Scheduler::Fifo,
            Self::Static => Scheduler::Static,
            Self::Continuous
            | Self::ContinuousPrefix
            | Self::Goodput
            | Self::Guarantee80
            | Self::Guarantee95
            | Self::Guarantee99 => Scheduler::Continuous,
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl FromStr for Rung {
    type Err = UnknownRung;

    fn from_str(name: &str) -> Result<Self, UnknownRung> {
        let found = Self::ALL.into_iter().find(|rung| rung.label() == name);
        found.ok_or_else(|| UnknownRung(name.to_owned()))
    }
}

/// What an engine holds, and what its steps cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Sequences at once.
    pub sequences: u32,
    /// Room for the tokens of all of them.
    pub kv_tokens: u32,
    /// Tokens that one step may compute.
    pub step_tokens: u64,
    /// Tokens of one request.
    pub context: u64,
    /// What steps cost.
    pub cost: Cost,
}

/// What a step costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// By itself.
    pub step: Micros,
    /// Each sequence in it.
    pub per_sequence: Micros,
    /// How fast pieces of more than one token are computed; at least 1.
    pub prefill_tokens_per_s: u64,
}

impl Cost {
    fn of(&self, step: &Step) -> Micros {
        let counts = || step.work.iter().map(|work| work.count.get());
        let prefilled: u64 = counts().filter(|count| *count > 1).sum();
        let each = self.per_sequence.times(counts().count() as u64);
        let prefill = Micros::new(prefilled * 1_000_000 / self.prefill_tokens_per_s.max(1));
        self.step + each + prefill
    }
}

/// What became of one request; the times of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// When each token came.
    pub tokens: Vec<Time>,
    /// When it was over; `None` of one that was not, by the end.
    pub end: Option<Time>,
    /// Whether the engine would not take it.
    pub refused: bool,
}

/// Serves `arrivals` until all have ended or `until` has come, with no gateway before the engine;
/// what became of each, in their order.
///
/// # Errors
/// A machine on which nothing could run.
pub fn serve(
    rung: Rung,
    machine: Machine,
    arrivals: &[Arrival],
    until: Time,
) -> Result<Vec<Answered>, ConfigError> {
    let mut world = World {
        engine: Engine::new(config(rung, machine, arrivals.len()))?,
        arrivals,
        come: 0,
        now: Time::START,
        answered: vec![Answered::default(); arrivals.len()],
        last: BTreeMap::new(),
    };
    while world.now < until {
        world.let_come();
        match world.engine.plan() {
            Some(step) => world.step(&step, machine.cost),
            None => match arrivals.get(world.come) {
                Some(next) => world.now = next.at,
                None => break,
            },
        }
    }
    Ok(world.answered)
}

fn config(rung: Rung, machine: Machine, requests: usize) -> Config {
    let blocks = machine.kv_tokens / 16;
    let cache = if rung.shares_prefixes() {
        CacheConfig {
            prefixes: machine.sequences,
            tenant_blocks: KvBlocks::new(u64::from(blocks)),
        }
    } else {
        CacheConfig::OFF
    };
    Config {
        sequences: machine.sequences,
        guests: 0,
        blocks,
        step_tokens: Tokens::new(machine.step_tokens),
        chunk: Tokens::new(machine.step_tokens),
        paced: false,
        order: Order::DecodeFirst,
        scheduler: rung.scheduler(),
        reservation: Reservation::Paged,
        context: Tokens::new(machine.context),
        waiting_max: requests.max(1),
        cache,
    }
}

struct World<'a> {
    engine: Engine,
    arrivals: &'a [Arrival],
    come: usize,
    now: Time,
    answered: Vec<Answered>,
    /// The token that each running request made last, to number the next.
    last: BTreeMap<RequestId, u64>,
}

impl World<'_> {
    fn let_come(&mut self) {
        while let Some(arrival) = self
            .arrivals
            .get(self.come)
            .filter(|next| next.at <= self.now)
        {
            let number = self.come as u64;
            self.engine.handle(EngineEvent::Start(Start {
                id: RequestId::new(number),
                tenant: TenantId::new(u32::try_from(arrival.tenant).unwrap_or(u32::MAX)),
                prompt: prompt(arrival, number),
                max_output: arrival.output,
                elder: None,
                served: Service::ZERO,
                haste: Haste::AtOnce,
            }));
            self.come += 1;
        }
        self.hear();
    }

    fn step(&mut self, step: &Step, cost: Cost) {
        if !step.work.is_empty() {
            self.now = self.now + cost.of(step);
        }
        let sampled = step.work.iter().filter(|work| work.samples).map(|work| {
            let made = self.last.entry(work.id).or_default();
            *made += 1;
            Sampled {
                id: work.id,
                token: token(work.id.get() ^ OUTPUT, *made),
                ends: false,
            }
        });
        let sampled: Vec<Sampled> = sampled.collect();
        for one in &sampled {
            let place = place(one.id);
            if let Some(answered) = self.answered.get_mut(place) {
                answered.tokens.push(self.now);
            }
        }
        self.engine.handle(EngineEvent::Stepped { sampled });
        self.hear();
    }

    fn hear(&mut self) {
        while let Some(effect) = self.engine.poll_effect() {
            let (id, whole) = match effect {
                EngineEffect::Ended { id, ending, .. } => {
                    (id, matches!(ending, EngineEnding::Finished(_)))
                }
                EngineEffect::Refused { id, .. } => (id, false),
            };
            self.last.remove(&id);
            if let Some(answered) = self.answered.get_mut(place(id)) {
                (answered.end, answered.refused) = (Some(self.now), !whole);
            }
        }
    }
}

/// A request's number is its place among the arrivals.
fn place(id: RequestId) -> usize {
    usize::try_from(id.get()).unwrap_or(usize::MAX)
}

/// Apart from the numbers of requests and of prefixes.
const OUTPUT: u64 = 0x6f75_7470_7574_0000;
const OWN: u64 = 0x6f77_6e00_0000_0000;

/// The tokens of a request's prompt: those of its prefix, then its own.
fn prompt(arrival: &Arrival, number: u64) -> Vec<Token> {
    let shared = arrival.prefix.map_or(0, |prefix| prefix.tokens.get());
    let of = |place: u64| match arrival.prefix {
        Some(Prefix { id, .. }) if place < shared => token(id, place),
        Some(_) | None => token(number ^ OWN, place),
    };
    (0..arrival.prompt.get()).map(of).collect()
}

/// A token that is the same for the same place of the same text.
fn token(text: u64, place: u64) -> Token {
    let bits = mix(mix(text) ^ place) >> 34;
    Token::new(i32::try_from(bits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::lengths::Lengths;
    use crate::workload::{SharedPrefix, TenantLoad, Workload};

    pub(super) fn machine() -> Machine {
        Machine {
            sequences: 8,
            kv_tokens: 16_384,
            step_tokens: 512,
            context: 2_048,
            cost: Cost {
                step: Micros::from_millis(10),
                per_sequence: Micros::from_millis(1),
                prefill_tokens_per_s: 4_000,
            },
        }
    }

    fn arrivals(rate: f64) -> Vec<Arrival> {
        let output = Lengths::Lognormal {
            median: 32.0,
            sigma: 0.7,
            min: 1,
            max: 256,
        };
        let prompt = Lengths::Uniform { min: 580, max: 640 };
        let mut load = TenantLoad::new("a", Arrivals::Poisson { rate }, prompt, output);
        load.shared = Some(SharedPrefix {
            tokens: 550,
            variants: 4,
            share: 0.7,
            family: None,
        });
        let until = Time::START + Micros::from_secs(60);
        Workload::drawn(vec![load], until, 1)
            .unwrap()
            .arrivals()
            .collect()
    }

    /// Requests a second that ended within the minute they came in.
    fn rate(rung: Rung) -> f64 {
        let minute = Time::START + Micros::from_secs(60);
        let answered = serve(rung, machine(), &arrivals(20.0), minute).unwrap();
        answered
            .iter()
            .filter(|one| one.end.is_some_and(|end| end < minute))
            .count() as f64
            / 60.0
    }

    #[test]
    fn each_rung_serves_more_than_the_one_below_it() {
        let rates = Rung::ENGINE.map(rate);
        assert!(
            rates.is_sorted_by(|low, high| low * 1.05 < *high),
            "{rates:?}"
        );
    }

    #[test]
    fn every_request_ends_with_all_its_tokens_and_the_same_each_time() {
        let arrivals = arrivals(1.0);
        let never = Time::from_micros(u64::MAX);
        for rung in Rung::ENGINE {
            let answered = serve(rung, machine(), &arrivals, never).unwrap();
            for (arrival, answered) in arrivals.iter().zip(&answered) {
                assert_eq!(answered.tokens.len() as u64, arrival.output.get());
                assert!(answered.end.is_some() && !answered.refused);
                assert!(answered.tokens.is_sorted() && answered.tokens[0] > arrival.at);
            }
            assert_eq!(answered, serve(rung, machine(), &arrivals, never).unwrap());
        }
    }

    #[test]
    fn one_request_alone_costs_its_steps() {
        let alone = Arrival {
            at: Time::START,
            tenant: 0,
            prompt: Tokens::new(400),
            output: Tokens::new(3),
            prefix: None,
        };
        let until = Time::from_micros(u64::MAX);
        let answered = serve(Rung::Continuous, machine(), &[alone], until).unwrap();
        // 10 + 1 ms a step, and 100 ms for 400 tokens in the first.
        let at = [111_000, 122_000, 133_000].map(Time::from_micros);
        assert_eq!(answered[0].tokens, at);
    }

    #[test]
    fn a_request_that_never_fits_is_refused_and_the_others_go_on() {
        let asks = |prompt: u64| Arrival {
            at: Time::START,
            tenant: 0,
            prompt: Tokens::new(prompt),
            output: Tokens::new(2),
            prefix: None,
        };
        let until = Time::from_micros(u64::MAX);
        let answered = serve(Rung::Static, machine(), &[asks(5_000), asks(5)], until).unwrap();
        assert!(answered[0].refused && answered[0].tokens.is_empty());
        assert!(!answered[1].refused && answered[1].tokens.len() == 2);
    }

    #[test]
    fn an_unknown_rung_is_told_the_names() {
        for rung in Rung::ALL {
            assert_eq!(rung.label().parse(), Ok(rung));
        }
        let refused = "paged".parse::<Rung>().unwrap_err().to_string();
        assert!(refused.contains("continuous+prefix"), "{refused}");
    }
}
