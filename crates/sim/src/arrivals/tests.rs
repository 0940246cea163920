//! The processes against theory: means and variances of counts, and distributions of gaps.

use super::*;
use crate::stats;

fn gaps(arrivals: Arrivals, seed: u64, count: usize) -> Vec<f64> {
    let mut last = 0.0;
    let gap = |at: f64| at - std::mem::replace(&mut last, at);
    arrivals.times(seed, "a").map(gap).take(count).collect()
}

/// Arrivals in `[0, until_s)`, once for each of `seeds` seeds.
fn counts(arrivals: Arrivals, until_s: f64, seeds: u64) -> Vec<f64> {
    let count = |seed| {
        let times = arrivals.times(seed, "a").take_while(|at| *at < until_s);
        times.count() as f64
    };
    (0..seeds).map(count).collect()
}

fn mean_and_variance(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    let squares = numbers.iter().map(|number| (number - mean).powi(2));
    (mean, squares.sum::<f64>() / (n - 1.0))
}

/// The largest distance between the distribution of `sample` and `cdf`.
fn ks_distance(mut sample: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let distances = sample.iter().enumerate().map(|(below, number)| {
        let expected = cdf(*number);
        let below = below as f64;
        (expected - below / n).max((below + 1.0) / n - expected)
    });
    distances.fold(0.0, f64::max)
}

/// How many of 200 seeds a test at the 5 % level rejects, over 1,000 gaps each.
fn rejections(arrivals: Arrivals, cdf: impl Fn(f64) -> f64) -> usize {
    // Kolmogorov's asymptotic critical value, with Stephens' correction for a finite sample.
    let root = 1_000_f64.sqrt();
    let critical = 1.358 / (root + 0.12 + 0.11 / root);
    let rejects = |seed: &u64| ks_distance(gaps(arrivals, *seed, 1_000), &cdf) > critical;
    (0..200).filter(rejects).count()
}

/// Where 99.9 % of all binomial(200, 0.05) counts lie.
const USUAL_REJECTIONS: std::ops::RangeInclusive<usize> = 2..=21;

#[test]
fn poisson_gaps_are_exponential_over_seeds_and_regular_ones_would_be_caught() {
    let cdf = |gap: f64| 1.0 - (-8.0 * gap).exp();
    let rejected = rejections(Arrivals::Poisson { rate: 8.0 }, cdf);
    assert!(USUAL_REJECTIONS.contains(&rejected), "{rejected} of 200");
    let rejected = rejections(Arrivals::Gamma { rate: 8.0, cv: 0.8 }, cdf);
    assert!(rejected > 190, "{rejected} of 200");
}

#[test]
fn gamma_gaps_of_shape_two_are_erlang_over_seeds() {
    // Shape 2 is cv 1/sqrt(2), and its distribution has a closed form.
    let arrivals = Arrivals::Gamma {
        rate: 8.0,
        cv: 0.5_f64.sqrt(),
    };
    let cdf = |gap: f64| 1.0 - (1.0 + 16.0 * gap) * (-16.0 * gap).exp();
    let rejected = rejections(arrivals, cdf);
    assert!(USUAL_REJECTIONS.contains(&rejected), "{rejected} of 200");
}

#[test]
fn gamma_gaps_have_their_mean_and_their_coefficient_of_variation() {
    for cv in [0.3, 1.0, 2.5] {
        let (mean, variance) =
            mean_and_variance(&gaps(Arrivals::Gamma { rate: 4.0, cv }, 3, 200_000));
        assert!((mean * 4.0 - 1.0).abs() < 0.02, "cv {cv}: mean {mean}");
        let measured = variance.sqrt() / mean;
        assert!((measured / cv - 1.0).abs() < 0.02, "cv {cv}: {measured}");
    }
}

#[test]
fn poisson_counts_have_the_mean_and_the_variance_of_theory() {
    let (mean, variance) = mean_and_variance(&counts(Arrivals::Poisson { rate: 5.0 }, 20.0, 4_000));
    // Four standard errors: sqrt(100 / 4000) and 100 * sqrt(2 / 4000).
    assert!((mean - 100.0).abs() < 0.64, "{mean}");
    assert!((variance - 100.0).abs() < 9.0, "{variance}");
}

#[test]
fn a_bursty_renewal_process_has_its_mean_from_the_first_second_on() {
    let bursty = Arrivals::Gamma { rate: 5.0, cv: 3.0 };
    let (mean, variance) = mean_and_variance(&counts(bursty, 1.0, 40_000));
    let error = (variance / 40_000.0).sqrt();
    assert!((mean - 5.0).abs() < 4.0 * error, "{mean} ± {error}");
}

