//! When requests come: random processes in continuous time, without an end.
//!
//! All but the Gamma process are Poisson processes whose rate is constant for a while and then
//! another: an arrival comes when the rate, added up over time, reaches the next unit exponential.
//! The rate has a stream of its own, so that the same rates can be met by other arrivals.

use rand_distr::{Distribution as _, Exp1, Gamma, StandardNormal};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

use crate::chance::{Purpose, stream, unit};

/// A process of arrivals. Rates are requests per second, times are seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Independent arrivals at a constant rate.
    Poisson {
        /// Mean requests per second.
        rate: f64,
    },
    /// Gaps are Gamma distributed: `cv` above 1 is burstier than Poisson, below 1 is steadier.
    Gamma {
        /// Mean requests per second.
        rate: f64,
        /// Standard deviation of the gaps over their mean; above 0, at most 100.
        cv: f64,
    },
    /// A Poisson process whose rate jumps between two values (MMPP-2).
    Mmpp {
        /// The two rates, in requests per second; one may be 0.
        rates: [f64; 2],
        /// Mean time in each state, in seconds; exponentially distributed.
        stay_s: [f64; 2],
    },
    /// A Poisson process whose log rate is an AR(1) sequence, redrawn every `bin_s`.
    LogAr {
        /// Mean requests per second.
        rate: f64,
        /// Correlation of one bin's log rate with the next one's; 0..1.
        rho: f64,
        /// Standard deviation of the log rate; 0..=5.
        sigma: f64,
        /// Length of a bin, in seconds.
        bin_s: f64,
    },
    /// A Poisson process whose rate is `peak` for the first `lasting_s` of every `every_s`, then
    /// `base`.
    Spikes {
        /// Requests per second between spikes; may be 0.
        base: f64,
        /// Requests per second in a spike.
        peak: f64,
        /// From the start of a spike to the start of the next, in seconds.
        every_s: f64,
        /// Length of a spike, in seconds; less than `every_s`.
        lasting_s: f64,
    },
    /// A Poisson process whose rate jumps to `peak` every `every_s`, and falls back towards `base`
    /// as an exponential does: by half every `half_s`.
    Decays {
        /// Requests per second long after a jump; may be 0.
        base: f64,
        /// Requests per second right after a jump.
        peak: f64,
        /// From one jump to the next, in seconds.
        every_s: f64,
        /// Half of what is above `base` is gone after so many seconds.
        half_s: f64,
    },
    /// A Poisson process whose rate swings as a sine does, as over a day: highest at a quarter of
    /// the period, lowest at three quarters.
    Diurnal {
        /// Mean requests per second.
        rate: f64,
        /// How far the rate swings, as a part of its mean; 0..=1.
        swing: f64,
        /// From one day to the next, in seconds.
        period_s: f64,
    },
}

/// Pieces that a period of [`Arrivals::Decays`] and of [`Arrivals::Diurnal`] is cut into: the rate
/// of each is its mean, so that the count of a whole period is exact.
const PIECES: u32 = 96;

/// Why arrivals cannot be drawn.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ArrivalsError {
    /// No such rate can be offered.
    #[error(
        "{rate} requests per second; use more than 0 and at most {}",
        Arrivals::FASTEST
    )]
    Rate {
        /// The rate asked for.
        rate: f64,
    },
    /// The spread of the gaps is no spread.
    #[error("coefficient of variation {0}; use more than 0 and at most 100")]
    Cv(f64),
    /// A time is none, or so short that nothing but switching would happen.
    #[error("{0} s between changes of the rate; use 0.001 to 1000000")]
    Span(f64),
    /// A rate that swings below nothing.
    #[error("a swing of {0}; use 0 to 1")]
    Swing(f64),
    /// An AR(1) sequence that does not settle.
    #[error("rho {rho} and sigma {sigma}; use 0 <= rho < 1 and 0 <= sigma <= 5")]
    Ar {
        /// The correlation asked for.
        rho: f64,
        /// The spread asked for.
        sigma: f64,
    },
}

