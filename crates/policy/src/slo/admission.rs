//! SLO admission of one pool, composed: what it costs, what was promised, and how that fared.
//!
//! It is told what happens to each request, by its number, and asked twice: at the door whether a
//! request is let in, and when the request leaves the queue whether that still holds. What it
//! promised stays with the request until its end, and is what the end is scored against.

mod learn;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};

pub use self::state::{CalibratorState, FitState, State};
pub use self::view::{ClassView, FitView, ModelView, Unattainable, View};
use super::calibrate::{Calibration, Calibrator, Footing, Group, Score};
use super::cost::Costs;
use super::decide::{self, Because, Market, Pressure, Quota, Standing, Verdict};
use super::ends::Ends;
use super::facts::{Estimate, Facts, Metric};
use super::lengths::{Lengths, Ring};
use super::lessons::Lessons;
use super::sight::{Fared, Sight};
use super::spell::Spell;
use super::terms::{Asked, Mode, Slo, Terms};
use super::trees::Trees;
use crate::ids::{RequestId, TenantId};
use crate::outcome::Outcome;
use crate::tenant::Class;
use crate::units::{Micros, Time, Tokens};

/// A request at the door, as the gateway knows it.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// Which.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Its tenant's share.
    pub weight: u32,
    /// Whether its tenant has less than its share.
    pub below_share: bool,
    /// What it asks for itself.
    pub asked: Asked,
    /// When it was received, before its body was read.
    pub received: Time,
    /// What is known of it, but for what the pool costs and how long its tenant's answers are.
    pub facts: Facts,
}

/// A bound that was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// All of it, from when the request was received.
    pub promised: Micros,
    /// What it rests on.
    pub footing: Footing,
}

/// A request that was judged: it keeps what it was promised until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Whose.
    pub tenant: TenantId,
    /// When it was received.
    pub received: Time,
    /// What was known of it.
    pub facts: Facts,
    /// What its class is promised, tightened to what it asked for.
    pub terms: Option<Terms>,
    /// The plan rolled forward, where anything had been measured.
    pub plan: Option<Estimate>,
    /// What was expected of it: the plan, put right by what came of others.
    pub estimate: Option<Estimate>,
    /// What it was promised, by [`Metric::ALL`].
    pub bounds: [Option<Bound>; 3],
    /// What became of it.
    pub verdict: Verdict,
    group: Group,
    /// Whether its answer comes whole, and nothing of it before its end.
    is_whole: bool,
    sent: Option<Sent>,
    /// When the engine made its first token, where that is seen.
    made: Option<Time>,
    ttft: Option<Micros>,
    /// Whether its first token is known to be later than promised, and that has been counted.
    is_overdue: bool,
}

/// A request on its way to its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    at: Time,
    /// Prompt tokens that are computed until then.
    computed: u64,
    /// Sequences on its replica, itself included.
    sequences: u64,
    /// What was expected until then, and how far it was trusted.
    expected: Option<(Micros, Score)>,
}

/// What came of a request that was judged: a line of the decision trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub id: RequestId,
    /// How it was judged.
    pub judged: Judged,
    /// What came.
    pub seen: Seen,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How it ended.
    pub outcome: Outcome,
    /// Received to first token, where one came.
    pub ttft: Option<Micros>,
    /// Mean time between its tokens, where it completed.
    pub tpot: Option<Micros>,
    /// Received to last byte, where it completed.
    pub e2e: Option<Micros>,
    /// Tokens it was given.
    pub output: Tokens,
}

impl Seen {
    /// What came of one number.
    pub const fn of(&self, metric: Metric) -> Option<Micros> {
        match metric {
            Metric::Ttft => self.ttft,
            Metric::Tpot => self.tpot,
            Metric::E2e => self.e2e,
        }
    }
}

/// Admission of one pool.
#[derive(Clone, Debug)]
pub struct Admission {
    slo: Slo,
    costs: Costs,
    lengths: Lengths,
    /// What prompts there are to compute.
    prompts: Ring,
    ends: Ends,
    model: Trees,
    /// What the model is fitted to.
    lessons: Lessons,
    /// What its last fit came to.
    fit: Option<FitView>,
    /// By [`Metric::ALL`], of requests as they stood at the door; TTFT of those that waited.
    door: [Calibrator; 3],
    /// From a replica to the first token.
    stage: Calibrator,
    /// Whether those that waited lately have missed their bounds.
    spell: Spell,
    /// By [`Class::ALL`].
    pressure: [Pressure; 3],
    quota: Quota,
    market: Market,
    /// invariant: requests that were let in and have not ended.
    judged: BTreeMap<RequestId, Judged>,
    /// When a first token is overdue. invariant: of some in `judged` that wait for theirs.
    due: BTreeSet<(Time, RequestId)>,
    sight: Sight,
}