#[test]
fn mmpp_counts_have_the_mean_and_the_dispersion_of_theory() {
    let arrivals = Arrivals::Mmpp {
        rates: [2.0, 20.0],
        stay_s: [3.0, 1.0],
    };
    assert!((arrivals.mean_rate() - 6.5).abs() < 1e-9);
    let (mean, variance) = mean_and_variance(&counts(arrivals, 200.0, 2_000));
    assert!((mean / 1_300.0 - 1.0).abs() < 0.02, "{mean}");
    // Index of dispersion at infinity: 1 + 2 (l1-l2)^2 r1 r2 / ((r1+r2)^2 (l1 r2 + l2 r1)), with
    // r1 = 1/3 and r2 = 1. At 200 s it is within 1 % of that.
    let (switch_up, switch_down) = (1.0 / 3.0, 1.0);
    let sum: f64 = switch_up + switch_down;
    let expected = 1.0
        + 2.0 * 18.0_f64.powi(2) * switch_up * switch_down
            / (sum.powi(2) * (2.0 * switch_down + 20.0 * switch_up));
    let measured = variance / mean;
    assert!(
        (measured / expected - 1.0).abs() < 0.15,
        "{measured}, not {expected}"
    );
}

#[test]
fn a_log_rate_sequence_has_its_mean_spread_and_correlation() {
    let (rho, sigma) = (0.9_f64, 0.5_f64);
    let arrivals = Arrivals::LogAr {
        rate: 50.0,
        rho,
        sigma,
        bin_s: 1.0,
    };
    let mut bins = vec![0.0; 20_000];
    for at in arrivals.times(11, "a").take_while(|at| *at < 20_000.0) {
        bins[at as usize] += 1.0;
    }
    let (mean, variance) = mean_and_variance(&bins);
    assert!((mean / 50.0 - 1.0).abs() < 0.06, "{mean}");
    let covariances = bins
        .windows(2)
        .map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let lag_one = covariances.sum::<f64>() / 19_999.0;
    // Method of moments for a log-normal rate: what the parameters are fitted with.
    let fitted_square = (1.0 + (variance - mean) / mean.powi(2)).ln();
    let fitted_rho = (1.0 + lag_one / mean.powi(2)).ln() / fitted_square;
    assert!(
        (fitted_square.sqrt() / sigma - 1.0).abs() < 0.06,
        "{fitted_square}"
    );
    assert!((fitted_rho / rho - 1.0).abs() < 0.04, "{fitted_rho}");
}

#[test]
fn spikes_come_when_they_should_and_carry_their_rate() {
    let arrivals = Arrivals::Spikes {
        base: 0.0,
        peak: 100.0,
        every_s: 10.0,
        lasting_s: 2.0,
    };
    assert!((arrivals.mean_rate() - 20.0).abs() < 1e-9);
    let times: Vec<f64> = arrivals
        .times(5, "a")
        .take_while(|at| *at < 1_000.0)
        .collect();
    assert!(times.iter().all(|at| at % 10.0 <= 2.0));
    let expected = 20_000.0;
    let deviation = (times.len() as f64 - expected).abs();
    assert!(deviation < 4.0 * f64::sqrt(expected), "{}", times.len());
}

#[test]
fn a_jump_halves_as_often_as_it_says_and_carries_its_rate() {
    let arrivals = Arrivals::Decays {
        base: 2.0,
        peak: 66.0,
        every_s: 10.0,
        half_s: 1.0,
    };
    let mut bins = [0.0; 10];
    for at in arrivals.times(5, "a").take_while(|at| *at < 10_000.0) {
        bins[(at % 10.0) as usize] += 1.0;
    }
    // What halves every second from 64 carries 32 / ln 2 in the first of them.
    for (second, count) in (0..).zip(bins) {
        let expected = 1_000.0 * (2.0 + 32.0 / std::f64::consts::LN_2 / 2_f64.powi(second));
        let deviation = (count - expected).abs();
        assert!(
            deviation < 4.0 * f64::sqrt(expected),
            "{second}: {count}, not {expected}"
        );
    }
    let mean = bins.iter().sum::<f64>() / 10_000.0;
    assert!((mean / arrivals.mean_rate() - 1.0).abs() < 0.02, "{mean}");
}