impl Arrivals {
    /// The highest rate that can be asked for, in requests per second: one a microsecond, the
    /// resolution of time here.
    pub const FASTEST: f64 = 1_000_000.0;

    /// Checks that arrivals can be drawn.
    ///
    /// # Errors
    /// A rate, a time or a shape that is not a number or is out of range.
    pub fn check(&self) -> Result<(), ArrivalsError> {
        match *self {
            Self::Poisson { rate } => positive(rate),
            Self::Gamma { rate, cv } => {
                positive(rate)?;
                let holds = cv > 0.0 && cv <= 100.0;
                if holds {
                    Ok(())
                } else {
                    Err(ArrivalsError::Cv(cv))
                }
            }
            Self::Mmpp {
                rates: [low, high],
                stay_s: [first, second],
            } => {
                positive(low.max(high))?;
                not_negative(low.min(high))?;
                span(first)?;
                span(second)
            }
            Self::LogAr {
                rate,
                rho,
                sigma,
                bin_s,
            } => {
                positive(rate)?;
                let holds = (0.0..1.0).contains(&rho) && (0.0..=5.0).contains(&sigma);
                if !holds {
                    return Err(ArrivalsError::Ar { rho, sigma });
                }
                span(bin_s)
            }
            Self::Spikes {
                base,
                peak,
                every_s,
                lasting_s,
            } => {
                not_negative(base)?;
                positive(peak)?;
                span(lasting_s)?;
                span(every_s - lasting_s)
            }
            Self::Decays {
                base,
                peak,
                every_s,
                half_s,
            } => {
                not_negative(base)?;
                positive(peak)?;
                span(half_s)?;
                span(every_s / f64::from(PIECES))
            }
            Self::Diurnal {
                rate,
                swing,
                period_s,
            } => {
                positive(rate)?;
                if !(0.0..=1.0).contains(&swing) {
                    return Err(ArrivalsError::Swing(swing));
                }
                span(period_s / f64::from(PIECES))
            }
        }
    }

    /// The mean rate in the long run, in requests per second.
    pub fn mean_rate(&self) -> f64 {
        match *self {
            Self::Poisson { rate }
            | Self::Gamma { rate, .. }
            | Self::LogAr { rate, .. }
            | Self::Diurnal { rate, .. } => rate,
            Self::Decays {
                base,
                peak,
                every_s,
                half_s,
            } => base + (peak - base) * decayed(0.0, every_s, half_s) / every_s,
            Self::Mmpp {
                rates: [low, high],
                stay_s: [first, second],
            } => (low * first + high * second) / (first + second),
            Self::Spikes {
                base,
                peak,
                every_s,
                lasting_s,
            } => base + (peak - base) * lasting_s / every_s,
        }
    }

    /// The arrivals of `tenant`, in seconds from the start, without an end.
    pub(crate) fn times(&self, seed: u64, tenant: &str) -> Times {
        let mut rng = stream(seed, Purpose::Arrivals, tenant);
        let process = match *self {
            Self::Gamma { rate, cv } => renewal(rate, cv, &mut rng),
            Self::Poisson { .. }
            | Self::Mmpp { .. }
            | Self::LogAr { .. }
            | Self::Spikes { .. }
            | Self::Decays { .. }
            | Self::Diurnal { .. } => {
                let mut rate_rng = stream(seed, Purpose::Rate, tenant);
                let pieces = Pieces::new(*self, &mut rate_rng);
                Process::Modulated {
                    rate: 0.0,
                    until_s: 0.0,
                    pieces,
                    rng: Box::new(rate_rng),
                }
            }
        };
        Times {
            at_s: 0.0,
            process,
            rng: Box::new(rng),
        }
    }
}

/// The arrival times of one tenant, in seconds, never decreasing.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    at_s: f64,
    process: Process,
    rng: Box<Pcg64>,
}

#[derive(Clone, Debug)]
enum Process {
    Renewal {
        gaps: Gamma<f64>,
        /// The gap to the first arrival, until it is used.
        first_s: Option<f64>,
    },
    Modulated {
        /// Requests per second until `until_s`.
        rate: f64,
        until_s: f64,
        pieces: Pieces,
        rng: Box<Pcg64>,
    },
}