impl Admission {
    /// Admission that has seen nothing yet.
    pub fn new(slo: Slo) -> Self {
        Self {
            slo,
            costs: Costs::default(),
            lengths: Lengths::default(),
            prompts: Ring::default(),
            ends: Ends::default(),
            model: Trees::default(),
            lessons: Lessons::default(),
            fit: None,
            door: std::array::from_fn(|_| Calibrator::default()),
            stage: Calibrator::default(),
            spell: Spell::default(),
            pressure: [Pressure::default(); 3],
            quota: Quota::default(),
            market: Market::default(),
            judged: BTreeMap::new(),
            due: BTreeSet::new(),
            sight: Sight::default(),
        }
    }

    /// What is promised.
    pub const fn slo(&self) -> &Slo {
        &self.slo
    }

    /// Counts of what was promised and what came.
    pub const fn sight(&self) -> &Sight {
        &self.sight
    }

    /// Whether a request is let in, and what it is promised.
    pub fn judge(&mut self, door: Door, now: Time) -> Judged {
        let terms = self.slo.terms(door.facts.class);
        let terms = terms.map(|terms| terms.tightened(door.asked));
        let terms = terms.filter(|terms| !terms.is_empty());
        let facts = self.told(&door, terms.as_ref(), now);
        self.note_pressure(&facts, now);
        let plan = Estimate::of(&facts);
        let estimate = plan.map(|plan| self.put_right(&facts, plan, terms.as_ref()));
        let mut judged = Judged {
            tenant: door.tenant,
            received: door.received,
            facts,
            terms,
            plan,
            estimate,
            bounds: [None; 3],
            verdict: Verdict::Admit(Because::Unbound),
            group: group(&facts),
            is_whole: door.asked.whole,
            sent: None,
            made: None,
            ttft: None,
            is_overdue: false,
        };
        let price = Market::price(&facts, door.weight);
        self.prompts.push(facts.prompt - facts.cached);
        self.market.came(price);
        let Some(terms) = terms else {
            return judged;
        };
        let seen = |metric: &Metric| !judged.is_whole || *metric == Metric::E2e;
        let bound = |metric: Metric| {
            let metric = Some(metric).filter(seen)?;
            self.bound(metric, &judged, &terms)
        };
        judged.bounds = Metric::ALL.map(bound);
        let rank = self.market.rank(price);
        let misfits = |metric: &Metric| {
            let (longest, limit) = (self.longest(*metric, &judged, &terms), terms.of(*metric));
            let budget = |limit| decide::budget(limit, rank, door.below_share, terms.mode);
            matches!((longest, limit), (Some(longest), Some(limit)) if longest > budget(limit))
        };
        let misfit = Metric::ALL.into_iter().find(misfits);
        let standing = Standing {
            misfit,
            is_known: estimate.is_some(),
            is_room: facts.pool.waiting == 0
                && (facts.at_once || estimate.is_some_and(|plan| plan.fits(&terms))),
            is_pressed: self.pressure[facts.class.place()].is_on(),
        };
        judged.verdict = decide::decide(&terms, standing, &mut self.quota, now);
        judged
    }

    /// A request was let in; what it was promised is kept with it.
    pub fn let_in(&mut self, id: RequestId, judged: Judged) {
        if let Verdict::Admit(because) = judged.verdict {
            self.sight.let_in(because);
        }
        if let (Some(bound), false) = (judged.bounds[0], judged.facts.at_once) {
            self.due.insert((judged.received + bound.promised, id));
        }
        self.judged.insert(id, judged);
    }

    /// A request was refused.
    pub fn refused(&mut self, metric: Metric) {
        self.sight.turned_away(metric, true);
    }

    /// When a refused request would fit, as things stand: when what is before it has shrunk by what
    /// its bound is too long.
    pub fn wait(judged: &Judged) -> Option<Micros> {
        let over = |metric: Metric| {
            let limit = judged.terms?.of(metric)?;
            let bound = judged.bounds[metric.place()]?;
            Some(bound.promised - limit)
        };
        Metric::ALL.into_iter().filter_map(over).max()
    }

