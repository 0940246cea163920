//! Whether a replica takes work, and when one that failed is tried again.
//!
//! Two kinds of signs. That nobody listens, or that the engine says itself that it died, is
//! certain. An answer that broke off, an error or a probe without an answer may be bad luck: it
//! takes some in a row, any answer in between wipes them out, and they never take the last replica
//! away, since a bad one is better than none. A request's own mistake (4xx) and a replica that is
//! full are no signs at all.
//!
//! The pause of one that was ejected ends early where it answers enough probes in a row. It is
//! tried then, and comes back with a small window, as after a whole pause.

use crate::units::{Micros, Time};

/// A replica's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being started or tried, and has not said that it is up.
    Starting,
    /// It takes work.
    Healthy,
    /// It failed; it is tried again at `retry_at`.
    Ejected {
        /// When to try it.
        retry_at: Time,
    },
}

/// Something that tells of a replica's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It answered a request.
    Answered,
    /// It answered a probe.
    ProbeAnswered,
    /// It failed a request in a way that may be chance.
    Failed,
    /// It let a probe go without an answer, or said that it is not well.
    ProbeFailed,
    /// Nobody is there.
    Gone,
}

/// Whether a pool can do without one of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Another one takes work too.
    Others,
    /// It is the last that takes work.
    Alone,
}

/// What a replica was ejected for, which says what can prove that it is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It was not there, or did not answer its probes: probes that it answers prove it.
    Away,
    /// It failed requests, which probes say little of: it takes the more of them, the more often it
    /// has failed.
    Requests,
}

/// The health of one replica: failures in a row lengthen the pause before the next try.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    state: State,
    /// Failures since it last stayed up for [`Health::STEADY`].
    failures: u32,
    /// When it last came up.
    up_since: Time,
    /// Soft signs against it in a row, from requests and from probes.
    failed: u32,
    unanswered: u32,
    /// Probes in a row that it answered while ejected.
    answered: u32,
    /// What it was ejected for last.
    why: Why,
    /// It said that it is full, and until when it is left alone.
    busy_until: Option<Time>,
}

impl Health {
    /// The pause after the first failure.
    pub const BACKOFF_MIN: Micros = Micros::from_millis(500);

    /// The longest pause: a replica that is mended is back within it.
    pub const BACKOFF_MAX: Micros = Micros::from_secs(30);

    /// Time up after which earlier failures are forgotten.
    pub const STEADY: Micros = Micros::from_secs(60);

    /// Requests in a row that a replica fails before it is ejected: one may be the request's fault,
    /// two a stale connection each.
    pub const FAILED_MAX: u32 = 3;

    /// Probes in a row without an answer: an engine that is busy with a long step misses one.
    pub const UNANSWERED_MAX: u32 = 3;

    /// Probes in a row that one which was away must answer to be tried before its pause is over:
    /// one may come from a process that is about to be replaced.
    pub const ANSWERED_MIN: u32 = 2;

    /// How long a replica that is full is left alone where it does not say.
    pub const BUSY_GUESS: Micros = Micros::from_millis(250);

    /// The longest that a replica is left alone on its own word.
    pub const BUSY_MAX: Micros = Micros::from_secs(60);

    /// A replica that is being started.
    pub const fn starting() -> Self {
        Self {
            state: State::Starting,
            failures: 0,
            up_since: Time::START,
            failed: 0,
            unanswered: 0,
            answered: 0,
            why: Why::Away,
            busy_until: None,
        }
    }

    /// Its state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether it works.
    pub const fn is_healthy(&self) -> bool {
        matches!(self.state, State::Healthy)
    }

    /// Whether it takes work now: it works, and has not said that it is full.
    pub const fn is_open(&self) -> bool {
        self.is_healthy() && self.busy_until.is_none()
    }

    /// Whether it has failed before, and not long ago.
    pub const fn is_returning(&self) -> bool {
        self.failures > 0
    }

    /// It came up.
    pub const fn up(&mut self, now: Time) {
        self.state = State::Healthy;
        self.up_since = now;
        (self.failed, self.unanswered, self.busy_until) = (0, 0, None);
    }

    /// It failed, or failed to start. Said again of one that has been ejected, it is no news.
    pub fn down(&mut self, now: Time) {
        self.eject(Why::Away, now);
    }

