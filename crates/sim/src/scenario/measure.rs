//! What a scenario measures, and the bound that it must keep.

use tollgate_policy::units::{Micros, Time};

use super::form::{Form, MeasureForm, WhatForm};
use super::read::located;
use crate::promised::Promised;
use crate::stats::Sorted;
use crate::tally::Tally;
use crate::world::Run;
use crate::yaml::Mistake;

/// A number that comes of a run, and its bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Which number.
    pub what: What,
    /// What it must not exceed.
    pub at_most: Option<f64>,
    /// What it must reach.
    pub at_least: Option<f64>,
}

/// A number that comes of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A quantile of the TTFT of the tenants of this name, in milliseconds. A request that was lost
    /// before its first token counts as one that took for ever.
    Ttft {
        /// Whose.
        tenant: String,
        /// Of a hundred.
        percent: u32,
    },
    /// Of a hundred requests whose clients stayed, how many were answered.
    Served {
        /// Whose.
        tenant: String,
    },
    /// KV over time that was in flight, over what may be, as a mean over a span of time.
    KvOverLimit {
        /// Whose.
        tenant: String,
        /// From here on.
        from: Time,
        /// Until here.
        until: Time,
    },
    /// How well the TTFT tells the requests of one tenant from those of another: 0.5 is not at
    /// all, 1 is always.
    ProbeAuc {
        /// Whose are to be the faster ones.
        tenant: String,
        /// Whose are to be the slower ones.
        against: String,
    },
    /// Requests that the tenants' levels still hold when all have ended.
    HeldAtEnd,
    /// KV held by the fullest replica over the mean.
    Imbalance,
    /// How far the busiest or the quietest part of a span of time is from its mean in retries, as a
    /// part of that mean.
    RetryUnevenness {
        /// From here on.
        from: Time,
        /// Until here.
        until: Time,
        /// Parts.
        bins: usize,
    },
    /// Sequences that gave up their KV to others.
    Preemptions,
    /// Prompt and output tokens per second, after the warm-up.
    TokensPerSecond,
    /// Of the promises, over the requests that were sent in a span of time.
    Promise {
        /// Which number.
        of: Promised,
        /// From here on.
        from: Time,
        /// Until here.
        until: Time,
    },
}

/// What a measure came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The number; nothing where there was nothing to measure.
    pub number: Option<f64>,
    /// Whether it keeps its bound.
    pub holds: bool,
}

impl Measure {
    /// Measures a run of tenants with these names, over this span.
    pub fn judge(&self, run: &Run, names: &[String], until: Time) -> Verdict {
        let number = self.what.of(&run.tally, names, until);
        let holds = number.is_some_and(|number| {
            self.at_most.is_none_or(|most| number <= most)
                && self.at_least.is_none_or(|least| number >= least)
        });
        Verdict { number, holds }
    }

    /// The bound, in words.
    pub fn bound(&self) -> String {
        match (self.at_least, self.at_most) {
            (None, None) => "-".to_owned(),
            (None, Some(most)) => format!("at most {most}"),
            (Some(least), None) => format!("at least {least}"),
            (Some(least), Some(most)) => format!("{least} to {most}"),
        }
    }
}

impl What {
    /// What it is, in words.
    pub fn label(&self) -> String {
        match self {
            Self::Ttft { tenant, percent } => format!("{tenant}: p{percent} TTFT, ms"),
            Self::Served { tenant } => format!("{tenant}: answered of those who stayed, %"),
            Self::KvOverLimit { tenant, .. } => format!("{tenant}: KV in flight over its limit"),
            Self::ProbeAuc { tenant, against } => {
                format!("TTFT tells {tenant} from {against}, AUC")
            }
            Self::Promise { of, .. } => of.label().to_owned(),
            Self::HeldAtEnd => "requests still held when all have ended".to_owned(),
            Self::Imbalance => "fullest replica over the mean".to_owned(),
            Self::RetryUnevenness { .. } => "unevenness of the retries".to_owned(),
            Self::Preemptions => "preemptions".to_owned(),
            Self::TokensPerSecond => "tokens/s".to_owned(),
        }
    }

