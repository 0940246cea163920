//! What came of a scenario, as text: the measures of each gateway beside each other, then what each
//! tenant got.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tollgate_policy::units::Time;

use crate::scenario::{Contender, Scenario};
use crate::stats::Sorted;
use crate::tally::TenantTally;
use crate::trial::{Passes, Trial, Trials};
use crate::world::Oracle;

/// Tenants that a report shows; the others are added up.
const TENANTS_MAX: usize = 12;

/// Violations that a report shows.
const VIOLATIONS_SHOWN: usize = 5;

/// The whole report of one seed.
pub fn render(scenario: &Scenario, trials: &Trials) -> String {
    let mut text = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "{}\n", scenario.title);
    if !scenario.about.is_empty() {
        let _ = writeln!(text, "{}\n", scenario.about.trim());
    }
    world(&mut text, trials);
    measures(&mut text, scenario, trials);
    for trial in &trials.trials {
        tenants(&mut text, trial);
    }
    let verdict = match trials.passes(scenario) {
        Passes::Yes => "keeps every law and every bound",
        Passes::No => "FAILS",
    };
    if let Some(first) = trials.trials.first() {
        let _ = writeln!(text, "{} {verdict}.", first.contender.label());
    }
    text
}

/// What failed, in a few lines.
pub fn failures(scenario: &Scenario, trials: &Trials) -> String {
    let mut text = String::new();
    let Some(first) = trials.trials.first() else {
        return text;
    };
    let _ = writeln!(text, "seed {} fails:", trials.seed);
    violations(&mut text, first);
    let (names, until) = (first.setup.names(), first.setup.workload.until());
    for measure in &scenario.measures {
        let verdict = measure.judge(&first.run, &names, until);
        if !verdict.holds {
            let (label, bound) = (measure.what.label(), measure.bound());
            let _ = writeln!(text, "  {label}: {}; {bound}", number(verdict.number));
        }
    }
    text
}

fn world(text: &mut String, trials: &Trials) {
    let Some(first) = trials.trials.first() else {
        return;
    };
    let setup = &first.setup;
    let _ = writeln!(
        text,
        "seed {}, {} s, tenants: {}, replicas: {}, faults: {}\n",
        trials.seed,
        seconds(setup.workload.until()),
        setup.callers.len(),
        setup.fleet.len(),
        setup.faults.len(),
    );
}

fn measures(text: &mut String, scenario: &Scenario, trials: &Trials) {
    let contenders: Vec<Contender> = trials.trials.iter().map(|one| one.contender).collect();
    let _ = write!(text, "| measure | must be |");
    for contender in &contenders {
        let _ = write!(text, " {} |", contender.label());
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(contenders.len()));
    for measure in &scenario.measures {
        let _ = write!(text, "| {} | {} |", measure.what.label(), measure.bound());
        for trial in &trials.trials {
            let (names, until) = (trial.setup.names(), trial.setup.workload.until());
            let verdict = measure.judge(&trial.run, &names, until);
            let says = if verdict.holds { "" } else { " FAILS" };
            let _ = write!(text, " {}{says} |", number(verdict.number));
        }
        let _ = writeln!(text);
    }
    let _ = write!(text, "| laws kept | {} of them |", Oracle::ALL.len());
    for trial in &trials.trials {
        let broken: std::collections::BTreeSet<Oracle> =
            trial.run.violations.iter().map(|one| one.oracle).collect();
        let kept = Oracle::ALL.len() - broken.len();
        let says = if broken.is_empty() { "" } else { " FAILS" };
        let _ = write!(text, " {kept}{says} |");
    }
    let _ = writeln!(text, "\n");
    for trial in &trials.trials {
        violations(text, trial);
    }
}

fn violations(text: &mut String, trial: &Trial) {
    let found = &trial.run.violations;
    for one in found.iter().take(VIOLATIONS_SHOWN) {
        let _ = writeln!(
            text,
            "  {} broke `{}` at {} s: {}",
            trial.contender.label(),
            one.oracle.label(),
            seconds(one.at),
            one.what
        );
    }
    if found.len() > VIOLATIONS_SHOWN {
        let _ = writeln!(text, "  and {} more", found.len() - VIOLATIONS_SHOWN);
    }
}

fn tenants(text: &mut String, trial: &Trial) {
    let tally = &trial.run.tally;
    let _ = writeln!(
        text,
        "{}\n\n| tenant | came | answered | left | lost | TTFT p50 ms | p95 | p99 | TPOT p50 ms \
         | tokens in | reused | out |\n|---|---|---|---|---|---|---|---|---|---|---|---|",
        trial.contender.label()
    );
    let names = trial.setup.names();
    for (name, one) in names.iter().zip(&tally.tenants).take(TENANTS_MAX) {
        row(text, name, one);
    }
    if names.len() > TENANTS_MAX {
        let mut rest = TenantTally::default();
        for one in tally.tenants.iter().skip(TENANTS_MAX) {
            rest.came += one.came;
            rest.completed += one.completed;
            rest.left += one.left;
            rest.lost += one.lost;
            rest.prompt += one.prompt;
            rest.cached += one.cached;
            rest.output += one.output;
            rest.ttft.extend(&one.ttft);
            rest.tpot.extend(&one.tpot);
        }
        row(
            text,
            &format!("{} others", names.len() - TENANTS_MAX),
            &rest,
        );
    }
    let _ = writeln!(text, "\nends of tries: {}", ends(&tally.outcomes));
    let levels = &tally.levels;
    let _ = writeln!(
        text,
        "KV held: {:.1}% on average, {:.1}% at most on one replica; fullest over mean {}; \
         preemptions {}; retries {}; facts {}\n",
        levels.held_mean(),
        levels.peak_percent,
        number(levels.imbalance_mean()),
        tally.made.preemptions,
        tally.retries.len(),
        trial.run.facts
    );
}

fn row(text: &mut String, name: &str, one: &TenantTally) {
    let millis = |sample: &[u32]| Sorted::new(sample.iter().map(|us| f64::from(*us) / 1_000.0));
    let (ttft, tpot) = (millis(&one.ttft), millis(&one.tpot));
    let _ = writeln!(
        text,
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        one.came,
        one.completed,
        one.left,
        one.lost,
        number(ttft.quantile(0.5)),
        number(ttft.quantile(0.95)),
        number(ttft.quantile(0.99)),
        number(tpot.quantile(0.5)),
        one.prompt,
        one.cached,
        one.output
    );
}

fn ends(outcomes: &BTreeMap<&'static str, u64>) -> String {
    let each = outcomes
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"));
    each.collect::<Vec<_>>().join(", ")
}

fn number(number: Option<f64>) -> String {
    match number {
        None => "-".to_owned(),
        Some(number) if number.is_infinite() => "never".to_owned(),
        Some(number) if number >= 1_000.0 => format!("{number:.0}"),
        Some(number) if number >= 10.0 => format!("{number:.1}"),
        Some(number) => format!("{number:.2}"),
    }
}

fn seconds(at: Time) -> String {
    let micros = at.as_micros();
    let (secs, rest) = (micros / 1_000_000, micros % 1_000_000 / 1_000);
    match rest {
        0 => secs.to_string(),
        _ => format!("{secs}.{rest:03}"),
    }
}
