//! Ladders on a virtual clock, whole: from the plan to the page.

use std::collections::BTreeSet;

use tollgate_sim::rungs::Cost;

use super::*;

fn ladder(out: &Path) -> Ladder {
    Ladder {
        rungs: Rung::ENGINE.to_vec(),
        loads: vec![2.0, 8.0],
        seeds: 2,
        slo: Slo::default(),
        timing: Timing {
            duration: Micros::from_secs(20),
            warm_up: Micros::from_secs(2),
            drain: Micros::from_secs(5),
            ..Timing::default()
        },
        traffic: Traffic {
            prompt: Lengths::Uniform { min: 580, max: 640 },
            output: Lengths::Lognormal {
                median: 32.0,
                sigma: 0.7,
                min: 1,
                max: 512,
            },
            shared: Some(SharedPrefix {
                tokens: 550,
                variants: 4,
                share: 0.7,
                family: None,
            }),
            cv: 0.3,
        },
        machine: Machine {
            sequences: 16,
            kv_tokens: 16_384,
            step_tokens: 512,
            context: 2_048,
            cost: Cost {
                step: Micros::from_millis(15),
                per_sequence: Micros::from_millis(1),
                prefill_tokens_per_s: 3_000,
            },
        },
        ground: Ground::Virtual,
        out: out.to_owned(),
        budget: None,
        command: "tollgate bench ladder --sim".to_owned(),
    }
}

#[test]
fn rates_come_one_after_the_other_and_every_rung_is_first_as_often() {
    let folder = tempfile::tempdir().unwrap();
    let places = ladder(folder.path()).places();
    let rates: Vec<f64> = places.iter().map(|place| place.load_per_s).collect();
    assert!(rates.is_sorted() && places.len() == 16);
    let first: BTreeSet<Rung> = places.chunks(4).map(|round| round[0].rung).collect();
    assert_eq!(first.len(), 4);
    for round in places.chunks(4) {
        let all: BTreeSet<Rung> = round.iter().map(|place| place.rung).collect();
        assert_eq!(all.len(), 4);
        assert!(round.iter().all(|place| place.seed == round[0].seed));
    }
}

#[test]
fn each_rung_peaks_above_the_one_below_it_and_the_page_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut begun = Vec::new();
    let mut whole = ladder(folder.path());
    (whole.loads, whole.seeds) = (vec![1.0, 2.0, 3.0, 6.0], 3);
    whole.timing.duration = Micros::from_secs(40);
    let climbed = whole
        .climb(&Stop::new(), |step| begun.push(step.clone()))
        .unwrap();
    assert_eq!((climbed.done, climbed.of, begun.len()), (48, 48, 48));
    let peaks: Vec<f64> = climbed
        .peaks
        .iter()
        .map(|peak| peak.goodput_per_s)
        .collect();
    assert!(
        peaks.is_sorted_by(|low, high| low < high),
        "{:?}",
        climbed.peaks
    );
    let names: Vec<&str> = climbed
        .peaks
        .iter()
        .map(|peak| peak.series.as_str())
        .collect();
    assert_eq!(names, ["fifo", "static", "continuous", "continuous+prefix"]);
    let html = fs::read_to_string(climbed.page).unwrap();
    assert!(html.contains("What got worse") && html.contains("continuous+prefix"));
    let csv = fs::read_to_string(folder.path().join("ladder.csv")).unwrap();
    assert_eq!(csv.lines().count(), 49);
}

#[test]
fn the_same_ladder_gives_the_same_rows() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, other] = folders.each_ref().map(|folder| {
        let mut small = ladder(folder.path());
        (small.loads, small.seeds) = (vec![8.0], 1);
        small.climb(&Stop::new(), |_| {}).unwrap();
        fs::read_to_string(folder.path().join("cells/continuous-8-s1.csv")).unwrap()
    });
    assert_eq!(one, other);
}

#[test]
fn a_ladder_goes_on_where_it_was_left_and_not_with_other_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = ladder(folder.path());
    (small.loads, small.seeds) = (vec![2.0], 1);
    small.climb(&Stop::new(), |_| {}).unwrap();
    let lost = folder.path().join("cells/static-2-s1.json");
    fs::remove_file(&lost).unwrap();
    let mut begun = Vec::new();
    let climbed = small
        .climb(&Stop::new(), |step| begun.push(step.clone()))
        .unwrap();
    assert_eq!(begun, [Step::Begins("static-2-s1".to_owned(), [3, 4])]);
    assert!(lost.exists() && climbed.done == 4);
    let mut other = small.clone();
    other.slo.ttft_ms = 1.0;
    assert!(matches!(
        other.climb(&Stop::new(), |_| {}),
        Err(LadderError::Another(_))
    ));
}

#[test]
fn with_no_time_left_nothing_begins_and_what_there_is_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = ladder(folder.path());
    (small.loads, small.seeds) = (vec![2.0], 1);
    small.climb(&Stop::new(), |_| {}).unwrap();
    fs::remove_file(folder.path().join("cells/fifo-2-s1.json")).unwrap();
    small.budget = Some(Micros::ZERO);
    let climbed = small
        .climb(&Stop::new(), |_| panic!("no cell begins"))
        .unwrap();
    assert_eq!((climbed.done, climbed.of), (3, 4));
}

#[test]
fn a_cell_that_fails_is_kept_with_its_reason_and_the_others_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut broken = ladder(folder.path());
    (broken.loads, broken.seeds) = (vec![2.0], 1);
    broken.rungs = vec![Rung::Fifo, Rung::Static];
    broken.ground = Ground::Served(Server {
        program: folder.path().join("not-here"),
        engine: Engine::Fake,
    });
    let mut failed = Vec::new();
    let climbed = broken.climb(&Stop::new(), |step| {
        if let Step::Failed(name, why) = step {
            failed.push((name.clone(), why.clone()));
        }
    });
    let climbed = climbed.unwrap();
    assert_eq!((climbed.done, failed.len()), (2, 2));
    assert!(failed[0].1.contains("cannot start"), "{failed:?}");
    let html = fs::read_to_string(climbed.page).unwrap();
    assert!(html.contains("Runs without numbers") && html.contains("cannot start"));
}

#[test]
fn what_is_no_ladder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Ladder)| {
        let mut ladder = ladder(folder.path());
        change(&mut ladder);
        ladder.climb(&Stop::new(), |_| {}).unwrap_err().to_string()
    };
    assert!(refused(&|ladder| ladder.rungs.clear()).contains("0 rungs"));
    assert!(refused(&|ladder| ladder.seeds = 10_000).contains("80000 cells"));
    assert!(refused(&|ladder| ladder.loads = vec![-1.0]).contains("-1 requests per second"));
    assert!(refused(&|ladder| ladder.timing.warm_up = ladder.timing.duration).contains("warm-up"));
}

#[test]
fn a_ladder_that_is_asked_to_stop_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = ladder(folder.path());
    (small.loads, small.seeds) = (vec![2.0], 1);
    let stop = Stop::new();
    let climbed = small.climb(&stop, |step| {
        if let Step::Begins(_, [1, _]) = step {
            stop.pull();
        }
    });
    let climbed = climbed.unwrap();
    assert_eq!((climbed.done, climbed.of, climbed.peaks.len()), (2, 4, 2));
    assert_eq!(small.climb(&Stop::new(), |_| {}).unwrap().done, 4);
}