    fn of(&self, tally: &Tally, names: &[String], until: Time) -> Option<f64> {
        match self {
            Self::Ttft { tenant, percent } => {
                let share = f64::from(*percent) / 100.0;
                let answered = ttft(tally, names, tenant);
                let stayed: u64 = of_name(tally, names, tenant)
                    .map(|one| one.came.saturating_sub(one.left))
                    .sum();
                let all = stayed.max(answered.len() as u64);
                let rank = (share * all as f64).ceil() as usize;
                match answered.as_slice().get(rank.max(1) - 1) {
                    Some(micros) => Some(micros / 1_000.0),
                    None if all > 0 => Some(f64::INFINITY),
                    None => None,
                }
            }
            Self::Served { tenant } => {
                let own = || of_name(tally, names, tenant);
                let stayed: u64 = own().map(|one| one.came.saturating_sub(one.left)).sum();
                let served: u64 = own().map(|one| one.completed).sum();
                (stayed > 0).then(|| 100.0 * served as f64 / stayed as f64)
            }
            Self::KvOverLimit {
                tenant,
                from,
                until,
            } => of_name(tally, names, tenant)
                .filter_map(|one| one.kv_over_limit(*from, *until))
                .reduce(f64::max),
            Self::ProbeAuc { tenant, against } => {
                auc(&ttft(tally, names, tenant), &ttft(tally, names, against))
            }
            Self::Promise { of, from, until } => of.of(tally, *from, *until),
            Self::HeldAtEnd => Some(f64::from(tally.left.requests)),
            Self::Imbalance => tally.levels.imbalance_mean(),
            Self::RetryUnevenness { from, until, bins } => {
                unevenness(&tally.retries, *from, *until, *bins)
            }
            Self::Preemptions => Some(tally.made.preemptions as f64),
            Self::TokensPerSecond => {
                let span = until.since(tally.warmup()).get() as f64 / 1e6;
                let each = tally.tenants.iter();
                let tokens: u64 = each.map(|one| one.prompt.get() + one.output.get()).sum();
                (span > 0.0).then(|| tokens as f64 / span)
            }
        }
    }
}

