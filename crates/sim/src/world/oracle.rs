//! What must hold whatever happens, checked from outside: by the facts that go in and the orders
//! that come out, never by what the gateway says that it did.
//!
//! Each oracle has a test in which it trips. They keep their own books, and take no part in what
//! they watch.

mod gap;

use std::collections::BTreeMap;

use tollgate_policy::gateway::{Effect, Event, Progress, Record, Served};
use tollgate_policy::ids::RequestId;
use tollgate_policy::tenant::Class;
use tollgate_policy::units::{KvBlocks, KvByteMicros, Micros, Time, Tokens};
use tollgate_policy::usage::Usage;

use self::gap::Gap;
use crate::control::Control;
use crate::setup::{Checks, Setup};

/// Something that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// Each request ends once, is dispatched or refused before that, and never both.
    EndsOnce,
    /// What is written down as used is what the replicas made.
    Ledger,
    /// No replica is given more than it can hold, and none holds more.
    KvBudget,
    /// When all requests have ended, nothing is held for any.
    Zero,
    /// Nobody waits longer than it may without an answer.
    Starvation,
    /// Of two tenants that both wait, neither is served more than twice the bound ahead.
    ServiceGap,
    /// No replica is idle while a request waits that it could take.
    WorkConserving,
    /// The gateway comes to rest, and the run to its end.
    Progress,
}

impl Oracle {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::EndsOnce,
        Self::Ledger,
        Self::KvBudget,
        Self::Zero,
        Self::Starvation,
        Self::ServiceGap,
        Self::WorkConserving,
        Self::Progress,
    ];

    /// The name in a report.
    pub const fn label(self) -> &'static str {
        match self {
            Self::EndsOnce => "ends once",
            Self::Ledger => "ledger",
            Self::KvBudget => "kv budget",
            Self::Zero => "returns to zero",
            Self::Starvation => "no starvation",
            Self::ServiceGap => "service gap",
            Self::WorkConserving => "work conserving",
            Self::Progress => "progress",
        }
    }
}

/// Something that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was seen, by the gateway's clock.
    pub at: Time,
    /// What should have held.
    pub oracle: Oracle,
    /// What was seen.
    pub what: String,
}

/// Violations that are kept; a run with more is not looked at further.
const VIOLATIONS_MAX: usize = 20;

/// What a deadline may be missed by: the gateway is woken at it, not before.
const SLACK: Micros = Micros::from_millis(1);

/// Facts between two looks at all windows.
const LOOK_EVERY: u64 = 64;

#[derive(Debug)]
pub(super) struct Oracles {
    checks: Checks,
    found: Vec<Violation>,
    open: BTreeMap<RequestId, Seen>,
    /// How many requests of each tenant wait.
    waiting: Vec<u32>,
    /// How many requests each replica was given and is not done with.
    given: Vec<u32>,
    classes: Vec<Class>,
    only: Vec<Option<Class>>,
    /// What each replica can hold.
    kv: Vec<KvBlocks>,
    max_wait: Vec<Micros>,
    /// How far the clock was turned ahead in all: waits look longer by as much.
    turned: Micros,
    gap: Option<Gap>,
    /// Output that was written down.
    written: Tokens,
    /// Output that the gateway heard of.
    heard: Tokens,
    looks: u64,
}

/// A request, from outside.
#[derive(Clone, Copy, Debug)]
struct Seen {
    tenant: usize,
    stage: Stage,
    refused: bool,
    prompt: Tokens,
    output: Tokens,
    /// The engine's own account.
    usage: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Runs(usize),
    /// The engine is done with it.
    Made,
}

/// What the world looks like when all is over.
pub(super) struct End {
    /// Output that the replicas made.
    pub(super) made: Tokens,
    pub(super) is_idle: bool,
    pub(super) is_drained: bool,
    pub(super) under_way: usize,
}

