//! The page: one HTML file with its pictures inside, for a screen, a phone or paper.
//!
//! Nothing is loaded from anywhere, nothing runs, and the same runs give the same bytes. What it
//! says about a number stands beside the number.

use std::fmt::Write as _;

use super::claims::{self, Verdict};
use super::pictures::{self, Picture};
use super::score::{Band, Score};
use super::worse::{self, METRICS, Worse};
use super::{State, Study};
use crate::plot::chart::{escaped, mark};

const STYLE: &str = "\
:root{color-scheme:light}
body{font:16px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:1100px;margin:0 auto;\
padding:16px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:1.6em 0 .4em;border-bottom:1px solid #ddd}
h3{font-size:1em;margin:1em 0 .3em}
p{margin:.4em 0;max-width:75ch}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:12px}
figure{margin:0;min-width:0}svg{width:100%;height:auto;display:block}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.86em}
th,td{padding:3px 9px;border-bottom:1px solid #e2e2e2;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{border-bottom:2px solid #999}
th.text,th.why,td.text{text-align:left}td.why{text-align:left;white-space:normal;min-width:16em}
ul.legend{list-style:none;margin:.4em 0;padding:0;display:flex;flex-wrap:wrap;gap:4px 16px;\
font-size:.9em}
ul.legend svg{width:14px;height:14px;display:inline-block;vertical-align:-2px;margin-right:5px}
.note{color:#555;font-size:.88em}
.bad{border-left:4px solid #d55e00;padding-left:10px}
code{font-size:.9em;overflow-wrap:anywhere}
@media print{body{font-size:10pt;max-width:none;padding:0}figure,tr{break-inside:avoid}\
h2,h3{break-after:avoid}.grid{grid-template-columns:1fr 1fr}.wide{overflow:visible}\
table{font-size:7.5pt}th,td{padding:1px 4px}}
";

pub(super) fn html(study: &Study) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        title = escaped(&study.title)
    );
    summary(&mut page, study);
    without_numbers(&mut page, study);
    heading(&mut page, "Goodput and latency");
    note(
        &mut page,
        "Lines are medians over seeds, bands reach from the least to the most. Latency \
        counts from the intended send. The dotted line is what was offered.",
    );
    series_legend(&mut page, study);
    grid(
        &mut page,
        pictures::overview(study)
            .into_iter()
            .chain(pictures::frontier(study)),
    );
    peaks(&mut page, study);
    got_worse(&mut page, study);
    quantiles(&mut page, study);
    claims(&mut page, study);
    tenants(&mut page, study);
    timelines(&mut page, study);
    circumstances(&mut page, study);
    page.push_str("</body>\n</html>\n");
    page
}

fn summary(page: &mut String, study: &Study) {
    let (with, without) = study.counts();
    let mut text = format!("{with} runs with numbers");
    if without > 0 {
        let _ = write!(text, ", {without} without");
    }
    let _ = write!(
        text,
        ". A good request completes within {}. Goodput counts good requests when they complete; \
         attainment has every request that was due below it, refused and failed ones too.",
        study.slo
    );
    paragraph(page, &text);
}

/// What has no numbers is said first.
fn without_numbers(page: &mut String, study: &Study) {
    let lines: Vec<Vec<Td>> = study
        .runs
        .iter()
        .zip(&study.scores)
        .filter(|(_, score)| score.is_none())
        .map(|(run, _)| {
            let (state, why) = match &run.state {
                State::Measured => ("empty", "no request was due in its window"),
                State::Invalid(why) => ("invalid", why.as_str()),
                State::Failed(why) => ("failed", why.as_str()),
            };
            vec![
                Td::text(&run.series),
                Td::number(run.load_per_s),
                Td::number(run.seed as f64),
                Td::text(state),
                Td::why(why),
            ]
        })
        .collect();
    if !lines.is_empty() {
        page.push_str("<div class=\"bad\">\n<h3>Runs without numbers</h3>\n");
        table(
            page,
            &["series", "offered/s", "seed", "state", "why"],
            &lines,
        );
        page.push_str("</div>\n");
    }
    let torn: u64 = study.runs.iter().map(|run| run.facts.torn).sum();
    if torn > 0 {
        note(
            page,
            &format!("{torn} last lines were not whole, and were left out."),
        );
    }
}

fn peaks(page: &mut String, study: &Study) {
    heading(page, "Peak goodput");
    let mut before: Option<f64> = None;
    let mut lines = Vec::new();
    for peak in study.peaks() {
        let times = before
            .filter(|before| *before > 0.0)
            .map(|before| peak.goodput_per_s / before);
        before = Some(peak.goodput_per_s);
        lines.push(vec![
            Td::text(&peak.series),
            Td::number(peak.load_per_s),
            Td::number(peak.goodput_per_s),
            Td::text(&format!("{} to {}", short(peak.low), short(peak.high))),
            Td::number(peak.seeds as f64),
            Td::number(peak.tokens_per_s),
            Td::text(&times.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x"))),
        ]);
    }
    let head = [
        "series",
        "at, req/s",
        "good/s",
        "over seeds",
        "seeds",
        "tokens/s",
        "of the one before",
    ];
    table(page, &head, &lines);
}

fn got_worse(page: &mut String, study: &Study) {
    heading(page, "What got worse");
    let against = study.baseline.as_ref().map_or_else(
        || "Each series against the one before it".to_owned(),
        |baseline| format!("Each series against {baseline}"),
    );
    note(
        page,
        &format!(
            "{against}, at the same load. Listed is every number of these that is worse in every \
         seed than in any seed of the other, by 2 % or more of the median (with one seed: by 5 % or \
         more): {}.",
            METRICS
                .iter()
                .map(|metric| metric.name)
                .collect::<Vec<_>>()
                .join("; ")
        ),
    );
    let found = worse::found(study);
    if study.pairs().is_empty() {
        paragraph(page, "There is one series, and nothing to compare it with.");
        return;
    }
    if found.is_empty() {
        paragraph(page, "Nothing did, by this rule.");
        return;
    }
    let lines: Vec<Vec<Td>> = by_metric(&found)
        .iter()
        .map(|same| worse_line(same))
        .collect();
    let head = [
        "from → to",
        "what",
        "at, req/s",
        "most at",
        "before",
        "after",
        "change",
    ];
    table(page, &head, &lines);
}

/// The same number of the same pair at all its loads, in the order in which they were found.
fn by_metric(found: &[Worse]) -> Vec<Vec<&Worse>> {
    let mut lines: Vec<Vec<&Worse>> = Vec::new();
    for worse in found {
        let same = |line: &&mut Vec<&Worse>| {
            line.first().is_some_and(|first| {
                (&first.from, &first.to, first.metric) == (&worse.from, &worse.to, worse.metric)
            })
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.push(worse),
            None => lines.push(vec![worse]),
        }
    }
    lines
}

/// All its loads, and the one at which it is worst.
fn worse_line(same: &[&Worse]) -> Vec<Td> {
    let loads: Vec<String> = same.iter().map(|worse| short(worse.load_per_s)).collect();
    let worst = same
        .iter()
        .max_by(|one, other| one.times().total_cmp(&other.times()));
    let Some(worst) = worst else {
        return Vec::new();
    };
    let change = if worst.before.middle.abs() > 0.0 {
        let share = (worst.after.middle / worst.before.middle - 1.0) * 100.0;
        format!("{share:+.0} %")
    } else {
        "from nothing".to_owned()
    };
    vec![
        Td::text(&format!("{} → {}", worst.from, worst.to)),
        Td::text(worst.metric),
        Td::text(&loads.join(", ")),
        Td::number(worst.load_per_s),
        Td::text(&ranged(worst.before)),
        Td::text(&ranged(worst.after)),
        Td::text(&change),
    ]
}

fn quantiles(page: &mut String, study: &Study) {
    heading(page, "All numbers");
    note(
        page,
        "Medians over seeds; milliseconds where it is a latency.",
    );
    let mut lines = Vec::new();
    for group in study.groups() {
        let middle = |of: &dyn Fn(&Score) -> Option<f64>| {
            let band = Band::of(group.scores.iter().filter_map(|score| of(score)));
            band.map_or_else(|| Td::text("-"), |band| Td::number(band.middle))
        };
        let mut line = vec![
            Td::text(group.series),
            Td::number(group.load_per_s),
            Td::number(group.scores.len() as f64),
            middle(&|score| Some(score.due as f64)),
            middle(&|score| Some(score.completed as f64)),
            middle(&|score| Some(score.refused as f64)),
            middle(&|score| Some((score.failed + score.unfinished) as f64)),
        ];
        line.extend(
            METRICS
                .iter()
                .take(13)
                .map(|metric| middle(&|score| (metric.of)(score))),
        );
        lines.push(line);
    }
    let counts = [
        "series",
        "offered/s",
        "seeds",
        "due",
        "done",
        "refused",
        "failed or open",
    ];
    let metrics = METRICS.iter().take(13).map(|metric| metric.name);
    let head: Vec<&str> = counts.into_iter().chain(metrics).collect();
    table(page, &head, &lines);
}

fn claims(page: &mut String, study: &Study) {
    heading(page, "Claims about 99th percentiles");
    note(
        page,
        "What can be said with 99 % confidence: of n requests, so many may take longer (MLPerf's \
        early stopping: BinomCDF(misses; n, 1 %) ≤ 1 %), and 99 % of all requests take no longer than \
        the largest after those. Requests of all seeds together. The gaps of one request depend on \
        one another, so its longest one counts once.",
    );
    let mut lines = Vec::new();
    for group in study.groups() {
        for claim in claims::of(&group) {
            let verdict = match claim.verdict {
                Verdict::Within { limit_ms, misses } => {
                    format!("p99 ≤ {} ms ({misses} may miss)", short(limit_ms))
                }
                Verdict::TooFew(needed) => format!("no claim: {needed} needed"),
            };
            lines.push(vec![
                Td::text(group.series),
                Td::number(group.load_per_s),
                Td::text(claim.what),
                Td::number(claim.n as f64),
                Td::number(claim.p99_ms),
                Td::text(&verdict),
            ]);
        }
    }
    let head = [
        "series",
        "offered/s",
        "of",
        "n",
        "sample's p99, ms",
        "claim",
    ];
    table(page, &head, &lines);
}

/// Tenants in the table of tenants, for each series at its highest load.
const TENANTS_MAX: usize = 40;

fn tenants(page: &mut String, study: &Study) {
    let groups = study.groups();
    let several = groups
        .iter()
        .any(|group| group.scores.iter().any(|score| score.tenants.len() > 1));
    if !several {
        return;
    }
    heading(page, "Tenants");
    note(
        page,
        "Each series at its highest load; medians over seeds, milliseconds. The gap is the \
        widest difference in service (prompt + 2 x output tokens) between two tenants while both wait, \
        as the client sees it.",
    );
    for name in study.series() {
        let Some(group) = groups.iter().rev().find(|group| group.series == name) else {
            continue;
        };
        let Some(first) = group.scores.first() else {
            continue;
        };
        let gap = Band::of(group.scores.iter().filter_map(|score| score.service.widest));
        let gap = gap.map_or_else(|| "never two waiting".to_owned(), ranged);
        let _ = writeln!(
            page,
            "<h3>{} at {}/s: service gap {gap}</h3>",
            escaped(name),
            short(group.load_per_s)
        );
        let line = |tenant: &super::score::TenantScore| {
            let own = || {
                group.scores.iter().filter_map(|score| {
                    score.tenants.iter().find(|other| other.name == tenant.name)
                })
            };
            let middle = |each: Vec<f64>| {
                Band::of(each).map_or_else(|| Td::text("-"), |band| Td::number(band.middle))
            };
            let wait = |p| middle(own().filter_map(|tenant| tenant.ttft.quantile(p)).collect());
            vec![
                Td::text(&tenant.name),
                middle(own().map(|tenant| tenant.due as f64).collect()),
                wait(0.5),
                wait(0.9),
                wait(0.99),
                middle(own().map(|tenant| tenant.tokens_per_s).collect()),
            ]
        };
        let lines: Vec<Vec<Td>> = first.tenants.iter().take(TENANTS_MAX).map(line).collect();
        table(
            page,
            &["tenant", "due", "TTFT p50", "p90", "p99", "tokens/s"],
            &lines,
        );
        if first.tenants.len() > TENANTS_MAX {
            note(
                page,
                &format!("and {} more.", first.tenants.len() - TENANTS_MAX),
            );
        }
    }
}

fn timelines(page: &mut String, study: &Study) {
    heading(page, "Timelines");
    note(
        page,
        "The first seed of each series at its highest load; the busiest tenants and the one \
        that asks least.",
    );
    for (name, pictures) in pictures::timelines(study) {
        let _ = writeln!(page, "<h3>{}</h3>", escaped(&name));
        if let Some(legend) = pictures.first().map(|picture| picture.legend.as_slice()) {
            put_legend(page, legend);
        }
        grid(page, pictures.into_iter());
    }
}

fn circumstances(page: &mut String, study: &Study) {
    heading(page, "Circumstances");
    let mut distinct: Vec<(&str, &str)> = Vec::new();
    for run in &study.runs {
        let found = [
            ("machine", &run.facts.machine),
            ("source", &run.facts.source),
            ("command", &run.facts.command),
        ];
        for (what, text) in found {
            if !text.is_empty() && !distinct.contains(&(what, text.as_str())) {
                distinct.push((what, text));
            }
        }
    }
    /// Enough to see what was done; a ladder has one command for all its cells.
    const SHOWN_MAX: usize = 40;
    page.push_str("<ul>\n");
    for (what, text) in distinct.iter().take(SHOWN_MAX) {
        let _ = writeln!(page, "<li>{what}: <code>{}</code></li>", escaped(text));
    }
    page.push_str("</ul>\n");
    let canaries = study.runs.iter().filter_map(|run| run.facts.canary_ms);
    if let Some(band) = Band::of(canaries) {
        note(
            page,
            &format!(
                "Before each of {} runs one request to an idle engine, which no limit and no queue \
             decides about: {} ms.",
                band.seeds,
                ranged(band)
            ),
        );
    }
}

/// A cell of a table.
struct Td {
    class: &'static str,
    text: String,
}

impl Td {
    fn class(&self) -> String {
        if self.class.is_empty() {
            return String::new();
        }
        format!(" class=\"{}\"", self.class)
    }

    fn number(number: f64) -> Self {
        Self {
            class: "",
            text: short(number),
        }
    }

    fn text(text: &str) -> Self {
        Self {
            class: "text",
            text: text.to_owned(),
        }
    }

    fn why(text: &str) -> Self {
        Self {
            class: "why",
            text: text.to_owned(),
        }
    }
}

/// Three places that mean something.
fn short(number: f64) -> String {
    let size = number.abs();
    if size >= 100.0 || number.fract() == 0.0 {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else {
        let text = format!("{number:.3}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.to_owned()
    }
}

fn ranged(band: Band) -> String {
    if band.seeds < 2 || band.high <= band.low {
        return short(band.middle);
    }
    format!(
        "{} ({} to {})",
        short(band.middle),
        short(band.low),
        short(band.high)
    )
}

fn table(page: &mut String, head: &[&str], lines: &[Vec<Td>]) {
    page.push_str("<div class=\"wide\"><table>\n<tr>");
    for (index, name) in head.iter().enumerate() {
        let first = lines.first().and_then(|line| line.get(index));
        let class = first.map_or_else(String::new, Td::class);
        let _ = write!(page, "<th{class}>{}</th>", escaped(name));
    }
    page.push_str("</tr>\n");
    for line in lines {
        page.push_str("<tr>");
        for cell in line {
            let class = cell.class();
            let _ = write!(page, "<td{class}>{}</td>", escaped(&cell.text));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn grid(page: &mut String, pictures: impl Iterator<Item = Picture>) {
    page.push_str("<div class=\"grid\">\n");
    for picture in pictures {
        let _ = writeln!(page, "<figure>\n{}</figure>", picture.svg);
    }
    page.push_str("</div>\n");
}

fn series_legend(page: &mut String, study: &Study) {
    let names: Vec<(String, usize)> = study
        .series()
        .into_iter()
        .enumerate()
        .map(|(look, name)| (name.to_owned(), look))
        .collect();
    put_legend(page, &names);
}

fn put_legend(page: &mut String, names: &[(String, usize)]) {
    page.push_str("<ul class=\"legend\">\n");
    for (name, look) in names {
        let mut shape = String::new();
        mark(&mut shape, (7.0, 7.0), *look);
        let _ = writeln!(
            page,
            "<li><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">{}</svg>{}</li>",
            shape.trim_end(),
            escaped(name)
        );
    }
    page.push_str("</ul>\n");
}

fn heading(page: &mut String, text: &str) {
    let _ = writeln!(page, "<h2>{}</h2>", escaped(text));
}

fn paragraph(page: &mut String, text: &str) {
    let _ = writeln!(page, "<p>{}</p>", escaped(text));
}

fn note(page: &mut String, text: &str) {
    let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(text));
}
