//! What a run is scored by: counts, waits and levels, kept as they come.
//!
//! Times are the world's: a client counts from when it meant to send its first try, and a gateway
//! whose clock jumps does not score better for it. Nothing here is rounded, binned or sketched.

use std::collections::BTreeMap;

use tollgate_policy::gateway::{Record, Reserved};
use tollgate_policy::outcome::{Outcome, Phase};
use tollgate_policy::slo::{Metric, Row, Terms};
use tollgate_policy::units::{KvBlocks, KvByteMicros, KvBytes, Micros, Time, Tokens};

use crate::machine::Made;
use crate::setup::Setup;
use crate::world::Flight;

/// The scores of one run.
#[derive(Debug)]
pub struct Tally {
    /// By tenant.
    pub tenants: Vec<TenantTally>,
    /// The ends of all tries by reason, warm-up included.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// When clients asked again.
    pub retries: Vec<Time>,
    /// What the fleet held, looked at four times a second.
    pub levels: Levels,
    /// What the replicas made, together.
    pub made: Made,
    /// What the tenants' levels held at the very end.
    pub left: Reserved,
    /// What became of each request, where answers are scored; the last end first.
    pub scored: Vec<Scored>,
    /// How each request was judged, where the gateway judges them.
    pub rows: Vec<Row>,
    score: Option<Terms>,
    warmup: Time,
    kv_per_token: KvBytes,
}

/// The scores of one tenant, over the requests that it sent after the warm-up.
#[derive(Clone, Debug, Default)]
pub struct TenantTally {
    /// Requests that it meant to send.
    pub came: u64,
    /// Those that were answered to the last token.
    pub completed: u64,
    /// Those whose client left of itself.
    pub left: u64,
    /// Those that were given up: refused, evicted, failed or cut, at the last try.
    pub lost: u64,
    /// First try meant to be sent to first token, in microseconds, of each that had one.
    pub ttft: Vec<u32>,
    /// Mean time between its tokens, in microseconds, of each that completed with two or more.
    pub tpot: Vec<u32>,
    /// Prompt tokens computed for it.
    pub prompt: Tokens,
    /// Those that were reused.
    pub cached: Tokens,
    /// Tokens it was given.
    pub output: Tokens,
    /// What its requests held: from when until when, and how much KV over that time.
    pub holds: Vec<Hold>,
    /// Per tenant with a bound on KV in flight, that bound.
    pub kv_limit: Option<KvByteMicros>,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// When its client meant to send it first.
    pub sent: Time,
    /// Whose, by its place among the callers.
    pub tenant: usize,
    /// When it ended.
    pub ended: Time,
    /// How it ended.
    pub fate: Fate,
}

/// How a request ended, against what answers must be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it came in time.
    InTime,
    /// It was served, and something of it was late, or did not come.
    Late,
    /// It was refused at the door.
    Refused,
    /// It was dropped while it waited.
    Dropped,
    /// Its client left of itself.
    Left,
}

impl Fate {
    fn of(terms: &Terms, flight: &Flight, record: &Record) -> Self {
        match record.outcome {
            Outcome::Completed(_) => {}
            Outcome::ClientGone(_) => return Self::Left,
            Outcome::Rejected(_) | Outcome::Repeated => return Self::Refused,
            Outcome::Evicted(_) => return Self::Dropped,
            Outcome::ReplicaFailed(_)
            | Outcome::ReplicaRefused(_)
            | Outcome::Fenced(_)
            | Outcome::Bug => return Self::Late,
        }
        let sent = flight.ask.sent;
        let came = |metric: Metric| match metric {
            Metric::Ttft => flight.first_token.map(|first| first.since(sent)),
            Metric::Tpot => record.tpot(),
            Metric::E2e => Some(record.ended.since(sent)),
        };
        let late = |metric: Metric| {
            let both = came(metric).zip(terms.of(metric));
            both.is_some_and(|(came, most)| came > most)
        };
        if Metric::ALL.into_iter().any(late) {
            Self::Late
        } else {
            Self::InTime
        }
    }
}

/// What one request held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When it was dispatched.
    pub from: Time,
    /// When it ended.
    pub until: Time,
    /// KV over that time.
    pub kv: KvByteMicros,
}

/// What the fleet held.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// Looks.
    pub looks: u64,
    /// The fullest replica over the mean of all, added up over the looks at which the mean was a
    /// twentieth of the whole or more.
    pub imbalance: f64,
    /// Those looks.
    pub imbalance_looks: u64,
    /// Per cent of the KV held, added up.
    pub held_percent: f64,
    /// The most that any replica held, in per cent.
    pub peak_percent: f64,
}

impl Tally {
    pub(crate) fn new(setup: &Setup) -> Self {
        let of = |caller: &crate::setup::Caller| TenantTally {
            kv_limit: caller.tenant.limits.kv,
            ..TenantTally::default()
        };
        Self {
            tenants: setup.callers.iter().map(of).collect(),
            outcomes: BTreeMap::new(),
            retries: Vec::new(),
            levels: Levels::default(),
            made: Made::default(),
            left: Reserved::default(),
            scored: Vec::new(),
            rows: Vec::new(),
            score: setup.score,
            warmup: setup.warmup,
            kv_per_token: setup.model.kv_per_token,
        }
    }

