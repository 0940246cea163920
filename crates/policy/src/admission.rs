//! Who is let in: the contract first (429), then the machine (503), and a refusal spends nothing
//! anywhere.

use crate::outcome::Rejection;
use crate::tenant::Limits;
use crate::units::{Micros, Tokens};

/// What a request is expected to generate where it does not say, and its tenant's earlier ones do
/// not tell: an estimate, not a limit.
pub const OUTPUT_GUESS: Tokens = Tokens::new(256);

/// The most tokens that an answer is expected to have which is over soon: two seconds of a slow
/// computer.
pub const BRIEF: Tokens = Tokens::new(64);

/// What one request was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The most it may generate.
    pub output_max: Tokens,
    /// What it is expected to hold at its end: prompt and estimated output.
    pub expected: Tokens,
    /// Whether nothing says that its answer is longer than [`BRIEF`]. Room is set aside for a usual
    /// answer where nothing is known; a place is given to one of which nothing bad is known.
    pub is_brief: bool,
}

/// Fits a request into the context: the longer its prompt, the shorter the longest answer.
///
/// An answer that may be longer than the context allows is cut, not refused: it ends with `length`.
/// A prompt that leaves no room for one token of answer is refused. `usual` is what answers of its
/// tenant come to, where there were some.
///
/// # Errors
/// [`Rejection::ContextExceeded`], with both numbers.
pub fn fit(
    prompt: Tokens,
    asked: Option<Tokens>,
    usual: Option<Tokens>,
    context: Tokens,
    limits: &Limits,
) -> Result<Grant, Rejection> {
    let context = limits.max_context.map_or(context, |own| own.min(context));
    if prompt >= context {
        return Err(Rejection::ContextExceeded {
            asked: prompt + Tokens::new(1),
            limit: context,
        });
    }
    let room = context - prompt;
    let cap = limits.max_output.map_or(room, |own| own.min(room));
    let output_max = asked.map_or(cap, |asked| asked.min(cap));
    let guess = usual.unwrap_or(OUTPUT_GUESS).min(output_max);
    let said = asked.map(|_| output_max);
    Ok(Grant {
        output_max,
        expected: prompt + said.unwrap_or(guess),
        is_brief: said.or(usual).is_none_or(|output| output <= BRIEF),
    })
}

/// What the machine looks like to a request that wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The gateway takes no new work.
    Draining,
    /// What is served can't be written down.
    NoBooks,
    /// No replica of the model is up, or about to be.
    NoReplica,
    /// A replica has room for it now, and nobody waits before it.
    Room,
    /// It would have to wait, and the queue is at its bound.
    Full,
    /// It would have to wait.
    Busy {
        /// How long what waits already takes, where that has been measured.
        ahead: Option<Micros>,
    },
}

impl Machine {
    /// Whether a request that may wait for `max_wait` is let in.
    ///
    /// Hopeless on arrival is said on arrival; and a wait of zero is hopeless wherever there is no
    /// room.
    ///
    /// # Errors
    /// Why not: it would wait in vain, or there is no place to wait in.
    pub fn admit(self, max_wait: Micros) -> Result<(), Rejection> {
        match self {
            Self::Draining => Err(Rejection::Draining),
            Self::NoBooks => Err(Rejection::NoBooks),
            Self::NoReplica => Err(Rejection::NoReplica),
            Self::Full => Err(Rejection::QueueFull),
            Self::Room => Ok(()),
            Self::Busy { ahead } => {
                let hopeless = ahead.is_some_and(|ahead| ahead > max_wait);
                if hopeless || max_wait == Micros::ZERO {
                    return Err(Rejection::Capacity);
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Tokens = Tokens::new(512);

    fn fit_in(prompt: u64, asked: Option<u64>, limits: &Limits) -> Result<Grant, Rejection> {
        fit(
            Tokens::new(prompt),
            asked.map(Tokens::new),
            None,
            CONTEXT,
            limits,
        )
    }

    fn limits(max_context: Option<u64>, max_output: Option<u64>) -> Limits {
        Limits {
            max_context: max_context.map(Tokens::new),
            max_output: max_output.map(Tokens::new),
            ..Limits::default()
        }
    }

    #[test]
    fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers() {
        let refused = fit_in(600, None, &Limits::default());
        let expected = Rejection::ContextExceeded {
            asked: Tokens::new(601),
            limit: Tokens::new(512),
        };
        assert_eq!(refused, Err(expected));
        assert!(fit_in(512, None, &Limits::default()).is_err());
        assert!(fit_in(511, None, &Limits::default()).is_ok());
    }

    #[test]
    fn an_answer_longer_than_the_context_is_cut_and_not_refused() {
        let grant = fit_in(500, Some(100_000), &Limits::default()).unwrap();
        assert_eq!(grant.output_max, Tokens::new(12));
    }

    #[test]
    fn the_tenants_own_limits_cut_further() {
        let grant = fit_in(50, Some(400), &limits(None, Some(100))).unwrap();
        assert_eq!(grant.output_max, Tokens::new(100));
        assert!(fit_in(200, None, &limits(Some(128), None)).is_err());
    }

    #[test]
    fn without_a_word_from_the_client_little_is_expected_and_much_allowed() {
        let grant = fit_in(50, None, &Limits::default()).unwrap();
        assert_eq!(grant.output_max, Tokens::new(462));
        assert_eq!(grant.expected, Tokens::new(50) + OUTPUT_GUESS);
    }

    #[test]
    fn an_answer_is_brief_unless_something_says_that_it_is_not() {
        let is_brief = |asked: Option<u64>, usual: Option<u64>| {
            let (asked, usual) = (asked.map(Tokens::new), usual.map(Tokens::new));
            let grant = fit(Tokens::new(9), asked, usual, CONTEXT, &Limits::default());
            grant.unwrap().is_brief
        };
        assert!(is_brief(Some(64), Some(500)) && is_brief(None, Some(64)) && is_brief(None, None));
        assert!(!is_brief(Some(65), Some(5)) && !is_brief(None, Some(65)));
    }

    #[test]
    fn each_obstacle_has_its_own_reason() {
        let secs = Micros::from_secs;
        let busy = |ahead| Machine::Busy { ahead };
        let cases = [
            (Machine::Draining, secs(30), Err(Rejection::Draining)),
            (Machine::NoBooks, secs(30), Err(Rejection::NoBooks)),
            (Machine::NoReplica, secs(30), Err(Rejection::NoReplica)),
            (Machine::Full, secs(30), Err(Rejection::QueueFull)),
            (Machine::Room, secs(0), Ok(())),
            (busy(None), secs(30), Ok(())),
            (busy(None), secs(0), Err(Rejection::Capacity)),
            (busy(Some(secs(31))), secs(30), Err(Rejection::Capacity)),
            (busy(Some(secs(29))), secs(30), Ok(())),
        ];
        for (machine, max_wait, expected) in cases {
            assert_eq!(machine.admit(max_wait), expected, "{machine:?}");
        }
    }
}
