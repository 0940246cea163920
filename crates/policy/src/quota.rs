//! What a tenant has left of its contract: three layers, reserved in one step, all or nothing.
//!
//! Requests per minute, tokens per minute and KV in flight; a refusal at one layer spends nothing
//! at any. A reservation is an estimate; [`Levels::settle`] replaces it with what was used, at
//! once. What is in flight and what is left outlives a change of the limits.

use std::collections::VecDeque;

use crate::bucket::{Bucket, Level, Rate};
use crate::outcome::Rejection;
use crate::tenant::Limits;
use crate::units::{KvByteMicros, Micros, Time, Tokens};

/// One tenant's levels.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// KV byte-microseconds reserved by what is in flight.
    kv: KvByteMicros,
    /// Queued and running.
    in_flight: u32,
    outputs: Outputs,
}

/// What one request would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Its prompt, all of it computed.
    pub prompt: Tokens,
    /// The output that is expected of it.
    pub output: Tokens,
    /// KV it will hold, over the time it will hold it.
    pub kv: KvByteMicros,
}

/// What a request holds of its tenant's levels until it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    tokens: Tokens,
    kv: KvByteMicros,
}

/// What a tenant took of its rates in the life of a gateway before this one: how long ago, the
/// longest first, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Requests.
    pub requests: Vec<(Micros, u64)>,
    /// Tokens, as they count against the rate.
    pub tokens: Vec<(Micros, u64)>,
}

/// A refusal, and when another try could go better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which layer said no.
    pub rejection: Rejection,
    /// Until then a retry is in vain; `None` where that is not known.
    pub wait: Option<Micros>,
}

impl Levels {
    /// Full levels.
    pub fn new(limits: &Limits, now: Time) -> Self {
        let mut levels = Self::default();
        levels.change(limits, now);
        levels
    }

    /// Levels from which this was taken before there was anybody to count it.
    pub fn remember(&mut self, limits: &Limits, past: &Past, now: Time) {
        let after = |rate: Option<Rate>, taken: &[(Micros, u64)]| {
            rate.map(|rate| Bucket::after(rate, taken, now))
        };
        self.requests = after(limits.requests, &past.requests);
        self.tokens = after(limits.tokens, &past.tokens);
    }

    /// Takes on new limits. What was used stays used.
    pub fn change(&mut self, limits: &Limits, now: Time) {
        change(&mut self.requests, limits.requests, now);
        change(&mut self.tokens, limits.tokens, now);
    }

    /// Reserves all that one request takes, or nothing.
    ///
    /// # Errors
    /// The first layer that has not enough: concurrency, requests, tokens, KV.
    pub fn reserve(
        &mut self,
        limits: &Limits,
        cost: Cost,
        now: Time,
    ) -> Result<Reservation, Refused> {
        if limits
            .concurrency
            .is_some_and(|most| self.in_flight >= most.get())
        {
            return Err(Refused {
                rejection: Rejection::Concurrency,
                wait: None,
            });
        }
        self.fits_kv(limits, cost)?;
        let tokens = self.token_reservation(cost)?;
        take(&mut self.requests, 1, Rejection::RequestRate, now)?;
        if let Err(refused) = take(&mut self.tokens, tokens.get(), Rejection::TokenRate, now) {
            self.give_back_request();
            return Err(refused);
        }
        self.kv += cost.kv;
        self.in_flight += 1;
        Ok(Reservation {
            tokens,
            kv: cost.kv,
        })
    }

    /// Replaces a reservation with what came of it: `tokens` as they count against the rate.
    pub fn settle(&mut self, reservation: Reservation, tokens: Tokens) {
        if let Some(bucket) = &mut self.tokens {
            bucket.settle(reservation.tokens.get(), tokens.get());
        }
        self.kv -= reservation.kv;
        self.in_flight -= 1;
    }

    /// Undoes a reservation of a request that capacity refused: nothing of the contract is spent.
    pub fn cancel(&mut self, reservation: Reservation) {
        self.settle(reservation, Tokens::ZERO);
        self.give_back_request();
    }

    /// Learns how long an answer was.
    pub fn learn(&mut self, output: Tokens) {
        self.outputs.push(output);
    }

    /// The output to expect of a request that does not say, once there were others: nine of ten
    /// recent ones were no longer.
    pub const fn usual_output(&self) -> Option<Tokens> {
        self.outputs.p90
    }

