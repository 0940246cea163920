//! What is committed of each trace, and the stand-in that is drawn from it.
//!
//! The traces are other people's and are not part of the project. A portrait is quantiles,
//! dispersions and shares; processes were fitted to the counts by their moments. A test compares a
//! portrait with its trace where the trace is there.

use tollgate_policy::units::{Micros, Time};

use super::portrait::{Portrait, QUANTILES};
use crate::arrivals::Arrivals;
use crate::lengths::Lengths;
use crate::trace::TraceName;
use crate::workload::{TenantLoad, Workload, WorkloadError};

/// How long a stand-in lasts: long enough for its counts by the minute to vary little from
/// seed to seed.
const LASTING: Micros = Micros::from_secs(3 * 3_600);

/// What is committed of a trace; `None` of one that has no stand-in.
pub fn committed(name: TraceName) -> Option<Portrait> {
    let fitted = fitted(name)?;
    let lengths = |quantiles: [u64; QUANTILES]| quantiles.map(|length| length as f64);
    Some(Portrait {
        rate: fitted.rate,
        tick_s: fitted.tick_s,
        gaps_s: fitted.gaps_s,
        dispersion: fitted.dispersion,
        lag_one: fitted.lag_one,
        prompt: lengths(fitted.prompt),
        output: lengths(fitted.output),
        shares: fitted.shares.to_vec(),
    })
}

/// Three hours of requests that look like those of a trace; `None` of one that has no stand-in.
pub fn stand_in(name: TraceName, seed: u64) -> Option<Result<Workload, WorkloadError>> {
    let fitted = fitted(name)?;
    let tenants = fitted.shares.iter().enumerate().map(|(index, share)| {
        let rate = fitted.rate * share;
        load(format!("t{index:02}"), fitted.process.at(rate), &fitted)
    });
    let until = Time::START + LASTING;
    Some(Workload::drawn(tenants.collect(), until, seed))
}

/// The negative control: the rate, the lengths and the tenants of a portrait, and no bursts.
///
/// # Errors
/// A portrait without a rate, or whose quantiles are out of order.
pub fn poisson_of(portrait: &Portrait, seed: u64) -> Result<Workload, WorkloadError> {
    let lengths = |quantiles: [f64; QUANTILES]| {
        Lengths::Quantiles(quantiles.map(|length| (length.round() as u64).max(1)))
    };
    let (prompt, output) = (lengths(portrait.prompt), lengths(portrait.output));
    let tenants = portrait.shares.iter().enumerate().map(|(index, share)| {
        let rate = portrait.rate * share;
        TenantLoad::new(
            format!("t{index:02}"),
            Arrivals::Poisson { rate },
            prompt,
            output,
        )
    });
    let until = Time::START + LASTING;
    Workload::drawn(tenants.collect(), until, seed)
}

fn load(name: String, arrivals: Arrivals, fitted: &Fitted) -> TenantLoad {
    let prompt = Lengths::Quantiles(fitted.prompt);
    TenantLoad::new(name, arrivals, prompt, Lengths::Quantiles(fitted.output))
}

/// How the rate moves, whatever it is on average.
#[derive(Clone, Copy)]
enum Moves {
    /// As an AR(1) sequence of its logarithm, by 10 s.
    LogAr { rho: f64, sigma: f64 },
    /// On for a while and off for another, in seconds: how a person sends.
    OnOff { on_s: f64, off_s: f64 },
}

impl Moves {
    fn at(self, rate: f64) -> Arrivals {
        match self {
            Self::LogAr { rho, sigma } => Arrivals::LogAr {
                rate,
                rho,
                sigma,
                bin_s: 10.0,
            },
            Self::OnOff { on_s, off_s } => Arrivals::Mmpp {
                rates: [0.0, rate * (on_s + off_s) / on_s],
                stay_s: [off_s, on_s],
            },
        }
    }
}

struct Fitted {
    rate: f64,
    tick_s: u64,
    gaps_s: [f64; QUANTILES],
    dispersion: [(u64, f64); 3],
    lag_one: f64,
    prompt: [u64; QUANTILES],
    output: [u64; QUANTILES],
    shares: &'static [f64],
    process: Moves,
}