impl Oracles {
    pub(super) fn new(setup: &Setup) -> Self {
        let wait = |class: Class| setup.model.max_wait.unwrap_or_else(|| class.max_wait());
        let classes: Vec<Class> = setup
            .callers
            .iter()
            .map(|caller| caller.tenant.class)
            .collect();
        let gap = match setup.checks {
            Checks::All => Gap::of(setup),
            Checks::PerRequest => None,
        };
        Self {
            checks: setup.checks,
            found: Vec::new(),
            open: BTreeMap::new(),
            waiting: vec![0; setup.callers.len()],
            given: vec![0; setup.fleet.len()],
            max_wait: classes.iter().map(|class| wait(*class)).collect(),
            classes,
            only: setup.fleet.iter().map(|one| one.only).collect(),
            kv: setup
                .fleet
                .iter()
                .map(|one| one.machine.capacity().kv)
                .collect(),
            turned: Micros::ZERO,
            gap,
            written: Tokens::ZERO,
            heard: Tokens::ZERO,
            looks: 0,
        }
    }

    pub(super) fn keeps_going(&self) -> bool {
        self.found.len() < VIOLATIONS_MAX
    }

    pub(super) fn into_violations(self) -> Vec<Violation> {
        self.found
    }

    pub(super) fn clock_turned(&mut self, by: i64) {
        self.turned += Micros::new(by.unsigned_abs());
    }

    pub(super) fn never_sleeps(&mut self, at: Time) {
        self.report(
            at,
            Oracle::Progress,
            "the gateway asks to be woken for ever",
        );
        // One is as good as many: nothing goes on from here.
        while self.keeps_going() {
            self.report(at, Oracle::Progress, "given up");
        }
    }

    pub(super) fn fact(&mut self, fact: &Event, at: Time) {
        match fact {
            Event::Arrived(arrival) | Event::Sought(arrival, _) => {
                let tenant = index(arrival.tenant.get());
                let seen = Seen {
                    tenant,
                    stage: Stage::Waits,
                    refused: false,
                    prompt: Tokens::ZERO,
                    output: Tokens::ZERO,
                    usage: Usage::default(),
                };
                self.waiting[tenant] += 1;
                self.open.insert(arrival.id, seen);
            }
            Event::Stepped { served, .. } => {
                for one in served {
                    self.served(one);
                }
            }
            Event::Streamed(served) => self.served(served),
            Event::EngineEnded { id, usage, .. } => self.made(*id, *usage, at),
            Event::Turned { .. }
            | Event::FirstToken { .. }
            | Event::Begun { .. }
            | Event::Reported { .. }
            | Event::Reckoned { .. }
            | Event::Noticed { .. }
            | Event::ReplicaFull { .. }
            | Event::ReplicaAdded { .. }
            | Event::ReplicaStopped { .. }
            | Event::ReplicaLeaving { .. }
            | Event::ClientEnded { .. }
            | Event::ReplicaUp { .. }
            | Event::ReplicaDown { .. }
            | Event::Reconfigured(_)
            | Event::Priced(_)
            | Event::Recalled { .. }
            | Event::Remembered { .. }
            | Event::Books(_)
            | Event::Drain { .. }
            | Event::Wake => {}
        }
    }

    fn served(&mut self, served: &Served) {
        self.heard += served.output;
        let Some(seen) = self.open.get_mut(&served.id) else {
            return;
        };
        seen.prompt += served.prompt;
        seen.output += served.output;
        let tenant = seen.tenant;
        if let Some(gap) = &mut self.gap {
            gap.served(tenant, served);
        }
    }

    fn made(&mut self, id: RequestId, usage: Usage, at: Time) {
        let Some(seen) = self.open.get_mut(&id) else {
            return;
        };
        if let Stage::Runs(n) = seen.stage {
            self.given[n] -= 1;
        }
        seen.stage = Stage::Made;
        seen.usage = usage;
        let (prompt, output) = (seen.prompt, seen.output);
        if usage.output != output || usage.prompt - usage.cached != prompt {
            let what = format!(
                "request {id}: steps served {prompt}+{output}, the engine's account is {usage:?}"
            );
            self.report(at, Oracle::Ledger, what);
        }
    }

