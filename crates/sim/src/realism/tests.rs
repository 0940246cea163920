//! The gate lets stand-ins through and no control, on what is committed and on the traces
//! themselves where they are.

use std::path::PathBuf;

use super::*;
use crate::arrivals::Arrivals;
use crate::lengths::Lengths;
use crate::workload::TenantLoad;

/// The folder of the traces, where there is one.
fn traces() -> Option<PathBuf> {
    std::env::var_os("TOLLGATE_TRACES").map(PathBuf::from)
}

fn drawn(name: TraceName, seed: u64) -> Vec<Arrival> {
    stand_in(name, seed).unwrap().unwrap().arrivals().collect()
}

fn gate(arrivals: &[Arrival], wanted: &Portrait) -> Gate {
    Gate::of(
        &Portrait::of(arrivals, wanted.tick_s),
        wanted,
        Bounds::default(),
    )
}

fn failed(gate: &Gate) -> Vec<&str> {
    let broken = gate.checks.iter().filter(|check| !check.holds);
    broken.map(|check| check.what.as_str()).collect()
}

/// Controls pass and streams fail by chance now and then; of ten seeds most may not.
fn passing(of: impl Fn(u64) -> Gate) -> usize {
    (1..=10).filter(|seed| of(*seed).passes()).count()
}

#[test]
fn stand_ins_pass_and_both_controls_fail_on_what_is_committed() {
    for name in STAND_INS {
        for tried in trial(name, None, 1).unwrap() {
            assert!(
                tried.as_it_should(),
                "{}, {}:\n{}",
                name.label(),
                tried.name,
                tried.gate
            );
        }
    }
}

#[test]
fn the_verdict_does_not_hang_on_the_seed() {
    for name in STAND_INS {
        let wanted = committed(name).unwrap();
        let good = passing(|seed| gate(&drawn(name, seed), &wanted));
        assert!(good >= 7, "{}: {good} of 10 stand-ins pass", name.label());
        let shuffled = passing(|seed| gate(&shuffled(&drawn(name, seed), seed), &wanted));
        assert!(
            shuffled <= 1,
            "{}: {shuffled} of 10 shuffled streams pass",
            name.label()
        );
        let poisson = passing(|seed| {
            let arrivals: Vec<Arrival> = poisson_of(&wanted, seed).unwrap().arrivals().collect();
            gate(&arrivals, &wanted)
        });
        assert!(
            poisson <= 1,
            "{}: {poisson} of 10 Poisson streams pass",
            name.label()
        );
    }
}

#[test]
fn what_a_gate_on_gaps_alone_lets_through_is_caught_by_the_counts() {
    let wanted = committed(TraceName::AzureConversations).unwrap();
    let stream = shuffled(&drawn(TraceName::AzureConversations, 1), 1);
    let gate = gate(&stream, &wanted);
    let broken = failed(&gate);
    assert!(
        !broken.iter().any(|what| what.starts_with("gaps")),
        "{broken:?}"
    );
    assert!(
        broken.contains(&"dispersion of counts at 60 s"),
        "{broken:?}"
    );
}

#[test]
fn shuffling_keeps_the_gaps_and_the_end() {
    let before = drawn(TraceName::Lmsys27, 3);
    let after = shuffled(&before, 3);
    let gaps = |all: &[Arrival]| {
        let mut gaps: Vec<u64> = all
            .windows(2)
            .map(|pair| pair[1].at.since(pair[0].at).get())
            .collect();
        gaps.sort_unstable();
        gaps
    };
    assert_eq!(
        before.last().map(|one| one.at),
        after.last().map(|one| one.at)
    );
    assert_ne!(before, after);
    // The first gap counts from the start, and changes places with the others too.
    let differing = gaps(&before).len()
        - gaps(&before)
            .iter()
            .zip(gaps(&after))
            .filter(|(one, other)| **one == *other)
            .count();
    assert!(differing < gaps(&before).len());
    assert_eq!(after, shuffled(&before, 3), "the same seed, the same order");
}

#[test]
fn tenants_of_equal_size_are_not_those_of_the_trace() {
    let wanted = committed(TraceName::Lmsys27).unwrap();
    let level = Portrait {
        shares: vec![1.0 / 27.0; 27],
        ..wanted.clone()
    };
    let gate = Gate::of(&level, &wanted, Bounds::default());
    assert_eq!(
        failed(&gate),
        [
            "share of the 1 busiest",
            "share of the 3 busiest",
            "share of the 10 busiest"
        ]
    );
}

#[test]
fn lengths_of_another_shape_are_caught() {
    let wanted = committed(TraceName::AzureConversations).unwrap();
    let arrivals = Arrivals::LogAr {
        rate: 5.53,
        rho: 0.94,
        sigma: 0.22,
        bin_s: 10.0,
    };
    let (prompt, output) = (Lengths::Constant(1_020), Lengths::Constant(129));
    let constant = TenantLoad::new("t00", arrivals, prompt, output);
    let until = Time::START + Micros::from_secs(3_600);
    let workload = Workload::drawn(vec![constant], until, 1).unwrap();
    let arrivals: Vec<Arrival> = workload.arrivals().collect();
    let gate = gate(&arrivals, &wanted);
    assert_eq!(failed(&gate), ["prompts, KS", "outputs, KS"], "{gate}");
}

#[test]
fn a_portrait_of_itself_is_perfect() {
    let portrait = Portrait::of(&drawn(TraceName::AzureConversations, 1), 0);
    let gate = Gate::of(&portrait, &portrait, Bounds::default());
    assert!(gate.passes());
    let distances = gate.checks.iter().filter(|check| check.wanted == 0.0);
    distances.for_each(|check| assert!(check.found.abs() < 0.001, "{check:?}"));
}

#[test]
fn where_the_traces_are_they_are_what_is_committed_and_stand_ins_pass_against_them() {
    let Some(dir) = traces() else { return };
    for name in STAND_INS {
        let tried = trial(name, Some(&dir), 1).unwrap();
        assert_eq!(tried.len(), 5, "{}", name.label());
        for tried in tried {
            assert!(
                tried.as_it_should(),
                "{}, {}:\n{}",
                name.label(),
                tried.name,
                tried.gate
            );
        }
    }
}