    /// Whether a request that leaves the queue can no longer be in time, when so many prompt tokens
    /// are computed until its first token; and by which number.
    pub fn recheck(
        &self,
        id: RequestId,
        computed: Tokens,
        others_wait: bool,
        now: Time,
    ) -> Option<Metric> {
        let judged = self.judged.get(&id)?;
        let terms = judged.terms?;
        let is_pressed = self.pressure[judged.facts.class.place()].is_on();
        let may_stay = match terms.mode {
            Mode::Goodput => !others_wait || !is_pressed,
            Mode::Guarantee => false,
        };
        if may_stay || judged.verdict == Verdict::Admit(Because::Explored) {
            return None;
        }
        let first = self.costs.prefill.line(now)?.at(computed.get());
        let (factor, _) = self
            .stage
            .factor(judged.group.sent(), terms.alpha, terms.calibration);
        let passed = now.since(judged.received);
        let late = |limit: Option<Micros>, bound: Micros| limit.is_some_and(|most| bound > most);
        if late(terms.ttft, passed + factor.times(first)) {
            return Some(Metric::Ttft);
        }
        let estimate = judged.estimate?;
        let decode = estimate.last? - estimate.first;
        let (factor, _) = self.door[2].factor(judged.group, terms.alpha, terms.calibration);
        late(terms.e2e, passed + factor.times(first + decode)).then_some(Metric::E2e)
    }

    /// A request that left the queue is dropped, since it would be late: it is scored as what it
    /// would have come to, so that dropping does not make promises look kept.
    pub fn dropped(&mut self, id: RequestId, metric: Metric, computed: Tokens, now: Time) {
        self.sight.turned_away(metric, false);
        let Some(judged) = self.judged.get(&id).copied() else {
            return;
        };
        let line = self.costs.prefill.line(now);
        let first = line.map_or(Micros::ZERO, |line| line.at(computed.get()));
        let came = now.since(judged.received) + first;
        // It has missed its bound, whatever it would have come to.
        self.first_came(id, &judged, (came, true), now);
    }

    /// A request was given to a replica on which so many prompt tokens are computed until its first
    /// token, beside so many sequences, itself included.
    pub fn sent(&mut self, id: RequestId, computed: Tokens, sequences: u32, now: Time) {
        let Some(judged) = self.judged.get_mut(&id) else {
            return;
        };
        self.costs.dispatched(judged.received, now);
        let line = self.costs.prefill.line(now);
        let expected = match judged.estimate {
            // It was promised this a moment ago.
            Some(plan) if judged.facts.at_once => Some(plan.first),
            Some(_) | None => line.map(|line| line.at(computed.get())),
        };
        let expected = expected.zip(judged.terms).map(|(expected, terms)| {
            let factor = self
                .stage
                .factor(judged.group.sent(), terms.alpha, terms.calibration);
            (expected, factor.0)
        });
        judged.sent = Some(Sent {
            at: now,
            computed: computed.get(),
            sequences: u64::from(sequences),
            expected,
        });
        self.ends.runs(id, now);
    }

    /// An engine in this process made the first token of a request. One whose answer comes whole
    /// shows what a first token costs at no other time.
    pub fn made(&mut self, id: RequestId, now: Time) {
        let Some(judged) = self.judged.get_mut(&id) else {
            return;
        };
        if judged.made.replace(now).is_none() && judged.is_whole {
            let judged = *judged;
            self.first_seen(&judged, now);
        }
    }

    /// The first token of a request was written to its client.
    pub fn first_token(&mut self, id: RequestId, now: Time) {
        let streamed = self.judged.get_mut(&id).filter(|one| !one.is_whole);
        let Some(judged) = streamed else {
            return;
        };
        let ttft = now.since(judged.received);
        if judged.ttft.replace(ttft).is_some() {
            return;
        }
        let judged = *judged;
        if judged.sent.is_some() {
            self.ends.runs(id, now);
        }
        self.first_seen(&judged, now);
        self.first_came(id, &judged, (ttft, false), now);
    }

    /// Learns what a first token cost, from the replica on.
    fn first_seen(&mut self, judged: &Judged, now: Time) {
        if let Some(sent) = judged.sent {
            let span = now.since(sent.at);
            if let (Some((expected, factor)), Some(terms)) = (sent.expected, judged.terms) {
                let missed = span > factor.times(expected);
                self.stage.judged(judged.group.sent(), terms.alpha, missed);
                self.stage
                    .scored(judged.group.sent(), Score::of(span, expected));
            }
            self.costs.prefilled(sent.computed, span, now);
        }
    }