    pub(super) fn effect(&mut self, effect: &Effect, at: Time) {
        match effect {
            Effect::Dispatch(dispatch) => {
                let (id, n) = (dispatch.id, index(dispatch.replica.get()));
                self.dispatched(id, n, dispatch.queued, at);
            }
            Effect::Refuse(refusal) => self.refused(refusal.id, at),
            Effect::Cancel { id, .. } => match self.open.get(id).map(|seen| seen.stage) {
                Some(Stage::Runs(_) | Stage::Made) => {}
                Some(Stage::Waits) => {
                    self.report(at, Oracle::EndsOnce, format!("{id} was cancelled unserved"));
                }
                None => {
                    self.report(
                        at,
                        Oracle::EndsOnce,
                        format!("{id} was cancelled after its end"),
                    );
                }
            },
            Effect::Record(record) => self.recorded(record, at),
            Effect::Mark(progress) => self.marked(progress, at),
            Effect::Drained if !self.open.is_empty() => {
                let what = format!("drained with {} requests open", self.open.len());
                self.report(at, Oracle::Zero, what);
            }
            Effect::Withdraw { id, .. } => match self.open.get(id).map(|seen| seen.stage) {
                Some(Stage::Runs(_)) => {}
                Some(Stage::Waits | Stage::Made) | None => {
                    self.report(
                        at,
                        Oracle::EndsOnce,
                        format!("{id} was taken back from nobody"),
                    );
                }
            },
            Effect::Drained
            | Effect::Weighed(_)
            | Effect::Fit(_)
            | Effect::Failed { .. }
            | Effect::Start { .. }
            | Effect::Stop { .. }
            | Effect::Retired { .. } => {}
        }
    }

    /// What a crash would charge is no more than what was served.
    fn marked(&mut self, progress: &Progress, at: Time) {
        let Progress { id, usage, .. } = *progress;
        let proven = self
            .open
            .get(&id)
            .is_some_and(|seen| usage.prompt <= seen.prompt && usage.output <= seen.output);
        if !proven {
            let what = format!("{id} was marked with more than it was served: {usage:?}");
            self.report(at, Oracle::Ledger, what);
        }
    }

    fn dispatched(&mut self, id: RequestId, n: usize, queued: Micros, at: Time) {
        let Some(seen) = self.open.get_mut(&id) else {
            self.report(at, Oracle::EndsOnce, format!("{id} was dispatched unknown"));
            return;
        };
        let (tenant, before, refused) = (seen.tenant, seen.stage, seen.refused);
        seen.stage = Stage::Runs(n);
        (seen.prompt, seen.output) = (Tokens::ZERO, Tokens::ZERO);
        match before {
            Stage::Waits => {
                self.waiting[tenant] -= 1;
                self.waited(id, tenant, queued, at);
            }
            // Tried elsewhere, after a replica failed it.
            Stage::Made => {}
            Stage::Runs(_) => {
                self.report(at, Oracle::EndsOnce, format!("{id} was dispatched twice"));
            }
        }
        if refused {
            self.report(
                at,
                Oracle::EndsOnce,
                format!("{id} was refused and dispatched"),
            );
        }
        self.given[n] += 1;
    }

    fn waited(&mut self, id: RequestId, tenant: usize, wait: Micros, at: Time) {
        let most = self.max_wait[tenant] + self.turned + SLACK;
        if wait > most {
            let what = format!("{id} waited {} us; at most {}", wait.get(), most.get());
            self.report(at, Oracle::Starvation, what);
        }
    }

    fn refused(&mut self, id: RequestId, at: Time) {
        match self.open.get_mut(&id) {
            None => self.report(at, Oracle::EndsOnce, format!("{id} was refused unknown")),
            Some(seen) if seen.refused || matches!(seen.stage, Stage::Runs(_)) => {
                self.report(at, Oracle::EndsOnce, format!("{id} was told twice"));
            }
            Some(seen) => seen.refused = true,
        }
    }

