//! Workloads with a name: those that claims are made on, drawn anew from parameters so that every
//! checkout has them.

use tollgate_policy::units::{Micros, Time};

use crate::arrivals::Arrivals;
use crate::lengths::Lengths;
use crate::workload::{TenantLoad, Workload, WorkloadError};

/// Eight tenants that always have something waiting, with equal prompts of 100 tokens; the first
/// one's answers are ten times as long as the others'. Five minutes.
///
/// # Errors
/// None with these parameters; the type says what a workload can be refused for.
pub fn skewed(seed: u64) -> Result<Workload, WorkloadError> {
    let tenants = (0..8).map(|n| {
        let output = Lengths::Constant(if n == 0 { 500 } else { 50 });
        let arrivals = Arrivals::Poisson { rate: 4.0 };
        TenantLoad::new(format!("t{n}"), arrivals, Lengths::Constant(100), output)
    });
    Workload::drawn(tenants.collect(), minutes(5), seed)
}

/// A stand-in for the trace of 27 tenants of the LMSYS arena (Sheng et al., OSDI 2024), at six
/// times its speed, so that the engine of [`crate::fairness::Engine::default`] is overloaded: each
/// tenant's own rate, and lognormal lengths with its own median and spread, fitted to the trace.
/// Two minutes.
///
/// # Errors
/// None with these parameters; the type says what a workload can be refused for.
pub fn stand_in_27(seed: u64) -> Result<Workload, WorkloadError> {
    let tenants = FITTED_27.iter().enumerate().map(|(n, fit)| {
        let lengths = |median, sigma| Lengths::Lognormal {
            median,
            sigma,
            min: 1,
            max: 1_024,
        };
        TenantLoad::new(
            format!("t{n:02}"),
            Arrivals::Poisson {
                rate: fit.rate * 6.0,
            },
            lengths(fit.prompt.0, fit.prompt.1),
            lengths(fit.output.0, fit.output.1),
        )
    });
    Workload::drawn(tenants.collect(), minutes(2), seed)
}

fn minutes(minutes: u64) -> Time {
    Time::START + Micros::from_secs(60 * minutes)
}

/// One tenant's parameters, fitted to its rows.
struct Fit {
    /// Requests per second.
    rate: f64,
    /// Median, and standard deviation of the logarithm.
    prompt: (f64, f64),
    /// Likewise.
    output: (f64, f64),
}

const fn fit(rate: f64, prompt: (f64, f64), output: (f64, f64)) -> Fit {
    Fit {
        rate,
        prompt,
        output,
    }
}

const FITTED_27: [Fit; 27] = [
    fit(0.493, (74.0, 1.46), (254.0, 1.34)),
    fit(0.437, (31.0, 1.58), (318.0, 1.10)),
    fit(0.332, (33.0, 1.67), (207.0, 1.23)),
    fit(0.200, (53.0, 1.73), (110.0, 1.36)),
    fit(0.112, (25.0, 1.60), (244.0, 1.22)),
    fit(0.110, (29.0, 1.55), (277.0, 1.23)),
    fit(0.093, (35.0, 1.47), (121.0, 1.77)),
    fit(0.077, (26.0, 1.55), (187.0, 1.54)),
    fit(0.073, (57.0, 1.89), (202.0, 0.98)),
    fit(0.072, (29.0, 1.92), (111.0, 1.49)),
    fit(0.067, (40.0, 1.83), (119.0, 1.60)),
    fit(0.060, (14.0, 1.51), (314.0, 1.48)),
    fit(0.052, (77.0, 1.15), (324.0, 0.96)),
    fit(0.043, (22.0, 2.05), (313.0, 1.64)),
    fit(0.042, (31.0, 1.81), (166.0, 1.59)),
    fit(0.038, (20.0, 1.71), (34.0, 1.38)),
    fit(0.037, (215.0, 1.19), (152.0, 1.12)),
    fit(0.037, (29.0, 1.52), (156.0, 1.35)),
    fit(0.032, (128.0, 1.39), (151.0, 1.73)),
    fit(0.032, (18.0, 1.61), (178.0, 1.25)),
    fit(0.020, (129.0, 1.61), (469.0, 1.20)),
    fit(0.018, (27.0, 1.50), (112.0, 1.68)),
    fit(0.012, (52.0, 0.86), (43.0, 1.39)),
    fit(0.005, (3.0, 0.68), (10.0, 0.59)),
    fit(0.003, (174.0, 1.48), (16.0, 0.29)),
    fit(0.003, (27.0, 1.30), (642.0, 1.76)),
    fit(0.002, (16.0, 0.00), (286.0, 0.00)),
];