    /// A request has ended. What was promised of its whole is scored where it completed; whoever
    /// left early has not shown what would have come.
    pub fn ended(&mut self, id: RequestId, mut seen: Seen, now: Time) -> Option<Row> {
        let judged = self.judged.remove(&id)?;
        self.ends.ended(id);
        self.forget_due(id, &judged);
        if judged.is_whole {
            (seen.ttft, seen.tpot) = (None, None);
        }
        if let Outcome::Completed(_) = seen.outcome {
            self.completed(&judged, &seen, now);
        } else {
            (seen.tpot, seen.e2e) = (None, None);
        }
        judged.terms.map(|_| Row { id, judged, seen })
    }

    /// Counts first tokens that are overdue: that they are missed is certain before they come.
    pub fn notice_overdue(&mut self, now: Time) {
        while let Some(&(at, id)) = self.due.first() {
            if at >= now {
                return;
            }
            self.due.pop_first();
            let Some(judged) = self.judged.get_mut(&id) else {
                continue;
            };
            judged.is_overdue = true;
            if let Some(terms) = judged.terms {
                self.door[0].judged(judged.group, terms.alpha, true);
                self.spell.note(terms.alpha, true);
            }
        }
    }

    /// The facts of a request, with what the pool costs and how long its tenant's answers are.
    fn told(&self, door: &Door, terms: Option<&Terms>, now: Time) -> Facts {
        let mut facts = door.facts;
        self.costs.tell(&mut facts.pool, now);
        facts.pool.age = self.ends.age(now);
        let alpha = terms.unwrap_or(&Terms::NONE).alpha;
        let lengths = self.lengths.of(door.tenant, alpha, facts.output_max);
        (facts.output_median, facts.output_most) = lengths;
        if let (Some(queue), Some(tpot)) = (facts.queue(), facts.tpot()) {
            facts.pool.ending = self.ends.expected(queue, tpot, now);
        }
        facts
    }

    /// How near the pool is to what it promises: by what a typical request would take, behind
    /// all that wait.
    fn note_pressure(&mut self, facts: &Facts, now: Time) {
        let typical = Facts {
            prompt: self.prompts.median(),
            cached: Tokens::ZERO,
            waited: Micros::ZERO,
            ahead: facts.pool.waiting,
            at_once: facts.pool.waiting == 0 && facts.pool.running < facts.pool.slots,
            output_most: self.lengths.pool.median(),
            ..*facts
        };
        let Some(plan) = Estimate::of(&typical) else {
            return;
        };
        let alone = Estimate::of(&alone(&typical));
        for class in Class::ALL {
            let Some(terms) = self.slo.terms(class) else {
                continue;
            };
            // What is beyond it even for one that is alone is nothing that refusing would mend.
            let level = |metric: Metric| {
                let limit = terms.of(metric)?.get().max(1);
                let can_be = alone.and_then(|alone| alone.to_come(metric));
                let mends = can_be.is_none_or(|can_be| can_be.get() <= limit);
                let taken = plan.to_come(metric)?.get();
                mends.then(|| taken.saturating_mul(1_000) / limit)
            };
            let level = Metric::ALL.into_iter().filter_map(level).max();
            self.pressure[class.place()].note(level.unwrap_or(0), now);
        }
    }

    /// What a number is taken to come to when it is weighed whether a request is let in.
    ///
    /// For goodput that is less than what is promised. One that may be in time is worth a place in
    /// the queue: it is dropped when it leaves that and is late, and has cost the engine nothing.
    fn longest(&self, metric: Metric, judged: &Judged, terms: &Terms) -> Option<Micros> {
        let promised = judged.bounds[metric.place()]?.promised;
        if terms.mode == Mode::Guarantee || terms.calibration != Calibration::Rolling {
            return Some(promised);
        }
        let estimate = judged.estimate.as_ref()?;
        let factor = self
            .calibrator(metric, judged)
            .likely(judged.group, terms.alpha.for_goodput());
        let likely = estimate.passed(metric) + factor.times(estimate.to_come(metric)?);
        Some(likely.min(promised))
    }

    fn calibrator(&self, metric: Metric, judged: &Judged) -> &Calibrator {
        match (metric, judged.facts.at_once) {
            (Metric::Ttft, true) => &self.stage,
            (Metric::Ttft | Metric::Tpot | Metric::E2e, _) => &self.door[metric.place()],
        }
    }