    fn recorded(&mut self, record: &Record, at: Time) {
        let id = record.id;
        let Some(seen) = self.open.remove(&id) else {
            self.report(at, Oracle::EndsOnce, format!("{id} ended twice"));
            return;
        };
        match seen.stage {
            Stage::Waits => {
                self.waiting[seen.tenant] -= 1;
                self.waited(id, seen.tenant, record.queued(), at);
            }
            Stage::Runs(n) => {
                self.given[n] -= 1;
                let what = format!("{id} ended while its replica works on it");
                self.report(at, Oracle::EndsOnce, what);
            }
            Stage::Made => {}
        }
        self.written += record.usage.output;
        // One that went back to the queue, and was dropped there, had nothing.
        let nothing = record.usage == Usage::default() && seen.output == Tokens::ZERO;
        if record.usage.output != seen.output || (record.usage != seen.usage && !nothing) {
            let what = format!(
                "request {id}: {:?} is written down; {}+{} was served",
                record.usage, seen.prompt, seen.output
            );
            self.report(at, Oracle::Ledger, what);
        }
    }

    /// The gateway has no more orders: it is at rest until the next fact.
    pub(super) fn settled(&mut self, control: &impl Control, at: Time) {
        if let Some(gap) = &mut self.gap
            && let Some(what) = gap.observe(&self.waiting)
        {
            self.report(at, Oracle::ServiceGap, what);
        }
        if self.checks == Checks::PerRequest {
            return;
        }
        let waits = self.waiting.iter().any(|waiting| *waiting > 0);
        self.looks += 1;
        if !waits && !self.looks.is_multiple_of(LOOK_EVERY) {
            return;
        }
        let gauges = control.gauges();
        for (n, replica) in gauges.replicas.iter().enumerate() {
            let window = &replica.window;
            let (held, capacity) = (window.sequences(), self.kv[n]);
            if held > 1 && window.kv() > capacity {
                let what = format!("replica {n} was given {:?} of {capacity:?}", window.kv());
                self.report(at, Oracle::KvBudget, what);
            }
            let idle =
                replica.healthy && window.limit() > 0 && window.occupancy() == KvBlocks::ZERO;
            if idle && waits && self.somebody_for(n) {
                let what = format!("replica {n} is idle while requests wait");
                self.report(at, Oracle::WorkConserving, what);
            }
        }
    }

    /// Whether somebody waits whom replica `n` could take.
    fn somebody_for(&self, n: usize) -> bool {
        let mut waiting = self.waiting.iter().zip(&self.classes);
        waiting.any(|(count, class)| *count > 0 && self.only[n].is_none_or(|only| only == *class))
    }

    pub(super) fn finish(&mut self, control: &impl Control, end: End, at: Time) {
        if !end.is_drained || end.under_way > 0 || !self.open.is_empty() {
            let what = format!(
                "{} requests have not ended, {} by the oracle's books",
                end.under_way,
                self.open.len()
            );
            self.report(at, Oracle::Progress, what);
            return;
        }
        let gauges = control.gauges();
        let held = gauges.replicas.iter().any(|replica| {
            let window = &replica.window;
            window.sequences() > 0 || window.kv().get() > 0 || window.prefill() > Tokens::ZERO
        });
        let queued = gauges
            .pools
            .iter()
            .any(|pool| pool.queued > 0 || pool.running > 0 || pool.queued_work > Tokens::ZERO);
        let reserved = control.reserved();
        let owed = reserved.requests > 0 || reserved.kv > KvByteMicros::ZERO;
        if held || queued || owed || gauges.in_flight > 0 || !end.is_idle {
            let sequences = gauges.replicas.iter().map(|one| one.window.sequences());
            let what = format!(
                "held after all have ended: {} requests in flight, {} in windows, {reserved:?}; \
                 engines idle: {}",
                gauges.in_flight,
                sequences.sum::<u32>(),
                end.is_idle
            );
            self.report(at, Oracle::Zero, what);
        }
        if self.written != self.heard || self.written > end.made {
            let what = format!(
                "{} tokens written down, {} heard of, {} made",
                self.written, self.heard, end.made
            );
            self.report(at, Oracle::Ledger, what);
        }
    }

    fn report(&mut self, at: Time, oracle: Oracle, what: impl Into<String>) {
        if self.found.len() < VIOLATIONS_MAX {
            let what = what.into();
            self.found.push(Violation { at, oracle, what });
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
