//! What the keys of a scenario say together, once each of them is right by itself.

use tollgate_policy::units::Micros;

use super::form::{ContenderForm, Form, REPLICAS, TENANTS, TenantForm};
use super::read::{located, located_key};
use super::{Contender, Scenario, fits};
use crate::workload::WorkloadError;
use crate::yaml::Mistake;

/// The first thing that does not go together.
pub(super) fn check(scenario: &Scenario, form: &Form, text: &str) -> Result<(), Mistake> {
    compared_once(&form.compare, text)?;
    promises_something(form, text)?;
    if form.chaos.is_some() {
        return Ok(());
    }
    is_there(form)?;
    sizes(form, text)?;
    times(form, text)?;
    for (n, replica) in form.fleet.iter().enumerate() {
        if let Err(what) = fits(replica, &form.model) {
            return Err(located(text, "fleet", n, what));
        }
    }
    match scenario.setup(1, Contender::Tollgate, None) {
        Ok(_) => Ok(()),
        Err(error) => Err(of_workload(form, text, &error)),
    }
}

fn is_there(form: &Form) -> Result<(), Mistake> {
    let missing = |key: &str, what: &str| Err(Mistake::at_start(key, what));
    if form.fleet.is_empty() {
        return missing("fleet", "is missing; list the replicas");
    }
    if form.tenants.is_empty() {
        return missing("tenants", "is missing; list who asks");
    }
    if form.duration.0 == Micros::ZERO {
        return missing("duration", "is missing; use a time like 60s");
    }
    Ok(())
}

fn compared_once(compare: &[ContenderForm], text: &str) -> Result<(), Mistake> {
    for (n, one) in compare.iter().enumerate() {
        let one = Contender::from(*one);
        if compare[..n]
            .iter()
            .any(|before| Contender::from(*before) == one)
        {
            let what = format!("{} stands here twice; keep one", one.label());
            return Err(located_key(text, "compare", what));
        }
    }
    Ok(())
}

fn promises_something(form: &Form, text: &str) -> Result<(), Mistake> {
    match &form.model.slo {
        Some(slo) if slo.ttft.is_none() && slo.tpot.is_none() && slo.e2e.is_none() => {
            let what = "slo promises nothing; give it ttft, tpot or e2e";
            Err(located_key(text, "model", what))
        }
        Some(_) | None => Ok(()),
    }
}

fn sizes(form: &Form, text: &str) -> Result<(), Mistake> {
    let bounded = |key: &str, count: usize, most: u64| match u64::try_from(count)
        .is_ok_and(|count| count <= most)
    {
        true => Ok(()),
        false => Err(located_key(
            text,
            key,
            format!("{count} in all; use {most} at most"),
        )),
    };
    bounded("fleet", form.replicas(), REPLICAS)?;
    let tenants = form.tenants.iter().map(|one| one.count).sum();
    bounded("tenants", tenants, TENANTS)
}

fn times(form: &Form, text: &str) -> Result<(), Mistake> {
    let end = form.duration.0;
    if form.warmup.0 >= end {
        let what = "is as long as the duration, so nothing would be scored; use less";
        return Err(located_key(text, "warmup", what));
    }
    if form.longer.is_some_and(|longer| longer.at.0 >= end) {
        let what = "begins when all is over; let `at` be less than the duration";
        return Err(located_key(text, "longer", what));
    }
    let replicas = form.replicas();
    for (n, fault) in form.faults.iter().enumerate() {
        if fault.replica.is_some_and(|replica| replica >= replicas) {
            let what = format!("names a replica of {replicas}; they count from 0");
            return Err(located(text, "faults", n, what));
        }
        if fault.at.0 >= end + form.drain.0 {
            let what = "comes when all is over; let `at` be less than the duration";
            return Err(located(text, "faults", n, what));
        }
    }
    Ok(())
}

/// A workload that cannot be drawn, at the tenant that it is about.
fn of_workload(form: &Form, text: &str, error: &WorkloadError) -> Mistake {
    let said = error.to_string();
    let named = |tenant: &TenantForm| said.contains(&format!("`{}`", tenant.name));
    let n = form.tenants.iter().position(named).unwrap_or(0);
    located(text, "tenants", n, said)
}

impl Form {
    fn replicas(&self) -> usize {
        self.fleet.iter().map(|one| one.count).sum()
    }
}
