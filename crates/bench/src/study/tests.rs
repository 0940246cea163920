//! Whole studies from files to the page.

use std::fs;
use std::path::Path;

use serde_json::json;
use tollgate_policy::units::{Micros, Time};

use super::*;
use crate::rows::tests::completed;
use crate::rows::{Ending, RowFile};

/// Rows every 100 ms for 10 s, whose first token takes `ttft_ms` and whose end ten times that.
fn rows(ttft_ms: u64) -> Vec<Row> {
    let row = |index: u64| {
        let due = Time::from_micros(index * 100_000);
        let after = |millis: u64| due + Micros::from_millis(millis);
        Row {
            tenant: usize::from(index.is_multiple_of(10)),
            intended: due,
            sent: Some(due),
            first_token: Some(after(ttft_ms)),
            last_token: Some(after(ttft_ms * 10)),
            end: after(ttft_ms * 10),
            ..completed()
        }
    };
    (0..100).map(row).collect()
}

fn write_rows(path: &Path, rows: &[Row]) {
    let names = ["busy".to_owned(), "quiet".to_owned()];
    let mut file = RowFile::create(path, &names).unwrap();
    rows.iter().for_each(|row| file.write(row).unwrap());
    file.flush().unwrap();
}

fn write_cell(folder: &Path, series: (&str, usize), load_per_s: f64, seed: u64) -> PathBuf {
    let cell = Cell {
        series: series.0.to_owned(),
        rank: series.1,
        load_per_s,
        seed,
        slo: Slo::default(),
        duration_s: 10.0,
        warm_up_s: 1.0,
        source: "abc".to_owned(),
        canary_ms: Some(12.0),
        failed: None,
    };
    let path = folder.join(format!("{}-{load_per_s}-{seed}.csv", series.0));
    fs::write(
        path.with_extension("json"),
        json!({ "cell": cell }).to_string(),
    )
    .unwrap();
    path
}

fn read(folder: &Path, options: Options) -> Result<Study, ReadError> {
    Study::read(&[folder.display().to_string()], options)
}

/// Two rungs, two loads, two seeds; the second rung answers slower.
fn ladder(folder: &Path) {
    for (series, ttft_ms) in [(("late", 0), 20), (("early", 1), 40)] {
        for load in [5.0, 10.0] {
            for seed in [1, 2] {
                write_rows(
                    &write_cell(folder, series, load, seed),
                    &rows(ttft_ms + seed),
                );
            }
        }
    }
}

#[test]
fn rows_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fair-s3.csv");
    let mut written = rows(20);
    written[3].ending = Ending::Refused("requests".to_owned());
    written[3].first_token = None;
    written[4].ending = Ending::Failed(crate::Failure::Status(500));
    write_rows(&path, &written);
    let runs = read::all(&[path.display().to_string()]).unwrap();
    // The first row decides which tenant is the first.
    let renumbered = |row: &Row| Row {
        tenant: 1 - row.tenant,
        ..row.clone()
    };
    let expected: Vec<Row> = written.iter().map(renumbered).collect();
    assert_eq!(runs[0].rows, expected);
    assert_eq!(
        (runs[0].series.as_str(), runs[0].tenants.len()),
        ("fair", 2)
    );
    assert!(
        (runs[0].load_per_s - 10.1).abs() < 0.11,
        "{}",
        runs[0].load_per_s
    );
}

#[test]
fn a_line_that_a_full_disk_cut_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    write_rows(&path, &rows(20));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 40]).unwrap();
    let study = read(folder.path(), Options::default()).unwrap();
    assert_eq!(study.runs[0].rows.len(), 99);
    assert!(study.to_html().contains("1 last lines were not whole"));
    let broken = text.replacen("completed", "finished", 1);
    fs::write(&path, broken).unwrap();
    let refused = read(folder.path(), Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("line 2: ending is `finished`"),
        "{refused}"
    );
}

#[test]
fn a_file_without_rows_is_named_and_no_page_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.csv");
    fs::write(&other, "a,b\n1,2\n").unwrap();
    let refused = read(folder.path(), Options::default())
        .unwrap_err()
        .to_string();
    assert!(refused.starts_with("no run in"), "{refused}");
    let refused = Study::read(&[other.display().to_string()], Options::default());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("holds no raw rows")
    );
    let half = folder.path().join("half.csv");
    fs::write(&half, "tenant,intended_us\n").unwrap();
    let refused = read(folder.path(), Options::default())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no column `first_token_us`"), "{refused}");
    let missing = Study::read(&["not-here.csv".to_owned()], Options::default());
    assert!(missing.unwrap_err().to_string().contains("not-here.csv"));
}

#[test]
fn completions_count_by_the_time_at_which_they_completed() {
    // An engine that serves 5 of 10 requests a second: what was due early ends in time, the rest
    // after the window. By the time they were due the rate would be the load.
    let mut late = rows(20);
    for (index, row) in (0..).zip(&mut late) {
        row.end = Time::from_micros(index * 200_000 + 300_000);
    }
    let folder = tempfile::tempdir().unwrap();
    write_rows(&write_cell(folder.path(), ("slow", 0), 10.0, 1), &late);
    let study = read(folder.path(), Options::default()).unwrap();
    let peak = &study.peaks()[0];
    assert!((peak.goodput_per_s - 5.0).abs() < 0.2, "{peak:?}");
}