/// The tenants of this name, those that it was multiplied into included.
fn of_name<'a>(
    tally: &'a Tally,
    names: &'a [String],
    name: &'a str,
) -> impl Iterator<Item = &'a crate::tally::TenantTally> {
    let is = move |own: &str| {
        let rest = own.strip_prefix(name);
        rest.is_some_and(|rest| {
            let number = rest.strip_prefix('-');
            rest.is_empty() || number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    let named = tally.tenants.iter().zip(names);
    named.filter(move |(_, own)| is(own)).map(|(one, _)| one)
}

fn ttft(tally: &Tally, names: &[String], name: &str) -> Sorted {
    let each = of_name(tally, names, name).flat_map(|one| one.ttft.iter());
    Sorted::new(each.map(|micros| f64::from(*micros)))
}

/// The chance that one of `slower` is the slower one, ties counted half.
fn auc(faster: &Sorted, slower: &Sorted) -> Option<f64> {
    let pairs = faster.len() as f64 * slower.len() as f64;
    let ordered = faster.as_slice();
    let below = slower.as_slice().iter().map(|number| {
        let less = ordered.partition_point(|other| other < number);
        let up_to = ordered.partition_point(|other| other <= number);
        less as f64 + (up_to - less) as f64 / 2.0
    });
    (pairs > 0.0).then(|| below.sum::<f64>() / pairs)
}

fn unevenness(times: &[Time], from: Time, until: Time, bins: usize) -> Option<f64> {
    let width = until.since(from).get() as f64 / bins.max(1) as f64;
    let mut counts = vec![0_u64; bins.max(1)];
    for at in times.iter().filter(|at| **at >= from && **at < until) {
        let bin = (at.since(from).get() as f64 / width) as usize;
        if let Some(count) = counts.get_mut(bin) {
            *count += 1;
        }
    }
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let far = |count: &u64| (*count as f64 - mean).abs() / mean;
    (mean > 0.0).then(|| counts.iter().map(far).fold(0.0, f64::max))
}

/// The measures of a form.
pub(super) fn all(form: &Form, text: &str) -> Result<Vec<Measure>, Mistake> {
    let until = Time::START + form.duration.0;
    let warmup = Time::START + form.warmup.0;
    let read = |(n, one): (usize, &MeasureForm)| {
        let wrong = |what: String| located(text, "measures", n, what);
        let tenant = |name: &Option<String>, key: &str| {
            let name = name
                .clone()
                .ok_or_else(|| wrong(format!("needs {key}: the name of a tenant")))?;
            let known = form.tenants.iter().any(|tenant| tenant.name == name);
            match known || form.replay.is_some() {
                true => Ok(name),
                false => Err(wrong(format!(
                    "{key} names {name}, who is none of the tenants"
                ))),
            }
        };
        let from = one.from.map_or(warmup, |span| Time::START + span.0);
        let end = one.until.map_or(until, |span| Time::START + span.0);
        if end.since(from) == Micros::ZERO && form.chaos.is_none() {
            let what = "ends before it begins; let `from` be before `until`, within the duration";
            return Err(wrong(what.to_owned()));
        }
        if let (Some(least), Some(most)) = (one.at_least, one.at_most)
            && least > most
        {
            let what = format!("nothing is at least {least} and at most {most}; exchange them");
            return Err(wrong(what));
        }
        Ok(Measure {
            what: what(one, (from, end), tenant)?,
            at_most: one.at_most,
            at_least: one.at_least,
        })
    };
    form.measures.iter().enumerate().map(read).collect()
}

fn what(
    one: &MeasureForm,
    (from, until): (Time, Time),
    tenant: impl Fn(&Option<String>, &str) -> Result<String, Mistake>,
) -> Result<What, Mistake> {
    let own = || tenant(&one.tenant, "tenant");
    let promise = |of| What::Promise { of, from, until };
    Ok(match one.what {
        WhatForm::TtftP50Ms => What::Ttft {
            tenant: own()?,
            percent: 50,
        },
        WhatForm::TtftP99Ms => What::Ttft {
            tenant: own()?,
            percent: 99,
        },
        WhatForm::ServedPercent => What::Served { tenant: own()? },
        WhatForm::KvOverLimit => What::KvOverLimit {
            tenant: own()?,
            from,
            until,
        },
        WhatForm::ProbeAuc => What::ProbeAuc {
            tenant: own()?,
            against: tenant(&one.against, "against")?,
        },
        WhatForm::HeldAtEnd => What::HeldAtEnd,
        WhatForm::Imbalance => What::Imbalance,
        WhatForm::RetryUnevenness => What::RetryUnevenness {
            from,
            until,
            bins: one.bins,
        },
        WhatForm::Preemptions => What::Preemptions,
        WhatForm::TokensPerSecond => What::TokensPerSecond,
        WhatForm::InTimePercent => promise(Promised::InTime),
        WhatForm::LatePercent => promise(Promised::Late),
        WhatForm::CoveragePercent => promise(Promised::Coverage),
        WhatForm::CoverageWorstMinute => promise(Promised::WorstMinute),
        WhatForm::BoundOverOutcome => promise(Promised::Width),
        WhatForm::LongestMissRun => promise(Promised::Run),
        WhatForm::FairestGoodput => promise(Promised::Fairest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(numbers: &[f64]) -> Sorted {
        Sorted::new(numbers.iter().copied())
    }

    #[test]
    fn what_tells_two_samples_apart_is_told() {
        let (low, high) = (sample(&[1.0, 2.0]), sample(&[3.0, 4.0]));
        assert_eq!(auc(&low, &high), Some(1.0));
        assert_eq!(auc(&high, &low), Some(0.0));
        assert_eq!(auc(&low, &low), Some(0.5));
        assert_eq!(auc(&low, &sample(&[])), None);
    }

    #[test]
    fn an_even_curve_is_even_and_a_burst_is_not() {
        let at = |secs: u64| Time::START + Micros::from_secs(secs);
        let even: Vec<Time> = (0..100).map(at).collect();
        assert_eq!(unevenness(&even, at(0), at(100), 10), Some(0.0));
        let burst = vec![at(5); 100];
        assert_eq!(unevenness(&burst, at(0), at(100), 10), Some(9.0));
        assert_eq!(unevenness(&[], at(0), at(100), 10), None);
    }
}