impl Iterator for Times {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        match &mut self.process {
            Process::Renewal { gaps, first_s } => {
                self.at_s += match first_s.take() {
                    Some(first_s) => first_s,
                    None => gaps.sample(&mut self.rng),
                };
            }
            Process::Modulated {
                rate,
                until_s,
                pieces,
                rng,
            } => {
                let mut needed: f64 = Exp1.sample(&mut self.rng);
                // Ends because every process has a piece with a rate above zero again and again.
                while self.at_s + needed / *rate > *until_s || *rate <= 0.0 {
                    needed = (needed - *rate * (*until_s - self.at_s)).max(0.0);
                    self.at_s = *until_s;
                    let (lasting_s, next_rate) = pieces.next_piece(rng);
                    *until_s += lasting_s;
                    *rate = next_rate;
                }
                self.at_s += needed / *rate;
            }
        }
        Some(self.at_s)
    }
}

/// A renewal process that has been running for ever when time starts: the first gap is what is
/// left of one that was met inside, so the mean count is exact from the first second on. A gap met
/// inside is Gamma of a shape one larger, and the start falls evenly into it.
fn renewal(rate: f64, cv: f64, rng: &mut Pcg64) -> Process {
    let shape = 1.0 / (cv * cv);
    let scale = cv * cv / rate;
    match (Gamma::new(shape, scale), Gamma::new(shape + 1.0, scale)) {
        (Ok(gaps), Ok(met)) => {
            let first_s = Some(met.sample(rng) * unit(rng));
            Process::Renewal { gaps, first_s }
        }
        // `check` leaves no parameters that a Gamma distribution refuses.
        (Err(_), _) | (_, Err(_)) => Process::Modulated {
            rate,
            until_s: f64::INFINITY,
            pieces: Pieces::Constant { rate },
            rng: Box::new(rng.clone()),
        },
    }
}

/// How the rate goes on: pieces of time, each with its rate.
#[derive(Clone, Debug)]
enum Pieces {
    Constant {
        rate: f64,
    },
    Mmpp {
        rates: [f64; 2],
        stay_s: [f64; 2],
        in_second: bool,
    },
    LogAr {
        rate: f64,
        rho: f64,
        sigma: f64,
        bin_s: f64,
        level: f64,
    },
    Spikes {
        base: f64,
        peak: f64,
        gap_s: f64,
        lasting_s: f64,
        in_spike: bool,
    },
    /// A period, over and over.
    Periodic {
        shape: Shape,
        piece_s: f64,
        /// The next piece; below [`PIECES`].
        next: u32,
    },
}

/// How the rate goes over one period.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Decay {
        base: f64,
        peak: f64,
        half_s: f64,
    },
    Sine {
        rate: f64,
        swing: f64,
        period_s: f64,
    },
}

impl Shape {
    /// The mean rate from `from_s` to `until_s` of the period.
    fn mean(self, from_s: f64, until_s: f64) -> f64 {
        let span_s = until_s - from_s;
        match self {
            Self::Decay { base, peak, half_s } => {
                base + (peak - base) * decayed(from_s, until_s, half_s) / span_s
            }
            Self::Sine {
                rate,
                swing,
                period_s,
            } => {
                let turn = std::f64::consts::TAU / period_s;
                let area = ((turn * from_s).cos() - (turn * until_s).cos()) / turn;
                (rate * (1.0 + swing * area / span_s)).max(0.0)
            }
        }
    }
}

/// The integral from `from_s` to `until_s` of what starts at 1 and halves every `half_s`.
fn decayed(from_s: f64, until_s: f64, half_s: f64) -> f64 {
    let tau = half_s / std::f64::consts::LN_2;
    tau * ((-from_s / tau).exp() - (-until_s / tau).exp())
}

