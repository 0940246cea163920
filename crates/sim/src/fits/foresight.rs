//! What a bound could be worth at best: the same fitter, told what nobody can know at the door.
//!
//! How long an answer comes to be is unknown until it is there, and a place in the line is free
//! when one ends. So each bound is made again by somebody who knows the lengths of what runs, of
//! what is ahead, and in the end when the request leaves the queue. What a step down gives is what
//! that ignorance costs.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;
use std::rc::Rc;

use tollgate_policy::gateway::{Effect, Event, Gateway};
use tollgate_policy::ids::RequestId;
use tollgate_policy::slo::Row;
use tollgate_policy::slo::calibrate::Group;
use tollgate_policy::slo::lessons::Lesson;
use tollgate_policy::slo::trees::{FEATURES, features};
use tollgate_policy::units::{Micros, Time};

use super::{Score, walked};
use crate::control::{Ear, Overheard};
use crate::overload::{Bench, StudyError};
use crate::scenario::Contender;
use crate::setup::Setup;
use crate::trace::Trace;
use crate::world;

/// What is known of a request at the door by who knows lengths.
#[derive(Clone, Debug)]
struct Known {
    came: Time,
    /// Tokens that those that run still have to come, the fewest first.
    running: Vec<u64>,
    /// How long the answers of those ahead come to be, in their order.
    ahead: Vec<u64>,
    /// When it left the queue.
    sent: Option<Time>,
}

/// Knows how long answers come to be, and hears of all that happens.
struct Seer {
    /// By request, counted from 1.
    lengths: Vec<u64>,
    /// Tokens to come of those that run.
    left: BTreeMap<RequestId, u64>,
    waiting: BTreeSet<RequestId>,
    known: Rc<RefCell<BTreeMap<RequestId, Known>>>,
    now: Time,
}

impl Seer {
    fn of(setup: &Setup) -> Self {
        let length = |arrival: crate::workload::Arrival| match setup.longer {
            Some(longer) => longer.of(arrival.output, arrival.at).get(),
            None => arrival.output.get(),
        };
        Self {
            lengths: setup.workload.arrivals().map(length).collect(),
            left: BTreeMap::new(),
            waiting: BTreeSet::new(),
            known: Rc::default(),
            now: Time::START,
        }
    }

    fn length(&self, id: RequestId) -> u64 {
        let place = usize::try_from(id.get())
            .ok()
            .and_then(|n| n.checked_sub(1));
        place
            .and_then(|n| self.lengths.get(n).copied())
            .unwrap_or(1)
    }

    fn arrived(&mut self, id: RequestId, now: Time) {
        let mut running: Vec<u64> = self.left.values().copied().collect();
        running.sort_unstable();
        let known = Known {
            came: now,
            running,
            ahead: self.waiting.iter().map(|id| self.length(*id)).collect(),
            sent: None,
        };
        self.known.borrow_mut().insert(id, known);
        self.waiting.insert(id);
    }
}

impl Ear for Seer {
    fn event(&mut self, event: Event, now: Time) -> Event {
        self.now = now;
        if let Event::Arrived(arrival) = &event {
            self.arrived(arrival.id, now);
        }
        if let Event::Streamed(served) = &event
            && let Some(left) = self.left.get_mut(&served.id)
        {
            *left = left.saturating_sub(served.output.get());
        }
        if let Event::EngineEnded { id, .. } = &event {
            self.left.remove(id);
        }
        event
    }

    fn effect(&mut self, effect: &Effect) {
        if let Effect::Dispatch(dispatch) = effect {
            self.waiting.remove(&dispatch.id);
            self.left.insert(dispatch.id, self.length(dispatch.id));
            if let Some(known) = self.known.borrow_mut().get_mut(&dispatch.id) {
                known.sent = Some(self.now);
            }
        }
        if let Effect::Refuse(refusal) = effect {
            self.waiting.remove(&refusal.id);
        }
    }
}

/// How far it is seen ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// As far as a gateway does.
    Facts,
    /// And how long those that run will be.
    Running,
    /// And those that are before it.
    Ahead,
    /// And when it leaves the queue.
    Queue,
}

impl Sight {
    const ALL: [Self; 4] = [Self::Facts, Self::Running, Self::Ahead, Self::Queue];