#[test]
fn attainment_has_refused_and_failed_requests_below_it() {
    let mut mixed = rows(20);
    for row in mixed.iter_mut().skip(50) {
        row.ending = Ending::Refused("capacity".to_owned());
        row.first_token = None;
    }
    let folder = tempfile::tempdir().unwrap();
    write_rows(&write_cell(folder.path(), ("half", 0), 10.0, 1), &mixed);
    let study = read(folder.path(), Options::default()).unwrap();
    let score = study.scores[0].as_ref().unwrap();
    // 40 of the 90 that were due after the warm-up.
    assert!((score.attainment - 40.0 / 90.0).abs() < 1e-9);
    assert_eq!((score.due, score.refused), (90, 50));
}

#[test]
fn series_keep_the_order_of_their_ranks_and_what_got_worse_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    ladder(folder.path());
    let study = read(folder.path(), Options::default()).unwrap();
    assert_eq!(study.series(), ["late", "early"]);
    let worse = worse::found(&study);
    let names: Vec<&str> = worse.iter().map(|one| one.metric).collect();
    assert!(
        names.contains(&"TTFT p99, ms") && names.contains(&"E2E p50, ms"),
        "{names:?}"
    );
    assert!(!names.contains(&"tokens/s"), "{names:?}");
    let html = study.to_html();
    assert!(html.contains("late → early"));
    let turned = Options {
        baseline: Some("early".to_owned()),
        ..Options::default()
    };
    assert!(
        read(folder.path(), turned)
            .unwrap()
            .to_html()
            .contains("Nothing did, by this rule")
    );
    let unknown = Options {
        baseline: Some("nobody".to_owned()),
        ..Options::default()
    };
    assert!(read(folder.path(), unknown).is_err());
}

#[test]
fn a_cell_that_failed_or_is_invalid_is_said_and_has_no_numbers() {
    let folder = tempfile::tempdir().unwrap();
    ladder(folder.path());
    let failed = json!({ "cell": {
        "series": "early", "rank": 1, "load_per_s": 10.0, "seed": 3,
        "slo": Slo::default(), "duration_s": 10.0, "warm_up_s": 1.0, "source": "abc",
        "failed": "the server did not start <here>",
    }});
    fs::write(folder.path().join("early-10-3.json"), failed.to_string()).unwrap();
    let path = write_cell(folder.path(), ("early", 1), 10.0, 4);
    write_rows(&path, &rows(20));
    let mut record: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path.with_extension("json")).unwrap()).unwrap();
    record["validity"] = json!({ "invalid": ["requests were sent too late"] });
    fs::write(path.with_extension("json"), record.to_string()).unwrap();
    let study = read(folder.path(), Options::default()).unwrap();
    assert_eq!(study.counts(), (8, 2));
    let html = study.to_html();
    assert!(html.contains("the server did not start &lt;here&gt;"));
    assert!(html.contains("requests were sent too late"));
    let csv = study.to_csv();
    assert_eq!(
        csv.lines()
            .filter(|line| line.contains(",failed,the server"))
            .count(),
        1
    );
    let fields = csv.lines().next().unwrap().split(',').count();
    assert!(
        csv.lines().all(|line| line.split(',').count() == fields),
        "{csv}"
    );
}

#[test]
fn a_page_needs_nothing_else_and_is_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    ladder(folder.path());
    let page = || read(folder.path(), Options::default()).unwrap().to_html();
    let html = page();
    assert_eq!(html, page());
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    for reference in [
        "http://", "https://", "<script", "<link", "@import", "url(", " src=",
    ] {
        assert!(!outside.contains(reference), "{reference}");
    }
    for (open, close) in [
        ("<table>", "</table>"),
        ("<svg", "</svg>"),
        ("<div", "</div>"),
        ("<ul", "</ul>"),
    ] {
        assert_eq!(
            html.matches(open).count(),
            html.matches(close).count(),
            "{open}"
        );
    }
    assert!(html.contains("no claim: 459 needed"));
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn the_service_gap_is_that_of_tenants_that_wait_at_once() {
    // Both wait all the time; one is served 128 + 64 tokens with each request, the other none.
    let folder = tempfile::tempdir().unwrap();
    let mut both = rows(20);
    for row in &mut both {
        if row.tenant == 1 {
            row.first_token = None;
            row.ending = Ending::Unfinished;
            row.end = Time::from_micros(20_000_000);
        } else {
            row.first_token = Some(row.intended + Micros::from_millis(300));
            row.last_token = row.first_token;
        }
    }
    write_rows(&write_cell(folder.path(), ("unfair", 0), 10.0, 1), &both);
    let study = read(folder.path(), Options::default()).unwrap();
    let widest = study.scores[0].as_ref().unwrap().service.widest.unwrap();
    let served = 90.0 * (128.0 + 2.0 * 64.0);
    assert!((widest / served - 1.0).abs() < 0.05, "{widest} of {served}");
}
