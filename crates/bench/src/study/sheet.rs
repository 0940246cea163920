//! Scores as tables of CSV, for documents and for other programs.

use super::Study;
use super::score::Score;
use super::{Run, State};
use crate::rows::cleaned;

const CELLS: &str = "series,load_per_s,seed,state,why,due,completed,refused,failed,unfinished,\
                     goodput_per_s,attainment,tokens_per_s,ttft_p50_ms,ttft_p99_ms,tpot_p50_ms,\
                     itl_p50_ms,itl_p99_ms,e2e_p50_ms,e2e_p99_ms,service_gap,canary_ms,source";

pub(super) fn cells(study: &Study) -> String {
    let lines = study
        .runs
        .iter()
        .zip(&study.scores)
        .map(|(run, score)| cell(run, score.as_ref()));
    let mut text = format!("{CELLS}\n");
    for line in lines {
        text += &line;
        text.push('\n');
    }
    text
}

fn cell(run: &Run, score: Option<&Score>) -> String {
    let (state, why) = match &run.state {
        State::Measured if score.is_none() => ("empty", "no request was due".to_owned()),
        State::Measured => ("measured", String::new()),
        State::Invalid(why) => ("invalid", why.clone()),
        State::Failed(why) => ("failed", why.clone()),
    };
    let mut fields = vec![
        quoted(&run.series),
        run.load_per_s.to_string(),
        run.seed.to_string(),
        state.to_owned(),
        quoted(&why),
    ];
    match score {
        Some(score) => fields.extend(numbers(score)),
        None => fields.extend(std::iter::repeat_n(String::new(), 16)),
    }
    fields.push(
        run.facts
            .canary_ms
            .map_or_else(String::new, |ms| format!("{ms:.1}")),
    );
    fields.push(cleaned(&run.facts.source));
    fields.join(",")
}

fn numbers(score: &Score) -> Vec<String> {
    let millis =
        |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.2}"));
    let at = |sample: &tollgate_sim::stats::Sorted, p| millis(sample.quantile(p));
    vec![
        score.due.to_string(),
        score.completed.to_string(),
        score.refused.to_string(),
        score.failed.to_string(),
        score.unfinished.to_string(),
        format!("{:.4}", score.goodput_per_s),
        format!("{:.4}", score.attainment),
        format!("{:.2}", score.tokens_per_s),
        at(&score.ttft, 0.5),
        at(&score.ttft, 0.99),
        at(&score.tpot, 0.5),
        at(&score.itl, 0.5),
        at(&score.itl, 0.99),
        at(&score.e2e, 0.5),
        at(&score.e2e, 0.99),
        millis(score.service.widest),
    ]
}

pub(super) fn peaks(study: &Study) -> String {
    let mut text =
        "series,load_per_s,goodput_per_s,low,high,tokens_per_s,seeds,of_the_one_before\n"
            .to_owned();
    let mut before: Option<f64> = None;
    for peak in study.peaks() {
        let times = before
            .filter(|before| *before > 0.0)
            .map(|before| peak.goodput_per_s / before);
        let times = times.map_or_else(String::new, |times| format!("{times:.3}"));
        let fields = [
            quoted(&peak.series),
            peak.load_per_s.to_string(),
            format!("{:.4}", peak.goodput_per_s),
            format!("{:.4}", peak.low),
            format!("{:.4}", peak.high),
            format!("{:.2}", peak.tokens_per_s),
            peak.seeds.to_string(),
            times,
        ];
        text += &fields.join(",");
        text.push('\n');
        before = Some(peak.goodput_per_s);
    }
    text
}

/// A field of free text: without quotes and line ends, and in quotes where it has commas.
fn quoted(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|symbol| {
            if symbol.is_control() || symbol == '"' {
                ' '
            } else {
                symbol
            }
        })
        .collect();
    if plain.contains(',') {
        format!("\"{plain}\"")
    } else {
        plain
    }
}