fn fitted(name: TraceName) -> Option<Fitted> {
    match name {
        TraceName::AzureConversations => Some(AZURE_CONVERSATIONS),
        TraceName::MooncakeConversations => Some(MOONCAKE_CONVERSATIONS),
        TraceName::Lmsys27 => Some(LMSYS_27),
        TraceName::AzureCode => None,
    }
}

const AZURE_CONVERSATIONS: Fitted = Fitted {
    rate: 5.53,
    tick_s: 0,
    gaps_s: [
        0.0, 0.006_32, 0.016_13, 0.026_4, 0.036_5, 0.048_27, 0.060_72, 0.073_46, 0.087_25,
        0.101_94, 0.118_42, 0.137_61, 0.158_67, 0.183_17, 0.213_61, 0.246_73, 0.288_81, 0.345_94,
        0.420_74, 0.565_23, 4.314_58,
    ],
    dispersion: [(1, 1.39), (10, 3.87), (60, 16.41)],
    lag_one: 0.69,
    prompt: [
        2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1_020, 1_045, 1_071, 1_097, 1_130, 1_189,
        1_315, 1_877, 2_735, 4_083, 14_050,
    ],
    output: [
        7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451,
        1_000,
    ],
    shares: &[1.0],
    process: Moves::LogAr {
        rho: 0.94,
        sigma: 0.22,
    },
};

const MOONCAKE_CONVERSATIONS: Fitted = Fitted {
    rate: 3.399,
    // Below its ticks of 3 s the counts are those of the replay.
    tick_s: 3,
    gaps_s: [
        0.000_02, 0.014_65, 0.030_93, 0.047_43, 0.065_75, 0.085_38, 0.106_83, 0.126_83, 0.150_49,
        0.174_27, 0.202_52, 0.234_32, 0.266_49, 0.305_41, 0.351_15, 0.403_44, 0.468_88, 0.555_33,
        0.680_8, 0.888_73, 2.864_33,
    ],
    dispersion: [(1, 0.0), (10, 1.5), (60, 2.89)],
    lag_one: 0.28,
    prompt: [
        891, 901, 964, 1_261, 1_662, 2_306, 3_263, 4_250, 4_993, 5_870, 6_909, 8_187, 9_570,
        11_239, 13_196, 15_368, 17_869, 21_467, 27_367, 39_552, 126_195,
    ],
    output: [
        1, 10, 24, 46, 100, 156, 213, 256, 291, 322, 350, 375, 399, 423, 447, 472, 504, 543, 597,
        698, 2_000,
    ],
    shares: &[1.0],
    process: Moves::LogAr {
        rho: 0.84,
        sigma: 0.12,
    },
};

const LMSYS_27: Fitted = Fitted {
    rate: 2.5,
    tick_s: 0,
    gaps_s: [
        0.000_57, 0.013_9, 0.031_63, 0.051_7, 0.076_46, 0.101_89, 0.127_24, 0.156_48, 0.185_57,
        0.219_85, 0.259_43, 0.296_69, 0.334_99, 0.389_82, 0.452_78, 0.542_8, 0.665_76, 0.789_28,
        0.989_31, 1.285_72, 4.538_9,
    ],
    // Ten minutes have too few counts of a minute.
    dispersion: [(1, 1.39), (10, 2.56), (60, 0.0)],
    lag_one: 0.22,
    prompt: [
        2, 2, 5, 8, 10, 13, 16, 19, 24, 31, 40, 52, 68, 92, 124, 161, 214, 299, 432, 653, 1_021,
    ],
    output: [
        2, 10, 17, 29, 43, 62, 85, 108, 140, 172, 211, 255, 308, 351, 400, 457, 511, 512, 513, 513,
        977,
    ],
    shares: &[
        0.1973, 0.1747, 0.1327, 0.08, 0.0447, 0.044, 0.0373, 0.0307, 0.0293, 0.0287, 0.0267, 0.024,
        0.0207, 0.0173, 0.0167, 0.0153, 0.0147, 0.0147, 0.0127, 0.0127, 0.008, 0.0073, 0.0047,
        0.002, 0.0013, 0.0013, 0.0007,
    ],
    process: Moves::OnOff {
        on_s: 3.4,
        off_s: 5.7,
    },
};
