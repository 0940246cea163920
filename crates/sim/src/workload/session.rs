//! Sessions: requests that each follow an answer, after somebody has thought.
//!
//! Only the first request of a session has its time in the workload. When the others are due
//! depends on the answers, and so on the driver.

use rand_distr::{Distribution as _, Exp1};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tollgate_policy::units::{Micros, Tokens};

use super::{Arrival, Prefix, TenantLoad};
use crate::chance::{Purpose, stream};
use crate::lengths::Lengths;

/// How a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Requests of a session, the first included; 1..=1000.
    pub turns: u32,
    /// Mean time from the end of an answer to the next request, in seconds; exponentially
    /// distributed.
    pub think_s: f64,
}

/// Why no session goes on so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SessionError {
    /// None, or more than anybody has.
    #[error("{turns} turns of a session; use 1 to {}", Session::TURNS_MAX)]
    Turns {
        /// The turns asked for.
        turns: u32,
    },
    /// No time.
    #[error("{0} s of thought; use 0 to 86400")]
    Think(f64),
}

impl Session {
    /// The most requests of one session.
    pub const TURNS_MAX: u32 = 1_000;

    /// Checks that a session can go on.
    ///
    /// # Errors
    /// A number is out of range.
    pub fn check(self) -> Result<(), SessionError> {
        let turns = self.turns;
        if turns == 0 || turns > Self::TURNS_MAX {
            return Err(SessionError::Turns { turns });
        }
        if !(0.0..=86_400.0).contains(&self.think_s) {
            return Err(SessionError::Think(self.think_s));
        }
        Ok(())
    }
}

/// A request that follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From the end of the answer before it to when it is due.
    pub think: Micros,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Length of its output.
    pub output: Tokens,
    /// That of the session's first request.
    pub prefix: Option<Prefix>,
}

/// What follows in one session.
#[derive(Clone, Debug)]
pub struct Turns {
    /// `None` where nothing follows.
    rest: Option<Rest>,
}

#[derive(Clone, Debug)]
struct Rest {
    left: u32,
    think_s: f64,
    prompt: Lengths,
    output: Lengths,
    prefix: Option<Prefix>,
    rng: Pcg64,
}

impl Turns {
    pub(super) const fn none() -> Self {
        Self { rest: None }
    }

    pub(super) fn new(load: &TenantLoad, seed: u64, first: &Arrival) -> Self {
        let Some(session) = load.session else {
            return Self::none();
        };
        // A session is told from the others of its tenant by when it began.
        let own = seed ^ first.at.as_micros().rotate_left(20);
        Self {
            rest: Some(Rest {
                left: session.turns.saturating_sub(1),
                think_s: session.think_s,
                prompt: load.prompt,
                output: load.output,
                prefix: first.prefix,
                rng: stream(own, Purpose::Turns, &load.name),
            }),
        }
    }
}

impl Iterator for Turns {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        let rest = self.rest.as_mut()?;
        rest.left = rest.left.checked_sub(1)?;
        let waits: f64 = Exp1.sample(&mut rest.rng);
        let prompt = rest.prompt.draw(&mut rest.rng);
        let shared = |prefix: Prefix| Prefix {
            tokens: prefix.tokens.min(prompt),
            ..prefix
        };
        Some(Turn {
            think: Micros::new((waits * rest.think_s * 1e6) as u64),
            prompt,
            output: rest.output.draw(&mut rest.rng),
            prefix: rest.prefix.map(shared),
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_policy::units::Time;

    use super::*;
    use crate::Arrivals;
    use crate::workload::Workload;

    fn workload(session: Option<Session>) -> Workload {
        let lengths = Lengths::Uniform { min: 1, max: 1_000 };
        let load = TenantLoad {
            session,
            ..TenantLoad::new("a", Arrivals::Poisson { rate: 20.0 }, lengths, lengths)
        };
        let until = Time::START + Micros::from_secs(60);
        Workload::drawn(vec![load], until, 1).unwrap()
    }

    #[test]
    fn a_session_has_its_turns_with_their_own_lengths_and_a_mean_of_thought() {
        let session = Session {
            turns: 4,
            think_s: 2.0,
        };
        let workload = workload(Some(session));
        let sessions: Vec<Vec<Turn>> = workload
            .arrivals()
            .map(|first| workload.turns(&first).collect())
            .collect();
        assert!(sessions.len() > 1_000);
        assert!(sessions.iter().all(|turns| turns.len() == 3));
        assert_ne!(sessions[0], sessions[1]);
        let thoughts = sessions
            .iter()
            .flatten()
            .map(|turn| turn.think.get() as f64 / 1e6);
        let mean = thoughts.sum::<f64>() / (3.0 * sessions.len() as f64);
        // Five standard deviations of the mean of some 3,600 exponentials of 2 s.
        assert!((mean - 2.0).abs() < 0.17, "{mean}");
        let first = workload.arrivals().next().unwrap();
        let again: Vec<Turn> = workload.turns(&first).collect();
        assert_eq!(again, sessions[0]);
    }

    #[test]
    fn nothing_follows_where_there_are_no_sessions() {
        let workload = workload(None);
        let first = workload.arrivals().next().unwrap();
        assert_eq!(workload.turns(&first).count(), 0);
    }

    #[test]
    fn a_session_that_cannot_be_is_refused_with_its_number() {
        let refused = |turns, think_s| Session { turns, think_s }.check().unwrap_err().to_string();
        assert_eq!(refused(0, 1.0), "0 turns of a session; use 1 to 1000");
        assert_eq!(refused(2, -1.0), "-1 s of thought; use 0 to 86400");
    }
}