impl Pieces {
    /// From the long-run distribution of states, so that there is no run-in.
    fn new(arrivals: Arrivals, rng: &mut Pcg64) -> Self {
        match arrivals {
            Arrivals::Poisson { rate } | Arrivals::Gamma { rate, .. } => Self::Constant { rate },
            Arrivals::Mmpp { rates, stay_s } => {
                let [first, second] = stay_s;
                // `next_piece` leaves the state named here before it draws.
                let in_second = unit(rng) * (first + second) < first;
                Self::Mmpp {
                    rates,
                    stay_s,
                    in_second,
                }
            }
            Arrivals::LogAr {
                rate,
                rho,
                sigma,
                bin_s,
            } => {
                let level = StandardNormal.sample(rng);
                Self::LogAr {
                    rate,
                    rho,
                    sigma,
                    bin_s,
                    level,
                }
            }
            Arrivals::Spikes {
                base,
                peak,
                every_s,
                lasting_s,
            } => {
                let gap_s = every_s - lasting_s;
                Self::Spikes {
                    base,
                    peak,
                    gap_s,
                    lasting_s,
                    in_spike: false,
                }
            }
            Arrivals::Decays {
                base,
                peak,
                every_s,
                half_s,
            } => Self::periodic(Shape::Decay { base, peak, half_s }, every_s),
            Arrivals::Diurnal {
                rate,
                swing,
                period_s,
            } => {
                let shape = Shape::Sine {
                    rate,
                    swing,
                    period_s,
                };
                Self::periodic(shape, period_s)
            }
        }
    }

    fn periodic(shape: Shape, period_s: f64) -> Self {
        Self::Periodic {
            shape,
            piece_s: period_s / f64::from(PIECES),
            next: 0,
        }
    }

    /// The next piece: how long it lasts, in seconds, and its rate.
    fn next_piece(&mut self, rng: &mut Pcg64) -> (f64, f64) {
        match self {
            Self::Constant { rate } => (f64::INFINITY, *rate),
            Self::Mmpp {
                rates: [low, high],
                stay_s: [first, second],
                in_second,
            } => {
                *in_second = !*in_second;
                let (stay, rate) = if *in_second {
                    (*second, *high)
                } else {
                    (*first, *low)
                };
                let lasting: f64 = Exp1.sample(rng);
                (lasting * stay, rate)
            }
            Self::LogAr {
                rate,
                rho,
                sigma,
                bin_s,
                level,
            } => {
                let fresh: f64 = StandardNormal.sample(rng);
                *level = *rho * *level + (1.0 - *rho * *rho).sqrt() * fresh;
                // Less half the variance, so that the mean rate is `rate`.
                (
                    *bin_s,
                    *rate * (*sigma * *level - *sigma * *sigma / 2.0).exp(),
                )
            }
            Self::Spikes {
                base,
                peak,
                gap_s,
                lasting_s,
                in_spike,
            } => {
                *in_spike = !*in_spike;
                if *in_spike {
                    (*lasting_s, *peak)
                } else {
                    (*gap_s, *base)
                }
            }
            Self::Periodic {
                shape,
                piece_s,
                next,
            } => {
                let from_s = f64::from(*next) * *piece_s;
                *next = (*next + 1) % PIECES;
                (*piece_s, shape.mean(from_s, from_s + *piece_s))
            }
        }
    }
}

fn positive(rate: f64) -> Result<(), ArrivalsError> {
    let holds = rate > 0.0 && rate <= Arrivals::FASTEST;
    if holds {
        Ok(())
    } else {
        Err(ArrivalsError::Rate { rate })
    }
}

fn not_negative(rate: f64) -> Result<(), ArrivalsError> {
    let holds = (0.0..=Arrivals::FASTEST).contains(&rate);
    if holds {
        Ok(())
    } else {
        Err(ArrivalsError::Rate { rate })
    }
}

fn span(span_s: f64) -> Result<(), ArrivalsError> {
    let holds = (0.001..=1_000_000.0).contains(&span_s);
    if holds {
        Ok(())
    } else {
        Err(ArrivalsError::Span(span_s))
    }
}

#[cfg(test)]
mod tests;