    fn eject(&mut self, why: Why, now: Time) {
        if self.retry_at().is_some() {
            return;
        }
        (self.why, self.answered) = (why, 0);
        if self.is_healthy() && now.since(self.up_since) >= Self::STEADY {
            self.failures = 0;
        }
        let pause = Self::BACKOFF_MIN
            .doubled(self.failures)
            .min(Self::BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.busy_until = None;
        self.state = State::Ejected {
            retry_at: now + pause,
        };
    }

    /// Takes in a sign; whether it is ejected for it.
    pub fn note(&mut self, sign: Sign, company: Company, now: Time) -> bool {
        if !self.is_healthy() {
            self.note_ejected(sign, now);
            return false;
        }
        match sign {
            Sign::Answered => (self.failed, self.unanswered) = (0, 0),
            Sign::ProbeAnswered => self.unanswered = 0,
            Sign::Failed => self.failed = self.failed.saturating_add(1),
            Sign::ProbeFailed => self.unanswered = self.unanswered.saturating_add(1),
            Sign::Gone => {}
        }
        let fails = self.failed >= Self::FAILED_MAX;
        let soft = fails || self.unanswered >= Self::UNANSWERED_MAX;
        let out = sign == Sign::Gone || (soft && company == Company::Others);
        if out {
            let answers = self.unanswered == 0 && sign != Sign::Gone;
            self.eject(
                if fails && answers {
                    Why::Requests
                } else {
                    Why::Away
                },
                now,
            );
        }
        out
    }

    /// Takes in a sign of one that takes no work. Only its probes say anything new; requests that
    /// it still has were sent before.
    fn note_ejected(&mut self, sign: Sign, now: Time) {
        match sign {
            Sign::ProbeAnswered => self.answered = self.answered.saturating_add(1),
            Sign::ProbeFailed | Sign::Gone => self.answered = 0,
            Sign::Answered | Sign::Failed => {}
        }
        let enough = match self.why {
            Why::Away => Self::ANSWERED_MIN,
            Why::Requests => Self::ANSWERED_MIN.saturating_mul(self.failures.max(1)),
        };
        if let State::Ejected { retry_at } = &mut self.state
            && self.answered >= enough
        {
            *retry_at = now.min(*retry_at);
        }
    }

    /// A failure turned out to be the request's fault: the same request failed elsewhere too.
    pub const fn forgive(&mut self) {
        self.failed = self.failed.saturating_sub(1);
    }

    /// It said that it is full, and when to come back, if it said so.
    pub fn busy(&mut self, retry_after: Option<Micros>, now: Time) {
        if self.is_healthy() {
            let pause = retry_after.unwrap_or(Self::BUSY_GUESS).min(Self::BUSY_MAX);
            self.busy_until = self.busy_until.max(Some(now + pause));
        }
    }

    /// Ends a pause whose time is up; whether there was one.
    pub fn rested(&mut self, now: Time) -> bool {
        self.busy_until.take_if(|until| *until <= now).is_some()
    }

    /// When it is to be started or tried again, if it is to be.
    pub const fn retry_at(&self) -> Option<Time> {
        match self.state {
            State::Ejected { retry_at } => Some(retry_at),
            State::Starting | State::Healthy => None,
        }
    }

    /// When time alone changes something about it.
    pub fn wakes_at(&self) -> Option<Time> {
        self.retry_at().or(self.busy_until)
    }

    /// It is being tried again.
    pub const fn retried(&mut self) {
        self.state = State::Starting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Time {
        Time::START + Micros::from_secs(secs)
    }

    fn healthy() -> Health {
        let mut health = Health::starting();
        health.up(secs(0));
        health
    }

    #[test]
    fn failures_in_a_row_lengthen_the_pause_up_to_a_bound() {
        let mut health = Health::starting();
        let mut pauses = vec![];
        for _ in 0..9 {
            health.down(secs(0));
            pauses.push(health.retry_at().unwrap().since(secs(0)).get() / 1_000);
            health.retried();
        }
        assert_eq!(
            pauses,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000
            ]
        );
    }

    #[test]
    fn a_replica_that_stayed_up_is_forgiven() {
        let mut health = Health::starting();
        health.down(secs(0));
        health.down(secs(1));
        health.up(secs(2));
        health.down(secs(100));
        assert_eq!(health.retry_at(), Some(secs(100) + Health::BACKOFF_MIN));
    }

    #[test]
    fn a_replica_that_comes_up_only_to_fail_is_not_forgiven() {
        let mut health = Health::starting();
        health.down(secs(0));
        health.up(secs(1));
        health.down(secs(2));
        assert_eq!(
            health.retry_at(),
            Some(secs(2) + Health::BACKOFF_MIN.doubled(1))
        );
    }

    #[test]
    fn it_takes_failures_in_a_row_and_any_answer_wipes_them_out() {
        let mut health = healthy();
        let mut note = |sign| health.note(sign, Company::Others, secs(1));
        assert!(!note(Sign::Failed) && !note(Sign::Failed) && !note(Sign::Answered));
        assert!(!note(Sign::Failed) && !note(Sign::Failed));
        assert!(note(Sign::Failed));
        assert!(!note(Sign::Failed), "it is ejected once");
    }

    #[test]
    fn a_busy_replica_that_misses_some_probes_and_serves_is_kept() {
        let mut health = healthy();
        for _ in 0..20 {
            assert!(!health.note(Sign::ProbeFailed, Company::Others, secs(1)));
            assert!(!health.note(Sign::ProbeFailed, Company::Others, secs(1)));
            assert!(!health.note(Sign::Answered, Company::Others, secs(1)));
        }
        for _ in 0..20 {
            assert!(!health.note(Sign::ProbeFailed, Company::Others, secs(1)));
            assert!(!health.note(Sign::ProbeFailed, Company::Others, secs(1)));
            assert!(!health.note(Sign::ProbeAnswered, Company::Others, secs(1)));
        }
    }

    #[test]
    fn probes_that_answer_do_not_wash_requests_that_fail() {
        let mut health = healthy();
        for _ in 0..2 {
            assert!(!health.note(Sign::Failed, Company::Others, secs(1)));
            assert!(!health.note(Sign::ProbeAnswered, Company::Others, secs(1)));
        }
        assert!(health.note(Sign::Failed, Company::Others, secs(1)));
    }

    #[test]
    fn the_last_replica_is_ejected_only_when_nobody_is_there() {
        let mut health = healthy();
        for _ in 0..100 {
            assert!(!health.note(Sign::Failed, Company::Alone, secs(1)));
            assert!(!health.note(Sign::ProbeFailed, Company::Alone, secs(1)));
        }
        assert!(health.note(Sign::Gone, Company::Alone, secs(1)));
    }

    #[test]
    fn a_failure_that_was_the_requests_fault_does_not_count() {
        let mut health = healthy();
        for _ in 0..50 {
            assert!(!health.note(Sign::Failed, Company::Others, secs(1)));
            health.forgive();
        }
    }

    /// One that has failed so often, the last time by this sign.
    fn ejected(times: u32, sign: Sign) -> Health {
        let mut health = Health::starting();
        for _ in 1..times {
            health.down(secs(0));
            health.retried();
        }
        health.up(secs(0));
        while !health.note(sign, Company::Others, secs(0)) {}
        health
    }

    /// After how many probes that it answers it is tried.
    fn tried_after(mut health: Health) -> u32 {
        let due = health.retry_at().unwrap();
        (1..1_000)
            .find(|_| {
                health.note(Sign::ProbeAnswered, Company::Others, secs(1));
                health.retry_at().is_some_and(|at| at < due)
            })
            .unwrap()
    }

    #[test]
    fn one_that_was_away_is_tried_once_it_answers_its_probes_however_often_it_failed() {
        for sign in [Sign::Gone, Sign::ProbeFailed] {
            let health = ejected(9, sign);
            assert_eq!(health.retry_at(), Some(secs(30)));
            assert_eq!(tried_after(health), Health::ANSWERED_MIN);
        }
    }

    #[test]
    fn one_that_answers_probes_and_fails_requests_is_tried_less_and_less() {
        let tries = [5, 7, 9].map(|times| tried_after(ejected(times, Sign::Failed)));
        assert_eq!(tries, [5, 7, 9].map(|times| times * Health::ANSWERED_MIN));
    }

    #[test]
    fn a_probe_now_and_then_does_not_end_a_pause_and_none_puts_it_off() {
        let mut health = ejected(9, Sign::Gone);
        for _ in 0..50 {
            for sign in [Sign::ProbeAnswered, Sign::ProbeFailed, Sign::Gone] {
                assert!(!health.note(sign, Company::Others, secs(1)));
            }
        }
        assert_eq!(health.retry_at(), Some(secs(30)));
        for _ in 0..5 {
            health.note(Sign::ProbeAnswered, Company::Others, secs(40));
        }
        assert_eq!(health.retry_at(), Some(secs(30)));
    }

    #[test]
    fn answers_of_one_that_is_being_tried_are_not_kept_for_its_next_pause() {
        let mut health = ejected(9, Sign::Gone);
        health.retried();
        for _ in 0..5 {
            health.note(Sign::ProbeAnswered, Company::Others, secs(1));
        }
        health.down(secs(2));
        health.note(Sign::ProbeAnswered, Company::Others, secs(2));
        assert_eq!(health.retry_at(), Some(secs(32)));
    }

    #[test]
    fn a_full_replica_is_left_alone_for_as_long_as_it_says_within_a_bound() {
        let mut health = healthy();
        health.busy(Some(Micros::from_secs(3)), secs(1));
        assert!(health.is_healthy() && !health.is_open());
        assert!(!health.rested(secs(3)));
        assert!(health.rested(secs(4)) && health.is_open());
        health.busy(None, secs(5));
        assert_eq!(health.wakes_at(), Some(secs(5) + Health::BUSY_GUESS));
        health.busy(Some(Micros::from_secs(86_400)), secs(5));
        assert_eq!(health.wakes_at(), Some(secs(5) + Health::BUSY_MAX));
    }
}