    fn bound(&self, metric: Metric, judged: &Judged, terms: &Terms) -> Option<Bound> {
        let estimate = judged.estimate.as_ref()?;
        let to_come = estimate.to_come(metric)?;
        let calibrator = self.calibrator(metric, judged);
        let (factor, footing) = calibrator.factor(judged.group, terms.alpha, terms.calibration);
        let bound = factor.times(to_come);
        let waits = metric == Metric::Ttft && !judged.facts.at_once;
        let follows = waits && terms.calibration == Calibration::Rolling;
        let bound = if follows {
            self.spell.widened(bound)
        } else {
            bound
        };
        Some(Bound {
            promised: estimate.passed(metric) + bound,
            footing,
        })
    }

    /// A first token came after so long, or would have.
    fn first_came(
        &mut self,
        id: RequestId,
        judged: &Judged,
        (ttft, dropped): (Micros, bool),
        now: Time,
    ) {
        self.forget_due(id, judged);
        let (Some(bound), Some(estimate), Some(terms)) =
            (judged.bounds[0], judged.estimate, judged.terms)
        else {
            return;
        };
        let missed = dropped || ttft > bound.promised;
        if !judged.facts.at_once {
            if !judged.is_overdue {
                self.door[0].judged(judged.group, terms.alpha, missed);
                self.spell.note(terms.alpha, missed);
            }
            let came = ttft - estimate.passed;
            let score = Score::of(came, estimate.first);
            self.door[0].scored(judged.group, score);
            self.learn(judged, came);
        }
        let came = (!dropped).then_some(ttft);
        self.fared(Metric::Ttft, judged, (bound, came), now);
    }

    fn completed(&mut self, judged: &Judged, seen: &Seen, now: Time) {
        self.lengths.learn(judged.tenant, seen.output);
        self.ends.learn(seen.output);
        let made = judged.made.filter(|_| judged.is_whole);
        let tpot = made.map_or(seen.tpot, |made| {
            let gaps = seen.output.get().saturating_sub(1);
            let each = now.since(made).get().checked_div(gaps)?;
            Some(Micros::new(each))
        });
        if let (Some(tpot), Some(sent)) = (tpot, judged.sent) {
            self.costs.decoded(sent.sequences, tpot, now);
        }
        let Some(terms) = judged.terms else {
            return;
        };
        for metric in [Metric::Tpot, Metric::E2e] {
            let bound = judged.bounds[metric.place()];
            let expected = judged.estimate.and_then(|plan| plan.to_come(metric));
            let (Some(came), Some(bound), Some(expected)) = (seen.of(metric), bound, expected)
            else {
                continue;
            };
            let passed = judged
                .estimate
                .map_or(Micros::ZERO, |plan| plan.passed(metric));
            let calibrator = &mut self.door[metric.place()];
            calibrator.judged(judged.group, terms.alpha, came > bound.promised);
            calibrator.scored(judged.group, Score::of(came - passed, expected));
            self.fared(metric, judged, (bound, Some(came)), now);
        }
        let late = |metric: &Metric| {
            let limit = terms.of(*metric);
            matches!((seen.of(*metric), limit), (Some(came), Some(limit)) if came > limit)
        };
        if let Verdict::Admit(because) = judged.verdict {
            self.sight.ended(because, Metric::ALL.iter().any(late));
        }
    }

    fn fared(
        &mut self,
        metric: Metric,
        judged: &Judged,
        (bound, came): (Bound, Option<Micros>),
        now: Time,
    ) {
        let Some(terms) = judged.terms else {
            return;
        };
        let fared = Fared {
            tenant: judged.tenant,
            class: judged.facts.class,
            promised: bound.promised,
            came,
            missed: came.is_none_or(|came| came > bound.promised),
            alpha: terms.alpha.get(),
        };
        self.sight.coverage[metric.place()].note(fared, now);
    }

    fn forget_due(&mut self, id: RequestId, judged: &Judged) {
        if let Some(bound) = judged.bounds[0] {
            self.due.remove(&(judged.received + bound.promised, id));
        }
    }
}

/// With which others a request is calibrated.
fn group(facts: &Facts) -> Group {
    let ahead = if facts.at_once { 0 } else { facts.ahead };
    Group::of(facts.class, facts.prompt - facts.cached, ahead)
}

/// The same request in an empty pool.
fn alone(facts: &Facts) -> Facts {
    let mut facts = Facts {
        ahead: 0,
        work_ahead: Tokens::ZERO,
        at_once: true,
        ..*facts
    };
    (facts.pool.running, facts.pool.waiting) = (0, 0);
    facts.pool.prefill_ahead = Tokens::ZERO;
    facts
}