#[test]
fn a_day_is_busiest_at_its_first_quarter_and_has_its_mean() {
    let arrivals = Arrivals::Diurnal {
        rate: 10.0,
        swing: 0.8,
        period_s: 40.0,
    };
    let mut quarters = [0.0; 4];
    for at in arrivals.times(5, "a").take_while(|at| *at < 4_000.0) {
        quarters[((at + 5.0) % 40.0 / 10.0) as usize] += 1.0;
    }
    // The mean of a sine over the quarter around its top is 2 sqrt(2) / pi.
    let swing = 0.8 * 8_f64.sqrt() / std::f64::consts::PI;
    for (count, mean) in quarters.iter().zip([1.0, 1.0 + swing, 1.0, 1.0 - swing]) {
        let expected = 10_000.0 * mean;
        assert!(
            (count - expected).abs() < 4.0 * f64::sqrt(expected),
            "{quarters:?}"
        );
    }
}

#[test]
fn times_never_decrease_and_a_seed_repeats_them() {
    let all = [
        Arrivals::Poisson { rate: 100.0 },
        Arrivals::Gamma {
            rate: 100.0,
            cv: 20.0,
        },
        Arrivals::Mmpp {
            rates: [0.0, 400.0],
            stay_s: [0.3, 0.1],
        },
        Arrivals::LogAr {
            rate: 100.0,
            rho: 0.9,
            sigma: 2.0,
            bin_s: 0.1,
        },
        Arrivals::Spikes {
            base: 1.0,
            peak: 400.0,
            every_s: 1.0,
            lasting_s: 0.2,
        },
        Arrivals::Decays {
            base: 0.0,
            peak: 1_000.0,
            every_s: 1.0,
            half_s: 0.1,
        },
        Arrivals::Diurnal {
            rate: 100.0,
            swing: 1.0,
            period_s: 1.0,
        },
    ];
    for arrivals in all {
        arrivals.check().unwrap();
        let times: Vec<f64> = arrivals.times(1, "a").take(2_000).collect();
        assert!(
            times.windows(2).all(|pair| pair[0] <= pair[1]),
            "{arrivals:?}"
        );
        assert!(times.iter().all(|at| at.is_finite() && *at >= 0.0));
        let again: Vec<f64> = arrivals.times(1, "a").take(2_000).collect();
        assert_eq!(times, again);
        let other: Vec<f64> = arrivals.times(2, "a").take(2_000).collect();
        assert_ne!(times, other);
    }
}

#[test]
fn burstier_gaps_give_longer_quiet_times_at_the_same_rate() {
    let worst = |cv| {
        let gaps = gaps(Arrivals::Gamma { rate: 10.0, cv }, 1, 5_000);
        stats::Sorted::new(gaps).quantile(0.99).unwrap()
    };
    assert!(worst(0.2) < worst(1.0) && worst(1.0) < worst(4.0));
}

#[test]
fn impossible_processes_are_refused_with_their_values() {
    let refused = |arrivals: Arrivals| arrivals.check().unwrap_err();
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 2e6] {
        assert!(matches!(
            refused(Arrivals::Poisson { rate }),
            ArrivalsError::Rate { .. }
        ));
    }
    let text = refused(Arrivals::Poisson { rate: -3.0 }).to_string();
    assert_eq!(
        text,
        "-3 requests per second; use more than 0 and at most 1000000"
    );
    for cv in [0.0, -1.0, f64::NAN, 101.0] {
        assert!(matches!(
            refused(Arrivals::Gamma { rate: 1.0, cv }),
            ArrivalsError::Cv(_)
        ));
    }
    let never = Arrivals::Mmpp {
        rates: [0.0, 0.0],
        stay_s: [1.0, 1.0],
    };
    assert!(matches!(refused(never), ArrivalsError::Rate { .. }));
    let stuck = Arrivals::Mmpp {
        rates: [1.0, 2.0],
        stay_s: [0.0, 1.0],
    };
    assert!(matches!(refused(stuck), ArrivalsError::Span(_)));
    let wandering = Arrivals::LogAr {
        rate: 1.0,
        rho: 1.0,
        sigma: 0.5,
        bin_s: 1.0,
    };
    assert!(matches!(refused(wandering), ArrivalsError::Ar { .. }));
    let endless = Arrivals::Spikes {
        base: 1.0,
        peak: 2.0,
        every_s: 1.0,
        lasting_s: 2.0,
    };
    assert!(matches!(refused(endless), ArrivalsError::Span(_)));
    let below_nothing = Arrivals::Diurnal {
        rate: 1.0,
        swing: 1.1,
        period_s: 60.0,
    };
    assert!(matches!(refused(below_nothing), ArrivalsError::Swing(_)));
}