    pub(crate) fn came(&mut self, tenant: usize, now: Time) {
        if now >= self.warmup {
            self.tenants[tenant].came += 1;
        }
    }

    pub(crate) fn came_again(&mut self, now: Time) {
        self.retries.push(now);
    }

    /// A try has ended.
    pub(crate) fn ended(&mut self, flight: &Flight, record: &Record, now: Time) {
        *self
            .outcomes
            .entry(record.outcome.row().reason)
            .or_default() += 1;
        if flight.ask.sent < self.warmup {
            return;
        }
        let tenant = &mut self.tenants[flight.ask.tenant];
        tenant.prompt += record.usage.prompt - record.usage.cached;
        tenant.cached += record.usage.cached;
        tenant.output += record.usage.output;
        if let Some(first) = flight.first_token {
            tenant.ttft.push(micros(first.since(flight.ask.sent)));
        }
        if let (Some(_), Some(from)) = (tenant.kv_limit, flight.dispatched) {
            let tokens = record.usage.prompt + record.usage.output.half();
            let span = now.since(from);
            let kv = KvByteMicros::of(self.kv_per_token.times(tokens.get()), span);
            tenant.holds.push(Hold {
                from,
                until: now,
                kv,
            });
        }
        if let Outcome::Completed(_) = record.outcome {
            tenant.completed += 1;
            let gaps = record.usage.output.get().saturating_sub(1);
            let span = flight.first_token.map(|first| now.since(first));
            if let (Some(span), true) = (span, gaps > 0) {
                tenant.tpot.push(micros(Micros::new(span.get() / gaps)));
            }
        }
    }

    /// A client does not try again after this end.
    pub(crate) fn gave_up(&mut self, flight: &Flight, record: &Record) {
        if let Some(terms) = self.score {
            self.scored.push(Scored {
                sent: flight.ask.sent,
                tenant: flight.ask.tenant,
                ended: record.ended,
                fate: Fate::of(&terms, flight, record),
            });
        }
        if flight.ask.sent < self.warmup {
            return;
        }
        let tenant = &mut self.tenants[flight.ask.tenant];
        match record.outcome {
            Outcome::Completed(_) => {}
            Outcome::ClientGone(Phase::Queued | Phase::BeforeFirstToken | Phase::MidStream) => {
                tenant.left += 1;
            }
            Outcome::Rejected(_)
            | Outcome::Evicted(_)
            | Outcome::ReplicaFailed(_)
            | Outcome::ReplicaRefused(_)
            | Outcome::Fenced(_)
            | Outcome::Repeated
            | Outcome::Bug => tenant.lost += 1,
        }
    }

    /// A request was judged, and this came of it.
    pub(crate) fn weighed(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn sampled(&mut self, held: impl Iterator<Item = (KvBlocks, KvBlocks)>, now: Time) {
        if now < self.warmup {
            return;
        }
        let parts = held.map(|(held, total)| 100.0 * held.get() as f64 / total.get().max(1) as f64);
        let (mut count, mut sum, mut most) = (0_u64, 0.0, 0.0_f64);
        for part in parts {
            count += 1;
            sum += part;
            most = most.max(part);
        }
        let mean = sum / count.max(1) as f64;
        let levels = &mut self.levels;
        levels.looks += 1;
        levels.held_percent += mean;
        levels.peak_percent = levels.peak_percent.max(most);
        if mean >= 5.0 {
            levels.imbalance += most / mean;
            levels.imbalance_looks += 1;
        }
    }

    pub(crate) fn close(&mut self, made: impl Iterator<Item = Made>, left: Reserved) {
        self.made = made.fold(Made::default(), |sum, one| Made {
            prompt: sum.prompt + one.prompt,
            cached: sum.cached + one.cached,
            output: sum.output + one.output,
            preemptions: sum.preemptions + one.preemptions,
        });
        self.left = left;
    }

    /// When scoring begins.
    pub fn warmup(&self) -> Time {
        self.warmup
    }
}

impl TenantTally {
    /// KV over time that was in flight, over what may be: a mean over `from..until`, by what each
    /// request came to hold. Nothing where there is no bound.
    pub fn kv_over_limit(&self, from: Time, until: Time) -> Option<f64> {
        let limit = self.kv_limit?.get() as f64;
        let span = until.since(from).get() as f64;
        let within = |hold: &Hold| hold.until.min(until).since(hold.from.max(from)).get() as f64;
        let sum: f64 = self
            .holds
            .iter()
            .map(|hold| hold.kv.get() as f64 * within(hold))
            .sum();
        (limit > 0.0 && span > 0.0).then(|| sum / span / limit)
    }
}

impl Levels {
    /// The fullest replica over the mean, on average; nothing where the fleet was all but empty.
    pub fn imbalance_mean(&self) -> Option<f64> {
        (self.imbalance_looks > 0).then(|| self.imbalance / self.imbalance_looks as f64)
    }

    /// Per cent of the KV held, on average.
    pub fn held_mean(&self) -> f64 {
        self.held_percent / self.looks.max(1) as f64
    }
}

/// As many as fit: over an hour is as good as an hour.
fn micros(span: Micros) -> u32 {
    u32::try_from(span.get()).unwrap_or(u32::MAX)
}