    /// Queued and running.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// KV reserved by what is in flight.
    pub const fn kv(&self) -> KvByteMicros {
        self.kv
    }

    /// What is left of the requests per minute.
    pub fn requests(&mut self, now: Time) -> Option<Level> {
        self.requests.as_mut().map(|bucket| bucket.level(now))
    }

    /// What is left of the tokens per minute.
    pub fn tokens(&mut self, now: Time) -> Option<Level> {
        self.tokens.as_mut().map(|bucket| bucket.level(now))
    }

    /// A request that exceeds the limit by itself is let in alone: it may wait, never forever.
    fn fits_kv(&self, limits: &Limits, cost: Cost) -> Result<(), Refused> {
        match limits.kv {
            Some(most) if self.kv > KvByteMicros::ZERO && self.kv + cost.kv > most => {
                Err(Refused {
                    rejection: Rejection::KvInFlight,
                    wait: None,
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Prompt and expected output, cut to the bucket where the prompt alone fits it.
    fn token_reservation(&self, cost: Cost) -> Result<Tokens, Refused> {
        let all = cost.prompt + cost.output;
        let Some(bucket) = &self.tokens else {
            return Ok(all);
        };
        let burst = Tokens::new(bucket.burst());
        if cost.prompt > burst {
            let rejection = Rejection::PromptExceedsRate {
                prompt: cost.prompt,
                limit: burst,
            };
            return Err(Refused {
                rejection,
                wait: None,
            });
        }
        Ok(all.min(burst))
    }

    fn give_back_request(&mut self) {
        if let Some(bucket) = &mut self.requests {
            bucket.settle(1, 0);
        }
    }
}

fn change(bucket: &mut Option<Bucket>, rate: Option<Rate>, now: Time) {
    match (bucket.as_mut(), rate) {
        (Some(old), Some(rate)) => old.change(rate, now),
        (None, Some(rate)) => *bucket = Some(Bucket::new(rate, now)),
        (_, None) => *bucket = None,
    }
}

fn take(
    bucket: &mut Option<Bucket>,
    units: u64,
    rejection: Rejection,
    now: Time,
) -> Result<(), Refused> {
    let Some(bucket) = bucket else { return Ok(()) };
    bucket.take(units, now).map_err(|wait| Refused {
        rejection,
        wait: Some(wait),
    })
}

/// The lengths of a tenant's recent answers.
#[derive(Clone, Debug, Default)]
struct Outputs {
    recent: VecDeque<Tokens>,
    p90: Option<Tokens>,
}

impl Outputs {
    /// Answers remembered: enough for a ninth decile, few enough to follow a change of work within
    /// a minute or two.
    const MEMORY: usize = 32;

    /// Answers below which there is no quantile to speak of.
    const MIN: usize = 4;

    fn push(&mut self, output: Tokens) {
        if self.recent.len() == Self::MEMORY {
            self.recent.pop_front();
        }
        self.recent.push_back(output);
        if self.recent.len() >= Self::MIN {
            let mut sorted: Vec<_> = self.recent.iter().copied().collect();
            sorted.sort_unstable();
            let rank = (sorted.len() * 9).div_ceil(10);
            self.p90 = rank.checked_sub(1).and_then(|at| sorted.get(at)).copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use proptest::prelude::*;

    use super::*;

    fn cost(prompt: u64, output: u64) -> Cost {
        let kv = KvByteMicros::new(u128::from(prompt + output));
        Cost {
            prompt: Tokens::new(prompt),
            output: Tokens::new(output),
            kv,
        }
    }

    fn rate(per_minute: u64) -> Option<Rate> {
        let n = NonZeroU64::new(per_minute)?;
        Some(Rate {
            per_minute: n,
            burst: n,
        })
    }

    fn tpm(per_minute: u64) -> Limits {
        Limits {
            tokens: rate(per_minute),
            ..Limits::default()
        }
    }

    #[test]
    fn five_at_once_against_a_hundred_tokens_let_one_in() {
        let limits = tpm(100);
        let mut levels = Levels::new(&limits, Time::START);
        let let_in = (0..5).filter(|_| levels.reserve(&limits, cost(20, 80), Time::START).is_ok());
        assert_eq!(let_in.count(), 1);
    }

    #[test]
    fn settling_charges_the_truth_and_nothing_else() {
        let limits = tpm(10_000);
        let mut levels = Levels::new(&limits, Time::START);
        for _ in 0..20 {
            let held = levels
                .reserve(&limits, cost(12, 2_000), Time::START)
                .unwrap();
            levels.settle(held, Tokens::new(20));
        }
        assert_eq!(levels.tokens(Time::START).unwrap().remaining, 10_000 - 400);
        assert_eq!(levels.in_flight(), 0);
    }

    #[test]
    fn a_huge_answer_is_let_in_by_a_full_bucket_and_a_huge_prompt_by_none() {
        let limits = tpm(1_000);
        let mut levels = Levels::new(&limits, Time::START);
        let refused = levels
            .reserve(&limits, cost(5_000, 1), Time::START)
            .unwrap_err();
        let (prompt, limit) = (Tokens::new(5_000), Tokens::new(1_000));
        assert_eq!(
            refused.rejection,
            Rejection::PromptExceedsRate { prompt, limit }
        );
        levels
            .reserve(&limits, cost(10, 100_000), Time::START)
            .unwrap();
        assert_eq!(levels.tokens(Time::START).unwrap().remaining, 0);
    }

    #[test]
    fn a_refusal_at_one_layer_spends_nothing_at_any() {
        let limits = Limits {
            requests: rate(10),
            tokens: rate(100),
            concurrency: NonZeroU32::new(9),
            kv: Some(KvByteMicros::new(1_000)),
            ..Limits::default()
        };
        let mut levels = Levels::new(&limits, Time::START);
        levels.reserve(&limits, cost(50, 40), Time::START).unwrap();
        for _ in 0..50 {
            assert!(levels.reserve(&limits, cost(50, 40), Time::START).is_err());
        }
        assert_eq!(levels.requests(Time::START).unwrap().remaining, 9);
        assert_eq!(levels.tokens(Time::START).unwrap().remaining, 10);
        assert_eq!(
            (levels.in_flight(), levels.kv()),
            (1, KvByteMicros::new(90))
        );
    }

    #[test]
    fn kv_in_flight_is_bounded_and_comes_back() {
        let limits = Limits {
            kv: Some(KvByteMicros::new(100)),
            ..Limits::default()
        };
        let mut levels = Levels::new(&limits, Time::START);
        let big = levels.reserve(&limits, cost(500, 0), Time::START).unwrap();
        let refused = levels
            .reserve(&limits, cost(1, 0), Time::START)
            .unwrap_err();
        assert_eq!(refused.rejection, Rejection::KvInFlight);
        levels.settle(big, Tokens::ZERO);
        assert!(levels.reserve(&limits, cost(60, 0), Time::START).is_ok());
        assert!(levels.reserve(&limits, cost(60, 0), Time::START).is_err());
    }

    #[test]
    fn an_estimate_follows_what_the_tenants_answers_are_like() {
        let mut levels = Levels::default();
        assert_eq!(levels.usual_output(), None);
        for n in 1..=10 {
            levels.learn(Tokens::new(n * 10));
        }
        assert_eq!(levels.usual_output(), Some(Tokens::new(90)));
        for _ in 0..100 {
            levels.learn(Tokens::new(7));
        }
        assert_eq!(levels.usual_output(), Some(Tokens::new(7)));
        assert_eq!(levels.outputs.recent.len(), Outputs::MEMORY);
    }

    proptest! {
        /// Whatever is reserved, settled and cancelled, in any order: all returns to zero, and a
        /// limit is never passed by more than the last request's debt.
        #[test]
        fn levels_return_to_zero(
            steps in prop::collection::vec((1_u64..200, 0_u64..300, 0_u64..400, 0_u8..3), 1..100),
        ) {
            let limits = Limits {
                tokens: rate(1_000),
                kv: Some(KvByteMicros::new(2_000)),
                ..Limits::default()
            };
            let mut levels = Levels::new(&limits, Time::START);
            let mut held = Vec::new();
            for (prompt, output, actual, what) in steps {
                match (what, held.pop()) {
                    (0, Some(one)) => levels.settle(one, Tokens::new(actual)),
                    (1, Some(one)) => levels.cancel(one),
                    (_, popped) => {
                        held.extend(popped);
                        held.extend(levels.reserve(&limits, cost(prompt, output), Time::START));
                    }
                }
                prop_assert!(levels.kv() <= KvByteMicros::new(2_000));
            }
            for one in held {
                levels.settle(one, Tokens::ZERO);
            }
            prop_assert_eq!((levels.in_flight(), levels.kv()), (0, KvByteMicros::ZERO));
        }
    }
}