    const fn label(self) -> &'static str {
        match self {
            Self::Facts => "all that a gateway knows",
            Self::Running => "and how long those that run will be",
            Self::Ahead => "and those that are before it",
            Self::Queue => "and when it leaves the queue",
        }
    }

    /// What is planned for a request that waits.
    fn plan(self, row: &Row, known: &Known) -> Option<Micros> {
        let facts = &row.judged.facts;
        let token = facts.pool.decode?.at(u64::from(facts.pool.slots));
        let own = facts.pool.prefill?.at((facts.prompt - facts.cached).get());
        Some(match self {
            Self::Facts => row.judged.plan?.first,
            Self::Running => token.times(known.nth_end(facts.pool.slots)) + own,
            Self::Ahead => token.times(known.turn(facts.pool.slots)) + own,
            Self::Queue => known.sent?.since(known.came) + own,
        })
    }

    fn lesson(self, row: &Row, known: &Known) -> Option<Lesson> {
        let judged = &row.judged;
        let (plan, facts) = (judged.plan?, &judged.facts);
        let planned = self.plan(row, known)?;
        let mut features = features(facts, &plan);
        // How many places there are is the same for all; what is planned without sight is not.
        let slots = FEATURES.iter().position(|name| *name == "slots")?;
        features[slots] = plan.first.get();
        features[0] = planned.get();
        Some(Lesson {
            features,
            planned,
            came: row.seen.ttft? - plan.passed,
            group: Group::of(facts.class, facts.prompt - facts.cached, facts.ahead),
        })
    }
}

impl Known {
    /// Tokens until as many of those that run have ended as go before it, and one more.
    fn nth_end(&self, slots: u32) -> u64 {
        let free = places(slots).saturating_sub(self.running.len());
        let Some(nth) = self.ahead.len().checked_sub(free) else {
            return 0;
        };
        let last = self.running.last().copied();
        self.running.get(nth).copied().or(last).unwrap_or(0)
    }

    /// Tokens until it is its turn, where each that goes before it takes the place of one that has
    /// ended.
    fn turn(&self, slots: u32) -> u64 {
        let running = self.running.iter().copied().map(Reverse);
        let mut ends: BinaryHeap<Reverse<u64>> = running.collect();
        for _ in ends.len()..places(slots) {
            ends.push(Reverse(0));
        }
        for length in &self.ahead {
            let Reverse(at) = ends.pop().unwrap_or(Reverse(0));
            ends.push(Reverse(at + length));
        }
        ends.pop().map_or(0, |Reverse(at)| at)
    }
}

fn places(slots: u32) -> usize {
    usize::try_from(slots).unwrap_or(usize::MAX)
}

/// A table of what bounds are worth by what is known, of what waits at half as much again as the
/// engine can do.
///
/// # Errors
/// As a study has them.
pub fn foresight(trace: Option<&Trace>, seed: u64) -> Result<String, StudyError> {
    let bench = Bench::new(trace, seed)?;
    let (setup, _) = bench.setup(1.5, Contender::Tollgate, |_| {})?;
    let seer = Seer::of(&setup);
    let known = Rc::clone(&seer.known);
    let control = Overheard {
        gateway: Gateway::new(setup.config()),
        ear: seer,
    };
    let run = world::run(&setup, control, None);
    let known = known.borrow();
    let mut rows: Vec<&Row> = run.tally.rows.iter().collect();
    rows.retain(|row| !row.judged.facts.at_once);
    rows.sort_by_key(|row| row.seen.ttft.map(|ttft| row.judged.received + ttft));
    let mut text = "| what is known | kept % | pinball ms | of one factor | bound/outcome |\n\
                    |---|---|---|---|---|\n"
        .to_owned();
    let mut plain: Option<f64> = None;
    for sight in Sight::ALL {
        let lesson = |row: &&Row| sight.lesson(row, known.get(&row.id)?);
        let lessons: Vec<Lesson> = rows.iter().filter_map(lesson).collect();
        let (plan, trees) = walked(&lessons);
        let worth = *plain.get_or_insert_with(|| plan.mean_ms());
        if sight == Sight::Facts {
            add(&mut text, "the plan, times one factor", plan, worth);
        }
        add(&mut text, sight.label(), trees, worth);
    }
    Ok(text)
}

fn add(text: &mut String, name: &str, score: Score, worth: f64) {
    let loss = score.mean_ms();
    let (kept, width) = (score.percent(), score.width());
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "| {name} | {kept:.1} | {loss:.1} | {:.2} | {width:.3} |",
        loss / worth.max(1e-9)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_before_takes_a_place_that_is_free_or_becomes_so_and_gives_it_back() {
        let known = Known {
            came: Time::START,
            running: vec![3, 5, 9],
            ahead: vec![4, 1],
            sent: None,
        };
        assert_eq!(
            known.nth_end(3),
            9,
            "the third end, whoever takes its place"
        );
        // At 3 the first begins and at 5 the second, which ends at 6.
        assert_eq!(known.turn(3), 6);
        assert_eq!(known.nth_end(4), 5, "one place is free");
        assert_eq!(known.turn(4), 4);
        assert_eq!(known.nth_end(6), 0);
        assert_eq!(known.turn(6), 0);
    }
}
